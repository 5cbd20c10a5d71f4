//! Pages packed for DRAM and SSD: what lz4 makes of them where that saves a quarter, one byte where they have no other.
//!
//! Promises: what is unpacked is what was packed. Never: keeps anything.

use crate::PAGE_BYTES;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A packed page is at most so long; a longer one is kept as it is.
const PACKED_MAX_BYTES: usize = PAGE_BYTES / 4 * 3;
/// What packing may write while it tries.
pub(super) const ROOM_BYTES: usize = lz4_flex::block::get_maximum_output_size(PAGE_BYTES);

/// While packing is in vain, every so manyth page is tried all the same.
const TRY_EVERY: u32 = 16;
/// Pages in a row that could not be packed, after which it is in vain.
const VAIN_MAX: u32 = 32;

/// Whether packing saves anything lately: trying takes lz4 some microseconds a page.
#[derive(Debug, Default)]
pub(super) struct Packing {
    in_vain: AtomicU32,
    asked: AtomicU32,
}

impl Packing {
    /// Whether the next page is to be packed.
    pub fn is_tried(&self) -> bool {
        self.in_vain.load(Relaxed) < VAIN_MAX
            || self.asked.fetch_add(1, Relaxed).is_multiple_of(TRY_EVERY)
    }

    /// What a page that was tried came to, bytes.
    pub fn came_to(&self, len: usize) {
        match len < PAGE_BYTES {
            true => self.in_vain.store(0, Relaxed),
            false => {
                self.in_vain.fetch_add(1, Relaxed);
            }
        }
    }
}

/// The byte that a page consists of, if it is one.
pub(super) fn one_byte(bytes: &[u8; PAGE_BYTES]) -> Option<u8> {
    // A page equals itself moved by one exactly if all its bytes are equal.
    (bytes[1..] == bytes[..PAGE_BYTES - 1]).then_some(bytes[0])
}

/// Packs a page into the start of `room`, which has [`ROOM_BYTES`]; says how long it is.
pub(super) fn pack(bytes: &[u8; PAGE_BYTES], room: &mut [u8]) -> usize {
    if let Some(byte) = one_byte(bytes) {
        room[0] = byte;
        return 1;
    }
    match lz4_flex::block::compress_into(bytes, room) {
        Ok(len) if len <= PACKED_MAX_BYTES => len,
        // The room is enough for any page, so it is only that nothing is saved.
        _ => {
            room[..PAGE_BYTES].copy_from_slice(bytes);
            PAGE_BYTES
        }
    }
}

/// Unpacks a page. False: it was not packed here.
pub(super) fn unpack(packed: &[u8], into: &mut [u8; PAGE_BYTES]) -> bool {
    match packed.len() {
        1 => into.fill(packed[0]),
        PAGE_BYTES => into.copy_from_slice(packed),
        _ => {
            return matches!(
                lz4_flex::block::decompress_into(packed, into),
                Ok(PAGE_BYTES)
            );
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_does_not_pack_is_tried_rarely_until_something_packs() {
        let packing = Packing::default();
        let tried = |pages: u32, len: usize| {
            let tried = (0..pages).filter(|_| packing.is_tried());
            tried.inspect(|_| packing.came_to(len)).count()
        };
        assert_eq!(tried(VAIN_MAX, PAGE_BYTES), VAIN_MAX as usize);
        assert_eq!(tried(1600, PAGE_BYTES), 100);
        assert!((1..=TRY_EVERY).any(|_| tried(1, 1000) == 1));
        assert_eq!(tried(100, 1000), 100);
    }

    #[test]
    fn a_page_of_one_byte_is_told_from_others() {
        assert_eq!(one_byte(&[7; PAGE_BYTES]), Some(7));
        for at in [0, 1, 2000, PAGE_BYTES - 1] {
            let mut page = [7; PAGE_BYTES];
            page[at] = 8;
            assert_eq!(one_byte(&page), None);
        }
    }

    proptest! {
        #[test]
        fn pages_come_back(fill: u8, noise in prop::collection::vec(any::<u8>(), 0..PAGE_BYTES), at in 0..PAGE_BYTES) {
            let mut page = [fill; PAGE_BYTES];
            let end = (at + noise.len()).min(PAGE_BYTES);
            page[at..end].copy_from_slice(&noise[..end - at]);
            let mut room = vec![0; ROOM_BYTES];
            let len = pack(&page, &mut room);
            prop_assert!(len <= PAGE_BYTES);
            let mut back = [1; PAGE_BYTES];
            prop_assert!(unpack(&room[..len], &mut back));
            prop_assert!(back == page);
        }
    }
}
