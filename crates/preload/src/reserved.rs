//! Addresses that the runtime reserves: how many, and whether the process's limits leave room for them.
//!
//! Promises: what it says has room for the runtime, and gigabytes beside it for the program. Never: reserves, or changes a limit.

use crate::{arena, raw, runtime, settings};
use libc::{c_uint, rlimit};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use terrace_vm::heap::HEAP_MAX_BYTES;

/// Addresses for each byte that the SSD takes: what is reserved and never used costs none.
const ADDRESSES_PER_BYTE: u64 = 4;
/// Mappings have as many at least: programs reserve far more than they use (Java as much as its heap may ever become, a quarter of the machine's DRAM).
const MAPPED_BYTES_MIN: u64 = 64 << 30;

/// Addresses of the two heaps.
#[derive(Clone, Copy)]
pub struct Heaps {
    pub malloc_bytes: u64,
    pub maps_bytes: u64,
}

impl Heaps {
    /// The least over so much of the SSD.
    fn least(ssd_bytes: u64) -> Heaps {
        let bytes = (ssd_bytes * ADDRESSES_PER_BYTE).min(HEAP_MAX_BYTES);
        Heaps {
            malloc_bytes: bytes,
            maps_bytes: bytes,
        }
    }

    /// Over so much of the SSD; where the process's limits leave no room for what mappings should have, the least.
    pub fn of(ssd_bytes: u64) -> Heaps {
        let least = Heaps::least(ssd_bytes);
        let wide = Heaps {
            maps_bytes: least.maps_bytes.max(MAPPED_BYTES_MIN),
            ..least
        };
        let needed = wide.reserved_bytes() + room_bytes() + arena::RESERVED_BYTES as u64;
        match limit_bytes() < needed {
            true => least,
            false => wide,
        }
    }

    /// Addresses that are reserved for both.
    pub fn reserved_bytes(self) -> u64 {
        let aligned = |bytes: u64| bytes.next_multiple_of(terrace_vm::ADDRESSES_ALIGN_BYTES as u64);
        aligned(self.malloc_bytes) + aligned(self.maps_bytes)
    }
}

/// Beside what is reserved for the program's memory, twice the cap and this is left for the runtime and the program.
const ROOM_BYTES: u64 = 4 << 30;

fn room_bytes() -> u64 {
    ROOM_BYTES + 2 * settings::number(c"TERRACE_RUN_DRAM").unwrap_or(0)
}

/// Addresses that this process needs from now on at least, as the kernel counts them for RLIMIT_AS and RLIMIT_DATA.
pub fn addresses_bytes() -> u64 {
    let pool = match runtime::get() {
        Some(_) => 0,
        None => Heaps::least(settings::number(c"TERRACE_RUN_SSD").unwrap_or(0)).reserved_bytes(),
    };
    room_bytes() + pool
}

/// The lower of the process's limits of addresses.
fn limit_bytes() -> u64 {
    let limits = [libc::RLIMIT_AS, libc::RLIMIT_DATA].map(|resource| {
        let mut limit = rlimit {
            rlim_cur: libc::RLIM_INFINITY,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: room for the answer; where there is none, nothing is limited.
        unsafe { raw::prlimit(0, resource as c_uint, std::ptr::null(), &mut limit) };
        limit.rlim_cur
    });
    limits[0].min(limits[1])
}

/// A limit of addresses, if it leaves no room for the program's memory, and what is needed.
pub fn too_low_a_limit() -> Option<(u64, u64)> {
    let needed = addresses_bytes() + arena::RESERVED_BYTES as u64;
    let limit = limit_bytes();
    (limit < needed).then_some((limit, needed))
}

/// The words for that.
pub fn say_too_low((bytes, needed): (u64, u64)) {
    raw::say(format_args!(
        "a limit of {bytes} bytes of addresses (ulimit -v or -d) leaves no room: {needed} are needed, reserved more than used; lift it, --dram and a cgroup limit memory"
    ));
}

/// A reservation so long with an address is one of those that are tried at one address after the other.
const TRIED_BYTES: usize = 1 << 30;
/// So often it is served elsewhere.
const TRIES_MAX: u32 = 64;

/// Whether a program that reserves so many bytes at an address takes no other: Java's usual heaps take any in the end, that of ZGC (shared memory in three places, which is not served
/// anyway) tries thousands.
pub fn insists(bytes: usize) -> bool {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let before = match bytes >= TRIED_BYTES {
        true => TRIED.fetch_add(1, Ordering::Relaxed),
        false => return false,
    };
    if before == TRIES_MAX {
        raw::say(format_args!(
            "a reservation of {} GiB at an address, after {TRIES_MAX} others: this and what follows is where the program asks for it, and what is used of it is not served, and not under --dram",
            bytes >> 30
        ));
    }
    before >= TRIES_MAX
}

/// A mapping longer than mappings have addresses for: a reservation, of which most is never used; what is, nobody here sees.
#[cold]
pub fn say_too_long(bytes: usize, most_bytes: usize) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        raw::say(format_args!(
            "a mapping of {} GiB is more than the {} GiB that one may have here: what the program uses of it is not served, and not under --dram; \
             let it reserve less (MariaDB: --innodb-buffer-pool-size-max), or give a larger --ssd",
            bytes >> 30,
            most_bytes >> 30
        ));
    }
}
