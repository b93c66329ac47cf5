//! The programs, and how they are compiled: C programs by `ferroce dsm cc`, as a user would; Rust programs are examples of crates/dsm.

use std::path::{Path, PathBuf};

use crate::process::Job;
use crate::step::Context;
use crate::unprivileged::target_dir;

/// A program of programs/jia.
pub struct Program {
    /// Its file name without extension.
    pub name: &'static str,
    /// Arguments in a test: small enough for eight processes on two cores over messages.
    pub(crate) small: &'static str,
    /// Arguments in the comparison of transports, if the program takes part.
    pub compared: Option<&'static str>,
    /// Arguments in the measurement of the speed-up from one process to two, and its goal.
    pub sped_up: Option<(&'static str, f64)>,
}

const fn litmus(name: &'static str, small: &'static str) -> Program {
    Program { name, small, compared: None, sped_up: None }
}

/// All programs in C: first those that compute, then those that only check the interface.
pub const PROGRAMS: [Program; 17] = [
    Program { name: "mm", small: "-n 128", compared: Some("-n 512"), sped_up: Some(("-n 1024", 1.8)) },
    Program { name: "ep", small: "-n 16", compared: Some("-n 22"), sped_up: Some(("-n 25", 1.8)) },
    Program { name: "tsp", small: "-n 12", compared: Some("-n 17"), sped_up: Some(("-n 20", 1.8)) },
    Program { name: "lu", small: "-n 128", compared: Some("-n 512"), sped_up: Some(("-n 1024", 1.5)) },
    Program {
        name: "sor",
        small: "-n 64 -m 256 -t 5",
        compared: Some("-n 256 -m 2048 -t 50"),
        sped_up: Some(("-n 256 -m 2048 -t 100", 1.5)),
    },
    Program {
        name: "water",
        small: "-n 32 -t 2",
        compared: Some("-n 288 -t 10"),
        sped_up: Some(("-n 288 -t 20", 1.5)),
    },
    Program { name: "is", small: "-n 14 -t 2", compared: Some("-n 20"), sped_up: Some(("-n 22", 1.5)) },
    Program { name: "jacobi", small: "-n 62 -t 5", compared: Some("-n 510 -t 50"), sped_up: None },
    Program { name: "pi", small: "-n 100000", compared: Some("-n 100000000"), sped_up: None },
    litmus("counter", "-n 2"),
    litmus("flags", "-n 3"),
    litmus("messages", "-n 10"),
    litmus("alloc", "-n 3"),
    litmus("pointers", "-n 10"),
    litmus("threads", "-n 4 -t 2"),
    litmus("sharing", "-n 24 -t 2"),
    litmus("macros", "-n 1"),
];

/// Examples of crates/dsm. The suffix [`OF_RUST`] is not part of their names there.
const RUST: [Program; 2] = [litmus("mm-rust", "128"), litmus("jacobi-rust", "64 62 5")];
const OF_RUST: &str = "-rust";

/// Those in C, then those in Rust.
pub(crate) fn all() -> impl Iterator<Item = &'static Program> + Clone {
    PROGRAMS.iter().chain(&RUST)
}

/// The program of that name.
pub fn named(name: &str) -> Option<&'static Program> {
    all().find(|program| program.name == name)
}

/// What was built.
pub struct Built {
    pub(crate) ferroce: PathBuf,
    /// Folder of the programs.
    pub folder: PathBuf,
}

/// The command, the library and all programs.
pub fn build(ctx: &Context) -> Result<Built, String> {
    Job::cargo(["build", "--release", "-p", "ferroce-cli", "-p", "ferroce-jia"]).run(ctx).checked()?;
    let ferroce = target_dir(ctx).join("release/ferroce");
    let folder = ctx.scratch().join("dsm");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for program in &PROGRAMS {
        let source = ctx.root.join("programs/jia").join(program.name).with_extension("c");
        let options = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"];
        Job::new(&ferroce)
            .args(["dsm", "cc"])
            .args(options)
            .arg(source)
            .arg("-o")
            .arg(folder.join(program.name))
            .limit_s(60)
            .run(ctx)
            .checked()?;
    }
    build_rust(ctx, &folder)?;
    Ok(Built { ferroce, folder })
}

/// With the features and the profile of the tests, which have built them already.
fn build_rust(ctx: &Context, folder: &Path) -> Result<(), String> {
    let names = || RUST.iter().filter_map(|program| program.name.strip_suffix(OF_RUST));
    let mut job = Job::cargo(["build", "--workspace", "--all-features"]);
    for name in names() {
        job = job.args(["--example", name]);
    }
    job.run(ctx).checked()?;
    for name in names() {
        let built = target_dir(ctx).join("debug/examples").join(name);
        std::fs::copy(&built, folder.join(format!("{name}{OF_RUST}")))
            .map_err(|error| format!("{}: {error}", built.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_is_a_program_and_every_program_has_a_source() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../programs/jia");
        let mut found: Vec<String> = std::fs::read_dir(sources)
            .expect("the programs lie in the repository")
            .filter_map(|entry| {
                entry.ok()?.path().file_name()?.to_str()?.strip_suffix(".c").map(str::to_owned)
            })
            .collect();
        let mut known: Vec<String> = PROGRAMS.iter().map(|program| program.name.to_owned()).collect();
        found.sort();
        known.sort();
        assert_eq!(found, known);
    }
}
