//! What came of a run of the load generator: how fast it was, and whether all replies were right.
//!
//! Promises: figures of all requests that were answered, and of no other. Never: calls a run good by itself; who asked says what it allows.

use anyhow::{Result, bail};
use hdrhistogram::Histogram;

/// Latencies above this are counted as this.
const LATENCY_MAX_US: u64 = 120_000_000;

/// What came of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Requests answered, of either kind.
    pub ops: u64,
    /// GETs answered.
    pub gets: u64,
    /// SETs or DELs answered.
    pub sets: u64,
    /// Error replies.
    pub errors: u64,
    /// The first error reply's text.
    pub first_error: Option<String>,
    /// GETs answered with nil.
    pub nils: u64,
    /// GETs whose value had the wrong length or another key's bytes.
    pub wrong: u64,
    /// From the first request to the last reply, seconds.
    pub elapsed_s: f64,
    /// CPU time the generating thread used, seconds; near `elapsed_s` the generator is the limit, not the server.
    pub cpu_s: f64,
    /// Latency of GETs in µs, from the batch's send to this reply.
    pub get_latency_us: Histogram<u64>,
    /// Latency of SETs or DELs in µs.
    pub set_latency_us: Histogram<u64>,
}

impl Outcome {
    pub(super) fn new() -> Outcome {
        let histogram =
            || Histogram::new_with_bounds(1, LATENCY_MAX_US, 3).expect("constant bounds are valid");
        Outcome {
            ops: 0,
            gets: 0,
            sets: 0,
            errors: 0,
            first_error: None,
            nils: 0,
            wrong: 0,
            elapsed_s: 0.0,
            cpu_s: 0.0,
            get_latency_us: histogram(),
            set_latency_us: histogram(),
        }
    }

    /// Requests answered each second.
    pub fn ops_per_s(&self) -> f64 {
        if self.elapsed_s > 0.0 {
            self.ops as f64 / self.elapsed_s
        } else {
            0.0
        }
    }

    /// A quantile (0 to 1) of the latency of all requests, µs.
    pub fn latency_us(&self, quantile: f64) -> f64 {
        let mut all = self.get_latency_us.clone();
        // Both have the same bounds, so the sum cannot fail.
        all.add(&self.set_latency_us).expect("equal bounds");
        all.value_at_quantile(quantile) as f64
    }

    /// Fails when a reply was not what the workload allows: only a cache may refuse a write or have lost a key that was loaded.
    pub fn check(&self, is_cache: bool) -> Result<()> {
        if self.errors > 0 && !is_cache {
            let text = self.first_error.as_deref().unwrap_or("");
            bail!(
                "{} of {} requests got an error, the first: {text}",
                self.errors,
                self.ops
            );
        }
        if self.wrong > 0 {
            bail!(
                "{} of {} values had a wrong length or another key's bytes",
                self.wrong,
                self.gets
            );
        }
        if self.nils > 0 && !is_cache {
            bail!(
                "{} of {} keys that were loaded are not there",
                self.nils,
                self.gets
            );
        }
        Ok(())
    }
}
