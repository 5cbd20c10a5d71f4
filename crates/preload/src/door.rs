//! An abstract socket's name: something that one process has, and nobody else while it lives.
//!
//! The name is in no directory, so nothing is left behind when the process is killed. Promises: a descriptor that the program closed, and may have for something of its own by now, is not
//! touched. Never: listens, or sends anything.

use crate::{descriptors, raw};
use libc::c_int;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// A name that this process may have.
pub struct Door {
    fd: AtomicI32,
    /// Which file that was: descriptors' numbers are used again.
    inode: AtomicU64,
}

impl Door {
    /// It has none.
    pub const fn none() -> Door {
        Door {
            fd: AtomicI32::new(-1),
            inode: AtomicU64::new(0),
        }
    }

    /// Takes a name. EADDRINUSE: another process has it.
    pub fn open(&self, text: &str) -> std::io::Result<()> {
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
            self.fd.store(door, Ordering::Release);
            self.inode
                .store(inode(door).unwrap_or(0), Ordering::Release);
            let (name, len) = name(text);
            if libc::bind(door, (&raw const name).cast(), len) != 0 {
                let why = failed();
                self.close();
                return Err(why);
            }
        }
        Ok(())
    }

    /// Its number; below 0 if there is none.
    pub fn fd(&self) -> c_int {
        self.fd.load(Ordering::Acquire)
    }

    /// Whether the number still means the socket that was made.
    pub fn is_ours(&self) -> bool {
        let door = self.fd();
        door >= 0 && inode(door) == Some(self.inode.load(Ordering::Acquire))
    }

    /// Lets it go; in the child of a fork, where it is the parent's alone.
    pub fn close(&self) {
        if self.is_ours() {
            let door = self.fd();
            terrace_vm::descriptors::unlist(door);
            // SAFETY: ours, as was just seen, and nobody else in this process uses it.
            unsafe { raw::close(door) };
        }
        self.fd.store(-1, Ordering::Release);
    }
}

/// In no directory: the first byte of an abstract name is zero.
fn name(text: &str) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: integers; all zeros is a value.
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    name.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let room = name.sun_path[1..].iter_mut();
    let mut len = 0;
    for (to, byte) in room.zip(text.bytes()) {
        *to = byte as libc::c_char;
        len += 1;
    }
    let head = std::mem::offset_of!(libc::sockaddr_un, sun_path);
    (name, (head + 1 + len) as libc::socklen_t)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_process_s_until_it_lets_go() {
        let text = format!("terrace-door-{}", std::process::id());
        let [one, other] = [Door::none(), Door::none()];
        one.open(&text).unwrap();
        let refused = other.open(&text).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::AddrInUse);
        assert!(one.is_ours() && !other.is_ours() && other.fd() == -1);
        one.close();
        other.open(&text).unwrap();
        other.close();
    }

    #[test]
    fn a_number_that_means_something_else_now_is_left_alone() {
        let own = Door::none();
        own.open(&format!("terrace-door-{}-other", std::process::id()))
            .unwrap();
        assert!(own.is_ours());
        let door = own.fd();
        // SAFETY: the test's own descriptors.
        unsafe {
            let other = libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0);
            assert_eq!(libc::dup2(other, door), door);
            assert!(!own.is_ours());
            own.close();
            assert!(inode(door).is_some(), "another's was closed");
            assert_eq!(libc::close(door) + libc::close(other), 0);
        }
    }
}
