//! A simulated block medium: deterministic from one seed, without real time, able to lose power
//! at any write or flush and to fail in every way a disk does.
//!
//! Promises: a crash image holds, for every sector, either what the last covering flush made
//! durable or what some later write put there, and nothing else; a flush covers exactly the writes
//! that were completed before it was submitted; equal seeds and calls give equal results.
//! Never: reads a clock, makes a thread, or is used from several threads at a time.

mod event;
mod fault;
mod inject;
mod paged;
mod rng;
mod state;

pub use event::{Event, EventKind};
pub use fault::Fault;
pub use inject::Faults;
pub use rng::Rng;

use crate::disk::SharedCounters;
use crate::{BLOCK_BYTES, Counters, Device, Disk, Done, MediaError, Op, SECTOR_BYTES, Wait};
use paged::Paged;
use state::{State, WriteId, lock_state};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Called after each event; may take crash images.
pub type Hook = Box<dyn FnMut(&SimDevice, Event) + Send>;

struct Inner {
    len_bytes: u64,
    read_unit_bytes: usize,
    state: Mutex<State>,
    hook: Mutex<Option<Hook>>,
    counters: SharedCounters,
}

/// From a sector to a block, by doubling.
const READ_UNITS: u64 = (BLOCK_BYTES / SECTOR_BYTES).ilog2() as u64 + 1;

/// What a power loss left of a device: only what was written to is copied.
pub struct Crashed(Paged);

/// A simulated block device. Clones are handles to the same device.
#[derive(Clone)]
pub struct SimDevice {
    inner: Arc<Inner>,
}

impl SimDevice {
    /// A device of `len_bytes` zeros that reads by 512 B, 1, 2 or 4 KiB, as `seed` says (a multiple of [`BLOCK_BYTES`], else this panics).
    pub fn new(len_bytes: u64, seed: u64) -> SimDevice {
        Self::with_image(vec![0; len_bytes as usize], seed)
    }

    /// A device that holds `image`, all of it durable. Panics if that is not whole blocks.
    pub fn with_image(image: Vec<u8>, seed: u64) -> SimDevice {
        assert!(
            image.len().is_multiple_of(BLOCK_BYTES),
            "an image of {} bytes",
            image.len()
        );
        Self::of(Paged::new(Arc::new(image)), seed)
    }

    /// A device that holds what a crash left, all of it durable. Costs no copy of it.
    pub fn after(crashed: &Crashed, seed: u64) -> SimDevice {
        Self::of(crashed.0.clone(), seed)
    }

    fn of(image: Paged, seed: u64) -> SimDevice {
        let inner = Inner {
            len_bytes: image.len_bytes() as u64,
            read_unit_bytes: SECTOR_BYTES << (seed % READ_UNITS),
            state: Mutex::new(State::new(image, seed)),
            hook: Mutex::new(None),
            counters: SharedCounters::default(),
        };
        SimDevice {
            inner: Arc::new(inner),
        }
    }

    /// Events so far: each submission of a write, each end of a write, each end of a flush.
    pub fn events(&self) -> u64 {
        self.state().events
    }

    /// One state that a power loss right now could leave, chosen by `seed` alone: what is durable,
    /// plus any part of every write that no completed flush covers, sector by sector, in any order
    /// where they overlap. The device itself is not changed.
    pub fn after_crash(&self, seed: u64) -> Crashed {
        Crashed(self.state().after_crash(seed))
    }

    /// The bytes of [`SimDevice::after_crash`].
    pub fn crash_image(&self, seed: u64) -> Vec<u8> {
        self.after_crash(seed).0.to_vec()
    }

    /// What reads see now.
    pub fn image(&self) -> Vec<u8> {
        self.state().volatile.to_vec()
    }

    /// What a power loss right now would leave at the least: the base of every crash image.
    pub fn durable_image(&self) -> Vec<u8> {
        self.state().durable.to_vec()
    }

    /// Writes that a power loss right now could lose or tear.
    pub fn unflushed_writes(&self) -> usize {
        self.state().writes.len()
    }

    /// Sets what is called after each event, or takes it away. Not to be called from a hook.
    pub fn set_hook(&self, hook: Option<Hook>) {
        *self
            .inner
            .hook
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = hook;
    }

    /// Loses power right after event number `event` (0: at once): from then on every operation
    /// ends with [`MediaError::Crashed`], events stand still and crash images stay what they are.
    pub fn crash_at(&self, event: u64) {
        self.state().crash_at = Some(event);
    }

    /// Whether power is lost.
    pub fn has_crashed(&self) -> bool {
        self.state().has_crashed()
    }

    /// A handle to set faults with.
    pub fn faults(&self) -> Faults<'_> {
        Faults::new(&self.inner.state, self.inner.len_bytes)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock_state(&self.inner.state)
    }

    /// Calls the hook, with no lock on the state held.
    fn tell(&self, event: Event) {
        let mut hook = self
            .inner
            .hook
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(hook) = hook.as_mut() {
            hook(self, event);
        }
    }
}

impl Device for SimDevice {
    fn writes_through(&self) -> bool {
        true
    }

    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes
    }

    fn read_unit_bytes(&self) -> usize {
        self.inner.read_unit_bytes
    }

    fn queue(&self, depth: u32) -> Result<Box<dyn Disk>, MediaError> {
        assert!(depth > 0, "a queue of depth 0");
        Ok(Box::new(SimDisk {
            device: self.clone(),
            in_flight: Vec::new(),
        }))
    }

    fn describe(&self) -> String {
        format!("simulated device, {} bytes", self.inner.len_bytes)
    }

    fn counters(&self) -> Counters {
        self.inner.counters.read()
    }
}

/// An operation in the simulated device's hands.
struct Flight {
    token: u64,
    op: Op,
    /// For a write: where the device keeps it. For a flush: nothing.
    write: Option<WriteId>,
    /// For a flush: the last write that completed before it was submitted.
    covers: u64,
    /// The fault it will end with, drawn when it was submitted.
    errno: Option<i32>,
    /// It was refused at submission (range, or power lost).
    refused: Option<MediaError>,
}

struct SimDisk {
    device: SimDevice,
    in_flight: Vec<Flight>,
}

impl Disk for SimDisk {
    fn submit(&mut self, token: u64, op: Op) {
        let inner = &self.device.inner;
        let mut refused = op.check(inner.len_bytes, inner.read_unit_bytes).err();
        let mut state = self.device.state();
        if refused.is_none() && state.has_crashed() {
            refused = Some(MediaError::Crashed);
        }
        let mut flight = Flight {
            token,
            op,
            write: None,
            covers: state.completed,
            errno: None,
            refused,
        };
        let mut event = None;
        if flight.refused.is_none() {
            flight.errno = state.rules.draw(&flight.op);
            let offset = flight.op.offset();
            let data: Option<&[u8]> = match &flight.op {
                Op::Write { data, .. } | Op::WriteThrough { data, .. } => Some(data),
                Op::WriteBuf { buf, .. } => Some(buf),
                Op::Read { .. } | Op::Flush => None,
            };
            if let Some(data) = data {
                // A copy, so that a segment can be recycled as early as on a real device.
                flight.write = Some(state.begin_write(offset, data));
                let kind = EventKind::WriteSubmitted {
                    offset,
                    len: data.len(),
                };
                event = Some(state.count_event(kind));
            }
        }
        drop(state);
        self.in_flight.push(flight);
        if let Some(event) = event {
            self.device.tell(event);
        }
    }

    fn kick(&mut self) {}

    /// Ends a random, non-empty part of what is in flight, in random order; all of it, in order,
    /// if reordering is off. Never waits.
    fn reap(&mut self, _wait: Wait, done: &mut Vec<Done>) {
        let mut ending = self.choose();
        for flight in ending.drain(..) {
            let ended = self.end(flight);
            done.push(ended);
        }
    }

    fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    fn poll_fd(&self) -> Option<RawFd> {
        None
    }
}

impl SimDisk {
    fn choose(&mut self) -> Vec<Flight> {
        let mut state = self.device.state();
        let longest = state.held_read_bytes;
        let held = |f: &Flight| matches!(&f.op, Op::Read { buf, .. } if buf.len() <= longest);
        let in_flight = std::mem::take(&mut self.in_flight);
        let (held, mut rest): (Vec<_>, Vec<_>) = in_flight.into_iter().partition(held);
        self.in_flight = held;
        if !state.reorder || rest.is_empty() {
            return rest;
        }
        let count = 1 + state.rng.below(rest.len());
        let mut chosen = Vec::with_capacity(count);
        for _ in 0..count {
            let index = state.rng.below(rest.len());
            chosen.push(rest.remove(index));
        }
        self.in_flight.append(&mut rest);
        chosen
    }

    fn end(&mut self, mut flight: Flight) -> Done {
        let mut state = self.device.state();
        let mut event = None;
        let result = if let Some(refused) = flight.refused.take() {
            Err(refused)
        } else if state.has_crashed() {
            Err(MediaError::Crashed)
        } else {
            let failed = flight.errno.map(|errno| flight.op.io_error(errno));
            if let Some(kind) = state.end_op(&mut flight) {
                event = Some(state.count_event(kind));
            }
            failed.map_or(Ok(()), Err)
        };
        drop(state);
        if result.is_ok() {
            self.device.inner.counters.count(&flight.op);
        }
        if let Some(event) = event {
            self.device.tell(event);
        }
        Done {
            token: flight.token,
            result,
            buf: match flight.errno == Some(fault::REFUSED.raw_os_error()) {
                true => None,
                false => flight.op.into_buf(),
            },
        }
    }
}

impl State {
    /// Lets an operation take effect; the event it makes.
    fn end_op(&mut self, flight: &mut Flight) -> Option<EventKind> {
        let failed = flight.errno;
        match &mut flight.op {
            Op::Read { offset, buf } => {
                if failed.is_none() {
                    self.read(*offset, buf);
                }
                None
            }
            Op::Write { .. } | Op::WriteThrough { .. } | Op::WriteBuf { .. } => {
                let write = flight
                    .write
                    .expect("a write in flight is known to the state");
                match failed {
                    None if matches!(flight.op, Op::WriteThrough { .. }) => {
                        self.complete_through(write);
                    }
                    None => self.complete_write(write),
                    Some(errno) => self.fail_write(write, errno),
                }
                if failed.is_some() && matches!(flight.op, Op::WriteThrough { .. }) {
                    // It may have been its flush: then the device's cache is gone, too.
                    self.fail_flush(self.completed);
                }
                let (offset, len) = (flight.op.offset(), flight.op.len());
                Some(EventKind::WriteCompleted { offset, len })
            }
            Op::Flush => {
                match failed {
                    None => self.complete_flush(flight.covers),
                    Some(_) => self.fail_flush(flight.covers),
                }
                Some(EventKind::FlushCompleted)
            }
        }
    }
}

impl Drop for SimDisk {
    /// A real queue waits for its writes when it is dropped. Here each of them happened or did
    /// not, by a toss of the seeded coin.
    fn drop(&mut self) {
        let mut state = self.device.state();
        if state.has_crashed() {
            return;
        }
        for write in self.in_flight.iter().filter_map(|flight| flight.write) {
            if state.rng.coin() {
                state.complete_write(write);
            } else {
                state.forget_write(write);
            }
        }
    }
}
