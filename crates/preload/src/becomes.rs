//! A served program turns itself into another one (exec), or starts one where those are served, too: if that one goes without Terrace, a line says so, and why.
//!
//! Promises: the call is passed on as it is, whatever was found; nothing is allocated or locked, since it may come from a signal handler or the child
//! of a fork. Never: refuses, or speaks for a child that is not served in any case. On other processors than x86_64 `execl` and its kin are not seen.

use crate::{dispatch, environment, loaded, raw};
use libc::{c_char, c_int, c_long, c_void};
use std::ffi::CStr;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

const CLASS_64: u8 = 2;
const ORDER: u8 = if cfg!(target_endian = "little") { 1 } else { 2 };
const HEAD_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
const SEGMENT_INTERPRETER: u32 = 3;
const SEGMENT_NOTE: u32 = 4;
/// Notes are a few hundred bytes.
const NOTES_BYTES: usize = 1024;
/// Programs have a dozen segments.
const SEGMENTS_MAX: u64 = 128;

/// The process that is served; 0: not this one.
static SERVED: AtomicI32 = AtomicI32::new(0);
/// So are programs that it starts.
static WITH_CHILDREN: AtomicBool = AtomicBool::new(false);

type Args = *const *const c_char;
static EXECVE: Next = Next::new();
static EXECVEAT: Next = Next::new();
static FEXECVE: Next = Next::new();
static EXECVPE: Next = Next::new();

/// A function of the C library, looked up before the program begins: a child of a fork may not look anything up.
struct Next(AtomicPtr<c_void>);

impl Next {
    const fn new() -> Next {
        Next(AtomicPtr::new(null_mut()))
    }

    fn find(&self, name: &CStr) {
        // SAFETY: a name that ends in a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        self.0.store(found, Ordering::Release);
    }

    fn get(&self, name: &CStr) -> Option<*mut c_void> {
        if self.0.load(Ordering::Acquire).is_null() {
            // Called by the constructor of a library that came before this one.
            self.find(name);
        }
        let found = self.0.load(Ordering::Acquire);
        (!found.is_null()).then_some(found)
    }
}

/// Called once, by the loader, in every process.
pub fn prepare() {
    EXECVE.find(c"execve");
    EXECVEAT.find(c"execveat");
    FEXECVE.find(c"fexecve");
    EXECVPE.find(c"execvpe");
}

/// This process is served, and perhaps the programs that it starts.
pub fn is_served(with_children: bool) {
    WITH_CHILDREN.store(with_children, Ordering::Release);
    // SAFETY: always answers.
    SERVED.store(unsafe { libc::getpid() }, Ordering::Release);
}

fn speaks() -> bool {
    WITH_CHILDREN.load(Ordering::Acquire) || is_this()
}

/// Whether it is this process that is served, and not one that was forked from it.
fn is_this() -> bool {
    let served = SERVED.load(Ordering::Acquire);
    // SAFETY: always answers.
    served != 0 && served == unsafe { libc::getpid() }
}

/// An environment: names and values, up to a null.
///
/// # Safety
/// As execve(2) has it.
unsafe fn has(environment: Args, name: &[u8], within: &[u8]) -> bool {
    let mut at = environment;
    // SAFETY: the caller's promise; it ends in a null.
    while !at.is_null() && !unsafe { *at }.is_null() {
        // SAFETY: as above: a string.
        let entry = unsafe { CStr::from_ptr(*at) }.to_bytes();
        if let Some(value) = entry.strip_prefix(name) {
            let mut windows = value.windows(within.len().max(1));
            return within.is_empty() || windows.any(|part| part == within);
        }
        // SAFETY: as above.
        at = unsafe { at.add(1) };
    }
    false
}

/// Why an open file, if it is a program, cannot be served.
fn why_not(file: c_int) -> Option<&'static str> {
    let mut head = [0; HEAD_BYTES];
    if !read_at(file, &mut head, 0) || !head.starts_with(b"\x7fELF") {
        // A script, or nothing that runs.
        return None;
    }
    if head[4] != CLASS_64 || head[5] != ORDER {
        return Some("it is for another kind of machine");
    }
    // SAFETY: filled by the call; a number that is open.
    let (is_there, status) = unsafe {
        let mut status = std::mem::zeroed::<libc::stat>();
        (libc::fstat(file, &mut status) == 0, status)
    };
    // SAFETY: always answers.
    let own = unsafe { libc::getuid() };
    if is_there && status.st_mode & libc::S_ISUID != 0 && status.st_uid != own {
        return Some("it is a setuid program");
    }
    let start = u64::from_ne_bytes(head[32..40].try_into().ok()?);
    let size = u64::from(u16::from_ne_bytes(head[54..56].try_into().ok()?));
    let count = u64::from(u16::from_ne_bytes(head[56..58].try_into().ok()?));
    let mut is_static = true;
    for segment in 0..count.min(SEGMENTS_MAX) {
        let mut kind = [0; SEGMENT_BYTES];
        if !read_at(file, &mut kind, start.saturating_add(segment * size)) {
            return None;
        }
        match u32::from_ne_bytes(kind[..4].try_into().ok()?) {
            SEGMENT_INTERPRETER => is_static = false,
            SEGMENT_NOTE if has_go_note(file, &kind) => {
                return Some("it is a Go program, whose runtime asks the kernel for memory itself");
            }
            _ => {}
        }
    }
    is_static.then_some("it is statically linked, so no library can be put in front of its malloc")
}

fn has_go_note(file: c_int, segment: &[u8; SEGMENT_BYTES]) -> bool {
    let word = |at: usize| {
        segment[at..at + 8]
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte))
    };
    let mut notes = [0; NOTES_BYTES];
    let len = (word(32) as usize).min(NOTES_BYTES);
    read_at(file, &mut notes[..len], word(8)) && loaded::are_go(&notes[..len])
}

fn read_at(file: c_int, into: &mut [u8], at: u64) -> bool {
    let (to, len) = (into.as_mut_ptr() as c_long, into.len() as c_long);
    let args = [file.into(), to, len, at as c_long, 0, 0];
    // SAFETY: writes into `into`, whose length it is told.
    unsafe { raw::system(libc::SYS_pread64, args) == len }
}

/// Says it, if the file that is to be run goes without Terrace with this environment.
///
/// # Safety
/// `environment` as execve(2) has it.
unsafe fn say(name: &[u8], file: c_int, environment: Args) {
    // SAFETY: the caller's promise.
    let is_asked_for = unsafe {
        has(environment, b"TERRACE_RUN_PROCESS=", b"")
            && has(environment, b"LD_PRELOAD=", b"libterrace_preload")
    };
    let why = match is_asked_for {
        true => why_not(file),
        // Who starts a program so means it.
        false if !is_this() => None,
        false => Some("its environment does not ask for it (LD_PRELOAD, TERRACE_RUN_PROCESS)"),
    };
    if let Some(why) = why {
        raw::say(format_args!(
            "{} {}runs without Terrace: {why}",
            name.escape_ascii(),
            if is_this() {
                "takes this program's place and "
            } else {
                ""
            }
        ));
    }
}

/// The same for a file by its name, from a directory. It is not said of what cannot be run.
///
/// # Safety
/// Strings and an environment as execveat(2) has them.
unsafe fn say_of(dir: c_int, path: *const c_char, environment: Args) -> bool {
    let errno = raw::errno();
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let args = [dir.into(), path as c_long, flags.into(), 0, 0, 0];
    // SAFETY: the caller's promise.
    let file = unsafe {
        match raw::system(
            libc::SYS_faccessat,
            [dir.into(), path as c_long, libc::X_OK.into(), 0, 0, 0],
        ) {
            0 => raw::system(libc::SYS_openat, args) as c_int,
            _ => -1,
        }
    };
    if file >= 0 {
        // SAFETY: as above; a file that was opened here.
        unsafe {
            say(CStr::from_ptr(path).to_bytes(), file, environment);
            raw::close(file);
        }
    }
    raw::set_errno(errno);
    file >= 0
}

/// The same for a name that is looked for in PATH.
///
/// # Safety
/// As execvpe(3) has it.
unsafe fn say_of_named(name: *const c_char, environment: Args) {
    if name.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
    // SAFETY: a name that ends in a zero; the answer, if any, is a string that does.
    let dirs = unsafe { libc::getenv(c"PATH".as_ptr()) };
    if bytes.contains(&b'/') || dirs.is_null() {
        // SAFETY: as above.
        unsafe { say_of(libc::AT_FDCWD, name, environment) };
        return;
    }
    // SAFETY: as above.
    let dirs = unsafe { CStr::from_ptr(dirs) }.to_bytes();
    for dir in dirs.split(|byte| *byte == b':') {
        let mut path = [0; libc::PATH_MAX as usize];
        let len = dir.len() + 1 + bytes.len();
        if dir.is_empty() || len >= path.len() {
            continue;
        }
        path[..dir.len()].copy_from_slice(dir);
        path[dir.len()] = b'/';
        path[dir.len() + 1..len].copy_from_slice(bytes);
        // SAFETY: ends in a zero, since it is shorter than its place; the rest as above.
        if unsafe { say_of(libc::AT_FDCWD, path.as_ptr().cast(), environment) } {
            return;
        }
    }
}

/// The same, where a program is started and would be served.
///
/// # Safety
/// As posix_spawnp(3) has them.
pub unsafe fn say_of_started(name: *const c_char, environment: Args) {
    if WITH_CHILDREN.load(Ordering::Acquire) {
        // SAFETY: the caller's promise.
        unsafe { say_of_named(name, environment) };
    }
}

/// What is answered where the C library has no such function.
fn is_not_there() -> c_int {
    raw::set_errno(libc::ENOSYS);
    -1
}

/// Where system calls are dispatched, the child of a vfork makes its own: nobody brings pages in for them, so what it hands over is copied before.
unsafe fn with_copies(
    path: *const c_char,
    args: Args,
    environment: Args,
    call: impl Fn(*const c_char, Args, Args) -> c_int,
) -> c_int {
    if !dispatch::is_on() {
        return call(path, args, environment);
    }
    let mut copied = dispatch::Copied::for_exec();
    // SAFETY: the program's promise.
    unsafe {
        let texts = dispatch::while_faults_come(|| {
            (
                copied.text(path),
                copied.texts(args),
                copied.texts(environment),
            )
        });
        match texts {
            (Some(path), Some(args), Some(environment)) => call(path, args, environment),
            _ => {
                raw::set_errno(libc::E2BIG);
                -1
            }
        }
    }
}

/// As execve(2).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execve(path: *const c_char, args: Args, environment: Args) -> c_int {
    // SAFETY: the program's promise; a function of this name has this type.
    unsafe {
        if speaks() {
            say_of(libc::AT_FDCWD, path, environment);
        }
        let Some(next) = EXECVE.get(c"execve") else {
            return is_not_there();
        };
        let next: unsafe extern "C" fn(*const c_char, Args, Args) -> c_int =
            std::mem::transmute(next);
        with_copies(path, args, environment, |path, args, environment| {
            next(path, args, environment)
        })
    }
}

/// As execv(3).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execv(path: *const c_char, args: Args) -> c_int {
    // SAFETY: the program's promise.
    unsafe { execve(path, args, environment::get()) }
}

/// As execveat(2).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execveat(
    dir: c_int,
    path: *const c_char,
    args: Args,
    environment: Args,
    flags: c_int,
) -> c_int {
    // SAFETY: the program's promise; a function of this name has this type.
    unsafe {
        if speaks() && flags & libc::AT_EMPTY_PATH != 0 && !path.is_null() && *path == 0 {
            say(b"an open file", dir, environment);
        } else if speaks() {
            say_of(dir, path, environment);
        }
        let Some(next) = EXECVEAT.get(c"execveat") else {
            return is_not_there();
        };
        let next: unsafe extern "C" fn(c_int, *const c_char, Args, Args, c_int) -> c_int =
            std::mem::transmute(next);
        with_copies(path, args, environment, |path, args, environment| {
            next(dir, path, args, environment, flags)
        })
    }
}

/// As fexecve(3).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fexecve(file: c_int, args: Args, environment: Args) -> c_int {
    // SAFETY: the program's promise; a function of this name has this type.
    unsafe {
        if speaks() && !environment.is_null() {
            say(b"an open file", file, environment);
        }
        let Some(next) = FEXECVE.get(c"fexecve") else {
            return is_not_there();
        };
        let next: unsafe extern "C" fn(c_int, Args, Args) -> c_int = std::mem::transmute(next);
        with_copies(null(), args, environment, |_, args, environment| {
            next(file, args, environment)
        })
    }
}

/// As execvp(3).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execvp(name: *const c_char, args: Args) -> c_int {
    // SAFETY: the program's promise.
    unsafe { execvpe(name, args, environment::get()) }
}

/// As execvpe(3).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn execvpe(name: *const c_char, args: Args, environment: Args) -> c_int {
    // SAFETY: the program's promise; a function of this name has this type.
    unsafe {
        if speaks() {
            say_of_named(name, environment);
        }
        let Some(next) = EXECVPE.get(c"execvpe") else {
            return is_not_there();
        };
        let next: unsafe extern "C" fn(*const c_char, Args, Args) -> c_int =
            std::mem::transmute(next);
        with_copies(name, args, environment, |name, args, environment| {
            next(name, args, environment)
        })
    }
}

/// Those whose arguments stand one by one: by the convention of calls the first six come in registers and the rest on the stack, where those in registers are put below them, so that they
/// are a list. On an error, which is all that they answer, the stack is as it was.
#[cfg(target_arch = "x86_64")]
mod one_by_one {
    use super::{Args, environment, execve, execvpe};
    use libc::{c_char, c_int};
    use std::arch::naked_asm;

    macro_rules! listed {
        ($($(#[$doc:meta])* $name:ident = $with:ident;)*) => {
            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// As there, with more arguments than can be said here.
                #[cfg_attr(not(test), unsafe(no_mangle))]
                #[unsafe(naked)]
                pub unsafe extern "C" fn $name(path: *const c_char, first: *const c_char) -> c_int {
                    naked_asm!(
                        "pop rax",
                        "push r9",
                        "push r8",
                        "push rcx",
                        "push rdx",
                        "push rsi",
                        "mov rsi, rsp",
                        "push rax",
                        "call {}",
                        "pop rcx",
                        "add rsp, 40",
                        "push rcx",
                        "ret",
                        sym $with,
                    )
                }
            )*
        };
    }

    listed! {
        /// As execl(3).
        execl = with_path;
        /// As execlp(3).
        execlp = with_name;
        /// As execle(3).
        execle = with_environment;
    }

    unsafe extern "C" fn with_path(path: *const c_char, args: Args) -> c_int {
        // SAFETY: the program's promise.
        unsafe { execve(path, args, environment::get()) }
    }

    unsafe extern "C" fn with_name(name: *const c_char, args: Args) -> c_int {
        // SAFETY: the program's promise.
        unsafe { execvpe(name, args, environment::get()) }
    }

    unsafe extern "C" fn with_environment(path: *const c_char, args: Args) -> c_int {
        // SAFETY: the program's promise: the list ends in a null, behind which the environment is named.
        unsafe {
            let mut end = args;
            while !(*end).is_null() {
                end = end.add(1);
            }
            execve(path, args, end.add(1).cast::<Args>().read())
        }
    }
}
