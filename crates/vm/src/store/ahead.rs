//! Reading ahead: objects that will be wanted soon come up to DRAM while the program goes on.
//!
//! A hint costs its caller the submission; the completion is taken by whoever turns the worker next. Promises: at most
//! [`AHEAD_MAX`] reads under way; beyond, and while another thread turns the worker, a hint is dropped.
//! Never: fails, or waits.

use super::error::ObjectError;
use super::open::Store;
use super::read::near;
use super::table::State;
use terrace_log::ObjectId;

/// Reads ahead under way at once.
const AHEAD_MAX: usize = 256;

impl Store {
    /// Says that these objects will be wanted soon. Returns at once; it may be in vain.
    pub fn prefetch(&self, table: u16, ids: &[u64]) -> Result<(), ObjectError> {
        self.here()?;
        for id in ids {
            self.place(table, *id)?;
        }
        self.driver.try_hands(|hands| {
            let most = AHEAD_MAX.saturating_sub(hands.reads()).min(ids.len());
            let mut plans = Vec::with_capacity(most);
            for id in ids {
                if plans.len() == most {
                    break;
                }
                let (oid, lane_id) = (ObjectId::new(table, *id), self.dealt.lane_of(*id));
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
