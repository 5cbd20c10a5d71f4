//! Pages and objects packed for DRAM and SSD: what lz4 makes of them where that saves a quarter, one byte where they have no other.
//!
//! Promises: what is unpacked is what was packed. Never: keeps anything.

use crate::PAGE_BYTES;
use crate::lz4;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// What packing a page may write.
pub(super) const ROOM_BYTES: usize = PAGE_BYTES;
/// What is shorter is not tried: an entry has a header of a third of that.
pub(super) const PACKED_FROM_BYTES: usize = 64;

/// While packing is in vain, every so manyth is tried all the same.
const TRY_EVERY: u32 = 16;
/// So many in a row that could not be packed, after which it is in vain.
const VAIN_MAX: u32 = 32;

/// Whether packing saves anything lately: trying takes lz4 some microseconds a page.
#[derive(Debug, Default)]
pub(super) struct Packing {
    in_vain: AtomicU32,
    asked: AtomicU32,
}

impl Packing {
    /// Whether the next one is to be packed.
    fn is_tried(&self) -> bool {
        self.in_vain.load(Relaxed) < VAIN_MAX
            || self.asked.fetch_add(1, Relaxed).is_multiple_of(TRY_EVERY)
    }

    /// Packs into the start of `room`, if that is worth trying; or copies there. Says how long it is.
    pub fn pack(&self, packer: &mut Packer, bytes: &[u8], room: &mut [u8]) -> usize {
        if !self.is_tried() {
            room[..bytes.len()].copy_from_slice(bytes);
            return bytes.len();
        }
        let len = packer.pack(bytes, room);
        self.came_to(len < bytes.len());
        len
    }

    /// Whether one that was tried became shorter.
    fn came_to(&self, shorter: bool) {
        match shorter {
            true => self.in_vain.store(0, Relaxed),
            false => {
                self.in_vain.fetch_add(1, Relaxed);
            }
        }
    }
}

/// The byte that something consists of, if it is one.
pub(super) fn one_byte(bytes: &[u8]) -> Option<u8> {
    let first = *bytes.first()?;
    // It equals itself moved by one exactly if all its bytes are equal.
    (bytes[1..] == bytes[..bytes.len() - 1]).then_some(first)
}

/// Packs one after the other.
#[derive(Default)]
pub(super) struct Packer {
    /// What lz4 has seen: made when something is packed.
    state: Option<lz4::State>,
}

impl Packer {
    /// Packs up to a page into the start of `room`, which has [`ROOM_BYTES`]; says how long it is: as long as `bytes` where nothing is saved.
    pub fn pack(&mut self, bytes: &[u8], room: &mut [u8]) -> usize {
        if let Some(byte) = one_byte(bytes) {
            room[0] = byte;
            return 1;
        }
        let state = self.state.get_or_insert_with(lz4::State::new);
        // It has room for what is worth it, and gives up where that is taken.
        let packed = state.pack(bytes, &mut room[..bytes.len() / 4 * 3]);
        packed.unwrap_or_else(|| {
            room[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        })
    }
}

/// Unpacks what is as long as `into`. False: it was not packed here.
pub(super) fn unpack(packed: &[u8], into: &mut [u8]) -> bool {
    match packed.len() {
        len if len == into.len() => into.copy_from_slice(packed),
        1 => into.fill(packed[0]),
        _ => return lz4::unpack(packed, into) == Some(into.len()),
    }
    true
}

/// Unpacks what was at most as long as `into`, and not of one byte: how long it was. None: it was not packed here.
pub(super) fn unpack_up_to(packed: &[u8], into: &mut [u8]) -> Option<usize> {
    lz4::unpack(packed, into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_does_not_pack_is_tried_rarely_until_something_packs() {
        let packing = Packing::default();
        let tried = |pages: u32, shorter: bool| {
            let tried = (0..pages).filter(|_| packing.is_tried());
            tried.inspect(|_| packing.came_to(shorter)).count()
        };
        assert_eq!(tried(VAIN_MAX, false), VAIN_MAX as usize);
        assert_eq!(tried(1600, false), 100);
        assert!((1..=TRY_EVERY).any(|_| tried(1, true) == 1));
        assert_eq!(tried(100, true), 100);
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
        fn what_is_packed_comes_back(
            fill: u8, noise in prop::collection::vec(any::<u8>(), 0..PAGE_BYTES), at in 0..PAGE_BYTES, len in 1..PAGE_BYTES + 1
        ) {
            let mut page = [fill; PAGE_BYTES];
            let end = (at + noise.len()).min(PAGE_BYTES);
            page[at..end].copy_from_slice(&noise[..end - at]);
            let (mut room, mut packer) = (vec![0; ROOM_BYTES], Packer::default());
            for bytes in [&page[..], &page[..len], &page[PAGE_BYTES - len..]] {
                let packed = packer.pack(bytes, &mut room);
                prop_assert!(packed <= bytes.len());
                let mut back = vec![1; bytes.len()];
                prop_assert!(unpack(&room[..packed], &mut back));
                prop_assert!(back == bytes);
                // Nothing of it is taken for something else that is as long.
                if packed < bytes.len() && packed > 1 {
                    let mut longer = vec![1; PAGE_BYTES];
                    prop_assert_eq!(unpack_up_to(&room[..packed], &mut longer), Some(bytes.len()));
                    prop_assert!(longer[..bytes.len()] == *bytes);
                    prop_assert_eq!(unpack_up_to(&room[..packed], &mut longer[..bytes.len() - 1]), None);
                    prop_assert!(!unpack(&room[..packed - 1], &mut back));
                }
            }
        }
    }
}
