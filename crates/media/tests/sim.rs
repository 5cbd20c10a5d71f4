//! The simulated device: what it promises to crash tests, faults, events, and the property that
//! every crash image lies between what is durable and what was written.

use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use terrace_media::sim::*;
use terrace_media::*;

const BLOCK: usize = BLOCK_BYTES;

fn block(byte: u8) -> Buf {
    let mut buf = Buf::zeroed(BLOCK);
    buf.fill(byte);
    buf
}

fn write(disk: &mut dyn Disk, index: u64, byte: u8) -> Result<(), MediaError> {
    write_blocking(disk, index * BLOCK as u64, block(byte)).map(|_| ())
}

fn write_through(
    disk: &mut dyn Disk,
    index: u64,
    blocks: usize,
    byte: u8,
) -> Result<(), MediaError> {
    let mut segment = SegBuf::zeroed(blocks * BLOCK);
    segment.open_mut().fill(byte);
    let (offset, data) = (index * BLOCK as u64, segment.freeze(blocks * BLOCK));
    let op = Op::WriteThrough { offset, data };
    run_among(disk, op, &mut Vec::new()).result
}

fn first_bytes(image: &[u8]) -> Vec<u8> {
    image.chunks(BLOCK).map(|b| b[0]).collect()
}

#[test]
fn reads_see_writes_and_a_crash_loses_only_what_no_flush_covers() {
    let device = SimDevice::new(4 * BLOCK as u64, 1);
    let mut disk = device.queue(8).unwrap();
    write(&mut *disk, 0, 1).unwrap();
    flush_blocking(&mut *disk).unwrap();
    write(&mut *disk, 1, 2).unwrap();
    assert!(
        read_blocking(&mut *disk, BLOCK as u64, BLOCK)
            .unwrap()
            .iter()
            .all(|&b| b == 2)
    );
    assert_eq!(first_bytes(&device.durable_image()), [1, 0, 0, 0]);
    assert_eq!(device.unflushed_writes(), 1);
    let images: Vec<Vec<u8>> = (0..2000).map(|seed| device.crash_image(seed)).collect();
    assert!(
        images
            .iter()
            .all(|image| image[..BLOCK].iter().all(|&b| b == 1))
    );
    let sectors_kept = |image: &Vec<u8>| {
        image[BLOCK..2 * BLOCK].iter().filter(|&&b| b == 2).count() / SECTOR_BYTES
    };
    let kept: HashSet<usize> = images.iter().map(sectors_kept).collect();
    assert_eq!(
        kept,
        (0..=BLOCK / SECTOR_BYTES).collect(),
        "lost, kept, and torn in every degree"
    );
    assert_eq!(device.counters().writes, 2);
    assert_eq!(device.counters().flushes, 1);
    assert_eq!(
        (device.counters().reads, device.counters().read_bytes),
        (1, BLOCK as u64)
    );
}

#[test]
fn a_write_through_is_durable_when_it_ends_and_nothing_else_is() {
    let device = SimDevice::new(4 * BLOCK as u64, 1);
    let mut disk = device.queue(8).unwrap();
    write(&mut *disk, 0, 1).unwrap();
    write(&mut *disk, 1, 2).unwrap();
    write_through(&mut *disk, 1, 2, 3).unwrap();
    assert_eq!(first_bytes(&device.durable_image()), [0, 3, 3, 0]);
    let seen: HashSet<Vec<u8>> = (0..200)
        .map(|seed| first_bytes(&device.crash_image(seed)))
        .collect();
    assert_eq!(
        seen,
        HashSet::from([vec![0, 3, 3, 0], vec![1, 3, 3, 0]]),
        "what it overwrote never comes back"
    );
    let counters = device.counters();
    assert_eq!((counters.writes, counters.flushes), (3, 1));
    for fails in [Faults::fail_write, Faults::fail_flush] {
        fails(&device.faults(), Fault::eio());
        let failed = write_through(&mut *disk, 3, 1, 4);
        assert_eq!(failed.unwrap_err().errno(), Some(5));
        assert_eq!(device.durable_image()[3 * BLOCK], 0);
    }
    write_through(&mut *disk, 3, 1, 4).unwrap();
    assert_eq!(device.durable_image()[3 * BLOCK], 4);
}

#[test]
fn a_flush_covers_only_what_had_completed_when_it_was_submitted() {
    let mut flush_ended_first = 0;
    for seed in 0..100 {
        let device = SimDevice::new(BLOCK as u64, seed);
        let mut disk = device.queue(8).unwrap();
        disk.submit(
            1,
            Op::WriteBuf {
                offset: 0,
                buf: block(9),
            },
        );
        disk.submit(2, Op::Flush);
        let mut done = Vec::new();
        while disk.in_flight() > 0 {
            disk.reap(Wait::No, &mut done);
        }
        flush_ended_first += u32::from(done[0].token == 2);
        assert_eq!(
            device.durable_image()[0],
            0,
            "in flight together: not covered"
        );
        flush_blocking(&mut *disk).unwrap();
        assert_eq!(device.durable_image()[0], 9);
        assert_eq!(device.unflushed_writes(), 0);
    }
    assert!(
        (20..80).contains(&flush_ended_first),
        "{flush_ended_first} of 100 in the other order"
    );
}

#[test]
fn overlapping_open_writes_can_each_win() {
    let device = SimDevice::new(BLOCK as u64, 3);
    let mut disk = device.queue(8).unwrap();
    write(&mut *disk, 0, 1).unwrap();
    write(&mut *disk, 0, 2).unwrap();
    let seen: HashSet<u8> = (0..100).map(|seed| device.crash_image(seed)[0]).collect();
    assert_eq!(seen, HashSet::from([0, 1, 2]));
    flush_blocking(&mut *disk).unwrap();
    assert_eq!(
        device.durable_image()[0],
        2,
        "the later completion wins when both are flushed"
    );
}

#[test]
fn the_hook_sees_every_event_once_and_may_take_images() {
    let device = SimDevice::new(BLOCK as u64 * 2, 5);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    device.set_hook(Some(Box::new(move |device, event| {
        assert_eq!(event.number, device.events());
        let image = device.crash_image(event.number);
        log.lock().unwrap().push((event.kind, image.len()));
    })));
    let mut disk = device.queue(8).unwrap();
    write(&mut *disk, 1, 1).unwrap();
    read_blocking(&mut *disk, 0, BLOCK).unwrap();
    flush_blocking(&mut *disk).unwrap();
    let (offset, len) = (BLOCK as u64, BLOCK);
    let kinds: Vec<EventKind> = seen.lock().unwrap().iter().map(|(kind, _)| *kind).collect();
    let expected = [
        EventKind::WriteSubmitted { offset, len },
        EventKind::WriteCompleted { offset, len },
        EventKind::FlushCompleted,
    ];
    assert_eq!(kinds, expected);
    device.set_hook(None);
    flush_blocking(&mut *disk).unwrap();
    assert_eq!((device.events(), seen.lock().unwrap().len()), (4, 3));
}

#[test]
fn after_the_crash_nothing_succeeds_and_nothing_changes() {
    for crash_at in 0..=3 {
        let device = SimDevice::new(BLOCK as u64, 5);
        device.crash_at(crash_at);
        let mut disk = device.queue(8).unwrap();
        let results = [
            write(&mut *disk, 0, 1),    // events 1 and 2
            flush_blocking(&mut *disk), // event 3
            read_blocking(&mut *disk, 0, BLOCK).map(|_| ()),
            write(&mut *disk, 0, 2),
            flush_blocking(&mut *disk),
        ];
        let fine = results.iter().filter(|r| r.is_ok()).count() as u64;
        // An event that happens is an operation that succeeds, but for the one of submission.
        assert_eq!(fine, crash_at.saturating_sub(1), "{results:?}");
        assert!(
            results[fine as usize..]
                .iter()
                .all(|r| *r == Err(MediaError::Crashed))
        );
        assert_eq!(device.events(), crash_at);
        let seen: HashSet<u8> = (0..50).map(|seed| device.crash_image(seed)[0]).collect();
        let expected: &[u8] = match crash_at {
            0 => &[0],
            1 | 2 => &[0, 1],
            _ => &[1],
        };
        assert_eq!(
            seen,
            expected.iter().copied().collect(),
            "crash after event {crash_at}"
        );
    }
}

#[test]
fn rules_fail_what_they_name_and_no_more() {
    let device = SimDevice::new(8 * BLOCK as u64, 6);
    let mut disk = device.queue(8).unwrap();
    let range = 2 * BLOCK as u64..3 * BLOCK as u64;
    device
        .faults()
        .fail_read(Fault::eio().in_range(range.clone()).after(1).always());
    let mut read = |index: u64| {
        read_blocking(&mut *disk, index * BLOCK as u64, BLOCK)
            .map(|_| ())
            .map_err(|e| e.errno())
    };
    let results = [read(2), read(1), read(2), read(3), read(2)];
    assert_eq!(
        results,
        [Ok(()), Ok(()), Err(Some(5)), Ok(()), Err(Some(5))]
    );
    device.faults().clear();
    assert_eq!(read(2), Ok(()));

    device.faults().fail_write(Fault::enospc());
    let failed = write(&mut *disk, 4, 7).unwrap_err();
    assert_eq!(
        failed,
        MediaError::Io {
            op: "write",
            offset: 4 * BLOCK as u64,
            len: BLOCK,
            errno: 28
        }
    );
    assert_eq!(
        (device.image()[4 * BLOCK], device.unflushed_writes()),
        (0, 0)
    );
    write(&mut *disk, 4, 7).unwrap();

    device.faults().flip_bit(4 * BLOCK as u64 + 5, 3);
    let seen = read_blocking(&mut *disk, 4 * BLOCK as u64, BLOCK).unwrap();
    assert_eq!((seen[4], seen[5]), (7, 7 ^ 8));
    flush_blocking(&mut *disk).unwrap();
    assert_eq!(device.crash_image(1)[4 * BLOCK + 5], 7 ^ 8);
}

#[test]
fn a_failed_write_leaves_any_part_of_itself() {
    let device = SimDevice::new(BLOCK as u64, 11);
    let mut disk = device.queue(1).unwrap();
    device.faults().fail_write(Fault::eio());
    assert_eq!(write(&mut *disk, 0, 3).unwrap_err().errno(), Some(5));
    let landed = device.image();
    let sectors: Vec<u8> = landed.chunks(SECTOR_BYTES).map(|s| s[0]).collect();
    assert!(sectors.contains(&0) && sectors.contains(&3), "{sectors:?}");
    flush_blocking(&mut *disk).unwrap();
    assert_eq!(device.durable_image(), landed);
}

#[test]
fn a_failed_flush_is_not_made_good_by_the_next_one() {
    let device = SimDevice::new(2 * BLOCK as u64, 12);
    let mut disk = device.queue(1).unwrap();
    write(&mut *disk, 0, 1).unwrap();
    device.faults().fail_flush(Fault::eio());
    assert_eq!(flush_blocking(&mut *disk).unwrap_err().errno(), Some(5));
    flush_blocking(&mut *disk).unwrap();
    let seen: HashSet<u8> = (0..50).map(|seed| device.crash_image(seed)[0]).collect();
    assert_eq!(
        seen,
        HashSet::from([0, 1]),
        "the cache may be gone for good"
    );
    write(&mut *disk, 0, 2).unwrap();
    flush_blocking(&mut *disk).unwrap();
    let seen: HashSet<u8> = (0..50).map(|seed| device.crash_image(seed)[0]).collect();
    assert_eq!(
        seen,
        HashSet::from([2]),
        "written again and flushed: certain"
    );
}

#[test]
fn equal_seeds_give_equal_runs() {
    let run = |seed| {
        let device = SimDevice::new(64 * BLOCK as u64, seed);
        let mut disk = device.queue(64).unwrap();
        (0..64u8).for_each(|n| {
            disk.submit(
                n.into(),
                Op::WriteBuf {
                    offset: u64::from(n) * BLOCK as u64,
                    buf: block(n),
                },
            );
        });
        let mut done = Vec::new();
        let mut rounds = Vec::new();
        while disk.in_flight() > 0 {
            disk.reap(Wait::No, &mut done);
            rounds.push(done.len());
        }
        let order: Vec<u64> = done.iter().map(|d| d.token).collect();
        (rounds, order, device.crash_image(seed))
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).1, run(2).1);
    assert_ne!(
        run(1).1,
        (0..64).collect::<Vec<_>>(),
        "completions come out of order"
    );
}

#[test]
fn without_reordering_all_end_at_once_in_order() {
    let device = SimDevice::new(16 * BLOCK as u64, 1);
    device.faults().set_reorder(false);
    let mut disk = device.queue(2).unwrap();
    (0..16).for_each(|n| {
        disk.submit(
            n,
            Op::Read {
                offset: n * BLOCK as u64,
                buf: block(0),
            },
        )
    });
    let mut done = Vec::new();
    disk.reap(Wait::No, &mut done);
    assert_eq!(
        done.iter().map(|d| d.token).collect::<Vec<_>>(),
        (0..16).collect::<Vec<_>>()
    );
}

#[test]
fn an_image_restarts_and_ranges_are_checked() {
    let mut image = vec![0; 2 * BLOCK];
    image[BLOCK] = 77;
    let device = SimDevice::with_image(image, 1);
    let mut disk = device.queue(1).unwrap();
    assert_eq!(
        read_blocking(&mut *disk, BLOCK as u64, BLOCK).unwrap()[0],
        77
    );
    assert_eq!(device.crash_image(4)[BLOCK], 77);
    let beyond = read_blocking(&mut *disk, BLOCK as u64, 2 * BLOCK);
    assert!(matches!(beyond, Err(MediaError::OutOfRange { .. })));
}

#[test]
fn a_dropped_queue_settles_its_writes() {
    let mut landed = 0;
    for seed in 0..100 {
        let device = SimDevice::new(BLOCK as u64, seed);
        let mut disk = device.queue(1).unwrap();
        disk.submit(
            1,
            Op::WriteBuf {
                offset: 0,
                buf: block(1),
            },
        );
        drop(disk);
        let now = device.image()[0];
        landed += u32::from(now);
        flush_blocking(&mut *device.queue(1).unwrap()).unwrap();
        assert_eq!(
            device.durable_image()[0],
            now,
            "nothing lands after the drop"
        );
    }
    assert!((20..80).contains(&landed), "{landed} of 100 happened");
}

/// A step of the property test.
#[derive(Debug, Clone)]
enum Step {
    Write { index: u64, blocks: usize },
    Through { index: u64, blocks: usize },
    Flush { fails: bool },
    Reap,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..8u64, 1..3usize).prop_map(|(index, blocks)| Step::Write { index, blocks }),
        2 => (0..8u64, 1..3usize).prop_map(|(index, blocks)| Step::Through { index, blocks }),
        2 => prop::bool::weighted(0.2).prop_map(|fails| Step::Flush { fails }),
        3 => Just(Step::Reap),
    ]
}

/// An independent, slow model: per sector the set of values a crash may show, and what was
/// certain. Every write has a value of its own.
struct Model {
    possible: Vec<HashSet<u8>>,
    /// Writes that completed, in order: (range of sectors, value, submission order).
    completed: Vec<(std::ops::Range<usize>, u8)>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Each sector of a crash image holds either the durable value or that of a write which may
    /// still be open; and what reads see is one of these too.
    #[test]
    fn crash_images_lie_between_durable_and_written(
        steps in prop::collection::vec(step(), 1..60),
        seed in any::<u64>(),
    ) {
        let sectors = 9 * BLOCK / SECTOR_BYTES;
        let device = SimDevice::new(9 * BLOCK as u64, seed);
        let mut disk = device.queue(8).unwrap();
        let mut model = Model { possible: vec![HashSet::from([0]); sectors], completed: Vec::new() };
        let mut open = std::collections::HashMap::new();
        let mut value = 0u8;
        for (token, step) in steps.iter().enumerate() {
            match *step {
                Step::Write { index, blocks } => {
                    let blocks = blocks.min(9 - index as usize);
                    value += 1;
                    let mut buf = Buf::zeroed(blocks * BLOCK);
                    buf.fill(value);
                    let first = index as usize * BLOCK / SECTOR_BYTES;
                    let range = first..first + blocks * BLOCK / SECTOR_BYTES;
                    range.clone().for_each(|s| { model.possible[s].insert(value); });
                    open.insert(token as u64, (range, value));
                    disk.submit(token as u64, Op::WriteBuf { offset: index * BLOCK as u64, buf });
                }
                Step::Through { index, blocks } => {
                    // Alone in flight, as a flush below: its sectors are certain, and no others.
                    let mut done = Vec::new();
                    while disk.in_flight() > 0 {
                        disk.reap(Wait::No, &mut done);
                    }
                    for d in done {
                        model.completed.push(open.remove(&d.token).unwrap());
                    }
                    let blocks = blocks.min(9 - index as usize);
                    value += 1;
                    prop_assert!(write_through(&mut *disk, index, blocks, value).is_ok());
                    let first = index as usize * BLOCK / SECTOR_BYTES;
                    let range = first..first + blocks * BLOCK / SECTOR_BYTES;
                    range.clone().for_each(|s| model.possible[s] = HashSet::from([value]));
                    model.completed.push((range, value));
                }
                Step::Flush { fails } => {
                    // Alone in flight, so that the model stays simple: all completed is covered.
                    let mut done = Vec::new();
                    while disk.in_flight() > 0 {
                        disk.reap(Wait::No, &mut done);
                    }
                    for d in done {
                        model.completed.push(open.remove(&d.token).unwrap());
                    }
                    if fails {
                        device.faults().fail_flush(Fault::eio());
                        prop_assert!(flush_blocking(&mut *disk).is_err());
                        // From here on nothing more is certain about these; keep what is possible.
                        model.completed.clear();
                    } else {
                        flush_blocking(&mut *disk).unwrap();
                        for (range, value) in model.completed.drain(..) {
                            for s in range {
                                model.possible[s] = HashSet::from([value]);
                            }
                        }
                    }
                }
                Step::Reap => {
                    let mut done = Vec::new();
                    disk.reap(Wait::No, &mut done);
                    for d in done {
                        prop_assert_eq!(d.result, Ok(()));
                        model.completed.push(open.remove(&d.token).unwrap());
                    }
                }
            }
            let seeds = [seed, seed ^ token as u64, token as u64];
            let images = seeds.iter().map(|&s| device.crash_image(s)).chain([device.image(), device.durable_image()]);
            for image in images {
                for (s, sector) in image.chunks(SECTOR_BYTES).enumerate() {
                    prop_assert!(sector.iter().all(|&b| b == sector[0]), "sector {} is torn", s);
                    prop_assert!(
                        model.possible[s].contains(&sector[0]),
                        "sector {} shows {}, possible is {:?}", s, sector[0], model.possible[s]
                    );
                }
            }
        }
    }
}
