//! Says on stderr what is being done: a line that changes in place where a person is looking, else a line when a step begins, once a minute at most.
//!
//! Promises never to write to stdout, which belongs to the result.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Between two lines where stderr is no terminal, so that what takes seconds says nothing.
const SAYS_EVERY: Duration = Duration::from_secs(60);

/// How far a run has come.
pub struct Progress {
    bar: ProgressBar,
    began: Instant,
    said: Cell<Instant>,
}

impl Progress {
    /// Of `steps` steps.
    pub fn new(steps: u64) -> Progress {
        let bar = match std::io::stderr().is_terminal() {
            true => ProgressBar::new(steps),
            false => ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::hidden()),
        };
        if let Ok(style) =
            ProgressStyle::with_template("[{elapsed_precise}] {pos}/{len} {wide_msg}")
        {
            bar.set_style(style);
        }
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_secs(1));
        }
        let now = Instant::now();
        Progress {
            bar,
            began: now,
            said: Cell::new(now),
        }
    }

    /// Begins a step.
    pub fn step(&self, what: impl Into<String>) {
        let what = what.into();
        self.bar.inc(1);
        if self.bar.is_hidden() && self.said.get().elapsed() >= SAYS_EVERY {
            self.said.set(Instant::now());
            let (at, of) = (self.bar.position(), self.bar.length().unwrap_or(0));
            eprintln!("{} s: {at}/{of} {what}", self.began.elapsed().as_secs());
        }
        self.bar.set_message(what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
