//! What `terrace top --pid` asks: the report's figures as JSON, to whoever connects to a socket that has the process's number in its name.
//!
//! The name is abstract, so nothing of it is left behind in a directory; an answer needs no question, so nothing is ever received. Promises: only
//! the process's own user and root are answered; one at a time, at most 100 in a second; what an asker does not take is not waited for. Never: allocates from the program's malloc,
//! or stops a thread of the program for longer than the report does.

use crate::door::Door;
use crate::runtime::{self, Pool};
use crate::{raw, report};
use libc::c_int;
use std::fmt::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Where it listens.
static DOOR: Door = Door::none();
/// Stack of the thread.
const STACK_BYTES: usize = 256 << 10;
/// Askers that may wait.
const WAITING_MAX: c_int = 8;
/// Between two answers: a flood of askers costs the program little.
const PAUSE_US: libc::useconds_t = 10_000;
/// Room for an answer.
const ANSWER_BYTES: usize = 4 << 10;

/// From now on askers are answered; where that cannot be, it is said, and the program runs as ever.
pub fn listen() {
    let opened = open();
    let begun = opened.and_then(|()| {
        let thread = std::thread::Builder::new().name("terrace-top".into());
        thread.stack_size(STACK_BYTES).spawn(answer_all).map(drop)
    });
    if let Err(e) = begun {
        close();
        raw::say(format_args!("terrace top will not be answered: {e}"));
    }
}

/// In the child of a fork: the name is the parent's alone.
pub fn close() {
    DOOR.close();
}

fn open() -> std::io::Result<()> {
    DOOR.open(&format!("terrace-run-{}", std::process::id()))?;
    // SAFETY: a socket that was made just now.
    match unsafe { libc::listen(DOOR.fd(), WAITING_MAX) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Until somebody asks. A call that waits to accept holds the lowest number that is free for as long, which would be missed by the program.
fn await_asker(door: c_int) {
    let mut asked = libc::pollfd {
        fd: door,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: room for the answer; an error is one of accept's too.
    unsafe { libc::poll(&mut asked, 1, -1) };
}

fn answer_all() {
    while DOOR.is_ours() {
        let door = DOOR.fd();
        await_asker(door);
        let (none, len) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: accepts from our own socket, and wants no address.
        let asker = unsafe { libc::accept4(door, none, len, libc::SOCK_CLOEXEC) };
        if asker >= 0 {
            // SAFETY: made just now, for us.
            let asker = terrace_vm::descriptors::keep(unsafe { OwnedFd::from_raw_fd(asker) });
            let fd = asker.as_raw_fd();
            if may_ask(fd) {
                answer(fd);
            }
            // A fork meanwhile has a copy; the asker is to see the end all the same.
            // SAFETY: ours, until here.
            unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
        }
        // After an error too: descriptors may have run out for a while.
        // SAFETY: sleeps.
        unsafe { libc::usleep(PAUSE_US) };
    }
}

fn may_ask(asker: c_int) -> bool {
    // SAFETY: room for credentials, of that length.
    unsafe {
        let mut who: libc::ucred = std::mem::zeroed();
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let to = (&raw mut who).cast();
        let said = libc::getsockopt(asker, libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut len);
        said == 0 && (who.uid == 0 || who.uid == libc::geteuid())
    }
}

fn answer(asker: c_int) {
    let Some(runtime) = runtime::get() else {
        return;
    };
    let text = compose(runtime);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // A new connection has room for all of it; an asker that is gone already gets none.
    // SAFETY: the bytes of the text.
    unsafe { libc::send(asker, text.as_ptr().cast(), text.len(), flags) };
}

/// `program` has what the report says, by its names; `pool` what the server's INFO says of its tiers, by those.
fn compose(runtime: &runtime::Runtime) -> String {
    let mut text = String::with_capacity(ANSWER_BYTES);
    let (version, process) = (env!("CARGO_PKG_VERSION"), std::process::id());
    // Writing to a string does not fail.
    let _ = write!(
        text,
        r#"{{"terrace_version":"{version}","process":{process},"#
    );
    object(&mut text, "program", |figure| {
        report::figures(runtime, figure)
    });
    text.push(',');
    object(&mut text, "pool", |figure| {
        if let Pool::Home(home) = &runtime.pool {
            pool(home, figure);
        }
    });
    text.push('}');
    text
}

fn object(text: &mut String, name: &str, all: impl FnOnce(&mut dyn FnMut(&str, u64))) {
    let _ = write!(text, r#""{name}":{{"#);
    let mut comma = "";
    all(&mut |name, value| {
        let _ = write!(text, r#"{comma}"{name}":{value}"#);
        comma = ",";
    });
    text.push('}');
}

/// Counters are read one after the other, so differences stop at 0.
fn pool(home: &crate::serve::Home, figure: &mut dyn FnMut(&str, u64)) {
    let s = home.heap.store().stats();
    let lanes = &s.lanes;
    for (name, value) in [
        ("cap_bytes", s.cap_bytes),
        ("segment_bytes", s.segment_bytes),
        ("directory_bytes", s.directory_bytes),
        ("io_bytes", s.io_bytes),
        ("connection_bytes", s.connection_bytes),
        ("page_bytes", s.page_bytes),
        ("dram_live_bytes", lanes.dram_live_bytes),
        ("dram_bytes", lanes.dram_bytes),
        ("middle_bytes", lanes.middle_bytes),
        ("ssd_live_bytes", lanes.ssd_live_bytes),
        ("ssd_usable_bytes", lanes.ssd_usable_bytes),
        ("hits_dram", lanes.hits_dram),
        ("hits_middle", lanes.hits_middle),
        ("hits_ssd", lanes.misses),
        ("disk_reads", s.disk_reads),
        ("disk_writes", s.disk_writes),
        ("disk_flushes", s.disk_flushes),
        ("read_entry_bytes", lanes.device_read_bytes),
        ("read_cleaner_bytes", lanes.cleaner_read_bytes),
        (
            "read_other_bytes",
            s.disk_read_bytes
                .saturating_sub(lanes.device_read_bytes + lanes.cleaner_read_bytes),
        ),
        ("written_update_bytes", lanes.staged_bytes),
        ("written_cleaner_bytes", lanes.moved_bytes),
        (
            "written_frame_bytes",
            lanes
                .written_log_bytes
                .saturating_sub(lanes.staged_bytes + lanes.moved_bytes),
        ),
        ("written_image_bytes", lanes.written_image_bytes),
        (
            "written_other_bytes",
            s.device_write_bytes
                .saturating_sub(lanes.written_log_bytes + lanes.written_image_bytes),
        ),
    ] {
        figure(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_json() {
        let mut text = String::new();
        object(&mut text, "none", |_| {});
        object(&mut text, "two", |figure| {
            figure("a", 1);
            figure("b", u64::MAX);
        });
        assert_eq!(text, r#""none":{}"two":{"a":1,"b":18446744073709551615}"#);
    }
}
