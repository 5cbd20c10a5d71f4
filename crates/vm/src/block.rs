//! The life of a block: 2 MiB of addresses, which is what one page table covers, as one word.
//!
//! | state | its page table | its record (the words of its 512 pages) | who may move it on | to |
//! |---|---|---|---|---|
//! | empty | none | none | whoever needs a page of it, with a fresh record | live, 1 user |
//! | live, n users | may be there | there | who needs a page of it | live, n + 1 |
//! | | | | a user, when others are left | live, n − 1 |
//! | | | | the last user or users | releasing |
//! | releasing | being given back | there | only who released it | empty |
//! | | | | the same, where pages came back that could not be stored | live, a user for each |
//!
//! A *user* is a page that is not absent, or a thread that looks at the record (it has *pinned* the block). So a record is never
//! reused under a thread that reads it, and a page table is given back only when nobody can be about to put a page there.
//!
//! Promises: no transition that the table does not have. Never: waits, or touches memory of the block.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Pages of a block.
pub(crate) const BLOCK_PAGES: usize = 512;
/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = BLOCK_PAGES * crate::backing::PAGE_BYTES;

/// DRAM of a record: a word for each page, a bit for each that may be there, and a link, in whole lines of the cache.
pub(crate) const RECORD_BYTES: usize = (BLOCK_PAGES + BLOCK_PAGES / 8 + 4).next_multiple_of(64);

/// Bits 0 to 31: the record's index plus one.
const RECORD: u64 = 0xffff_ffff;
/// Bits 32 to 49: the users.
const USER: u64 = 1 << 32;
const USERS: u64 = 0x3_ffff << 32;
const RELEASING: u64 = 1 << 50;
const AWAITED: u64 = 1 << 51;
/// Users a block can have: its pages, and far more threads than Linux lets a process have look at it at a time.
const USERS_MAX: u64 = USERS / USER;

/// What [`BlockWord::pin`] met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pin {
    /// The caller is a user now; the index of the record.
    Live(u32),
    /// There is no record.
    Empty,
    /// It is being released: wait.
    Releasing,
}

/// What [`BlockWord::unpin`] left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Unpin {
    /// There are other users.
    Kept,
    /// There are none: the caller releases the block now, and ends with [`BlockWord::vacate`].
    Last(u32),
}

/// The word of one block. All zeros is empty.
#[derive(Debug)]
pub(crate) struct BlockWord(AtomicU64);

impl BlockWord {
    /// An empty block.
    #[cfg_attr(not(test), allow(dead_code))]
    pub fn new() -> BlockWord {
        BlockWord(AtomicU64::new(0))
    }

    /// Becomes a user of a live block.
    pub fn pin(&self) -> Pin {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            if word & RELEASING != 0 {
                return Pin::Releasing;
            }
            if word == 0 {
                return Pin::Empty;
            }
            assert!(
                (word & USERS) / USER < USERS_MAX,
                "users of a block are counted wrongly"
            );
            match self.go(word, word + USER) {
                Ok(()) => return Pin::Live(record(word)),
                Err(now) => word = now,
            }
        }
    }

    /// The index of its record, if it has one: for a guess at what will be looked at.
    pub fn record(&self) -> Option<u32> {
        ((self.0.load(Ordering::Relaxed) & RECORD) as u32).checked_sub(1)
    }

    /// Makes an empty block live, with the caller as its one user. False: it is not empty any more, and the record stays the
    /// caller's.
    pub fn occupy(&self, record: u32) -> bool {
        self.go(0, u64::from(record) + 1 + USER).is_ok()
    }

    /// Takes away `users` of the caller.
    pub fn unpin(&self, users: u32) -> Unpin {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            assert_eq!(word & RELEASING, 0, "a block with users is not released");
            let left = ((word & USERS) / USER)
                .checked_sub(u64::from(users))
                .expect("users of a block are counted wrongly");
            let to = match left {
                0 => (word & RECORD) | RELEASING,
                left => (word & RECORD) | (left * USER),
            };
            match self.go(word, to) {
                Ok(()) if left == 0 => return Unpin::Last(record(word)),
                Ok(()) => return Unpin::Kept,
                Err(now) => word = now,
            }
        }
    }

    /// Live to releasing, if `users`, all the caller's, are all there are.
    pub fn claim(&self, users: u32) -> bool {
        let word = self.0.load(Ordering::Acquire);
        let all_mine = word & RELEASING == 0 && (word & USERS) / USER == u64::from(users);
        all_mine && self.go(word, (word & RECORD) | RELEASING).is_ok()
    }

    /// Releasing to empty. True: somebody waits for it and must be woken.
    #[must_use]
    pub fn vacate(&self) -> bool {
        let before = self.0.swap(0, Ordering::AcqRel);
        assert_ne!(before & RELEASING, 0, "only a released block becomes empty");
        before & AWAITED != 0
    }

    /// Releasing to live, with so many users of the caller's. True: somebody waits for it and must be woken.
    #[must_use]
    pub fn keep(&self, users: u32) -> bool {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            assert_ne!(word & RELEASING, 0, "only a released block is kept");
            let to = (word & RECORD) | (u64::from(users) * USER);
            match self.go(word, to) {
                Ok(()) => return word & AWAITED != 0,
                Err(now) => word = now,
            }
        }
    }

    /// Asks to be woken when the block is empty. False: it is not being released any more, look again.
    #[must_use]
    pub fn await_change(&self) -> bool {
        let word = self.0.load(Ordering::Acquire);
        word & RELEASING != 0 && (word & AWAITED != 0 || self.go(word, word | AWAITED).is_ok())
    }

    fn go(&self, from: u64, to: u64) -> Result<(), u64> {
        self.0
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
    }
}

fn record(word: u64) -> u32 {
    let index = (word & RECORD)
        .checked_sub(1)
        .expect("a live block has a record");
    index as u32
}
