//! Programs over rsockets: those of rdmacm-utils, and ordinary socket programs with Debian's librspreload.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::cases::Proof::{self, Says};
use super::conversation::{self, Case, End, Procedure, case};
use super::rdmacm::listens;
use super::session::{Launcher, is_bound, is_listening};
use super::worker::answer;
use crate::tools::{not_installed, which};

use End::{Follows, Stays};

/// A pair of rstream or riostream: both sides have the same line, and the client the address.
macro_rules! pair {
    ($line:literal, $proof:expr) => {
        pair!($line, "127.0.0.1", $proof)
    };
    ($line:literal, $address:literal, $proof:expr) => {
        case(
            Follows,
            concat!($line, " -p {port} -b ", $address),
            concat!($line, " -p {port} -s ", $address),
            $proof,
        )
    };
}

/// One of the sizes of `riostream -S all`, with fewer transfers. Its own counts are some million transfers, which take minutes on
/// two busy cores.
macro_rules! every {
    ($size:literal) => {
        case(
            Follows,
            concat!("riostream -T v -S ", $size, " -p {port} -b 127.0.0.1"),
            concat!("riostream -T v -S ", $size, " -p {port} -s 127.0.0.1"),
            ONE,
        )
    };
}

/// Output of a run of one size.
const ONE: Proof = Says("custom");
/// The last of all sizes.
const ALL: Proof = Says("6m_bw");

/// Every row. `{file}` stands for a file to copy, `{copy}` for the copy, `{preload}` for the environment that turns sockets into
/// rsockets.
#[rustfmt::skip]
pub(crate) const CASES: &[Case] = &[
    pair!("rstream", Says("1m_bw")),
    pair!("rstream -S all -T b", ALL),
    pair!("rstream -S 5000 -C 100 -I 10 -T v", ONE), pair!("rstream -S 5000 -C 100 -I 10 -T a -T v", ONE),
    pair!("rstream -S 5000 -C 100 -I 10 -T b -T v", ONE), pair!("rstream -S 5000 -C 100 -I 10 -T b -T a", ONE),
    pair!("rstream -S 5000 -C 100 -I 10 -T n", ONE), pair!("rstream -S 5000 -C 100 -I 10 -T r", ONE),
    pair!("rstream -S 1000000 -C 10 -T b -T v -B 8192", ONE), pair!("rstream -S 300 -C 1000 -T v -i 0", ONE),
    pair!("rstream -S 100000 -C 100 -T b -T v", "fd18::1", ONE), pair!("rstream -S 100000 -C 100 -T v", "198.18.0.1", ONE),
    pair!("rstream -S 5000 -C 100 -k 1", Says("Keepalive: ON")),
    // These two use sockets of the kernel. They show that `ferroce run` does not affect them.
    pair!("rstream -S 5000 -C 100 -T s", ONE), pair!("rstream -S 5000 -C 100 -T f -T b", ONE),

    pair!("riostream", Says("1m_bw")),
    every!("64 -C 20 -I 10"), every!("128 -C 20 -I 10"), every!("192 -C 20 -I 10"), every!("256 -C 20 -I 10"), every!("384 -C 20 -I 10"),
    every!("512 -C 20 -I 10"), every!("768 -C 20 -I 10"), every!("1024 -C 20 -I 10"), every!("1536 -C 20 -I 10"), every!("2048 -C 20 -I 10"),
    every!("3072 -C 20 -I 10"), every!("4096 -C 20 -I 10"), every!("6144 -C 20 -I 10"), every!("8192 -C 20 -I 10"), every!("12288 -C 20 -I 10"),
    every!("16384 -C 20 -I 10"), every!("24576 -C 20 -I 10"), every!("32768 -C 20 -I 10"), every!("49152 -C 20 -I 10"), every!("65536 -C 20 -I 10"),
    every!("98304 -C 10 -I 3"), every!("131072 -C 10 -I 3"), every!("196608 -C 10 -I 3"), every!("262144 -C 10 -I 3"), every!("393216 -C 10 -I 3"),
    every!("524288 -C 10 -I 3"), every!("786432 -C 10 -I 3"), every!("1048576 -C 10 -I 3"), every!("1572864 -C 3 -I 3"), every!("2097152 -C 3 -I 3"),
    every!("3145728 -C 3 -I 3"), every!("4194304 -C 3 -I 3"), every!("6291456 -C 3 -I 3"),
    pair!("riostream -S 64 -C 1 -I 500", ONE), pair!("riostream -S 5000 -C 50 -I 2 -T v", ONE),
    pair!("riostream -S 5000 -C 50 -T b -T v", ONE), pair!("riostream -S 5000 -C 50 -T a -T v", ONE),
    pair!("riostream -S 4096 -C 50 -T v", "fd18::1", ONE), pair!("riostream -S 65536 -C 50 -T v", ONE),
    pair!("riostream -S 1048576 -C 10 -T v", "198.18.0.1", ONE), pair!("riostream -S 6291456 -C 4 -T v", ONE),

    case(Stays, "rcopy -p {port}", "rcopy {file} 127.0.0.1:{copy} -p {port}", Says("bytes in")),

    case(Stays, "udpong -p {port} -b 127.0.0.1", "udpong -p {port} -s 127.0.0.1 -S 500 -C 500", ONE),
    case(Stays, "udpong -p {port} -b 127.0.0.1 -T b", "udpong -p {port} -s 127.0.0.1 -S 1000 -C 200 -T e -T b", ONE),
    case(Stays, "udpong -p {port} -b fd18::1 -T a", "udpong -p {port} -s fd18::1 -S 64 -C 200 -T a -T e", ONE),

    case(Follows, "{preload} iperf3 -s -1 -p {port}", "{preload} iperf3 -c 127.0.0.1 -t 1 -p {port}", Says("iperf Done")),
    case(Follows, "{preload} iperf3 -s -1 -p {port}", "{preload} iperf3 -c 127.0.0.1 -n 20M -R -P 3 -p {port}", Says("iperf Done")),
];

/// Time limit. Sweeps are some hundred thousand round trips of spinning programs: seconds on an idle machine, a minute if two
/// cores run ten threads.
const LIMIT: Duration = Duration::from_secs(300);
/// First port of these cases; each has its own.
const FIRST_PORT: u16 = 27_000;
/// Paths of Debian's librspreload.
const PRELOADS: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so",
    "/usr/lib/aarch64-linux-gnu/rsocket/librspreload.so",
];

fn preload() -> Option<&'static str> {
    PRELOADS.into_iter().find(|path| Path::new(path).exists())
}

/// Why a row cannot run on this machine.
pub(crate) fn obstacle(name: &str) -> Option<String> {
    let mut words = name.split(' ');
    let first = words.next()?;
    if first == "{preload}" && preload().is_none() {
        return Some(not_installed("librspreload", "librdmacm1"));
    }
    let (program, package) =
        if first == "{preload}" { (words.next()?, "iperf3") } else { (first, "rdmacm-utils") };
    which(program).is_none().then(|| not_installed(program, package))
}

/// Runs a row in the worker.
pub(crate) fn run(launcher: &Launcher, name: &str) -> Value {
    let found = conversation::find(CASES, name)
        .and_then(|(at, case)| Ok((at, case, Files::new(&launcher.logs, case.name)?)));
    let (at, case, files) = match found {
        Ok(found) => found,
        Err(why) => return answer(Err(why), Vec::new()),
    };
    let port = FIRST_PORT + at as u16;
    let procedure = Procedure {
        limit: LIMIT,
        words: &|line| words(line, port, &files),
        is_ready: &|_| listens(port) || is_listening(port) || is_bound(port),
        check: &|| files.compare(),
    };
    conversation::run(launcher, case, &procedure)
}

/// The command line, with line-buffered output: it goes to a file, which libc buffers fully.
fn words(line: &str, port: u16, files: &Files) -> Vec<String> {
    let preload = format!("env LD_PRELOAD={}", preload().unwrap_or_default());
    let line = line.replace("{port}", &port.to_string()).replace("{preload}", &preload);
    let line = line.replace("{file}", &files.file).replace("{copy}", &files.copy);
    let line = if line.starts_with("env ") { line } else { format!("stdbuf -oL {line}") };
    line.split_whitespace().map(str::to_owned).collect()
}

/// A file and its copy, for programs that copy.
struct Files {
    file: String,
    copy: String,
    wanted: bool,
}

impl Files {
    fn new(folder: &Path, name: &str) -> Result<Self, String> {
        let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let made = Self { file: path("rcopy.from"), copy: path("rcopy.to"), wanted: name.contains("{copy}") };
        if made.wanted {
            let bytes: Vec<u8> =
                (0..5_000_011u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            std::fs::write(&made.file, bytes).map_err(|error| format!("{}: {error}", made.file))?;
        }
        Ok(made)
    }

    fn compare(&self) -> Result<(), String> {
        if !self.wanted {
            return Ok(());
        }
        let read = |path: &str| std::fs::read(path).map_err(|error| format!("{path}: {error}"));
        if read(&self.file)? == read(&self.copy)? { Ok(()) } else { Err("the copy differs".to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_filled_in() {
        let files = Files { file: "/a".into(), copy: "/b".into(), wanted: false };
        let line = words("rcopy {file} 127.0.0.1:{copy} -p {port}", 7, &files);
        assert_eq!(line.join(" "), "stdbuf -oL rcopy /a 127.0.0.1:/b -p 7");
    }
}
