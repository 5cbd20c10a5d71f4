//! Reading ahead: objects that will be wanted soon come up to DRAM while the program goes on.
//!
//! A hint costs its caller the submission; the completion is taken by whoever turns the worker next. Promises: at most
//! [`AHEAD_MAX`] reads under way; beyond, and while another thread turns the worker, a hint is dropped.
//! Never: fails, or waits.

use super::error::ObjectError;
use super::open::Store;
use super::read::near;
use super::table::State;
use super::tables::Tables;
use slab::Slab;
use terrace_log::{Directory, Entry, ObjectId};
use terrace_pool::{Task, Worker};
use terrace_tiers::ReadPlan;

/// Reads ahead under way at once.
const AHEAD_MAX: usize = 256;

/// The worker, and what is read ahead with it.
pub(crate) struct Hands {
    pub(crate) worker: Worker<Tables>,
    /// A call's reads; its index is the task's owner.
    tasks: Slab<Task>,
    reads: usize,
    ready: Vec<u64>,
}

impl Hands {
    pub(crate) fn new(worker: Worker<Tables>) -> Hands {
        Hands {
            worker,
            tasks: Slab::new(),
            reads: 0,
            ready: Vec::new(),
        }
    }

    fn begin(&mut self, plans: &[(u16, ReadPlan)]) {
        let place = self.tasks.vacant_entry();
        let mut task = self.worker.task(place.key() as u64);
        for (lane, plan) in plans {
            self.worker.fetch(&mut task, *lane, *plan, false);
        }
        place.insert(task);
        self.reads += plans.len();
        self.worker.kick();
    }

    /// Brings up what has come back.
    pub(crate) fn settle(&mut self) {
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
    let who = Store::who(ObjectId(u64::from_le_bytes(key)));
    if lane.dir.find(who, |slot| slot.loc() == at).is_some() {
        lane.promote(who, at, entry);
    }
}

impl Store {
    /// Says that these objects will be wanted soon. Returns at once; it may be in vain.
    pub fn prefetch(&self, table: u16, ids: &[u64]) -> Result<(), ObjectError> {
        for id in ids {
            self.place(table, *id)?;
        }
        self.driver.try_hands(|hands| {
            let most = AHEAD_MAX.saturating_sub(hands.reads).min(ids.len());
            let mut plans = Vec::with_capacity(most);
            for id in ids {
                if plans.len() == most {
                    break;
                }
                let (oid, lane_id) = (ObjectId::new(table, *id), (id & self.lane_mask) as u16);
                let mut lane = self.pool.lane(lane_id);
                if let State::At(slot) = lane.dir.get(oid)
                    && near(&lane, slot).is_none()
                {
                    plans.push((lane_id, lane.plan_read(slot.loc())));
                }
            }
            if !plans.is_empty() {
                hands.begin(&plans);
            }
        });
        Ok(())
    }
}
