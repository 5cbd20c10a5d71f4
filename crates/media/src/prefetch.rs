//! A hint to the processor that memory will be looked at soon.
//!
//! Promises: never faults, never changes anything; at worst it costs a nanosecond. Never:
//! waits for the memory.

/// Longest part of `bytes` that is asked for: more would throw out what was asked for before.
const PREFETCH_MAX_BYTES: usize = 160;
const CACHE_LINE_BYTES: usize = 64;

/// Asks for the first bytes of `bytes` to be brought into the cache.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    let len = bytes.len().min(PREFETCH_MAX_BYTES);
    for at in (0..len).step_by(CACHE_LINE_BYTES) {
        prefetch_line(&bytes[at]);
    }
    if len > 0 {
        prefetch_line(&bytes[len - 1]);
    }
}

/// Asks for the cache line in which `value` begins.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn prefetch_line<T>(value: &T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: SSE is part of x86-64; a prefetch of any address is only a hint, and this one is a reference's.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) }
}

/// Asks for the cache line in which `value` begins.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub fn prefetch_line<T>(_: &T) {}

#[cfg(test)]
mod tests {
    #[test]
    fn any_length_is_fine() {
        for len in [0, 1, 63, 64, 65, 5000] {
            super::prefetch(&vec![0; len]);
        }
    }
}
