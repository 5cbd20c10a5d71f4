//! What the slots of a table take, for whoever promises room for them. Promises: never less than they come to. Never: looks at a table.

/// The chunks of slots that a table takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunks {
    pub(super) lanes: u64,
    /// Numbers that a chunk of each lane has together.
    pub numbers: u64,
    pub(super) chunk_bytes: u64,
}

impl Chunks {
    /// What numbers below `numbers` take at most. Side by side they are of different lanes.
    pub fn bytes(&self, numbers: u64) -> u64 {
        let (whole, rest) = (numbers / self.numbers, numbers % self.numbers);
        let chunks = whole * self.lanes + rest.min(self.lanes);
        chunks.saturating_mul(self.chunk_bytes)
    }

    /// The first number whose chunk is not that of `number`, in no lane.
    pub fn next(&self, number: u64) -> u64 {
        (number / self.numbers + 1) * self.numbers
    }
}
