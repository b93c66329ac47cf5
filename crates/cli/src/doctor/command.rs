//! `ferroce doctor -- COMMAND`: which libibverbs and librdmacm the command would use, and whether these will be ours.

use super::elf::Elf;
use super::loader::{Binding, Trace};
use super::{Finding, host};
use crate::failure::Failure;
use crate::program;
use crate::run::library::Libraries;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const COMMAND: &str = "command";
const RIGHTS: &str = "rights";
const PLAIN: &str = "without ferroce run";
/// A script may name a script as its interpreter; the kernel follows this many.
const MAX_SCRIPTS: usize = 4;
/// Strings that show that a file contains libibverbs: a folder that libibverbs reads, and the start of its messages.
const STATIC_MARKS: [&str; 2] = ["infiniband_verbs", "libibverbs: "];

/// A library that programs use by symbol.
struct Role {
    name: &'static str,
    /// The prefix of its symbols.
    prefix: &'static str,
}

const VERBS: Role = Role { name: "libibverbs", prefix: "ibv_" };
const CONNECTIONS: Role = Role { name: "librdmacm", prefix: "rdma_" };

/// Explains what the command would load.
pub(super) fn check(command: &[OsString]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(path) = program::search(&command[0]) else {
        let found = format!("the program {} does not exist", Path::new(&command[0]).display());
        return vec![Finding::fails(COMMAND, found).advise("Check the name, or give its path")];
    };
    let is_library = file_name(&path).contains(".so");
    if !is_library && rustix::fs::access(&path, rustix::fs::Access::EXEC_OK).is_err() {
        let found = format!("{} is not executable", path.display());
        return vec![Finding::fails(COMMAND, found).advise(format!("chmod +x {}", path.display()))];
    }
    match follow_scripts(path, &mut findings) {
        Ok((path, file)) => findings.extend(check_file(&path, &file)),
        Err(failure) => findings.push(failure),
    }
    findings
}

/// The program file behind a script, and its content.
fn follow_scripts(mut path: PathBuf, findings: &mut Vec<Finding>) -> Result<(PathBuf, Vec<u8>), Finding> {
    for _script in 0..=MAX_SCRIPTS {
        let file = std::fs::read(&path).map_err(|error| {
            let found = format!("{} cannot be read: {error}", path.display());
            Finding::fails(COMMAND, found).advise("Check it as a user who may read it")
        })?;
        let Some(line) = file.strip_prefix(b"#!") else { return Ok((path, file)) };
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let mut words =
            line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).map(OsStr::from_bytes);
        let named = words.next().unwrap_or_default();
        // `env` searches the program in PATH.
        let by_env = Path::new(named).ends_with("env");
        let named = match by_env {
            true => words.find(|word| !word.as_bytes().starts_with(b"-")).unwrap_or(named),
            false => named,
        };
        let interpreter = program::search(named).ok_or_else(|| {
            let found = format!(
                "the interpreter {} of {} does not exist",
                Path::new(named).display(),
                path.display()
            );
            Finding::fails(COMMAND, found).advise("Install it, or correct the first line of the script")
        })?;
        let found = format!("{} is a script of {}", path.display(), interpreter.display());
        let advice = "Programs that the script starts get ferroce's libraries, too; check each: ferroce doctor -- PROGRAM";
        findings.push(Finding::note(COMMAND, found).advise(advice));
        path = interpreter;
    }
    Err(Finding::fails(COMMAND, format!("{}: the scripts name each other as interpreters", path.display())))
}

fn check_file(path: &Path, file: &[u8]) -> Vec<Finding> {
    let Some(own) = std::fs::read("/proc/self/exe").ok().and_then(|own| Elf::parse(&own)) else {
        return vec![Finding::fails(COMMAND, "the headers of the command ferroce cannot be read")];
    };
    let Some(elf) = Elf::parse(file) else {
        let found =
            format!("{} is neither a program nor a script that names its interpreter", path.display());
        return vec![Finding::fails(COMMAND, found).advise("Begin the script with a line such as #!/bin/sh")];
    };
    if !elf.fits(&own) {
        let found = format!("{} is built for another processor than ferroce's libraries", path.display());
        return vec![Finding::fails(COMMAND, found).advise("Use a build of it for this processor")];
    }
    if !elf.is_dynamic {
        return vec![static_program(path, file)];
    }
    let mut findings = vec![Finding::note(COMMAND, path.display().to_string())];
    findings.extend(privileges(path));
    findings.extend(is_python(path).then(python));
    // A library names no loader; it will be loaded by the one that loaded us.
    let Some(loader) = elf.loader.or(own.loader) else { return findings };
    if loader.to_string_lossy().contains("ld-musl") {
        let found = format!("{} is linked with musl, but ferroce's libraries need glibc", path.display());
        findings.push(Finding::fails(VERBS.name, found).advise("Use a build of it for glibc"));
        return findings;
    }
    match explain(&loader, path, file) {
        Ok(more) => findings.extend(more),
        Err(failure) => findings.push(Finding::fails(COMMAND, failure.what())),
    }
    findings
}

fn static_program(path: &Path, file: &[u8]) -> Finding {
    let path = path.display();
    match has_verbs_inside(file) {
        true => Finding::fails(
            VERBS.name,
            format!("{path} is linked statically and contains libibverbs itself; no library can replace it"),
        )
        .advise("Link it dynamically with libibverbs.so.1"),
        false => {
            Finding::note(VERBS.name, format!("{path} is linked statically and does not contain libibverbs"))
        }
    }
}

/// Reports a program that gains rights when it starts: the loader ignores the variables of `ferroce run` for it.
fn privileges(path: &Path) -> Option<Finding> {
    let meta = path.metadata().ok()?;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let gains = (meta.mode() & libc::S_ISUID != 0 && meta.uid() != uid)
        || (meta.mode() & libc::S_ISGID != 0 && meta.gid() != gid)
        || (uid != 0 && rustix::fs::getxattr(path, "security.capability", &mut [0_u8; 64]).is_ok());
    if !gains {
        return None;
    }
    let found = "the program gains rights when it starts (setuid, setgid or capabilities)";
    let advice = format!("Run a copy, which has no such rights: cp {} ~", path.display());
    Some(match uid != 0 && host::has_namespaces() {
        true => Finding::limited(RIGHTS, format!("{found}, but not in the user namespace of `ferroce run`; so it gets ferroce's libraries, without its rights")),
        false => Finding::fails(RIGHTS, format!("{found}, so the loader ignores LD_LIBRARY_PATH and LD_PRELOAD")),
    }
    .advise(advice))
}

fn is_python(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"python"))
}

fn python() -> Finding {
    Finding::note(
        "modules",
        "Python finds extension modules when it runs; ferroce's libibverbs is loaded before them",
    )
    .advise("Check a module: ferroce doctor -- MODULE.so")
}

fn explain(loader: &Path, path: &Path, file: &[u8]) -> Result<Vec<Finding>, Failure> {
    let failed =
        |error: io::Error| Failure::io(format!("{} cannot list the libraries", loader.display()), error);
    let (run, plain) =
        (Trace::of(loader, path, true).map_err(failed)?, Trace::of(loader, path, false).map_err(failed)?);
    let mut findings: Vec<Finding> = run
        .missing
        .iter()
        .map(|name| {
            Finding::fails("libraries", format!("{name} is not found, so the program does not start"))
                .advise("Install its package, or name its folder in LD_LIBRARY_PATH")
        })
        .collect();
    let used: Vec<Finding> = [VERBS, CONNECTIONS].iter().filter_map(|role| of_role(role, &run)).collect();
    let opened = opened_by_name(path, &run);
    if used.is_empty() && opened.is_empty() {
        findings.push(match has_verbs_inside(file) {
            true => Finding::fails(
                VERBS.name,
                "the program contains libibverbs itself; no library can replace it",
            )
            .advise("Link it dynamically with libibverbs.so.1"),
            false => {
                Finding::note(VERBS.name, "the program is not linked with libibverbs and does not name it")
                    .advise("Check what it loads later: ferroce doctor -- LIBRARY.so")
            }
        });
    }
    findings.extend(used);
    findings.extend(opened);
    findings.extend(of_plain(&plain));
    Ok(findings)
}

/// Which library provides the functions below `ferroce run`.
fn of_role(role: &Role, run: &Trace) -> Option<Finding> {
    let uses: Vec<&Binding> = run.uses(role.prefix).collect();
    uses.first()?;
    let foreign: Vec<&&Binding> = uses.iter().filter(|used| !run.is_ours(&used.provider)).collect();
    let copy = run.files.iter().map(|file| file.to_string_lossy()).find(|file| {
        let name = file.rsplit('/').next().unwrap_or_default();
        name.starts_with(role.name) && !run.is_ours(file)
    });
    Some(match (foreign.first(), copy) {
        (None, None) => {
            Finding::works(role.name, format!("ferroce's, for all {} functions that are used", uses.len()))
        }
        (None, Some(copy)) => {
            let found = format!(
                "ferroce's, although {copy} is loaded, too ({}): preloaded symbols come first",
                run.reason(&copy)
            );
            Finding::works(role.name, found)
        }
        (Some(other), _) if foreign.len() == uses.len() => {
            let found = format!("{} ({}), not ferroce's", other.provider, run.reason(&other.provider));
            Finding::fails(role.name, found).advise(remedy(role))
        }
        (Some(other), _) => {
            let (few, all) = (foreign.len(), uses.len());
            let found =
                format!("{few} of {all} functions, such as {}, come from {}", other.symbol, other.provider);
            Finding::limited(role.name, found).advise(remedy(role))
        }
    })
}

/// `ferroce run` preloads libibverbs already. It does not preload librdmacm, which has short names.
fn remedy(role: &Role) -> String {
    if role.prefix == VERBS.prefix {
        let preloaded = std::env::var_os("LD_PRELOAD").filter(|value| !value.is_empty());
        return match preloaded {
            Some(_) => "Unset LD_PRELOAD: the libraries that it lists come before ferroce's".into(),
            None => "Link it with libibverbs.so.1 of rdma-core: ferroce's is preloaded, and has no function of this name and version".into(),
        };
    }
    match Libraries::find().ok().and_then(|libraries| libraries.connections) {
        Some(ours) => format!("Preload ferroce's: ferroce run --preload {} -- COMMAND", ours.display()),
        None => format!("Build ferroce's {}: cargo build --release", role.name),
    }
}

/// Files that name the libraries without being linked with them: they open them when they run, as NCCL does.
fn opened_by_name(path: &Path, run: &Trace) -> Vec<Finding> {
    let own = run.files.iter().map(PathBuf::as_path).filter(|file| !run.is_ours(&file.to_string_lossy()));
    let mut findings = Vec::new();
    for file in std::iter::once(path).chain(own) {
        let name = file.to_string_lossy();
        let is_rdma_core = [VERBS, CONNECTIONS].iter().any(|role| file_name(file).starts_with(role.name));
        let is_user = run.bindings.iter().any(|used| used.user == name);
        if is_rdma_core || is_user {
            continue;
        }
        let content = std::fs::read(file).unwrap_or_default();
        if contains(&content, "libibverbs.so") {
            let found = format!("{name} opens libibverbs by name when it runs, and gets ferroce's");
            findings.push(Finding::works(VERBS.name, found));
        }
    }
    findings
}

/// What happens without `ferroce run`.
fn of_plain(plain: &Trace) -> Option<Finding> {
    let provider =
        &plain.uses(VERBS.prefix).next().or_else(|| plain.uses(CONNECTIONS.prefix).next())?.provider;
    let ours = Libraries::find().ok()?.verbs;
    let is_ours = Path::new(provider).canonicalize().is_ok_and(|file| file == ours);
    let reason = plain.reason(provider);
    Some(match is_ours {
        true => Finding::note(
            PLAIN,
            format!("it loads ferroce's as well ({reason}), but sees no files of the device"),
        ),
        false => {
            Finding::note(PLAIN, format!("it loads {provider} ({reason}), also after `cargo xtask install`"))
                .advise("Start it with ferroce run")
        }
    })
}

fn file_name(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

fn has_verbs_inside(file: &[u8]) -> bool {
    STATIC_MARKS.iter().any(|mark| contains(file, mark))
}

fn contains(file: &[u8], text: &str) -> bool {
    // The first byte is compared first, because most positions differ there.
    let text = text.as_bytes();
    file.windows(text.len()).any(|window| window[0] == text[0] && window == text)
}
