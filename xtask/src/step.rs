//! What a step is handed and what it reports.
//!
//! A step never prints and never exits: it returns a [`Report`], and `test` decides what is shown. So a step that fails
//! cannot hide the ones after it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, OnceLock};

use crate::process::Ran;
use crate::programs::verdict::Row;
use crate::screen::Screen;
use crate::tools::Tools;

/// How much is tested. A tier includes the steps of those before it, and a step may do more in a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Tier {
    /// The edit-test loop.
    Quick,
    /// Every capability once, within 20 minutes on two cores.
    Default,
    /// What only repeats as well: other links, users, sizes and moments. Within 60 minutes.
    Full,
}

/// One named check.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// The first tier that runs it.
    pub(crate) tier: Tier,
    pub(crate) run: fn(&Context) -> Report,
}

/// Everything a step may lean on.
pub struct Context {
    /// Root of the repository.
    pub root: PathBuf,
    pub(crate) tier: Tier,
    pub(crate) screen: Mutex<Screen>,
    /// Filled by the `tools` step, or on first use where that step was filtered out.
    pub(crate) tools: OnceLock<Tools>,
}

impl Context {
    /// For the repository that the running crate belongs to. `verbose` shows the output of commands as it comes.
    pub fn new(verbose: bool, tier: Tier) -> Self {
        // Cargo sets the variable again at run time, which stays right when the checkout was moved after the build.
        let manifest_dir =
            std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&manifest_dir).ancestors().find(|folder| folder.join("Cargo.lock").exists());
        let root = root.expect("this crate is a member of the workspace").to_path_buf();
        Self { root, tier, screen: Mutex::new(Screen::new(verbose)), tools: OnceLock::new() }
    }

    /// Scratch of xtask inside the target directory; never checked in.
    pub fn scratch(&self) -> PathBuf {
        self.root.join("target/xtask")
    }

    /// Whether what only repeats is wanted too.
    pub(crate) fn is_full(&self) -> bool {
        self.tier == Tier::Full
    }

    /// Shows each of so many rows as it comes.
    pub(crate) fn progress(&self, total: usize) -> impl FnMut(&Row) {
        let mut done = 0;
        move |row| {
            done += 1;
            self.screen
                .lock()
                .expect("no thread panics while it draws")
                .line(&format!("[{done}/{total}] {}", row.line()));
        }
    }

    pub(crate) fn tools(&self) -> &Tools {
        self.tools.get_or_init(|| Tools::find(self))
    }
}

/// Prints why a command failed.
pub fn fail(reason: &str) -> ExitCode {
    eprintln!("{reason}");
    ExitCode::FAILURE
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    // The owner of /proc/self is the effective user; asking libc would need `unsafe`.
    std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}

/// What came of a step, in the unit of the closing line: single tests, or one for a step that has none.
#[derive(Default)]
pub struct Report {
    pub(crate) passed: usize,
    /// One sentence per failure.
    pub(crate) failures: Vec<String>,
    /// One sentence per skip: what was left out, and what would bring it back.
    pub(crate) skips: Vec<String>,
    /// One sentence for each thing to know that is neither a failure nor a skip.
    pub(crate) notes: Vec<String>,
    /// What its commands printed.
    pub output: Vec<String>,
    /// The part of `output` that contains the error, if the step can find it; shown instead of the whole.
    pub(crate) extract: Vec<String>,
}

impl Report {
    /// A step that is one command.
    pub(crate) fn of(ran: Ran) -> Self {
        let mut report = Self::default();
        report.add(ran);
        report
    }

    /// Count one command: passed or failed.
    pub(crate) fn add(&mut self, ran: Ran) {
        match ran.failure() {
            None => self.passed += 1,
            Some(failure) => self.failures.push(failure),
        }
        self.output.extend(ran.lines);
    }

    pub(crate) fn skip(reason: impl Into<String>) -> Self {
        Self { skips: vec![reason.into()], ..Self::default() }
    }

    pub(crate) fn fail(reason: impl Into<String>) -> Self {
        Self { failures: vec![reason.into()], ..Self::default() }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.passed += other.passed;
        self.failures.extend(other.failures);
        self.skips.extend(other.skips);
        self.notes.extend(other.notes);
        self.output.extend(other.output);
        self.extract.extend(other.extract);
    }

    /// One word for the table.
    pub(crate) fn verdict(&self) -> &'static str {
        match (self.failures.is_empty(), self.skips.is_empty(), self.passed) {
            (false, _, _) => "FAILED",
            (true, false, 0) => "SKIPPED",
            (true, false, _) => "partial",
            (true, true, _) => "ok",
        }
    }
}
