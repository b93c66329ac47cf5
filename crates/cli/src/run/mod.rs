//! `ferroce run`: starts an unmodified RDMA program, and gives it a device.
//!
//! | file | question |
//! |---|---|
//! | `library` | where are the libraries that replace the system's |
//! | `tree` | which files do programs read outside the library |
//! | `namespace` | how do programs see these files: the first way, a mount namespace |
//! | `folder` | where are files during a run: for the second way, the shim, and for reports |
//! | `explain` | the summary at the end |
//! | `timeline` | the page of packets and operations at the end |

mod explain;
mod folder;
pub(crate) mod library;
pub(crate) mod namespace;
mod timeline;
pub(crate) mod tree;
mod user_namespace;

use crate::capture::Recording;
use crate::devices::settings;
use crate::failure::Failure;
use crate::faults::{FAULTS_VARIABLE, FaultArgs};
use crate::program::{self, CANNOT_RUN, NOT_FOUND};
use crate::wire::WireArg;
use clap::{Parser, ValueEnum};
use explain::Explain;
use ferroce_nic::{Config, GidEntry, Strict};
use folder::PrivateFolder;
use library::Libraries;
use namespace::Files;
use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use timeline::Timeline;
use tree::SysTree;

const ADDRESS_VARIABLE: &str = "FERROCE_ADDR";
const LINK_VARIABLE: &str = "FERROCE_LINK";
const CONGESTION_VARIABLE: &str = "FERROCE_CC";
const STRICT_VARIABLE: &str = "FERROCE_STRICT";
/// The variable with the folder of the device's files, for the shim.
const SHIM_VARIABLE: &str = "FERROCE_SHIM";
/// A program with gcc's AddressSanitizer ends if another library than the sanitizer's is loaded first. That check is for
/// libraries that hide functions of the sanitizer; ours hide none.
const ASAN_OPTION: &str = "verify_asan_link_order=0";
/// NCCL 2.28 calls its GPU-initiated networking through a pointer of -1 if no device has the mlx5 provider and this variable does not choose
/// a kind. 2 is the kind that works on every device.
const NCCL_GIN: (&str, &str) = ("NCCL_GIN_TYPE", "2");

/// Options of `ferroce run`.
#[derive(Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Explain each failed completion, dropped packet, refused call and hang when it happens, and print the counters of each process at the end;
    /// `--explain=json` prints one JSON object per line; `--explain=strict` adds --strict and reports buffers that the program changes while
    /// requests use them; both: `--explain=json,strict`.
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "text", value_delimiter = ',')]
    explain: Vec<explain::Word>,
    /// Refuse what hardware would refuse, also on this host: queue depths, path MTU, missing GRH, locked memory; `--strict=connectx-6` applies
    /// the limits of that NIC too.
    #[arg(long, value_name = "DEVICE", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = strict_names())]
    strict: Option<String>,
    /// Record all packets to this pcapng file. An existing file is kept: then, and for a second process, the name is
    /// x.<pid>.pcapng instead of x.pcapng.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Write an HTML page of what happened: packets, messages, and the posts and completions of the program on the same time axis.
    /// Packets then travel over UDP, also on this host. The records stay in x.pcapng and x.operations.jsonl next to x.html.
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// With --timeline: record no packets, so that traffic on this host stays in shared memory and shows as operations.
    #[arg(long, requires = "timeline", conflicts_with = "capture")]
    no_packets: bool,
    /// Addresses to use, comma separated: the GIDs of the device, in this order [default: all of this machine].
    #[arg(long, visible_alias = "gid", value_name = "ADDRESS", value_delimiter = ',')]
    addr: Vec<IpAddr>,
    #[command(flatten)]
    wire: WireArg,
    /// Path of RoCE packets.
    #[arg(long, value_name = "LINK", default_value = "auto")]
    link: LinkChoice,
    /// Congestion control, with parameters: dcqcn-paper, dcqcn-nic, timely, swift, dctcp, powertcp-delay, irn, cubic, vegas …
    /// [default: a congestion window that is halved on loss].
    #[arg(long, value_name = "NAME,PARAM=VALUE", value_parser = parse_congestion)]
    cc: Option<String>,
    /// Show the device's files by LD_PRELOAD instead of a mount namespace.
    #[arg(long)]
    no_namespace: bool,
    /// Preload this library into the program, before ferroce's libibverbs and after what LD_PRELOAD lists; may be repeated. LD_PRELOAD
    /// is for `ferroce` too, which cannot load a library that needs ferroce's libibverbs.
    #[arg(long, value_name = "LIBRARY", value_parser = parse_preload)]
    preload: Vec<OsString>,
    #[command(flatten)]
    faults: FaultArgs,
    /// Program to run, with its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Path of RoCE packets.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LinkChoice {
    /// Shared memory to programs of this user on this host, udp to all others.
    Auto,
    /// RoCEv2 over UDP port 4791.
    Udp,
}

const EXAMPLES: &str = "\
The program finds an RDMA device called ferroce0. It needs no rebuild, no hardware, no kernel module and no root:
ferroce's libibverbs replaces the system's, and any copy that is bundled with the program, in the program and in all
that it starts.

Examples:
  ferroce run -- ibv_devinfo                             is there a device?
  ferroce run -- ib_write_bw &                           a server of perftest, and …
  ferroce run -- ib_write_bw localhost                   … its client
  ferroce run --wire iwarp -- rping -s                   iWARP over TCP in place of RoCE; start both ends like this
  ferroce run --loss 1% --seed 7 -- ib_send_bw host      the same over a bad network, reproducibly
  ferroce run --capture x.pcapng -- ibv_rc_pingpong      and look at the packets: wireshark x.pcapng
  ferroce run --timeline x.html -- ./my_program          and see what happened, packet by packet
  ferroce run --explain -- ./my_program                  why did my completion fail?
  ferroce run --explain --strict -- ./my_program         would it run on hardware too?
  ferroce run --explain=strict -- ./my_program           and does it leave the buffers of its requests alone?

The exit status is the program's: 128 + n if signal n ended it, 127 if it (or the library) was not found, 126 if it could
not be started. `ferroce doctor` shows what works on this machine, `ferroce doctor -- COMMAND` whether a program would use
ferroce. A setuid program ignores LD_LIBRARY_PATH and LD_PRELOAD, or runs without its rights; run a copy without that bit.";

/// What `--strict=` takes.
fn strict_names() -> clap::builder::PossibleValuesParser {
    Strict::NAMES.map(|(name, _)| name).into()
}

/// Checks a choice before the program starts.
fn parse_congestion(text: &str) -> Result<String, String> {
    ferroce_nic::parse_congestion(text).map(|_| text.to_owned())
}

/// A library to preload, absolute because the program may have another current directory. A name without a slash is searched by the loader.
fn parse_preload(text: &str) -> Result<OsString, String> {
    if text.is_empty() || text.contains([':', ' ']) {
        return Err("LD_PRELOAD cannot list a name that is empty or contains a colon or a space; make a link to it with another name".into());
    }
    if !text.contains('/') {
        return Ok(text.into());
    }
    let path = std::path::absolute(text).map_err(|error| error.to_string())?;
    match path.to_string_lossy().contains([':', ' ']) {
        _ if !path.is_file() => Err("there is no such file".into()),
        true => Err(format!(
            "LD_PRELOAD cannot list {}, which contains a colon or a space; make a link to it with another name",
            path.display()
        )),
        false => Ok(path.into_os_string()),
    }
}

/// Runs the program; the exit status is the program's.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let libraries = Libraries::find()?;
    let config = config_of(args)?;
    let sys = SysTree::of(config.wire, &gids(&config)?, libraries.connections.is_some());
    require_program(&args.command[0])?;
    let faults = args.faults.to_variable()?;
    let timeline = args.timeline.as_deref().map(Timeline::begin).transpose()?;
    let recording = match (&args.capture, &timeline) {
        (Some(output), _) => Some(Recording::begin(output)?),
        (None, Some(timeline)) if !args.no_packets => Some(timeline.record_packets()?),
        _ => None,
    };

    let program_files =
        ProgramFiles::prepare(args.no_namespace, &Files { sys: &sys, libraries: &libraries })?;
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    program_files.apply_to(&mut command, &args.preload);
    command.envs(faults.map(|value| (FAULTS_VARIABLE, value)));
    if !args.addr.is_empty() {
        let list: Vec<String> = args.addr.iter().map(IpAddr::to_string).collect();
        command.env(ADDRESS_VARIABLE, list.join(","));
    }
    command.envs(args.cc.iter().map(|choice| (CONGESTION_VARIABLE, choice)));
    command.envs(args.strict.iter().map(|device| (STRICT_VARIABLE, device)));
    command.envs(args.wire.variable());
    if args.link == LinkChoice::Udp {
        command.env(LINK_VARIABLE, "udp");
    }
    let explain = Explain::of(&args.explain);
    let reports = explain.map(|explain| Ok((PrivateFolder::make()?, explain))).transpose()?;
    reports.iter().for_each(|(folder, explain)| explain::apply_to(&mut command, folder.path(), *explain));
    recording.iter().for_each(|recording| recording.apply_to(&mut command));
    timeline.iter().for_each(|timeline| timeline.apply_to(&mut command));

    // Replace this process by the program, unless there is work at the end.
    if recording.is_none() && timeline.is_none() && reports.is_none() && program_files.shown.is_none() {
        return Err(program::exec(command));
    }
    let code = program::exit_code(program::run_to_end(command)?);
    if let Some((folder, explain)) = reports {
        eprint!("{}", explain::summary(folder.path(), explain.format));
    }
    if let Some(timeline) = timeline {
        eprintln!("{}", timeline.end(recording.as_ref().map_or_else(Vec::new, Recording::files))?);
    }
    if let Some(recording) = recording {
        eprint!("{}", recording.end(code)?.to_text("ferroce run"));
    }
    Ok(ExitCode::from(code))
}

/// The settings of the program's device.
fn config_of(args: &Args) -> Result<Config, Failure> {
    let mut config = args.wire.apply_to(settings()?);
    if !args.addr.is_empty() {
        config.addresses = Some(args.addr.clone());
    }
    Ok(config)
}

/// The addresses of the program's device; a wrong one is reported before the program starts.
fn gids(config: &Config) -> Result<Vec<GidEntry>, Failure> {
    ferroce_nic::gid_table(config).map_err(|error| {
        let known = "`ferroce gids` lists the addresses of this machine";
        Failure::new(error.to_string()).exit_with(CANNOT_RUN).advise(known)
    })
}

/// Refuses a missing program before it makes a namespace: a mistyped name is the most frequent error.
fn require_program(name: &OsStr) -> Result<(), Failure> {
    match program::search(name) {
        Some(_) => Ok(()),
        None => Err(Failure::new(format!("the program {} does not exist", Path::new(name).display()))
            .exit_with(NOT_FOUND)
            .advise("Check the name, or give its path; perftest's are in the package perftest, ibv_* in ibverbs-utils")),
    }
}

/// The libraries and files that the program gets.
struct ProgramFiles {
    /// The folder in which the loader finds the libraries by their right names.
    folder: PathBuf,
    /// What the loader preloads.
    preload: OsString,
    /// The files that the shim provides, where there is no namespace.
    shown: Option<PrivateFolder>,
}

impl ProgramFiles {
    fn prepare(no_namespace: bool, files: &Files<'_>) -> Result<ProgramFiles, Failure> {
        let why = match no_namespace {
            true => None,
            false => match namespace::enter(files) {
                Ok(folder) => {
                    let preload = files.libraries.preload(&folder, false);
                    return Ok(ProgramFiles { folder, preload, shown: None });
                }
                Err(refused) => Some(refused),
            },
        };
        if files.libraries.shim.is_none() {
            // The library alone is enough for most programs; others report what is missing.
            eprintln!(
                "ferroce: {}no libferroce_shim.so next to this command; programs that look into /sys/class/infiniband or \
                 /dev/infiniband will not find the device.",
                why.map_or(String::new(), |why| format!("no namespace ({why}), and "))
            );
        }
        let shown = PrivateFolder::make()?;
        let folder = fill(shown.path(), files).map_err(|error| {
            Failure::io(format!("cannot write to {}", shown.path().display()), error).exit_with(CANNOT_RUN)
        })?;
        let preload = files.libraries.preload(&folder, true);
        Ok(ProgramFiles { folder, preload, shown: Some(shown) })
    }

    /// Sets the variables of the program. `preload` are libraries to load before ours.
    fn apply_to(&self, command: &mut Command, preload: &[OsString]) {
        command.env("LD_LIBRARY_PATH", before(self.folder.as_os_str(), "LD_LIBRARY_PATH", ":"));
        // A library that the user preloads to observe verbs must be found before ours.
        let own: Vec<&OsStr> = preload.iter().chain([&self.preload]).map(OsString::as_os_str).collect();
        command.env("LD_PRELOAD", after(&own.join(OsStr::new(":")), "LD_PRELOAD", ":"));
        command.env("ASAN_OPTIONS", before(OsStr::new(ASAN_OPTION), "ASAN_OPTIONS", ":"));
        if std::env::var_os(NCCL_GIN.0).is_none() {
            command.env(NCCL_GIN.0, NCCL_GIN.1);
        }
        command.envs(self.shown.iter().map(|shown| (SHIM_VARIABLE, shown.path())));
    }
}

/// Fills a private folder with the files for the shim; returns the folder of the libraries.
fn fill(folder: &Path, files: &Files<'_>) -> std::io::Result<PathBuf> {
    let below = |path: &str| folder.join(path.trim_start_matches('/'));
    files.sys.make_in(&below(tree::CLASSES))?;
    tree::make_node_in(&below(tree::DEV))?;
    let libraries = folder.join("lib");
    files.libraries.make_in(&libraries)?;
    Ok(libraries)
}

/// `first`, followed by the current value of the variable.
pub(crate) fn before(first: &OsStr, variable: &str, separator: &str) -> OsString {
    let mut value = first.to_owned();
    if let Some(rest) = std::env::var_os(variable).filter(|rest| !rest.is_empty()) {
        value.push(separator);
        value.push(rest);
    }
    value
}

/// The current value of the variable, followed by `last`.
fn after(last: &OsStr, variable: &str, separator: &str) -> OsString {
    let mut value = std::env::var_os(variable).unwrap_or_default();
    if !value.is_empty() {
        value.push(separator);
    }
    value.push(last);
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use explain::Format;

    fn parse(line: &str) -> Result<Args, String> {
        Args::try_parse_from(line.split(' ')).map_err(|error| error.to_string())
    }

    #[test]
    fn the_programs_options_are_left_alone() {
        for line in ["run --explain -- ib_x -a --loss 5", "run --explain ib_x -a --loss 5"] {
            let args = parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!((args.explain, args.command.len()), (vec![explain::Word::Text], 4), "{line}");
            assert_eq!(args.faults, FaultArgs::default(), "{line}");
        }
    }

    #[test]
    fn explanations_have_a_format() {
        let explain = |line| parse(line).map(|args| Explain::of(&args.explain));
        let some = |format, watches| Ok(Some(Explain { format, watches }));
        assert_eq!(explain("run --explain=json -- x"), some(Format::Json, false));
        assert_eq!(explain("run --explain=strict -- x"), some(Format::Text, true));
        assert_eq!(explain("run --explain=json,strict x"), some(Format::Json, true));
        assert_eq!(explain("run --explain --explain=strict x"), some(Format::Text, true));
        assert!(explain("run --explain=xml -- x").is_err_and(|error| error.contains("json")));
        assert_eq!(explain("run -- x"), Ok(None));
    }

    #[test]
    fn strict_mode_takes_a_device() {
        let strict = |line| parse(line).map(|args| args.strict);
        assert_eq!(strict("run --strict -- x"), Ok(Some("1".to_owned())));
        assert_eq!(strict("run --strict=connectx-6 x"), Ok(Some("connectx-6".to_owned())));
        assert!(strict("run --strict=connectx-9 -- x").is_err_and(|error| error.contains("connectx-6")));
    }

    #[test]
    fn libraries_to_preload_are_files_that_the_loader_can_list() {
        let preload = |line: &str| parse(line).map(|args| args.preload);
        assert_eq!(
            preload("run --preload /bin/sh --preload libx.so -- x"),
            Ok(vec!["/bin/sh".into(), "libx.so".into()])
        );
        assert!(preload("run --preload ./no.so x").is_err_and(|error| error.contains("no such file")));
        assert!(preload("run --preload a:b x").is_err_and(|error| error.contains("colon")));
        assert!(preload("run --preload= x").is_err_and(|error| error.contains("empty")));
    }

    #[test]
    fn wrong_values_are_named() {
        assert!(parse("run --link local -- x").is_err_and(|error| error.contains("udp")));
        assert!(parse("run --wire tcp -- x").is_err_and(|error| error.contains("iwarp")));
        assert!(parse("run --addr here -- x").is_err_and(|error| error.contains("here")));
        assert!(parse("run --no-packets -- x").is_err_and(|error| error.contains("--timeline")));
        assert!(parse("run").is_err_and(|error| error.contains("COMMAND")));
    }

    #[test]
    fn a_missing_program_is_reported_before_anything_starts() {
        assert!(require_program(OsStr::new("sh")).is_ok());
        assert!(require_program(OsStr::new("/bin/sh")).is_ok());
        assert!(require_program(OsStr::new("no-such-program-of-ferroce")).is_err());
        assert!(require_program(OsStr::new("./no/such/program")).is_err());
    }
}
