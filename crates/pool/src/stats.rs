//! What the pool tells of itself: the lanes' counters added up, and the ledger's parts.

use serde::Serialize;

/// Counters and gauges of a pool. Names carry units; see `LaneStats` for those of a lane.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Stats {
    /// The lanes' counters, added up.
    #[serde(flatten)]
    pub lanes: terrace_tiers::LaneStats,
    /// Lanes.
    pub lane_count: u64,
    /// The cap.
    pub cap_bytes: u64,
    /// DRAM held of the cap, everything counted.
    pub used_bytes: u64,
    /// Of it, DRAM and middle segments.
    pub segment_bytes: u64,
    /// Of it, directories.
    pub directory_bytes: u64,
    /// Of it, connection buffers.
    pub connection_bytes: u64,
    /// Of it, segments being filled, cleaned or saved, and reads with their buffers.
    pub io_bytes: u64,
    /// Of it, pages that a program sees, and their page tables.
    pub page_bytes: u64,
    /// DRAM segments that lie on huge pages.
    pub dram_huge_bytes: u64,
    /// Device reads of any length.
    pub disk_reads: u64,
    /// Device bytes read.
    pub disk_read_bytes: u64,
    /// Device writes.
    pub disk_writes: u64,
    /// Device bytes written, everything counted.
    pub device_write_bytes: u64,
    /// Device flushes.
    pub disk_flushes: u64,
    /// The open epoch.
    pub epoch: u64,
    /// The last durable epoch.
    pub durable_epoch: u64,
    /// Time recovery took when the pool was opened, ms.
    pub recovery_ms: u64,
    /// Damaged places met at the last recovery.
    pub damage: u64,
}

impl Stats {
    pub(crate) fn add(&mut self, s: &terrace_tiers::LaneStats) {
        let t = &mut self.lanes;
        macro_rules! sum {
            ($($name:ident)*) => { $( t.$name += s.$name; )* };
        }
        sum!(keys hits_dram hits_middle misses absent device_reads device_read_bytes verify_reads recognised unverified
            wrong_reads updates updated_bytes promoted_bytes recalled recalled_bytes staged_bytes moved_bytes
            written_log_bytes written_image_bytes cleaner_read_bytes segments_cleaned
            memory_segments_cleaned expired checkpoints failed_writes damaged_reads warmed
            dirty_bytes dirty_max_bytes dram_bytes dram_live_bytes middle_bytes index_bytes
            buffer_bytes ssd_live_bytes ssd_usable_bytes ssd_free_segments
            ssd_waiting_segments ssd_bad_segments);
    }
}
