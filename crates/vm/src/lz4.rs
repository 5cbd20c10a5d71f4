//! lz4's blocks, by its own library.
//!
//! Promises: packing has its tables in a state of the caller's, none on the stack, and the library allocates nothing, so that a fault's handler may do it; unpacking believes
//! nothing of what it is given. Never: writes beyond what it was given.

use lz4_sys::LZ4_decompress_safe;

/// Words of what the library keeps while it packs: its table of 16 KiB and a head of 32 bytes.
const STATE_WORDS: usize = (16 * 1024 + 32) / 8;
/// How fast it looks for what comes again: beside 1, pages take from two thirds of the time to all of it and come out up to 4 % longer, nodes of 512 bytes 8 % (docs/adr/0074).
const ACCELERATION: i32 = 2;

unsafe extern "C" {
    // From the same library, for who keeps the state himself: the crate has no word of it.
    fn LZ4_compress_fast_extState_fastReset(
        state: *mut u64,
        from: *const u8,
        into: *mut u8,
        from_bytes: i32,
        into_bytes: i32,
        acceleration: i32,
    ) -> i32;
}

/// What the library keeps between two calls.
pub(crate) struct State(Box<[u64]>);

impl State {
    /// Bytes that one takes.
    pub const BYTES: usize = STATE_WORDS * 8;

    /// Zeros are a state that has seen nothing.
    pub fn new() -> State {
        State(vec![0; STATE_WORDS].into_boxed_slice())
    }

    /// Packs into the start of `into`. None: it does not fit there.
    pub fn pack(&mut self, bytes: &[u8], into: &mut [u8]) -> Option<usize> {
        let (from_bytes, into_bytes) = (length(bytes)?, length(into)?);
        // SAFETY: the state is as large and aligned as the library's (a test asks it), was zeros, which is how the library itself begins one, and has since been changed by this
        // call alone, which leaves it fit for the next also where it fails; both lengths are those of the slices, and the library stays within them.
        let len = unsafe {
            LZ4_compress_fast_extState_fastReset(
                self.0.as_mut_ptr(),
                bytes.as_ptr(),
                into.as_mut_ptr(),
                from_bytes,
                into_bytes,
                ACCELERATION,
            )
        };
        usize::try_from(len).ok().filter(|&len| len > 0)
    }
}

/// Unpacks into the start of `into`: how long it is. None: lz4 never made it, or it is longer.
pub(crate) fn unpack(packed: &[u8], into: &mut [u8]) -> Option<usize> {
    let (packed_bytes, into_bytes) = (length(packed)?, length(into)?);
    // SAFETY: both lengths are those of the slices; the library reads and writes nothing beyond them, whatever the bytes are.
    let len = unsafe {
        LZ4_decompress_safe(
            packed.as_ptr().cast(),
            into.as_mut_ptr().cast(),
            packed_bytes,
            into_bytes,
        )
    };
    usize::try_from(len).ok()
}

fn length(bytes: &[u8]) -> Option<i32> {
    i32::try_from(bytes.len()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_state_is_as_large_as_the_library_says() {
        unsafe extern "C" {
            fn LZ4_sizeofState() -> i32;
        }
        // SAFETY: it takes nothing and answers a constant.
        assert_eq!(unsafe { LZ4_sizeofState() }, State::BYTES as i32);
    }

    proptest! {
        /// Also after others of any length, of which some did not fit.
        #[test]
        fn what_was_packed_comes_back(
            all in prop::collection::vec((prop::collection::vec(0..4u8, 0..6000), 0..6000usize), 1..20)
        ) {
            let mut state = State::new();
            for (bytes, room) in &all {
                let mut into = vec![0; *room + 8];
                let Some(len) = state.pack(bytes, &mut into[..*room]) else {
                    prop_assert!(*room < bytes.len() + bytes.len() / 255 + 16);
                    continue;
                };
                prop_assert!(into[*room..].iter().all(|&b| b == 0));
                let mut back = vec![9; bytes.len()];
                prop_assert_eq!(unpack(&into[..len], &mut back), Some(bytes.len()));
                prop_assert!(back == *bytes);
            }
        }

        #[test]
        fn anything_is_unpacked_or_refused(packed in prop::collection::vec(any::<u8>(), 0..300), room in 0..5000usize) {
            let mut into = vec![7; room + 8];
            if let Some(len) = unpack(&packed, &mut into[..room]) {
                prop_assert!(len <= room);
            }
            prop_assert!(into[room..].iter().all(|&b| b == 7));
        }
    }
}
