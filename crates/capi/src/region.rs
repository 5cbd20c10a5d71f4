//! Named regions: durable memory, in pools that are kept.
//!
//! Promises: ranges of a sync are copied before anything is locked; an address that is not the region's is refused. Never: syncs by itself.

use crate::error::{Failure, call};
use crate::handle::Handle;
use crate::open::terrace_pool;
use crate::ranges;
use crate::state::{self, PoolState, RegionState, Thing};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::sync::Arc;
use terrace_vm::kept::{NAME_MAX_BYTES, Regions, SYNC_RANGES_MAX};

/// Room for the longest name of a region and its end.
pub const TERRACE_NAME_BYTES: usize = 256;
const _: () = assert!(TERRACE_NAME_BYTES == NAME_MAX_BYTES + 1);

/// A region that is open. Not to be followed.
#[allow(non_camel_case_types)]
pub struct terrace_region {
    _private: [u8; 0],
}

/// Bytes of a region.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct terrace_range {
    /// The first.
    pub start: *const c_void,
    /// How many.
    pub bytes: usize,
}

/// What is known of a region of a pool. New members are added at the end only.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct terrace_region_info {
    /// Bytes it was made with or grew to, and bytes it can grow to.
    pub bytes: u64,
    pub bytes_max: u64,
    /// Where it lies when it is open.
    pub base: *mut c_void,
    /// 1 if it is open, else 0.
    pub open: u32,
    /// 0.
    pub reserved: u32,
    /// Its name.
    pub name: [c_char; TERRACE_NAME_BYTES],
}

fn get(region: *const terrace_region) -> Result<Arc<RegionState>, Failure> {
    state::get::<RegionState>(Handle::from_pointer(region))
}

fn regions(pool: &PoolState) -> Result<&Regions, Failure> {
    pool.regions.as_ref().ok_or_else(|| {
        Failure::invalid(
            "this pool does not outlive the program: regions are in pools that are opened with options.flags TERRACE_KEEP",
        )
    })
}

/// # Safety
/// `name` is NULL or a string.
unsafe fn name_of(name: *const c_char) -> Result<String, Failure> {
    if name.is_null() {
        return Err(Failure::invalid("name is NULL; it is a region's name"));
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_str();
    let name = name.map_err(|_| Failure::invalid("a region's name is UTF-8, and this is none"))?;
    Ok(name.to_owned())
}

/// Opens the region `name` of a pool that is kept. If there is none, makes it: `bytes` zeros, which can grow to `bytes_max` (0: as many as the
/// SSD takes). One that is there keeps its size, and is as at its last sync, at the same address. NULL: errno is EBUSY if it is open, ENOMEM if the SSD
/// has no room for it, there are no addresses for it or 1024 regions are there, EINVAL for another name, 0 bytes where there is none, a `bytes_max` below `bytes` that is not 0, or a pool
/// without TERRACE_KEEP.
///
/// `name` is UTF-8, 1 to 255 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_region_open(
    pool: *mut terrace_pool,
    name: *const c_char,
    bytes: u64,
    bytes_max: u64,
) -> *mut terrace_region {
    call("terrace_region_open", std::ptr::null_mut(), || {
        // SAFETY: the program's promise.
        let name = unsafe { name_of(name)? };
        if bytes_max != 0 && bytes_max < bytes {
            return Err(Failure::invalid(format!(
                "a region of {bytes} bytes that can grow to {bytes_max}: say as many or more, or 0 for as many as the SSD takes"
            )));
        }
        let pool = state::get::<PoolState>(Handle::from_pointer(pool))?;
        let region = regions(&pool)?.region(&name, bytes, bytes_max)?;
        let addresses = (region.base() as usize, region.bytes_max());
        let of = Arc::downgrade(&pool);
        let handle = state::add(Thing::Region(Arc::new(RegionState { region, of })))?;
        ranges::add(addresses, handle);
        pool.adopt(handle);
        Ok(handle.pointer())
    })
}

/// Where it begins: the same whenever it is open, so pointers in it to what is in it hold.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_region_base(region: *const terrace_region) -> *mut c_void {
    call("terrace_region_base", std::ptr::null_mut(), || {
        Ok(get(region)?.region.base().cast())
    })
}

/// How long it is; UINT64_MAX when it fails.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_region_bytes(region: *const terrace_region) -> u64 {
    call("terrace_region_bytes", u64::MAX, || {
        Ok(get(region)?.region.bytes() as u64)
    })
}

/// Makes it longer; what comes is zeros. Kept from the next sync on.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_region_grow(region: *mut terrace_region, bytes: u64) -> c_int {
    call("terrace_region_grow", -1, || {
        get(region)?.region.grow(bytes as usize)?;
        Ok(0)
    })
}

/// The address that was set as its root, from which a program finds the rest. NULL with errno 0: none is.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_region_root(region: *const terrace_region) -> *mut c_void {
    call("terrace_region_root", std::ptr::null_mut(), || {
        let state = get(region)?;
        // SAFETY: errno is this thread's own.
        unsafe { *libc::__errno_location() = 0 };
        let at = |root: usize| state.region.base().wrapping_add(root).cast();
        Ok(state.region.root().map_or(std::ptr::null_mut(), at))
    })
}

/// Sets its root: an address in the region, or NULL for none. Kept from the next sync on.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_region_set_root(
    region: *mut terrace_region,
    root: *const c_void,
) -> c_int {
    call("terrace_region_set_root", -1, || {
        let state = get(region)?;
        let root = (!root.is_null()).then_some(root as usize);
        let base = state.region.base() as usize;
        // What lies before it is out of bounds as well.
        let offset = root.map(|root| root.wrapping_sub(base));
        state.region.set_root(offset)?;
        Ok(0)
    })
}

/// Makes what was written to these ranges durable, at once or not at all, with the region's length and root; with NULL and 0, all of it. Whole pages of 4 KiB are
/// synced. What is not synced is gone after a crash or when the region is closed. -1: nothing was synced, and the memory is as it was; errno is EINVAL for a
/// range that is not the region's or more than 4096 of them, E2BIG if more than 16384 pages outside of the ranges were changed and have left DRAM (sync
/// them too), ENOMEM if the SSD is full, EROFS if it failed, ETIMEDOUT if it took more than 30 s. After the last two a crash may leave this sync, as a whole, done;
/// the next sync, or closing the region, takes it back first.
///
/// `ranges` points to so many. What other threads write meanwhile may be part of it or not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_region_sync(
    region: *mut terrace_region,
    ranges: *const terrace_range,
    count: usize,
) -> c_int {
    call("terrace_region_sync", -1, || {
        let state = get(region)?;
        let region = &state.region;
        if ranges.is_null() && count == 0 {
            region.sync_all()?;
            return Ok(0);
        }
        if ranges.is_null() {
            return Err(Failure::invalid("ranges is NULL, and count is not 0"));
        }
        if count > SYNC_RANGES_MAX {
            return Err(Failure::invalid(format!(
                "{count} ranges, where {SYNC_RANGES_MAX} are allowed: join some"
            )));
        }
        let base = region.base() as usize;
        // SAFETY: the program's promise: so many are there.
        let copied = (0..count).map(|nth| unsafe { ranges.add(nth).read_unaligned() });
        let offsets = copied.map(|range| {
            let start = (range.start as usize).wrapping_sub(base);
            start..start.saturating_add(range.bytes)
        });
        let offsets: Vec<Range<usize>> = offsets.collect();
        region.sync(&offsets)?;
        Ok(0)
    })
}

/// Closes it: nobody may touch it any more. What was not synced is gone.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_region_close(region: *mut terrace_region) -> c_int {
    call("terrace_region_close", -1, || {
        state::destroy::<RegionState>(Handle::from_pointer(region))?;
        Ok(0)
    })
}

/// Removes the region `name`, which is not open, and all that is in it.
///
/// `name` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_region_remove(
    pool: *mut terrace_pool,
    name: *const c_char,
) -> c_int {
    call("terrace_region_remove", -1, || {
        // SAFETY: the program's promise.
        let name = unsafe { name_of(name)? };
        let pool = state::get::<PoolState>(Handle::from_pointer(pool))?;
        regions(&pool)?.remove(&name)?;
        Ok(0)
    })
}

/// Fills the first `size` bytes of `info`, sizeof(struct terrace_region_info), with what is known of the region of place `nth`, from 0 on. -1 with ENOENT: there are not
/// so many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_region_list(
    pool: *const terrace_pool,
    nth: u64,
    info: *mut terrace_region_info,
    size: usize,
) -> c_int {
    call("terrace_region_list", -1, || {
        if info.is_null() {
            return Err(Failure::invalid("info is NULL"));
        }
        let pool = state::get::<PoolState>(Handle::from_pointer(pool))?;
        let list = regions(&pool)?.list();
        let there = list.get(nth as usize).ok_or_else(|| Failure {
            errno: libc::ENOENT,
            text: format!("region {nth} of {}", list.len()),
        })?;
        let mut all = terrace_region_info {
            bytes: there.bytes,
            bytes_max: there.bytes_max,
            base: there.base as *mut c_void,
            open: u32::from(there.open),
            reserved: 0,
            name: [0; TERRACE_NAME_BYTES],
        };
        for (to, from) in all.name.iter_mut().zip(there.name.bytes()) {
            *to = from as c_char;
        }
        let size = size.min(size_of::<terrace_region_info>());
        // SAFETY: the program's promise: so many bytes are there; not more than `all` has.
        unsafe { std::ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), info.cast(), size) };
        Ok(0)
    })
}
