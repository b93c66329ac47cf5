//! Applications on ferroce: storage (iSER), DAPL, gloo, librpma and a live migration, as Debian packages them.
//!
//! Each compares the transferred data. `gloo.cc` and `rpma.c` are our programs over the two libraries. docs/programs.md has the
//! command lines, and lists faults of the programs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::explained::{self, LIMIT, Ports, Session, carried, contains, opened, words};
use super::session::{Launcher, Program, is_listening};
use crate::tools::not_installed;

/// One row: the programs, and the packages that they need.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    packages: &'static [&'static str],
    kind: Kind,
}

enum Kind {
    /// Initiators against a target of tgt, one after the other, and what each prints.
    Iser(&'static [(&'static str, &'static str)]),
    /// A disk image that is copied to a target of tgt and back.
    IserCopy,
    /// A test program of DAPL with these options, and what both sides print.
    Dapl(&'static str, &'static str),
    /// Two threads with two connections each: WRITEs, READs and SENDs, with all data compared.
    DaplTest,
    Gloo,
    Rpma,
    /// A paused guest with data in its memory moves to another QEMU.
    Migration,
}

const TARGET: &[&str] = &["tgt", "libiscsi-bin"];
/// Printed if all tests ran and passed. CUnit's exit status is 0 as well.
const NO_FAILURE: &str = "Tests completed with return value: 0";

/// Every row.
#[rustfmt::skip]
pub(crate) const CASES: &[Case] = &[
    Case { name: "iscsi-perf over iSER", packages: TARGET, kind: Kind::Iser(&[
        ("iscsi-inq", "Vendor:IET"), ("iscsi-readcapacity16", "Total size:8388608\n"),
        ("iscsi-perf -t 1 -m 8 -b 8", "finished."), ("iscsi-perf -t 1 -m 8 -b 128 -r", "finished."),
    ]) },
    // Without the tests `Async`, which queue more commands than libiscsi 1.19 has descriptors for.
    Case { name: "iscsi-test-cu over iSER", packages: TARGET, kind: Kind::Iser(&[
        ("iscsi-test-cu -d -n -t SCSI.Read1*.[B-Z]*", NO_FAILURE), ("iscsi-test-cu -d -n -t SCSI.Write1*.[B-Z]*", NO_FAILURE),
        ("iscsi-test-cu -d -n -t SCSI.WriteVerify1*", NO_FAILURE), ("iscsi-test-cu -d -n -t SCSI.WriteSame1*", NO_FAILURE),
    ]) },
    Case { name: "qemu-img dd over iSER", packages: &["tgt", "qemu-utils", "qemu-block-extra"], kind: Kind::IserCopy },
    Case { name: "dtest", packages: DAPL, kind: Kind::Dapl("-b 262144", "DAPL Test Complete. PASSED") },
    Case { name: "dtestx", packages: DAPL, kind: Kind::Dapl("", "immed/atomic test PASSED") },
    Case { name: "dtestcm", packages: DAPL, kind: Kind::Dapl("-c 20", "ALL 20 CONNECTED") },
    Case { name: "dtestsrq", packages: DAPL, kind: Kind::Dapl("", "DAPL RC SRQ Test Complete.") },
    Case { name: "dapltest", packages: DAPL, kind: Kind::DaplTest },
    Case { name: "gloo allreduce", packages: &["g++", "libgloo-dev"], kind: Kind::Gloo },
    Case { name: "librpma", packages: &["librpma-dev"], kind: Kind::Rpma },
    Case { name: "qemu-system-x86_64 migration", packages: &["qemu-system-x86"], kind: Kind::Migration },
];
const DAPL: &[&str] = &["dapl2-utils"];

/// Debian packages, and a file of each that shows whether it is installed. MPICH belongs to `middleware`.
pub(super) const PACKAGES: [(&str, &str); 11] = [
    ("tgt", "/usr/sbin/tgtd"),
    ("libiscsi-bin", "/usr/bin/iscsi-test-cu"),
    ("qemu-utils", "/usr/bin/qemu-img"),
    ("qemu-block-extra", "/usr/share/doc/qemu-block-extra"),
    ("dapl2-utils", "/usr/bin/dtest"),
    ("g++", "/usr/bin/c++"),
    ("libgloo-dev", "/usr/include/gloo/allreduce_ring.h"),
    ("librpma-dev", "/usr/include/librpma.h"),
    ("qemu-system-x86", "/usr/bin/qemu-system-x86_64"),
    ("mpich", "/usr/bin/mpirun.mpich"),
    ("libmpich-dev", "/usr/bin/mpicc.mpich"),
];

const PORTS: Ports = Ports { first: 26_000, per_case: 4 };
/// The port on which DAPL's programs exchange addresses.
const DAPL_PORT: u16 = 15_828;
const ADDRESS: &str = "198.18.0.1";
/// The size of the disk.
const DISK: usize = 8 << 20;

/// Why a row cannot run on this machine.
pub(crate) fn obstacle(name: &str) -> Option<String> {
    let case = CASES.iter().find(|case| case.name == name)?;
    let is_missing =
        |package: &str| PACKAGES.iter().any(|(known, file)| *known == package && !Path::new(file).exists());
    let missing = case.packages.iter().find(|package| is_missing(package))?;
    Some(not_installed(missing, &case.packages.join(" ")))
}

/// Runs a row in the worker.
pub(crate) fn run(launcher: &Launcher, name: &str) -> Value {
    explained::run(launcher, name, (CASES, |case| case.name), &PORTS, |session, case, tails| {
        match case.kind {
            Kind::Iser(initiators) => session.iser(tails, |tails| {
                initiators.iter().try_for_each(|(line, says)| session.initiator(line, says, tails))
            }),
            Kind::IserCopy => session.iser(tails, |tails| session.copy(tails)),
            Kind::Dapl(options, says) => session.dapl(options, says, tails),
            Kind::DaplTest => session.dapltest(tails),
            Kind::Gloo => session.gloo(tails),
            Kind::Rpma => session.rpma(tails),
            Kind::Migration => session.migration(tails),
        }
    })
}

impl Session<'_> {
    /// A file name that is unique to this case, in the folder where all programs run.
    fn file(&self, what: &str) -> String {
        format!("{}-{what}", self.name.replace(' ', "-"))
    }

    fn write(&self, file: &str, bytes: &[u8]) -> Result<(), String> {
        std::fs::write(self.launcher.logs.join(file), bytes).map_err(|error| format!("{file}: {error}"))
    }

    fn read(&self, file: &str) -> Result<Vec<u8>, String> {
        std::fs::read(self.launcher.logs.join(file)).map_err(|error| format!("{file}: {error}"))
    }

    fn compile(
        &self,
        compiler: &str,
        source: &str,
        text: &str,
        libraries: &[&str],
    ) -> Result<String, String> {
        let (source, program) = (self.file(source), format!("./{}", self.file("program")));
        self.write(&source, text.as_bytes())?;
        let mut command = Command::new(compiler);
        command.args(["-O1", "-Wall", "-Wextra", "-Werror"]);
        command.args(["-o", &program, &source]).args(libraries).current_dir(&self.launcher.logs);
        Program::of(command, &self.launcher.logs, &self.file("compile"))?.finish(LIMIT)?;
        Ok(program)
    }

    /// Runs one program to its end. It must print `says` and have used the device.
    fn client(&self, title: &str, line: &str, says: &str, tails: &mut Vec<String>) -> Result<(), String> {
        let output = self.alone(&self.file(title), line, tails)?;
        contains(&output, &[says]).and_then(|()| carried(&output, 1))
    }

    /// Runs both sides. Each must print `says` and have used the device.
    fn both(
        &self,
        [server, client]: [String; 2],
        says: &str,
        ready: impl Fn(&Program) -> bool,
        tails: &mut Vec<String>,
    ) -> Result<(), String> {
        let outputs = self.pair(ready, [&server, &client], tails)?;
        outputs.iter().try_for_each(|output| contains(output, &[says]))
    }

    /// The start of a command line of DAPL, with a registry that contains our interface.
    fn dapl_line(&self) -> Result<String, String> {
        let registry = self.launcher.logs.join(self.file("dat.conf"));
        let provider = "ferroce u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"fe0 0\" \"\"\n";
        self.write(&self.file("dat.conf"), provider.as_bytes())?;
        Ok(format!("env DAT_OVERRIDE={} stdbuf -oL {}", registry.display(), self.name))
    }

    /// Runs dapltest. A client stops its server.
    fn dapltest(&self, tails: &mut Vec<String>) -> Result<(), String> {
        let line = self.dapl_line()?;
        let mut server = self
            .launcher
            .start(&format!("{} server", self.name), &words(&format!("{line} -T S -D ferroce")))?;
        let ready = |server: &Program| server.output().contains("Service Point Ready");
        let operations = "client RW 4096 2 server RR 4096 2 client SR 1024 server SR 1024";
        let transfers = format!("{line} -T T -V -s {ADDRESS} -D ferroce -i 100 -t 2 -w 2 {operations}");
        let quit = format!("{line} -T Q -s {ADDRESS} -D ferroce");
        let outcome = server
            .wait_until(LIMIT, "ready", ready)
            .and_then(|()| self.client("transfers", &transfers, "Total RDMA Read  :       3.27 MB", tails))
            .and_then(|()| self.alone(&self.file("quit"), &quit, tails))
            .and_then(|_| server.finish(LIMIT));
        tails.extend(server.tail());
        outcome.and_then(|()| opened(&server.output()))
    }

    fn dapl(&self, options: &str, says: &str, tails: &mut Vec<String>) -> Result<(), String> {
        let server = format!("{} {options} -P ferroce", self.dapl_line()?);
        let client = format!("{server} -h {ADDRESS}");
        // `dtestsrq` does not exchange addresses over this port.
        let is_ready = |server: &Program| match self.name {
            "dtestsrq" => server.output().contains("server ready"),
            _ => is_listening(DAPL_PORT),
        };
        self.both([server, client], says, is_ready, tails)
    }

    fn gloo(&self, tails: &mut Vec<String>) -> Result<(), String> {
        let libraries = ["-lgloo", "-libverbs", "-lpthread"];
        let program = self.compile("c++", "gloo.cc", include_str!("gloo.cc"), &libraries)?;
        let meeting = self.file("store");
        let folder = self.launcher.logs.join(&meeting);
        // gloo would take files of an earlier run for the peer's address.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).map_err(|error| format!("{meeting}: {error}"))?;
        let lines = [0, 1].map(|rank| format!("{program} {meeting} {rank}"));
        self.both(lines, "24 sums are right", |_| true, tails)
    }

    fn rpma(&self, tails: &mut Vec<String>) -> Result<(), String> {
        let program = self.compile("cc", "rpma.c", include_str!("rpma.c"), &["-lrpma", "-libverbs"])?;
        let server = format!("{program} {ADDRESS} {}", self.port);
        let client = format!("{server} client");
        let ready = |server: &Program| server.output().contains("listening");
        self.both([server, client], "8 rounds of 4194304 bytes are right", ready, tails)
    }
}

/// The target's name; with a port and a unit it is what initiators connect to.
const TARGET_NAME: &str = "iqn.2026-01.ferroce:disk";
/// tgt requires the names of iSER initiators too.
const INITIATORS: [&str; 5] = [
    "iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-inq",
    "iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-readcapacity16",
    "iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-test",
    "iqn.2010-11.libiscsi:iscsi-perf",
    "iqn.2008-11.org.linux-kvm",
];

impl Session<'_> {
    /// Starts a target with a disk, runs `work`, and stops the target.
    fn iser(
        &self,
        tails: &mut Vec<String>,
        work: impl FnOnce(&mut Vec<String>) -> Result<(), String>,
    ) -> Result<(), String> {
        self.write(&self.file("disk"), &vec![0; DISK])?;
        let line = format!("env TGT_IPC_SOCKET={} /usr/sbin/tgtd -f", self.file("socket"));
        let mut target = self.launcher.start(&format!("{} target", self.name), &words(&line))?;
        let outcome = self.serve(&mut target, tails, work);
        tails.extend(target.tail());
        outcome
    }

    fn serve(
        &self,
        target: &mut Program,
        tails: &mut Vec<String>,
        work: impl FnOnce(&mut Vec<String>) -> Result<(), String>,
    ) -> Result<(), String> {
        target.wait_until(LIMIT, "ready", |_| self.tgtadm("--mode sys --op show").is_ok())?;
        self.tgtadm(&format!("--mode target --op new --tid 1 -T {TARGET_NAME}"))?;
        let disk = self.launcher.logs.join(self.file("disk"));
        self.tgtadm(&format!("--mode logicalunit --op new --tid 1 --lun 1 -b {}", disk.display()))?;
        self.tgtadm("--mode target --op bind --tid 1 -I ALL")?;
        for name in INITIATORS {
            self.tgtadm(&format!("--mode target --op bind --tid 1 -Q {name}"))?;
        }
        work(tails)?;
        // tgt 1.0.85 calls a null pointer if an iSER target is deleted before its sessions have ended.
        let has_session =
            || self.tgtadm("--mode conn --op show --tid 1").is_ok_and(|output| output.contains("Session"));
        target.wait_until(LIMIT, "free of sessions", |_| !has_session())?;
        self.tgtadm("--mode target --op delete --tid 1")?;
        self.tgtadm("--mode sys --op delete")?;
        target.finish(LIMIT)?;
        carried(&target.output(), 1)
    }

    fn tgtadm(&self, line: &str) -> Result<String, String> {
        let mut command = Command::new("/usr/sbin/tgtadm");
        command.args(["--lld", "iser"]).args(line.split(' ')).current_dir(&self.launcher.logs);
        let output =
            command.env("TGT_IPC_SOCKET", self.file("socket")).output().map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("tgtadm {line}: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }

    fn initiator(&self, line: &str, says: &str, tails: &mut Vec<String>) -> Result<(), String> {
        // libiscsi 1.19 assumes that memory of malloc is zeroed.
        let zeroes = "env GLIBC_TUNABLES=glibc.malloc.perturb=255:glibc.malloc.tcache_count=0";
        tails.clear();
        self.client(line, &format!("{zeroes} {line} iser://127.0.0.1/{TARGET_NAME}/1"), says, tails)
    }

    /// Blocks of 256 KiB, since libiscsi 1.19 refuses more than 512 KiB over iSER.
    fn copy(&self, tails: &mut Vec<String>) -> Result<(), String> {
        let [from, disk, back] = ["from", "disk", "back"].map(|what| self.file(what));
        let data = noise(DISK);
        self.write(&from, &data)?;
        let url = format!("iser://127.0.0.1/{TARGET_NAME}/1");
        for (source, sink, result) in [(&from, &url, &disk), (&url, &back, &back)] {
            let line = format!("qemu-img dd -f raw -O raw bs=256k if={source} of={sink}");
            self.client(result, &line, "", tails)?;
            if self.read(result)? != data {
                return Err(format!("{result} differs from {from}"));
            }
        }
        Ok(())
    }
}

/// Bytes that do not repeat, the same ones in every run.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        Some(state.to_le_bytes())
    };
    std::iter::from_fn(next).take(length / 8).flatten().collect()
}

/// Address of the data in the guest.
const GUEST_DATA: usize = 16 << 20;

impl Session<'_> {
    fn migration(&self, tails: &mut Vec<String>) -> Result<(), String> {
        let [data, before, after] = ["data", "before", "after"].map(|what| self.file(what));
        self.write(&data, &noise(DISK))?;
        let ports = [self.port, self.port + 1];
        let uri = format!("rdma:{ADDRESS}:{}", self.port + 2);
        let guest = |port: u16, options: &str| {
            let base = "qemu-system-x86_64 -accel tcg -m 64 -nodefaults -no-user-config -display none";
            words(&format!("{base} -qmp tcp:127.0.0.1:{port},server=on,wait=off {options}"))
        };
        let load = format!("-device loader,file={data},addr={GUEST_DATA},force-raw=on");
        let mut source = self.launcher.start(&format!("{} source", self.name), &guest(ports[0], &load))?;
        let incoming = guest(ports[1], &format!("-S -incoming {uri}"));
        let mut target = self.launcher.start(&format!("{} target", self.name), &incoming)?;
        let outcome = move_guest([&mut source, &mut target], ports, &uri, [&before, &after]);
        let ended = outcome.and_then(|()| source.finish(LIMIT)).and_then(|()| target.finish(LIMIT));
        tails.extend(source.tail().into_iter().chain(target.tail()));
        ended?;
        let (before, after) = (self.read(&before)?, self.read(&after)?);
        if before != after || after[GUEST_DATA..GUEST_DATA + DISK] != self.read(&data)? {
            return Err("the memory of the guest differs after the migration".to_owned());
        }
        // QEMU writes up to 1 MiB per operation, so the data alone need this many.
        carried(&source.output(), DISK as u64 >> 20).and_then(|()| opened(&target.output()))
    }
}

fn move_guest(
    [source, target]: [&mut Program; 2],
    ports: [u16; 2],
    uri: &str,
    [before, after]: [&str; 2],
) -> Result<(), String> {
    for (guest, port) in [(source, ports[0]), (target, ports[1])] {
        guest.wait_until(LIMIT, "ready", |_| is_listening(port))?;
    }
    let (mut source, mut target) = (Monitor::connect(ports[0])?, Monitor::connect(ports[1])?);
    let save = |file: &str| json!({"val": 0, "size": 64 << 20, "filename": file});
    source.ask("stop", &json!({}))?;
    source.ask("pmemsave", &save(before))?;
    source.ask("migrate", &json!({"uri": uri}))?;
    let started = std::time::Instant::now();
    loop {
        let status = source.ask("query-migrate", &json!({}))?;
        match status["status"].as_str() {
            Some("completed") => break,
            Some("failed" | "cancelled") => return Err(format!("the migration failed: {status}")),
            _ if started.elapsed() > LIMIT => return Err(format!("the migration does not end: {status}")),
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    target.ask("pmemsave", &save(after))?;
    source.quit()?;
    target.quit()
}

/// QEMU's machine protocol (QMP): a line of JSON for each command, answer and event.
struct Monitor(BufReader<TcpStream>);

impl Monitor {
    fn connect(port: u16) -> Result<Self, String> {
        let stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(LIMIT)).map_err(|error| error.to_string())?;
        let mut monitor = Monitor(BufReader::new(stream));
        monitor.line()?;
        monitor.ask("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    fn ask(&mut self, command: &str, arguments: &Value) -> Result<Value, String> {
        self.tell(command, arguments)?;
        loop {
            let line = self.line()?;
            if let Some(reason) = line.get("error") {
                return Err(format!("{command}: {reason}"));
            }
            // Other lines are events.
            if let Some(result) = line.get("return") {
                return Ok(result.clone());
            }
        }
    }

    fn tell(&mut self, command: &str, arguments: &Value) -> Result<(), String> {
        let question = json!({"execute": command, "arguments": arguments});
        writeln!(self.0.get_mut(), "{question}").map_err(|error| format!("{command}: {error}"))
    }

    /// Ends QEMU. The answer is optional: QEMU may reset the connection before it arrives.
    fn quit(&mut self) -> Result<(), String> {
        self.tell("quit", &json!({}))?;
        let _ = self.0.read_to_end(&mut Vec::new());
        Ok(())
    }

    fn line(&mut self) -> Result<Value, String> {
        let mut line = String::new();
        self.0.read_line(&mut line).map_err(|error| format!("QEMU's monitor: {error}"))?;
        serde_json::from_str(&line).map_err(|error| format!("QEMU's monitor: {error}"))
    }
}
