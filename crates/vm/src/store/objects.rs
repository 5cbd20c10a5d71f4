//! Objects of a program's memory as entries of a store, one a page.
//!
//! Page `p` shows object `p` of a table, at an offset of its own, so that many objects do not meet in the same sets of a cache. Objects of 64 bytes or more are kept as
//!
//! | the object | its entry |
//! |---|---|
//! | zeros; one byte throughout, where sizes differ | none, the slot says so |
//! | one byte throughout, where all of the table have one size | that byte |
//! | lz4 saves a quarter or more | what lz4 makes of it |
//! | any other | its bytes |
//!
//! Where all have one size, an entry that is shorter is packed; else a bit beside the size says so. Promises: what is fetched is what was stored last, of an object that was resized
//! meanwhile as much as it has. Never: keeps a page.

use super::error::ObjectError;
use super::open::Store;
use super::pack::{PACKED_FROM_BYTES, Packer, Packing, one_byte, unpack, unpack_up_to};
use super::pages::{copied, discard, fetch_error, from, store_packed, unpack_copied};
use super::read::Value;
use super::table::Shape;
use crate::region::REGION_PAGES_MAX;
use crate::sys;
use crate::{Backing, Changed, FetchError, Fetched, PAGE_BYTES, Page, StoreError, VmError};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use terrace_media::Buf;

/// Objects start at multiples of a cache line.
const LINE_BYTES: usize = 64;

/// Beside an object's length: what is stored of it is packed.
const PACKED: u16 = 1 << 15;

/// How long each object of a table is, where they differ, and whether it is packed, which its length in the log does not say then.
pub(crate) struct Sizes(sys::Table<AtomicU16>);

impl Sizes {
    /// Of up to `objects_max` objects: not more than a region shows.
    pub fn new(objects_max: u64) -> Result<Sizes, VmError> {
        // As the region that shows them, which is made when a table is taken already.
        if !(1..=REGION_PAGES_MAX).contains(&objects_max) {
            return Err(VmError::Bounds {
                what: "pages of a region",
                asked: objects_max,
                allowed: format!("1 to {REGION_PAGES_MAX}"),
            });
        }
        Ok(Sizes(sys::Table::new(objects_max as usize)?))
    }

    /// What of it is in DRAM.
    #[cfg(test)]
    pub fn resident_bytes(&self) -> usize {
        self.0.resident_bytes()
    }

    pub fn get(&self, object: u64) -> usize {
        (self.0[object as usize].load(Ordering::Acquire) & !PACKED).into()
    }

    /// Up to a page.
    pub fn set(&self, object: u64, bytes: usize) {
        self.change(object, |was| was & PACKED | bytes as u16);
    }

    fn is_packed(&self, object: u64) -> bool {
        self.0[object as usize].load(Ordering::Acquire) & PACKED != 0
    }

    fn set_packed(&self, object: u64, packed: bool) {
        self.change(object, |was| {
            was & !PACKED | if packed { PACKED } else { 0 }
        });
    }

    /// What so many objects take of DRAM, in whole pages.
    pub fn bytes(objects: u64) -> u64 {
        (objects * size_of::<AtomicU16>() as u64).next_multiple_of(PAGE_BYTES as u64)
    }

    /// None of these is there any more, nor any object behind them: what is known of them leaves DRAM, but for what lies on a page with others.
    pub fn forget(&self, objects: Range<u64>) {
        self.0.empty(objects.start as usize..objects.end as usize);
    }

    /// Whoever resizes an object and whoever stores it may be two.
    fn change(&self, object: u64, f: impl Fn(u16) -> u16) {
        let update =
            self.0[object as usize]
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |was| Some(f(was)));
        update.expect("it is always changed");
    }
}

/// One object a page.
pub struct Objects {
    store: Arc<Store>,
    table: u16,
    /// Of each, or the longest.
    bytes: usize,
    sizes: Option<Sizes>,
    strict: bool,
    packing: Packing,
}

impl Objects {
    /// Objects of `bytes` bytes (1 to 4,096) in table `table`, which is made if need be.
    pub fn new(store: Arc<Store>, table: u16, bytes: u32) -> Result<Objects, ObjectError> {
        check_bytes(table, bytes)?;
        store.make_owned_table(table, Shape::Fixed(bytes))?;
        Ok(Objects {
            store,
            table,
            bytes: bytes as usize,
            sizes: None,
            strict: false,
            packing: Packing::default(),
        })
    }

    /// Objects of up to `bytes_max` bytes, each as long as `sizes` says.
    pub(crate) fn of_any_size(
        store: Arc<Store>,
        table: u16,
        bytes_max: u32,
        sizes: Sizes,
    ) -> Result<Objects, ObjectError> {
        check_bytes(table, bytes_max)?;
        store.make_owned_table(table, Shape::Any)?;
        Ok(Objects {
            store,
            table,
            bytes: bytes_max as usize,
            sizes: Some(sizes),
            strict: false,
            packing: Packing::default(),
        })
    }

    /// How long each is, where they differ.
    pub(crate) fn sizes(&self) -> Option<&Sizes> {
        self.sizes.as_ref()
    }

    fn bytes_of(&self, object: u64) -> usize {
        match &self.sizes {
            Some(sizes) => sizes.get(object),
            None => self.bytes,
        }
    }

    /// The same, where a number that is free is no object: who touches its page is told, instead of seeing zeros.
    pub(crate) fn strict(self) -> Objects {
        Objects {
            strict: true,
            ..self
        }
    }

    fn put(
        &self,
        changed: &Changed<'_>,
        packer: &mut Packer,
        room: &mut [u8],
    ) -> Result<(), ObjectError> {
        let Changed { page, surely, .. } = *changed;
        let whole = &changed.bytes.0[self.span(page)];
        if !surely && self.is_stored(page, whole) {
            return Ok(());
        }
        let bytes = match (whole.len() >= PACKED_FROM_BYTES).then(|| one_byte(whole)) {
            Some(Some(byte)) if !self.store.keeps && (byte == 0 || self.sizes.is_some()) => {
                return self.store.put_fill(self.table, page, byte);
            }
            Some(Some(_)) if self.sizes.is_none() => &whole[..1],
            Some(_) => {
                let len = self.packing.pack(packer, whole, room);
                &room[..len]
            }
            None => whole,
        };
        self.store.put_changed(self.table, page, bytes, true)?;
        if let Some(sizes) = &self.sizes {
            sizes.set_packed(page, bytes.len() < whole.len());
        }
        Ok(())
    }

    /// Whether object `page` is stored in DRAM as it is. Where it has left DRAM it is stored again, since reading it to compare would cost more.
    fn is_stored(&self, page: u64, whole: &[u8]) -> bool {
        let same = self.store.peek(self.table, page, |bytes| {
            match self.is_packed(page, bytes.len()) {
                // Compared below, when the lane is not locked any more.
                true => Err(copied(&self.store, bytes)),
                false => Ok(bytes == whole),
            }
        });
        match same {
            Some(Err((buf, len))) => {
                let mut there = self.store.take_buf(whole.len());
                let into = &mut there[..whole.len()];
                // Of one that was resized the length says nothing.
                let unpacked = match self.sizes {
                    None => unpack(&buf[..len], into),
                    Some(_) => unpack_up_to(&buf[..len], into) == Some(whole.len()),
                };
                let same = unpacked && into == whole;
                self.store.keep_buf(there);
                self.store.keep_buf(buf);
                same
            }
            Some(Ok(same)) => same,
            None => false,
        }
    }

    /// Whether what is stored of object `page`, `len` bytes, is packed.
    fn is_packed(&self, page: u64, len: usize) -> bool {
        match &self.sizes {
            Some(sizes) => sizes.is_packed(page),
            None => len < self.bytes,
        }
    }

    /// Unpacks what may be longer or shorter than `into`, since the object was resized after it was stored.
    fn unpack_cut(&self, (buf, len): (Buf, usize), into: &mut [u8]) -> Result<(), FetchError> {
        let mut whole = self.store.take_buf(self.bytes);
        let unpacked = unpack_up_to(&buf[..len], &mut whole[..self.bytes]);
        if let Some(unpacked) = unpacked {
            let len = unpacked.min(into.len());
            into[..len].copy_from_slice(&whole[..len]);
        }
        self.store.keep_buf(whole);
        self.store.keep_buf(buf);
        // As in `unpack_copied`.
        unpacked.map(drop).ok_or(FetchError::Damaged {
            offset: 0,
            len: len as u32,
        })
    }

    /// Where on its page object `object` starts.
    pub(crate) fn offset(&self, object: u64) -> usize {
        offset(object, self.bytes)
    }
}

fn check_bytes(table: u16, bytes: u32) -> Result<(), ObjectError> {
    match bytes {
        1.. if bytes as usize <= PAGE_BYTES => Ok(()),
        _ => Err(ObjectError::Length {
            table,
            asked: bytes.into(),
            allowed: PAGE_BYTES as u64,
        }),
    }
}

/// Where on its page an object of `bytes` bytes starts: spread over the page by its number.
fn offset(page: u64, bytes: usize) -> usize {
    let places = (PAGE_BYTES - bytes) / LINE_BYTES + 1;
    let spread = (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
    spread % places * LINE_BYTES
}

impl Backing for Objects {
    fn span(&self, page: u64) -> Range<usize> {
        let start = offset(page, self.bytes);
        start..start + self.bytes_of(page)
    }

    fn span_max(&self, page: u64) -> Range<usize> {
        let start = offset(page, self.bytes);
        start..start + self.bytes
    }

    fn fetch(&self, page: u64, into: &mut Page) -> Result<Fetched, FetchError> {
        let into = &mut into.0[self.span(page)];
        let mut packed: Option<(Buf, usize)> = None;
        let seen = self
            .store
            .read_at(self.table, page, |value, at| match value {
                Value::Free if self.strict => Err(FetchError::Freed),
                Value::Free | Value::Zeros => Ok(Fetched::Absent),
                Value::Fill(byte) => {
                    into.fill(byte);
                    Ok(Fetched::Filled)
                }
                Value::Bytes(bytes) if self.is_packed(page, bytes.len()) => {
                    packed = Some(copied(&self.store, bytes));
                    Ok(from(at))
                }
                Value::Bytes(bytes) => {
                    // It may have become longer or shorter since it was stored.
                    let len = bytes.len().min(into.len());
                    into[..len].copy_from_slice(&bytes[..len]);
                    Ok(from(at))
                }
            });
        let seen = seen.map_err(fetch_error)??;
        match packed {
            Some(packed) if self.sizes.is_none() => unpack_copied(&self.store, packed, into)?,
            Some(packed) => self.unpack_cut(packed, into)?,
            None => {}
        }
        Ok(seen)
    }

    fn store(&self, pages: &[Changed<'_>]) -> Result<usize, StoreError> {
        for changed in pages {
            terrace_media::prefetch(&changed.bytes.0[self.span(changed.page)]);
        }
        self.store.ask_for(self.table, pages.iter().map(|c| c.page));
        store_packed(&self.store, pages, |changed, packer, room| {
            self.put(changed, packer, room)
        })
    }

    fn discard(&self, page: u64) {
        discard(&self.store, self.table, page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_spread_over_the_page_and_stay_in_it() {
        for bytes in [1, 64, 128, 1000, 4033, 4096] {
            let mut starts = std::collections::HashSet::new();
            for page in 0..4096 {
                let start = offset(page, bytes);
                assert!(start.is_multiple_of(LINE_BYTES) && start + bytes <= PAGE_BYTES);
                starts.insert(start);
            }
            assert_eq!(
                starts.len(),
                (PAGE_BYTES - bytes) / LINE_BYTES + 1,
                "{bytes} bytes"
            );
        }
    }
}
