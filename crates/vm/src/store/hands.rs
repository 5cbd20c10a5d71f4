//! The store's worker, and what is read ahead with it.
//!
//! Promises: what came back goes up to DRAM if it is still the newest. Never: waits.

use super::tables::{Tables, subject};
use slab::Slab;
use terrace_log::{Directory, Entry, ObjectId};
use terrace_pool::{Task, Worker};
use terrace_tiers::ReadPlan;

/// The worker, and what is read ahead with it.
pub(crate) struct Hands {
    pub(super) worker: Worker<Tables>,
    /// A call's reads; its index is the task's owner.
    tasks: Slab<Task>,
    reads: usize,
    ready: Vec<u64>,
}

impl Hands {
    pub(super) fn new(worker: Worker<Tables>) -> Hands {
        Hands {
            worker,
            tasks: Slab::new(),
            reads: 0,
            ready: Vec::new(),
        }
    }

    /// Reads these; what comes back is brought up by [`Hands::settle`].
    pub(super) fn begin(&mut self, plans: &[(u16, ReadPlan)]) {
        let place = self.tasks.vacant_entry();
        let mut task = self.worker.task(place.key() as u64);
        for (lane, plan) in plans {
            self.worker.fetch(&mut task, *lane, *plan, false);
        }
        place.insert(task);
        self.reads += plans.len();
        self.worker.kick();
    }

    /// Reads under way.
    pub(super) fn reads(&self) -> usize {
        self.reads
    }

    /// Brings up what has come back.
    pub(super) fn settle(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        self.worker.take_ready(&mut ready);
        for owner in ready.drain(..) {
            let Some(mut task) = self.tasks.try_remove(owner as usize) else {
                continue;
            };
            self.worker.collect(&mut task);
            self.reads -= task.all_fetched().len();
            for f in task.all_fetched() {
                if let (Ok(entry), None) = (f.entry(), f.damage()) {
                    let mut lane = self.worker.lane(f.lane());
                    lane.count(|s| s.misses += 1);
                    bring_up(&mut lane, &entry, f.loc());
                }
            }
            self.worker.finish(task);
        }
        self.ready = ready;
    }
}

fn bring_up(lane: &mut terrace_pool::Lane<Tables>, entry: &Entry<'_>, at: terrace_log::Loc) {
    let Ok(key) = entry.key().try_into() else {
        return;
    };
    let who = subject(ObjectId(u64::from_le_bytes(key)));
    if lane.dir.find(who, |slot| slot.loc() == at).is_some() {
        lane.promote(who, at, entry);
    }
}
