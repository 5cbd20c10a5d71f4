//! What this machine offers to the media: asked once, for people and for start-up decisions.
//!
//! Promises: asks the kernel and changes nothing. Never: decides; it only reports.

use crate::uring::{TaskRun, build_ring};
use rustix::process::{Resource, getrlimit};

/// What the kernel offers. Made by [`probe`].
#[derive(Debug, Clone)]
pub struct Probe {
    /// The ring's features, or why there is none (then I/O is synchronous).
    pub io_uring: Result<RingFeatures, String>,
    /// How much memory this process may lock, in bytes; `None` if as much as it likes. A process
    /// with `CAP_IPC_LOCK` may lock more than this says.
    pub memlock_limit_bytes: Option<u64>,
    /// Release of the running kernel.
    pub kernel: String,
    /// The machine's page size in bytes; the media need one that divides a block.
    pub page_bytes: usize,
}

/// What the kernel's io_uring can do for the media.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingFeatures {
    /// How completions can be handed over at best.
    pub task_run_best: TaskRun,
    /// How they are handed over by default.
    pub task_run: TaskRun,
}

/// Asks the kernel.
pub fn probe() -> Probe {
    let default = crate::QueueOptions::default().task_run;
    let io_uring = build_ring(1, TaskRun::Defer)
        .and_then(|(_, best)| build_ring(1, default).map(|(_, usual)| (best, usual)))
        .map(|(task_run_best, task_run)| RingFeatures {
            task_run_best,
            task_run,
        })
        .map_err(|e| match e.raw_os_error() {
            Some(errno) if errno == rustix::io::Errno::OPNOTSUPP.raw_os_error() => {
                "the kernel's io_uring is older than Linux 5.11".to_owned()
            }
            _ => e.to_string(),
        });
    Probe {
        io_uring,
        memlock_limit_bytes: getrlimit(Resource::Memlock).current,
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        page_bytes: rustix::param::page_size(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_agrees_with_what_a_device_does() {
        let probe = probe();
        assert!(
            probe.kernel.starts_with(|c: char| c.is_ascii_digit()),
            "{probe:?}"
        );
        assert!(
            crate::BLOCK_BYTES.is_multiple_of(probe.page_bytes),
            "{probe:?}"
        );
        let dir = tempfile::tempdir().unwrap();
        let device = crate::FileDevice::create(&dir.path().join("f"), 4096, &mut |_| {}).unwrap();
        assert_eq!(device.has_ring(), probe.io_uring.is_ok());
    }
}
