//! Dispatched calls that make processes and threads, or turn this process into another program.
//!
//! Promises: a thread or child that is made with a stack of its own begins where the call was made, with the registers of the call; what a program is
//! started with is copied, since nobody brings pages in once it is. The calls of a thread are dispatched from its first on, whoever made it. Never: dispatches a child's calls, which the
//! kernel does not either.

use super::arguments::is_served;
use super::bounce::text_bytes;
use super::brought::touched;
use super::own;
use crate::{raw, tls};
use libc::{c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicI64, Ordering};

type Args = [c_long; 6];

/// What the new one pops before it goes on: registers, and where to.
const SAVED: [c_int; 13] = [
    libc::REG_R15,
    libc::REG_R14,
    libc::REG_R13,
    libc::REG_R12,
    libc::REG_RBP,
    libc::REG_RBX,
    libc::REG_R10,
    libc::REG_R9,
    libc::REG_R8,
    libc::REG_RDI,
    libc::REG_RSI,
    libc::REG_RDX,
    libc::REG_RIP,
];
/// And before them, what it calls first, if anything.
const SAVED_BYTES: usize = (SAVED.len() + 1) * 8;
/// The kernel's structure of clone3, as long as it is known.
const CLONE_ARGS_BYTES: usize = 128;
const CLONE_ARGS_STACK: usize = 5;
const CLONE_ARGS_STORAGE: usize = 7;
/// Where the C library's thread-local storage has what it mixes into pointers, in words.
const GUARD: usize = 6;
const CLONE_ARGS_STACK_BYTES: usize = 6;
/// Texts and their addresses that a program is started with, at most.
const TEXTS_BYTES_MAX: usize = 8 << 20;

// A call that may come back on another stack, where what `SAVED` names lies.
std::arch::global_asm!(
    ".globl terrace_preload_clone",
    ".hidden terrace_preload_clone",
    ".type terrace_preload_clone,@function",
    "terrace_preload_clone:",
    "mov rax, rdi",
    "mov r11, rsi",
    "mov rdi, [r11]",
    "mov rsi, [r11 + 8]",
    "mov rdx, [r11 + 16]",
    "mov r10, [r11 + 24]",
    "mov r8, [r11 + 32]",
    "mov r9, [r11 + 40]",
    "syscall",
    "test rax, rax",
    "jz 2f",
    "ret",
    "2:",
    // The stack for signals is its parent's, who may be on it.
    "lea rdi, [rip + 3f]",
    "xor esi, esi",
    "mov eax, 131",
    "syscall",
    "pop rax",
    "test rax, rax",
    "jz 4f",
    "mov rbx, rsp",
    "and rsp, -16",
    "call rax",
    "mov rsp, rbx",
    "4:",
    "xor eax, eax",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "ret",
    // A stack_t with SS_DISABLE.
    ".p2align 3",
    "3:",
    ".quad 0, 2, 0",
    ".size terrace_preload_clone,.-terrace_preload_clone",
);

/// As vfork(2), and as the C library's: its caller's return address stays in a register while the child has the stack. By an instruction of this library, so that it is not dispatched: from a
/// handler it would come back twice.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub extern "C" fn vfork() -> c_int {
    std::arch::naked_asm!(
        "pop rdi",
        "mov eax, {number}",
        "syscall",
        "push rdi",
        "cmp eax, -4095",
        "jae 2f",
        "ret",
        "2:",
        "mov edi, eax",
        "jmp {refused}",
        number = const libc::SYS_vfork,
        refused = sym refused,
    )
}

unsafe extern "C" {
    fn terrace_preload_clone(number: c_long, args: *const c_long) -> c_long;
}

extern "C" fn refused(said: c_int) -> c_int {
    raw::set_errno(-said);
    -1
}

/// What the C library mixes into pointers, as all threads of its making have it.
static MIXED: AtomicI64 = AtomicI64::new(0);

fn mixed() -> i64 {
    let mixed;
    // SAFETY: reads a word of what every thread has where fs points; one that has nothing there cannot run code of the C library's either.
    unsafe {
        std::arch::asm!("mov {}, fs:[{guard}]", out(reg) mixed, guard = const GUARD * 8, options(nostack, readonly, preserves_flags));
    }
    mixed
}

/// Notes, in a thread of the C library's making, how such threads are told.
pub fn note_storage() {
    MIXED.store(mixed(), Ordering::Relaxed);
}

/// Whether this thread's storage is of the C library's making; nothing of ours may be called in it otherwise.
pub fn has_storage() -> bool {
    mixed() == MIXED.load(Ordering::Relaxed)
}

/// What a thread begins with that has thread-local storage of its own, where `tls` has its words: the C library's own threads (thrd_create, timers, aio) come here, `pthread_create` is met
/// before (`threads`).
extern "C" fn begin_made() {
    let inside = tls::enter();
    super::begin_thread();
    drop(inside);
    tls::dispatch_now();
}

/// What the new one calls first, if its thread-local storage is of the C library's making: `tls` has its words there.
unsafe fn first_call(flags: c_long, storage: c_long) -> i64 {
    let whole = c_long::from(libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SETTLS);
    // SAFETY: the program's promise for what it gives the new one; what the C library makes begins with its own address, and has this thread's guard of pointers.
    let is_its = || unsafe {
        let own: *const c_long;
        std::arch::asm!("mov {}, fs:[0]", out(reg) own, options(nostack, readonly, preserves_flags));
        let storage = storage as *const c_long;
        !storage.is_null()
            && storage.read_unaligned() == storage as c_long
            && storage.add(GUARD).read_unaligned() == own.add(GUARD).read()
    };
    match flags & whole == whole && super::is_on() && is_its() {
        true => begin_made as extern "C" fn() as usize as i64,
        false => 0,
    }
}

/// Puts what the new one needs below the top of its stack: where its stack then is.
unsafe fn saved(top: c_long, flags: c_long, storage: c_long, registers: &[i64]) -> c_long {
    let at = (top as usize - SAVED_BYTES) as *mut i64;
    // SAFETY: the program's promise: a stack, of which nothing is used yet.
    unsafe {
        at.write_unaligned(first_call(flags, storage));
        for (nth, register) in SAVED.iter().enumerate() {
            at.add(nth + 1)
                .write_unaligned(registers[*register as usize]);
        }
    }
    at as c_long
}

/// clone: by the instruction of a program.
pub unsafe fn clone(mut args: Args, registers: &[i64]) -> c_long {
    let shares = args[0] & c_long::from(libc::CLONE_VM) != 0;
    // SAFETY: the program's promise.
    unsafe {
        match args[1] {
            // It would come back twice on this stack.
            0 if shares => -c_long::from(libc::ENOSYS),
            // The child has a copy of this stack.
            0 => raw::call(libc::SYS_clone, args),
            top => {
                args[1] = saved(top, args[0], args[4], registers);
                terrace_preload_clone(libc::SYS_clone, args.as_ptr())
            }
        }
    }
}

/// clone3, likewise.
pub unsafe fn clone3(mut args: Args, registers: &[i64]) -> c_long {
    let bytes = args[1] as usize;
    if !(64..=CLONE_ARGS_BYTES).contains(&bytes) || args[0] == 0 {
        // SAFETY: the program's promise.
        return unsafe { raw::call(libc::SYS_clone3, args) };
    }
    let mut wanted = [0 as c_long; CLONE_ARGS_BYTES / 8];
    // SAFETY: the program's promise: a structure of so many bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(args[0] as *const u8, wanted.as_mut_ptr().cast(), bytes);
        let shares = wanted[0] & c_long::from(libc::CLONE_VM) != 0;
        if wanted[CLONE_ARGS_STACK] == 0 {
            return match shares {
                true => -c_long::from(libc::ENOSYS),
                false => raw::call(libc::SYS_clone3, args),
            };
        }
        saved(
            wanted[CLONE_ARGS_STACK] + wanted[CLONE_ARGS_STACK_BYTES],
            wanted[0],
            wanted[CLONE_ARGS_STORAGE],
            registers,
        );
        wanted[CLONE_ARGS_STACK_BYTES] -= SAVED_BYTES as c_long;
        args[0] = wanted.as_mut_ptr() as c_long;
        terrace_preload_clone(libc::SYS_clone3, args.as_ptr())
    }
}

type Texts = *const *const c_char;

/// What a program is started with, where no page of it can be absent: in the thread's own place for it, or one made for this.
pub struct Copied {
    at: *mut u8,
    used: usize,
    whose: Whose,
}

#[derive(PartialEq, Eq)]
enum Whose {
    Nobodys,
    /// The thread's, which is given back.
    Threads,
    /// The thread's, which is not: who has it turns into the program, and what it copies is used before anything else can be.
    Lent,
    Own,
}

impl Copied {
    /// None yet.
    pub fn new() -> Copied {
        Copied {
            at: std::ptr::null_mut(),
            used: 0,
            whose: Whose::Nobodys,
        }
    }

    /// The same for a call that does not come back, mostly; the child of a vfork would take it along, and leave it to its parent.
    pub fn for_exec() -> Copied {
        let mut copied = Copied::new();
        if let Some(thread) = own().filter(|thread| !thread.texts_taken) {
            if thread.texts.is_null() {
                thread.texts = raw::map_zeros(TEXTS_BYTES_MAX);
            }
            (copied.at, copied.whose) = (thread.texts, Whose::Lent);
        }
        copied
    }

    fn make(&mut self) {
        *self = Copied::for_exec();
        match self.whose {
            Whose::Lent => {
                self.whose = Whose::Threads;
                if let Some(thread) = own() {
                    thread.texts_taken = true;
                }
            }
            _ => (self.at, self.whose) = (raw::map_zeros(TEXTS_BYTES_MAX), Whose::Own),
        }
    }

    /// Room for so many bytes, until it ends.
    pub fn take(&mut self, bytes: usize) -> Option<*mut u8> {
        if self.at.is_null() {
            self.make();
        }
        let from = self.used.next_multiple_of(8);
        if self.at.is_null() || from + bytes > TEXTS_BYTES_MAX {
            return None;
        }
        self.used = from + bytes;
        // SAFETY: within the mapping.
        Some(unsafe { self.at.add(from) })
    }

    /// A text that is not served: itself, or its copy. None: no room.
    ///
    /// # Safety
    /// Null, or a text.
    pub unsafe fn text(&mut self, text: *const c_char) -> Option<*const c_char> {
        if !is_served(text as c_long) {
            return Some(text);
        }
        // SAFETY: the caller's promise; the kernel takes longer arguments than names of files.
        let mut bytes = unsafe { text_bytes(text.cast()) };
        // SAFETY: as above.
        while unsafe { text.add(bytes - 1).read() } != 0 {
            // SAFETY: as above.
            bytes += unsafe { text_bytes(text.add(bytes).cast()) };
        }
        let to = self.take(bytes)?;
        // SAFETY: as above, and room for it.
        unsafe { to.copy_from_nonoverlapping(text.cast(), bytes) };
        Some(to.cast_const().cast())
    }

    /// A list of texts, likewise.
    ///
    /// # Safety
    /// Null, or texts up to a null.
    pub unsafe fn texts(&mut self, list: Texts) -> Option<Texts> {
        if list.is_null() {
            return Some(list);
        }
        // SAFETY: the caller's promise, all along.
        unsafe {
            let mut count = 0;
            let mut any = is_served(list as c_long);
            while !(*list.add(count)).is_null() {
                any |= is_served(*list.add(count) as c_long);
                count += 1;
            }
            if !any {
                return Some(list);
            }
            let to: *mut *const c_char =
                self.take((count + 1) * size_of::<*const c_char>())?.cast();
            for nth in 0..count {
                to.add(nth).write(self.text(*list.add(nth))?);
            }
            to.add(count).write(std::ptr::null());
            Some(to.cast_const())
        }
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        // SAFETY: a mapping of ours, of which nobody has anything any more.
        unsafe {
            match self.whose {
                Whose::Nobodys | Whose::Lent => {}
                Whose::Threads => {
                    raw::madvise(self.at.cast(), TEXTS_BYTES_MAX, libc::MADV_DONTNEED);
                    if let Some(thread) = own() {
                        thread.texts_taken = false;
                    }
                }
                Whose::Own => {
                    if !self.at.is_null() {
                        raw::munmap(self.at.cast::<c_void>(), TEXTS_BYTES_MAX);
                    }
                }
            }
        }
    }
}

/// execve and execveat.
pub unsafe fn exec(number: c_long, args: Args) -> c_long {
    let first = usize::from(number == libc::SYS_execveat);
    let mut copied = Copied::for_exec();
    // The first half may have what a function in front has copied, and calls this with.
    copied.used = TEXTS_BYTES_MAX / 2;
    let mut now = args;
    // SAFETY: the program's promise, all along.
    unsafe {
        let path = copied.text(args[first] as *const c_char);
        let texts = [1, 2].map(|n| copied.texts(args[first + n] as Texts));
        let (Some(path), [Some(list), Some(environment)]) = (path, texts) else {
            return touched(number, args);
        };
        now[first] = path as c_long;
        (now[first + 1], now[first + 2]) = (list as c_long, environment as c_long);
        raw::call(number, now)
    }
}
