//! The context of a step, and its report.
//!
//! A step never prints and never exits. It returns a [`Report`], and `test` decides what is shown. So a failed step does not
//! prevent later ones.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, OnceLock};

use crate::process::Ran;
use crate::programs::verdict::Row;
use crate::screen::Screen;
use crate::tools::Tools;

/// Set for an xtask that another one starts, if that one has reached no package archive.
pub(crate) const OFFLINE: &str = "XTASK_OFFLINE";

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

/// The context of a step.
pub struct Context {
    /// Root of the repository.
    pub root: PathBuf,
    pub(crate) tier: Tier,
    pub(crate) screen: Mutex<Screen>,
    /// Set by the step `tools`, or on first use if that step was filtered out.
    pub(crate) tools: OnceLock<Tools>,
    /// Whether apt-get has reached a package archive; unset until it has tried.
    pub(crate) archive_reached: OnceLock<bool>,
}

impl Context {
    /// The context of the repository of the running crate. `verbose` shows the output of commands while they run.
    pub fn new(verbose: bool, tier: Tier) -> Self {
        // Cargo also sets the variable at run time. That value is correct even if the checkout was moved after the build.
        let manifest_dir =
            std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&manifest_dir).ancestors().find(|folder| folder.join("Cargo.lock").exists());
        let root = root.expect("this crate is a member of the workspace").to_path_buf();
        let is_offline = std::env::var_os(OFFLINE).is_some();
        let archive_reached = if is_offline { OnceLock::from(false) } else { OnceLock::new() };
        let screen = Mutex::new(Screen::new(verbose));
        Self { root, tier, screen, tools: OnceLock::new(), archive_reached }
    }

    /// Folder for temporary files of xtask in the target directory.
    pub fn scratch(&self) -> PathBuf {
        self.root.join("target/xtask")
    }

    /// Whether the tier is `full`, which includes variations and repetitions.
    pub(crate) fn is_full(&self) -> bool {
        self.tier == Tier::Full
    }

    /// Returns a function that shows a finished row, out of `total`.
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

    /// Whether apt-get has tried, and has reached no package archive. Further attempts would only wait for the same timeouts.
    pub(crate) fn is_offline(&self) -> bool {
        self.archive_reached.get() == Some(&false)
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
    // The owner of /proc/self is the effective user. A call of libc would need `unsafe`.
    std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}

/// The outcome of a step, counted in tests. A step without tests counts as one.
#[derive(Default)]
pub struct Report {
    pub(crate) passed: usize,
    /// One sentence per failure.
    pub(crate) failures: Vec<String>,
    /// One sentence per skip: what was skipped, and how to enable it.
    pub(crate) skips: Vec<String>,
    /// Other remarks, one sentence each.
    pub(crate) notes: Vec<String>,
    /// The output of its commands.
    pub output: Vec<String>,
    /// The part of `output` that contains the error, if the step can find it. It is shown in place of `output`.
    pub(crate) extract: Vec<String>,
}

impl Report {
    /// The report of a step that is one command.
    pub(crate) fn of(ran: Ran) -> Self {
        let mut report = Self::default();
        report.add(ran);
        report
    }

    /// Counts one command as passed or failed.
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
