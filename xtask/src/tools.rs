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
    pub(crate) fn locate(&self, job: Job) -> Job {
        self.locate_if(job, |_, _| true)
    }

    /// Like [`Tools::locate`], for a user that cannot execute every tool. `can_run` tries a program with these arguments.
    pub(crate) fn locate_if(&self, job: Job, can_run: impl Fn(&Path, &[&str]) -> bool) -> Job {
        let tools = [
            ("FERROCE_PYTHON", &self.python, &["-c", ""][..]),
            ("FERROCE_PROMTOOL", &self.promtool, &["--version"]),
        ];
        tools.into_iter().fold(job, |job, (name, path, arguments)| match path {
            Some(path) if can_run(path, arguments) => job.env(name, path),
            _ => job,
        })
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
    let mut packages = crate::programs::provide(ctx, &mut report);
    packages.retain(|package| NEEDS.iter().all(|need| need.package != *package));
    if !packages.is_empty() {
        let packages = packages.join(" ");
        report.skips.push(format!(
            "packages of tests and of `cargo xtask programs` are missing; install them: `sudo apt-get install -y {packages}`"
        ));
    }
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
/// ship without them, and no half-configured packages: dpkg refuses to work on them, and the end of xtask kills a dpkg that runs.
pub(crate) fn apt_install(ctx: &Context, packages: &[&str], report: &mut Report) -> bool {
    if !is_root() || which("apt-get").is_none() || ctx.is_offline() {
        return false;
    }
    let install = || apt(&["install", "-y", "--no-install-recommends"]).args(packages).limit_s(600).run(ctx);
    let first = install();
    if first.success() {
        return true;
    }
    report.output.extend(first.lines);
    let configured = noninteractive("dpkg").args(["--configure", "-a"]).limit_s(300).run(ctx);
    report.output.extend(configured.lines);
    if !apt_update(ctx, &mut report.output) {
        report.output.push("`apt-get update` reached no package archive".to_owned());
        return false;
    }
    let second = install();
    let success = second.success();
    report.output.extend(second.lines);
    success
}

/// Updates the package lists, once in this process. Returns whether that reached a package archive; only root may update.
pub(crate) fn apt_update(ctx: &Context, output: &mut Vec<String>) -> bool {
    is_root()
        && *ctx.archive_reached.get_or_init(|| {
            let update = apt(&["update"]).limit_s(180).run(ctx);
            let reached = reached_archive(&update.lines);
            output.extend(update.lines);
            reached
        })
}

/// Whether `apt-get update` reached at least one archive. Its exit status is zero without a network, too.
fn reached_archive(lines: &[String]) -> bool {
    lines.iter().any(|line| line.starts_with("Hit:") || line.starts_with("Get:"))
}

/// apt-get with short network timeouts.
fn apt(args: &[&str]) -> Job {
    let limits =
        ["-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20", "-o", "DPkg::Lock::Timeout=120"];
    noninteractive("apt-get").args(args).args(limits)
}

/// A package manager without questions (tshark's package has one about capturing without root), with messages in English.
fn noninteractive(program: &str) -> Job {
    Job::new(program).env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8")
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

    #[test]
    fn an_update_without_a_network_reaches_no_archive() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let refused = "Err:1 http://deb.debian.org/debian bookworm InRelease\n  Temporary failure resolving 'deb.debian.org'\n\
                       Reading package lists...\nW: Some index files failed to download.";
        assert!(!reached_archive(&lines(refused)));
        assert!(reached_archive(&lines("Hit:1 http://deb.debian.org/debian bookworm InRelease")));
        assert!(reached_archive(&lines("Err:1 http://a b InRelease\nGet:2 http://c d InRelease [151 kB]")));
    }

    #[test]
    fn test_programs_get_the_tools_that_the_user_can_run() {
        let tools = Tools {
            tshark: None,
            setpriv: None,
            cxx: None,
            browser: None,
            python: Some("/a/python".into()),
            promtool: Some("/a/promtool".into()),
        };
        let ctx = Context::new(false, crate::step::Tier::Default);
        let located = |can_run: fn(&Path, &[&str]) -> bool| {
            let job = Job::new("sh").args(["-c", "echo $FERROCE_PYTHON $FERROCE_PROMTOOL"]).env_clear();
            tools.locate_if(job, can_run).answer(&ctx).expect("sh runs")
        };
        assert_eq!(located(|_, _| true), "/a/python /a/promtool\n");
        assert_eq!(located(|path, _| path.ends_with("promtool")), "/a/promtool\n");
    }
}
