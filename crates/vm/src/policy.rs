//! What the page buffer decides, as pure functions, apart from how it is done.
//!
//! Promises: no state, no clock. Never: touches a page.

use crate::PAGE_BYTES;
use std::ops::Range;

/// Most pages of one eviction: the thread that does it does nothing else meanwhile, some half a millisecond.
pub(crate) const BATCH_PAGES_MAX: usize = 128;

/// How many pages are evicted together from a buffer of `pages_max`. A call that flushes the processors' caches of translations
/// costs 18 µs while another thread runs, whatever the number of pages.
pub(crate) fn batch_pages(pages_max: usize) -> usize {
    (pages_max / 8).clamp(1, BATCH_PAGES_MAX)
}

/// Pages for which there is room before somebody needs it, in a buffer of `pages_max` whose faults handler threads take: what the others fault
/// in while one evicts as many.
pub(crate) fn ahead_of_faults(pages_max: usize) -> usize {
    (batch_pages(pages_max) / 2).max(1)
}

/// The most pages that come with one that faults, of a buffer of `pages_max`: the wake-up of a handler is a small part of the time then.
pub(crate) const AHEAD_PAGES_MAX: u64 = 32;

/// How many of them from a buffer of `pages_max`.
pub(crate) fn ahead_pages(pages_max: usize) -> u64 {
    (pages_max as u64 / 16).min(AHEAD_PAGES_MAX)
}

/// The most of them where all are absent from the backing too: zeros are put in place in 1.2 µs a page where many are together, so that only with so many the
/// wake-up is a small part (docs/adr/0043).
pub(crate) const AHEAD_ABSENT_MAX: u64 = 256;

/// How many of such from a buffer of `pages_max`.
pub(crate) fn ahead_absent_pages(pages_max: usize) -> u64 {
    (pages_max as u64 / 16).min(AHEAD_ABSENT_MAX)
}

/// The smallest page buffer: threads that need several pages for one instruction must all find them at the same time.
pub const PAGES_MIN: usize = 64;
/// Threads that can evict at the same time.
pub(crate) const EVICTORS_MAX: usize = 4;
/// The most handler threads.
pub const HANDLERS_MAX: usize = 64;

/// DRAM of a block with a resident page beside the pages: a page table and a record.
pub(crate) const TABLE_BYTES: usize = crate::PAGE_BYTES + crate::block::RECORD_BYTES;

/// DRAM of so many pages if each lies in a block of its own.
pub(crate) fn scattered_bytes(pages: usize) -> usize {
    pages.saturating_mul(crate::PAGE_BYTES + TABLE_BYTES)
}

/// Pages that `bytes` are enough for, with `table_bytes` of tables.
pub(crate) fn pages_of_bytes(bytes: usize, table_bytes: usize) -> usize {
    (bytes.saturating_sub(table_bytes) / crate::PAGE_BYTES).max(PAGES_MIN)
}

/// The most DRAM that is kept beside a buffer that begins with `pages_max` for page tables that the kernel has not freed yet: what 60,000 faults a second leave
/// behind in a grace period, less for small buffers. What is more than that is taken from the buffer, and in the end faults wait for the kernel: under a cap of
/// 38 MiB twice the buffer let no more than 87,000 reads/s of objects through with a third of the processors idle; thrice 106,000 to 118,000; four times as many or a few more, and
/// fewer writes (docs/adr/0041). Of `unmodified` programs most pages lie close, and handler threads take a third as many faults a second at most: a quarter is kept then
/// (docs/adr/0046, 0048).
pub(crate) fn tables_waiting_bytes(pages_max: usize, unmodified: bool) -> usize {
    let bytes = (3 * scattered_bytes(pages_max))
        .saturating_sub(1 << 20)
        .min(8 << 20);
    if unmodified { bytes / 4 } else { bytes }
}

/// What is to be kept for them after a look in which `seen` bytes waited on the average, where `kept` are and no more than `max` may be: a quarter more than that at
/// once, and less slowly. Peaks are the buffer's: kept for them, DRAM lay idle (docs/adr/0075).
pub(crate) fn tables_kept(kept: usize, seen: usize, max: usize) -> usize {
    let wanted = (seen + seen / 4).clamp(max / KEPT_LEAST_ONE_IN, max);
    wanted.max(kept - kept.saturating_sub(wanted).div_ceil(KEPT_FALLS_ONE_IN))
}
/// The least that is kept, of the most.
const KEPT_LEAST_ONE_IN: usize = 8;
/// Of what is kept for nothing so much goes at a look.
const KEPT_FALLS_ONE_IN: usize = 32;

/// Whether so many bytes of tables wait that a buffer of `bytes` does not evict more.
pub(crate) fn tables_wait(waiting: usize, kept: usize, bytes: usize) -> bool {
    waiting > kept + bytes / 2
}

/// Pages remembered after they left a buffer of `pages_max`: with independent accesses by Zipf's law the last page worth keeping comes
/// back after ten times as many others as the buffer holds.
pub(crate) fn remembered(pages_max: usize) -> usize {
    pages_max.saturating_mul(16)
}

/// Pages remembered where the buffer's size adapts: one for each page of the cap.
pub(crate) fn remembered_of_cap(cap_bytes: u64) -> usize {
    cap_bytes as usize / crate::PAGE_BYTES
}

/// Addresses for each byte of the SSD: a page of them for each object that is as small as can be.
const ADDRESSES_PER_BYTE: u64 = 128;
/// As many as a process has for each of its memories, of which 16 are had (`registry`).
const ADDRESSES_MIN_BYTES: u64 = 1 << 42;
/// A large pool takes more than its part of them: a process has seven such at most.
const ADDRESSES_MAX_BYTES: u64 = 1 << 44;

/// Addresses that are reserved for what a pool of this size can hold.
pub(crate) fn addresses_of_ssd(usable_bytes: u64) -> usize {
    let bytes = usable_bytes.saturating_mul(ADDRESSES_PER_BYTE);
    bytes.clamp(ADDRESSES_MIN_BYTES, ADDRESSES_MAX_BYTES) as usize
}

/// A page that came back before so many others left counts as near: a quarter of those resident.
pub(crate) fn near_pages(resident: usize) -> u64 {
    resident as u64 / 4
}

/// Faults between two looks at how cap is shared.
pub(crate) const BALANCE_EVERY_FAULTS: u64 = 4096;
/// Times that faults and reads cost, as measured where both processors are busy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Costs {
    fault_ns: u64,
    /// What a page that was written to costs more.
    changed_ns: u64,
    read_ns: u64,
    /// All entries are remembered when they leave the terrace (`Store::remember_used`).
    sees_all: bool,
}

/// What the buffer spares over what the terrace does, for it to shrink, and to grow. Not one, since only entries that were never used
/// again are remembered when they leave the terrace: about half of those that a larger one would have.
const WORTH: Range<f64> = 1.0..2.0;
/// The same where all are (docs/adr/0068).
const WORTH_SEEN: Range<f64> = 0.95..1.25;

/// Faults in the faulting thread (docs/adr/0022).
const IN_THREAD: Costs = Costs {
    fault_ns: 5_500,
    changed_ns: 3_000,
    read_ns: 18_000,
    sees_all: false,
};
/// Faults taken by handler threads: waking them and being woken, beside a read that is waited for likewise (docs/adr/0033).
const BY_HANDLERS: Costs = Costs {
    fault_ns: 60_000,
    changed_ns: 10_000,
    read_ns: 100_000,
    sees_all: false,
};

/// Faults in the threads of a program that does not know this library: it has few threads, often with a lock of its own in its hands, so that what a read takes counts and not only what it costs the
/// processor (docs/adr/0050).
const IN_FEW_THREADS: Costs = Costs {
    fault_ns: 10_000,
    changed_ns: 5_000,
    read_ns: 110_000,
    sees_all: true,
};

/// What they are where handler threads take faults, or where they are not needed; of an `unmodified` program.
pub(crate) fn costs(by_handlers: bool, unmodified: bool) -> Costs {
    match (by_handlers, unmodified) {
        (true, _) => Costs {
            sees_all: unmodified,
            ..BY_HANDLERS
        },
        (false, true) => IN_FEW_THREADS,
        (false, false) => IN_THREAD,
    }
}
/// What changes hands at a time, of a cap.
pub(crate) fn step_bytes(cap_bytes: u64) -> u64 {
    cap_bytes / STEP_ONE_IN
}
const STEP_ONE_IN: u64 = 64;
/// The buffer and the terrace each keep one part in so many.
const BUFFER_MIN_ONE_IN: u64 = 64;
const TERRACE_MIN_ONE_IN: u64 = 32;
/// Events without which nothing can be said.
const EVENTS_MIN: u64 = 32;

/// The most looks between two steps.
const PATIENCE_MAX: u32 = 16;

/// How soon the next step is taken. A step disturbs what is seen: what left for it comes back soon, so that the next look asks for the opposite. Without a pause the
/// buffer went up and down by a step at each look, and reads of objects were a quarter slower than with a fixed size in the middle (docs/adr/0067).
#[derive(Debug, Default)]
pub(crate) struct Pace {
    grew: bool,
    /// Looks between steps now, and those that are still to come before the next.
    patience: u32,
    pause: u32,
}

impl Pace {
    /// A look, in which the buffer would grow, shrink or stay: whether it does. Steps that go on in one direction come sooner and sooner, those that turn later and later.
    pub fn steps(&mut self, grows: Option<bool>) -> bool {
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        let Some(grows) = grows else {
            return false;
        };
        self.patience = match grows == self.grew {
            true => self.patience / 2,
            false => self.patience * 2,
        };
        self.patience = self.patience.clamp(1, PATIENCE_MAX);
        (self.grew, self.pause) = (grows, self.patience);
        true
    }
}

/// Looks before this one that count, each a little less than the one after it: what a single look sees hangs on where the hand is, since what
/// is touched all the time often lies together, and a size that follows it goes up and down (docs/adr/0072).
const LOOKS_KEPT: u64 = 8;

/// What was seen lately.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Gains {
    /// Pages that came back right after they left, and those of them for which the device was read.
    pub near: u64,
    pub near_read: u64,
    /// Pages that left, and those of them that had been written to.
    pub left: u64,
    pub changed: u64,
    /// So much more buffer would have had them, bytes.
    pub near_bytes: u64,
    /// Entries that were read while the terrace remembered them, and their bytes; how many it remembers.
    pub recalled: u64,
    pub recalled_bytes: u64,
    pub remembered: u64,
}

impl Gains {
    /// With what was seen since the last look.
    pub fn and(self, new: Gains) -> Gains {
        let sum = |kept: u64, new: u64| kept - kept / LOOKS_KEPT + new;
        Gains {
            near: sum(self.near, new.near),
            near_read: sum(self.near_read, new.near_read),
            left: sum(self.left, new.left),
            changed: sum(self.changed, new.changed),
            recalled: sum(self.recalled, new.recalled),
            recalled_bytes: sum(self.recalled_bytes, new.recalled_bytes),
            ..new
        }
    }
}

/// The most that the buffer may have of `data_bytes`, which it and the terrace share.
pub(crate) fn buffer_most(cap_bytes: u64, data_bytes: u64, terrace_min_bytes: u64) -> u64 {
    let keeps = (data_bytes / TERRACE_MIN_ONE_IN).max(terrace_min_bytes);
    data_bytes
        .saturating_sub(keeps)
        .max(buffer_least(cap_bytes))
}

/// The least that the buffer may have.
pub(crate) fn buffer_least(cap_bytes: u64) -> u64 {
    cap_bytes / BUFFER_MIN_ONE_IN
}

/// What it begins with where handler threads take faults: a program that fits into it never faults twice on a page, and a fault costs more than
/// what the terrace could spare. The terrace has half as much again as it must have, for what comes to need DRAM before the next look.
pub(crate) fn buffer_at_first(data_bytes: u64, terrace_min_bytes: u64) -> u64 {
    (data_bytes / 4 * 3).min(data_bytes.saturating_sub(terrace_min_bytes + terrace_min_bytes / 2))
}

/// What the page buffer is to have of `data_bytes`, which it and the terrace share, if it has `now` bytes. The terrace keeps `terrace_min_bytes`.
pub(crate) fn buffer_wanted(
    cap_bytes: u64,
    data_bytes: u64,
    terrace_min_bytes: u64,
    now: u64,
    gains: Gains,
    costs: Costs,
) -> u64 {
    let step = step_bytes(cap_bytes);
    let least = buffer_least(cap_bytes);
    let most = buffer_most(cap_bytes, data_bytes, terrace_min_bytes);
    if gains.near + gains.recalled < EVENTS_MIN {
        return now.min(most);
    }
    let fault_ns = costs.fault_ns + costs.changed_ns * gains.changed / gains.left.max(1);
    let mean = gains.recalled_bytes as f64 / gains.recalled.max(1) as f64;
    // By Zipf's law what a terrace of `held` bytes would spare with so many more goes with the logarithm of how much larger it is.
    let held = data_bytes.saturating_sub(now).max(1) as f64;
    let reach = held * (1.0 + gains.remembered as f64 * mean / held).ln();
    let terrace = (gains.recalled * costs.read_ns) as f64 / reach.max(1.0);
    let per_byte = |ns: u64| ns as f64 / gains.near_bytes.max(1) as f64;
    let reads = per_byte(gains.near_read * costs.read_ns);
    let (worth, reads) = match costs.sees_all {
        // What the buffer has the terrace need not have, where it takes what the page is packed to. Reads that either would spare count once.
        true => {
            let packed = (mean / PAGE_BYTES as f64).min(1.0);
            (WORTH_SEEN, reads.max(terrace * packed))
        }
        false => (WORTH, reads),
    };
    let buffer = per_byte(gains.near * fault_ns) + reads;
    // Both fall as they grow; in between nothing is moved.
    let wanted = match buffer / terrace.max(f64::MIN_POSITIVE) {
        better if better > worth.end => now + step,
        better if better < worth.start => now.saturating_sub(step),
        _ => now,
    };
    wanted.clamp(least, most)
}

/// DRAM that the addresses of a region of `pages` pages come to once all were touched: the word of each block, and the two upper levels
/// of page tables.
pub(crate) fn addresses_bytes(pages: u64) -> u64 {
    let blocks = pages.div_ceil(crate::block::BLOCK_PAGES as u64);
    let uppers = blocks.div_ceil(512);
    blocks * 8 + (uppers + uppers.div_ceil(512)) * crate::PAGE_BYTES as u64
}

/// Part of a cap that a buffer begins with: one in so many.
const BUFFER_SHARE: u64 = 16;

/// How many scattered pages a buffer begins with under a cap.
pub(crate) fn pages_of_cap(cap_bytes: u64) -> usize {
    let pages = cap_bytes as usize / BUFFER_SHARE as usize / scattered_bytes(1);
    pages.max(PAGES_MIN)
}

/// The most of a cap that a page buffer may come to.
const BUFFER_OF_CAP_MAX: (u64, u64) = (1, 2);

/// The most pages that may be materialised at a time under a cap.
pub(crate) fn pages_max_of_cap(cap_bytes: u64) -> usize {
    let (part, of) = BUFFER_OF_CAP_MAX;
    let pages = cap_bytes / of * part / scattered_bytes(1) as u64;
    (pages as usize).max(PAGES_MIN)
}

/// What is left for reading at most where no more pages may be dirty: 2 MiB.
const LEFT_FOR_READING_MAX: usize = 512;

/// Dirty pages that a buffer of `pages_max` may hold: if the backing takes none, reading goes on in what is left.
pub(crate) fn dirty_pages_max(pages_max: usize) -> usize {
    pages_max - (pages_max / 8).clamp(1, LEFT_FOR_READING_MAX)
}

/// Page tables that are walked rather than left out by ending one range and beginning another: a walk costs 1 µs, another range 18
/// µs. What is walked over is protected too, and pays 22 µs if it is dirty and written to once more; but the hand takes all dirty
/// pages that it meets, so there are few such.
const WALKED_TABLES_MAX: u64 = 16;

/// Whether a range to be protected goes on over `tables` page tables in which nothing is to be protected.
pub(crate) fn walk_on(tables: u64) -> bool {
    tables <= WALKED_TABLES_MAX
}

/// Most changed pages of a page table that a pipe holds while they are taken away: 0.8 µs a page. Where more lie in one, protecting them is less: it is some 6 µs for each table (docs/adr/0073).
const HELD_OF_TABLE_MAX: usize = 8;

/// Whether so many changed pages in so many page tables are held rather than protected.
pub(crate) fn holds(changed: usize, tables: usize) -> bool {
    (1..tables * HELD_OF_TABLE_MAX).contains(&changed)
}

/// In how many rounds of the hand a page of some heat leaves once: what is hot is touched every few rounds only, and the hotter, the longer what it costs to see whether it still is
/// can be put off (docs/adr/0076).
pub(crate) const fn rounds(heat: u8) -> u64 {
    match heat {
        0 => 1,
        heat => 4 * 3_u64.pow(heat as u32 - 1),
    }
}

/// How hot a page is that came back so often before, where pages that are changed stay, too: each that stays costs a fault by writing and a flush of the processors' caches, 16 µs, so that only
/// one which keeps coming back right after it left is worth it.
pub(crate) fn heat_of_changed(heat: u8, near: bool) -> u8 {
    if near && heat >= 2 { heat } else { 0 }
}

/// Whether a page stays in this round of the hand. Each has its own rounds to leave in, so that in all about as many do; and its heat is as it was then.
pub(crate) fn stays(heat: u8, page: u64, round: u64) -> bool {
    let spread = page.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    !(round + spread).is_multiple_of(rounds(heat))
}

/// Fills by reading that are looked at together.
pub(crate) const SAMPLE_FILLS: u32 = 256;
/// While pages are made writable at once, every so manyth is not, to see what comes of it.
pub(crate) const SAMPLE_EVERY: u32 = 16;

/// Whether pages that are read should be writable at once, when of `filled` pages that were not, `opened` were written to later.
///
/// Opening one costs 22 µs (the fault, and the flush); a page that is writable must be protected before it is evicted, 1.8 µs,
/// and compared.
pub(crate) fn expects_writes(opened: u32, filled: u32) -> bool {
    u64::from(opened) * 10 > u64::from(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_kept_for_at_once_and_let_go_slowly() {
        let max = 8 << 20;
        assert_eq!(tables_kept(max, max, max), max);
        assert_eq!(tables_kept(1 << 20, 4 << 20, max), 5 << 20);
        assert_eq!(tables_kept(1 << 20, 1 << 30, max), max);
        let looks = |from: usize, seen| {
            let kept =
                std::iter::successors(Some(from), |&kept| Some(tables_kept(kept, seen, max)));
            kept.take_while(|&kept| kept > (seen + seen / 4).max(max / 8))
                .count()
        };
        // Never below what waited, nor an eighth; after some hundred looks there.
        assert!((50..600).contains(&looks(max, 1 << 20)));
        assert!((50..600).contains(&looks(max, 0)));
        assert_eq!(tables_kept(max / 8, 0, max), max / 8);
        assert_eq!(tables_kept(0, 0, 0), 0);
    }

    #[test]
    fn small_buffers_keep_room() {
        for pages_max in 1..2000 {
            assert!((1..=BATCH_PAGES_MAX).contains(&batch_pages(pages_max)));
            assert!(dirty_pages_max(pages_max) < pages_max);
        }
        assert_eq!(batch_pages(64), 8);
        assert_eq!(dirty_pages_max(64), 56);
        // A program that writes to all its memory is to have nearly all of a large buffer for it.
        assert_eq!(dirty_pages_max(100_000), 99_488);
    }

    #[test]
    fn steps_that_turn_come_late_and_those_that_go_on_soon() {
        let mut pace = Pace::default();
        let mut looks_until = |grows: bool| {
            let looks = (1..100).find(|_| pace.steps(Some(grows)));
            looks.expect("it steps")
        };
        let turning: Vec<u32> = (0..7).map(|n| looks_until(n % 2 == 0)).collect();
        assert_eq!(turning, [1, 2, 3, 5, 9, 17, 17]);
        let going_on: Vec<u32> = (0..7).map(|_| looks_until(true)).collect();
        assert_eq!(going_on, [17, 9, 5, 3, 2, 2, 2]);
        assert!(!(0..100).any(|_| pace.steps(None)));
    }

    #[test]
    fn where_the_hand_is_does_not_move_the_buffer() {
        let cap = 512 << 20;
        let (data, now) = (cap / 8 * 7, cap / 2);
        // As seen of a Redis: the hand goes over pages that come back at once, then over those that do not.
        let look = |near| Gains {
            near,
            near_bytes: now / 4,
            left: 4096,
            recalled: 300,
            recalled_bytes: 300 * 1600,
            remembered: 220_000,
            ..Gains::default()
        };
        let wanted = |gains| buffer_wanted(cap, data, 0, now, gains, IN_FEW_THREADS);
        let (few, many) = (look(300), look(1000));
        assert!(wanted(few) < now && wanted(many) > now, "each by itself");
        let looks = [few, many].repeat(20);
        let mut seen = Gains::default();
        let moved = looks.iter().skip(8).filter(|look| {
            seen = seen.and(**look);
            wanted(seen) != now
        });
        assert!(moved.count() < 8, "once enough was seen it stays");
        let mut seen = few.and(few);
        let turned = (0..16).find(|_| {
            seen = seen.and(many);
            wanted(seen) > now
        });
        assert!(turned.is_some(), "but what has changed is seen");
    }

    #[test]
    fn what_the_buffer_has_the_terrace_need_not_have() {
        let cap = 512 << 20;
        let (data, now) = (cap / 8 * 7, cap / 2);
        // As seen of a Redis: pages that come back soon lie in the terrace, others are read.
        let gains = Gains {
            near: 700,
            near_read: 50,
            near_bytes: now / 4,
            left: 4096,
            changed: 4096,
            recalled: 800,
            recalled_bytes: 800 * 1600,
            remembered: 220_000,
        };
        let wanted = |gains| buffer_wanted(cap, data, 0, now, gains, IN_FEW_THREADS);
        assert!(wanted(gains) < now, "two and a half pages are had for one");
        let whole = Gains {
            recalled_bytes: 800 * 4200,
            remembered: 84_000,
            ..gains
        };
        assert!(wanted(whole) >= now, "nothing is had for it");
        // A little more would have them all.
        let read = Gains {
            near: 4000,
            near_read: 4000,
            ..gains
        };
        assert!(wanted(read) > now);
    }

    #[test]
    fn cap_goes_to_where_it_spares_more() {
        let cap = 512 << 20;
        let (data, now) = (cap / 2, cap / 8);
        let gains = Gains {
            near: 2000,
            near_bytes: now / 4,
            recalled: 1000,
            recalled_bytes: 160_000,
            remembered: 500_000,
            ..Gains::default()
        };
        let wanted = |gains| buffer_wanted(cap, data, 0, now, gains, IN_THREAD);
        // A fault for each of 16 MiB, against a read for each of 80 MB.
        assert!(wanted(gains) > now);
        let few = Gains { near: 100, ..gains };
        assert!(wanted(few) < now);
        let read = Gains {
            near: 200,
            near_read: 200,
            ..gains
        };
        assert!(wanted(read) > wanted(few));
        let idle = Gains {
            near: 10,
            recalled: 10,
            ..gains
        };
        assert_eq!(wanted(idle), now);
        let none = Gains {
            recalled: 0,
            recalled_bytes: 0,
            ..gains
        };
        let most = buffer_wanted(cap, data, 0, data, none, IN_THREAD);
        assert_eq!(most, data - data / TERRACE_MIN_ONE_IN);
        assert_eq!(buffer_wanted(cap, data, 0, 0, few, IN_THREAD), cap / 64);
        // Whatever it would spare, and also when it has more already: with less the terrace refuses updates.
        let kept = data / 2;
        assert_eq!(
            buffer_wanted(cap, data, kept, data, few, IN_THREAD),
            data - kept
        );
        assert_eq!(
            buffer_wanted(cap, data, kept, data, none, IN_THREAD),
            data - kept
        );
    }

    #[test]
    fn each_page_leaves_once_in_so_many_rounds() {
        for heat in 0..=3 {
            let every = rounds(heat);
            let leaves = |page| (0..every).filter(move |round| !stays(heat, page, *round));
            assert!((0..1000).all(|page| leaves(page).count() == 1));
            // In no round many more than in others.
            let in_first = (0..36_000).filter(|page| !stays(heat, *page, 0)).count() as u64;
            assert!((in_first * every).abs_diff(36_000) < 4000);
        }
        assert_eq!((0..=3).map(rounds).collect::<Vec<_>>(), [1, 4, 12, 36]);
    }

    #[test]
    fn what_lies_alone_is_held_and_what_lies_close_is_protected() {
        assert!(holds(128, 128) && holds(1, 1) && holds(128, 32));
        assert!(!holds(128, 4) && !holds(0, 128) && !holds(0, 0));
    }

    #[test]
    fn writes_are_expected_where_they_were_seen() {
        assert!(!expects_writes(0, 256));
        assert!(!expects_writes(25, 256));
        assert!(expects_writes(26, 256));
    }
}
