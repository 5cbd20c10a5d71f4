//! The state of one command that may have to wait for reads.
//!
//! A command is executed again from its start until nothing is missing; the
//! task keeps what was read in between. Never: outlives the holds on segments
//! that its reads took; `Worker::finish` ends them.

use std::collections::HashMap;
use std::ops::Range;
use terrace_log::entry::{Entry, EntryError};
use terrace_log::{Kind, Loc};
use terrace_media::{BLOCK_BYTES, Buf, MediaError};
use terrace_tiers::ReadPlan;

/// Values longer than this are not kept when a command only needs the key.
const KEY_ONLY_VALUE_MAX_BYTES: usize = 256;

/// An entry that may stay in the buffer it was read into does, if it is at least one part in so many of it.
const STAYS_ONE_IN: usize = 8;

/// What a buffer for `len` bytes takes.
pub(crate) fn buf_bytes(len: usize) -> usize {
    len.next_multiple_of(BLOCK_BYTES)
}

/// What of an entry that was read is kept for its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Of a long value only the key.
    Key,
    /// A copy, no larger than the entry.
    Copy,
    /// The buffer that it was read into, without a copy.
    Buffer,
}

/// An entry's bytes.
enum Held {
    Copy(Box<[u8]>),
    /// Where it was read to, and its place there.
    Buf(Buf, Range<usize>),
}

/// One entry that was read.
pub struct Fetched {
    pub(crate) lane: u16,
    pub(crate) plan: ReadPlan,
    result: Result<Held, String>,
    /// Why the value must not be shown, although the key is known.
    damage: Option<String>,
}

impl Fetched {
    /// Takes the entry out of what the device returned; hands the buffer back if the entry does not stay there.
    pub(crate) fn new(
        lane: u16,
        plan: ReadPlan,
        read: Result<(), MediaError>,
        buf: Buf,
        keep: Keep,
    ) -> (Fetched, Option<Buf>) {
        let mut damage = None;
        let entry = match read {
            Err(e) => Err(format!("{e} ({})", place(lane, &plan))),
            Ok(()) => entry_of(lane, &plan, &buf, &mut damage),
        };
        let (result, buf) = match entry {
            Err(why) => (Err(why), Some(buf)),
            Ok(e) if keep == Keep::Key && e.value().len() > KEY_ONLY_VALUE_MAX_BYTES => {
                let mut short = e.to_new();
                short.value = &[];
                let mut out = vec![0; short.len_bytes()];
                short.write(&mut out);
                (Ok(Held::Copy(out.into_boxed_slice())), Some(buf))
            }
            Ok(e)
                if keep == Keep::Buffer
                    && e.as_bytes().len() * STAYS_ONE_IN >= buf_bytes(buf.len()) =>
            {
                let place = plan.skip..plan.skip + e.as_bytes().len();
                (Ok(Held::Buf(buf, place)), None)
            }
            Ok(e) => (Ok(Held::Copy(e.as_bytes().into())), Some(buf)),
        };
        let fetched = Fetched {
            lane,
            plan,
            result,
            damage,
        };
        (fetched, buf)
    }

    /// What a read came to whose buffer did not come back.
    pub(crate) fn lost(lane: u16, plan: ReadPlan, read: Result<(), MediaError>) -> Fetched {
        let why = read.map_or_else(|e| e.to_string(), |()| "its buffer is lost".into());
        Fetched {
            lane,
            plan,
            result: Err(format!("{why} ({})", place(lane, &plan))),
            damage: None,
        }
    }

    /// The entry; its value is missing when only the key was asked for.
    pub fn entry(&self) -> Result<Entry<'_>, &str> {
        match &self.result {
            Ok(Held::Copy(bytes)) => Ok(Entry::in_memory(bytes)),
            Ok(Held::Buf(buf, place)) => Ok(Entry::in_memory(&buf[place.clone()])),
            Err(why) => Err(why),
        }
    }
    /// Why the value must not be shown, if it fails its checksum; the key is right.
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }
    /// Memory that it takes, bytes.
    pub(crate) fn kept_bytes(&self) -> usize {
        match &self.result {
            Ok(Held::Copy(bytes)) => bytes.len(),
            Ok(Held::Buf(buf, _)) => buf_bytes(buf.len()),
            Err(_) => 0,
        }
    }
    /// The lane it is of.
    pub fn lane(&self) -> u16 {
        self.lane
    }
    /// Where it was read.
    pub fn loc(&self) -> Loc {
        self.plan.loc
    }
}

fn place(lane: u16, plan: &ReadPlan) -> String {
    let byte = plan.offset + plan.skip as u64;
    format!("lane {lane}, segment {}, byte {byte}", plan.segment)
}

/// The entry that `plan` finds in `bytes`. `damage`: why its value must not be shown.
fn entry_of<'a>(
    lane: u16,
    plan: &ReadPlan,
    bytes: &'a [u8],
    damage: &mut Option<String>,
) -> Result<Entry<'a>, String> {
    let hurt = |e: EntryError| format!("damaged entry at {}: {e}", place(lane, plan));
    let entry = Entry::from_media(&bytes[plan.skip..], plan.seed).map_err(hurt)?;
    match entry.verify_value(plan.seed) {
        Ok(()) => Ok(entry),
        // A new value may replace it; a binder's pieces could not be found.
        Err(why) if entry.kind() == Kind::Value => {
            *damage = Some(hurt(why));
            Ok(entry)
        }
        Err(why) => Err(hurt(why)),
    }
}

/// Resolution state of one command.
pub struct Task {
    pub(crate) owner: u64,
    /// Where the worker keeps what it has under way.
    pub(crate) reads: Option<usize>,
    pub(crate) fetched: Vec<Fetched>,
    /// Where each location's read is in `fetched`, once there are many.
    places: HashMap<(u16, Loc), usize>,
    pub(crate) under_way: usize,
    /// Since when it has had all that it read and was tried again all the same, by the clock for intervals, ms.
    pub(crate) waits_since_ms: Option<u64>,
    pub(crate) durable_at: Option<u64>,
}

/// Reads of a task that are looked through one by one.
const FEW_READS: usize = 8;

impl Task {
    pub(crate) fn new(owner: u64) -> Task {
        Task {
            owner,
            reads: None,
            fetched: Vec::new(),
            places: HashMap::new(),
            under_way: 0,
            waits_since_ms: None,
            durable_at: None,
        }
    }
    /// After the command is done: its reply may go out when this epoch is durable. None: at once.
    pub fn durable_at(&self) -> Option<u64> {
        self.durable_at
    }
    /// Who owns it.
    pub fn owner(&self) -> u64 {
        self.owner
    }
    /// The reply must wait for `epoch`.
    pub fn wait_for(&mut self, epoch: u64) {
        self.durable_at = Some(self.durable_at.map_or(epoch, |e| e.max(epoch)));
    }
    /// Reads that have not come back.
    pub fn reads_under_way(&self) -> usize {
        self.under_way
    }
    /// Whether what was read at `loc` of `lane` is `key`'s; None if it was not read.
    /// One that could not be read counts as another's; `failure` tells, and the caller must ask.
    pub fn known(&self, lane: u16, loc: Loc, key: &[u8], space: u8) -> Option<bool> {
        let f = self.fetched(lane, loc)?;
        let hit = f
            .entry()
            .is_ok_and(|e| e.key() == key && e.space() == space);
        Some(hit)
    }
    /// The read of `loc` in `lane`, if it failed: why.
    pub fn failure(&self, lane: u16, loc: Loc) -> Option<&str> {
        self.fetched(lane, loc)?.entry().err()
    }
    /// What was read at `loc` in `lane`.
    pub fn fetched(&self, lane: u16, loc: Loc) -> Option<&Fetched> {
        if self.fetched.len() <= FEW_READS {
            return (self.fetched.iter()).rfind(|f| f.lane == lane && f.plan.loc == loc);
        }
        let at = self.places.get(&(lane, loc))?;
        self.fetched.get(*at)
    }
    /// Takes in reads that came back.
    pub(crate) fn take_in(&mut self, reads: &mut Vec<Fetched>) {
        match self.fetched.is_empty() {
            true => std::mem::swap(&mut self.fetched, reads),
            false => self.fetched.append(reads),
        }
        if self.fetched.len() > FEW_READS {
            for (at, f) in self.fetched.iter().enumerate().skip(self.places.len()) {
                self.places.insert((f.lane, f.plan.loc), at);
            }
        }
    }
    pub(crate) fn forget(&mut self) -> std::vec::Drain<'_, Fetched> {
        self.places.clear();
        self.fetched.drain(..)
    }
    /// Reads that came back.
    pub fn all_fetched(&self) -> &[Fetched] {
        &self.fetched
    }
    /// Whether any read of a lane failed.
    pub fn any_failure(&self, lane: u16) -> bool {
        self.fetched
            .iter()
            .any(|f| f.lane == lane && f.result.is_err())
    }
}
