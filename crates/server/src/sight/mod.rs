//! What the server tells about itself: how long commands take (`calls`), how fast they come (`rate`), which were slow
//! (`slow`), and all figures in one list (`figures`), for INFO and for the door of the metrics (`http`, `metrics`); `process` asks the kernel.
//!
//! Promises: a command pays for one look at the clock and three counters of its own thread; everything else is summed when
//! somebody asks. Never: changes what a command does.

pub mod calls;
pub mod figures;
pub mod http;
pub mod metrics;
pub mod process;
pub mod rate;
pub mod slow;

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::sync::lock;

/// Kinds of errors that are told apart; more are counted as one.
const ERROR_KINDS_MAX: usize = 128;
/// The kind of those beyond.
const OTHER_ERRORS: &str = "OTHER";

/// Errors by the first word of their reply.
#[derive(Default)]
pub struct Errors(Mutex<BTreeMap<Box<str>, u64>>);

impl Errors {
    /// Counts one.
    #[cold]
    pub fn count(&self, kind: &str) {
        let mut kinds = lock(&self.0);
        if let Some(count) = kinds.get_mut(kind) {
            *count += 1;
            return;
        }
        let kind = match kinds.len() < ERROR_KINDS_MAX {
            true => kind,
            false => OTHER_ERRORS,
        };
        *kinds.entry(kind.into()).or_default() += 1;
    }

    /// All kinds with their counts.
    pub fn all(&self) -> Vec<(String, u64)> {
        let kinds = lock(&self.0);
        kinds.iter().map(|(k, n)| (k.to_string(), *n)).collect()
    }

    /// Forgets all.
    pub fn reset(&self) {
        lock(&self.0).clear();
    }
}
