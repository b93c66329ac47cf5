//! Progress on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::time::Instant;

/// A terminal narrower than this wraps, which is ugly but harmless.
const WIDTH: usize = 78;

/// The status line that is redrawn while a step runs.
pub(crate) struct Screen {
    terminal: bool,
    verbose: bool,
    label: String,
    latest: String,
    started: Instant,
    drawn: Instant,
}

impl Screen {
    pub(crate) fn new(verbose: bool) -> Self {
        let now = Instant::now();
        let terminal = std::io::stdout().is_terminal();
        Self { terminal, verbose, label: String::new(), latest: String::new(), started: now, drawn: now }
    }

    /// Begins a step.
    pub(crate) fn begin(&mut self, label: String) {
        self.label = label;
        self.latest.clear();
        self.started = Instant::now();
        if self.terminal && !self.verbose {
            self.draw();
        } else {
            println!("{} ...", self.label);
        }
    }

    /// Shows a line of the step's output.
    pub(crate) fn line(&mut self, line: &str) {
        if self.verbose {
            println!("{line}");
        } else {
            line.trim().clone_into(&mut self.latest);
            self.tick();
        }
    }

    /// Redraws the status line.
    pub(crate) fn tick(&mut self) {
        if self.terminal && !self.verbose && self.drawn.elapsed().as_millis() > 100 {
            self.draw();
        }
    }

    /// Ends a step: replaces the status line by the result.
    pub(crate) fn end(&mut self, verdict: &str) {
        let wipe = if self.terminal && !self.verbose { "\r\x1b[K" } else { "" };
        println!("{wipe}{} {verdict} ({:.1} s)", self.label, self.started.elapsed().as_secs_f64());
    }

    fn draw(&mut self) {
        self.drawn = Instant::now();
        let text = format!("{} {:3} s  {}", self.label, self.started.elapsed().as_secs(), self.latest);
        let text: String = text.chars().filter(|c| !c.is_control()).take(WIDTH).collect();
        print!("\r{text}\x1b[K");
        // A closed terminal must not fail a test run.
        let _ = std::io::stdout().flush();
    }
}
