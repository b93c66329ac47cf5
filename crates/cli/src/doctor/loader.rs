//! Which files the loader would load, and which library would provide each verb. The loader itself reports both, as for `ldd -r`.
//!
//! The program does not run. With `LD_DEBUG` the loader also prints where it searches and what it binds to what; these
//! lines are those of glibc.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Prints the folder of our libraries, if any, then runs the loader in its trace mode.
const SCRIPT: &str = "echo \"${LD_LIBRARY_PATH%%:*}\"; exec env -u LD_DEBUG_OUTPUT LD_TRACE_LOADED_OBJECTS=1 LD_WARN=yes LD_BIND_NOW=yes \
                      LD_DEBUG=libs,bindings \"$@\"";

/// A symbol of one file that another one defines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Binding {
    pub(super) user: String,
    pub(super) provider: String,
    pub(super) symbol: String,
}

/// The report of the loader.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Trace {
    /// The first folder of the library path: that of our libraries below `ferroce run`.
    folder: PathBuf,
    /// The files that it would load.
    pub(super) files: Vec<PathBuf>,
    /// The names that it does not find.
    pub(super) missing: Vec<String>,
    /// The uses of verbs and of the connection manager.
    pub(super) bindings: Vec<Binding>,
    /// Files, and the reason why each was found where it was.
    reasons: Vec<(String, String)>,
}

impl Trace {
    /// Runs `loader` in its trace mode on `program`, below `ferroce run` or without it.
    pub(super) fn of(loader: &Path, program: &Path, below_run: bool) -> io::Result<Trace> {
        let mut command = match below_run {
            true => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["run", "--", "sh"]);
                command
            }
            false => Command::new("sh"),
        };
        command.args(["-c", SCRIPT, "sh"]).arg(loader).arg(program).stdin(Stdio::null());
        let output = command.output()?;
        let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        let mut trace = Trace::parse(&out, &err);
        if !below_run {
            trace.folder = PathBuf::new();
        }
        match trace.files.is_empty() && trace.missing.is_empty() {
            true => Err(io::Error::other(err.trim().lines().last().unwrap_or("no answer").to_owned())),
            false => Ok(trace),
        }
    }

    fn parse(out: &str, err: &str) -> Trace {
        let mut lines = out.lines();
        let mut trace = Trace { folder: lines.next().unwrap_or_default().into(), ..Trace::default() };
        for line in lines.map(str::trim) {
            match line.split_once(" => ") {
                Some((name, "not found")) => trace.missing.push(name.to_owned()),
                Some((_, file)) => trace.files.extend(loaded(file)),
                None => trace.files.extend(loaded(line)),
            }
        }
        let mut reason = "";
        for line in err.lines().filter_map(|line| Some(line.split_once(":\t")?.1.trim())) {
            if let Some(search) = line.strip_prefix("search ") {
                reason = match search.split_once("\t\t(") {
                    Some((_, reason)) => reason.trim_end_matches(')'),
                    None => "the system's libraries",
                };
            } else if let Some(file) = line.strip_prefix("trying file=") {
                trace.reasons.push((file.to_owned(), reason.to_owned()));
            } else if let Some(binding) = line.strip_prefix("binding file ").and_then(binding) {
                trace.bindings.push(binding);
            }
        }
        trace
    }

    /// Why a file was found: by which path, of which file.
    pub(super) fn reason(&self, file: &str) -> &str {
        self.reasons.iter().find(|(name, _)| name == file).map_or("already loaded", |(_, reason)| reason)
    }

    /// Whether a file is one of ours.
    pub(super) fn is_ours(&self, file: &str) -> bool {
        !self.folder.as_os_str().is_empty() && Path::new(file).starts_with(&self.folder)
    }

    /// Uses of functions with this prefix by other files than those that define them, and than ours.
    pub(super) fn uses(&self, prefix: &str) -> impl Iterator<Item = &Binding> {
        self.bindings.iter().filter(move |used| {
            used.symbol.starts_with(prefix) && used.user != used.provider && !self.is_ours(&used.user)
        })
    }
}

/// The file of `FILE (0xADDRESS)`.
fn loaded(text: &str) -> Option<PathBuf> {
    let (file, _) = text.rsplit_once(" (0x")?;
    file.starts_with('/').then(|| file.into())
}

/// `USER [0] to PROVIDER [0]: normal symbol `NAME' [VERSION]`
fn binding(text: &str) -> Option<Binding> {
    let (user, rest) = text.split_once(" [0] to ")?;
    let (provider, rest) = rest.split_once(" [0]: ")?;
    let symbol = rest.split_once('`')?.1.split_once('\'')?.0;
    ["ibv_", "_ibv_", "rdma_"].iter().any(|prefix| symbol.starts_with(prefix)).then(|| Binding {
        user: user.to_owned(),
        provider: provider.to_owned(),
        symbol: symbol.trim_start_matches('_').to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaders_lines_are_understood() {
        let out = "/dev/ferroce\n\tlinux-vdso.so.1 (0x00007f)\n\tlibx.so.1 => /opt/my lib/libx.so.1 (0x00007f)\n\
                   \tliby.so => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let err = "     7:\t\n     7:\tfind library=libx.so.1 [0]; searching\n\
                   \x20    7:\t search path=/opt/my lib\t\t(RPATH from file ./prog)\n\
                   \x20    7:\t  trying file=/opt/my lib/libx.so.1\n     7:\t search cache=/etc/ld.so.cache\n\
                   \x20    7:\t  trying file=/lib/libz.so\n\
                   \x20    7:\tbinding file ./prog [0] to /dev/ferroce/libibverbs.so.1 [0]: normal symbol `ibv_open_device' [IBVERBS_1.1]\n\
                   \x20    7:\tbinding file ./prog [0] to /lib/libc.so.6 [0]: normal symbol `puts' [GLIBC_2.2.5]\n";
        let trace = Trace::parse(out, err);
        assert_eq!(
            trace.files,
            [Path::new("/opt/my lib/libx.so.1"), Path::new("/lib64/ld-linux-x86-64.so.2")]
        );
        assert_eq!(trace.missing, ["liby.so"]);
        assert_eq!(trace.reason("/opt/my lib/libx.so.1"), "RPATH from file ./prog");
        assert_eq!(trace.reason("/lib/libz.so"), "the system's libraries");
        let uses: Vec<_> = trace.uses("ibv_").collect();
        assert!(uses.len() == 1 && trace.is_ours(&uses[0].provider) && uses[0].user == "./prog", "{uses:?}");
    }
}
