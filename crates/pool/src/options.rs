//! How a pool is made and opened. Every field has a unit and a sound default.

use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;
use terrace_tiers::Rule;

/// When an update is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// When it is on the durable terrace; a crash loses nothing.
    #[default]
    Sync,
    /// When it is in DRAM; a crash loses the flush interval at most.
    Async,
}

/// What a pool holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Contents {
    /// Keys and values.
    #[default]
    Keys,
    /// Objects and pages by number that outlive the process.
    Objects,
    /// Objects and pages by number that do not: each opening starts empty.
    Scratch,
}

impl Contents {
    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Contents::Keys => "keys",
            Contents::Objects => "durable objects",
            Contents::Scratch => "objects that do not outlive a program",
        }
    }
}

/// Settings of a pool.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory of the pool.
    pub dir: PathBuf,
    /// The cap: DRAM in bytes, everything counted.
    pub dram_bytes: u64,
    /// Size of the SSD terrace in bytes; used when the pool is made (0: four times the cap).
    pub ssd_bytes: u64,
    /// When an update is acknowledged.
    pub durability: Durability,
    /// Longest time an update stays in DRAM only, in async mode.
    pub flush_interval: Duration,
    /// Threads that will use the pool; at creation also the number of lanes.
    pub threads: usize,
    /// Threads that read the log at a start, over all lanes; 0: one a CPU. Each lane has one at least.
    pub recovery_threads: usize,
    /// Segment size in bytes, a power of two of 16 KiB to 1 MiB; used when the pool is made.
    pub segment_bytes: usize,
    /// A middle terrace of byte-addressable memory between DRAM and SSD, bytes; 0: none.
    pub middle_bytes: u64,
    /// A block device to use instead of a file in `dir`; used when the pool is made.
    pub device: Option<PathBuf>,
    /// What the pool holds; used when the pool is made, and an opening must say the same.
    pub contents: Contents,
    /// Whether the file of a pool that is made is written once, so that later writes are durable sooner.
    pub prewrite: bool,
    /// A rule that a test takes out, to see that its tests notice. None in every pool.
    pub without_rule: Option<Rule>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            dir: PathBuf::new(),
            dram_bytes: 256 << 20,
            ssd_bytes: 0,
            durability: Durability::Sync,
            flush_interval: Duration::from_secs(1),
            threads: 1,
            recovery_threads: 0,
            segment_bytes: 512 << 10,
            middle_bytes: 0,
            device: None,
            contents: Contents::Keys,
            prewrite: true,
            without_rule: None,
        }
    }
}

/// Smallest cap per lane, bytes: two heads, the cleaner's segment, buffers under way.
pub const DRAM_PER_LANE_MIN_BYTES: u64 = 16 << 20;
/// Smallest SSD terrace per lane, in segments.
pub const SEGMENTS_PER_LANE_MIN: u64 = 48;
/// Most lanes of a pool.
pub const LANES_MAX: usize = 64;
/// Operations a queue has at the device at once.
pub(crate) const QUEUE_DEPTH: u32 = 256;
