//! Foreign programs that tests need: found, installed, or reported as missing.
//!
//! As root on a machine with apt, xtask installs them. Otherwise each missing one is a skip, with the command that installs it.
//! Python packages go into a private virtual environment, which needs no rights.

use std::path::{Path, PathBuf};

use crate::process::Job;
use crate::step::{Context, Report, is_root};

/// A program, its Debian package, and what is not tested without it.
struct Need {
    program: &'static str,
    package: &'static str,
    why: &'static str,
}

const NEEDS: [Need; 5] = [
    Need { program: "tshark", package: "tshark", why: "dissects every packet type" },
    Need { program: "setpriv", package: "util-linux", why: "runs the tests as a user without rights" },
    Need { program: "valgrind", package: "valgrind", why: "counts instructions" },
    Need { program: "c++", package: "g++", why: "builds libFuzzer" },
    Need { program: BROWSER, package: BROWSER, why: "shows the HTML pages" },
];

/// The browser of the tests in crates/cli/tests/view.rs.
const BROWSER: &str = "chromium-headless-shell";
/// From the first release whose RoCE layer computes the ICRC over both IP versions to the next major one.
const SCAPY: &str = "scapy>=2.5,<3";
/// A Python statement that fails without that layer.
const IMPORT_SCAPY: &str = "import scapy.contrib.roce";

/// The installed programs.
pub(crate) struct Tools {
    pub(crate) tshark: Option<PathBuf>,
    pub(crate) setpriv: Option<PathBuf>,
    pub(crate) cxx: Option<PathBuf>,
    pub(crate) browser: Option<PathBuf>,
    /// A Python that can import scapy's RoCE layer.
    pub(crate) python: Option<PathBuf>,
    /// Prometheus' judge of the text format.
    pub(crate) promtool: Option<PathBuf>,
}

impl Tools {
    /// Tells test programs where tools are that are not in `PATH`.
    pub(crate) fn locate(&self, mut job: Job) -> Job {
        for (name, path) in [("FERROCE_PYTHON", &self.python), ("FERROCE_PROMTOOL", &self.promtool)] {
            if let Some(path) = path {
                job = job.env(name, path);
            }
        }
        job
    }

    /// Finds programs without installing any.
    pub(crate) fn find(ctx: &Context) -> Self {
        let venv = venv(ctx).join("bin/python");
        let unpacked = prometheus(ctx).join("sysroot/usr/bin/promtool");
        let candidates = [Some(venv), which("python3")];
        Self {
            tshark: which("tshark"),
            setpriv: which("setpriv"),
            cxx: which("c++"),
            browser: which(BROWSER),
            python: candidates.into_iter().flatten().find(|python| has_scapy(ctx, python)),
            promtool: which("promtool").or(Some(unpacked).filter(|path| path.exists())),
        }
    }

    /// Whether all tools are installed, so that a test may fail if it finds one missing.
    pub(crate) fn complete(&self) -> bool {
        self.tshark.is_some() && self.python.is_some() && self.browser.is_some()
    }
}

/// The step: installs missing programs, and reports those that are still missing.
pub(crate) fn provide(ctx: &Context) -> Report {
    let mut report = Report::default();
    let missing: Vec<&str> = NEEDS.iter().filter(|n| which(n.program).is_none()).map(|n| n.package).collect();
    if !missing.is_empty() {
        apt_install(ctx, &missing, &mut report);
    }
    // Tests compile C programs against the headers, and compare answers with those of the real libraries.
    crate::programs::provide(ctx, &mut report);
    for need in NEEDS.iter().filter(|need| which(need.program).is_none()) {
        let Need { program, package, why } = need;
        report
            .skips
            .push(format!("{program} is missing ({why}); install it: `sudo apt-get install -y {package}`"));
    }
    if !provide_scapy(ctx, &mut report) {
        report.skips.push(format!(
            "scapy is missing (an independent ICRC); install it: `sudo apt-get install -y python3-venv`, or \
             `pip install '{SCAPY}'` for the python3 of your PATH"
        ));
    }
    // Its package would start a server, so it is not installed.
    if Tools::find(ctx).promtool.is_none()
        && let Err(why) = crate::debian::unpacked(ctx, &prometheus(ctx), &["prometheus".to_owned()])
    {
        report.skips.push(format!("promtool is missing (judges the metrics): {why}"));
    }
    let _ = ctx.tools.set(Tools::find(ctx));
    if report.skips.is_empty() {
        report.passed = 1;
    }
    report
}

/// Provides scapy: an installed one, a new virtual environment, or Debian's package.
fn provide_scapy(ctx: &Context, report: &mut Report) -> bool {
    let venv = venv(ctx);
    if Tools::find(ctx).python.is_some()
        || (fill_venv(ctx, &venv, [&SCAPY], report) && has_scapy(ctx, &venv.join("bin/python")))
    {
        return true;
    }
    apt_install(ctx, &["python3-scapy"], report) && has_scapy(ctx, Path::new("/usr/bin/python3"))
}

/// Creates a virtual environment in `folder` and runs `pip install` with these arguments. Installs the Python module `venv` if it is
/// missing and that is allowed.
pub(crate) fn fill_venv<'a>(
    ctx: &Context,
    folder: &Path,
    arguments: impl IntoIterator<Item = &'a &'a str> + Clone,
    report: &mut Report,
) -> bool {
    let fill = |report: &mut Report| make_venv(ctx, folder, arguments.clone(), report);
    fill(report) || (apt_install(ctx, &["python3-venv"], report) && fill(report))
}

fn make_venv<'a>(
    ctx: &Context,
    folder: &Path,
    arguments: impl IntoIterator<Item = &'a &'a str> + Clone,
    report: &mut Report,
) -> bool {
    // The system's Python first: the user without rights cannot execute one below /root.
    let bases = [Some(PathBuf::from("/usr/bin/python3")), which("python3")];
    bases.into_iter().flatten().filter(|base| base.exists()).any(|base| {
        let made = Job::new(base).args(["-m", "venv", "--clear"]).args([folder]).limit_s(120).run(ctx);
        let mut success = made.success();
        report.output.extend(made.lines);
        if success {
            let pip = Job::new(folder.join("bin/pip")).args(["install", "--quiet"]).args(arguments.clone());
            let installed = pip.limit_s(300).run(ctx);
            success = installed.success();
            report.output.extend(installed.lines);
        }
        success
    })
}

fn venv(ctx: &Context) -> PathBuf {
    ctx.scratch().join("venv")
}

fn prometheus(ctx: &Context) -> PathBuf {
    ctx.scratch().join("prometheus")
}

fn has_scapy(ctx: &Context, python: &Path) -> bool {
    python.exists() && Job::new(python).args(["-c", IMPORT_SCAPY]).answer(ctx).is_ok()
}

/// Installs Debian packages, if that is allowed.
pub(crate) fn install(ctx: &Context, packages: &[&str]) -> bool {
    apt_install(ctx, packages, &mut Report::default())
}

/// Installs Debian packages. Returns `false` if that is not allowed or fails. The second try has updated package lists, because images
/// ship without them.
pub(crate) fn apt_install(ctx: &Context, packages: &[&str], report: &mut Report) -> bool {
    if !is_root() || which("apt-get").is_none() {
        return false;
    }
    let install = || apt(&["install", "-y", "--no-install-recommends"]).args(packages).limit_s(600).run(ctx);
    let first = install();
    if first.success() {
        return true;
    }
    report.output.extend(first.lines);
    let update = apt(&["update"]).limit_s(180).run(ctx);
    report.output.extend(update.lines);
    let second = install();
    let success = second.success();
    report.output.extend(second.lines);
    success
}

/// apt-get without questions (tshark's package has one about capturing without root) and with short network timeouts.
fn apt(args: &[&str]) -> Job {
    let patience =
        ["-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20", "-o", "DPkg::Lock::Timeout=120"];
    Job::new("apt-get").args(args).args(patience).env("DEBIAN_FRONTEND", "noninteractive")
}

/// The reason why a row cannot run without this package.
pub(crate) fn not_installed(what: &str, package: &str) -> String {
    format!("{what} is not installed; install it: `sudo apt-get install -y {package}`")
}

/// The path of a program. Also searches the sbin folders, which `PATH` of an ordinary user often lacks.
pub fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_finds_what_every_machine_has() {
        assert!(which("sh").is_some());
        assert!(which("no-such-program-of-ferroce").is_none());
    }
}
