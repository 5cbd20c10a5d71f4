//! The errors of all media: each names the operation, the byte range and what the system said.
//!
//! Promises: `Clone`, so that one failed write can answer every caller that waited for it.
//! Never: wraps an error without its numbers.

use std::path::PathBuf;

/// The text of an errno, as the system words it.
fn errno_text(errno: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno)
}

fn end(offset: u64, len: usize) -> u64 {
    offset.saturating_add(len as u64)
}

/// What went wrong on a medium. Lengths and offsets are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MediaError {
    /// The system refused or failed an operation. The content of the range is unknown after a
    /// failed write, and nothing may be assumed durable after a failed flush.
    #[error("{op} of bytes {offset}..{} failed: {}", end(*offset, *len), errno_text(*errno))]
    Io {
        /// `read`, `write` or `flush`.
        op: &'static str,
        /// First byte of the range.
        offset: u64,
        /// Length of the range.
        len: usize,
        /// The system's error number.
        errno: i32,
    },
    /// The device moved fewer bytes than asked and would move no more: it is shorter than it was.
    #[error(
        "{op} of bytes {offset}..{} stopped after {moved_bytes} bytes: the device or file is \
         shorter than when it was opened", end(*offset, *len)
    )]
    Short {
        /// `read` or `write`.
        op: &'static str,
        /// First byte of the range.
        offset: u64,
        /// Length of the range.
        len: usize,
        /// Bytes that were moved.
        moved_bytes: usize,
    },
    /// The range does not lie on the device. Nothing was done.
    #[error(
        "{op} of bytes {offset}..{} refused: the device ends at byte {device_bytes}",
        end(*offset, *len)
    )]
    OutOfRange {
        /// `read` or `write`.
        op: &'static str,
        /// First byte of the range.
        offset: u64,
        /// Length of the range.
        len: usize,
        /// Length of the device.
        device_bytes: u64,
    },
    /// The simulated device has lost power; see [`crate::sim::SimDevice::crash_at`].
    #[error("the simulated device has lost power; take a crash image and open that")]
    Crashed,
    /// The file system cannot hold the file. Nothing is left behind.
    #[error(
        "{}: {asked_bytes} bytes asked, {available_bytes} bytes available; \
         free space or ask for less", path.display()
    )]
    NoSpace {
        /// The file that was to be made.
        path: PathBuf,
        /// Bytes asked for.
        asked_bytes: u64,
        /// Bytes the file system had for this user when it was asked.
        available_bytes: u64,
    },
    /// A length or size that this medium cannot have.
    #[error("{what}: {asked} asked, allowed is {allowed}")]
    Size {
        /// What was to have this size.
        what: &'static str,
        /// The size asked for.
        asked: u64,
        /// What is allowed, in words.
        allowed: String,
    },
    /// Something exists already and is not overwritten.
    #[error("{} exists already and is not overwritten; open it, or remove it first", path.display())]
    Exists {
        /// What exists.
        path: PathBuf,
    },
    /// Operations of a process that has ended have not: see [`crate::Claim`].
    #[error(
        "{}: what another process had handed to the system for it is still under way after {waited_ms} ms; \
         try again when the device has done it (the kernel's log tells if it cannot)", path.display()
    )]
    UnderWay {
        /// The device's path.
        path: PathBuf,
        /// How long it was waited for, ms.
        waited_ms: u64,
    },
    /// What the path names is neither a regular file nor a block device.
    #[error("{} is neither a regular file nor a block device", path.display())]
    WrongKind {
        /// The path.
        path: PathBuf,
    },
    /// A step of opening or making a medium failed.
    #[error("{what} {subject}: {}", errno_text(*errno))]
    Setup {
        /// The step, as a verb phrase.
        what: &'static str,
        /// What it was done to: a path, or a size.
        subject: String,
        /// The system's error number.
        errno: i32,
    },
}

impl MediaError {
    /// Whether the device says of the place that what was there is lost; all else (no memory, a queue that is broken) may be otherwise the next time.
    pub fn is_of_the_medium(&self) -> bool {
        let lost = [
            rustix::io::Errno::IO,
            rustix::io::Errno::NODATA,
            rustix::io::Errno::ILSEQ,
            rustix::io::Errno::REMOTEIO,
        ];
        (self.errno()).is_some_and(|errno| lost.iter().any(|lost| lost.raw_os_error() == errno))
    }

    /// The system's error number, where there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            MediaError::Io { errno, .. } | MediaError::Setup { errno, .. } => Some(*errno),
            MediaError::NoSpace { .. } => Some(rustix::io::Errno::NOSPC.raw_os_error()),
            MediaError::Exists { .. } => Some(rustix::io::Errno::EXIST.raw_os_error()),
            _ => None,
        }
    }

    pub(crate) fn setup(
        what: &'static str,
        subject: impl ToString,
        errno: rustix::io::Errno,
    ) -> Self {
        MediaError::Setup {
            what,
            subject: subject.to_string(),
            errno: errno.raw_os_error(),
        }
    }

    pub(crate) fn setup_io(what: &'static str, subject: impl ToString, e: &std::io::Error) -> Self {
        let errno = e
            .raw_os_error()
            .unwrap_or(rustix::io::Errno::IO.raw_os_error());
        MediaError::Setup {
            what,
            subject: subject.to_string(),
            errno,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_names_operation_range_and_cause() {
        let e = MediaError::Io {
            op: "write",
            offset: 4096,
            len: 8192,
            errno: 5,
        };
        let text = e.to_string();
        assert!(
            text.starts_with("write of bytes 4096..12288 failed: "),
            "{text}"
        );
        assert!(text.contains("Input/output error"), "{text}");
    }

    #[test]
    fn display_survives_ranges_past_the_end_of_numbers() {
        let e = MediaError::Io {
            op: "read",
            offset: u64::MAX,
            len: 4096,
            errno: 22,
        };
        assert!(e.to_string().contains("18446744073709551615"));
    }
}
