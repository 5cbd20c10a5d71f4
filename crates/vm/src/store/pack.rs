//! Pages packed for DRAM and SSD: what lz4 makes of them where that saves a quarter, one byte where they have no other.
//!
//! Promises: what is unpacked is what was packed. Never: keeps anything.

use crate::PAGE_BYTES;

/// A packed page is at most so long; a longer one is kept as it is.
const PACKED_MAX_BYTES: usize = PAGE_BYTES / 4 * 3;
/// What packing may write while it tries.
pub(super) const ROOM_BYTES: usize = lz4_flex::block::get_maximum_output_size(PAGE_BYTES);

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
