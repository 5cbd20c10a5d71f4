//! System calls without the C library's functions around them, since those of this name lead back into this library.
//!
//! Promises: the kernel's answer, and errno as the C library would set it; not by the C library's syscall, which leads back as well. Never: looks at what is asked.

use libc::{c_int, c_long, c_void, off_t, size_t, ssize_t};

/// As mmap(2).
pub unsafe fn mmap(
    at: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let args = [
        at as c_long,
        len as c_long,
        prot.into(),
        flags.into(),
        fd.into(),
        offset,
    ];
    // SAFETY: the caller's promise.
    unsafe { system(libc::SYS_mmap, args) as *mut c_void }
}

/// Any system call, as the kernel answers it: an error is its number below zero.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn call(number: c_long, args: [c_long; 6]) -> c_long {
    let said: c_long;
    // SAFETY: the kernel's convention: it keeps all registers but these; what the call does is the caller's promise.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => said,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    said
}

/// The kernel's answer as the C library's functions have it.
#[inline]
pub fn answered(said: c_long) -> c_long {
    match said {
        -4095..=-1 => {
            set_errno(-said as c_int);
            -1
        }
        said => said,
    }
}

/// Any system call, as syscall(2).
#[cfg(target_arch = "x86_64")]
pub unsafe fn system(number: c_long, args: [c_long; 6]) -> c_long {
    // SAFETY: the caller's promise.
    answered(unsafe { call(number, args) })
}

/// Any system call, as syscall(2).
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn system(number: c_long, args: [c_long; 6]) -> c_long {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(number, a, b, c, d, e, f) }
}

/// As prlimit(2).
pub unsafe fn prlimit(
    pid: libc::pid_t,
    resource: libc::c_uint,
    to: *const libc::rlimit,
    was: *mut libc::rlimit,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        system(
            libc::SYS_prlimit64,
            [
                pid.into(),
                resource.into(),
                to as c_long,
                was as c_long,
                0,
                0,
            ],
        ) as c_int
    }
}

/// As close(2).
pub unsafe fn close(fd: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { system(libc::SYS_close, [fd.into(), 0, 0, 0, 0, 0]) as c_int }
}

/// As send(2).
pub unsafe fn send(fd: c_int, at: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    let args = [fd.into(), at as c_long, len as c_long, flags.into(), 0, 0];
    // SAFETY: the caller's promise.
    unsafe { system(libc::SYS_sendto, args) as ssize_t }
}

/// As recv(2).
pub unsafe fn recv(fd: c_int, at: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    let args = [fd.into(), at as c_long, len as c_long, flags.into(), 0, 0];
    // SAFETY: the caller's promise.
    unsafe { system(libc::SYS_recvfrom, args) as ssize_t }
}

/// As sendmsg(2).
pub unsafe fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> ssize_t {
    let args = [fd.into(), message as c_long, flags.into(), 0, 0, 0];
    // SAFETY: the caller's promise.
    unsafe { system(libc::SYS_sendmsg, args) as ssize_t }
}

/// As recvmsg(2).
pub unsafe fn recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> ssize_t {
    let args = [fd.into(), message as c_long, flags.into(), 0, 0, 0];
    // SAFETY: the caller's promise.
    unsafe { system(libc::SYS_recvmsg, args) as ssize_t }
}

/// As munmap(2).
pub unsafe fn munmap(at: *mut c_void, len: size_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { system(libc::SYS_munmap, [at as c_long, len as c_long, 0, 0, 0, 0]) as c_int }
}

/// As mremap(2).
pub unsafe fn mremap(
    at: *mut c_void,
    old: size_t,
    new: size_t,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let args = [
        at as c_long,
        old as c_long,
        new as c_long,
        flags.into(),
        to as c_long,
        0,
    ];
    // SAFETY: the caller's promise.
    unsafe { system(libc::SYS_mremap, args) as *mut c_void }
}

/// As madvise(2).
pub unsafe fn madvise(at: *mut c_void, len: size_t, advice: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        system(
            libc::SYS_madvise,
            [at as c_long, len as c_long, advice.into(), 0, 0, 0],
        ) as c_int
    }
}

/// As mprotect(2).
pub unsafe fn mprotect(at: *mut c_void, len: size_t, prot: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        system(
            libc::SYS_mprotect,
            [at as c_long, len as c_long, prot.into(), 0, 0, 0],
        ) as c_int
    }
}

/// Fresh zeros at an address the kernel chooses; NULL if there is none.
pub fn map_zeros(len: usize) -> *mut u8 {
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    );
    // SAFETY: a new mapping overlaps nothing.
    let mapped = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    match mapped == libc::MAP_FAILED {
        true => std::ptr::null_mut(),
        false => mapped.cast(),
    }
}

/// Sets errno.
pub fn set_errno(errno: c_int) {
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// Reads errno.
pub fn errno() -> c_int {
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() }
}

/// Holds back signals of this thread, but for those that its own instructions raise; answers what was held back before.
pub fn block_signals() -> libc::sigset_t {
    // SAFETY: sets are integers, filled before they are used; only this thread's mask changes.
    unsafe {
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, &terrace_vm::deferred(), &mut before);
        before
    }
}

/// Holds back all signals of this thread, those that its own instructions raise among them: for some instructions that raise none. Answers the mask before.
#[cfg(target_arch = "x86_64")]
pub fn block_all() -> u64 {
    let (all, mut before) = (u64::MAX, 0u64);
    let args = [
        libc::SIG_SETMASK.into(),
        (&raw const all) as c_long,
        (&raw mut before) as c_long,
        8,
        0,
        0,
    ];
    // SAFETY: the kernel's masks, on this stack.
    unsafe { call(libc::SYS_rt_sigprocmask, args) };
    before
}

/// A mask of signals.
#[cfg(target_arch = "x86_64")]
pub type Mask = u64;
/// See above.
#[cfg(not(target_arch = "x86_64"))]
pub type Mask = libc::sigset_t;

/// The program's signals that can wait. Not those that an instruction raises, and the two of the C library's, which work as they are.
#[cfg(target_arch = "x86_64")]
pub fn held_signals() -> Mask {
    let signal = |n: c_int| 1u64 << (n - 1);
    !terrace_vm::RAISED
        .into_iter()
        .fold(0b11 << 31, |all, n| all | signal(n))
}

/// As [`block_signals`], past everything that is in front of it.
#[cfg(target_arch = "x86_64")]
pub fn hold_signals() -> Mask {
    let (held, mut before) = (held_signals(), 0u64);
    let args = [
        libc::SIG_BLOCK.into(),
        (&raw const held) as c_long,
        (&raw mut before) as c_long,
        8,
        0,
        0,
    ];
    // SAFETY: the kernel's masks, on this stack.
    unsafe { call(libc::SYS_rt_sigprocmask, args) };
    before
}

/// See above.
#[cfg(not(target_arch = "x86_64"))]
pub fn hold_signals() -> Mask {
    block_signals()
}

/// Ends that.
#[cfg(target_arch = "x86_64")]
pub fn let_signals(before: &Mask) {
    set_mask(*before);
}

/// Ends that.
#[cfg(not(target_arch = "x86_64"))]
pub fn let_signals(before: &Mask) {
    restore_signals(before);
}

/// Sets the mask of this thread, past everything that is in front of it.
#[cfg(target_arch = "x86_64")]
pub fn set_mask(mask: u64) {
    let args = [
        libc::SIG_SETMASK.into(),
        (&raw const mask) as c_long,
        0,
        8,
        0,
        0,
    ];
    // SAFETY: the kernel's mask, on this stack.
    unsafe { call(libc::SYS_rt_sigprocmask, args) };
}

/// Ends that.
pub fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: a set that `block_signals` answered.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}

/// Ends the process without running what it left for its end.
pub fn exit(status: c_int) -> ! {
    loop {
        // SAFETY: ends the process.
        unsafe { system(libc::SYS_exit_group, [status.into(), 0, 0, 0, 0, 0]) };
    }
}

/// Ends the process with a line on stderr: something that must not be went wrong, and going on would lose the program's data.
pub fn die(what: std::fmt::Arguments<'_>) -> ! {
    say(what);
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}

/// A line on stderr, without the heap.
pub fn say(what: std::fmt::Arguments<'_>) {
    struct Line([u8; 512], usize);
    impl std::fmt::Write for Line {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            let room = self.0.len() - 1 - self.1;
            let text = &text.as_bytes()[..text.len().min(room)];
            self.0[self.1..][..text.len()].copy_from_slice(text);
            self.1 += text.len();
            Ok(())
        }
    }
    let mut line = Line([0; 512], 0);
    // What does not fit is cut.
    let _ = std::fmt::Write::write_fmt(&mut line, format_args!("terrace run: {what}"));
    line.0[line.1] = b'\n';
    let args = [
        2,
        line.0.as_ptr() as c_long,
        (line.1 + 1) as c_long,
        0,
        0,
        0,
    ];
    // SAFETY: the bytes of the line; a stderr that is closed refuses them.
    unsafe { system(libc::SYS_write, args) };
}
