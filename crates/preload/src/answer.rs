//! What `terrace top --pid` asks: the report's figures as JSON, to whoever connects to a socket that has the process's number in its name.
//!
//! The name is abstract, so nothing of it is left behind in a directory; an answer needs no question, so nothing is ever received. Promises: only
//! the process's own user and root are answered; one at a time, at most 100 in a second; what an asker does not take is not waited for; a
//! descriptor that the program closed, and may have for something of its own by now, is not touched. Never: allocates from the program's malloc,
//! or stops a thread of the program for longer than the report does.

use crate::runtime::{self, Pool};
use crate::{descriptors, raw, report};
use libc::c_int;
use std::fmt::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Where it listens, and which file that was: descriptors' numbers are used again.
static DOOR: AtomicI32 = AtomicI32::new(-1);
static DOOR_INODE: AtomicU64 = AtomicU64::new(0);
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
    if is_ours() {
        let door = DOOR.load(Ordering::Acquire);
        terrace_vm::descriptors::unlist(door);
        // SAFETY: ours, as was just seen, and nobody else in this process uses it.
        unsafe { raw::close(door) };
    }
    DOOR.store(-1, Ordering::Release);
}

fn open() -> std::io::Result<()> {
    let failed = std::io::Error::last_os_error;
    // SAFETY: makes descriptors; each is closed or kept.
    unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let made = libc::socket(libc::AF_UNIX, kind, 0);
        if made < 0 {
            return Err(failed());
        }
        // Where programs do not look, if the limit allows that.
        let door = match libc::fcntl(made, libc::F_DUPFD_CLOEXEC, descriptors::number_min()) {
            -1 => made,
            high => {
                libc::close(made);
                high
            }
        };
        terrace_vm::descriptors::list(door);
        DOOR.store(door, Ordering::Release);
        DOOR_INODE.store(inode(door).unwrap_or(0), Ordering::Release);
        let (name, len) = name();
        if libc::bind(door, (&raw const name).cast(), len) != 0
            || libc::listen(door, WAITING_MAX) != 0
        {
            return Err(failed());
        }
    }
    Ok(())
}

/// `terrace-run-PID`, in no directory: the first byte of an abstract name is zero.
fn name() -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: integers; all zeros is a value.
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    name.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let text = format!("terrace-run-{}", std::process::id());
    for (to, byte) in name.sun_path[1..].iter_mut().zip(text.bytes()) {
        *to = byte as libc::c_char;
    }
    let head = std::mem::offset_of!(libc::sockaddr_un, sun_path);
    (name, (head + 1 + text.len()) as libc::socklen_t)
}

/// Which socket a number means; sockets have inodes of one file system.
fn inode(fd: c_int) -> Option<u64> {
    // SAFETY: room for what fstat says, which is looked at only if it said something.
    unsafe {
        let mut seen: libc::stat = std::mem::zeroed();
        let is_socket =
            libc::fstat(fd, &mut seen) == 0 && seen.st_mode & libc::S_IFMT == libc::S_IFSOCK;
        is_socket.then_some(seen.st_ino)
    }
}

/// Whether the number still means the socket that was made.
fn is_ours() -> bool {
    let door = DOOR.load(Ordering::Acquire);
    door >= 0 && inode(door) == Some(DOOR_INODE.load(Ordering::Acquire))
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
    while is_ours() {
        let door = DOOR.load(Ordering::Acquire);
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

    #[test]
    fn a_number_that_means_something_else_now_is_left_alone() {
        open().unwrap();
        assert!(is_ours());
        let door = DOOR.load(Ordering::Acquire);
        // SAFETY: the test's own descriptors.
        unsafe {
            let other = libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0);
            assert_eq!(libc::dup2(other, door), door);
            assert!(!is_ours());
            close();
            assert!(inode(door).is_some(), "another's was closed");
            assert_eq!(libc::close(door) + libc::close(other), 0);
        }
    }
}
