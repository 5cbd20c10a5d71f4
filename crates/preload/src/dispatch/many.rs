//! sendmmsg and recvmmsg: several messages in a call, made one after the other.
//!
//! Promises: as `vectors`, of which each message is one; what ends such a call between two messages in the kernel ends it here. Never: begins with a message before the one in front of it is done.

use super::arguments::{error, is_nowhere, is_served};
use super::vectors::{PARTS_MAX, bytes_of, message, receive, send};
use crate::raw;
use libc::{c_long, c_uint, mmsghdr, timespec};

type Args = [c_long; 6];

const SECOND_NANOS: i64 = 1_000_000_000;

unsafe fn any_served(at: c_long, count: c_long) -> bool {
    let count = (count as c_uint as usize).min(PARTS_MAX);
    is_served(at)
        || (0..count).any(|n| {
            // SAFETY: the program's promise.
            unsafe {
                let theirs = (at as *const mmsghdr).add(n);
                message((&raw const (*theirs).msg_hdr) as c_long)
                    .is_some_and(|message| message.names_served(message.parts().unwrap_or(&[])))
            }
        })
}

/// sendmmsg, one after the other.
pub unsafe fn send_many(args: Args) -> c_long {
    // SAFETY: the program's promise, all along.
    unsafe {
        if is_nowhere(args[1]) || !any_served(args[1], args[2]) {
            return raw::call(libc::SYS_sendmmsg, args);
        }
        many(args, |at, _| {
            let said = send([args[0], at, args[3], 0, 0, 0]);
            let parts = message(at).and_then(|message| message.parts());
            (
                said,
                said >= 0 && said as usize >= bytes_of(parts.unwrap_or(&[])),
            )
        })
    }
}

/// recvmmsg, likewise; as in the kernel, its time is looked at after each message, and what is left of it is told.
pub unsafe fn receive_many(args: Args) -> c_long {
    // SAFETY: the program's promise, all along.
    unsafe {
        let any = !is_nowhere(args[1]) && any_served(args[1], args[2]);
        // An address where no time can be is the kernel's to refuse.
        let refused = args[4] != 0 && is_nowhere(args[4]);
        if refused || !any && !is_served(args[4]) {
            return raw::call(libc::SYS_recvmmsg, args);
        }
        if args[4] == 0 {
            return receive_in_turn(args, |_| true);
        }
        let theirs = args[4] as *mut timespec;
        let mut time = theirs.read_unaligned();
        let said = match any {
            true => receive_within(args, &mut time),
            false => {
                let mut now = args;
                now[4] = (&raw mut time) as c_long;
                raw::call(libc::SYS_recvmmsg, now)
            }
        };
        if said > 0 {
            theirs.write_unaligned(time);
        }
        said
    }
}

/// As long as there is time, of which it leaves the rest.
unsafe fn receive_within(args: Args, time: &mut timespec) -> c_long {
    if time.tv_sec < 0 || !(0..SECOND_NANOS).contains(&time.tv_nsec) {
        return error(libc::EINVAL);
    }
    let nanos = |time: &timespec| {
        i128::from(time.tv_sec) * i128::from(SECOND_NANOS) + i128::from(time.tv_nsec)
    };
    let end = nanos(&now()) + nanos(time);
    let has_time = |_| {
        let left = (end - nanos(&now())).max(0);
        time.tv_sec = (left / i128::from(SECOND_NANOS)) as i64;
        time.tv_nsec = (left % i128::from(SECOND_NANOS)) as i64;
        left > 0
    };
    // SAFETY: the program's promise.
    unsafe { receive_in_turn(args, has_time) }
}

/// The kernel's clock for times of waiting.
fn now() -> timespec {
    let mut now = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let args = [
        c_long::from(libc::CLOCK_MONOTONIC),
        (&raw mut now) as c_long,
        0,
        0,
        0,
        0,
    ];
    // SAFETY: room for the answer.
    unsafe { raw::call(libc::SYS_clock_gettime, args) };
    now
}

/// As long as `goes_on` says so, which is asked after each.
unsafe fn receive_in_turn(args: Args, mut goes_on: impl FnMut(usize) -> bool) -> c_long {
    let only_first = args[3] & c_long::from(libc::MSG_WAITFORONE) != 0;
    let flags = args[3] & !c_long::from(libc::MSG_WAITFORONE);
    // SAFETY: the program's promise, all along.
    unsafe {
        many(args, |at, nth| {
            let now = match only_first && nth > 0 {
                true => flags | c_long::from(libc::MSG_DONTWAIT),
                false => flags,
            };
            let said = receive([args[0], at, now, 0, 0, 0]);
            (said, said >= 0 && goes_on(nth))
        })
    }
}

/// One message after the other, as long as each goes well and, by what `one` says, another may follow: after one of which a socket took a part the rest of it is next.
///
/// # Safety
/// The program's promises for the call.
unsafe fn many(args: Args, mut one: impl FnMut(c_long, usize) -> (c_long, bool)) -> c_long {
    let count = (args[2] as c_uint as usize).min(PARTS_MAX);
    for nth in 0..count {
        // SAFETY: the program's promise: so many messages are there.
        let (at, header) = unsafe {
            let at = (args[1] as *mut mmsghdr).add(nth);
            (at, &raw mut (*at).msg_hdr)
        };
        let (said, goes_on) = one(header as c_long, nth);
        if said < 0 {
            return if nth > 0 { nth as c_long } else { said };
        }
        // SAFETY: as above.
        unsafe { (&raw mut (*at).msg_len).write_unaligned(said as c_uint) };
        if !goes_on {
            return nth as c_long + 1;
        }
    }
    count as c_long
}
