//! Opening and closing a pool.
//!
//! Promises: closing ends everything of the pool; calls under way in other threads end first. Never: reads more of the options than the program says
//! it has.

use crate::changing::refuse_inside;
use crate::error::{Failure, call};
use crate::forks;
use crate::handle::Handle;
use crate::ranges;
use crate::state::{self, ArrayState, ObjectsState, PoolState, RegionState, TableState, Thing};
use ::terrace_pool::Mutex;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use terrace_vm::Way;
use terrace_vm::kept::Regions;
use terrace_vm::opp::Heap;
use terrace_vm::store::{Store, StoreOptions};

/// A pool that is open. Not to be followed.
#[allow(non_camel_case_types)]
pub struct terrace_pool {
    _private: [u8; 0],
}

/// For options.flags: what is in the pool is kept. It has named regions (terrace_region_open) and nothing else; a pool that is not kept has everything
/// else and no regions.
pub const TERRACE_KEEP: u32 = 1;

/// How a pool is opened. Set everything to 0 first, then size, path and cap_bytes. New members are added at the end only.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct terrace_options {
    /// sizeof(struct terrace_options).
    pub size: usize,
    /// Directory of the pool; made if need be. What is in it does not outlive the program that opened it, unless flags has TERRACE_KEEP.
    pub path: *const c_char,
    /// DRAM in bytes, everything counted: at least 16 MiB for each lane of the pool. One that is made has a lane for each 64 MiB of it, from 1 to 4, no more than there are processors, and a
    /// power of two; one that is kept keeps them.
    pub cap_bytes: u64,
    /// Size on the SSD in bytes, of which 25 MiB for each lane are enough always; 0: four times the cap. A pool that is kept keeps its size; one that is not is made anew where another is asked for.
    pub ssd_bytes: u64,
    /// Pages of 4 KiB that the program sees in DRAM at a time, from 64 to what half of the cap holds with their page tables; 0: a sixteenth of the cap, and it adapts.
    pub buffer_pages: u64,
    /// Threads that take faults; 0: each is taken in the thread that touches memory, which is quicker (see the top of this file). Up to 64.
    pub fault_threads: u32,
    /// 0 or TERRACE_KEEP; a pool that was made with others is refused with EINVAL.
    pub flags: u32,
}

struct Asked {
    store: StoreOptions,
    way: Way,
    pages: Option<usize>,
}

/// Copies what the program says it has; the rest is 0.
///
/// # Safety
/// `options` is NULL, or points to a `size` and to as many bytes.
unsafe fn read_options(options: *const terrace_options) -> Result<terrace_options, Failure> {
    if options.is_null() {
        return Err(Failure::invalid("options are NULL"));
    }
    // SAFETY: the caller's promise.
    let size = unsafe { (&raw const (*options).size).read_unaligned() };
    let (least, most) = (
        offset_of!(terrace_options, ssd_bytes),
        size_of::<terrace_options>(),
    );
    if !(least..=most).contains(&size) {
        return Err(Failure::invalid(format!(
            "options.size is {size}; it is sizeof(struct terrace_options), here {most}, and at least {least}"
        )));
    }
    // SAFETY: made of integers and a pointer, all zeros is a value.
    let mut read: terrace_options = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's promise; not longer than `read`.
    unsafe { std::ptr::copy_nonoverlapping(options.cast::<u8>(), (&raw mut read).cast(), size) };
    Ok(read)
}

/// # Safety
/// As for [`read_options`], and `path` is NULL or a string.
unsafe fn asked(options: *const terrace_options) -> Result<Asked, Failure> {
    // SAFETY: the caller's promise.
    let options = unsafe { read_options(options)? };
    if options.path.is_null() {
        return Err(Failure::invalid(
            "options.path is NULL; it is the directory of the pool",
        ));
    }
    if options.flags & !TERRACE_KEEP != 0 {
        return Err(Failure::invalid(format!(
            "options.flags is {:#x}; 0 and TERRACE_KEEP are allowed",
            options.flags
        )));
    }
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(options.path) };
    let dir = PathBuf::from(OsStr::from_bytes(path.to_bytes()));
    Ok(Asked {
        store: StoreOptions {
            durable: options.flags & TERRACE_KEEP != 0,
            // A thread that waits in the kernel for a page would keep the ends of what it had begun at the device to itself, and whoever brings the page wait for those.
            helped: options.fault_threads == 0,
            ..StoreOptions::scratch(dir, options.cap_bytes, options.ssd_bytes)
        },
        way: match options.fault_threads {
            0 => Way::InThread,
            threads => Way::Handlers(threads as usize),
        },
        pages: (options.buffer_pages > 0).then_some(options.buffer_pages as usize),
    })
}

/// Opens a pool, and makes it if need be. NULL: errno is EBUSY if another process has it, EINVAL if an option is out of bounds, EADDRINUSE if
/// something else of the program is where the regions of the pool lie, ENOSPC, EMFILE or ENOMEM if the system has too little, ENOENT if the directory
/// above the pool's is not there, EIO if what is there is damaged or no pool, ENOSYS if this machine does not let programs take their faults (terrace_last_error says what to set).
///
/// Where fault_threads is 0, faults are signals: the first opening installs a handler for SIGBUS. A thread that has SIGBUS blocked is ended with its program by the kernel at
/// its first fault, without a message: leave it out of what is blocked (sigdelset(&set, SIGBUS) after sigfillset). A handler that the program installs for SIGBUS later
/// must pass on what it does not know, with all three arguments, to the one that sigaction said was there, and have its sa_flags and sa_mask. A fault needs up to 64 KiB of the
/// stack of the thread that touches memory. What a device reads into memory of the pool by itself (O_DIRECT, also by libaio and io_uring) may be lost then, and with
/// fault_threads before Linux 6.8: let it read into other memory, and copy.
///
/// `options` points to as many bytes as its size says; its path is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_open(options: *const terrace_options) -> *mut terrace_pool {
    call("terrace_open", std::ptr::null_mut(), || {
        forks::watch();
        // SAFETY: the program's promise.
        let asked = unsafe { asked(options)? };
        let regions = match asked.store.durable {
            true => Some(Regions::open(&asked.store, asked.way)?),
            false => None,
        };
        let heap = match &regions {
            Some(regions) => regions.heap().clone(),
            None => Heap::open(Store::open(&asked.store)?, asked.way)?,
        };
        if let Way::Handlers(_) = asked.way {
            // System calls may be given such memory, so devices read into it (O_DIRECT). What a kernel before 6.8 cannot do for that is said in the header.
            heap.memory().devices_write();
        }
        if let Some(pages) = asked.pages {
            heap.set_pages_max(pages)?;
        }
        let pool = PoolState {
            heap,
            regions,
            malloc: Mutex::new(None),
            children: Mutex::new(Vec::new()),
        };
        Ok(state::add(Thing::Pool(Arc::new(pool)))?.pointer())
    })
}

/// Closes a pool and all that is of it: its arrays, tables, regions and memory, which nobody may touch any more. Calls on it
/// that are under way in other threads end first; 10 s are waited for them. -1 with ETIMEDOUT: they have not ended; it is closed when they do, and until then
/// terrace_open says EBUSY. What closes or destroys something of a pool says the same of that.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_close(pool: *mut terrace_pool) -> c_int {
    call("terrace_close", -1, || {
        refuse_inside()?;
        let handle = Handle::from_pointer(pool);
        let state = state::remove::<PoolState>(handle)?;
        // They may make something of it yet.
        let until = state::patience();
        state::await_calls(&state, until);
        ranges::remove(handle);
        let malloc = state.malloc.lock().take();
        let mut ended = malloc.iter().all(|m| state::await_calls(m, until));
        let children = std::mem::take(&mut *state.children.lock());
        for child in children {
            // One that another thread closes right now is gone, and that thread has the pool in hand.
            let closed = state::close::<ObjectsState>(child, until)
                .or_else(|_| state::close::<ArrayState>(child, until))
                .or_else(|_| state::close::<TableState>(child, until))
                .or_else(|_| state::close::<RegionState>(child, until));
            ended &= closed.unwrap_or(true);
        }
        ended &= state::await_calls(&state, until);
        match ended {
            true => Ok(0),
            false => Err(state::still_called("pool")),
        }
    })
}
