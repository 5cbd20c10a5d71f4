//! FileDevice on a temporary file: round trips, refusals and limits, over io_uring and over the
//! synchronous fallback. Checks that both give the same answers.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use terrace_media::*;

const LEN_BYTES: u64 = 2 << 20;
const SECOND: Duration = Duration::from_secs(1);

fn make(dir: &Path) -> (PathBuf, FileDevice) {
    let path = dir.join("blocks");
    let device = FileDevice::create(&path, LEN_BYTES, &mut |_| {}).unwrap();
    (path, device)
}

fn engines(path: &Path) -> Vec<FileDevice> {
    let mut devices = vec![FileDevice::open(path).unwrap().without_ring()];
    for task_run in [TaskRun::Interrupt, TaskRun::Coop, TaskRun::Defer] {
        for spin_us in [0, 50] {
            let mut device = FileDevice::open(path).unwrap();
            device.set_queue_options(QueueOptions { task_run, spin_us });
            devices.push(device);
        }
    }
    devices
}

fn filled(len: usize, seed: u64) -> Buf {
    let mut rng = sim::Rng::new(seed);
    let mut buf = Buf::zeroed(len);
    buf.chunks_exact_mut(8)
        .for_each(|c| c.copy_from_slice(&rng.bits().to_le_bytes()));
    buf
}

fn reap_all(disk: &mut dyn Disk) -> Vec<Done> {
    let mut done = Vec::new();
    let give_up = Instant::now() + 20 * SECOND;
    while disk.in_flight() > 0 {
        assert!(
            Instant::now() < give_up,
            "{} still in flight",
            disk.in_flight()
        );
        disk.reap(Wait::For(SECOND), &mut done);
    }
    done
}

#[test]
fn a_new_file_is_private_zero_reserved_and_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("blocks");
    let mut heard = Vec::new();
    let device = FileDevice::create(&path, LEN_BYTES, &mut |bytes| heard.push(bytes)).unwrap();
    assert_eq!(device.len_bytes(), LEN_BYTES);
    assert_eq!(heard.last(), Some(&LEN_BYTES));
    let found = std::fs::metadata(&path).unwrap();
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    assert!(std::os::unix::fs::MetadataExt::blocks(&found) * 512 >= LEN_BYTES);
    let all = read_blocking(&mut *device.queue(1).unwrap(), 0, LEN_BYTES as usize).unwrap();
    assert!(all.iter().all(|&b| b == 0));
    let again = FileDevice::create(&path, LEN_BYTES, &mut |_| {});
    assert_eq!(again.err(), Some(MediaError::Exists { path }));
}

#[test]
fn a_file_that_does_not_fit_is_refused_with_numbers_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("huge");
    let asked = 1 << 43; // 8 TiB: beyond this test's disks, within ext4's file size.
    match FileDevice::create(&path, asked, &mut |_| {}) {
        Err(MediaError::NoSpace {
            asked_bytes,
            available_bytes,
            ..
        }) => {
            assert_eq!(asked_bytes, asked);
            assert!(
                available_bytes > 0 && available_bytes < asked,
                "{available_bytes}"
            );
        }
        other => panic!("{:?}", other.err()),
    }
    assert!(!path.exists());
    // Whoever else writes there is not to meet a full disk meanwhile.
    let free = || rustix::fs::statvfs(dir.path()).unwrap().f_bavail;
    let (before, made) = (free(), AtomicBool::new(false));
    let least = std::thread::scope(|threads| {
        let watch = threads.spawn(|| {
            let seen = std::iter::repeat_with(free).take_while(|_| !made.load(Relaxed));
            seen.min()
        });
        for _ in 0..10 {
            let refused = FileDevice::create_unwritten(&path, asked);
            assert!(matches!(refused.err(), Some(MediaError::NoSpace { .. })));
        }
        made.store(true, Relaxed);
        watch.join().unwrap()
    });
    assert!(
        least.is_none_or(|least| least > before / 2),
        "{before} blocks were free, then {least:?}"
    );
    for len_bytes in [0, 1000, u64::MAX - 4095] {
        let refused = FileDevice::create(&path, len_bytes, &mut |_| {});
        assert!(
            matches!(refused.err(), Some(MediaError::Size { .. })),
            "{len_bytes}"
        );
    }
    assert!(matches!(
        FileDevice::open(dir.path()).err(),
        Some(MediaError::WrongKind { .. })
    ));
    assert_eq!(FileDevice::open(&path).err().unwrap().errno(), Some(2));
}

#[test]
fn what_is_written_is_read_again_by_every_engine() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = make(dir.path());
    for (round, device) in engines(&path).iter().enumerate() {
        let mut disk = device.queue(4).unwrap();
        let data = filled(64 * 1024, round as u64);
        let copy = data.to_vec();
        let buf = write_blocking(&mut *disk, 128 * 1024, data).unwrap();
        assert_eq!(&buf[..], &copy[..]);
        flush_blocking(&mut *disk).unwrap();
        let mut seg = SegBuf::zeroed(8192);
        seg.open_mut().fill(round as u8 + 1);
        disk.submit(
            7,
            Op::Write {
                offset: 0,
                data: seg.freeze(4096),
            },
        );
        disk.submit(
            8,
            Op::WriteBuf {
                offset: 4096,
                buf: filled(4096, 99),
            },
        );
        let mut through = SegBuf::zeroed(4096);
        through.open_mut().fill(round as u8 + 9);
        disk.submit(
            9,
            Op::WriteThrough {
                offset: 8192,
                data: through.freeze(4096),
            },
        );
        let ended = reap_all(&mut *disk);
        assert!(ended.iter().all(|d| d.result.is_ok()), "{ended:?}");
        let mut tokens: Vec<u64> = ended.iter().map(|d| d.token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, [7, 8, 9]);
        assert!(
            read_blocking(&mut *disk, 8192, 4096)
                .unwrap()
                .iter()
                .all(|&b| b == round as u8 + 9)
        );
        assert!(seg.recycle().is_ok(), "a finished write lets its buffer go");
        let other = FileDevice::open(&path).unwrap();
        let mut other_disk = other.queue(1).unwrap();
        assert_eq!(
            &read_blocking(&mut *other_disk, 128 * 1024, copy.len()).unwrap()[..],
            copy
        );
        assert!(
            read_blocking(&mut *other_disk, 0, 4096)
                .unwrap()
                .iter()
                .all(|&b| b == round as u8 + 1)
        );
        let counters = device.counters();
        assert_eq!(
            (counters.writes, counters.write_bytes, counters.flushes),
            (4, 77_824, 2)
        );
        assert_eq!(
            (other.counters().reads, other.counters().read_bytes),
            (2, 69_632)
        );
    }
}

#[test]
fn many_more_than_the_depth_all_end_once() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = make(dir.path());
    for device in engines(&path) {
        let mut disk = device.queue(3).unwrap();
        for token in 0..200 {
            disk.submit(
                token,
                Op::WriteBuf {
                    offset: token * 8192,
                    buf: filled(8192, token),
                },
            );
        }
        assert_eq!(disk.in_flight(), 200);
        let mut tokens: Vec<u64> = reap_all(&mut *disk).iter().map(|d| d.token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, (0..200).collect::<Vec<_>>());
        for token in 0..200 {
            disk.submit(
                token,
                Op::Read {
                    offset: token * 8192,
                    buf: Buf::zeroed(8192),
                },
            );
        }
        for done in reap_all(&mut *disk) {
            assert_eq!(done.result, Ok(()));
            assert_eq!(&done.buf.unwrap()[..], &filled(8192, done.token)[..]);
        }
    }
}

#[test]
fn a_queue_reads_into_buffers_of_its_own_and_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = make(dir.path());
    for device in engines(&path) {
        let (mut disk, mut other) = (device.queue(8).unwrap(), device.queue(8).unwrap());
        for (at, seed) in [(0, 1), (16 * 1024, 2)] {
            write_blocking(&mut *disk, at, filled(16 * 1024, seed)).unwrap();
        }
        let bytes = disk.stock_up(3, 8192);
        // Where the limit of locked memory forbids it, there are none.
        let count = usize::from(bytes > 0) * 3;
        assert!(bytes == count * 8192 && (device.has_ring() || bytes == 0));
        assert!(disk.stock_up(3, 8192) == 0 || count == 0, "only once");
        assert!(disk.lend(16 * 1024).is_none() && other.lend(4096).is_none());
        for round in 0..3 {
            let lent: Vec<Buf> = std::iter::from_fn(|| disk.lend(8192)).collect();
            assert!(lent.len() == count && lent.iter().all(Buf::is_lent));
            let own = (count..5).map(|_| Buf::zeroed(8192));
            for (token, buf) in (0..).zip(lent.into_iter().chain(own)) {
                // Another queue may fill them, too.
                let by = if token == round {
                    &mut other
                } else {
                    &mut disk
                };
                let offset = token % 4 * 8192;
                by.submit(token, Op::Read { offset, buf });
            }
            let mut done = reap_all(&mut *disk);
            done.extend(reap_all(&mut *other));
            assert_eq!(done.len(), 5);
            for done in done {
                assert_eq!(done.result, Ok(()));
                let from = done.token as usize % 2 * 8192;
                let whole = filled(16 * 1024, done.token % 4 / 2 + 1);
                assert_eq!(done.buf.unwrap()[..], whole[from..from + 8192]);
            }
        }
        // A buffer outlives its queue; one that the kernel has is waited for.
        let kept = disk.lend(4096);
        if let Some(buf) = disk.lend(4096) {
            disk.submit(9, Op::Read { offset: 0, buf });
            disk.kick();
        }
        drop(disk);
        assert!(kept.is_none_or(|mut buf| {
            buf.fill(5);
            buf.iter().all(|b| *b == 5)
        }));
    }
}

#[test]
fn operations_off_the_end_and_shortened_files_are_errors_with_the_buffer_back() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = make(dir.path());
    for device in engines(&path) {
        std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(LEN_BYTES)
            .unwrap();
        let mut disk = device.queue(2).unwrap();
        disk.submit(
            1,
            Op::Read {
                offset: LEN_BYTES - 4096,
                buf: Buf::zeroed(8192),
            },
        );
        let done = reap_all(&mut *disk).pop().unwrap();
        assert!(matches!(
            done.result,
            Err(MediaError::OutOfRange {
                device_bytes: LEN_BYTES,
                ..
            })
        ));
        assert_eq!(done.buf.map(|b| b.len()), Some(8192));
        std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(LEN_BYTES / 2)
            .unwrap();
        disk.submit(
            2,
            Op::Read {
                offset: LEN_BYTES / 2 - 4096,
                buf: Buf::zeroed(8192),
            },
        );
        let done = reap_all(&mut *disk).pop().unwrap();
        let short = MediaError::Short {
            op: "read",
            offset: LEN_BYTES / 2 - 4096,
            len: 8192,
            moved_bytes: 4096,
        };
        assert_eq!(done.result, Err(short), "{}", device.describe());
        assert_eq!(
            device.counters(),
            Counters::default(),
            "failures are not counted"
        );
    }
}

#[test]
fn a_queue_moves_to_the_thread_that_uses_it() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = make(dir.path());
    for device in engines(&path) {
        let mut disk = device.queue(2).unwrap();
        let read = move || read_blocking(&mut *disk, 0, 4096).map(|buf| buf.len());
        assert_eq!(std::thread::spawn(read).join().unwrap(), Ok(4096));
    }
}

#[test]
fn dropping_a_queue_waits_for_the_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = make(dir.path());
    for device in engines(&path).into_iter().filter(FileDevice::has_ring) {
        let mut seg = SegBuf::zeroed(1 << 20);
        let frozen = seg.freeze(1 << 20);
        let mut disk = device.queue(2).unwrap();
        disk.submit(
            1,
            Op::Write {
                offset: 0,
                data: frozen,
            },
        );
        disk.kick();
        drop(disk);
        assert!(seg.recycle().is_ok());
        assert_eq!(device.counters().writes, u64::from(device.has_ring()));
    }
}

#[test]
fn the_poll_descriptor_is_readable_when_something_ended() {
    use rustix::event::{PollFd, PollFlags, poll};
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = make(dir.path());
    let mut polled = 0;
    for device in engines(&path) {
        let mut disk = device.queue(2).unwrap();
        let Some(fd) = disk.poll_fd() else { continue };
        polled += 1;
        for round in 0..20 {
            disk.submit(
                round,
                Op::Read {
                    offset: 0,
                    buf: Buf::zeroed(4096),
                },
            );
            disk.kick();
            // SAFETY: the descriptor belongs to the queue, which outlives this borrow.
            let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
            let timeout = rustix::event::Timespec {
                tv_sec: 10,
                tv_nsec: 0,
            };
            let ready = loop {
                match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
                    Err(rustix::io::Errno::INTR) => {}
                    other => break other.unwrap(),
                }
            };
            assert_eq!(ready, 1, "{}", device.describe());
            let mut done = Vec::new();
            disk.reap(Wait::No, &mut done);
            assert_eq!(
                done.len(),
                1,
                "readable means something to reap; {}",
                device.describe()
            );
        }
    }
    assert_eq!(polled, 4, "all rings but those with deferred completions");
}

#[test]
fn waiting_with_nothing_to_come_ends_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = make(dir.path());
    for device in engines(&path) {
        let mut disk = device.queue(2).unwrap();
        let start = Instant::now();
        disk.reap(Wait::For(SECOND), &mut Vec::new());
        assert!(start.elapsed() < SECOND / 2, "an idle queue does not wait");
    }
}

#[test]
fn a_queue_of_impossible_depth_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_, device) = make(dir.path());
    for depth in [0, QUEUE_DEPTH_MAX + 1] {
        assert!(matches!(
            device.queue(depth).err(),
            Some(MediaError::Size { .. })
        ));
    }
}

#[test]
#[should_panic(expected = "read at byte 100")]
fn a_misaligned_read_is_a_mistake_of_the_caller() {
    let dir = tempfile::tempdir().unwrap();
    let (_, device) = make(dir.path());
    device.queue(1).unwrap().submit(
        1,
        Op::Read {
            offset: 100,
            buf: Buf::zeroed(4096),
        },
    );
}

#[test]
fn reads_may_be_as_fine_as_the_device_says() {
    let dir = tempfile::tempdir().unwrap();
    let (path, device) = make(dir.path());
    let unit = device.read_unit_bytes();
    assert!(
        unit.is_power_of_two() && (SECTOR_BYTES..=BLOCK_BYTES).contains(&unit),
        "{unit}"
    );
    let written = filled(LEN_BYTES as usize, 5);
    let plain = written.to_vec();
    write_blocking(&mut *device.queue(1).unwrap(), 0, written).unwrap();
    let mut rng = sim::Rng::new(6);
    for device in engines(&path) {
        assert_eq!(device.read_unit_bytes(), unit);
        let mut disk = device.queue(4).unwrap();
        disk.stock_up(2, 2 * BLOCK_BYTES);
        for round in 0..200 {
            let units = 1 + rng.below(2 * BLOCK_BYTES / unit);
            let (from, len) = (
                rng.below(LEN_BYTES as usize / unit - units) * unit,
                units * unit,
            );
            let lent = disk.lend(len).filter(|_| round % 2 == 0);
            let mut buf = lent.unwrap_or_else(|| Buf::zeroed(len));
            buf.set_len(len);
            let offset = from as u64;
            disk.submit(round, Op::Read { offset, buf });
            let done = reap_all(&mut *disk).pop().unwrap();
            done.result.unwrap();
            assert!(
                done.buf.unwrap()[..] == plain[from..][..len],
                "{len} at {from}"
            );
            let mut into = Buf::zeroed(3 * BLOCK_BYTES);
            let into = &mut into[unit..][..len];
            device.read_into(offset, into).unwrap();
            assert!(*into == plain[from..][..len], "{len} at {from}");
        }
        assert_eq!(device.counters().reads, 400);
    }
}

#[test]
fn several_reads_say_what_came_of_each() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("several");
    const LEN_BYTES: usize = 1 << 20;
    for with_ring in [true, false] {
        let path = path.with_extension(with_ring.to_string());
        let device = FileDevice::create(&path, LEN_BYTES as u64, &mut |_| {}).unwrap();
        let device = match with_ring {
            true => device,
            false => device.without_ring(),
        };
        let mut block = Buf::zeroed(LEN_BYTES);
        for (at, byte) in block.iter_mut().enumerate() {
            *byte = (at / 512 % 253) as u8;
        }
        let plain = block[..].to_vec();
        write_blocking(&mut *device.queue(1).unwrap(), 0, block).unwrap();
        for count in [1, 2, 33, 70] {
            let mut memory = Buf::zeroed(count * BLOCK_BYTES);
            let place = |nth: usize| match nth {
                // Beyond the end.
                5 => LEN_BYTES as u64,
                _ => (nth * 37 % 256 * BLOCK_BYTES) as u64,
            };
            let mut reads: Vec<ReadInto<'_>> = memory
                .chunks_mut(BLOCK_BYTES)
                .enumerate()
                .map(|(nth, into)| ReadInto {
                    offset: place(nth),
                    into,
                    result: Ok(()),
                })
                .collect();
            let before = device.counters().reads;
            device.read_several(&mut reads);
            let mut whole = 0;
            for read in &reads {
                match read.offset as usize {
                    LEN_BYTES => assert!(read.result.is_err()),
                    at => {
                        assert!(read.result.is_ok());
                        assert!(*read.into == plain[at..at + BLOCK_BYTES]);
                        whole += 1;
                    }
                }
            }
            assert_eq!(device.counters().reads - before, whole);
        }
    }
}
