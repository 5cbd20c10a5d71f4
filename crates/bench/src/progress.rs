//! Says on stderr what is being done, when a person is looking; says nothing otherwise.
//!
//! Promises never to write to stdout, which belongs to the result.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// A line that changes in place.
pub struct Progress(ProgressBar);

impl Progress {
    /// Of `steps` steps; hidden when stderr is no terminal.
    pub fn new(steps: u64) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(steps);
        if let Ok(style) =
            ProgressStyle::with_template("[{elapsed_precise}] {pos}/{len} {wide_msg}")
        {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_secs(1));
        Progress(bar)
    }

    /// Begins a step.
    pub fn step(&self, what: impl Into<String>) {
        self.0.inc(1);
        self.0.set_message(what.into());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
