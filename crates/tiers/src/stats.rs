//! What a lane counts. Bytes and operations since it was opened, unless said otherwise.

use serde::Serialize;

/// Counters of a lane.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct LaneStats {
    /// Keys, not deleted and not yet noticed as expired (now).
    pub keys: u64,
    /// Reads answered from DRAM.
    pub hits_dram: u64,
    /// Reads answered from the middle terrace.
    pub hits_middle: u64,
    /// Reads that needed the device.
    pub misses: u64,
    /// Reads of keys that do not exist.
    pub absent: u64,
    /// Device reads for single entries, all causes.
    pub device_reads: u64,
    /// Device bytes read for single entries.
    pub device_read_bytes: u64,
    /// Device reads to verify the key of an update or deletion.
    pub verify_reads: u64,
    /// Updates of keys below DRAM that replaced an entry without reading it.
    pub recognised: u64,
    /// Updates of which it is not known yet what they replace (now).
    pub unverified: u64,
    /// Device reads that brought another key than the one looked for.
    pub wrong_reads: u64,
    /// Updates taken.
    pub updates: u64,
    /// Key and value bytes of updates taken.
    pub updated_bytes: u64,
    /// Entry bytes brought up to DRAM by reads.
    pub promoted_bytes: u64,
    /// Of the entries that were read, those that had left DRAM a short while before, and their bytes.
    pub recalled: u64,
    /// See `recalled`.
    pub recalled_bytes: u64,
    /// Entry bytes stepped down to the SSD.
    pub staged_bytes: u64,
    /// Entry bytes moved by the cleaner on the SSD.
    pub moved_bytes: u64,
    /// Bytes written to the device for the log, headers and padding included.
    pub written_log_bytes: u64,
    /// Bytes written to the device for checkpoints and warm images.
    pub written_image_bytes: u64,
    /// Bytes the cleaner read from the device.
    pub cleaner_read_bytes: u64,
    /// SSD segments emptied.
    pub segments_cleaned: u64,
    /// Memory segments emptied.
    pub memory_segments_cleaned: u64,
    /// Entries noticed as expired.
    pub expired: u64,
    /// Checkpoints made.
    pub checkpoints: u64,
    /// Device writes that failed and went elsewhere.
    pub failed_writes: u64,
    /// Entries that could not be read back.
    pub damaged_reads: u64,
    /// Entries brought back to DRAM from the warm image.
    pub warmed: u64,
    /// Bytes that no durable terrace has (now).
    pub dirty_bytes: u64,
    /// Bound on dirty bytes (now).
    pub dirty_max_bytes: u64,
    /// DRAM held for entries, bytes (now).
    pub dram_bytes: u64,
    /// Live entries in DRAM, headers included, bytes (now).
    pub dram_live_bytes: u64,
    /// Middle terrace held, bytes (now).
    pub middle_bytes: u64,
    /// DRAM of the directory, fingerprints included, bytes (now).
    pub index_bytes: u64,
    /// DRAM for segments being filled or cleaned, bytes (now).
    pub buffer_bytes: u64,
    /// Live entries and tombstones on the SSD, and the ends of segments that are full, about, bytes (now).
    pub ssd_live_bytes: u64,
    /// What the SSD terrace accepts, bytes (now).
    pub ssd_usable_bytes: u64,
    /// Free segments on the SSD (now).
    pub ssd_free_segments: u64,
    /// Segments that wait for a checkpoint (now).
    pub ssd_waiting_segments: u64,
    /// Segments set aside (now).
    pub ssd_bad_segments: u64,
}
