//! The ledger: who holds how much of the cap.
//!
//! Large memory is counted here by part; nothing is handed out that would lift
//! the sum above the cap. Memory of segments is what gives way: when another
//! part needs more, the lanes' quotas fall and the cleaner releases segments.
//! Not counted: code, stacks, the device's queues without their buffers and small allocations, some 10 MiB a process; and, for a moment, the copy of 2 MiB with which a
//! block of segments moves to a huge page (of arenas from 64 MiB on, whose page tables of a 512th that spares).

use crate::sync::atomic::{AtomicU64, Ordering};
use serde::Serialize;

/// What memory is held for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Part {
    /// DRAM segments, and a middle terrace in memory.
    Segments = 0,
    /// Directories.
    Index = 1,
    /// Segments being filled, cleaned or saved; reads under way, what they keep, and buffers for the next ones.
    Io = 2,
    /// Connection buffers.
    Connections = 3,
    /// Pages that a program sees (of memory that faults), and their page tables.
    Pages = 4,
}

/// Bytes held, by part, of a cap.
pub struct Ledger {
    cap_bytes: u64,
    held: [AtomicU64; 5],
    /// Of `Io`, what no single read has.
    standing: AtomicU64,
    connections_max_bytes: u64,
    wanted: AtomicU64,
}

/// Part of the cap that connection buffers may take: an eighth.
const CONNECTIONS_ONE_IN: u64 = 8;
/// Part of the cap that reads may take, under way and kept for their commands: an eighth.
const READS_ONE_IN: u64 = 8;
/// Kept free for what grows between two looks at the quotas: a 64th, at least 1 MiB.
const SLACK_ONE_IN: u64 = 64;
const SLACK_MIN_BYTES: u64 = 1 << 20;

impl Ledger {
    /// With a cap in bytes.
    pub fn new(cap_bytes: u64) -> Ledger {
        Ledger {
            cap_bytes,
            held: Default::default(),
            standing: AtomicU64::new(0),
            connections_max_bytes: cap_bytes / CONNECTIONS_ONE_IN,
            wanted: AtomicU64::new(0),
        }
    }
    /// The cap, bytes.
    pub fn cap_bytes(&self) -> u64 {
        self.cap_bytes
    }
    /// Bytes held for a part.
    pub fn held(&self, part: Part) -> u64 {
        self.held[part as usize].load(Ordering::Relaxed)
    }
    /// Bytes held in all.
    pub fn total(&self) -> u64 {
        self.held.iter().map(|h| h.load(Ordering::Relaxed)).sum()
    }
    /// Takes note of what a part holds now, by difference.
    pub fn change(&self, part: Part, before: u64, after: u64) {
        let held = &self.held[part as usize];
        match after >= before {
            true => held.fetch_add(after - before, Ordering::Relaxed),
            false => held.fetch_sub(before - after, Ordering::Relaxed),
        };
    }
    /// The same for what of `Io` no single read has: the lanes' buffers, and those that are kept for reads.
    pub fn change_standing(&self, before: u64, after: u64) {
        self.change(Part::Io, before, after);
        match after >= before {
            true => self.standing.fetch_add(after - before, Ordering::Relaxed),
            false => self.standing.fetch_sub(before - after, Ordering::Relaxed),
        };
    }
    /// Whether reads may take `bytes` more.
    pub fn may_read(&self, bytes: u64) -> bool {
        bytes <= self.left_for_reads()
    }
    /// Whether reads have half of what they may take, or less.
    pub fn reads_are_low(&self) -> bool {
        self.left_for_reads() >= self.cap_bytes / READS_ONE_IN / 2
    }
    fn left_for_reads(&self) -> u64 {
        (self.cap_bytes / READS_ONE_IN).saturating_sub(self.held_by_reads())
    }
    /// Bytes that reads have, under way and kept for their commands.
    pub fn held_by_reads(&self) -> u64 {
        let standing = self.standing.load(Ordering::Relaxed);
        self.held(Part::Io).saturating_sub(standing)
    }
    /// Hands out `bytes` for connection buffers. False: not now; the lanes will
    /// give way, or the connections' share is used up.
    pub fn grant(&self, bytes: u64) -> bool {
        let held = &self.held[Part::Connections as usize];
        let after = held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if after <= self.connections_max_bytes && self.total() <= self.cap_bytes {
            return true;
        }
        held.fetch_sub(bytes, Ordering::Relaxed);
        if after <= self.connections_max_bytes {
            self.wanted.fetch_max(bytes, Ordering::Relaxed);
        }
        false
    }
    /// Takes `bytes` of connection buffers back.
    pub fn ungrant(&self, bytes: u64) {
        self.held[Part::Connections as usize].fetch_sub(bytes, Ordering::Relaxed);
    }
    /// Bytes that memory segments may take in all, given what the other parts hold.
    pub fn for_segments(&self) -> u64 {
        let wanted = self.wanted.swap(0, Ordering::Relaxed);
        self.cap_bytes
            .saturating_sub(self.beside_segments() + wanted)
    }
    /// Bytes that memory segments may not take: what the other parts hold, and what is kept free.
    pub fn beside_segments(&self) -> u64 {
        let slack = (self.cap_bytes / SLACK_ONE_IN).max(SLACK_MIN_BYTES);
        let parts = [Part::Index, Part::Io, Part::Connections, Part::Pages];
        let others: u64 = parts.into_iter().map(|part| self.held(part)).sum();
        others + slack
    }
}
