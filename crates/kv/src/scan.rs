//! SCAN: walks the key map in hash order, page by page.
//!
//! Promises: a key that is there during the whole walk is shown at least once;
//! the cursor is only a position, no state is kept; reads at most one page's
//! entries at a time. Never: shows a key that was deleted or has expired.

use crate::find::fetch;
use crate::{KvError, Outcome, Step, Wait};
use terrace_log::{Kind, Order, Slot};
use terrace_pool::{Task, Worker};

/// Keys asked for at once, at most.
const COUNT_MAX: usize = 4096;

/// Cursor: 1 + lane (16 bits), shard (16), top half of the hash (31): 0 is the start and the end.
fn pack(lane: u16, at: Order) -> u64 {
    1 + (u64::from(lane) << 47 | u64::from(at.shard) << 31 | at.hash >> 33)
}
fn unpack(cursor: u64) -> (u16, Order) {
    let c = cursor.saturating_sub(1);
    let order = Order {
        shard: (c >> 31) as u32 & 0xffff,
        hash: (c & 0x7fff_ffff) << 33,
    };
    ((c >> 47) as u16, order)
}

/// Shows some `count` keys from `cursor` on; returns the next cursor, 0 at the end.
pub fn scan(
    w: &mut Worker,
    t: &mut Task,
    cursor: u64,
    count: usize,
    f: &mut dyn FnMut(&[u8]),
) -> Outcome<u64> {
    if !w.collect(t) {
        return Ok(Step::Wait(Wait::Io));
    }
    let (mut lane_id, mut order) = unpack(cursor);
    let lanes = w.pool().superblock().lanes;
    let shards = w.pool().superblock().user_shards;
    if lane_id >= lanes || order.shard >= shards {
        return match cursor {
            0 => Err(KvError::wrong("the pool has no lanes")),
            _ => Ok(Step::Done(0)),
        };
    }
    let mut keys: Vec<Vec<u8>> = Vec::new();
    while keys.len() < count.clamp(1, COUNT_MAX) {
        let (reads, next) = page(w, t, lane_id, order, &mut keys)?;
        if !reads.is_empty() && keys.is_empty() {
            return Ok(fetch(w, t, reads, true));
        }
        if !reads.is_empty() {
            // The page after what is already shown: it is the next call's.
            drop_plans(w, reads);
            break;
        }
        (lane_id, order) = match next {
            Some(order) => (lane_id, order),
            None if lane_id + 1 < lanes => (lane_id + 1, Order::default()),
            None => {
                keys.iter().for_each(|k| f(k));
                return Ok(Step::Done(0));
            }
        };
    }
    keys.iter().for_each(|k| f(k));
    Ok(Step::Done(pack(lane_id, order)))
}

/// A cursor at a random place.
fn random_cursor(w: &Worker) -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library's keys are random; a new state each call gives a new number.
    let random = std::hash::RandomState::new().build_hasher().finish();
    let superblock = w.pool().superblock();
    let lane = (random % u64::from(superblock.lanes)) as u16;
    let shard = (random >> 16) as u32 & (superblock.user_shards - 1);
    let hash = random.rotate_left(23) & !0x1_ffff_ffff;
    pack(lane, Order { shard, hash })
}

/// Shows some key to `f`, each about as likely as any other. Answers whether there is one.
/// `cursor` is where a call that waited goes on; 0 at first.
pub fn random_key(
    w: &mut Worker,
    t: &mut Task,
    cursor: &mut u64,
    f: &mut dyn FnMut(&[u8]),
) -> Outcome<bool> {
    if *cursor == 0 {
        *cursor = random_cursor(w);
    }
    // From there to the end, and then once more from the start.
    for from in [*cursor, 0] {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        match scan(w, t, from, 1, &mut |key| keys.push(key.to_vec()))? {
            Step::Wait(wait) => return Ok(Step::Wait(wait)),
            Step::Done(_) => {
                if let Some(key) = keys.get(w.now_ms() as usize % keys.len().max(1)) {
                    f(key);
                    return Ok(Step::Done(true));
                }
            }
        }
    }
    Ok(Step::Done(false))
}

type Plans = Vec<(u16, terrace_tiers::ReadPlan)>;

fn drop_plans(w: &Worker, reads: Plans) {
    for (lane, plan) in reads {
        w.lane(lane).unpin(plan.segment);
    }
}

/// Keys of one page; or the reads that must come first.
fn page(
    w: &Worker,
    t: &Task,
    id: u16,
    from: Order,
    keys: &mut Vec<Vec<u8>>,
) -> Result<(Plans, Option<Order>), KvError> {
    let mut lane = w.lane(id);
    let mut slots: Vec<Slot> = Vec::new();
    let next = lane.dir.page(from, |s| slots.push(s));
    let mut reads = Vec::new();
    let mut found = Vec::new();
    for slot in slots {
        let loc = slot.loc();
        let entry = match (loc.in_memory(), t.fetched(id, loc)) {
            (true, _) => lane.entry(slot),
            (false, Some(read)) => match read.entry() {
                Ok(e) => e,
                // It cannot be shown; GET tells why, pool check where.
                Err(_) => continue,
            },
            (false, None) => match lane.buffered(slot) {
                Some(e) => e,
                None => {
                    reads.push((id, lane.plan_read(loc)));
                    continue;
                }
            },
        };
        if !loc.in_memory() {
            let key = entry.key();
            if lane.has_newer_above(lane.subject(0, key), key) {
                continue;
            }
        }
        if entry.kind() != Kind::Tombstone && !entry.expired(lane.now_ms()) {
            found.push(entry.key().to_vec());
        }
    }
    if reads.is_empty() {
        keys.append(&mut found);
    }
    Ok((reads, next))
}
