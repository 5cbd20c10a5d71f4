//! What the page buffer decides, as pure functions, apart from how it is done.
//!
//! Promises: no state, no clock. Never: touches a page.

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

/// DRAM that the addresses of a region of `pages` pages come to once all were touched: the word of each block, and the two upper levels
/// of page tables.
pub(crate) fn addresses_bytes(pages: u64) -> u64 {
    let blocks = pages.div_ceil(crate::block::BLOCK_PAGES as u64);
    let uppers = blocks.div_ceil(512);
    blocks * 8 + (uppers + uppers.div_ceil(512)) * crate::PAGE_BYTES as u64
}

/// How many pages have addresses that come to about so many bytes.
pub(crate) fn pages_of_addresses(bytes: u64) -> u64 {
    // A word of each block, and of the tables above it.
    bytes / 16 * crate::block::BLOCK_PAGES as u64
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

/// How hot a page is that came back so often before, where pages that are changed stay, too, and take less below than here: each that stays costs a fault by writing and a flush of the processors'
/// caches, 16 µs, so that only one which keeps coming back right after it left is worth it. Where they take as much below, each counts as hot as it is (docs/adr/0083).
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
    fn addresses_come_to_what_they_are_counted_for() {
        for bytes in [0, 1 << 10, 100 << 10, 8 << 20, 1 << 30] {
            let come_to = addresses_bytes(pages_of_addresses(bytes));
            assert!(
                (bytes..=bytes + bytes / 512 + 8192).contains(&come_to),
                "{bytes} {come_to}"
            );
        }
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
