//! SCAN: walks the key map in hash order, page by page.
//!
//! Promises: a key that is there during the whole walk is shown at least once;
//! the cursor is only a position, no state is kept; a task holds at most one page's
//! reads; a call goes through a bounded number of slots that show nothing, as those of
//! expired keys, and then answers with a cursor. Never: shows a key that was deleted or
//! has expired.

use crate::find::fetch;
use crate::{KvError, Outcome, Step, Wait};
use terrace_log::{Kind, Order, Slot};
use terrace_pool::{Task, Worker};

/// Keys asked for at once, at most.
const COUNT_MAX: usize = 4096;
/// Pages, and slots that show no key, gone through in one call, about: sixteen full pages.
const IN_VAIN_MAX: usize = 1024;
/// In a cursor of [`random_key`]: it has begun again from the start.
const WRAPPED: u64 = 1 << 63;

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

/// Shows some `count` keys from `cursor` on; returns the next cursor, 0 at the end. Where much shows nothing, it shows fewer or none.
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
    let (mut keys, mut in_vain) = (Vec::new(), 0);
    while keys.len() < count.clamp(1, COUNT_MAX) && in_vain < IN_VAIN_MAX {
        let before = keys.len();
        let page = page(w, t, lane_id, order, &mut keys)?;
        if !page.reads.is_empty() && keys.is_empty() {
            if !page.fetched {
                // Of a page that has changed since: held beside this one's, reads would add up.
                w.reset(t);
            }
            return Ok(fetch(w, t, page.reads, true));
        }
        if !page.reads.is_empty() {
            // The page after what is already shown: it is the next call's.
            drop_plans(w, page.reads);
            break;
        }
        in_vain += 1 + page.slots - (keys.len() - before);
        (lane_id, order) = match page.next {
            Some(order) => (lane_id, order),
            None if lane_id + 1 < lanes => (lane_id + 1, Order::default()),
            None => {
                keys.iter().for_each(|k| f(k));
                return Ok(Step::Done(0));
            }
        };
        if page.fetched && keys.is_empty() {
            // The next page's reads are the next call's, which holds none of these.
            break;
        }
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

/// Shows some key to `f`, each about as likely as any other. Answers whether it did.
/// `cursor` is where a call that waited goes on; 0 at first. If none was shown and it is not 0, only a part was gone through:
/// call again. If it is 0, there is no key.
pub fn random_key(
    w: &mut Worker,
    t: &mut Task,
    cursor: &mut u64,
    f: &mut dyn FnMut(&[u8]),
) -> Outcome<bool> {
    if *cursor == 0 {
        *cursor = random_cursor(w);
    }
    let (wrapped, from) = (*cursor & WRAPPED, *cursor & !WRAPPED);
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let next = match scan(w, t, from, 1, &mut |key| keys.push(key.to_vec()))? {
        Step::Wait(wait) => return Ok(Step::Wait(wait)),
        Step::Done(next) => next,
    };
    if let Some(key) = keys.get(w.now_ms() as usize % keys.len().max(1)) {
        f(key);
        return Ok(Step::Done(true));
    }
    w.reset(t);
    // From the random place to the end, and then once more from the start.
    *cursor = match next {
        0 if wrapped == 0 => WRAPPED | pack(0, Order::default()),
        0 => 0,
        next => wrapped | next,
    };
    Ok(Step::Done(false))
}

type Plans = Vec<(u16, terrace_tiers::ReadPlan)>;

fn drop_plans(w: &Worker, reads: Plans) {
    for (lane, plan) in reads {
        w.lane(lane).unpin(plan.segment);
    }
}

/// What a page came to.
struct Page {
    /// What must be read first; without any, its keys were found.
    reads: Plans,
    /// Where the next one begins in the lane.
    next: Option<Order>,
    slots: usize,
    /// Whether reads of the task were of use.
    fetched: bool,
}

/// Keys of one page; or the reads that must come first.
fn page(
    w: &Worker,
    t: &Task,
    id: u16,
    from: Order,
    keys: &mut Vec<Vec<u8>>,
) -> Result<Page, KvError> {
    let mut lane = w.lane(id);
    let mut slots: Vec<Slot> = Vec::new();
    let next = lane.dir.page(from, |s| slots.push(s));
    let mut page = Page {
        reads: Vec::new(),
        next,
        slots: slots.len(),
        fetched: false,
    };
    let mut found = Vec::new();
    for slot in slots {
        let loc = slot.loc();
        let read = t.fetched(id, loc).filter(|_| !loc.in_memory());
        page.fetched |= read.is_some();
        let entry = match (loc.in_memory(), read) {
            (true, _) => lane.entry(slot),
            (false, Some(read)) => match read.entry() {
                Ok(e) => e,
                // It cannot be shown; GET tells why, pool check where.
                Err(_) => continue,
            },
            (false, None) => match lane.buffered(slot) {
                Some(e) => e,
                None => {
                    page.reads.push((id, lane.plan_read(loc)));
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
    if page.reads.is_empty() {
        keys.append(&mut found);
    }
    Ok(page)
}
