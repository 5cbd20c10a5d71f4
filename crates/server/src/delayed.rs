//! What is to happen later: memcached's flush_all with a delay. The first thread does it when its time has come, beside its
//! connections. Never: outlives the server; a restart forgets it, as memcached's does.

use std::sync::atomic::Ordering;

use crate::store::{Step, Store};
use crate::thread::Thread;

/// The owner of the task; no connection has this number.
const OWNER: u64 = u64::MAX - 1;

impl<S: Store> Thread<S> {
    /// Goes on with a flush that is due, if there is one; answers whether it must soon be looked at again.
    pub(crate) fn flush_if_due(&mut self) -> bool {
        let env = &mut self.env;
        let at_ms = env.shared.flush_at_ms.load(Ordering::Relaxed);
        if env.index != 0 || at_ms == 0 || env.now_ms < at_ms {
            return false;
        }
        let mut task = match self.flush_task.take() {
            Some(task) => task,
            None => env.store.task(OWNER),
        };
        match env.store.flush_all(&mut task) {
            Ok(Step::Wait(_)) => {
                self.flush_task = Some(task);
                return true;
            }
            Ok(Step::Done(())) => tracing::info!("flushed, as flush_all with a delay had asked"),
            Err(e) => tracing::error!(error = %e.text, "a delayed flush_all failed"),
        }
        env.store.finish(task);
        // Another one may have been asked for meanwhile.
        let flush_at_ms = &env.shared.flush_at_ms;
        let _ = flush_at_ms.compare_exchange(at_ms, 0, Ordering::Relaxed, Ordering::Relaxed);
        false
    }
}
