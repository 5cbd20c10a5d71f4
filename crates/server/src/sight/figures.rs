//! The figures of the terraces: what the pool counts, by name, and what follows from it. INFO's section `tiers`, the
//! metrics and `terrace top` are all made of this list, so they say the same.

use crate::shared::About;

/// A figure that only grows, or one that goes up and down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Is {
    /// Since the start.
    Counter,
    /// Now.
    Gauge,
}

/// How a figure is shown as a metric.
pub struct Row {
    /// Its name in INFO.
    pub figure: &'static str,
    /// Its name as a metric, without `terrace_` and `_total`.
    pub metric: &'static str,
    /// Its label, if it is one of several.
    pub label: Option<(&'static str, &'static str)>,
    /// What it is.
    pub is: Is,
    /// What it means.
    pub help: &'static str,
}

const fn row(
    figure: &'static str,
    metric: &'static str,
    label: Option<(&'static str, &'static str)>,
    is: Is,
    help: &'static str,
) -> Row {
    Row {
        figure,
        metric,
        label,
        is,
        help,
    }
}

const fn terrace(name: &'static str) -> Option<(&'static str, &'static str)> {
    Some(("terrace", name))
}
const fn cause(name: &'static str) -> Option<(&'static str, &'static str)> {
    Some(("cause", name))
}
const fn part(name: &'static str) -> Option<(&'static str, &'static str)> {
    Some(("part", name))
}

const HITS: &str = "Reads that this terrace answered";
const MISSES: &str = "Reads of keys that lie further down than this terrace";
const WRITTEN: &str = "Bytes written to the device, by what for";
const READ_BYTES: &str = "Bytes read from the device, by what for";
const USED: &str = "Bytes of DRAM held of the cap, by part";
const CLEANED: &str = "Segments that the cleaner emptied";
const SEGMENTS: &str = "Segments of the SSD that are not in use, by state";

/// All metrics of the terraces; rows of one metric stand together.
#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    row("keys", "keys", None, Is::Gauge, "Keys, not deleted and not yet noticed as expired"),
    row("hits_dram", "hits", terrace("dram"), Is::Counter, HITS),
    row("hits_middle", "hits", terrace("middle"), Is::Counter, HITS),
    row("hits_ssd", "hits", terrace("ssd"), Is::Counter, HITS),
    row("misses_dram", "misses", terrace("dram"), Is::Counter, MISSES),
    row("misses_middle", "misses", terrace("middle"), Is::Counter, MISSES),
    row("absent", "absent", None, Is::Counter, "Reads of keys that do not exist"),
    row("wrong_reads", "wrong_reads", None, Is::Counter, "Device reads that brought another key than the one looked for"),
    row("damaged_reads", "damaged_reads", None, Is::Counter, "Entries that could not be read back"),
    row("device_reads", "entry_reads", None, Is::Counter, "Device reads for single entries"),
    row("verify_reads", "verify_reads", None, Is::Counter, "Of the reads for single entries, those that verify the key of an update"),
    row("recognised", "recognised_updates", None, Is::Counter, "Updates of keys below DRAM that replaced an entry without reading it"),
    row("disk_reads", "device_reads", None, Is::Counter, "Reads of the device, everything counted"),
    row("read_entry_bytes", "device_read_bytes", cause("entries"), Is::Counter, READ_BYTES),
    row("read_cleaner_bytes", "device_read_bytes", cause("cleaner"), Is::Counter, READ_BYTES),
    row("read_other_bytes", "device_read_bytes", cause("other"), Is::Counter, READ_BYTES),
    row("disk_writes", "device_writes", None, Is::Counter, "Writes to the device"),
    row("disk_flushes", "device_flushes", None, Is::Counter, "Flushes of the device"),
    row("failed_writes", "device_failed_writes", None, Is::Counter, "Writes to the device that failed and went elsewhere"),
    row("written_update_bytes", "device_written_bytes", cause("updates"), Is::Counter, WRITTEN),
    row("written_cleaner_bytes", "device_written_bytes", cause("cleaner"), Is::Counter, WRITTEN),
    row("written_frame_bytes", "device_written_bytes", cause("frames"), Is::Counter, WRITTEN),
    row("written_image_bytes", "device_written_bytes", cause("checkpoints"), Is::Counter, WRITTEN),
    row("written_other_bytes", "device_written_bytes", cause("other"), Is::Counter, WRITTEN),
    row("updates", "updates", None, Is::Counter, "Updates taken"),
    row("updated_bytes", "updated_bytes", None, Is::Counter, "Key and value bytes of updates taken"),
    row("promoted_bytes", "promoted_bytes", None, Is::Counter, "Entry bytes brought up to DRAM by reads"),
    row("recalled", "recalled_entries", None, Is::Counter, "Entries brought up to DRAM that had left it a short while before"),
    row("recalled_bytes", "recalled_bytes", None, Is::Counter, "Bytes of entries brought up to DRAM that had left it a short while before"),
    row("expired", "expired_keys", None, Is::Counter, "Entries noticed as expired"),
    row("memory_segments_cleaned", "segments_cleaned", terrace("dram"), Is::Counter, CLEANED),
    row("segments_cleaned", "segments_cleaned", terrace("ssd"), Is::Counter, CLEANED),
    row("checkpoints", "checkpoints", None, Is::Counter, "Checkpoints made"),
    row("warmed", "warmed_entries", None, Is::Counter, "Entries brought back to DRAM from the warm image of the last stop"),
    row("dirty_bytes", "dirty_bytes", None, Is::Gauge, "Bytes that no durable terrace has"),
    row("dirty_max_bytes", "dirty_max_bytes", None, Is::Gauge, "The bound on dirty bytes"),
    row("cap_bytes", "cap_bytes", None, Is::Gauge, "The cap on DRAM"),
    row("segment_bytes", "used_bytes", part("segments"), Is::Gauge, USED),
    row("directory_bytes", "used_bytes", part("directory"), Is::Gauge, USED),
    row("io_bytes", "used_bytes", part("io"), Is::Gauge, USED),
    row("connection_bytes", "used_bytes", part("connections"), Is::Gauge, USED),
    row("page_bytes", "used_bytes", part("pages"), Is::Gauge, USED),
    row("dram_bytes", "terrace_bytes", terrace("dram"), Is::Gauge, "Bytes that a terrace has in memory for entries"),
    row("middle_bytes", "terrace_bytes", terrace("middle"), Is::Gauge, "Bytes that a terrace has in memory for entries"),
    row("dram_live_bytes", "live_bytes", terrace("dram"), Is::Gauge, "Bytes that live entries take: headers, and on the SSD their part of the ends of segments, included"),
    row("ssd_live_bytes", "live_bytes", terrace("ssd"), Is::Gauge, "Bytes that live entries take: headers, and on the SSD their part of the ends of segments, included"),
    row("dram_huge_bytes", "huge_page_bytes", None, Is::Gauge, "Bytes of DRAM segments that lie on huge pages"),
    row("ssd_usable_bytes", "ssd_usable_bytes", None, Is::Gauge, "Live bytes that the SSD accepts"),
    row("ssd_free_segments", "ssd_segments", Some(("state", "free")), Is::Gauge, SEGMENTS),
    row("ssd_waiting_segments", "ssd_segments", Some(("state", "waiting")), Is::Gauge, SEGMENTS),
    row("ssd_bad_segments", "ssd_segments", Some(("state", "bad")), Is::Gauge, SEGMENTS),
    row("epoch", "epoch", None, Is::Gauge, "The open epoch"),
    row("durable_epoch", "durable_epoch", None, Is::Gauge, "The last durable epoch"),
    row("recovery_ms", "recovery_milliseconds", None, Is::Gauge, "Time that recovery took at the start"),
    row("damage", "damaged_places", None, Is::Gauge, "Damaged places met at the last recovery"),
];

/// All figures, by name.
pub struct Figures(Vec<(String, u64)>);

impl Figures {
    /// As of now. Takes each lane's lock for a moment.
    pub fn now(about: &dyn About) -> Figures {
        let numbers = about.tiers().into_iter();
        let counted = numbers.filter_map(|(name, text)| Some((name, text.parse().ok()?)));
        let mut figures = Figures(counted.collect());
        figures.derive();
        figures
    }

    /// One of them; 0 for one that the store does not count.
    pub fn get(&self, name: &str) -> u64 {
        self.find(name).unwrap_or(0)
    }

    fn find(&self, name: &str) -> Option<u64> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| *value)
    }

    /// All, in their order.
    pub fn all(&self) -> &[(String, u64)] {
        &self.0
    }

    /// What follows from what is counted. Counters are read one after the other, so differences stop at 0.
    fn derive(&mut self) {
        let of = |name: &str| self.get(name);
        let log = of("written_log_bytes");
        let moved = of("staged_bytes") + of("moved_bytes");
        let (entries, cleaner) = (of("device_read_bytes"), of("cleaner_read_bytes"));
        let images = log + of("written_image_bytes");
        let derived = [
            ("hits_ssd", of("misses")),
            ("misses_dram", of("hits_middle") + of("misses")),
            ("misses_middle", of("misses")),
            ("written_update_bytes", of("staged_bytes")),
            ("written_cleaner_bytes", of("moved_bytes")),
            ("written_frame_bytes", log.saturating_sub(moved)),
            (
                "written_other_bytes",
                of("device_write_bytes").saturating_sub(images),
            ),
            ("read_entry_bytes", entries),
            ("read_cleaner_bytes", cleaner),
            (
                "read_other_bytes",
                of("disk_read_bytes").saturating_sub(entries + cleaner),
            ),
        ];
        // A store that counts nothing has nothing to derive.
        if self.find("cap_bytes").is_some() {
            let derived = derived.map(|(name, value)| (name.to_string(), value));
            self.0.extend(derived);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Pool;

    impl About for Pool {
        fn tiers(&self) -> Vec<(String, String)> {
            let stats = serde_json::to_value(terrace_pool::Stats::default()).unwrap();
            let fields = stats.as_object().unwrap().iter();
            fields.map(|(k, v)| (k.clone(), v.to_string())).collect()
        }
        fn keys(&self) -> u64 {
            0
        }
        fn dram_bytes(&self) -> u64 {
            0
        }
        fn durability(&self) -> &'static str {
            "sync"
        }
    }

    #[test]
    fn every_metric_is_a_figure_that_a_pool_counts() {
        let figures = Figures::now(&Pool);
        for row in ROWS {
            assert!(figures.find(row.figure).is_some(), "{}", row.figure);
        }
        let mut metrics: Vec<_> = ROWS.iter().map(|r| (r.metric, r.label)).collect();
        metrics.sort_unstable();
        metrics.dedup();
        assert_eq!(metrics.len(), ROWS.len());
    }
}
