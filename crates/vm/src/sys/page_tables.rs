//! Page tables of empty blocks given back: by advice, where the kernel takes an empty table with the pages (Linux 6.14, on some
//! processors), else by mapping the block's addresses anew.
//!
//! A new mapping takes faults only when it is registered, and before that a touch would read zeros. So it begins without any access,
//! and gets it last: who touches it in between gets SIGSEGV, waits until the block is released (`signal`), and tries again. The kernel's
//! own accesses cannot wait so; they fail with EFAULT, as everywhere when faults are taken in the faulting thread. Handler threads promise
//! better, so with them tables stay; and so they do where a program that does not know of it may have protected some of its pages, which a new mapping would open.
//!
//! Promises: when it is done, the addresses are one mapping with their neighbours again. Never: takes a block that anybody but the caller
//! can put a page in.

use super::{Lock, Range, Uffd, Unmapper};
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap,
};
use std::sync::OnceLock;

/// What one page table covers.
const TABLE_COVERS_BYTES: usize = 2 << 20;
/// Tables that are filled to see whether the kernel takes them back.
const PROBE_TABLES: usize = 64;
/// Tries, since other threads' tables are in the same count.
const PROBES_MAX: usize = 3;

/// How tables of empty blocks go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Going {
    /// With the pages, when all of a block are dropped.
    ByAdvice,
    /// When the block's addresses are mapped anew.
    ByMapping,
    /// They stay.
    Not,
}

/// See the head of the file.
pub(crate) struct PageTables {
    going: Going,
    /// Held while a block's addresses take no faults.
    remapping: Lock<()>,
}

impl PageTables {
    /// As this kernel does it, or as one that does not take tables by advice; addresses are mapped anew only if they `may_be`.
    pub fn new(by_advice: bool, may_be: bool) -> PageTables {
        static ADVISED: OnceLock<bool> = OnceLock::new();
        let advised = by_advice && *ADVISED.get_or_init(goes_by_advice);
        let going = match (advised, may_be) {
            (true, _) => Going::ByAdvice,
            (false, true) => Going::ByMapping,
            (false, false) => Going::Not,
        };
        PageTables {
            going,
            remapping: Lock::new(()),
        }
    }

    pub fn going(&self) -> Going {
        self.going
    }

    /// Runs `call`, which works on registered addresses that may have others between them: again, while none are being mapped, if it
    /// met such.
    pub fn past_remapping(&self, call: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
        match call() {
            Err(Errno::NOENT) if self.going == Going::ByMapping => {
                let _none = self.remapping.lock();
                call()
            }
            ended => ended,
        }
    }

    /// Maps a block's addresses anew, which drops its pages and its table. False: the process has no mapping left for it, and nothing was
    /// changed.
    ///
    /// # Safety
    /// What lies there is the caller's to drop, and nobody puts a page there before this returns.
    pub unsafe fn remap(&self, block: Range, uffd: &Uffd) -> Result<bool, Errno> {
        let Range { start, len } = block;
        let address = start as *mut std::ffi::c_void;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let _held = self.remapping.lock();
        // SAFETY: the caller's promise; nobody can touch the new mapping.
        match unsafe { mmap_anonymous(address, len, ProtFlags::empty(), flags) } {
            Ok(_) => {}
            Err(Errno::NOMEM) => return Ok(false),
            Err(errno) => return Err(errno),
        }
        for advice in [Advice::LinuxNoHugepage, Advice::LinuxDontFork] {
            // SAFETY: mapped above; the same as of all addresses of a memory.
            unsafe { madvise(address, len, advice) }?;
        }
        uffd.register_raw(start, len)?;
        // SAFETY: mapped above, and from here on a touch is a fault of a region.
        unsafe { mprotect(address, len, MprotectFlags::READ | MprotectFlags::WRITE) }?;
        Ok(true)
    }
}

/// Whether dropping all pages of blocks gives their tables back here: tried.
fn goes_by_advice() -> bool {
    (0..PROBES_MAX).any(|_| probe().unwrap_or(false))
}

fn probe() -> Option<bool> {
    let len = (PROBE_TABLES + 1) * TABLE_COVERS_BYTES;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let unmapper = Unmapper::new().ok()?;
    // SAFETY: a fresh anonymous mapping at an address the kernel chooses.
    let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, flags) }.ok()?;
    let first = (mapped as usize).next_multiple_of(TABLE_COVERS_BYTES);
    let blocks = (0..PROBE_TABLES).map(|at| Range {
        start: first + at * TABLE_COVERS_BYTES,
        len: TABLE_COVERS_BYTES,
    });
    let blocks: Vec<Range> = blocks.collect();
    // SAFETY: our own mapping, which nothing refers to.
    let counts = unsafe {
        let _ = madvise(mapped, len, Advice::LinuxNoHugepage);
        for block in &blocks {
            (block.start as *mut u8).write_volatile(1);
        }
        let before = table_kib();
        let dropped = unmapper.unmap(&blocks);
        let counts = before.zip(table_kib()).filter(|_| dropped.is_ok());
        let _ = munmap(mapped, len);
        counts
    };
    let (before, after) = counts?;
    Some(before >= after + PROBE_TABLES as u64 * 4 / 2)
}

/// Page tables of this process.
fn table_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmPTE"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
