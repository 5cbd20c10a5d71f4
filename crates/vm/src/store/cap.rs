//! What of the cap pages, entries and slots have, and may have.
//!
//! Promises: what is said to be there is not what lanes may take meanwhile. Never: moves anything but by a turn of the worker.

use super::open::Store;
use super::room::SEGMENTS_MIN;
use super::table::Table;
use terrace_pool::Part;

/// Turns in which the terrace is to have given way: it looks at the cap every so many.
const GIVE_WAY_TURNS: u32 = 64;

impl Store {
    /// Takes note that a program's pages and their page tables take `after` bytes of the cap, where they took `before`:
    /// the DRAM terrace gives way.
    pub fn count_pages(&self, before: u64, after: u64) {
        self.pool.ledger().change(Part::Pages, before, after);
    }
    /// The cap, and what is held of it.
    pub fn cap_and_used_bytes(&self) -> (u64, u64) {
        let ledger = self.pool.ledger();
        (ledger.cap_bytes(), ledger.total())
    }
    /// DRAM that lanes are to have, so that they take updates whatever else comes: twice what they refuse updates below.
    pub(crate) fn terrace_min_bytes(&self) -> u64 {
        self.segments_bytes(2 * SEGMENTS_MIN)
    }
    /// DRAM that lanes must have to take updates; each has whole segments.
    pub(crate) fn terrace_least_bytes(&self) -> u64 {
        self.segments_bytes(SEGMENTS_MIN + 1)
    }
    /// What so many segments of each lane take.
    fn segments_bytes(&self, segments: usize) -> u64 {
        let superblock = self.pool.superblock();
        segments as u64 * u64::from(self.lanes()) * u64::from(superblock.segment_bytes)
    }
    /// DRAM that pages and entries may have together, where `pages_bytes` of what is counted is the pages'. By what all others hold: what lanes may take
    /// at this moment follows it only after a few turns.
    pub(crate) fn shared_bytes(&self, pages_bytes: u64) -> u64 {
        let ledger = self.pool.ledger();
        let others = ledger.beside_segments().saturating_sub(pages_bytes);
        ledger.cap_bytes().saturating_sub(others)
    }
    /// What all others than pages, entries and promised slots hold, likewise: what slots take is not asked of the ledger, which hears of them a few turns later.
    pub(crate) fn others_bytes(&self, pages_bytes: u64) -> u64 {
        let ledger = self.pool.ledger();
        let slots = ledger.held(Part::Index);
        let others = ledger.beside_segments().saturating_sub(pages_bytes + slots);
        others + self.unpromised_slots_bytes()
    }
    /// What slots take of tables whose owner, if there is one, promises nothing.
    fn unpromised_slots_bytes(&self) -> u64 {
        let shapes = self.shapes.read();
        let tables = (0..).zip(shapes.iter());
        let unowned = tables.filter(|(_, made)| made.is_some_and(|made| !made.owned));
        let bytes = |table| {
            let of = |lane| {
                self.pool
                    .lane(lane)
                    .dir
                    .table(table)
                    .map_or(0, Table::bytes)
            };
            (0..self.lanes()).map(of).sum::<usize>() as u64
        };
        match self.keeps {
            // Of a pool that is kept, regions have all.
            true => 0,
            false => unowned.map(|(table, _)| bytes(table)).sum(),
        }
    }
    /// Bytes of the cap that are held, or that lanes may take without asking.
    pub(crate) fn committed_bytes(&self) -> u64 {
        let ledger = self.pool.ledger();
        let segment = u64::from(self.pool.superblock().segment_bytes);
        let lanes: u64 = (0..self.lanes())
            .map(|lane| {
                let lane = self.pool.lane(lane);
                lane.memory_segments().max(lane.memory_held()) as u64 * segment
            })
            .sum();
        ledger.total() - ledger.held(Part::Segments).min(ledger.total()) + lanes
    }
    /// Makes the DRAM terrace give way, if something else takes more of the cap than before. False: not within a moment.
    pub(crate) fn give_way(&self) -> bool {
        if self.here().is_err() {
            return false;
        }
        for _ in 0..GIVE_WAY_TURNS {
            let told = self.driver.told();
            // What is held is told to the ledger a few turns later.
            let ledger = self.pool.ledger();
            if self.committed_bytes().max(ledger.total()) <= ledger.cap_bytes() {
                return true;
            }
            self.driver.help_now(told);
        }
        false
    }
}
