//! Shows how far a long step is: a bar on a terminal, a line a step elsewhere. It writes to stderr only.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar, or lines.
#[derive(Default)]
pub struct Progress {
    bar: Option<ProgressBar>,
    step: String,
}

impl Progress {
    /// `done` of `total` of `step`; the unit is the step's own.
    pub fn show(&mut self, step: &str, done: u64, total: u64) {
        if self.step != step {
            self.finish();
            self.step = step.to_string();
            if std::io::stderr().is_terminal() {
                let style = ProgressStyle::with_template("{msg} [{bar:30}] {percent}%");
                let bar = ProgressBar::new(total);
                bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
                bar.set_message(step.to_string());
                self.bar = Some(bar);
            } else {
                tracing::info!("{step}");
            }
        }
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
