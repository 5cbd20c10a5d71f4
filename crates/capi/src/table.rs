//! Objects by number, without faults (*handles*).
//!
//! Promises: buffers of the program may lie in memory that faults: they are read before and written after the store is used; what changes an object waits for
//! who is changing it, so no change is lost. Never: takes more than [`BOUNCE_MAX_BYTES`] for a call; or holds a lock of the store while the program's own code runs.

use crate::changing::{inside, refuse_inside};
use crate::error::{Failure, call};
use crate::handle::Handle;
use crate::objects::narrow;
use crate::open::terrace_pool;
use crate::state::{self, PoolState, TableState, Thing};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use terrace_vm::handles::Table;

/// A table of objects of one size. Not to be followed.
#[allow(non_camel_case_types)]
pub struct terrace_table {
    _private: [u8; 0],
}

/// What one call holds of objects on their way, at most: objects of 4 KiB are as many as a device has in hand for it.
const BOUNCE_MAX_BYTES: usize = 256 << 10;
/// Objects read in one go.
const MANY_MAX: usize = 1024;

/// What changes a table: whoever is to be waited for by those who change the same object.
fn get_for_change(table: *mut terrace_table) -> Result<Arc<TableState>, Failure> {
    let state = get(table)?;
    refuse_inside()?;
    Ok(state)
}

fn get(table: *const terrace_table) -> Result<Arc<TableState>, Failure> {
    state::get::<TableState>(Handle::from_pointer(table))
}

fn not_null<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    match pointer.is_null() {
        true => Err(Failure::invalid(format!("{name} is NULL"))),
        false => Ok(()),
    }
}

/// A copy of what the program has at an address.
///
/// # Safety
/// There are so many values.
unsafe fn copied<T: Copy>(pointer: *const T, len: usize, name: &str) -> Result<Vec<T>, Failure> {
    not_null(pointer, name)?;
    let mut copy = Vec::with_capacity(len);
    // SAFETY: the caller's promise; the vector has room for as many.
    unsafe {
        std::ptr::copy_nonoverlapping(pointer, copy.as_mut_ptr(), len);
        copy.set_len(len);
    }
    Ok(copy)
}

/// Makes a table of objects of `bytes` bytes (up to about 64 KiB), for code that asks for objects instead of touching them: no faults, no pages.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_table_create(
    pool: *mut terrace_pool,
    bytes: usize,
) -> *mut terrace_table {
    call("terrace_table_create", std::ptr::null_mut(), || {
        let pool = state::get::<PoolState>(Handle::from_pointer(pool))?;
        let table = TableState {
            table: Table::new(&pool.heap, narrow(bytes))?,
            changing: Default::default(),
            of: Arc::downgrade(&pool),
        };
        let handle = state::add(Thing::Table(Arc::new(table)))?;
        pool.adopt(handle);
        Ok(handle.pointer())
    })
}

/// Stores a new object, and its number in `id`. `object` has as many bytes as the table's objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_insert(
    table: *mut terrace_table,
    object: *const c_void,
    id: *mut u64,
) -> c_int {
    call("terrace_insert", -1, || {
        let state = get(table)?;
        not_null(id, "id")?;
        // SAFETY: the program's promise.
        let value = unsafe { copied(object.cast::<u8>(), state.table.object_bytes(), "object")? };
        let new = state.table.insert(&value)?;
        // SAFETY: the program's promise.
        unsafe { id.write_unaligned(new) };
        Ok(0)
    })
}

fn none(id: u64) -> Failure {
    Failure {
        errno: libc::ENOENT,
        text: format!("there is no object {id}: it was never inserted, or is removed"),
    }
}

/// Copies object `id` to `object`. -1 with ENOENT: there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_get(
    table: *const terrace_table,
    id: u64,
    object: *mut c_void,
) -> c_int {
    call("terrace_get", -1, || {
        let state = get(table)?;
        not_null(object, "object")?;
        let mut value = vec![0u8; state.table.object_bytes()];
        if !state.table.get(id, &mut value)? {
            return Err(none(id));
        }
        // SAFETY: the program's promise.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), object.cast(), value.len()) };
        Ok(0)
    })
}

/// Copies objects `ids[0]` to `ids[count - 1]` to `objects`, one after another, with as many device reads under way as the device takes. `found[n]` is set
/// to 1, or to 0 where there is no such object; `found` may be NULL if all are there: then one that is not is ENOENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_get_many(
    table: *const terrace_table,
    ids: *const u64,
    count: usize,
    objects: *mut c_void,
    found: *mut u8,
) -> c_int {
    call("terrace_get_many", -1, || {
        let state = get(table)?;
        if count == 0 {
            return Ok(0);
        }
        not_null(objects, "objects")?;
        let bytes = state.table.object_bytes();
        let at_once = (BOUNCE_MAX_BYTES / bytes).clamp(1, MANY_MAX);
        let mut first = 0;
        while first < count {
            let some = at_once.min(count - first);
            not_null(ids, "ids")?;
            // SAFETY: the program's promise: so many are there.
            let wanted = unsafe { copied(ids.add(first), some, "ids")? };
            state.table.counted(some * bytes, || {
                let (values, there) = read_many(&state.table, &wanted)?;
                if found.is_null()
                    && let Some(at) = there.iter().position(|t| *t == 0)
                {
                    return Err(none(wanted[at]));
                }
                // SAFETY: the program's promise: there is room for `count` objects, and for as many marks if not NULL.
                unsafe {
                    let out = objects.cast::<u8>().add(first * bytes);
                    std::ptr::copy_nonoverlapping(values.as_ptr(), out, values.len());
                    if !found.is_null() {
                        std::ptr::copy_nonoverlapping(there.as_ptr(), found.add(first), some);
                    }
                }
                Ok(())
            })?;
            first += some;
        }
        Ok(0)
    })
}

fn read_many(table: &Table, ids: &[u64]) -> Result<(Vec<u8>, Vec<u8>), Failure> {
    let bytes = table.object_bytes();
    let (mut values, mut there) = (vec![0; ids.len() * bytes], vec![0; ids.len()]);
    table.get_many(ids, |at, value| {
        if let Some(value) = value {
            values[at * bytes..][..bytes].copy_from_slice(value);
            there[at] = 1;
        }
    })?;
    Ok((values, there))
}

/// Changes object `id` by what is in it: calls `change` once, in this thread, with a copy of its `bytes` bytes and with `context`, and stores what that leaves there. Other
/// calls that change the object (terrace_update, terrace_put, terrace_remove) come before or after, never between, so what threads count up that way is not lost; calls
/// that read it see it as it was until then. -1 with ENOENT: there is none, and `change` was not called. -1 with another errno: the object is as it was.
///
/// `change` may touch memory of any pool and call what reads. terrace_update, terrace_put, terrace_remove and what destroys or closes anything are refused in it with
/// EDEADLK: its thread would wait for itself. Calls that change any object of the table may wait until it ends, so it waits for nobody who makes such a call, and takes no lock that
/// is held around one. It ends by returning, not by longjmp, an exception, pthread_exit or a cancellation. The copy is gone then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_update(
    table: *mut terrace_table,
    id: u64,
    change: Option<unsafe extern "C" fn(object: *mut c_void, bytes: usize, context: *mut c_void)>,
    context: *mut c_void,
) -> c_int {
    call("terrace_update", -1, || {
        let state = get_for_change(table)?;
        let change = change.ok_or_else(|| Failure::invalid("change is NULL"))?;
        let mut value = vec![0u64; state.table.object_bytes().div_ceil(size_of::<u64>())];
        let bytes = state.table.object_bytes();
        let _turn = state.turn(id);
        // SAFETY: as many bytes as these words have, or fewer; any bytes are words.
        let copy = unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast(), bytes) };
        if !state.table.get(id, copy)? {
            return Err(none(id));
        }
        // SAFETY: the program's promise; the copy has so many bytes, and nobody else has it.
        inside(|| unsafe { change(copy.as_mut_ptr().cast(), bytes, context) });
        state.table.put(id, copy)?;
        Ok(0)
    })
}

/// Replaces object `id`. -1 with ENOENT: there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_put(
    table: *mut terrace_table,
    id: u64,
    object: *const c_void,
) -> c_int {
    call("terrace_put", -1, || {
        let state = get_for_change(table)?;
        // SAFETY: the program's promise.
        let value = unsafe { copied(object.cast::<u8>(), state.table.object_bytes(), "object")? };
        let _turn = state.turn(id);
        state.table.put(id, &value)?;
        Ok(0)
    })
}

/// Frees object `id`. -1 with ENOENT: there is none.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_remove(table: *mut terrace_table, id: u64) -> c_int {
    call("terrace_remove", -1, || {
        let state = get_for_change(table)?;
        let _turn = state.turn(id);
        state.table.remove(id)?;
        Ok(0)
    })
}

/// Says that objects will be wanted soon. Returns at once; it may be in vain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_prefetch(
    table: *const terrace_table,
    ids: *const u64,
    count: usize,
) -> c_int {
    call("terrace_prefetch", -1, || {
        let state = get(table)?;
        if count > 0 {
            // SAFETY: the program's promise. More would be in vain.
            let ids = unsafe { copied(ids, count.min(MANY_MAX), "ids")? };
            state.table.prefetch(&ids)?;
        }
        Ok(0)
    })
}

/// How many objects there are; UINT64_MAX when it fails.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_table_count(table: *const terrace_table) -> u64 {
    call("terrace_table_count", u64::MAX, || {
        Ok(get(table)?.table.len())
    })
}

/// Frees the table and its objects.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_table_destroy(table: *mut terrace_table) -> c_int {
    call("terrace_table_destroy", -1, || {
        state::destroy::<TableState>(Handle::from_pointer(table))?;
        Ok(0)
    })
}
