//! Progress on standard error: a bar on a terminal, a line per size elsewhere.

use crate::sizes::format_size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Instant;

/// Progress of the suite.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    start: Instant,
}

impl Progress {
    /// Starts with this many steps.
    pub(crate) fn new(steps: u64) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr_with_hz(5));
            let style = ProgressStyle::with_template("{bar:32} {percent:>3} %  {msg}  {eta} left");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Progress { bar, start: Instant::now() }
    }

    /// Shows the current measurement. The bar is only drawn between two measurements: it has no thread that would
    /// take time from them.
    pub(crate) fn step(&self, size: u64, test: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{:>7}  {test:<10}", format_size(size)));
            bar.inc(1);
        }
    }

    /// A size is done.
    pub(crate) fn size_done(&self, size: u64) {
        if self.bar.is_none() {
            eprintln!(
                "ferroce perf: {:>7} done after {:.0} s",
                format_size(size),
                self.start.elapsed().as_secs_f64()
            );
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
