//! Checkpoints of the directory: piece by piece, while it changes.
//!
//! A checkpoint is a chain of image segments and a root block that names it.
//! Two root blocks alternate, so a crash in the middle leaves the other one.
//! Each piece of the directory is saved in one breath with the log's version at
//! that moment; replay applies to a piece what came after it.
//!
//! | step | ends when |
//! |---|---|
//! | Warm | at a clean stop: memory segments are written, newest first |
//! | Begin | what is known of the segments is saved |
//! | Pieces | every slot is saved, as its SSD copy |
//! | Durable | the epoch that staged the newest saved location is durable, and the image is written |
//! | Flush, Root, RootFlush | each operation completed |
//!
//! At the end, segments that waited for a checkpoint and the last one's image are free.
//! Never: saves a location in memory, nor anything while a flush of all keys is
//! not durable.

use crate::image::ImageWriter;
use crate::io::Purpose;
use crate::jobs::{CheckpointJob, CheckpointStep as Step};
use crate::lane::{Lane, Phase, Rule};
use crate::policy;
use crate::root::{IMAGE_MAGIC, PIECES_END, Root};
use crate::ssd::{Stalled, State};
use terrace_log::frame::{self, Use};
use terrace_log::{Loc, Order, Slot, Snapshot};
use terrace_media::{BLOCK_BYTES, MediaError, Op};

/// Slots saved in one breath.
pub(crate) const PIECE_SLOTS: usize = 1024;
/// Parts of images whose writes are under way at once.
const IMAGE_WRITES_MAX: usize = 2;
/// Epochs that a checkpoint may be put off by.
const PUT_OFF_EPOCHS_MAX: u64 = 16;
/// Writes of the root block that may fail in a row.
const ROOT_TRIES_MAX: u8 = 8;

impl<D: Snapshot> Lane<D> {
    /// Heads of the checkpoint being made, once it was begun.
    pub(crate) fn heads_being_saved(&self) -> &[u32] {
        self.checkpoint.as_ref().map_or(&[], |job| &job.heads)
    }
    /// Asks for a checkpoint soon.
    pub fn ask_checkpoint(&mut self) {
        self.checkpoint_asked = true;
    }
    /// Number of the last durable checkpoint.
    pub fn checkpoint_number(&self) -> u64 {
        self.checkpoint_number
    }
    /// Whether a checkpoint is being made or asked for.
    pub fn checkpointing(&self) -> bool {
        self.checkpoint.is_some() || self.checkpoint_asked
    }

    /// Whether no epoch is to end before the next checkpoint: a segment was not readable at the start. What is in it has numbers that are given out anew, and a start that
    /// can read it would take it for what was written since; it is set aside for good with the checkpoint. Not where none can be made as it is.
    pub fn checkpoint_comes_first(&self) -> bool {
        self.checkpoint_first && self.failed.is_none() && self.flushing_all.is_none()
    }

    fn checkpoint_due(&self) -> bool {
        let appended = self.appended_total - self.appended_at_checkpoint;
        let lane_bytes = (self.ssd.count() * self.cfg.segment_bytes) as u64;
        let lanes = u64::from(self.cfg.lanes);
        let short = self.ssd.takeable() < self.clean_target();
        self.checkpoint_asked
            || (short && self.wants_listing())
            || policy::checkpoint_due(appended, lane_bytes, lanes, self.dir.bytes() as u64)
    }

    /// One step towards a checkpoint, if one is due. True if it could go on at once.
    pub fn checkpoint_step(&mut self, clean: bool) -> bool {
        if self.failed.is_some() || self.flushing_all.is_some() || self.cfg.scratch {
            return false;
        }
        if self.checkpoint.is_none() {
            if !self.checkpoint_due() {
                return false;
            }
            if !clean && self.puts_off_checkpoint() {
                self.checkpoint_first = false;
                return false;
            }
            self.start_checkpoint(clean);
        }
        let Some(mut job) = self.checkpoint.take() else {
            return false;
        };
        if job.failed {
            self.drop_checkpoint(job);
            return false;
        }
        match self.advance(&mut job) {
            Ok((true, _)) => {
                self.finish_checkpoint(job);
                false
            }
            Ok((false, more)) => {
                self.checkpoint = Some(job);
                more
            }
            Err(Stalled) => {
                self.checkpoint_first = false;
                self.drop_checkpoint(job);
                false
            }
        }
    }

    /// Whether one that may find no room is made when the cleaner has made some, where it can without; for some epochs, since it may find room all the same.
    fn puts_off_checkpoint(&mut self) -> bool {
        let fits = self.ssd.takeable() >= self.checkpoint_segments();
        if fits || !(self.frees_by_itself() && self.epoch_room()) {
            return false;
        }
        let since = *self.checkpoint_put_off.get_or_insert(self.open_epoch);
        self.open_epoch < since + PUT_OFF_EPOCHS_MAX
    }

    fn start_checkpoint(&mut self, clean: bool) {
        self.checkpoint_asked = false;
        self.checkpoint_put_off = None;
        self.appended_at_checkpoint = self.appended_total;
        let step = match clean {
            true => Step::Warm(self.mem.clean_ids(), ImageWriter::new(Use::Warm)),
            false => Step::Begin,
        };
        self.checkpoint = Some(CheckpointJob {
            step,
            image: ImageWriter::new(Use::Checkpoint),
            root: Root {
                number: self.checkpoint_number + 1,
                clean,
                ..Root::default()
            },
            frees: Vec::new(),
            epoch: 0,
            heads: Vec::new(),
            waiting: false,
            failed: false,
        });
    }

    /// Saves what is known of the segments; pieces of the directory follow.
    fn begin(&mut self, job: &mut CheckpointJob) -> Result<(), Stalled> {
        let (frees, told) = self.free_with_checkpoint();
        let listed: Vec<u32> = frees.iter().map(|(id, _)| *id).collect();
        job.frees = frees;
        job.epoch = self.phase.epoch().unwrap_or(self.open_epoch);
        job.heads = (0..self.ssd.count() as u32)
            .filter(|&id| self.ssd.writer(id).is_some())
            .collect();
        let lists: [&[u32]; 3] = [&told, &listed, &self.image_segments];
        let header = self.image_header(&lists.concat(), &job.heads);
        job.root.replay_from_seq = self.version_now() >> frame::VERSION_UNIT_BITS;
        self.dir.keep_still(true);
        job.step = Step::Pieces(Order::default());
        job.image.push(&mut self.ssd, &mut self.io, &header)
    }

    /// Writes one more memory segment of the warm image. True: go on at once.
    fn warm_part(&mut self, job: &mut CheckpointJob) -> bool {
        if self.io.images() >= IMAGE_WRITES_MAX {
            return false;
        }
        let Step::Warm(ids, image) = &mut job.step else {
            return false;
        };
        let mut image = std::mem::replace(image, ImageWriter::new(Use::Warm));
        let next = ids.pop();
        if next.is_some_and(|id| self.write_warm_part(&mut image, id)) {
            let Step::Warm(_, place) = &mut job.step else {
                return false;
            };
            *place = image;
            return true;
        }
        job.root.warm = self.end_warm_image(image).map_or(0, |id| id + 1);
        job.step = Step::Begin;
        true
    }

    /// Version of the next entry to be appended: everything below it is in the directory.
    pub(crate) fn version_now(&self) -> u64 {
        let open = self.ssd.heads.iter().flatten().find(|w| w.batch_open());
        match open {
            Some(w) => frame::version(w.batch_seq().expect("open"), w.used_bytes()),
            None => frame::version(self.next_seq, 0),
        }
    }

    /// Header of the image: what is known of each segment, the free list, the open heads.
    fn image_header(&self, frees: &[u32], heads: &[u32]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut word = |w: u32| out.extend_from_slice(&w.to_le_bytes());
        let free = self.ssd.free();
        word(IMAGE_MAGIC);
        word(self.ssd.count() as u32);
        word((free.len() + frees.len()) as u32);
        word(heads.len() as u32);
        for id in free.iter().chain(frees).chain(heads) {
            word(*id);
        }
        for s in self.ssd.segments() {
            let bad = u32::from(s.state == State::Bad);
            for w in [
                s.generation,
                bad,
                s.used_bytes,
                s.total_class_bytes,
                s.tomb_bytes,
            ] {
                out.extend_from_slice(&w.to_le_bytes());
            }
            for w in [s.first_seq, s.stale_seq, s.last_epoch] {
                out.extend_from_slice(&w.to_le_bytes());
            }
        }
        out
    }

    /// Done, or may go on at once.
    fn advance(&mut self, job: &mut CheckpointJob) -> Result<(bool, bool), Stalled> {
        match job.step {
            Step::Warm(..) => Ok((false, self.warm_part(job))),
            Step::Begin => {
                self.begin(job)?;
                Ok((false, true))
            }
            Step::Pieces(from) => {
                if self.io.images() >= IMAGE_WRITES_MAX {
                    return Ok((false, false));
                }
                self.save_piece(job, from)?;
                Ok((false, true))
            }
            Step::Durable(epoch) => {
                let durable = match self.phase.epoch() {
                    Some(e) => e > epoch,
                    None => true,
                };
                if !durable || self.io.images() > 0 {
                    return Ok((false, false));
                }
                job.step = Step::Flush;
                self.send_step(job, Op::Flush);
                Ok((false, false))
            }
            Step::Flush if !job.waiting => {
                job.step = Step::Root;
                let buf = job.root.write(self.cfg.pool, self.cfg.lane);
                let offset = self.root_offset(job.root.number);
                self.send_step(job, Op::WriteBuf { offset, buf });
                Ok((false, false))
            }
            Step::Root if !job.waiting => {
                job.step = Step::RootFlush;
                self.send_step(job, Op::Flush);
                Ok((false, false))
            }
            Step::RootFlush if !job.waiting => Ok((true, false)),
            _ => Ok((false, false)),
        }
    }

    /// Where the root block of checkpoint `number` lies: two alternate.
    pub(crate) fn root_offset(&self, number: u64) -> u64 {
        let block = match self.rule(Rule::TwoRoots) {
            true => number % 2,
            false => 0,
        };
        self.cfg.root_base + block * BLOCK_BYTES as u64
    }

    fn send_step(&mut self, job: &mut CheckpointJob, op: Op) {
        job.waiting = true;
        self.io.send(Purpose::CheckpointStep, op);
    }

    fn save_piece(&mut self, job: &mut CheckpointJob, from: Order) -> Result<(), Stalled> {
        let mut piece = vec![0; 24];
        let (mem, middle) = (&self.mem, &self.middle);
        let below = |slot: Slot| {
            let loc = slot.loc();
            if !loc.in_memory() {
                return Some(slot);
            }
            let terrace = match (loc.terrace(), middle) {
                (terrace_log::Terrace::Middle, Some(middle)) => middle,
                _ => mem,
            };
            let link: Loc = terrace.entry(loc).link();
            (!link.is_none()).then(|| Slot::new(link, slot.heat()))
        };
        let next = self.dir.save(from, PIECE_SLOTS, below, &mut piece);
        let len = (piece.len() - 24) as u32;
        piece[0..4].copy_from_slice(&len.to_le_bytes());
        piece[4..8].copy_from_slice(&from.shard.to_le_bytes());
        piece[8..16].copy_from_slice(&from.hash.to_le_bytes());
        piece[16..24].copy_from_slice(&self.version_now().to_le_bytes());
        job.image.push(&mut self.ssd, &mut self.io, &piece)?;
        match next {
            Some(next) => job.step = Step::Pieces(next),
            None => {
                let end = PIECES_END.to_le_bytes();
                job.image.push(&mut self.ssd, &mut self.io, &end)?;
                job.image.end_part(&mut self.ssd, &mut self.io, false)?;
                self.dir.keep_still(false);
                self.fill_root(job);
                job.step = Step::Durable(job.root.durable_epoch);
            }
        }
        Ok(())
    }

    fn fill_root(&mut self, job: &mut CheckpointJob) {
        job.root.first = job.image.segments()[0];
        job.root.total_bytes = job.image.total_bytes;
        job.root.crc = job.image.crc;
        job.root.next_seq = self.next_seq;
        // Everything staged so far belongs to this epoch or an earlier one.
        job.root.durable_epoch = self.phase.epoch().unwrap_or(self.open_epoch - 1);
        job.root.floor = self.floor;
        job.root.clock_ms = self.now_ms;
        job.root.generation = self.ssd.generation;
    }

    fn finish_checkpoint(&mut self, job: CheckpointJob) {
        self.checkpoint_number = job.root.number;
        self.checkpoint_first = false;
        self.stats.checkpoints += 1;
        self.stats.written_image_bytes += job.image.written_bytes + BLOCK_BYTES as u64;
        for &id in job.image.segments() {
            self.ssd.segment_mut(id).stale_seq = u64::MAX;
        }
        let old = std::mem::replace(&mut self.image_segments, job.image.segments().to_vec());
        self.give_back(old);
        self.release_listed(job.frees, job.epoch, job.heads);
        self.tell_room();
    }

    /// Gives up the checkpoint under way; it starts over when its writes are finished.
    fn drop_checkpoint(&mut self, job: CheckpointJob) {
        if self.io.images() > 0 || job.waiting {
            self.checkpoint = Some(CheckpointJob {
                failed: true,
                ..job
            });
            return;
        }
        self.dir.keep_still(false);
        self.give_back(job.image.segments().to_vec());
        if job.root.clean {
            let warm = std::mem::take(&mut self.warm_written);
            self.give_back(warm);
        }
        self.checkpoint_asked = true;
    }

    pub(crate) fn give_back(&mut self, segments: Vec<u32>) {
        for id in segments {
            if self.ssd.segment(id).state != State::Bad {
                self.ssd.release(id);
            }
        }
    }

    /// Locations saved so far may have changed without a trace in the log.
    pub(crate) fn checkpoint_restart(&mut self) {
        if let Some(job) = &mut self.checkpoint
            && matches!(
                job.step,
                Step::Warm(..) | Step::Begin | Step::Pieces(_) | Step::Durable(_)
            )
        {
            job.failed = true;
        }
    }

    /// A part of an image was written.
    pub(crate) fn image_written(&mut self, segment: u32, result: Result<(), MediaError>) {
        if let Err(error) = result {
            tracing::error!(lane = self.cfg.lane, segment, %error, "a part of a checkpoint could not be written: the one before it stays, and the next is tried elsewhere; look after the device if this comes again");
            self.stats.failed_writes += 1;
            self.ssd.set_aside(segment);
            if let Some(job) = &mut self.checkpoint {
                job.failed = true;
            }
        }
    }

    /// A flush or the root block of a checkpoint ended.
    pub(crate) fn checkpoint_step_done(&mut self, result: Result<(), MediaError>) {
        let Some(job) = &mut self.checkpoint else {
            return;
        };
        job.waiting = false;
        let Err(error) = result else {
            self.io.root_failures *= u8::from(!matches!(job.step, Step::RootFlush));
            return;
        };
        job.failed = true;
        // A root block that could not be written is written again; a flush that
        // failed is never retried as if it had worked.
        let root = matches!(job.step, Step::Root);
        self.io.root_failures += 1;
        self.stats.failed_writes += u64::from(root);
        if !root || self.io.root_failures >= ROOT_TRIES_MAX {
            self.fail(&format!("a checkpoint could not be made durable: {error}"));
        }
    }

    /// Whether the phase allows a clean stop's last checkpoint.
    pub fn quiet(&self) -> bool {
        self.phase == Phase::Idle && !self.io.busy()
    }
}
