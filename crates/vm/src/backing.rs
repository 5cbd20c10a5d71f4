//! What the pages of a region are made of: the contract between the faults above and the store below.
//!
//! Promises: errors hold no heap memory, so that they can be made, carried and worded inside a signal handler.
//! Never: knows how a page comes to be touched, or where its bytes rest.

use std::ops::Range;

/// Size of a page, and the unit of faults and eviction.
pub const PAGE_BYTES: usize = 4096;

/// The bytes of one page.
#[repr(C, align(4096))]
#[derive(Clone)]
pub struct Page(pub [u8; PAGE_BYTES]);

impl Page {
    /// A page of zeros.
    pub const ZERO: Page = Page([0; PAGE_BYTES]);
}

/// What [`Backing::fetch`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetched {
    /// Never stored, or discarded: all zeros. Nothing was written to the page.
    Absent,
    /// The page holds the contents.
    Filled,
    /// The same, and the device was read for it.
    Read,
}

/// A page on its way back to its backing.
#[derive(Clone, Copy)]
pub struct Changed<'a> {
    /// Which page.
    pub page: u64,
    /// Its bytes; outside of [`Backing::span`] they are unspecified.
    pub bytes: &'a Page,
    /// Whether it was written to. Otherwise it may be as it was fetched (it was not protected, since taking the protection away
    /// costs most of what a fault costs): a backing that still has the old contents in DRAM compares them.
    pub surely: bool,
}

impl Changed<'_> {
    /// Fills arrays.
    pub(crate) const NONE: Changed<'static> = Changed {
        page: 0,
        bytes: &Page::ZERO,
        surely: false,
    };
}

/// Hears of a page, by its index in what was asked for, what came of it, with the page that holds its contents.
pub type Put<'a> = dyn FnMut(usize, Result<Fetched, FetchError>, &Page) + 'a;

/// What the pages of a region are made of.
///
/// Called in the faulting thread (possibly inside a signal handler: whoever touches memory may hold any lock of the
/// application, and may be about to run out of stack: use little of it), by whoever evicts, and by any number of them at a
/// time, for the same page never by two. Holds no lock across I/O. Touches no memory of a region it serves, except the pages
/// lent to it, and takes none of its own from an allocator that does.
pub trait Backing: Send + Sync + 'static {
    /// The bytes of page `page` that mean anything. All others read as zeros after the page was evicted, whatever was written to
    /// them. The same for a page as long as it is resident.
    fn span(&self, page: u64) -> Range<usize> {
        let _ = page;
        0..PAGE_BYTES
    }

    /// The most that [`span`](Backing::span) says of page `page` while an owner may change it: where an object is resized.
    fn span_max(&self, page: u64) -> Range<usize> {
        self.span(page)
    }

    /// Fills `into`, which is all zeros, with the contents of page `page`. Writes only to its [`span`](Backing::span); on error
    /// too.
    fn fetch(&self, page: u64, into: &mut Page) -> Result<Fetched, FetchError>;

    /// The same for several pages: `put` hears of each, in this order. What the device has is read together where that is quicker. `into` is all zeros before and after.
    fn fetch_several(&self, pages: &[u64], into: &mut Page, put: &mut Put<'_>) {
        for (at, page) in pages.iter().enumerate() {
            let fetched = self.fetch(*page, into);
            put(at, fetched, into);
            into.0[self.span_max(*page)].fill(0);
        }
    }

    /// Which of up to 64 pages [`fetch`](Backing::fetch) would find absent, as far as that is known without reading: a bit for each, the first the lowest.
    fn absent(&self, pages: &[u64]) -> u64 {
        let _ = pages;
        0
    }

    /// Takes back the contents of changed pages: how many of the first of `pages`, at least one. After an error none is taken:
    /// all stay resident and changed.
    fn store(&self, pages: &[Changed<'_>]) -> Result<usize, StoreError>;

    /// The page's contents are not needed any more (freed): from now on it is absent.
    fn discard(&self, page: u64);
}

/// Why a page cannot be had. Whoever touches it gets SIGBUS; the text comes before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The device refused to read.
    #[error("reading bytes {offset}..{} of the pool failed: error {errno}{}", *offset + u64::from(*len), errno_name(*errno))]
    Io {
        /// First byte on the device.
        offset: u64,
        /// How many bytes.
        len: u32,
        /// The system's error number.
        errno: i32,
    },
    /// What was read is not what was written there.
    #[error("bytes {offset}..{} of the pool are damaged: their checksum is wrong", *offset + u64::from(*len))]
    Damaged {
        /// First byte on the device.
        offset: u64,
        /// How many bytes.
        len: u32,
    },
    /// No memory could be had to read into, after the longest wait that is allowed.
    #[error("no memory to read it into within {waited_ms} ms: raise the cap, or use fewer threads")]
    NoMemory {
        /// How long it was waited for.
        waited_ms: u32,
    },
    /// The pool was closed.
    #[error("its pool is closed: keep the pool open as long as its memory is used")]
    Closed,
    /// Another process has the pool, and has ended.
    #[error(
        "the process that has the pool is gone (killed, or it runs another program): let it end after those that it forked"
    )]
    Gone,
    /// The region has not so many pages.
    #[error("it lies behind the {pages} pages that the region has: grow it first")]
    Beyond {
        /// How many it has.
        pages: u64,
    },
    /// No object is there.
    #[error("no object is allocated there (a use after free)")]
    Freed,
}

/// Why changed pages could not be taken back. They stay resident and changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The SSD or the cap has no room, after the longest wait that is allowed.
    #[error("no room for {asked_bytes} bytes: make the pool larger, raise the cap, or free memory")]
    Full {
        /// Bytes that were to be stored.
        asked_bytes: u64,
    },
    /// The device refused to write.
    #[error("writing to the pool failed: error {errno}{}; it takes no more until it is opened again", errno_name(*errno))]
    Io {
        /// The system's error number.
        errno: i32,
    },
    /// A sync of what they belong to is under way: for now.
    #[error("a sync of the region is under way")]
    Syncing,
    /// The pool was closed.
    #[error("the pool is closed: keep it open as long as its memory is used")]
    Closed,
}

/// Names of the errors that devices give, without asking the C library: it may allocate.
fn errno_name(errno: i32) -> &'static str {
    match errno {
        5 => " (input/output error)",
        28 => " (no space left on device)",
        30 => " (read-only file system)",
        61 => " (no data available)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_place_and_cause() {
        let e = FetchError::Io {
            offset: 8192,
            len: 512,
            errno: 5,
        };
        assert_eq!(
            e.to_string(),
            "reading bytes 8192..8704 of the pool failed: error 5 (input/output error)"
        );
        let e = StoreError::Full { asked_bytes: 4096 };
        assert!(e.to_string().starts_with("no room for 4096 bytes"));
    }
}
