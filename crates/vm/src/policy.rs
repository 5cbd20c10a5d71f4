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

/// DRAM of one page of a buffer: it, and, if it is scattered, a page table and a record of its own; and what is remembered of
/// pages that left.
const PAGE_TOTAL_BYTES: usize =
    2 * crate::PAGE_BYTES + crate::space::RECORD_BYTES + crate::ghost::BYTES_PER_PAGE;

/// DRAM that a page buffer of `pages_max` can come to.
pub(crate) fn buffer_bytes(pages_max: usize) -> u64 {
    (pages_max * PAGE_TOTAL_BYTES + crate::scratch::SCRATCH_BYTES) as u64
}

/// DRAM that the addresses of a region of `pages` pages come to once all were touched: the word of each block, and the two upper levels
/// of page tables.
pub(crate) fn addresses_bytes(pages: u64) -> u64 {
    let blocks = pages.div_ceil(crate::block::BLOCK_PAGES as u64);
    let uppers = blocks.div_ceil(512);
    blocks * 8 + (uppers + uppers.div_ceil(512)) * crate::PAGE_BYTES as u64
}

/// Pages of a buffer that has its share of a cap: one part in this many.
const BUFFER_SHARE: u64 = 16;

/// How many pages are materialised at a time under a cap.
pub(crate) fn pages_of_cap(cap_bytes: u64) -> usize {
    let pages = cap_bytes / BUFFER_SHARE / PAGE_TOTAL_BYTES as u64;
    (pages as usize).max(crate::memory::PAGES_MIN)
}

/// The most of a cap that a page buffer may come to.
const BUFFER_OF_CAP_MAX: (u64, u64) = (1, 2);

/// The most pages that may be materialised at a time under a cap.
pub(crate) fn pages_max_of_cap(cap_bytes: u64) -> usize {
    let (part, of) = BUFFER_OF_CAP_MAX;
    let pages = cap_bytes / of * part / PAGE_TOTAL_BYTES as u64;
    (pages as usize).max(crate::memory::PAGES_MIN)
}

/// Dirty pages that a buffer of `pages_max` may hold: if the backing takes none, reading goes on in what is left.
pub(crate) fn dirty_pages_max(pages_max: usize) -> usize {
    pages_max - (pages_max / 8).max(1)
}

/// Page tables that are walked rather than left out by ending one range and beginning another: a walk costs 1 µs, another range 18
/// µs. What is walked over is protected too, and pays 22 µs if it is dirty and written to once more; but the hand takes all dirty
/// pages that it meets, so there are few such.
const WALKED_TABLES_MAX: u64 = 16;

/// Whether a range to be protected goes on over `tables` page tables in which nothing is to be protected.
pub(crate) fn walk_on(tables: u64) -> bool {
    tables <= WALKED_TABLES_MAX
}

/// Rounds of the hand after which clean pages cool by one: what is hot is touched every few rounds only.
pub(crate) const ROUNDS_A_HEAT: u64 = 4;

/// Whether pages with heat lose some in this round of the hand.
pub(crate) fn cools(round: u64) -> bool {
    round.is_multiple_of(ROUNDS_A_HEAT)
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
    fn small_buffers_keep_room() {
        for pages_max in 1..2000 {
            assert!((1..=BATCH_PAGES_MAX).contains(&batch_pages(pages_max)));
            assert!(dirty_pages_max(pages_max) < pages_max);
        }
        assert_eq!(batch_pages(64), 8);
        assert_eq!(dirty_pages_max(64), 56);
    }

    #[test]
    fn a_hand_that_goes_round_cools() {
        let cooled = (0..ROUNDS_A_HEAT * 3).filter(|round| cools(*round)).count();
        assert_eq!(cooled, 3);
    }

    #[test]
    fn writes_are_expected_where_they_were_seen() {
        assert!(!expects_writes(0, 256));
        assert!(!expects_writes(25, 256));
        assert!(expects_writes(26, 256));
    }
}
