//! How the page buffer and the DRAM terrace share a cap: what a little more of one would spare, against the other.
//!
//! Pages that come back right after they left tell what a larger buffer would spare: a fault each, and a read of the device if the
//! DRAM terrace has not got them. Entries that are read again while the terrace remembers them tell what a larger terrace would: a read
//! each. Every so many faults the two are compared for each byte, and a step of the cap goes to the better.
//!
//! Where handler threads take faults, the buffer begins with most of it ([`Balance::begin_large`]). What others take of the cap (tables of keys,
//! children of forks) is taken from the buffer once the terrace would have too little.
//!
//! Promises: the sum stays under the cap: the buffer grows only into what the terrace may not take. Never: waits, allocates (it runs
//! in threads that fault), or moves anything itself.

use crate::memory::Memory;
use crate::shares::{self, Gains, Pace};
use crate::store::Store;
use crate::sys::Lock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Rounds in which pages and entries leave for something else: each is a few dozen turns of the store's worker.
const MAKE_WAY_ROUNDS: u32 = 16;

/// See the head of the file.
pub(crate) struct Balance {
    memory: Memory,
    store: Arc<Store>,
    state: Lock<State>,
    /// What the cap was told of the buffer, and that with all that is counted beside it; changed with the state locked.
    buffer_bytes: AtomicU64,
    counted_bytes: AtomicU64,
    /// The user chose a size.
    fixed: AtomicBool,
    /// A thread makes pages leave for [`Balance::keep_terrace`].
    keeping: AtomicBool,
}

#[derive(Default)]
struct State {
    /// What was counted at the last look.
    fetched: u64,
    left: u64,
    changed: u64,
    near: u64,
    near_read: u64,
    recalled: u64,
    recalled_bytes: u64,
    seen: Gains,
    pace: Pace,
}

impl Balance {
    pub fn new(memory: Memory, store: Arc<Store>) -> Balance {
        let balance = Balance {
            memory,
            store,
            state: Lock::new(State::default()),
            buffer_bytes: AtomicU64::new(0),
            counted_bytes: AtomicU64::new(0),
            fixed: AtomicBool::new(false),
            keeping: AtomicBool::new(false),
        };
        // As many pages as the bytes are enough for where they lie close.
        let (max, _) = balance.memory.buffer_bytes();
        balance.memory.set_buffer_bytes(max);
        balance.count();
        balance
    }

    /// Gives the buffer most of what it shares with the terrace, before anything is in either.
    pub fn begin_large(&self) {
        let _state = self.state.lock();
        let (small, _) = self.memory.buffer_bytes();
        let shared = self.between_them_bytes();
        let large = shares::buffer_at_first(shared, self.store.terrace_min_bytes());
        if large <= small as u64 {
            return;
        }
        self.tell(large);
        match self.store.give_way() {
            true => self.memory.set_buffer_bytes(large as usize),
            false => self.tell(small as u64),
        }
    }

    /// Something else takes up to so many bytes more of the cap. Pages leave before, if the terrace would have too little: with too few segments it takes none of them, and it
    /// would stay so. How many bytes it takes: fewer where pages do not leave now.
    pub fn make_way(&self, bytes: u64) -> u64 {
        // For what there is no room pages need not leave.
        let bytes = bytes.min(self.spare_bytes());
        for _ in 0..MAKE_WAY_ROUNDS {
            if self.fixed.load(Ordering::Relaxed) || !self.keeps_under(bytes) {
                break;
            }
            // What stays is too busy to leave: faults to come will make it.
            let _left = self.memory.shrink_to_bound();
        }
        let bytes = {
            let _state = self.state.lock();
            let kept = self.buffer_bytes() + self.store.terrace_min_bytes();
            let bytes = bytes.min(self.between_them_bytes().saturating_sub(kept));
            self.store.count_pages(0, bytes);
            bytes
        };
        for _ in 0..MAKE_WAY_ROUNDS {
            if self.store.give_way() {
                break;
            }
        }
        bytes
    }

    /// What pages could make way for: what they and the terrace have beside the least of both.
    pub fn spare_bytes(&self) -> u64 {
        let (cap_bytes, _) = self.store.cap_and_used_bytes();
        let least = match self.fixed.load(Ordering::Relaxed) {
            true => self.buffer_bytes(),
            false => shares::buffer_least(cap_bytes),
        };
        let kept = self.store.terrace_min_bytes() + least;
        self.between_them_bytes().saturating_sub(kept)
    }

    /// Pages leave if the terrace has come to have too little. For who stores without faults of its own, which would look: tables grow by that, too.
    pub fn keep_terrace(&self) {
        let alone = || !self.keeping.swap(true, Ordering::AcqRel);
        if self.fixed.load(Ordering::Relaxed) || !alone() {
            return;
        }
        let over = |balance: &Balance| match balance.state.try_lock() {
            Some(_state) => balance.keep_under(0),
            // Who has it looks.
            None => false,
        };
        if over(self) {
            // What stays is too busy to leave: the next look has it.
            let _left = self.memory.shrink_to_bound();
            // The cap is told what left.
            over(self);
        }
        self.keeping.store(false, Ordering::Release);
    }

    /// What pages and the DRAM terrace have of the cap together: the buffer, as the cap was told of it, and what lanes may take.
    pub fn between_them_bytes(&self) -> u64 {
        self.store.shared_bytes(self.buffer_bytes())
    }

    /// What is counted in the cap, but of the buffer what it holds now.
    pub fn held_bytes(&self) -> u64 {
        let (_, used) = self.store.cap_and_used_bytes();
        let (_, held) = self.memory.buffer_bytes();
        used.saturating_sub(self.buffer_bytes()) + held as u64
    }

    /// The most that slots of all tables may take: the rest is what pages and entries must have at least.
    pub fn slots_max_bytes(&self) -> u64 {
        let (cap_bytes, _) = self.store.cap_and_used_bytes();
        cap_bytes.saturating_sub(self.beside_slots_bytes())
    }

    /// What the cap has too little for that rest, and slots of so many bytes.
    pub fn lacks_bytes(&self, slots_bytes: u64) -> u64 {
        let (cap_bytes, _) = self.store.cap_and_used_bytes();
        (self.beside_slots_bytes() + slots_bytes).saturating_sub(cap_bytes)
    }

    /// What others hold of the cap, and the least that pages and entries must have.
    fn beside_slots_bytes(&self) -> u64 {
        let buffer = self.buffer_bytes();
        let (cap_bytes, _) = self.store.cap_and_used_bytes();
        let least = match self.fixed.load(Ordering::Relaxed) {
            true => buffer,
            false => shares::buffer_least(cap_bytes),
        };
        // As much may come to be kept for page tables as ever was.
        let tables = self.memory.tables_unkept_bytes();
        self.store.others_bytes(buffer) + self.store.terrace_least_bytes() + least + tables
    }

    fn buffer_bytes(&self) -> u64 {
        self.buffer_bytes.load(Ordering::Relaxed)
    }

    /// Lowers the buffer's bound to the most that it may have beside what others have, and `more_bytes`. True: pages are above it.
    fn keep_under(&self, more_bytes: u64) -> bool {
        let (max, held) = self.memory.buffer_bytes();
        let (max, held) = (max as u64, held as u64);
        let shared = self.between_them_bytes().saturating_sub(more_bytes);
        let (cap, _) = self.store.cap_and_used_bytes();
        let most = shares::buffer_most(cap, shared, self.store.terrace_min_bytes());
        if max > most {
            self.memory.set_buffer_bytes(most as usize);
        }
        let max = most.min(max);
        if self.buffer_bytes() > max {
            // It shrinks: what pages gave back the terrace may have.
            self.tell(held.max(max));
        }
        held > max
    }

    /// The same, with the state locked for as long as that takes, and not while pages leave.
    fn keeps_under(&self, more_bytes: u64) -> bool {
        let _state = self.state.lock();
        self.keep_under(more_bytes)
    }

    /// The size is counted, and stays: the user chose it; or it adapts from now on. What it was before.
    pub fn fix(&self, fixed: bool) -> bool {
        let before = self.fixed.swap(fixed, Ordering::Relaxed);
        if fixed {
            // Nothing follows what waits any more.
            let (kept, _) = self.memory.tables_kept_bytes();
            let all = kept as u64 + self.memory.tables_unkept_bytes();
            self.memory.keep_for_tables(all as usize);
        }
        self.count();
        before
    }

    fn count(&self) {
        let _state = self.state.lock();
        let (max, _) = self.memory.buffer_bytes();
        self.tell(max as u64);
    }

    /// With the state locked.
    fn tell(&self, buffer_bytes: u64) {
        let now = buffer_bytes + self.memory.fixed_bytes();
        let before = self.counted_bytes.load(Ordering::Relaxed);
        // In an order in which others see too much counted rather than too little.
        if now > before {
            self.store.count_pages(before, now);
        }
        self.buffer_bytes.store(buffer_bytes, Ordering::Relaxed);
        self.counted_bytes.store(now, Ordering::Relaxed);
        if now < before {
            self.store.count_pages(before, now);
        }
    }

    /// Looks whether something is to change.
    pub fn look(&self) {
        if self.fixed.load(Ordering::Relaxed) {
            return;
        }
        let Some(mut state) = self.state.try_lock() else {
            return;
        };
        let state = &mut *state;
        self.keep_under(0);
        let stats = self.memory.stats();
        if stats.fetched - state.fetched < shares::BALANCE_EVERY_FAULTS {
            return;
        }
        let (cap, _) = self.store.cap_and_used_bytes();
        self.keep_for_tables(cap);
        let (max, held) = self.memory.buffer_bytes();
        let (max, held) = (max as u64, held as u64);
        let (recalled, recalled_bytes, remembered) = self.store.recalled();
        let gains = state.seen.and(Gains {
            near: stats.near - state.near,
            near_read: stats.near_read - state.near_read,
            left: stats.evicted - state.left,
            changed: stats.stored - state.changed,
            near_bytes: self.memory.near_bytes(),
            recalled: recalled - state.recalled,
            recalled_bytes: recalled_bytes - state.recalled_bytes,
            remembered,
        });
        state.seen = gains;
        if let Some(whole) = gains.are_whole() {
            self.memory.pages_are_whole(whole);
        }
        (state.fetched, state.near, state.near_read) = (stats.fetched, stats.near, stats.near_read);
        (state.left, state.changed) = (stats.evicted, stats.stored);
        (state.recalled, state.recalled_bytes) = (recalled, recalled_bytes);
        let wanted = shares::buffer_wanted(
            cap,
            self.between_them_bytes(),
            self.store.terrace_min_bytes(),
            max,
            gains,
            self.memory.costs(),
        );
        let grows = (wanted != max).then_some(wanted > max);
        if !state.pace.steps(grows) {
            return;
        }
        if wanted > max {
            // Only into what nobody may take meanwhile: a step is no more than the cap's slack, and the terrace gives way to it next.
            if self.store.committed_bytes() + (wanted - max) <= cap {
                self.tell(wanted);
                self.memory.set_buffer_bytes(wanted as usize);
            } else {
                self.store.driver.ring();
            }
        } else if wanted < max {
            self.memory.set_buffer_bytes(wanted as usize);
            self.tell(held.max(wanted));
        }
    }

    /// What page tables that wait for the kernel do not need, pages and entries may have. With the state locked.
    fn keep_for_tables(&self, cap: u64) {
        let (kept, wanted) = self.memory.tables_kept_bytes();
        if wanted > kept {
            let more = shares::step_bytes(cap).min((wanted - kept) as u64);
            // As the buffer grows below; until then what waits beyond it is the buffer's.
            if self.store.committed_bytes() + more > cap {
                return self.store.driver.ring();
            }
            // Counted before it is used.
            let buffer = self.buffer_bytes();
            self.tell(buffer + more);
            self.memory.keep_for_tables(kept + more as usize);
            self.tell(buffer);
        } else {
            self.memory.keep_for_tables(wanted);
            self.tell(self.buffer_bytes());
        }
    }
}

impl Drop for Balance {
    fn drop(&mut self) {
        let counted = self.counted_bytes.load(Ordering::Relaxed);
        self.store.count_pages(counted, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opp::Heap;
    use crate::store::StoreOptions;
    use crate::{PAGE_BYTES, Way};
    use std::time::{Duration, Instant};

    const CAP_BYTES: u64 = 64 << 20;

    fn balance() -> (tempfile::TempDir, Balance) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&StoreOptions::scratch(dir.path(), CAP_BYTES, 0)).unwrap();
        let memory = Memory::new(crate::Options {
            way: Way::InThread,
            ..Heap::options(&store)
        });
        let balance = Balance::new(memory.unwrap(), store);
        (dir, balance)
    }

    #[test]
    fn where_pages_do_not_pack_changed_ones_are_as_hot_as_others() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&StoreOptions::scratch(dir.path(), CAP_BYTES, 0)).unwrap();
        let memory = Memory::new(crate::Options {
            way: Way::InThread,
            unmodified: true,
            ..Heap::options(&store)
        });
        let balance = Balance::new(memory.unwrap(), store);
        let core = balance.memory.core.clone();
        // Came back once, and near.
        let heat = |page| {
            core.ghost.leaves(page, 0, 0);
            core.comes(page, crate::Fetched::Read)
        };
        // What a look sees of entries that were read again.
        let look = |entry_bytes: u64| {
            let mut state = balance.state.lock();
            state.seen = Gains {
                recalled: 800,
                recalled_bytes: 800 * entry_bytes,
                ..Gains::default()
            };
            state.fetched = 0;
            drop(state);
            crate::stats::Counters::add(&core.counters.fetched, shares::BALANCE_EVERY_FAULTS);
            balance.look();
        };
        assert_eq!(heat(1), 0);
        look(4000);
        assert_eq!(heat(2), 1);
        look(2000);
        assert_eq!(heat(3), 0);
    }

    #[test]
    fn records_of_blocks_stay_counted_when_the_blocks_are_empty() {
        const BLOCKS: usize = 1000;
        let (_dir, balance) = balance();
        let counted = || {
            balance.count();
            balance.counted_bytes.load(Ordering::Relaxed) as usize
        };
        let before = counted();
        let space = &balance.memory.core.space;
        let pinned: Vec<_> = (0..BLOCKS).map(|block| space.pin(block).unwrap()).collect();
        // As long as they are used they are the buffer's.
        assert_eq!(counted(), before);
        for pinned in pinned {
            balance.memory.core.unpin(pinned, 1);
        }
        assert_eq!(counted(), before + BLOCKS * crate::block::RECORD_BYTES);
    }

    #[test]
    fn what_is_kept_for_page_tables_follows_what_waits() {
        let (_dir, balance) = balance();
        let grace = &balance.memory.core.grace;
        let counted = || balance.counted_bytes.load(Ordering::Relaxed) as usize;
        let look = || {
            let _state = balance.state.lock();
            balance.keep_for_tables(CAP_BYTES);
        };
        let (all, all_counted) = (grace.kept_bytes(), counted());
        let slots_max = balance.slots_max_bytes();
        // What is kept may be asked for again, so no slots are promised it.
        let same_slots_max = || {
            let now = balance.slots_max_bytes();
            assert!(
                now.abs_diff(slots_max) < all as u64 / 4,
                "{slots_max} {now}"
            );
        };
        while grace.kept_bytes() > all / 8 {
            let before = grace.kept_bytes();
            look();
            assert!(grace.kept_bytes() < before, "nothing waits");
        }
        assert_eq!(all_counted - counted(), all - grace.kept_bytes());
        same_slots_max();
        // All of it waits, look after look.
        let began = Instant::now();
        while grace.kept_bytes() < all {
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "{}",
                grace.kept_bytes()
            );
            let before = grace.kept_bytes();
            grace.give_back(all / PAGE_BYTES);
            look();
            let more = grace.kept_bytes().saturating_sub(before) as u64;
            assert!(more <= shares::step_bytes(CAP_BYTES));
            // Only into what nobody may take; the terrace gives way for the next.
            let committed = balance.store.committed_bytes();
            // What a lane was given by who looked before is a step at most.
            let most = CAP_BYTES + shares::step_bytes(CAP_BYTES);
            assert!(more == 0 || committed <= most, "{committed}");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(counted(), all_counted);
        grace.keep(all / 8);
        balance.fix(true);
        assert_eq!((grace.kept_bytes(), counted()), (all, all_counted));
    }
}
