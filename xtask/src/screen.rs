//! Progress on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::time::Instant;

/// A terminal narrower than this wraps, which is ugly but harmless.
const WIDTH: usize = 78;

/// The one line that moves while a step runs.
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

    /// A step begins.
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

    /// The step wrote a line.
    pub(crate) fn line(&mut self, line: &str) {
        if self.verbose {
            println!("{line}");
        } else {
            line.trim().clone_into(&mut self.latest);
            self.tick();
        }
    }

    /// Time passed.
    pub(crate) fn tick(&mut self) {
        if self.terminal && !self.verbose && self.drawn.elapsed().as_millis() > 100 {
            self.draw();
        }
    }

    /// The step ended; its moving line gives way to a lasting one.
    pub(crate) fn end(&mut self, verdict: &str) {
        let wipe = if self.terminal && !self.verbose { "\r\x1b[K" } else { "" };
        println!("{wipe}{} {verdict} ({:.1} s)", self.label, self.started.elapsed().as_secs_f64());
    }

    fn draw(&mut self) {
        self.drawn = Instant::now();
        let text = format!("{} {:3} s  {}", self.label, self.started.elapsed().as_secs(), self.latest);
        let text: String = text.chars().filter(|c| !c.is_control()).take(WIDTH).collect();
        print!("\r{text}\x1b[K");
        // A terminal that went away is no reason to fail a test run.
        let _ = std::io::stdout().flush();
    }
}
