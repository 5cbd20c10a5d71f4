//! The queue for kernels without io_uring: each operation is one blocking system call, made when
//! the caller reaps.
//!
//! Promises: the same answers as the ring. Never: two operations at a time; it is a fallback for
//! correctness, and [`crate::Device::describe`] says when it is in use.

use crate::disk::SharedCounters;
use crate::{Disk, Done, MediaError, Op, Wait};
use rustix::io::{Errno, ReadWriteFlags};
use std::collections::VecDeque;
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::RawFd;
use std::sync::Arc;

pub(crate) struct SyncDisk {
    file: Arc<File>,
    device_bytes: u64,
    read_unit_bytes: usize,
    counters: Arc<SharedCounters>,
    queued: VecDeque<(u64, Op)>,
}

impl SyncDisk {
    pub(crate) fn new(
        file: Arc<File>,
        device_bytes: u64,
        read_unit_bytes: usize,
        counters: Arc<SharedCounters>,
    ) -> Self {
        SyncDisk {
            file,
            device_bytes,
            read_unit_bytes,
            counters,
            queued: VecDeque::new(),
        }
    }

    fn run(&self, op: &mut Op) -> Result<(), MediaError> {
        op.check(self.device_bytes, self.read_unit_bytes)?;
        if let Op::Flush = op {
            return rustix::fs::fdatasync(&self.file).map_err(|e| op.io_error(e.raw_os_error()));
        }
        let mut moved_bytes = 0;
        while moved_bytes < op.len() {
            match self.step(op, moved_bytes) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(op.io_error(errno.raw_os_error())),
                Ok(step_bytes) if step_bytes == op.len() - moved_bytes => return Ok(()),
                Ok(step_bytes) => match op.resumable_bytes(step_bytes) {
                    0 => return Err(op.short_error(moved_bytes + step_bytes)),
                    resumable_bytes => moved_bytes += resumable_bytes,
                },
            }
        }
        Ok(())
    }

    fn step(&self, op: &mut Op, moved_bytes: usize) -> Result<usize, Errno> {
        let offset = op.offset() + moved_bytes as u64;
        match op {
            Op::Read { buf, .. } => rustix::io::pread(&self.file, &mut buf[moved_bytes..], offset),
            Op::Write { data, .. } => rustix::io::pwrite(&self.file, &data[moved_bytes..], offset),
            Op::WriteThrough { data, .. } => {
                let rest = [IoSlice::new(&data[moved_bytes..])];
                rustix::io::pwritev2(&self.file, &rest, offset, ReadWriteFlags::DSYNC)
            }
            Op::WriteBuf { buf, .. } => rustix::io::pwrite(&self.file, &buf[moved_bytes..], offset),
            Op::Flush => Ok(0),
        }
    }
}

impl Disk for SyncDisk {
    fn submit(&mut self, token: u64, op: Op) {
        // Only for the assertions: a mistake shows where it is made. The range is checked later.
        let _in_range = op.check(self.device_bytes, self.read_unit_bytes);
        self.queued.push_back((token, op));
    }

    fn kick(&mut self) {}

    fn reap(&mut self, _wait: Wait, done: &mut Vec<Done>) {
        while let Some((token, mut op)) = self.queued.pop_front() {
            let result = self.run(&mut op);
            if result.is_ok() {
                self.counters.count(&op);
            }
            done.push(Done {
                token,
                result,
                buf: op.into_buf(),
            });
        }
    }

    fn in_flight(&self) -> usize {
        self.queued.len()
    }

    fn poll_fd(&self) -> Option<RawFd> {
        None
    }
}
