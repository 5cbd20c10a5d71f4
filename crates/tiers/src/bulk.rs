//! Many reads at once, handed over in the order asked. For recovery and checks.
//!
//! Promises: what the device gives of a read is handed over, though it does not give all of it, and what is missing is told.

use std::collections::VecDeque;
use std::time::Duration;
use terrace_media::{BLOCK_BYTES, Buf, Disk, Done, MediaError, Op, Wait, read_blocking};

/// Reads under way at once.
const DEPTH: usize = 64;
/// Bytes of them, at most.
const WINDOW_BYTES: usize = 8 << 20;
/// Pauses before what the device did not give is read once more: it may have been its moment.
pub(crate) const READ_AGAIN_AFTER: [Duration; 2] =
    [Duration::from_millis(10), Duration::from_millis(200)];

/// Reads of which parts stay lost, after which no more is waited.
const READS_WAITED_FOR: usize = 4;

/// Blocks that the device did not give.
#[derive(Debug)]
pub(crate) struct Hole {
    /// First byte of what was read, and the one after the last.
    pub from: usize,
    pub to: usize,
    pub error: MediaError,
}

/// What was read: zeros where it has holes.
pub(crate) struct Image<'a> {
    pub bytes: &'a [u8],
    pub holes: &'a [Hole],
}

/// How many more of such reads are worth pauses: where many places are lost, it was not the device's moment.
pub(crate) struct Patience(usize);

impl Default for Patience {
    fn default() -> Patience {
        Patience(READS_WAITED_FOR)
    }
}

/// Reads each (offset, length) of `list`; `f` gets number and result in order.
/// `sharers` threads do the same at once and share the bounds. Nothing else may be under way on `disk`.
pub(crate) fn read_in_order(
    disk: &mut dyn Disk,
    list: &[(u64, usize)],
    sharers: usize,
    mut f: impl FnMut(usize, Result<Image<'_>, MediaError>),
) {
    let (depth, window_bytes) = ((DEPTH / sharers).max(2), WINDOW_BYTES / sharers);
    let mut window: VecDeque<Option<Result<Buf, MediaError>>> = VecDeque::new();
    let (mut sent, mut given, mut bytes) = (0, 0, 0);
    let mut done: Vec<Done> = Vec::new();
    let mut patience = Patience::default();
    // Touching new memory costs more than reading into it: a buffer is used again.
    let mut spare: Vec<Buf> = Vec::new();
    while given < list.len() {
        while sent < list.len()
            && window.len() < depth
            && (bytes < window_bytes || window.is_empty())
        {
            let (offset, len) = list[sent];
            let fits = spare.iter().position(|b| b.len() == len);
            let buf = match fits {
                Some(at) => spare.swap_remove(at),
                None => Buf::zeroed(len),
            };
            disk.submit(sent as u64, Op::Read { offset, buf });
            window.push_back(None);
            bytes += len;
            sent += 1;
        }
        spare.clear();
        take_in(disk, &mut done, &mut window, given);
        while let Some(Some(_)) = window.front() {
            let result = window.pop_front().flatten().expect("seen");
            let ((offset, len), at) = (list[given], given);
            bytes -= len;
            given += 1;
            let read = match result {
                Err(e) if is_worth_it(&e, len) => {
                    while window.iter().any(Option::is_none) {
                        take_in(disk, &mut done, &mut window, given);
                    }
                    read_by_blocks(disk, offset, len, &mut patience)
                }
                whole => whole.map(|buf| (buf, Vec::new())),
            };
            match read {
                Ok((buf, holes)) => {
                    let (bytes, holes) = (&*buf, &*holes);
                    f(at, Ok(Image { bytes, holes }));
                    spare.push(buf);
                }
                Err(e) => f(at, Err(e)),
            }
        }
    }
}

/// Puts reads that have ended into their places; the first is that of read `from`.
fn take_in(
    disk: &mut dyn Disk,
    done: &mut Vec<Done>,
    window: &mut VecDeque<Option<Result<Buf, MediaError>>>,
    from: usize,
) {
    disk.reap(Wait::For(Duration::from_millis(100)), done);
    for d in done.drain(..) {
        let at = (d.token as usize).checked_sub(from);
        if let Some(place) = at.and_then(|at| window.get_mut(at)) {
            *place = Some(d.result.and(d.buf.ok_or(MediaError::Crashed)));
        }
    }
}

/// Whether parts of a read that failed may be there.
fn is_worth_it(error: &MediaError, len: usize) -> bool {
    error.is_of_the_medium() && len > BLOCK_BYTES
}

/// One read, of which the device need not give all. Nothing may be under way.
pub(crate) fn read_what_is_there(
    disk: &mut dyn Disk,
    offset: u64,
    len: usize,
    patience: &mut Patience,
) -> Result<(Buf, Vec<Hole>), MediaError> {
    match read_blocking(disk, offset, len) {
        Err(e) if is_worth_it(&e, len) => read_by_blocks(disk, offset, len, patience),
        whole => whole.map(|buf| (buf, Vec::new())),
    }
}

/// Reads what could not be read whole. An error is none of the medium's.
fn read_by_blocks(
    disk: &mut dyn Disk,
    offset: u64,
    len: usize,
    patience: &mut Patience,
) -> Result<(Buf, Vec<Hole>), MediaError> {
    let mut image = Buf::zeroed(len);
    let all = (0..len).step_by(BLOCK_BYTES);
    let mut lost = read_blocks(disk, offset, &mut image, all)?;
    for pause in READ_AGAIN_AFTER {
        if lost.is_empty() || patience.0 == 0 {
            break;
        }
        std::thread::sleep(pause);
        let again = lost.into_iter().map(|(at, _)| at);
        lost = read_blocks(disk, offset, &mut image, again)?;
    }
    if !lost.is_empty() {
        patience.0 = patience.0.saturating_sub(1);
    }
    Ok((image, joined(lost)))
}

/// Reads blocks, each named by where it is in `image`; answers those that the device does not give.
fn read_blocks(
    disk: &mut dyn Disk,
    offset: u64,
    image: &mut Buf,
    blocks: impl Iterator<Item = usize>,
) -> Result<Vec<(usize, MediaError)>, MediaError> {
    let mut lost = Vec::new();
    for at in blocks {
        match read_blocking(disk, offset + at as u64, BLOCK_BYTES) {
            Ok(block) => image[at..at + BLOCK_BYTES].copy_from_slice(&block),
            Err(e) if e.is_of_the_medium() => lost.push((at, e)),
            Err(e) => return Err(e),
        }
    }
    Ok(lost)
}

/// Neighbours are one hole.
fn joined(lost: Vec<(usize, MediaError)>) -> Vec<Hole> {
    let mut holes: Vec<Hole> = Vec::new();
    for (from, error) in lost {
        match holes.last_mut() {
            Some(before) if before.to == from => {
                before.to += BLOCK_BYTES;
                if let MediaError::Io { len, .. } = &mut before.error {
                    *len += BLOCK_BYTES;
                }
            }
            _ => holes.push(Hole {
                from,
                to: from + BLOCK_BYTES,
                error,
            }),
        }
    }
    holes
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_media::Device;
    use terrace_media::sim::{Fault, SimDevice};

    const BLOCKS: usize = 32;

    /// A device of blocks that are full of their numbers.
    fn device() -> SimDevice {
        let block = |n| [n as u8 + 1; BLOCK_BYTES];
        SimDevice::with_image((0..BLOCKS).flat_map(block).collect(), 5)
    }

    fn lose(device: &SimDevice, block: u64, fault: Fault) {
        let at = block * BLOCK_BYTES as u64;
        let fault = fault.in_range(at..at + BLOCK_BYTES as u64);
        device.faults().fail_read(fault);
    }

    /// Reads eight blocks at a time; the holes in blocks of the device, and whether all else was there.
    fn read(device: &SimDevice) -> Vec<std::ops::Range<usize>> {
        let list: Vec<(u64, usize)> = (0..BLOCKS / 8)
            .map(|n| ((n * 8 * BLOCK_BYTES) as u64, 8 * BLOCK_BYTES))
            .collect();
        let (mut holes, mut next) = (Vec::new(), 0);
        read_in_order(&mut *device.queue(8).unwrap(), &list, 2, |at, image| {
            assert_eq!(at, next);
            next += 1;
            let image = image.unwrap();
            let first = at * 8;
            let of = |h: &Hole| first + h.from / BLOCK_BYTES..first + h.to / BLOCK_BYTES;
            holes.extend(image.holes.iter().map(of));
            for (n, block) in image.bytes.chunks(BLOCK_BYTES).enumerate() {
                let lost = holes.iter().any(|h| h.contains(&(first + n)));
                let expected = if lost { 0 } else { (first + n) as u8 + 1 };
                assert!(block.iter().all(|b| *b == expected), "block {}", first + n);
            }
        });
        assert_eq!(next, list.len());
        holes
    }

    #[test]
    fn what_the_device_does_not_give_costs_its_blocks_and_no_more() {
        let device = device();
        assert_eq!(read(&device), []);
        for block in [3, 10, 11, 31] {
            lose(&device, block, Fault::eio().always());
        }
        assert_eq!(read(&device), [3..4, 10..12, 31..32]);
        device.faults().clear();
        // Its moment: the whole read, and the block for the first time.
        lose(&device, 9, Fault::eio());
        lose(&device, 9, Fault::eio());
        assert_eq!(read(&device), []);
    }

    #[test]
    fn an_error_of_another_kind_is_the_whole_reads() {
        let device = device();
        lose(&device, 3, Fault::enospc().always());
        let list = [(0, 8 * BLOCK_BYTES), (8 * BLOCK_BYTES as u64, BLOCK_BYTES)];
        let mut read = Vec::new();
        read_in_order(&mut *device.queue(8).unwrap(), &list, 1, |_, image| {
            read.push(image.is_ok());
        });
        assert_eq!(read, [false, true]);
    }
}
