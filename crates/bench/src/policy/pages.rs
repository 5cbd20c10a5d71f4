//! Part `pages`: how often a key-value server's pages fault, by which of them leave the page buffer first: what seeing each use would be worth (docs/adr/0055).
//!
//! The trace is of pages: each GET by Zipf's law touches a page of the hash table, one of entries, one of keys, one of objects and one or two of the value, as Redis does with an allocator that keeps sizes
//! apart. Never: runs the product's code; its way is a model here, and what it says of the product is checked against `bench run --only c`.

use super::reference::{self, Policy, share};
use super::trace::{self, Kind, Operation};
use crate::Setting;
use crate::progress::Progress;
use crate::report::{Part, Report, Row, Samples};
use crate::stop;
use anyhow::Result;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

const PAGE_BYTES: u64 = 4096;
const MIB: u64 = 1 << 20;
const KEYS: u64 = 1 << 20;
const OPERATIONS: u64 = 1 << 20;
/// Buffers that are looked at, MiB.
const BUFFERS_MIB: &[u64] = &[60, 128, 160, 288];
/// Bytes of a key in each of what is touched: in the hash table, and objects by the sizes of an allocator.
const TOUCHED: [u64; 5] = [8, 32, 32, 16, 1280];
/// Of the last so many are touched.
const VALUE_BYTES: u64 = 1030;

/// The pages that operations on keys touch.
fn pages(keys: &[Operation], count: u64) -> Vec<Operation> {
    let mut touched = Vec::with_capacity(keys.len() * 6);
    for &(key, _) in keys {
        let mut first = 0;
        for (nth, bytes) in TOUCHED.into_iter().enumerate() {
            // The table is in the order of a hash.
            let place = match nth {
                0 => u64::from(key).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20,
                _ => u64::from(key),
            } % count;
            let at = place * bytes;
            let page = |at: u64| ((first + at / PAGE_BYTES) as u32, false);
            touched.push(page(at));
            if nth + 1 == TOUCHED.len() && page(at + VALUE_BYTES) != page(at) {
                touched.push(page(at + VALUE_BYTES));
            }
            first += (count * bytes).div_ceil(PAGE_BYTES) + 1;
        }
    }
    touched
}

/// Pages leave in the order of their addresses; those that came back again and again soon after they left stay some rounds longer (vm's hand and its ghost, ADR 0015 and 0050).
pub fn by_address(trace: &[Operation], from: usize, capacity: usize) -> f64 {
    const ROUNDS_A_HEAT: u64 = 4;
    const HEAT_MAX: u8 = 3;
    let mut heats: BTreeMap<u32, u8> = BTreeMap::new();
    // How often a page came back, and when it left, in pages that left.
    let mut ghost: HashMap<u32, (u8, u64)> = HashMap::new();
    let (mut hand, mut round, mut left) = (Bound::Unbounded, 0, 0);
    share(trace, from, |_, (page, _)| {
        if heats.contains_key(&page) {
            return true;
        }
        while heats.len() >= capacity {
            let Some((&at, heat)) = heats.range_mut((hand, Bound::Unbounded)).next() else {
                (hand, round) = (Bound::Unbounded, round + 1);
                continue;
            };
            hand = Bound::Excluded(at);
            if *heat > 0 {
                *heat -= u8::from(round % ROUNDS_A_HEAT == 0);
                continue;
            }
            heats.remove(&at);
            ghost.entry(at).or_default().1 = left;
            left += 1;
        }
        let heat = match ghost.get_mut(&page) {
            Some((heat, when)) => {
                *heat = (*heat + 1).min(HEAT_MAX);
                let is_near = left - *when < capacity as u64 / 4;
                if is_near && *heat >= 2 { *heat } else { 0 }
            }
            None => 0,
        };
        heats.insert(page, heat);
        false
    })
}

/// Runs the part.
pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    let scale = setting.options.scale_divisor;
    let (keys, length) = ((KEYS / scale).max(4096), (OPERATIONS / scale).max(10_000));
    let title = format!(
        "faults of pages for each GET of {keys} keys by Zipf's law, as a server of values of 1 KiB touches them; {length} operations, the second half counts"
    );
    let mut part = Part::new("pages", &title, &["faults_per_op"]);
    let ops = trace::make(Kind::Zipf, keys as u32, 0, length as usize, 0);
    let touched = pages(&ops, keys);
    let from = touched.len() / 2;
    let policies: [(&str, Policy); 4] = [
        ("by address, as vm", by_address),
        ("LRU", reference::lru),
        ("FIFO with reinsertion", reference::fifo_reinsertion),
        ("Belady's optimum", reference::belady),
    ];
    let progress = Progress::new((BUFFERS_MIB.len() * policies.len()) as u64);
    for buffer_mib in BUFFERS_MIB {
        let room = (buffer_mib * MIB / PAGE_BYTES / scale).max(16) as usize;
        let case = format!("{} MiB", (room as u64 * PAGE_BYTES).div_ceil(MIB));
        for (name, policy) in policies {
            stop::check()?;
            progress.step(format!("pages: {case}, {name}"));
            let missed = 1.0 - policy(&touched, from, room);
            let mut samples = Samples::default();
            samples.round();
            let each = (touched.len() - from) as f64 / (ops.len() as f64 / 2.0);
            samples.add("faults_per_op", missed * each);
            part.rows.push(Row::measured(&case, name, &samples));
        }
    }
    part.notes
        .push("FIFO with reinsertion is what bits that tell of each use would allow.".into());
    report.parts.push(part);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_touches_a_page_of_each_kind_and_two_of_a_value_across_them() {
        let touched = pages(&[(0, false), (3, false)], 1 << 12);
        assert_eq!(touched.len(), 5 + 6);
        let all: std::collections::HashSet<_> = touched.iter().collect();
        // Entries, keys and objects of the two share their pages.
        assert_eq!(all.len(), 2 + 3 + 2);
    }

    #[test]
    fn pages_leave_by_address_and_those_that_come_back_soon_stay() {
        let reads =
            |keys: &[u32]| -> Vec<Operation> { keys.iter().map(|key| (*key, false)).collect() };
        assert_eq!(by_address(&reads(&[0, 1, 2].repeat(100)), 3, 3), 1.0);
        // 0 leaves for 2, 1 for 3, and the hand begins anew: 2 for 0.
        assert_eq!(by_address(&reads(&[0, 1, 2, 3, 2, 3]), 4, 2), 1.0);
        assert_eq!(by_address(&reads(&[0, 1, 2, 3, 0, 1]), 4, 2), 0.0);
        // Between pages that come once, one that comes back each time before a quarter of the buffer has left stays in the end.
        let mut trace = Vec::new();
        for nth in 0..400 {
            trace.extend([5, 1000 + nth * 2, 1001 + nth * 2]);
        }
        let hits = by_address(&reads(&trace), 600, 16);
        assert!(hits > 0.3, "{hits}");
    }
}
