//! Pages of a program's memory as entries of a store, whole and packed.
//!
//! [`Pages`] (MP): 4 KiB each, kept as
//!
//! | the page | its entry |
//! |---|---|
//! | zeros | none: the number is free |
//! | one byte throughout | none, the slot says which; in a durable store an entry of that byte |
//! | lz4 saves a quarter or more | what lz4 makes of it |
//! | any other | its bytes |
//!
//! Promises: what is fetched is what was stored last. Never: keeps a page.

use super::error::ObjectError;
use super::open::Store;
use super::pack::{Packer, Packing, ROOM_BYTES, one_byte, unpack};
use super::read::Value;
use super::table::Shape;
use crate::{Backing, Changed, FetchError, Fetched, PAGE_BYTES, Page, Put, StoreError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use terrace_log::Loc;
use terrace_media::Buf;

/// Whole pages of a region.
pub struct Pages {
    store: Arc<Store>,
    table: u16,
    packing: Packing,
    changes: Changes,
}

/// Whether most pages are changed between two times that they leave.
///
/// Promises: what it says follows within some hundred pages. Threads that count at the same time may lose a count: it is a share, not a sum.
#[derive(Default)]
struct Changes(AtomicU32);

impl Changes {
    /// Half of it is what decides.
    const MAX: u32 = 1024;
    /// They rise where three of four pages that come are stored anew later.
    const RISE: u32 = 4;
    const FALL: u32 = 3;

    /// A page comes: whether it is expected to be changed.
    fn on_read(&self) -> bool {
        let seen = self.0.load(Ordering::Relaxed);
        self.0
            .store(seen.saturating_sub(Self::FALL), Ordering::Relaxed);
        seen > Self::MAX / 2
    }

    /// A page that left was not what the store had of it.
    fn on_store(&self) {
        let seen = self.0.load(Ordering::Relaxed);
        let more = (seen + Self::RISE).min(Self::MAX);
        self.0.store(more, Ordering::Relaxed);
    }
}

impl Pages {
    /// Pages in table `table`, which is made if need be. One that left as the store has it is not stored again: programs write to pages and leave them as they were, and what is
    /// writable may have been read only.
    pub fn new(store: Arc<Store>, table: u16) -> Result<Pages, ObjectError> {
        store.make_owned_table(table, Shape::Any)?;
        store.know_pages();
        Ok(Pages {
            store,
            table,
            packing: Packing::default(),
            changes: Changes::default(),
        })
    }

    /// Frees all of them, and their table, which has no number of theirs after that. Nothing shows them any more.
    pub fn drop_table(&self) -> Result<(), ObjectError> {
        self.store.drop_own_table(self.table)
    }

    /// What the store has of a page that was fetched is known.
    fn came(&self, page: u64, fetched: Fetched, bytes: &Page) {
        let Some(same) = self.store.same() else {
            return;
        };
        match fetched {
            Fetched::Absent => same.forget(self.table, page),
            Fetched::Filled | Fetched::Read => {
                same.note(self.table, page, same.mark(self.table, page, &bytes.0))
            }
        }
    }

    fn put(
        &self,
        changed: &Changed<'_>,
        packer: &mut Packer,
        room: &mut [u8],
    ) -> Result<(), ObjectError> {
        let Changed {
            page,
            bytes,
            surely,
        } = *changed;
        let (store, table, bytes) = (&self.store, self.table, &bytes.0);
        let same = store.same();
        let mark = same.map(|same| same.mark(table, page, bytes));
        if let Some((same, mark)) = same.zip(mark) {
            // Of a table that was dropped nothing is there any more, whatever is known of its number.
            if same.is(table, page, mark) && store.has(table, page) {
                same.found();
                return Ok(());
            }
            same.forget(table, page);
        }
        match one_byte(&bytes[..]) {
            Some(0) => return store.free_own(table, page).map(|_| ()),
            Some(byte) if !store.keeps => return store.put_fill(table, page, byte),
            _ => {}
        }
        let len = self.packing.pack(packer, bytes, room);
        if store.put_changed(table, page, &room[..len], surely)? {
            self.changes.on_store();
        }
        if let Some((same, mark)) = same.zip(mark) {
            same.note(table, page, mark);
        }
        Ok(())
    }
}

impl Backing for Pages {
    fn fetch(&self, page: u64, into: &mut Page) -> Result<Fetched, FetchError> {
        let mut packed: Option<(Buf, usize)> = None;
        // One that is not packed would only be in DRAM twice; the copy of one that is changed would be dead when it leaves.
        let changes = self.changes.on_read();
        let comes_up = |len| len < PAGE_BYTES && !changes;
        let seen = self
            .store
            .read_if(self.table, page, comes_up, |value, at| match value {
                Value::Free | Value::Zeros => Fetched::Absent,
                Value::Fill(byte) => {
                    into.0.fill(byte);
                    Fetched::Filled
                }
                Value::Bytes(bytes) if bytes.len() == PAGE_BYTES => {
                    into.0.copy_from_slice(bytes);
                    from(at)
                }
                // Unpacked below, when the lane is not locked any more.
                Value::Bytes(bytes) => {
                    packed = Some(copied(&self.store, bytes));
                    from(at)
                }
            });
        let seen = seen.map_err(fetch_error)?;
        if let Some(packed) = packed {
            unpack_copied(&self.store, packed, &mut into.0)?;
        }
        self.came(page, seen, into);
        Ok(seen)
    }

    fn fetch_several(&self, pages: &[u64], into: &mut Page, put: &mut Put<'_>) {
        let mut gathered = self.store.gather(self.table, pages);
        for (at, page) in pages.iter().enumerate() {
            let comes_up = |len| {
                let changes = self.changes.on_read();
                len < PAGE_BYTES && !changes
            };
            let seen = gathered.take(at, comes_up, |value| match value {
                Value::Bytes(bytes) if bytes.len() == PAGE_BYTES => {
                    into.0.copy_from_slice(bytes);
                    true
                }
                Value::Bytes(bytes) => unpack(bytes, &mut into.0[..]),
                // Read from the device: only entries with bytes are there.
                Value::Free | Value::Zeros | Value::Fill(_) => false,
            });
            let fetched = match seen {
                Some(true) => {
                    self.came(*page, Fetched::Read, into);
                    Ok(Fetched::Read)
                }
                // What is wrong with it comes to light when it is read by itself.
                Some(false) | None => {
                    into.0.fill(0);
                    self.fetch(*page, into)
                }
            };
            put(at, fetched, into);
            into.0.fill(0);
        }
    }

    fn absent(&self, pages: &[u64]) -> u64 {
        self.store.free_of(self.table, pages)
    }

    fn store(&self, pages: &[Changed<'_>]) -> Result<usize, StoreError> {
        self.store.ask_for(self.table, pages.iter().map(|c| c.page));
        store_packed(&self.store, pages, |changed, packer, room| {
            self.put(changed, packer, room)
        })
    }

    fn discard(&self, page: u64) {
        if let Some(same) = self.store.same() {
            same.forget(self.table, page);
        }
        discard(&self.store, self.table, page);
    }
}

/// A copy of what is packed, to be unpacked when the lane is not locked any more.
pub(super) fn copied(store: &Store, bytes: &[u8]) -> (Buf, usize) {
    let mut buf = store.take_buf(bytes.len());
    buf[..bytes.len()].copy_from_slice(bytes);
    (buf, bytes.len())
}

pub(super) fn unpack_copied(
    store: &Store,
    (buf, len): (Buf, usize),
    into: &mut [u8],
) -> Result<(), FetchError> {
    let whole = unpack(&buf[..len], into);
    store.keep_buf(buf);
    // The bytes passed their checksum, so they are what was packed.
    whole.then_some(()).ok_or(FetchError::Damaged {
        offset: 0,
        len: len as u32,
    })
}

/// Does `put` for each until one fails: how many were taken.
pub(super) fn store_packed(
    store: &Store,
    pages: &[Changed<'_>],
    mut put: impl FnMut(&Changed<'_>, &mut Packer, &mut [u8]) -> Result<(), ObjectError>,
) -> Result<usize, StoreError> {
    let (mut packer, mut room) = (Packer::default(), store.take_buf(ROOM_BYTES));
    let mut result = Ok(pages.len());
    for (at, changed) in pages.iter().enumerate() {
        if let Err(e) = put(changed, &mut packer, &mut room) {
            result = match at {
                0 => Err(store_error(e)),
                taken => Ok(taken),
            };
            break;
        }
    }
    store.keep_buf(room);
    result
}

/// What was found, by where it was read.
pub(super) fn from(device: Option<Loc>) -> Fetched {
    match device {
        Some(_) => Fetched::Read,
        None => Fetched::Filled,
    }
}

pub(super) fn discard(store: &Store, table: u16, page: u64) {
    if let Err(error) = store.free_own(table, page) {
        // Only a durable store needs room for it: the page stays, and takes its room on the SSD.
        tracing::warn!(table, page, %error, "a page could not be freed");
    }
}

pub(super) fn fetch_error(e: ObjectError) -> FetchError {
    match e {
        ObjectError::Io { offset, len, errno } => FetchError::Io { offset, len, errno },
        ObjectError::Damaged { offset, len } => FetchError::Damaged { offset, len },
        _ => FetchError::Closed,
    }
}

pub(super) fn store_error(e: ObjectError) -> StoreError {
    match e {
        ObjectError::Full { asked_bytes } => StoreError::Full { asked_bytes },
        ObjectError::ReadOnly => StoreError::Io {
            errno: rustix::io::Errno::IO.raw_os_error(),
        },
        _ => StoreError::Closed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreOptions;

    #[test]
    fn of_a_table_that_was_dropped_nothing_is_known() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = StoreOptions::scratch(dir.path(), 32 << 20, 160 << 20);
        let store = Store::open(&options).expect("a store");
        let mut page = Page::ZERO;
        let words = page.0[..PAGE_BYTES / 2].chunks_exact_mut(4);
        for (n, word) in words.enumerate() {
            word.copy_from_slice(&(n as u32).wrapping_mul(0x9e37_79b9).to_le_bytes());
        }
        for _ in 0..3 {
            let pages = Pages::new(store.clone(), 5).expect("pages");
            let changed = Changed {
                page: 9,
                bytes: &page,
                surely: true,
            };
            assert_eq!(pages.store(&[changed]), Ok(1));
            let mut seen = Page::ZERO;
            pages.fetch(9, &mut seen).expect("there");
            assert!(seen.0 == page.0);
            // It is whose it is.
            let taken = Err(ObjectError::Taken { table: 5 });
            assert_eq!(store.drop_table(5), taken);
            pages.drop_table().expect("dropped");
        }
    }

    #[test]
    fn pages_are_expected_to_change_where_most_did() {
        let changes = Changes::default();
        let expected = |stored_of_8: u32| {
            (0..4000).fold(false, |_, n| {
                if n % 8 < stored_of_8 {
                    changes.on_store();
                }
                changes.on_read()
            })
        };
        assert!(!expected(0));
        assert!(!expected(5));
        assert!(expected(7));
        assert!(expected(8));
        assert!(!expected(5));
    }
}
