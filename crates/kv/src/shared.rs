//! What all workers of a pool share: which versions of big values are held, or doomed, and which records are free; and what is watched. And how a
//! big value is found: what its binder says, byte by byte, and how long its pieces are.
//!
//! Promises: a version that somebody holds is not named as one whose pieces may go. Never: looks into a lane, or writes; `large` does.

use crate::meta::digest;
use crate::watch::Watch;
use crate::{INLINE_MAX_BYTES, PIECE_BYTES};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use terrace_pool::{Mutex, Worker};

/// What a binder says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Binder {
    pub len: u64,
    pub version: u64,
}

impl Binder {
    pub(crate) fn pieces(&self, piece_bytes: usize) -> u32 {
        self.len.div_ceil(piece_bytes as u64) as u32
    }
    pub(crate) fn encode(&self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.len.to_le_bytes());
        out[8..].copy_from_slice(&self.version.to_le_bytes());
        out
    }
}

/// Reads a binder or a record.
pub(crate) fn binder(value: &[u8]) -> Option<Binder> {
    let len = value.get(..8)?.try_into().ok()?;
    let version = value.get(8..16)?.try_into().ok()?;
    Some(Binder {
        len: u64::from_le_bytes(len),
        version: u64::from_le_bytes(version),
    })
}

/// Length of the pieces in a pool: [`PIECE_BYTES`], less where segments are small (tests).
pub fn piece_bytes(w: &Worker) -> usize {
    PIECE_BYTES.min(w.pool().superblock().segment_bytes as usize / 128 * 15)
}

/// Longest value in one entry in a pool: [`INLINE_MAX_BYTES`], less where segments are small.
pub fn inline_max_bytes(w: &Worker) -> usize {
    INLINE_MAX_BYTES.min(w.pool().superblock().segment_bytes as usize / 8)
}

/// A version whose pieces are to be deleted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Doomed {
    pub record: u16,
    pub binder: Binder,
}

#[derive(Default)]
pub(crate) struct Registry {
    /// Free records by lane; the start adds each one as soon as it has looked at it. They are taken from the back and only with the
    /// lane held, and given to the front: so what a command has peeked at is what it takes, if it held the lane meanwhile.
    free: Vec<VecDeque<u16>>,
    /// How many records of a lane could not be read, and so are never given out.
    lost: HashMap<u16, usize>,
    doomed: VecDeque<Doomed>,
    /// The pieces of one are being deleted.
    ending: bool,
    /// How often that was put off since it last succeeded.
    put_off: usize,
    readers: HashMap<u64, u32>,
    /// The start has looked at all records.
    pub(crate) started: bool,
}

/// State shared by all workers of a pool.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) registry: Mutex<Registry>,
    /// Beside it, since a pool keeps one state for the layer above.
    pub(crate) watch: Watch,
}

pub(crate) fn registry(w: &Worker) -> Arc<Shared> {
    w.pool().extension::<Shared>()
}

/// Whether pieces are being deleted, so that there is more room soon.
pub(crate) fn some_end(w: &Worker) -> bool {
    registry(w).registry.lock().comes_free()
}

impl Registry {
    /// A version's pieces must go.
    pub(crate) fn doom(&mut self, doomed: Doomed) {
        self.doomed.push_back(doomed);
    }
    /// The deletion of a version's pieces is put off.
    pub(crate) fn put_back(&mut self, doomed: Doomed) {
        self.doomed.push_back(doomed);
        self.ending = false;
        self.put_off += 1;
    }
    /// A version's pieces are gone: its record is free again.
    pub(crate) fn ended(&mut self, lane: u16, record: u16) {
        self.give(lane, record);
        self.ending = false;
        self.put_off = 0;
    }
    /// Whether a record, and the room of its pieces, comes free without anybody's doing: not once each was tried in vain.
    pub(crate) fn comes_free(&self) -> bool {
        let unread = |d: &Doomed| !self.readers.contains_key(&d.binder.version);
        let tried = self.put_off > self.doomed.len();
        !self.started || !tried && (self.ending || self.doomed.iter().any(unread))
    }
    pub(crate) fn give(&mut self, lane: u16, record: u16) {
        let lane = lane as usize;
        if self.free.len() <= lane {
            self.free.resize(lane + 1, VecDeque::new());
        }
        self.free[lane].push_front(record);
    }
    /// A record of a lane cannot be read.
    pub(crate) fn lose(&mut self, lane: u16) {
        *self.lost.entry(lane).or_default() += 1;
    }
    /// How many records of a lane could not be read.
    pub(crate) fn lost(&self, lane: u16) -> usize {
        self.lost.get(&lane).copied().unwrap_or(0)
    }
    /// The `nth` free record of a lane, not taken yet.
    pub(crate) fn peek(&self, lane: u16, nth: usize) -> Option<u16> {
        let free = self.free.get(lane as usize)?;
        free.len().checked_sub(nth + 1).map(|at| free[at])
    }
    /// Takes a free record. The lane is held.
    pub(crate) fn take(&mut self, lane: u16) -> Option<u16> {
        self.free.get_mut(lane as usize)?.pop_back()
    }
    /// Takes it back, with the lane still held: it is the next one again.
    pub(crate) fn untake(&mut self, lane: u16, record: u16) {
        if let Some(free) = self.free.get_mut(lane as usize) {
            free.push_back(record);
        }
    }
    /// The lane with the most free records, if there are any.
    pub(crate) fn freest(&self) -> Option<u16> {
        let lane = (0..self.free.len()).max_by_key(|&l| self.free[l].len())?;
        (!self.free[lane].is_empty()).then_some(lane as u16)
    }
    /// The next version that nobody reads.
    pub(crate) fn next_doomed(&mut self) -> Option<Doomed> {
        let free = |d: &Doomed| !self.readers.contains_key(&d.binder.version);
        let at = self.doomed.iter().position(free)?;
        self.ending = true;
        self.doomed.remove(at)
    }
    /// Everything was deleted: no piece and no record is left.
    pub(crate) fn forget_all(&mut self, places: impl Iterator<Item = (u16, u16)>) {
        self.free.clear();
        self.lost.clear();
        self.doomed.clear();
        self.ending = false;
        self.put_off = 0;
        for (lane, record) in places {
            self.give(lane, record);
        }
    }
}

/// A hold on one version of a big value: its pieces stay while it is held.
pub struct LargeRef {
    pub(crate) binder: Binder,
    piece_bytes: usize,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for LargeRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LargeRef")
            .field("len", &self.binder.len)
            .finish_non_exhaustive()
    }
}

impl LargeRef {
    pub(crate) fn hold(shared: &Arc<Shared>, value: &[u8], piece_bytes: usize) -> Option<LargeRef> {
        let binder = binder(value)?;
        *shared
            .registry
            .lock()
            .readers
            .entry(binder.version)
            .or_default() += 1;
        Some(LargeRef {
            binder,
            piece_bytes,
            shared: shared.clone(),
        })
    }
    /// Length of the value, bytes.
    #[allow(clippy::len_without_is_empty)] // It is longer than INLINE_MAX_BYTES.
    pub fn len(&self) -> u64 {
        self.binder.len
    }
    /// The token that stands for the value if none is kept beside it.
    pub fn cas(&self) -> u64 {
        digest(&self.binder.version.to_le_bytes())
    }
    /// Number of pieces.
    pub fn pieces(&self) -> u32 {
        self.binder.pieces(self.piece_bytes)
    }
}

impl Clone for LargeRef {
    /// One more hold.
    fn clone(&self) -> LargeRef {
        let mut registry = self.shared.registry.lock();
        *registry.readers.entry(self.binder.version).or_default() += 1;
        LargeRef {
            binder: self.binder,
            piece_bytes: self.piece_bytes,
            shared: self.shared.clone(),
        }
    }
}

impl Drop for LargeRef {
    fn drop(&mut self) {
        let mut registry = self.shared.registry.lock();
        if let Some(n) = registry.readers.get_mut(&self.binder.version) {
            *n -= 1;
            if *n == 0 {
                registry.readers.remove(&self.binder.version);
            }
        }
    }
}
