//! `cargo xtask interop`: ferroce and the Linux kernel's Soft-RoCE talk to each other.
//!
//! | file | what lives there |
//! |---|---|
//! | `packages` | Debian packages of the guest, fetched and unpacked |
//! | `modules`, `cpio`, `image` | which kernel modules, the archive format, the guest's file system |
//! | `namespace` | the network between host and guest |
//! | `guest` | the virtual machine and its command channels |
//!
//! The command runs twice: outside, where packages are fetched and programs built, and then once more inside a network
//! namespace, where the guest boots and the cases run.

mod cpio;
mod guest;
mod image;
mod modules;
mod namespace;
mod packages;
mod program;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::process::Job;
use crate::step::Context;

use guest::Guest;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Boot the guest, run this line of shell in it, print what it says, and stop.
    #[arg(long, value_name = "COMMAND")]
    guest: Option<String>,
    /// Set by the outer run for the inner one.
    #[arg(long, hide = true)]
    inside: bool,
}

/// Why nothing could be tested.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something is missing that another machine has.
    Skip(String),
    /// Something that should have worked did not.
    Broken(String),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

pub(crate) fn run(ctx: &Context, args: &Args) -> ExitCode {
    let result = if args.inside { inside(ctx, args) } else { outside(ctx, args) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Skip(reason)) => {
            println!("SKIPPED: {reason}");
            ExitCode::SUCCESS
        }
        Err(Failure::Broken(reason)) => {
            println!("FAILED: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn cache(ctx: &Context) -> PathBuf {
    ctx.root.join("target/interop")
}

fn outside(ctx: &Context, args: &Args) -> Result<(), Failure> {
    let cache = cache(ctx);
    std::fs::create_dir_all(&cache)?;
    let sysroot = packages::provide(ctx, &cache)?;
    let verify = program::build(ctx, &cache, &sysroot)?;
    image::build(ctx, &cache, &sysroot, &[("usr/bin/verify".to_owned(), verify)])?;
    let myself = std::env::current_exe()?;
    let mut job: Job = namespace::enter(ctx, &myself)?.args(["interop", "--inside"]).limit_s(15 * 60);
    if let Some(command) = &args.guest {
        job = job.args(["--guest", command]);
    }
    let ran = job.run(ctx);
    match ran.failure() {
        None => Ok(()),
        Some(failure) => Err(Failure::Broken(failure)),
    }
}

fn inside(ctx: &Context, args: &Args) -> Result<(), Failure> {
    namespace::set_up()?;
    let cache = cache(ctx);
    let sysroot = packages::provide(ctx, &cache)?;
    let image = image::build(ctx, &cache, &sysroot, &[("usr/bin/verify".to_owned(), cache.join("verify"))])?;
    let dir = std::env::temp_dir().join(format!("ferroce-interop-{}", std::process::id()));
    let guest = Guest::boot(&image, &dir)?;
    if let Some(command) = &args.guest {
        let answer = guest.run(0, command, Duration::from_secs(300))?;
        println!("{}\nstatus {}", answer.text, answer.status);
    }
    Ok(())
}
