//! Walks the bytes of a segment that came from a medium.
//!
//! Promises: finds every batch and entry whose checksums hold, whatever
//! happened to the bytes between them, and names the ranges that are damaged.

use crate::addr::UNIT_BYTES;
use crate::entry::{Entry, EntryError};
use crate::frame::{BATCH_HEADER_BYTES, BatchHeader, Life, SEGMENT_HEADER_BYTES};
use terrace_media::BLOCK_BYTES;

/// A batch, or a damaged range before a later batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A batch whose header holds, at this offset.
    Batch(usize, BatchHeader),
    /// Bytes from .. to that should have held a batch.
    Damage(usize, usize),
}

/// Batches of a segment in the order they were written.
pub fn batches(segment: &[u8], life: &Life) -> Vec<Found> {
    let mut found = Vec::new();
    let mut at = SEGMENT_HEADER_BYTES;
    while at + BATCH_HEADER_BYTES <= segment.len() {
        if let Some(header) = BatchHeader::read(segment, life, at) {
            found.push(Found::Batch(at, header));
            at = (at + header.len_bytes as usize).next_multiple_of(BLOCK_BYTES);
            continue;
        }
        let mut next = (at + 1).next_multiple_of(BLOCK_BYTES);
        while next + BATCH_HEADER_BYTES <= segment.len()
            && BatchHeader::read(segment, life, next).is_none()
        {
            next += BLOCK_BYTES;
        }
        if next + BATCH_HEADER_BYTES > segment.len() {
            break;
        }
        found.push(Found::Damage(at, next));
        at = next;
    }
    found
}

/// One step of [`entries`].
pub enum Item<'a> {
    /// An entry at an offset; the error tells that its value is damaged.
    Entry(usize, Entry<'a>, Result<(), EntryError>),
    /// Bytes from .. to of the segment hold no entry that can be read.
    Damage(usize, usize),
}

/// The entry or damage at offset `at` of a segment, in a batch that ends at
/// `end`, and the offset behind it. None at the end.
pub fn next<'a>(
    segment: &'a [u8],
    life: &Life,
    at: usize,
    end: usize,
) -> Option<(Item<'a>, usize)> {
    next_based(segment, 0, life, at, end)
}

/// The same when `bytes` start at offset `base` of the segment; all other offsets
/// are of the segment.
pub fn next_based<'a>(
    bytes: &'a [u8],
    base: usize,
    life: &Life,
    at: usize,
    end: usize,
) -> Option<(Item<'a>, usize)> {
    let end = end.min(base + bytes.len());
    let from = at;
    let mut at = at;
    while at < end {
        let seed = life.seed(at);
        match Entry::from_media(&bytes[at - base..end - base], seed) {
            Ok(entry) if at == from => {
                let value = entry.verify_value(seed);
                let next = at + entry.len_bytes();
                return Some((Item::Entry(from, entry, value), next));
            }
            Ok(_) => break,
            Err(_) => at += UNIT_BYTES,
        }
    }
    (from < end).then(|| (Item::Damage(from, at.min(end)), at))
}

/// Entries of the batch at `offset`, in order.
pub fn entries<'a>(
    segment: &'a [u8],
    life: &'a Life,
    offset: usize,
    header: &BatchHeader,
) -> impl Iterator<Item = Item<'a>> + 'a {
    let end = offset + header.len_bytes as usize;
    let mut at = offset + BATCH_HEADER_BYTES;
    std::iter::from_fn(move || {
        let (item, behind) = next(segment, life, at, end)?;
        at = behind;
        Some(item)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::{BatchInfo, SegmentWriter};
    use crate::{Kind, Loc, NewEntry};
    use terrace_media::SegBuf;

    const LIFE: Life = Life {
        pool: 7,
        lane: 1,
        segment: 3,
        generation: 9,
    };

    fn filled() -> Vec<u8> {
        let mut w = SegmentWriter::new(SegBuf::zeroed(64 << 10), LIFE);
        let info = BatchInfo {
            epoch: 5,
            clock_ms: 1,
            floor: 0,
            flags: 0,
            attempt: 0,
        };
        let mut image = vec![0; 64 << 10];
        for seq in 0..3u64 {
            w.begin_batch(seq);
            for i in 0..20u32 {
                let key = format!("key-{seq}-{i}");
                let new = NewEntry {
                    kind: Kind::Value,
                    space: 0,
                    flags: 0,
                    link: Loc::NONE,
                    expiry_ms: None,
                    version: None,
                    key: key.as_bytes(),
                    value: &[i as u8; 100],
                };
                let at = w.append(&new).unwrap();
                assert_eq!(w.entry(at).key(), key.as_bytes());
            }
            let (at, _, bytes) = w.end_batch(&info);
            image[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        image
    }

    fn count(image: &[u8]) -> (usize, usize) {
        let (mut good, mut bad) = (0, 0);
        for found in batches(image, &LIFE) {
            match found {
                Found::Damage(..) => bad += 1,
                Found::Batch(at, h) => {
                    for item in entries(image, &LIFE, at, &h) {
                        match item {
                            Item::Entry(_, _, Ok(())) => good += 1,
                            _ => bad += 1,
                        }
                    }
                }
            }
        }
        (good, bad)
    }

    #[test]
    fn a_flip_costs_one_entry_or_one_batch_and_is_named() {
        let image = filled();
        assert_eq!(count(&image), (60, 0));
        let used = image.iter().rposition(|&b| b != 0).unwrap();
        for byte in (SEGMENT_HEADER_BYTES..used).step_by(7) {
            let mut hurt = image.clone();
            hurt[byte] ^= 16;
            let (good, bad) = count(&hurt);
            let last_header = batches(&image, &LIFE).len() == 3 && good == 40 && bad == 0;
            assert!(
                good == 60 || (bad == 1 && good >= 40) || last_header,
                "{byte}: {good} {bad}"
            );
        }
    }

    #[test]
    fn another_life_reads_nothing() {
        let image = filled();
        let other = Life {
            generation: 10,
            ..LIFE
        };
        assert!(batches(&image, &other).is_empty());
    }
}
