//! The words in which a lane is spoken to: what it is made of, what a look-up or an
//! update may answer, where it stands with an epoch, and the rules a test takes out.
//!
//! Here are only types: they promise nothing beyond their variants and never do anything.

use crate::mem::Pos;
use terrace_log::{Hasher, Loc, Slot};

/// What a lane is made of. Sizes are fixed while it runs, but for the memory quota.
#[derive(Clone)]
pub struct Config {
    /// Number of the lane.
    pub lane: u16,
    /// Lanes of the pool.
    pub lanes: u16,
    /// Random number of the pool.
    pub pool: u64,
    /// Segment size of every terrace, bytes.
    pub segment_bytes: usize,
    /// Device offset of the lane's first segment, bytes.
    pub ssd_base: u64,
    /// Segments on the device.
    pub ssd_segments: u32,
    /// Device offset of the lane's two root blocks, bytes.
    pub root_base: u64,
    /// Segments of DRAM.
    pub memory_segments: usize,
    /// Segments of a middle terrace of byte-addressable memory; 0: none.
    pub middle_segments: usize,
    /// Bound on bytes that no durable terrace has, if lower than the policy's.
    pub dirty_max_bytes: u64,
    /// Nothing here outlives the process: no checkpoint is made, a deletion needs no tombstone,
    /// and what is dirty steps down only when memory needs the room (see `scratch`).
    pub scratch: bool,
    /// Hashes keys.
    pub hasher: Hasher,
    /// How a test takes a rule out, to see that its tests notice. None in every pool.
    pub without_rule: Option<Rule>,
}

impl Config {
    pub(crate) fn rule(&self, rule: Rule) -> bool {
        self.without_rule != Some(rule)
    }
}

/// Where a look-up ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// No such key.
    Absent,
    /// In memory, or still in a segment's buffer.
    Memory(Slot),
    /// What was read before.
    Fetched(Slot),
    /// One read must tell: plan it, fetch it, look again.
    Read(Loc),
}

/// Why an update was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// No room in memory just now; background work will make some.
    Room,
    /// It can never fit: more bytes at once than memory takes.
    TooLarge,
    /// The SSD is full of live data.
    SsdFull,
    /// The directory is full.
    IndexFull,
}

/// Where the lane stands with the epoch it makes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// No epoch is under way.
    Idle,
    /// Copying the epoch's entries to the SSD log.
    Staging(u64, Pos),
    /// Adding entries moved by the cleaner to the same commit.
    Moving(u64),
    /// Everything is handed out; writes are under way.
    Writing(u64),
    /// The lane's part is written; the device's flush makes it durable.
    Arrived(u64),
}

impl Phase {
    /// The epoch under way.
    pub fn epoch(self) -> Option<u64> {
        match self {
            Phase::Idle => None,
            Phase::Staging(e, _) | Phase::Moving(e) | Phase::Writing(e) | Phase::Arrived(e) => {
                Some(e)
            }
        }
    }
}

/// Rules that keep data, each of which a test can take out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Rule 1: a version below stays live until its successor is staged.
    DeadWhenSuccessorDurable,
    /// Rule 1: a segment is reused only after a checkpoint that does not point into it, or when replay does not need it.
    ReuseAfterCheckpoint,
    /// Rule 1: what is reused before a checkpoint is told in the log first.
    FreedIsTold,
    /// Rule 2: a copy that a memory entry's link names is live.
    LinkKeepsAlive,
    /// Rule 3: a tombstone stays while an older segment does.
    TombstonesStay,
    /// Rule 3: an expired entry turns into a tombstone.
    ExpiryLeavesTombstone,
    /// Rule 4: an append names what it replaces.
    AppendNamesReplaced,
    /// Rule 5: an epoch counts only whole, up to the batch that ends it.
    EpochNeedsEnd,
    /// Rule 5: what is read is of this pool.
    BoundToPool,
    /// Rule 5: what is read is of this life of its segment.
    BoundToGeneration,
    /// Rule 7: a move is a compare-and-set.
    MoveIsCompareAndSet,
    /// Rule 7: a segment is not reused while a read of it is under way.
    ReadersHold,
    /// Rule 8: two checkpoints alternate.
    TwoRoots,
    /// Superseded entries of a closed epoch are still written with it.
    KeepSuperseded,
    /// An entry is written over only while its epoch is open.
    OverwriteOnlyOpen,
    /// An entry is staged only once it is known what it replaces.
    StageOnlyVerified,
    /// Bytes are acknowledged only after the device's flush.
    FlushBeforeAcknowledge,
    /// Rule 6: segments for the whole dirty bound stay reserved.
    ReserveStays,
}
