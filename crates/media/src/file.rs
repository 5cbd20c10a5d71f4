//! [`FileDevice`]: a block medium on a regular file or a block device, with direct I/O.
//!
//! Promises: a file that is made has all its space reserved and every block written once (a later
//! overwrite then changes no metadata and is durable after one flush of the device's cache); a
//! file that could not be made in full is removed again; data is readable by the owner only.
//! Never: overwrites an existing file, or touches a block device that is mounted.

use crate::below::{patiently, writes_through};
use crate::descriptors::keep_file;
use crate::disk::{SharedCounters, check_place, resumable_bytes};
use crate::several::{Readers, SEVERAL_MAX};
use crate::sync::SyncDisk;
use crate::uring::{QueueOptions, UringDisk, build_ring};
use crate::{
    BLOCK_BYTES, Buf, Counters, Device, Disk, MediaError, QUEUE_DEPTH_MAX, ReadInto, SECTOR_BYTES,
    TaskRun,
};
use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatxFlags, fallocate, fstatvfs, statx};
use rustix::io::{Errno, retry_on_intr};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Length of one write when a new file is filled with zeros.
const PREWRITE_BYTES: usize = 4 << 20;

/// A regular file or a block device, opened for direct I/O.
pub struct FileDevice {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<File>,
    len_bytes: u64,
    is_direct: bool,
    read_unit_bytes: usize,
    is_block_device: bool,
    writes_through: bool,
    engine: Engine,
    options: QueueOptions,
    counters: Arc<SharedCounters>,
    readers: Readers,
}

/// How operations reach the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    Ring(TaskRun),
    /// The ring is not to be had, for this reason.
    Sync(i32),
}

/// Removes a file that is being made, unless it was finished.
struct Unfinished<'a> {
    path: &'a Path,
    finished: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.finished {
            // Nothing better can be done here; the caller hears of the first error.
            let _removed = std::fs::remove_file(self.path);
        }
    }
}

fn is_forbidden(e: &std::io::Error) -> bool {
    [Errno::NOSYS, Errno::PERM]
        .map(|errno| Some(errno.raw_os_error()))
        .contains(&e.raw_os_error())
}

/// What rings this process can have, by making one. It is kept, since the kernel ends waits of the thread that made a ring when that is closed.
fn first_ring(task_run: TaskRun) -> std::io::Result<TaskRun> {
    static FOUND: OnceLock<TaskRun> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(*found);
    }
    let (ring, found) = build_ring(1, task_run)?;
    std::mem::forget(ring);
    Ok(*FOUND.get_or_init(|| found))
}

impl FileDevice {
    /// Makes a file of `len_bytes` (a multiple of [`BLOCK_BYTES`], at least one block) that only
    /// its owner may read: reserves its space, writes it once with zeros and makes it durable.
    /// `progress` hears after each step how many bytes are written.
    ///
    /// If `path` is a block device or a link to one, nothing is written: the device is opened, and
    /// must have at least `len_bytes`. It then has its whole length, here as after
    /// [`FileDevice::open`]; [`FileDevice::limit_len`] takes less.
    ///
    /// Errors: [`MediaError::NoSpace`] if the file system cannot hold it, [`MediaError::Exists`] if
    /// there is a file already, else what the system says. No partial file is left behind.
    pub fn create(
        path: &Path,
        len_bytes: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, MediaError> {
        Self::make(path, len_bytes, Some(progress))
    }

    /// The same, with its blocks reserved and not written: for what need not be made durable, of which the first write of a block costs a little more.
    pub fn create_unwritten(path: &Path, len_bytes: u64) -> Result<Self, MediaError> {
        Self::make(path, len_bytes, None)
    }

    fn make(
        path: &Path,
        len_bytes: u64,
        prewritten: Option<&mut dyn FnMut(u64)>,
    ) -> Result<Self, MediaError> {
        check_len("length of the file in bytes", len_bytes, i64::MAX as u64)?;
        match std::fs::metadata(path) {
            Ok(found) if found.file_type().is_block_device() => {
                let device = Self::open(path)?;
                check_len("bytes of the block device", len_bytes, device.len_bytes)?;
                return Ok(device);
            }
            Ok(_) => {
                return Err(MediaError::Exists {
                    path: path.to_owned(),
                });
            }
            Err(_) => {}
        }
        let (file, is_direct) = open_direct(path, OpenOptions::new().create_new(true).mode(0o600))?;
        let mut unfinished = Unfinished {
            path,
            finished: false,
        };
        let reserved = reserve(path, &file, len_bytes)?;
        match prewritten {
            Some(progress) => prewrite(path, &file, len_bytes, progress)?,
            None if !reserved => prewrite(path, &file, len_bytes, &mut |_| {})?,
            None => {}
        }
        file.sync_all()
            .map_err(|e| MediaError::setup_io("fsync", path.display(), &e))?;
        sync_parent(path)?;
        unfinished.finished = true;
        Ok(Self::assemble(path, file, len_bytes, is_direct, false))
    }

    /// Opens an existing file or block device for reading and writing. Its length is rounded down
    /// to whole blocks. A block device that is mounted or in use is refused with `EBUSY`.
    pub fn open(path: &Path) -> Result<Self, MediaError> {
        let found = std::fs::metadata(path)
            .map_err(|e| MediaError::setup_io("open", path.display(), &e))?;
        let is_block_device = found.file_type().is_block_device();
        if !is_block_device && !found.is_file() {
            return Err(MediaError::WrongKind {
                path: path.to_owned(),
            });
        }
        // O_EXCL on a block device refuses one that is mounted.
        let extra = if is_block_device {
            OFlags::EXCL
        } else {
            OFlags::empty()
        };
        let open = || open_with(path, &mut OpenOptions::new(), extra);
        let (mut file, is_direct) = match is_block_device {
            true => patiently(open)?,
            false => open()?,
        };
        if is_block_device {
            let sector_bytes = rustix::fs::ioctl_blksszget(&file)
                .map_err(|e| MediaError::setup("ask the sector size of", path.display(), e))?;
            if sector_bytes as usize > BLOCK_BYTES {
                let (what, asked) = ("sector of the block device, in bytes", sector_bytes.into());
                let allowed = format!("at most {BLOCK_BYTES}");
                return Err(MediaError::Size {
                    what,
                    asked,
                    allowed,
                });
            }
        }
        let end_bytes = file
            .seek(SeekFrom::End(0))
            .map_err(|e| MediaError::setup_io("measure", path.display(), &e))?;
        let len_bytes = end_bytes - end_bytes % BLOCK_BYTES as u64;
        Ok(Self::assemble(
            path,
            file,
            len_bytes,
            is_direct,
            is_block_device,
        ))
    }

    fn assemble(path: &Path, file: File, len_bytes: u64, is_direct: bool, is_block: bool) -> Self {
        let options = QueueOptions::default();
        let engine = match first_ring(options.task_run) {
            Ok(task_run) => Engine::Ring(task_run),
            Err(e) => Engine::Sync(e.raw_os_error().unwrap_or(Errno::NOSYS.raw_os_error())),
        };
        let writes_through = matches!(engine, Engine::Ring(_)) && writes_through(&file, is_block);
        FileDevice {
            path: path.to_owned(),
            len_bytes,
            is_direct,
            read_unit_bytes: read_unit_bytes(&file, is_direct),
            file: Arc::new(file),
            is_block_device: is_block,
            writes_through,
            engine,
            options,
            counters: Arc::default(),
            readers: Readers::new(),
        }
    }

    /// Whether I/O passes by the page cache. `false` where the file system refuses that (an older
    /// tmpfs): then the page cache holds a second copy, outside every bound on memory.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Whether it is a block device, and not a file.
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Whether io_uring serves it, or the synchronous fallback.
    pub fn has_ring(&self) -> bool {
        matches!(self.engine, Engine::Ring(_))
    }

    /// Uses only the first `len_bytes` (a multiple of [`BLOCK_BYTES`], at most the length).
    pub fn limit_len(&mut self, len_bytes: u64) -> Result<(), MediaError> {
        check_len("length to use, in bytes", len_bytes, self.len_bytes)?;
        self.len_bytes = len_bytes;
        Ok(())
    }

    /// How queues made from now on wait. The default is the measured best.
    pub fn set_queue_options(&mut self, options: QueueOptions) {
        self.options = options;
    }

    /// Uses the synchronous fallback although the kernel has io_uring, to test and compare.
    pub fn without_ring(mut self) -> Self {
        self.writes_through = false;
        self.engine = Engine::Sync(0);
        self
    }
}

impl FileDevice {
    /// Which of up to [`SEVERAL_MAX`] reads came whole: a bit for each, the first the lowest.
    fn read_together(&self, reads: &mut [ReadInto<'_>]) -> u32 {
        for read in &mut *reads {
            check_place(self.read_unit_bytes, read.offset, read.into);
            let end = read.offset.checked_add(read.into.len() as u64);
            if end.is_none_or(|end| end > self.len_bytes) {
                return 0;
            }
        }
        let came = self.readers.read(&self.file, reads);
        for (at, read) in reads.iter_mut().enumerate() {
            if came >> at & 1 == 1 {
                read.result = Ok(());
                self.counters.count_read(read.into.len());
            }
        }
        came
    }
}

impl Device for FileDevice {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_unit_bytes(&self) -> usize {
        self.read_unit_bytes
    }

    fn writes_through(&self) -> bool {
        self.writes_through
    }

    fn queue(&self, depth: u32) -> Result<Box<dyn Disk>, MediaError> {
        if !(1..=QUEUE_DEPTH_MAX).contains(&depth) {
            return Err(MediaError::Size {
                what: "queue depth",
                asked: depth.into(),
                allowed: format!("1 to {QUEUE_DEPTH_MAX}"),
            });
        }
        if let Engine::Sync(_) = self.engine {
            return self.plain_queue();
        }
        let (file, counters) = (Arc::clone(&self.file), Arc::clone(&self.counters));
        let (len_bytes, unit_bytes) = (self.len_bytes, self.read_unit_bytes);
        match UringDisk::new(file, len_bytes, unit_bytes, depth, self.options, counters) {
            Ok(disk) => Ok(Box::new(disk)),
            // There were rings when it was looked; they were forbidden since.
            Err(e) if is_forbidden(&e) => self.plain_queue(),
            Err(e) => {
                let what = "make an io_uring of depth";
                Err(MediaError::setup_io(what, depth, &e))
            }
        }
    }

    fn plain_queue(&self) -> Result<Box<dyn Disk>, MediaError> {
        let (file, counters) = (Arc::clone(&self.file), Arc::clone(&self.counters));
        let disk = SyncDisk::new(file, self.len_bytes, self.read_unit_bytes, counters);
        Ok(Box::new(disk))
    }

    fn read_into(&self, offset: u64, into: &mut [u8]) -> Result<(), MediaError> {
        check_place(self.read_unit_bytes, offset, into);
        let (op, len) = ("read", into.len());
        if offset
            .checked_add(len as u64)
            .is_none_or(|end| end > self.len_bytes)
        {
            let device_bytes = self.len_bytes;
            return Err(MediaError::OutOfRange {
                op,
                offset,
                len,
                device_bytes,
            });
        }
        let mut moved_bytes = 0;
        while moved_bytes < len {
            let (rest, from) = (&mut into[moved_bytes..], offset + moved_bytes as u64);
            let read = match self.engine {
                Engine::Ring(_) => self.readers.read_one(&self.file, rest, from),
                _ => rustix::io::pread(&*self.file, rest, from),
            };
            match read {
                Err(Errno::INTR) => {}
                Err(errno) => {
                    let errno = errno.raw_os_error();
                    return Err(MediaError::Io {
                        op,
                        offset,
                        len,
                        errno,
                    });
                }
                Ok(step_bytes) if step_bytes == len - moved_bytes => break,
                Ok(step_bytes) => match resumable_bytes(offset, len, step_bytes) {
                    0 => {
                        let moved_bytes = moved_bytes + step_bytes;
                        return Err(MediaError::Short {
                            op,
                            offset,
                            len,
                            moved_bytes,
                        });
                    }
                    resumable_bytes => moved_bytes += resumable_bytes,
                },
            }
        }
        self.counters.count_read(len);
        Ok(())
    }

    fn read_several(&self, reads: &mut [ReadInto<'_>]) {
        for some in reads.chunks_mut(SEVERAL_MAX) {
            let came = match (self.engine, some.len()) {
                (Engine::Ring(_), 2..) => self.read_together(some),
                _ => 0,
            };
            // Alone: what was short, refused, or is beyond the end.
            for (_, read) in (0..).zip(some).filter(|(at, _)| came >> at & 1 == 0) {
                read.result = self.read_into(read.offset, read.into);
            }
        }
    }

    fn describe(&self) -> String {
        let kind = if self.is_block_device {
            "block device"
        } else {
            "file"
        };
        let direct = if self.is_direct {
            "direct"
        } else {
            "BUFFERED (O_DIRECT refused)"
        };
        let engine = match self.engine {
            Engine::Ring(task_run) => format!("io_uring ({task_run:?})"),
            Engine::Sync(0) => "synchronous calls (as asked)".to_owned(),
            Engine::Sync(errno) => {
                let why = std::io::Error::from_raw_os_error(errno);
                format!("SYNCHRONOUS calls (io_uring refused: {why})")
            }
        };
        let path = self.path.display();
        format!(
            "{kind} {path}, {} bytes, {direct} I/O, reads by {} bytes, {engine}",
            self.len_bytes, self.read_unit_bytes
        )
    }

    fn counters(&self) -> Counters {
        self.counters.read()
    }
}

/// How fine direct reads of it may be, as the kernel tells since Linux 6.1 and a read bears out. Whole blocks where it does not tell.
fn read_unit_bytes(file: &File, is_direct: bool) -> usize {
    if !is_direct {
        return SECTOR_BYTES;
    }
    let Ok(told) = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return BLOCK_BYTES;
    };
    let (offset, memory) = (told.stx_dio_offset_align, told.stx_dio_mem_align);
    let unit_bytes = offset.max(memory).max(SECTOR_BYTES as u32) as usize;
    let is_told = offset != 0 && BLOCK_BYTES.is_multiple_of(unit_bytes);
    match is_told && (unit_bytes == BLOCK_BYTES || takes_units(file, unit_bytes)) {
        true => unit_bytes,
        false => BLOCK_BYTES,
    }
}

/// Whether one such read is done: a file system that says what it does not do would make every entry unreadable.
fn takes_units(file: &File, unit_bytes: usize) -> bool {
    let mut into = Buf::zeroed(BLOCK_BYTES);
    let into = &mut into[unit_bytes..2 * unit_bytes];
    rustix::io::pread(file, into, unit_bytes as u64) == Ok(unit_bytes)
}

fn check_len(what: &'static str, asked: u64, most: u64) -> Result<(), MediaError> {
    let block = BLOCK_BYTES as u64;
    if asked >= block && asked.is_multiple_of(block) && asked <= most {
        return Ok(());
    }
    let allowed = format!("multiples of {block} from {block} to {most}");
    Err(MediaError::Size {
        what,
        asked,
        allowed,
    })
}

fn open_direct(path: &Path, options: &mut OpenOptions) -> Result<(File, bool), MediaError> {
    open_with(path, options, OFlags::empty())
}

/// Opens with O_DIRECT, or without where the file system refuses it; says which.
fn open_with(
    path: &Path,
    options: &mut OpenOptions,
    extra: OFlags,
) -> Result<(File, bool), MediaError> {
    options.read(true).write(true);
    let flags = |direct: OFlags| (direct | extra | OFlags::CLOEXEC).bits() as i32;
    match options.custom_flags(flags(OFlags::DIRECT)).open(path) {
        Ok(file) => return Ok((keep_file(file), true)),
        Err(e) if e.raw_os_error() == Some(Errno::EXIST.raw_os_error()) => {
            return Err(MediaError::Exists {
                path: path.to_owned(),
            });
        }
        Err(e) if e.raw_os_error() != Some(Errno::INVAL.raw_os_error()) => {
            return Err(MediaError::setup_io("open", path.display(), &e));
        }
        Err(_) => {}
    }
    // A create that was refused for O_DIRECT may have left the empty file behind: it is ours.
    options.create(true).create_new(false);
    options
        .custom_flags(flags(OFlags::empty()))
        .open(path)
        .map(|file| (keep_file(file), false))
        .map_err(|e| MediaError::setup_io("open", path.display(), &e))
}

/// Reserves the whole length, so that a full file system is met here. More than is free for everyone (root may have a part besides) is not even tried: until the system
/// refuses, it takes all there is, and whoever else writes to that file system meets a full one. False: the file system cannot, and its blocks are to be written.
fn reserve(path: &Path, file: &File, len_bytes: u64) -> Result<bool, MediaError> {
    let available_bytes = available_bytes(file);
    if available_bytes.is_some_and(|available| available < len_bytes) {
        let errno = Errno::NOSPC;
        return Err(space_error(
            "reserve space for",
            path,
            file,
            len_bytes,
            errno,
        ));
    }
    // tmpfs stops where a signal comes.
    match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, len_bytes)) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(space_error(
            "reserve space for",
            path,
            file,
            len_bytes,
            errno,
        )),
    }
}

fn space_error(
    what: &'static str,
    path: &Path,
    file: &File,
    asked_bytes: u64,
    errno: Errno,
) -> MediaError {
    if !matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::FBIG) {
        return MediaError::setup(what, path.display(), errno);
    }
    let held_bytes = {
        use std::os::unix::fs::MetadataExt;
        file.metadata().map_or(0, |m| m.blocks() * 512)
    };
    // What the partial file holds comes free when it is removed.
    let available_bytes = available_bytes(file).unwrap_or(0) + held_bytes;
    MediaError::NoSpace {
        path: path.to_owned(),
        asked_bytes,
        available_bytes,
    }
}

/// What the file system of `file` has left for everyone. None: it does not say.
fn available_bytes(file: &File) -> Option<u64> {
    let fs = fstatvfs(file).ok().filter(|fs| fs.f_blocks > 0)?;
    Some(fs.f_bavail.saturating_mul(fs.f_frsize))
}

fn prewrite(
    path: &Path,
    file: &File,
    len_bytes: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<(), MediaError> {
    let zeros = Buf::zeroed(PREWRITE_BYTES.min(usize::try_from(len_bytes).unwrap_or(usize::MAX)));
    let mut written_bytes = 0;
    while written_bytes < len_bytes {
        let step_bytes = (len_bytes - written_bytes).min(zeros.len() as u64) as usize;
        match rustix::io::pwrite(file, &zeros[..step_bytes], written_bytes) {
            Ok(0) => {
                return Err(MediaError::setup(
                    "write zeros to",
                    path.display(),
                    Errno::IO,
                ));
            }
            Ok(moved_bytes) => {
                written_bytes += moved_bytes as u64;
                progress(written_bytes);
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(space_error("write zeros to", path, file, len_bytes, e)),
        }
    }
    Ok(())
}

/// Makes the name of a new file durable.
fn sync_parent(path: &Path) -> Result<(), MediaError> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)
        .and_then(|directory| directory.sync_all())
        .map_err(|e| MediaError::setup_io("fsync the directory", parent.display(), &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a block device would be in use, which another cannot open then.
    #[test]
    fn nothing_of_a_file_is_kept_when_its_queue_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        for _ in 0..20 {
            let device = FileDevice::create_unwritten(&path, 1 << 20).unwrap();
            rustix::fs::flock(&device.file, rustix::fs::FlockOperation::LockExclusive).unwrap();
            let mut disk = device.queue(8).unwrap();
            crate::read_blocking(&mut *disk, 0, BLOCK_BYTES).unwrap();
            drop((disk, device));
            let other = File::open(&path).unwrap();
            let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
            rustix::fs::flock(&other, lock).unwrap();
            std::fs::remove_file(&path).unwrap();
        }
    }
}
