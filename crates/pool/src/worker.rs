//! What a thread holds of a pool: its disk queue, its home lanes, its reads.
//!
//! A lane is looked after by one worker (background work, its device
//! operations), and locked for the moment of a command by any: handing a lock
//! over costs 0.1 µs where waking another thread costs 10 to 40 (docs/adr/0004).
//! Promises: `turn` does a bounded slice and never blocks; no lock is held
//! across a system call. Never: acknowledges; it says which epoch is durable.

use crate::clock::Now;
use crate::flushes::{
    Flushes, TOKEN_FLUSH, TOKEN_LANE_SHIFT, TOKEN_OF_CHECKPOINT, complete_of_lane,
    ended_other_flush,
};
use crate::held::Held;
use crate::ledger::Part;
use crate::near::Near;
use crate::options::{Contents, QUEUE_DEPTH};
use crate::pool::Pool;
use crate::reads::{Reads, TOKEN_READ, spare_max_bytes};
use crate::task::Task;
use crate::verify::{Batch, Verifier, Waiting};
use crate::{Lane, PoolError};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};
use terrace_index::KeyMap;
use terrace_log::{Snapshot, Subject};
use terrace_media::{Disk, Done, Wait};
use terrace_tiers::{LANE_BUFFERS, ReadPlan, Rule, policy};

/// Slices of background work in one turn.
const SLICES_PER_TURN_MAX: usize = 4;
/// Turns between two looks at the cap; what grows in between is within the ledger's slack.
const KEEP_CAP_TURNS: u64 = 8;
/// Longest sleep between two turns, ms.
const SLEEP_MAX_MS: u64 = 100;

/// What a turn tells its thread.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// More background work could be done at once: do not sleep.
    pub busy: bool,
    /// How long the thread may sleep if nothing else happens.
    pub sleep_at_most: Duration,
    /// Tasks that waited for room should try again.
    pub room: bool,
}

/// A thread's part of a pool.
pub struct Worker<D = KeyMap> {
    /// Dropped before the pool, whose lock must not go while operations are under way.
    pub(crate) disk: Box<dyn Disk>,
    pub(crate) pool: Arc<Pool<D>>,
    home: Vec<u16>,
    /// Bytes told to the ledger, by home lane: segments, index, io.
    counted: Vec<[u64; 3]>,
    pub(crate) reads: Reads,
    /// Of which some were put off: see `fetch`.
    pub(crate) reads_wait: bool,
    /// Bytes of their spare buffers told to the ledger.
    spare_counted: u64,
    pub(crate) verifier: Verifier,
    done: Vec<Done>,
    pub(crate) room: bool,
    closing: bool,
    turns: u64,
    /// The pool's clock as of this turn: commands of one turn see one time.
    now: Now,
    /// What `prefetch` asked for last.
    near: Near,
    /// Somebody is answered when the epoch under way is durable.
    replies_wait: bool,
    /// It became durable in this turn.
    durable_now: bool,
    pub(crate) flushes: Flushes,
}

impl<D: Snapshot + Send> Worker<D> {
    pub(crate) fn new(pool: Arc<Pool<D>>, home: Vec<u16>) -> Result<Worker<D>, PoolError> {
        let disk = pool.device.queue(QUEUE_DEPTH)?;
        let spare = spare_max_bytes(pool.ledger.cap_bytes(), pool.options.threads);
        let mut worker = Worker {
            disk,
            counted: vec![[0; 3]; home.len()],
            home,
            reads: Reads::new(spare),
            reads_wait: false,
            spare_counted: 0,
            verifier: Verifier::default(),
            done: Vec::new(),
            room: false,
            closing: false,
            turns: 0,
            now: pool.clock.look(),
            near: Near::default(),
            replies_wait: false,
            durable_now: false,
            flushes: Flushes::default(),
            pool,
        };
        worker.keep_cap();
        Ok(worker)
    }

    /// The pool.
    pub fn pool(&self) -> &Arc<Pool<D>> {
        &self.pool
    }
    /// The pool's clock, ms since 1970; never runs backwards.
    pub fn now_ms(&self) -> u64 {
        self.pool.clock.now_ms()
    }
    /// Replies that wait for an epoch up to this may go out.
    pub fn durable_epoch(&self) -> u64 {
        self.pool.commit.durable()
    }
    /// Why the pool takes no more updates, if it does not.
    pub fn failed(&self) -> Option<String> {
        self.pool.failure()
    }
    /// Readable when device completions wait.
    pub fn poll_fd(&self) -> Option<RawFd> {
        self.disk.poll_fd()
    }
    /// Takes connection buffers from the cap. False: not now.
    pub fn grant(&mut self, bytes: usize) -> bool {
        self.pool.ledger.grant(bytes as u64)
    }
    /// Gives connection buffers back.
    pub fn ungrant(&mut self, bytes: usize) {
        self.pool.ledger.ungrant(bytes as u64);
    }

    /// Lane and subject of a key.
    pub fn place(&self, space: u8, key: &[u8]) -> (u16, Subject) {
        let known = || self.near.find(key);
        if let Some(place) = (space == 0).then(known).flatten() {
            return place;
        }
        let hash = self.pool.hasher.hash(space, key);
        let lanes = self.pool.lanes.len() as u64;
        let lane = match lanes {
            1 => 0,
            n => ((hash.place & 0xffff_ffff) % n) as u16,
        };
        (lane, Subject { space, hash })
    }

    /// Locks one lane, in the open epoch and at the present time.
    pub fn lane(&self, lane: u16) -> MutexGuard<'_, Lane<D>> {
        let mut guard = self.pool.lane(lane);
        guard.set_now(self.now.ms, self.now.passed_ms);
        guard
    }

    /// Asks for the memory that commands on these user keys will want, all at once: one
    /// after the other each would wait for it alone.
    pub fn prefetch<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>) {
        self.near.clear();
        let mut near = std::mem::take(&mut self.near);
        keys.for_each(|key| near.add(key, self.place(0, key)));
        for id in 0..self.pool.lanes.len() as u16 {
            if near.places().all(|(lane, _)| lane != id) {
                continue;
            }
            let lane = self.pool.lanes[id as usize].lock();
            let here = || near.places().filter(|(l, _)| *l == id);
            here().for_each(|(_, who)| lane.prefetch_slot(who));
            here().for_each(|(_, who)| lane.prefetch_entry(who));
        }
        self.near = near;
    }

    /// Locks several lanes in order, all in the same epoch: what is changed in them
    /// while they are held becomes durable together.
    pub fn hold(&self, lanes: impl IntoIterator<Item = u16>) -> Held<'_, D> {
        Held::of(&self.pool, lanes, self.now)
    }
    /// Locks every lane.
    pub fn hold_all(&self) -> Held<'_, D> {
        self.hold(0..self.pool.lanes.len() as u16)
    }

    /// State for a command of `owner`.
    pub fn task(&mut self, owner: u64) -> Task {
        Task::new(owner)
    }

    /// Something waits for room: an epoch should end soon, and cleaning go on.
    pub fn want_room(&self) {
        self.pool.commit.ask();
        if self.pool.lanes.len() > self.home.len() {
            self.pool.wake_all();
        }
    }
    /// Looks at the clock: to be called after a sleep, before commands are executed.
    pub fn tick(&mut self) {
        self.now = self.pool.clock.look();
    }
    /// Hands reads begun since the last turn to the device.
    pub fn kick(&mut self) {
        self.disk.kick();
    }
    /// A command that holds all lanes needs a moment between two epochs.
    pub fn want_quiet(&self) {
        self.pool
            .commit
            .want_quiet(self.pool.clock.look().passed_ms);
    }
    /// The command had its moment.
    pub fn end_quiet(&self) {
        self.pool.commit.end_quiet();
    }
    /// Asks that everything so far becomes durable.
    pub fn want_durable(&self) {
        self.pool.commit.ask();
    }

    /// Tells whether replies wait for the epoch under way. The turn that finds it durable then closes no other: what clients
    /// send upon the replies that go out first is in it, too (docs/adr/0049).
    pub fn set_replies_wait(&mut self, replies_wait: bool) {
        self.replies_wait = replies_wait;
    }

    /// Whether an update of a key of `key_len` bytes may be verified later, by a read that is planned.
    pub fn may_verify_later(&self, key_len: usize, plan: &ReadPlan) -> bool {
        self.verifier.may_wait(key_len, plan)
    }

    /// The newest entry of `key` was put unverified; `plan` is what is to be read first.
    pub fn verify_later(&mut self, lane: u16, who: Subject, key: &[u8], plan: ReadPlan) {
        let waiting = Waiting {
            lane,
            who,
            key: key.into(),
            plan,
        };
        let kept = waiting.kept_bytes();
        self.pool.ledger.change(Part::Io, 0, kept);
        self.verifier.add(waiting, self.now.passed_ms);
    }

    /// Takes in a batch of those that was read, and begins one that is due.
    fn verify(&mut self, now: bool) {
        if let Some(batch) = self.verifier.batch.take() {
            self.verifier.batch = self.verify_batch(batch);
        }
        if let Some(batch) = self.verifier.due(now, self.now.passed_ms) {
            let batch = self.fetch_batch(batch);
            self.verifier.batch = Some(batch);
        }
    }

    /// What of a batch must be read on.
    fn verify_batch(&mut self, mut batch: Batch) -> Option<Batch> {
        if !self.collect(&mut batch.task) {
            return Some(batch);
        }
        batch.keys.retain_mut(|w| {
            let known = |loc| w.known(&batch.task, loc);
            let next = (self.lane(w.lane)).verify_newest(w.who, &w.key, known);
            match next {
                Some(plan) => w.plan = plan,
                None => self.pool.ledger.change(Part::Io, w.kept_bytes(), 0),
            }
            next.is_some()
        });
        if batch.keys.is_empty() {
            self.finish(batch.task);
            return None;
        }
        // Others were met at the same hash, or the entry has moved.
        Some(self.fetch_batch(batch))
    }

    fn fetch_batch(&mut self, mut batch: Batch) -> Batch {
        for w in &batch.keys {
            self.fetch(&mut batch.task, w.lane, w.plan, true);
        }
        batch
    }

    /// A bounded slice of everything this worker looks after. Never blocks.
    pub fn turn(&mut self) -> Turn {
        self.now = self.pool.clock.look();
        self.turns += 1;
        self.durable_now = false;
        self.reap(Wait::No);
        let mut slices = Slices::default();
        for _ in 0..SLICES_PER_TURN_MAX {
            slices = self.slice_lanes();
            let closed = self.close_if_due();
            if !closed && !slices.pressed {
                break;
            }
        }
        let busy = slices.busy;
        self.verify(self.pool.commit.asked());
        self.disk.kick();
        if self.turns.is_multiple_of(KEEP_CAP_TURNS) {
            self.keep_cap();
        }
        Turn {
            busy: busy || self.disk_spins() || self.replies_go_first(),
            sleep_at_most: self.sleep_at_most(),
            room: std::mem::take(&mut self.room),
        }
    }

    fn replies_go_first(&self) -> bool {
        self.durable_now && self.replies_wait
    }

    /// Without a descriptor to wait on, in-flight operations are looked for again at once.
    fn disk_spins(&self) -> bool {
        self.disk.in_flight() > 0 && self.disk.poll_fd().is_none()
    }

    fn sleep_at_most(&self) -> Duration {
        let now = self.pool.clock.look().passed_ms;
        let interval = self.pool.options.flush_interval.as_millis() as u64;
        let left = match self.verifier.has_waiting() {
            true => 1,
            false => match interval.saturating_sub(self.pool.commit.since_close_ms(now)) {
                // Overdue, with nothing to end an epoch for, or nothing that would end one any more; what comes without waking this
                // thread is seen within an interval.
                0 if self.pool.failure().is_some() || !self.has_undurable() => interval,
                left => left,
            },
        };
        Duration::from_millis(left.clamp(1, SLEEP_MAX_MS))
    }

    fn has_undurable(&self) -> bool {
        let mut lanes = self.pool.lanes.iter();
        lanes.any(|lane| lane.lock().has_undurable())
    }

    fn slice_lanes(&mut self) -> Slices {
        let mut slices = Slices::default();
        let pool = self.pool.clone();
        for at in 0..self.home.len() {
            let id = self.home[at];
            let mut lane = pool.lanes[id as usize].lock();
            pool.catch_up(&mut lane, pool.commit.open());
            lane.set_now(self.now.ms, self.now.passed_ms);
            let before = lane.phase();
            lane.hurry = pool.is_sync() || pool.commit.asked();
            let busy = lane.slice(self.closing);
            slices.busy |= busy;
            slices.pressed |= busy && (lane.is_pressed() || lane.is_behind());
            let io = lane.take_io();
            let phase = lane.phase();
            let arrived = lane.tell_arrival();
            let written_through = lane.is_written_through();
            let failed = lane.failure().map(str::to_string);
            drop(lane);
            self.room |= before != phase || busy;
            for (token, op) in io {
                let token = u64::from(id) << TOKEN_LANE_SHIFT | token;
                self.flushes.submit_of_lane(&mut *self.disk, token, op);
            }
            if let Some(why) = failed {
                pool.fail(&why);
            }
            if arrived && pool.commit.arrive() {
                let unflushed = written_through
                    || pool.options.contents == Contents::Scratch
                    || pool.options.without_rule == Some(Rule::FlushBeforeAcknowledge);
                match unflushed {
                    true => self.durable(),
                    false => self.flushes.flush_epoch(&pool),
                }
            }
        }
        self.flushes.submit(&pool, &mut *self.disk);
        slices
    }

    fn close_if_due(&mut self) -> bool {
        // The last checkpoint is the end: nothing comes behind it.
        if self.closing || self.pool.commit.under_way() || self.replies_go_first() {
            return false;
        }
        let now = self.now.passed_ms;
        if self.pool.commit.quiet(now) || self.pool.failure().is_some() {
            return false;
        }
        // Any lane: a command of this thread may have filled one that another looks
        // after, whose thread sleeps.
        let due = self.pool.lanes.iter().any(|lane| {
            let mut lane = lane.lock();
            let p = policy::Pressure {
                read_up_bytes: lane.read_up_bytes(),
                sync: self.pool.is_sync(),
                since_close_ms: self.pool.commit.since_close_ms(now),
                flush_interval_ms: self.pool.options.flush_interval.as_millis() as u64,
                asked: self.pool.commit.asked() && lane.has_undurable(),
                ..lane.pressure()
            };
            lane.wants_epoch(&p)
        });
        let mut lanes = self.pool.lanes.iter();
        let may = due && !lanes.any(|lane| lane.lock().checkpoint_comes_first());
        let closed = may && self.pool.commit.try_close(now);
        if closed {
            self.wake_others();
        }
        closed
    }

    /// Wakes the other threads of the pool, if there are any: those without a lane of their own have replies that wait, too.
    fn wake_others(&self) {
        if self.pool.options.threads > 1 || self.pool.lanes.len() > self.home.len() {
            self.pool.wake_all();
        }
    }

    fn durable(&mut self) {
        self.durable_now = true;
        self.pool.commit.done();
        self.room = true;
        self.wake_others();
    }

    fn reap(&mut self, wait: Wait) {
        let mut done = std::mem::take(&mut self.done);
        self.disk.reap(wait, &mut done);
        for d in done.drain(..) {
            self.completed(d);
        }
        self.done = done;
    }

    fn completed(&mut self, d: Done) {
        if d.token & TOKEN_READ != 0 {
            self.read_done((d.token & !TOKEN_READ) as usize, d);
        } else if d.token & TOKEN_FLUSH != 0 {
            match d.result {
                Ok(()) => self.durable(),
                Err(e) => self
                    .pool
                    .fail(&format!("a flush of the device failed: {e}")),
            }
        } else {
            let token = d.token & !TOKEN_OF_CHECKPOINT;
            complete_of_lane(&self.pool, token, d.result, d.buf);
            if d.token != token {
                ended_other_flush(&self.pool);
            }
        }
    }

    /// Tells the ledger what the home lanes hold, and the lanes what they may hold.
    fn keep_cap(&mut self) {
        let pool = self.pool.clone();
        let segment = u64::from(pool.superblock.segment_bytes);
        let lanes = pool.lanes.len() as u64;
        let each = (pool.ledger.for_segments() / lanes / segment) as usize;
        for (at, &id) in self.home.iter().enumerate() {
            let mut lane = pool.lanes[id as usize].lock();
            if lane.memory_segments() != each {
                lane.set_memory_segments(each);
            }
            let now = [
                lane.memory_held() as u64 * segment,
                lane.index_bytes() as u64,
                (lane.buffer_bytes() as u64).max(LANE_BUFFERS as u64 * segment),
            ];
            for (i, part) in [Part::Segments, Part::Index].into_iter().enumerate() {
                pool.ledger.change(part, self.counted[at][i], now[i]);
            }
            pool.ledger.change_standing(self.counted[at][2], now[2]);
            self.counted[at] = now;
            lane.keep_fingerprints();
        }
        let spare = self.reads.spare_bytes() as u64;
        pool.ledger.change_standing(self.spare_counted, spare);
        self.spare_counted = spare;
    }

    /// Ends this worker: waits for what it has at the device.
    pub fn close(mut self) {
        let until = Instant::now() + Duration::from_secs(30);
        while (self.disk.in_flight() > 0
            || !self.verifier.is_idle()
            || self.flushes.wait(&self.pool))
            && Instant::now() < until
        {
            self.verify(true);
            self.flushes.submit(&self.pool, &mut *self.disk);
            self.disk.kick();
            self.reap(Wait::For(Duration::from_millis(100)));
        }
        let standing = self.reads.stock_bytes() as u64 + self.spare_counted;
        self.pool.ledger.change_standing(standing, 0);
        for (at, _) in self.home.iter().enumerate() {
            let [segments, index, io] = self.counted[at];
            self.pool.ledger.change(Part::Segments, segments, 0);
            self.pool.ledger.change(Part::Index, index, 0);
            self.pool.ledger.change_standing(io, 0);
        }
    }

    /// Runs one turn; when it leaves nothing to do, waits up to `wait` for what is under way at the device.
    /// For threads that need room and would rather work than wait.
    pub fn help(&mut self, wait: Duration) -> Turn {
        let turn = self.turn();
        if !turn.busy && self.disk.in_flight() > 0 {
            self.reap(Wait::For(wait));
        }
        turn
    }

    /// The checkpoint that was asked for is the end: nothing comes behind it.
    pub(crate) fn close_behind_checkpoint(&mut self) {
        self.closing = true;
    }

    /// Runs turns until `done` says so, waiting for the device in between.
    pub fn run_until(
        &mut self,
        until: Instant,
        mut done: impl FnMut(&mut Worker<D>) -> bool,
    ) -> bool {
        loop {
            let turn = self.turn();
            if done(self) {
                return true;
            }
            if self.pool.failure().is_some() || Instant::now() >= until {
                return false;
            }
            if !turn.busy && self.disk.in_flight() > 0 {
                self.reap(Wait::For(Duration::from_millis(10)));
            } else if !turn.busy {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "at the end of a pool, and simulated devices need no time"
                )]
                std::thread::yield_now();
            }
        }
    }
}

/// What came of a slice of each home lane.
#[derive(Default)]
struct Slices {
    /// More could be done at once.
    busy: bool,
    /// And somebody waits for it, or will soon.
    pressed: bool,
}
