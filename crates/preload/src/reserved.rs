//! Addresses that the runtime reserves: how many, and whether the process's limits leave room for them.
//!
//! Promises: what it says has room for the runtime, and gigabytes beside it for the program. Never: reserves, or changes a limit.

use crate::{arena, raw, runtime, settings};
use libc::{c_uint, rlimit};
use terrace_vm::heap::HEAP_MAX_BYTES;

/// Addresses for each byte that the SSD takes: what is reserved and never used costs none.
const ADDRESSES_PER_BYTE: u64 = 4;

/// Addresses of one of the two heaps over so much of the SSD.
pub fn heap_bytes(ssd_bytes: u64) -> u64 {
    (ssd_bytes * ADDRESSES_PER_BYTE).min(HEAP_MAX_BYTES)
}

/// Addresses that are reserved for both.
pub fn reserved_bytes(ssd_bytes: u64) -> u64 {
    2 * heap_bytes(ssd_bytes).next_multiple_of(terrace_vm::ADDRESSES_ALIGN_BYTES as u64)
}

/// Beside what is reserved for the program's memory, twice the cap and this is left for the runtime and the program.
const ROOM_BYTES: u64 = 4 << 30;

/// Addresses that this process needs from now on, as the kernel counts them for RLIMIT_AS and RLIMIT_DATA.
pub fn addresses_bytes() -> u64 {
    let room = ROOM_BYTES + 2 * settings::number(c"TERRACE_RUN_DRAM").unwrap_or(0);
    let pool = match runtime::get() {
        Some(_) => 0,
        None => reserved_bytes(settings::number(c"TERRACE_RUN_SSD").unwrap_or(0)),
    };
    room + pool
}

/// A limit of addresses, if it leaves no room for the program's memory, and what is needed.
pub fn too_low_a_limit() -> Option<(u64, u64)> {
    let needed = addresses_bytes() + arena::RESERVED_BYTES as u64;
    let limits = [libc::RLIMIT_AS, libc::RLIMIT_DATA].map(|resource| {
        let mut limit = rlimit {
            rlim_cur: libc::RLIM_INFINITY,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: room for the answer; where there is none, nothing is limited.
        unsafe { raw::prlimit(0, resource as c_uint, std::ptr::null(), &mut limit) };
        limit.rlim_cur
    });
    let least = limits[0].min(limits[1]);
    (least < needed).then_some((least, needed))
}

/// The words for that.
pub fn say_too_low((bytes, needed): (u64, u64)) {
    raw::say(format_args!(
        "a limit of {bytes} bytes of addresses (ulimit -v or -d) leaves no room: {needed} are needed, reserved more than used; lift it, --dram and a cgroup limit memory"
    ));
}
