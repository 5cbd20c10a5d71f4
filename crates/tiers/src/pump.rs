//! Driving a lane: completions in, operations out, a slice of background work.

use crate::buffers::IMAGE_PARTS_MAX;
use crate::io::Purpose;
use crate::lane::{Lane, Phase};
use crate::policy;
use crate::ssd::GENERATION_LAST;
use crate::stats::LaneStats;
use terrace_log::Snapshot;
use terrace_media::{Buf, MediaError, Op};

/// Slices between two looks at how large a checkpoint would be.
const MEASURE_SLICES: u64 = 64;
/// Bytes of memory cleaned in one slice; appends clean as much as they take.
const SLICE_CLEAN_BYTES: usize = 16 << 10;

impl<D: Snapshot> Lane<D> {
    /// Tells the time of the pool's clock, ms since 1970; and that of the one for intervals, ms, which does not stand still when the system's is set back.
    pub fn set_now(&mut self, now_ms: u64, passed_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        self.lacks.now_ms = self.lacks.now_ms.max(passed_ms);
    }

    /// Does one bounded slice of background work. True if more could be done at once.
    pub fn slice(&mut self, clean_stop: bool) -> bool {
        self.slices += 1;
        if self.slices.is_multiple_of(MEASURE_SLICES) {
            self.measure_checkpoint();
            self.look_at_generations();
        }
        let mut more = self.step_down();
        self.start_cleaning();
        more |= self.checkpoint_step(clean_stop);
        more |= self.warm_step(self.slice_entries);
        // At a clean stop memory stays as it is: the warm image has a list of its segments.
        if !clean_stop && self.memory_low() {
            self.clean_memory(SLICE_CLEAN_BYTES);
            more |= self.memory_low();
        }
        more
    }

    /// A lane that has used up its generations is at its end: it is read, and goes to another pool.
    fn look_at_generations(&mut self) {
        if self.ssd.generation > GENERATION_LAST {
            self.fail(
                "a lane has taken its segments into use 2^32 times, and there are no more numbers for that: copy what the pool holds into a new one",
            );
        }
    }

    /// Stages and moves as much as the pace asks for. True if it could go on at once.
    fn step_down(&mut self) -> bool {
        if !matches!(self.phase, Phase::Staging(..) | Phase::Moving(_)) {
            self.paced_at = self.dirty_appended;
            self.slice_left = 0;
            return false;
        }
        // What a slice before it in the same turn left over, so that its lock was not held for long, is still to be done.
        let mut left = policy::slice_cost(&self.pace()).max(self.slice_left);
        self.paced_at = self.dirty_appended;
        self.slice_left = 0;
        for _ in 0..self.slice_entries {
            let before = self.stats.staged_bytes + self.stats.moved_bytes;
            if !self.stage(1) {
                return false;
            }
            let stepped = self.stats.staged_bytes + self.stats.moved_bytes - before;
            left = left.saturating_sub(stepped + policy::ENTRY_COST_BYTES);
            if left == 0 {
                break;
            }
        }
        self.slice_left = left;
        true
    }

    /// What presses on what steps down, now and as far as can be foreseen.
    fn pace(&self) -> policy::Pace {
        let open = self.dirty_appended - self.dirty_at_start;
        let missing = self.clean_target().saturating_sub(self.free_soon());
        policy::Pace {
            urgent: self.is_pressed(),
            left_bytes: self.dirty_bytes() - open,
            missing_bytes: (missing * self.cfg.segment_bytes) as u64,
            room_bytes: policy::epoch_bytes(self.pressure().dirty_max_bytes).saturating_sub(open),
            // A flush of all keys takes back what was appended.
            arrived_bytes: self.dirty_appended.saturating_sub(self.paced_at),
        }
    }

    /// Whether the last slice ended before it had done what the pace asks for.
    pub fn is_behind(&self) -> bool {
        self.slice_left > 0
    }

    /// Whether somebody waits for what steps down. In a scratch lane nothing steps down before room is short.
    pub fn is_pressed(&self) -> bool {
        self.writers_wait || self.hurry || self.flushing_all.is_some() || self.cfg.scratch
    }

    /// Operations that the lane wants done, each with the token for `complete`.
    pub fn take_io(&mut self) -> Vec<(u64, Op)> {
        self.io.take()
    }
    /// Whether `take_io` has something.
    pub fn has_io(&self) -> bool {
        self.io.has_outbox()
    }
    /// Whether operations are under way.
    pub fn io_under_way(&self) -> bool {
        self.io.busy()
    }

    /// An operation ended.
    pub fn complete(&mut self, token: u64, result: Result<(), MediaError>, buf: Option<Buf>) {
        let Some(done) = self.io.finish(token, result, buf) else {
            return;
        };
        match done.purpose {
            Purpose::Batch {
                segment,
                header,
                start,
            } => self.batch_written(segment, header, start, done.result),
            Purpose::CleanRead { segment } => self.victim_read(segment, done.result, done.buf),
            Purpose::Image { segment } => self.image_written(segment, done.result),
            Purpose::CheckpointStep => self.checkpoint_step_done(done.result),
            Purpose::WarmRead { segment } => self.warm_read(segment, done.result, done.buf),
        }
    }

    /// Makes the DRAM terrace ready for a clean stop's warm image: nothing is dirty any more.
    pub fn settle(&mut self) {
        if self.phase == Phase::Idle && self.dirty_bytes() == 0 {
            self.mem.seal_dirty_head();
            // A victim half cleaned is a segment like the others again.
            if let Some((id, ..)) = self.cleaning_memory[0].take() {
                self.mem.give_victim_back(id);
            }
            self.epoch_start = self.mem.dirty_end();
            self.staged = self.epoch_start;
            self.durable = self.epoch_start;
        }
    }

    /// Counters and gauges.
    pub fn stats(&self) -> LaneStats {
        let segment = self.cfg.segment_bytes as u64;
        LaneStats {
            keys: self.keys(),
            unverified: self.unverified,
            dirty_bytes: self.dirty_bytes(),
            dirty_max_bytes: self.dirty_max,
            dram_bytes: self.mem.held() as u64 * segment,
            dram_live_bytes: self.mem.live_bytes() as u64,
            middle_bytes: self
                .middle
                .as_ref()
                .map_or(0, |m| m.held() as u64 * segment),
            index_bytes: self.index_bytes() as u64,
            buffer_bytes: self.buffer_bytes() as u64,
            ssd_live_bytes: self.live_estimate,
            ssd_usable_bytes: self.usable_bytes(),
            ssd_free_segments: self.ssd.free().len() as u64,
            ssd_waiting_segments: self.release.len() as u64,
            ssd_bad_segments: self.ssd.bad() as u64,
            ..self.stats
        }
    }
    /// Counters that the kv layer keeps in the lane.
    pub fn count(&mut self, f: impl FnOnce(&mut LaneStats)) {
        f(&mut self.stats);
    }

    /// Memory the lane holds beside its DRAM segments and directory, bytes.
    pub fn buffer_bytes(&self) -> usize {
        let images = match self.checkpoint.is_some() || self.warming() {
            true => IMAGE_PARTS_MAX,
            false => 0,
        };
        self.ssd.buffer_bytes()
            + (self.cleaning_ssd.len() + images) * self.cfg.segment_bytes
            + self.ghost.bytes()
    }
    /// DRAM of the directory and the fingerprints, bytes.
    pub fn index_bytes(&self) -> usize {
        self.dir.bytes() + self.fingerprints.bytes()
    }
    /// Entries that came back to DRAM while they were remembered, and their bytes.
    pub fn recalled(&self) -> (u64, u64) {
        (self.stats.recalled, self.stats.recalled_bytes)
    }
    /// Entries remembered after they left DRAM.
    pub fn remembers(&self) -> u64 {
        self.ghost.keys()
    }
    /// Reads planned and not ended, each of which keeps a segment of the SSD from being taken again.
    pub fn reads_planned(&self) -> u64 {
        let segments = self.ssd.segments().iter();
        segments.map(|s| u64::from(s.readers)).sum()
    }
    /// DRAM segments held now.
    pub fn memory_held(&self) -> usize {
        self.mem.held()
    }
}

/// Where the lane stands, for a test or an operator who asks why nothing moves.
impl<D: Snapshot> std::fmt::Debug for Lane<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut states = std::collections::BTreeMap::<String, usize>::new();
        for s in self.ssd.segments() {
            *states.entry(format!("{:?}", s.state)).or_default() += 1;
        }
        f.debug_struct("Lane")
            .field("phase", &self.phase)
            .field("open_epoch", &self.open_epoch)
            .field("segments", &states)
            .field("memory", &self.mem)
            .field("cleaning", &self.cleaning_ssd.len())
            .field("cleaning_ready", &self.cleaning_ready())
            .field("takeable", &self.ssd.takeable())
            .field("checkpoint", &self.checkpoint.is_some())
            .field("checkpoint_asked", &self.checkpoint_asked)
            .field("io_busy", &self.io.busy())
            .field("writers", &self.ssd.writers())
            .field("checkpoint_segments", &self.checkpoint_segments())
            .field("dirty_bytes", &self.dirty_bytes())
            .field("epoch_room", &self.epoch_room())
            .field("writers_wait", &self.writers_wait)
            .field("clean_target", &self.clean_target())
            .field("reserve", &self.reserve_segments())
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::tests::lane;
    use crate::ssd::State;

    #[test]
    fn generations_do_not_come_round() {
        let mut lane = lane();
        lane.ssd.generation = GENERATION_LAST - 1;
        for taken in [GENERATION_LAST, GENERATION_LAST + 1] {
            (0..MEASURE_SLICES).for_each(|_| assert!(!lane.slice(false)));
            assert!(lane.failure().is_none());
            let id = lane.ssd.take(State::Sealed).expect("one is free");
            assert_eq!(lane.ssd.segment(id).generation, taken);
        }
        (0..MEASURE_SLICES).for_each(|_| assert!(!lane.slice(false)));
        assert!(lane.failure().is_some_and(|why| why.contains("2^32")));
        // What is under way then still finds some, but for the very last.
        lane.ssd.generation = u32::MAX - 1;
        assert!(lane.ssd.take(State::Sealed).is_some());
        let free = lane.ssd.free().len();
        assert_eq!(lane.ssd.take(State::Sealed), None);
        assert_eq!(lane.ssd.free().len(), free);
    }
}
