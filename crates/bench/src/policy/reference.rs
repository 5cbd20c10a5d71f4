//! What other policies make of a trace, as plain simulations over entries of one size: LRU, FIFO with reinsertion, and Belady's
//! optimum with bypass (what is not used again before something better is not taken in).
//!
//! A write brings its key in without a miss; only reads count. Belady's optimum knows that an entry overwritten before it is read
//! again is worth nothing.

use super::trace::Operation;
use std::collections::{BTreeSet, HashMap, VecDeque};

/// Share of reads that hit, of a trace from an operation on, with room for so many entries.
pub type Policy = fn(&[Operation], usize, usize) -> f64;

/// Share of reads after `from` that hit.
pub fn share(
    trace: &[Operation],
    from: usize,
    mut hit: impl FnMut(usize, Operation) -> bool,
) -> f64 {
    let (mut reads, mut hits) = (0u64, 0u64);
    for (at, &operation) in trace.iter().enumerate() {
        let hit = hit(at, operation);
        if at >= from && !operation.1 {
            reads += 1;
            hits += u64::from(hit);
        }
    }
    hits as f64 / reads.max(1) as f64
}

/// Least recently used.
pub fn lru(trace: &[Operation], from: usize, capacity: usize) -> f64 {
    let mut last = HashMap::new();
    let mut order = BTreeSet::new();
    share(trace, from, |at, (key, _)| {
        let before = last.insert(key, at);
        if let Some(before) = before {
            order.remove(&(before, key));
        }
        order.insert((at, key));
        if order.len() > capacity
            && let Some((_, oldest)) = order.pop_first()
        {
            last.remove(&oldest);
        }
        before.is_some()
    })
}

/// FIFO in which what was used since it came in goes round again.
pub fn fifo_reinsertion(trace: &[Operation], from: usize, capacity: usize) -> f64 {
    let mut used: HashMap<u32, bool> = HashMap::new();
    let mut queue = VecDeque::new();
    share(trace, from, |_, (key, _)| {
        if let Some(used) = used.get_mut(&key) {
            *used = true;
            return true;
        }
        while queue.len() >= capacity
            && let Some(oldest) = queue.pop_front()
        {
            match used.insert(oldest, false) {
                Some(true) => queue.push_back(oldest),
                _ => {
                    used.remove(&oldest);
                }
            }
        }
        used.insert(key, false);
        queue.push_back(key);
        false
    })
}

/// Belady's optimum.
pub fn belady(trace: &[Operation], from: usize, capacity: usize) -> f64 {
    const NEVER: usize = usize::MAX;
    let mut next_read = vec![NEVER; trace.len()];
    let mut seen: HashMap<u32, usize> = HashMap::new();
    for (at, &(key, write)) in trace.iter().enumerate().rev() {
        next_read[at] = seen.get(&key).copied().unwrap_or(NEVER);
        seen.insert(key, if write { NEVER } else { at });
    }
    let mut held: HashMap<u32, usize> = HashMap::new();
    let mut order = BTreeSet::new();
    share(trace, from, |at, (key, _)| {
        let before = held.remove(&key);
        if let Some(next) = before {
            order.remove(&(next, key));
        }
        if next_read[at] != NEVER {
            held.insert(key, next_read[at]);
            order.insert((next_read[at], key));
        }
        if order.len() > capacity
            && let Some((_, furthest)) = order.pop_last()
        {
            held.remove(&furthest);
        }
        before.is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(keys: &[u32]) -> Vec<Operation> {
        keys.iter().map(|&key| (key, false)).collect()
    }

    #[test]
    fn a_loop_that_does_not_fit() {
        let trace = reads(&[0, 1, 2].repeat(100));
        assert_eq!(lru(&trace, 0, 2), 0.0);
        assert_eq!(fifo_reinsertion(&trace, 0, 2), 0.0);
        // With bypass two of the three stay for good.
        let best = belady(&trace, 3, 2);
        assert!((0.66..0.67).contains(&best), "{best}");
        assert_eq!(belady(&trace, 3, 3), 1.0);
    }

    #[test]
    fn what_is_overwritten_unread_is_not_kept() {
        // 0 is read again, 1 is overwritten first.
        let trace = vec![(0, false), (1, false), (1, true), (0, false)];
        assert_eq!(belady(&trace, 2, 1), 1.0);
        assert_eq!(lru(&trace, 2, 1), 0.0);
    }

    #[test]
    fn reinsertion_gives_what_was_used_another_round() {
        let trace = reads(&[0, 1, 0, 2, 0]);
        assert_eq!(fifo_reinsertion(&trace, 4, 2), 1.0);
        assert_eq!(lru(&trace, 4, 2), 1.0);
        let trace = reads(&[0, 0, 1, 2, 0]);
        assert_eq!(
            (fifo_reinsertion(&trace, 4, 2), lru(&trace, 4, 2)),
            (1.0, 0.0)
        );
    }
}
