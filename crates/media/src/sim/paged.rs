//! The bytes of a simulated device, copied only where they were written: thousands of devices
//! made from crash images cost no copy of them.
//!
//! Promises: reads give the newest bytes. Never: changes the shared base.

use crate::BLOCK_BYTES;
use std::sync::Arc;

/// A base that is shared, and the blocks that differ from it. Clones share those, too, until one of them writes there.
#[derive(Clone)]
pub(super) struct Paged {
    base: Arc<Vec<u8>>,
    changed: Vec<Option<Arc<[u8]>>>,
}

impl Paged {
    pub(super) fn new(base: Arc<Vec<u8>>) -> Paged {
        let changed = vec![None; base.len() / BLOCK_BYTES];
        Paged { base, changed }
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.base.len()
    }

    fn block(&self, block: usize) -> &[u8] {
        match &self.changed[block] {
            Some(bytes) => bytes,
            None => &self.base[block * BLOCK_BYTES..][..BLOCK_BYTES],
        }
    }

    fn block_mut(&mut self, block: usize) -> &mut [u8] {
        let base = &self.base[block * BLOCK_BYTES..][..BLOCK_BYTES];
        Arc::make_mut(self.changed[block].get_or_insert_with(|| base.into()))
    }

    /// Fills `into` from `offset`.
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        let mut at = offset;
        let mut left = into;
        while !left.is_empty() {
            let within = at % BLOCK_BYTES;
            let (now, later) = left.split_at_mut(left.len().min(BLOCK_BYTES - within));
            now.copy_from_slice(&self.block(at / BLOCK_BYTES)[within..][..now.len()]);
            at += now.len();
            left = later;
        }
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut image = Vec::with_capacity(self.base.len());
        // One long copy for each run of blocks that are as they were.
        let mut copied = 0;
        for (n, bytes) in self.changed.iter().enumerate() {
            if let Some(bytes) = bytes {
                image.extend_from_slice(&self.base[copied..n * BLOCK_BYTES]);
                image.extend_from_slice(bytes);
                copied = (n + 1) * BLOCK_BYTES;
            }
        }
        image.extend_from_slice(&self.base[copied..]);
        image
    }

    /// Puts `bytes` at `offset`; both lie within it.
    pub(super) fn put(&mut self, offset: usize, bytes: &[u8]) {
        let mut at = offset;
        let mut left = bytes;
        while !left.is_empty() {
            let within = at % BLOCK_BYTES;
            let (now, later) = left.split_at(left.len().min(BLOCK_BYTES - within));
            self.block_mut(at / BLOCK_BYTES)[within..][..now.len()].copy_from_slice(now);
            at += now.len();
            left = later;
        }
    }

    pub(super) fn flip(&mut self, offset: usize, mask: u8) {
        self.block_mut(offset / BLOCK_BYTES)[offset % BLOCK_BYTES] ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn puts_across_blocks_read_like_a_plain_slice() {
        let base: Vec<u8> = (0..6 * BLOCK_BYTES).map(|n| (n % 251) as u8).collect();
        let (mut plain, base) = (base.clone(), Arc::new(base));
        let mut paged = Paged::new(Arc::clone(&base));
        let mut rng = crate::sim::Rng::new(9);
        let mut earlier = Vec::new();
        for round in 0..100u8 {
            earlier.push((paged.clone(), plain.clone()));
            let len = rng.below(2 * BLOCK_BYTES);
            let offset = rng.below(plain.len() - len);
            plain[offset..][..len].fill(round);
            paged.put(offset, &vec![round; len]);
            assert!(
                paged.to_vec() == plain,
                "round {round}: {len} bytes at {offset}"
            );
            let mut read = vec![0; rng.below(2 * BLOCK_BYTES)];
            let from = rng.below(plain.len() - read.len());
            paged.read(from, &mut read);
            assert!(
                read == plain[from..][..read.len()],
                "round {round}: read of {} at {from}",
                read.len()
            );
        }
        assert!(
            earlier
                .iter()
                .all(|(paged, plain)| paged.to_vec() == *plain)
        );
        assert!(
            (0..base.len()).all(|n| base[n] == (n % 251) as u8),
            "the base is shared"
        );
    }
}
