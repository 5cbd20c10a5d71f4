//! Bytes from a medium: entries and segments. What must hold whatever they are: no panic, no endless walk, no length beyond the
//! bytes; and what is accepted can be written again as it is.
//!
//! Chance hardly ever meets a checksum, so each input is tried twice: as it is, and with its checksums made right. The second is what a
//! damage that happens to pass its 32 bits would look like, and must be as harmless.

use terrace_log::entry::HEADER_BYTES;
use terrace_log::frame::{BATCH_HEADER_BYTES, Life, SEGMENT_HEADER_BYTES, SegmentHeader};
use terrace_log::scan::{Found, Item, batches, entries};
use terrace_log::{Entry, UNIT_BYTES};

const LIFE: Life = Life {
    pool: 7,
    lane: 1,
    segment: 3,
    generation: 9,
};
const BLOCK_BYTES: usize = 4_096;

/// One entry at the start of bytes.
pub fn entry(data: &[u8]) {
    let seed = LIFE.seed(64);
    let mut bytes = data.to_vec();
    look(&bytes, seed);
    seal_entry(&mut bytes, seed);
    look(&bytes, seed);
    // As it lies in a warm image, whose parts are verified whole.
    if let Some(entry) = Entry::left_in_memory(data) {
        assert!(entry.len_bytes() <= data.len() && entry.len_bytes().is_multiple_of(UNIT_BYTES));
        assert!(HEADER_BYTES + entry.key().len() + entry.value().len() <= entry.len_bytes());
        let _ = (entry.kind(), entry.version(), entry.expired(u64::MAX));
    }
}

fn look(bytes: &[u8], seed: u32) {
    let Ok(entry) = Entry::from_media(bytes, seed) else {
        return;
    };
    assert!(entry.len_bytes() <= bytes.len() && entry.len_bytes().is_multiple_of(UNIT_BYTES));
    let fields = (entry.key().len(), entry.value().len());
    assert!(HEADER_BYTES + fields.0 + fields.1 <= entry.len_bytes());
    let _ = (entry.expired(u64::MAX), entry.link(), entry.prefix_flag());
    if entry.verify_value(seed).is_ok() {
        let new = entry.to_new();
        let mut again = vec![0; new.len_bytes()];
        let len = new.write_sealed(&mut again, seed);
        let back = Entry::from_media(&again[..len], seed).expect("what was written is read");
        back.verify_value(seed).expect("with its value");
        assert_eq!(back.key(), entry.key());
        assert_eq!(back.value(), entry.value());
        assert_eq!(back.expiry_ms(), entry.expiry_ms());
        assert_eq!(back.version(), entry.version());
    }
}

/// Makes the checksums right of what may be an entry, as far as its lengths fit.
fn seal_entry(bytes: &mut [u8], seed: u32) {
    if bytes.len() < HEADER_BYTES {
        return;
    }
    let number = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]) as usize;
    let fields = 8 * (bytes[19] & 3).count_ones() as usize;
    let key_end = HEADER_BYTES + fields + number(16);
    let value_end = key_end + number(20) + (number(22) << 16);
    if value_end > bytes.len() {
        return;
    }
    let crc = crc32c::crc32c_append(seed, &bytes[key_end..value_end]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c::crc32c_append(seed, &bytes[4..key_end]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
}

/// A segment of four blocks; the input says what lies where.
pub fn segment(data: &[u8]) {
    let mut image = vec![0; 4 * BLOCK_BYTES];
    // Each part: where (in units of 16 bytes), how long, bytes.
    let mut rest = data;
    while let [low, high, len, behind @ ..] = rest {
        let at = usize::from(u16::from_le_bytes([*low, *high])) * UNIT_BYTES % image.len();
        let n = usize::from(*len).min(behind.len()).min(image.len() - at);
        image[at..at + n].copy_from_slice(&behind[..n]);
        rest = &behind[n..];
    }
    let _ = SegmentHeader::read(&image, LIFE.pool, LIFE.lane, LIFE.segment);
    walk(&image);
    seal_segment(&mut image);
    walk(&image);
}

fn walk(image: &[u8]) {
    let mut before = SEGMENT_HEADER_BYTES;
    for found in batches(image, &LIFE) {
        match found {
            Found::Damage(from, to) => {
                assert!(before <= from && from < to && to <= image.len());
                before = to;
            }
            Found::Batch(at, header) => {
                assert!(before <= at);
                let end = at + header.len_bytes as usize;
                assert!(end <= image.len());
                let mut from = at + BATCH_HEADER_BYTES;
                for item in entries(image, &LIFE, at, &header) {
                    let to = match item {
                        Item::Entry(here, entry, _) => {
                            assert_eq!(here, from);
                            here + entry.len_bytes()
                        }
                        Item::Damage(here, to) => {
                            assert_eq!(here, from);
                            to
                        }
                    };
                    assert!(from < to && to <= end);
                    from = to;
                }
                before = end;
            }
        }
    }
}

/// Makes right the checksums of what may be batches, at the start and at each block, and of what may be entries in them.
fn seal_segment(image: &mut [u8]) {
    const MAGIC: u32 = 0x5442_4154;
    let blocks = (1..image.len() / BLOCK_BYTES).map(|n| n * BLOCK_BYTES);
    for at in std::iter::once(SEGMENT_HEADER_BYTES).chain(blocks) {
        image[at..at + 4].copy_from_slice(&MAGIC.to_le_bytes());
        let crc = crc32c::crc32c_append(LIFE.seed(at), &image[at + 8..at + BATCH_HEADER_BYTES]);
        image[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        let mut from = at + BATCH_HEADER_BYTES;
        while from + HEADER_BYTES <= image.len() {
            let seed = LIFE.seed(from);
            seal_entry(&mut image[from..], seed);
            match Entry::from_media(&image[from..], seed) {
                Ok(entry) => from += entry.len_bytes(),
                Err(_) => break,
            }
        }
    }
}
