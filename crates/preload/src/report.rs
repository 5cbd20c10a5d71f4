//! The report of a run: at the end of the program, and when SIGUSR2 comes, if the program has no handler of its own for it.
//!
//! Promises: counts as they were kept, one line each; written with one call. Never: allocates from the program's malloc.

use crate::arena::ARENA;
use crate::runtime::{self, Pool, Runtime};
use crate::{cancel, descriptors, given, settings, small, streams, tls};
use std::ffi::OsString;
use std::fmt::Write;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

unsafe extern "C" {
    fn __cxa_at_quick_exit(call: extern "C" fn(), library: *mut libc::c_void) -> libc::c_int;
}

static TO: OnceLock<OsString> = OnceLock::new();
/// A copy of stderr: programs close their own before they end.
static STDERR: AtomicI32 = AtomicI32::new(-1);
/// Rung by the signal: composing a report takes locks, which a handler must not.
static BELL: AtomicI32 = AtomicI32::new(-1);
/// Stack of the thread that hears it.
const STACK_BYTES: usize = 256 << 10;
static DONE: AtomicBool = AtomicBool::new(false);
/// The process whose report it is.
static OF_PROCESS: AtomicU32 = AtomicU32::new(0);
/// The most DRAM that was ever told.
static PEAK_BYTES: AtomicU64 = AtomicU64::new(0);

/// Takes note of where the report goes: a file, `-` for stderr, nothing for nowhere. Of several processes that may be served all but the first do without until they have a pool: small ones keep
/// nothing of the program's open, and its signals as they are.
pub fn prepare(to: OsString) {
    OF_PROCESS.store(std::process::id(), Ordering::Release);
    // Said once.
    let _ = TO.set(to);
    // SAFETY: a plain function.
    unsafe { libc::atexit(at_exit) };
    // SAFETY: likewise, and for as long as this library is there.
    unsafe {
        __cxa_at_quick_exit(at_quick_exit, std::ptr::null_mut());
    }
    if !settings::is_another() {
        take_stderr_and_signal();
    }
}

fn take_stderr_and_signal() {
    let Some(to) = TO.get().filter(|to| !to.is_empty()) else {
        return;
    };
    if to.as_bytes() == b"-" && STDERR.load(Ordering::Relaxed) < 0 {
        // SAFETY: makes a descriptor of another.
        let copy = unsafe { libc::fcntl(2, libc::F_DUPFD_CLOEXEC, descriptors::number_min()) };
        terrace_vm::descriptors::list(copy);
        STDERR.store(copy, Ordering::Relaxed);
    }
    // SAFETY: the handler is installed only where the program's start left the default, and only writes.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGUSR2, std::ptr::null(), &mut before);
        if before.sa_sigaction == libc::SIG_DFL {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler();
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
        }
    }
}

/// What answers SIGUSR2: rings a bell, and takes nothing.
pub fn handler() -> usize {
    let handler: extern "C" fn(i32) = on_signal;
    handler as usize
}

extern "C" fn at_exit() {
    if crate::serve::children() > 0 {
        // What the program wrote is seen when it ends, not when the last that it forked does.
        streams::flush_all();
    }
    end();
}

/// Not stdio, which is not to be flushed then.
extern "C" fn at_quick_exit() {
    end();
}

extern "C" fn on_signal(_: i32) {
    let errno = crate::raw::errno();
    let bell = BELL.load(Ordering::Acquire);
    // SAFETY: eight bytes, as an eventfd wants them; before it is there, it is refused.
    unsafe { libc::write(bell, 1u64.to_ne_bytes().as_ptr().cast(), 8) };
    crate::raw::set_errno(errno);
}

/// The pool is open: from now on the signal is answered.
pub fn listen() {
    if TO.get().is_none_or(|to| to.is_empty()) {
        return;
    }
    // SAFETY: makes a descriptor.
    let bell = kept(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) });
    BELL.store(bell, Ordering::Release);
    let hear = move || {
        let mut rung = [0u8; 8];
        // SAFETY: room for what an eventfd says.
        while unsafe { libc::read(bell, rung.as_mut_ptr().cast(), 8) } == 8 {
            write("now");
        }
    };
    let thread = std::thread::Builder::new()
        .name("terrace-report".into())
        .stack_size(STACK_BYTES);
    if let Err(e) = thread.spawn(hear) {
        crate::raw::say(format_args!("SIGUSR2 will not be answered: {e}"));
    }
}

/// A descriptor made just now, at a number of ours.
fn kept(made: i32) -> i32 {
    match made {
        // SAFETY: made just now, for us.
        0.. => terrace_vm::descriptors::keep(unsafe { OwnedFd::from_raw_fd(made) }).into_raw_fd(),
        _ => made,
    }
}

/// The process ends: the last report, once. Not from within the runtime, which a signal handler that ends the process may have interrupted.
pub fn end() {
    let _whole = cancel::off();
    // A child of vfork ends in its parent's memory.
    let is_here = OF_PROCESS.load(Ordering::Acquire) == std::process::id();
    if is_here && !tls::is_inside() && !DONE.swap(true, Ordering::AcqRel) {
        crate::keeper::stay(answers_signal);
        write(AT_ITS_END);
    }
}

/// Whether SIGUSR2 is still this library's.
fn answers_signal() -> bool {
    // SAFETY: room for the answer.
    let action = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGUSR2, std::ptr::null(), &mut action);
        action.sa_sigaction
    };
    let handler: extern "C" fn(i32) = on_signal;
    action == handler as usize
}

/// This process has the pool.
pub fn here() {
    OF_PROCESS.store(std::process::id(), Ordering::Release);
    DONE.store(false, Ordering::Release);
    if settings::is_another() {
        take_stderr_and_signal();
    }
}

/// In the child of a fork: the report is the parent's, unless the child opens a pool of its own later.
pub fn not_here() {
    terrace_vm::descriptors::list(STDERR.load(Ordering::Relaxed));
    DONE.store(true, Ordering::Release);
    PEAK_BYTES.store(0, Ordering::Relaxed);
}

const AT_ITS_END: &str = "at its end";

fn write(when: &str) {
    let Some(to) = TO.get().filter(|to| !to.is_empty()) else {
        return;
    };
    let _inside = tls::enter();
    let is_another = settings::is_another();
    if is_another && (runtime::get().is_none() || to.as_bytes() == b"-" && when == AT_ITS_END) {
        // Of small programs there is nothing to say, and scripts read what others have to say on stderr.
        return;
    }
    let mut text = String::new();
    compose(&mut text, when);
    let written = match to.as_bytes() {
        b"-" => to_stderr(text.as_bytes()),
        _ if is_another => {
            let mut own = to.clone();
            own.push(format!(".{}", std::process::id()));
            std::fs::write(own, &text)
        }
        _ => std::fs::write(to, &text),
    };
    if let Err(e) = written {
        crate::raw::say(format_args!("the report cannot be written: {e}"));
    }
}

fn to_stderr(text: &[u8]) -> std::io::Result<()> {
    let stderr = STDERR.load(Ordering::Relaxed);
    // SAFETY: the bytes of the text.
    let said = unsafe { libc::write(stderr, text.as_ptr().cast(), text.len()) };
    match said {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn compose(text: &mut String, when: &str) {
    let process = std::process::id();
    let Some(runtime) = runtime::get() else {
        let _ = writeln!(
            text,
            "terrace run: process {process} {when}: nothing was large enough to be served"
        );
        return;
    };
    // Writing to a string does not fail.
    let _ = writeln!(text, "terrace run: process {process} {when}");
    figures(runtime, &mut |name, value| {
        let _ = writeln!(text, "{name:<28} {value}");
    });
}

/// All figures, by name, in their order.
pub fn figures(runtime: &Runtime, line: &mut dyn FnMut(&str, u64)) {
    let (malloc, maps) = (runtime.malloc.heap.stats(), runtime.maps.heap.stats());
    let memory = runtime.malloc.heap.memory_stats();
    line("served_malloc_bytes", malloc.page_bytes);
    line("served_mmap_bytes", maps.page_bytes);
    line("unserved_malloc_bytes", small::kept_bytes());
    line("process_dram_peak_bytes", peak_bytes());
    line("process_dram_bytes", status_bytes("VmRSS:"));
    line("page_table_bytes", status_bytes("VmPTE:"));
    line("runtime_bytes", ARENA.used_bytes() as u64);
    line("resident_pages", memory.resident_pages);
    let accessible = memory.fetched + memory.absent + memory.opened;
    line("faults", accessible.saturating_sub(memory.ahead));
    line("pages_ahead", memory.ahead);
    line("faults_first_touch", memory.absent);
    line("faults_by_writing", memory.opened);
    line("pages_fetched", memory.fetched);
    line("pages_evicted", memory.evicted);
    line("pages_stored", memory.stored);
    line("faults_failed", memory.failed_faults);
    line("fault_microseconds", memory.fault_ns / 1000);
    line("read_microseconds", memory.read_ns / 1000);
    line("evict_microseconds", memory.evict_ns / 1000);
    if let Pool::Home(home) = &runtime.pool {
        let stats = home.heap.store().stats();
        line("given_by_pages_bytes", given::OWN.bytes());
        line("given_to_children_bytes", given::CHILDREN.bytes());
        line("pages_same", home.heap.store().pages_same());
        line("dram_cap_bytes", stats.cap_bytes);
        line("dram_counted_bytes", stats.used_bytes);
        line("dram_pages_bytes", stats.page_bytes);
        line("dram_segments_bytes", stats.segment_bytes);
        line("dram_directory_bytes", stats.directory_bytes);
        line("dram_io_bytes", stats.io_bytes);
        line("dram_hits", stats.lanes.hits_dram);
        line("dram_misses", stats.lanes.misses);
        line("device_reads", stats.disk_reads);
        line("device_bytes_read", stats.disk_read_bytes);
        line("device_bytes_written", stats.device_write_bytes);
    }
}

/// What the kernel says may fall a little, since not all of its counts are told at all times; what was told here does not.
fn peak_bytes() -> u64 {
    let now = status_bytes("VmHWM:");
    PEAK_BYTES.fetch_max(now, Ordering::Relaxed).max(now)
}

/// A line of /proc/self/status that is in KiB.
pub fn status_bytes(name: &str) -> u64 {
    let _whole = cancel::off();
    bytes_of(
        &std::fs::read("/proc/self/status").unwrap_or_default(),
        name,
    )
}

/// The same of what stands there: the process's name in it may be no text.
pub fn bytes_of(status: &[u8], name: &str) -> u64 {
    let mut lines = status.split(|byte| *byte == b'\n');
    let rest = lines.find_map(|line| line.strip_prefix(name.as_bytes()));
    let text = rest.and_then(|rest| std::str::from_utf8(rest).ok());
    let kib = text.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// As _exit(2): what ends without running what it left for its end reports too.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn _exit(status: libc::c_int) -> ! {
    leave(status)
}

/// As _Exit(3).
#[allow(non_snake_case)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn _Exit(status: libc::c_int) -> ! {
    leave(status)
}

fn leave(status: libc::c_int) -> ! {
    end();
    loop {
        // SAFETY: ends the process.
        unsafe { crate::raw::system(libc::SYS_exit_group, [status.into(), 0, 0, 0, 0, 0]) };
    }
}
