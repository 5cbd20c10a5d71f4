//! Which way a dispatched call goes: most are copied by what the table says of their memory (`bounce`), some need more than that.
//!
//! Promises: the answer is the kernel's, or a refusal with a line that says why. Never: lets a call through that would take faults' signals or system calls from the program's threads.

use super::arguments::{CALL_BYTES_MAX, error, is_served, is_too_long};
use super::bounce::{Frame, SMALL_BYTES, Small, copy, flat, read, write};
use super::brought::{TRIES_MAX, bring_in, touched};
use super::files::{Next, drops, next_piece};
use super::memory::{Bytes, Piece, Way};
use super::named::{Named, addressed, option};
use super::positions::{self, What};
use super::{altstack, in_place, many, memory, process, signals, vectors};
use crate::{raw, sandbox};
use libc::c_long;
use std::sync::atomic::{AtomicBool, Ordering};

type Args = [c_long; 6];

/// See sendmsg(2): where it cannot be had, that is told by ENOBUFS.
const ZEROCOPY: c_long = libc::MSG_ZEROCOPY as c_long;

/// Any call of the program, as the kernel would answer it. In line, so that a function in front of the C library's has the way of its own call only.
///
/// # Safety
/// The program's own promises for it.
#[inline(always)]
pub unsafe fn call(number: c_long, args: Args) -> c_long {
    // SAFETY: the caller's promise, all along.
    unsafe {
        match number {
            libc::SYS_rt_sigaction => signals::action(args),
            libc::SYS_rt_sigprocmask => signals::procmask(args),
            libc::SYS_sigaltstack => altstack::set(args),
            libc::SYS_rt_sigsuspend => masked(number, args, 0),
            libc::SYS_ppoll => masked(number, args, 3),
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => masked(number, args, 4),
            libc::SYS_pselect6 => masked_set(args),
            libc::SYS_execve | libc::SYS_execveat => process::exec(number, args),
            libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => vectors::read(number, args),
            libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => {
                vectors::write(number, args)
            }
            libc::SYS_sendmsg => vectors::send(args),
            libc::SYS_recvmsg => vectors::receive(args),
            libc::SYS_sendmmsg => many::send_many(args),
            libc::SYS_recvmmsg => many::receive_many(args),
            libc::SYS_process_vm_readv => vectors::of_process(number, args, true),
            libc::SYS_process_vm_writev => vectors::of_process(number, args, false),
            libc::SYS_io_uring_setup | libc::SYS_io_setup => by_kernel(number, args),
            libc::SYS_seccomp if !sandbox::may_filter(args[0], args[1]) => error(libc::EPERM),
            libc::SYS_prctl
                if args[0] == c_long::from(libc::PR_SET_SECCOMP)
                    && !sandbox::may_filter_this_thread() =>
            {
                error(libc::EPERM)
            }
            // It is ours.
            libc::SYS_prctl if args[0] == super::PR_SET_SYSCALL_USER_DISPATCH => {
                error(libc::EINVAL)
            }
            libc::SYS_close => in_place::changing(args[0], || raw::call(number, args)),
            libc::SYS_close_range => {
                let numbers =
                    || in_place::change(args[0] as u32 as c_long, args[1] as u32 as c_long);
                numbers();
                let said = raw::call(number, args);
                numbers();
                said
            }
            libc::SYS_dup2 | libc::SYS_dup3 => {
                in_place::changing(args[1], || raw::call(number, args))
            }
            libc::SYS_fcntl if args[1] as i32 == libc::F_SETFL => {
                let waits = || args[2] & c_long::from(libc::O_NONBLOCK) == 0;
                in_place::turning(args[0], || raw::call(number, args), waits)
            }
            libc::SYS_ioctl if BY_KERNEL.contains(&(args[1] as u32)) => {
                left_to_kernel();
                raw::call(number, args)
            }
            libc::SYS_ioctl if args[1] as u64 == libc::FIONBIO => {
                // The kernel has just read it.
                let waits = || (args[2] as *const i32).read_unaligned() == 0;
                in_place::turning(args[0], || served(number, args), waits)
            }
            _ => match args.iter().any(|arg| is_served(*arg)) {
                true => served(number, args),
                false => raw::call(number, args),
            },
        }
    }
}

/// A call of which an argument may be served memory.
#[inline(always)]
unsafe fn served(number: c_long, args: Args) -> c_long {
    // SAFETY: the caller's promise.
    unsafe {
        match number {
            libc::SYS_read => match in_place::receive(number, args) {
                Some(said) => said,
                None => read_copied(args),
            },
            libc::SYS_pread64 => read(number, args, 1, Some(3), goes_on_reading),
            libc::SYS_getrandom => read(number, args, 0, None, |_| Next::Same),
            libc::SYS_recvfrom => receive_from(args),
            libc::SYS_accept
            | libc::SYS_accept4
            | libc::SYS_getsockname
            | libc::SYS_getpeername => addressed(number, args),
            libc::SYS_getsockopt => option(args),
            libc::SYS_write => match in_place::send(number, args) {
                Some(said) => said,
                None => write_copied(args),
            },
            libc::SYS_pwrite64 => write(number, args, 1, Some(3)),
            // The kernel would go on with what is used again.
            libc::SYS_sendto if args[3] & ZEROCOPY != 0 => error(libc::ENOBUFS),
            libc::SYS_sendto => send_to(args),
            libc::SYS_futex => futex(args),
            libc::SYS_fcntl => fcntl(args),
            libc::SYS_prctl => prctl(args),
            // Its number does not say that it takes memory.
            libc::SYS_ioctl if memory::of_ioctl(args[1]).is_none() => {
                touched(libc::SYS_ioctl, args)
            }
            // What the kernel keeps of these is an address, or only names a range of addresses.
            libc::SYS_munmap
            | libc::SYS_mprotect
            | libc::SYS_madvise
            | libc::SYS_mmap
            | libc::SYS_set_robust_list
            | libc::SYS_set_tid_address
            | libc::SYS_brk => raw::call(number, args),
            _ => match memory::of_call(number) {
                Some(pieces) => flat(number, args, pieces),
                None => touched(number, args),
            },
        }
    }
}

/// What of a read or a write is done at most. One of more than there are addresses for is the kernel's to refuse.
fn bytes(args: Args) -> usize {
    let bytes = args[2] as usize;
    match is_too_long(bytes) {
        true => bytes,
        false => bytes.min(CALL_BYTES_MAX),
    }
}

/// Apart from what is made in place, as are all that have a frame of pages.
#[inline(never)]
unsafe fn read_copied(args: Args) -> c_long {
    // SAFETY: the program's promise.
    unsafe {
        let at_offset = |at| {
            let now = [args[0], args[1], bytes(args) as c_long, at, 0, 0];
            read(libc::SYS_pread64, now, 1, Some(3), |_| Next::Same)
        };
        positions::claimed(args[0], bytes(args), What::Reads, at_offset)
            .unwrap_or_else(|| read(libc::SYS_read, args, 1, None, goes_on_reading))
    }
}

#[inline(never)]
unsafe fn write_copied(args: Args) -> c_long {
    // SAFETY: the program's promise.
    unsafe {
        let at_offset = |at| {
            let now = [args[0], args[1], bytes(args) as c_long, at, 0, 0];
            write(libc::SYS_pwrite64, now, 1, Some(3))
        };
        positions::claimed(args[0], bytes(args), What::Writes, at_offset)
            .unwrap_or_else(|| write(libc::SYS_write, args, 1, None))
    }
}

/// A call with a mask of signals at one of its arguments.
#[inline(never)]
unsafe fn masked(number: c_long, mut args: Args, at: usize) -> c_long {
    // SAFETY: the program's promise.
    unsafe {
        let mask = signals::mask(args[at]);
        if args[at] != 0 {
            args[at] = (&raw const mask) as c_long;
        }
        match args.iter().any(|arg| is_served(*arg)) {
            true => served(number, args),
            false => raw::call(number, args),
        }
    }
}

/// KVM_CREATE_VM and VHOST_SET_OWNER: what a guest has, and what the kernel's own threads move, is met where no fault of the program's thread comes.
const BY_KERNEL: [u32; 2] = [0xae01, 0xaf01];

/// Faults are left to threads, where there is no memory yet; else it is said that these will not work.
fn left_to_kernel() {
    static SAID: AtomicBool = AtomicBool::new(false);
    if super::is_on() && !super::give_up() && !SAID.swap(true, Ordering::Relaxed) {
        raw::say(format_args!(
            "KVM and vhost meet pages that are not in DRAM, and fail, while faults are taken in the program's threads; --faults thread has them"
        ));
    }
}

/// Calls by which devices and threads of the kernel come to have memory, which would meet absent pages there: possible as long as faults can be left to threads.
unsafe fn by_kernel(number: c_long, args: Args) -> c_long {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !super::is_on() || super::give_up() {
        // SAFETY: the program's promise.
        return unsafe { raw::call(number, args) };
    }
    if !SAID.swap(true, Ordering::Relaxed) {
        raw::say(format_args!(
            "io_uring and io_setup are refused with ENOSYS while faults are taken in the program's threads; --faults thread has them"
        ));
    }
    error(libc::ENOSYS)
}

/// pselect6, whose mask is behind a pointer more.
#[inline(never)]
unsafe fn masked_set(mut args: Args) -> c_long {
    // SAFETY: the program's promise.
    unsafe {
        let mut set = [0; 2];
        let mut mask = 0;
        if args[5] != 0 {
            set = (args[5] as *const [c_long; 2]).read_unaligned();
            mask = signals::mask(set[0]);
            if set[0] != 0 {
                set[0] = (&raw const mask) as c_long;
            }
            args[5] = (&raw const set) as c_long;
        }
        let said = match args.iter().any(|arg| is_served(*arg)) {
            true => served(libc::SYS_pselect6, args),
            false => raw::call(libc::SYS_pselect6, args),
        };
        // Used until here.
        std::hint::black_box((&set, &mask));
        said
    }
}

/// recvfrom: its bytes, and whose they are.
unsafe fn receive_from(args: Args) -> c_long {
    // SAFETY: the program's promise.
    unsafe {
        // With MSG_TRUNC there need not be as much memory as it is asked for.
        let all_there = args[3] as i32 & libc::MSG_TRUNC == 0;
        if args[4] == 0
            && all_there
            && let Some(said) = in_place::receive(libc::SYS_recvfrom, args)
        {
            return said;
        }
        receive_from_copied(args)
    }
}

#[inline(never)]
unsafe fn receive_from_copied(args: Args) -> c_long {
    let mut small = Small::new();
    let mut frame = Frame::new(&mut small);
    let mut now = args;
    // SAFETY: the program's promise.
    unsafe {
        let Some(sender) = Named::address(&mut frame, &mut now, 4, 5) else {
            return touched(libc::SYS_recvfrom, args);
        };
        let goes_on = |args: &Args| vectors::next_received(args[0], args[3] as i32);
        let said = match is_served(args[1]) {
            true if drops(args[0], args[3] as i32) => {
                now[1] = 0;
                raw::call(libc::SYS_recvfrom, now)
            }
            true => read(libc::SYS_recvfrom, now, 1, None, goes_on),
            false => raw::call(libc::SYS_recvfrom, now),
        };
        sender.put_back(said);
        said
    }
}

/// sendto: its bytes, and whom they are for.
unsafe fn send_to(args: Args) -> c_long {
    // SAFETY: the program's promise.
    unsafe {
        if args[4] == 0
            && let Some(said) = in_place::send(libc::SYS_sendto, args)
        {
            return said;
        }
        send_to_copied(args)
    }
}

#[inline(never)]
unsafe fn send_to_copied(args: Args) -> c_long {
    let mut small = Small::new();
    let mut frame = Frame::new(&mut small);
    let mut now = args;
    // SAFETY: the program's promise.
    unsafe {
        if is_served(args[4]) {
            let bytes = ((args[5] as i32).max(0) as usize).min(SMALL_BYTES / 4);
            let Some(to) = frame.take(bytes) else {
                return touched(libc::SYS_sendto, args);
            };
            copy(to, args[4] as *const u8, bytes);
            now[4] = to as c_long;
        }
        match is_served(args[1]) {
            true => write(libc::SYS_sendto, now, 1, None),
            false => raw::call(libc::SYS_sendto, now),
        }
    }
}

/// futex: the kernel looks at the word at the call's beginning only, where it is; times are copied.
unsafe fn futex(mut args: Args) -> c_long {
    const WAITS: [c_long; 5] = [0, 6, 9, 11, 13];
    const HAVE_TWO: [c_long; 5] = [3, 4, 5, 11, 12];
    let mut time = [0 as c_long; 2];
    // SAFETY: the program's promise.
    unsafe {
        if WAITS.contains(&(args[1] & 0x7f)) && is_served(args[3]) {
            time = (args[3] as *const [c_long; 2]).read_unaligned();
            args[3] = (&raw const time) as c_long;
        }
        // What is in a register that a call does not take is anything.
        let second = match HAVE_TWO.contains(&(args[1] & 0x7f)) {
            true => args[4],
            false => 0,
        };
        let mut said = raw::call(libc::SYS_futex, args);
        for _ in 0..TRIES_MAX {
            if said != error(libc::EFAULT) {
                break;
            }
            for word in [args[0], second].into_iter().filter(|at| is_served(*at)) {
                bring_in(word as usize, 1);
            }
            said = raw::call(libc::SYS_futex, args);
        }
        std::hint::black_box(&time);
        said
    }
}

/// fcntl, as far as its argument is memory.
unsafe fn fcntl(args: Args) -> c_long {
    const LOCKS: [i32; 6] = [
        libc::F_GETLK,
        libc::F_SETLK,
        libc::F_SETLKW,
        libc::F_OFD_GETLK,
        libc::F_OFD_SETLK,
        libc::F_OFD_SETLKW,
    ];
    let pieces = [Piece {
        arg: 2,
        way: Way::Both,
        bytes: Bytes::Fixed(size_of::<libc::flock>() as u32),
    }];
    // SAFETY: the program's promise.
    unsafe {
        match LOCKS.contains(&(args[1] as i32)) {
            true => flat(libc::SYS_fcntl, args, &pieces),
            false => touched(libc::SYS_fcntl, args),
        }
    }
}

/// prctl: names of threads; what else it takes is tried.
unsafe fn prctl(args: Args) -> c_long {
    let piece = |way, bytes| Piece { arg: 1, way, bytes };
    // SAFETY: the program's promise.
    unsafe {
        match args[0] as i32 {
            libc::PR_SET_NAME => flat(libc::SYS_prctl, args, &[piece(Way::In, Bytes::Text)]),
            libc::PR_GET_NAME => flat(libc::SYS_prctl, args, &[piece(Way::Out, Bytes::Fixed(16))]),
            _ => touched(libc::SYS_prctl, args),
        }
    }
}

fn goes_on_reading(args: &Args) -> Next {
    next_piece(args[0])
}
