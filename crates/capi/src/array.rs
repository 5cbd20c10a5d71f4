//! Arrays of objects of one size, each object on a page of its own (OPP).
//!
//! Promises: an object that was never written to is zeros and takes nothing. Never: gives the address of an object that the array does not
//! have.

use crate::error::{Failure, call};
use crate::handle::Handle;
use crate::objects::narrow;
use crate::open::terrace_pool;
use crate::ranges;
use crate::state::{self, ArrayState, PoolState, Thing};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// An array. Not to be followed.
#[allow(non_camel_case_types)]
pub struct terrace_array {
    _private: [u8; 0],
}

fn get(array: *const terrace_array) -> Result<Arc<ArrayState>, Failure> {
    state::get::<ArrayState>(Handle::from_pointer(array))
}

fn outside(state: &ArrayState, index: u64) -> Failure {
    let len = state.array.len();
    Failure::invalid(format!("object {index} of an array of {len}"))
}

/// Makes an array of `len` objects of `bytes` bytes (1 to 4096), zeros, which can grow to `len_max` (0: it cannot grow; EINVAL if that is less than `len`).
#[unsafe(no_mangle)]
pub extern "C" fn terrace_array_create(
    pool: *mut terrace_pool,
    len: u64,
    bytes: usize,
    len_max: u64,
) -> *mut terrace_array {
    call("terrace_array_create", std::ptr::null_mut(), || {
        if len_max != 0 && len_max < len {
            return Err(Failure::invalid(format!(
                "an array of {len} objects that can grow to {len_max}: say as many or more, or 0 if it does not grow"
            )));
        }
        let pool = state::get::<PoolState>(Handle::from_pointer(pool))?;
        let array = pool.heap.array(len, narrow(bytes), len_max)?;
        let addresses = array.addresses();
        let handle = state::add(Thing::Array(Arc::new(ArrayState {
            array,
            of: Arc::downgrade(&pool),
        })))?;
        ranges::add(addresses, handle);
        pool.adopt(handle);
        Ok(handle.pointer())
    })
}

/// The address of object `index`, which stays until the array ends. NULL with EINVAL: the array does not have it.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_array_at(array: *const terrace_array, index: u64) -> *mut c_void {
    call("terrace_array_at", std::ptr::null_mut(), || {
        let state = get(array)?;
        // One look at its length: another thread may change that.
        let address = state.array.get(index);
        Ok(address.ok_or_else(|| outside(&state, index))?.cast())
    })
}

/// How many objects it has; UINT64_MAX when it fails.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_array_len(array: *const terrace_array) -> u64 {
    call("terrace_array_len", u64::MAX, || {
        Ok(get(array)?.array.len())
    })
}

/// Changes how many objects it has. New ones are zeros; nobody may use those that go.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_array_resize(array: *mut terrace_array, len: u64) -> c_int {
    call("terrace_array_resize", -1, || {
        get(array)?.array.resize(len)?;
        Ok(0)
    })
}

/// Makes one object zeros again: it takes no DRAM and no SSD then.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_array_clear(array: *mut terrace_array, index: u64) -> c_int {
    call("terrace_array_clear", -1, || {
        let state = get(array)?;
        if index >= state.array.len() {
            return Err(outside(&state, index));
        }
        state.array.clear(index)?;
        Ok(0)
    })
}

/// Frees the array and its objects.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_array_destroy(array: *mut terrace_array) -> c_int {
    call("terrace_array_destroy", -1, || {
        state::destroy::<ArrayState>(Handle::from_pointer(array))?;
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::{terrace_close, terrace_open, terrace_options};
    use std::os::unix::ffi::OsStrExt;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    const THREADS: u64 = 4;
    const ROUNDS: u64 = 4000;
    const RESIZES: u64 = 20;
    const ASKED_FOR: Duration = Duration::from_secs(5);

    /// A pool for a test.
    fn open(dir: &std::path::Path) -> *mut terrace_pool {
        let path = std::ffi::CString::new(dir.join("pool").as_os_str().as_bytes());
        let path = path.expect("no zero in it");
        // SAFETY: made of integers and a pointer, all zeros is a value.
        let mut options: terrace_options = unsafe { std::mem::zeroed() };
        options.size = size_of::<terrace_options>();
        options.path = path.as_ptr();
        (options.cap_bytes, options.ssd_bytes) = (32 << 20, 64 << 20);
        // SAFETY: options as they should be, with a path that lives on.
        let pool = unsafe { terrace_open(&options) };
        assert!(!pool.is_null());
        pool
    }

    #[test]
    fn an_object_that_goes_while_it_is_asked_for_is_refused_or_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let pool = open(dir.path());
        let array = Handle::from_pointer(terrace_array_create(pool, 10, 64, 20));
        let ended = AtomicBool::new(false);
        let until = Instant::now() + ASKED_FOR;
        let said = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut len = 10;
                while !ended.load(Ordering::Relaxed) {
                    len = 30 - len;
                    assert_eq!(terrace_array_resize(array.pointer(), len), 0);
                }
            });
            let refusals = std::iter::repeat_with(|| {
                let at = terrace_array_at(array.pointer(), 15);
                let errno = std::io::Error::last_os_error().raw_os_error();
                (at.is_null() && errno != Some(libc::EINVAL)).then_some(errno)
            });
            let other = refusals
                .take_while(|_| Instant::now() < until)
                .find_map(|said| said);
            ended.store(true, Ordering::Relaxed);
            other
        });
        assert_eq!(said, None, "another error than EINVAL");
        assert_eq!(terrace_close(pool), 0);
    }

    #[test]
    fn its_length_is_the_last_of_several_that_were_asked_for_at_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let pool = open(dir.path());
        let array = Handle::from_pointer(terrace_array_create(pool, 10, 64, 20));
        let barrier = std::sync::Barrier::new(THREADS as usize);
        let wrong = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (barrier, wrong) = (&barrier, &wrong);
                scope.spawn(move || {
                    for n in 0..ROUNDS {
                        for n in n..n + RESIZES {
                            let len = 10 + (thread + n) % 2 * 10;
                            assert_eq!(terrace_array_resize(array.pointer(), len), 0);
                        }
                        barrier.wait();
                        let state = get(array.pointer()).expect("open");
                        if terrace_array_len(array.pointer()) != state.array.len() {
                            wrong.fetch_add(1, Ordering::Relaxed);
                        }
                        barrier.wait();
                    }
                });
            }
        });
        assert_eq!(wrong.into_inner(), 0, "looks that saw another length");
        assert_eq!(terrace_close(pool), 0);
    }
}
