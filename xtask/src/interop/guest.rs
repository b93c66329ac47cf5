//! The virtual machine and its command channels.
//!
//! The channels are serial ports, because the network under test may lose packets.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::Failure;
use super::image::Image;
use super::namespace::{GUEST_MAC, MTU, TAP};

/// Commands that can run at the same time.
const CHANNELS: usize = 3;
/// Disables instructions that emulation executes as a loop over bits or bytes, so that checksums and copies of both ends use
/// their generic code.
const PROCESSOR: &str = "max,la57=off,pclmulqdq=off,vpclmulqdq=off,erms=off,fsrm=off";
/// All emulated processors use the host's counter but start at different times. Without this option the guest would reject it
/// and read an emulated clock chip, which takes thousands of instructions per clock read.
const CLOCK: &str = "tsc=reliable";
/// Time limit of the boot by software emulation. Six seconds are usual, more on a busy machine.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// Time limit for the end of QEMU after it has closed a channel.
const END_LIMIT: Duration = Duration::from_secs(2);
/// Lifetime of the virtual machine. It ends then in any case.
const LIFE_LIMIT_S: u32 = 30 * 60;

/// A running guest. Dropping it ends the virtual machine.
pub(crate) struct Guest {
    qemu: Mutex<Child>,
    channels: Vec<Mutex<Channel>>,
    /// The sockets of the channels.
    dir: PathBuf,
    logs: Logs,
}

/// The files that remain when the virtual machine has ended.
struct Logs {
    /// The console, where a kernel reports a panic.
    console: PathBuf,
    /// The messages of QEMU.
    qemu: PathBuf,
}

/// Exit status and output of a command, in the guest or on the host.
pub(crate) struct Ended {
    /// The exit status, 128 + n after signal n, as a shell reports it.
    pub(crate) status: i32,
    pub(crate) text: String,
}

struct Channel {
    stream: BufReader<TimedSocket>,
    requests: u32,
}

/// A socket from which nothing is read after `deadline`.
struct TimedSocket {
    socket: UnixStream,
    deadline: Instant,
}

impl TimedSocket {
    fn new(socket: UnixStream) -> Self {
        Self { socket, deadline: Instant::now() }
    }
}

impl Read for TimedSocket {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.socket.set_read_timeout(Some(left))?;
        self.socket.read(buffer)
    }
}

impl Guest {
    /// Boots and waits for the answer to the first command. The sockets are in `dir`, the logs in `logs`.
    pub(crate) fn boot(image: &Image, dir: &Path, logs: &Path) -> Result<Self, Failure> {
        std::fs::create_dir_all(dir)?;
        let logs = Logs { console: logs.join("console.log"), qemu: logs.join("qemu.log") };
        // QEMU replaces it only if it starts.
        let _ = std::fs::remove_file(&logs.console);
        let qemu = qemu(image, dir, &logs).spawn()?;
        // Dropping `guest` ends the virtual machine.
        let mut guest = Self { qemu: Mutex::new(qemu), channels: Vec::new(), dir: dir.to_path_buf(), logs };
        let started = Instant::now();
        for at in 0..CHANNELS {
            let stream = TimedSocket::new(guest.connect(&socket(dir, at), started)?);
            guest.channels.push(Mutex::new(Channel { stream: BufReader::new(stream), requests: 0 }));
        }
        let answer = guest.run(0, "cat /sys/class/infiniband/rxe0/ports/1/state", BOOT_LIMIT)?;
        if answer.status != 0 || !answer.text.contains("ACTIVE") {
            return Err(guest.broken(&format!("no Soft-RoCE device in the guest: {}", answer.text.trim())));
        }
        Ok(guest)
    }

    /// Runs a line of shell in the guest. Two callers on one channel wait for each other.
    pub(crate) fn run(&self, channel: usize, command: &str, limit: Duration) -> Result<Ended, Failure> {
        let mut channel =
            self.channels[channel].lock().map_err(|_| Failure::Broken("a channel broke".into()))?;
        channel.run(command, limit).map_err(|error| {
            let what = match error.kind() {
                ErrorKind::WouldBlock => format!("no answer within {} s", limit.as_secs()),
                ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                    format!("the guest ended (QEMU: {})", self.end_of_qemu())
                }
                _ => error.to_string(),
            };
            self.broken(&format!("`{command}` in the guest: {what}"))
        })
    }

    fn connect(&self, path: &Path, started: Instant) -> Result<UnixStream, Failure> {
        loop {
            match UnixStream::connect(path) {
                Ok(stream) => return Ok(stream),
                Err(error) if started.elapsed() > BOOT_LIMIT => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
            if let Some(status) = self.qemu_status() {
                return Err(self.broken(&format!("QEMU ended: {status}")));
            }
        }
    }

    /// The exit status of QEMU if it has ended.
    fn qemu_status(&self) -> Option<ExitStatus> {
        self.qemu.lock().expect("no thread panics while it waits").try_wait().ok().flatten()
    }

    /// The exit status of QEMU, which closes the channels shortly before it ends.
    fn end_of_qemu(&self) -> String {
        let started = Instant::now();
        loop {
            match self.qemu_status() {
                Some(status) => return status.to_string(),
                None if started.elapsed() > END_LIMIT => return "still running".to_owned(),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// A failure with the error that the guest's kernel or QEMU printed.
    fn broken(&self, what: &str) -> Failure {
        Failure::Broken(format!("{what}; {}", self.logs.error()))
    }
}

impl Logs {
    /// The error of the guest's kernel or of QEMU, and the file of the console.
    fn error(&self) -> String {
        let read =
            |file: &Path| String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).into_owned();
        let (console, qemu) = (read(&self.console), read(&self.qemu));
        let printed = if let Some(line) = kernel_error(&console) {
            format!("the guest's kernel printed `{line}`")
        } else if let Some(line) = qemu.lines().rfind(|line| !line.contains("warning: ")) {
            format!("QEMU printed `{line}` in {}", self.qemu.display())
        } else {
            "found no fatal error on the console".to_owned()
        };
        format!("{printed}; console: {}", self.console.display())
    }
}

/// Texts in the lines with which Linux 6.1 reports that it cannot continue. After other lines with `BUG: `, such as those about a
/// soft lockup, it does. `[#1]` is the number of an oops, whatever the exception was.
const KERNEL_ERRORS: [&str; 5] =
    ["BUG: kernel ", "BUG: unable to handle ", "kernel BUG at ", "[#1]", "Kernel panic - not syncing"];

/// The first fatal error of the kernel on its console, without the timestamp. Later errors follow from it, because an oops stops
/// the guest.
fn kernel_error(console: &str) -> Option<&str> {
    let line = console.lines().find(|line| KERNEL_ERRORS.iter().any(|error| line.contains(error)))?;
    let without_time = line.trim_start().strip_prefix('[').and_then(|line| line.split_once("] "));
    Some(without_time.map_or(line, |(_, text)| text).trim())
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The child is `timeout`, which passes the signal on to QEMU; killing it outright would leave QEMU behind.
        if let Ok(qemu) = self.qemu.get_mut()
            && let Ok(None) = qemu.try_wait()
        {
            let _ = Command::new("kill").arg(qemu.id().to_string()).status();
            let _ = qemu.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Channel {
    /// Sends a request and reads its answer. `limit` includes all of its output.
    fn run(&mut self, command: &str, limit: Duration) -> std::io::Result<Ended> {
        self.requests += 1;
        let token = format!("@ferroce-{}", self.requests);
        let stream = self.stream.get_mut();
        stream.deadline = Instant::now() + limit;
        writeln!(stream.socket, "{token} {command}")?;
        let mut text = Vec::new();
        loop {
            let begin = text.len();
            if self.stream.read_until(b'\n', &mut text)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let line = String::from_utf8_lossy(&text[begin..]).into_owned();
            if let Some((found, status)) = line.trim_end().split_once(' ')
                && found == token
            {
                text.truncate(begin);
                let status = status.parse().map_err(std::io::Error::other)?;
                return Ok(Ended { status, text: String::from_utf8_lossy(&text).trim().to_owned() });
            }
        }
    }
}

fn socket(dir: &Path, channel: usize) -> PathBuf {
    dir.join(format!("channel{channel}"))
}

fn qemu(image: &Image, dir: &Path, logs: &Logs) -> Command {
    // The kernel ends the guest even if xtask is killed.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--", "timeout", "--kill-after=5", &LIFE_LIMIT_S.to_string()]);
    // KVM hangs on some machines, so it is never used.
    command.args(["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", PROCESSOR, "-smp", "2"]);
    command.args(["-m", "1024", "-nodefaults", "-no-reboot", "-display", "none"]);
    command.arg("-serial").arg(format!("file:{}", logs.console.display()));
    command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initramfs);
    // A kernel that went on after an oops would pass later cases with a damaged state.
    let errors = "oops=panic panic=-1";
    command
        .args(["-append", &format!("console=ttyS0 quiet {errors} mitigations=off nokaslr audit=0 {CLOCK}")]);
    command.args(["-netdev", &format!("tap,id=wire,ifname={TAP},script=no,downscript=no")]);
    command.args(["-device", &format!("virtio-net-pci,netdev=wire,host_mtu={MTU},mac={GUEST_MAC},romfile=")]);
    command.args(["-device", "virtio-serial-pci"]);
    for at in 0..CHANNELS {
        let path = socket(dir, at);
        let _ = std::fs::remove_file(&path);
        command.args(["-chardev", &format!("socket,id=c{at},path={},server=on,wait=off", path.display())]);
        command.args(["-device", &format!("virtserialport,chardev=c{at},name=ferroce.{at}")]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    match std::fs::File::create(&logs.qemu) {
        Ok(log) => command.stderr(log),
        Err(_) => command.stderr(Stdio::null()),
    };
    command
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The console of a kernel that stops, in the format of Linux 6.1.
    pub(crate) const PANIC: &str = "[    0.311204] Run /init as init process\r\n\
        [   41.902177] BUG: kernel NULL pointer dereference, address: 0000000000000008\r\n\
        [   41.902466] #PF: supervisor read access in kernel mode\r\n\
        [   41.902871] Oops: 0000 [#1] PREEMPT SMP NOPTI\r\n\
        [   41.911520] Kernel panic - not syncing: Fatal exception in interrupt\r\n";

    /// A guest with this console and these messages of QEMU. The test has the other end of its channel.
    pub(crate) fn guest(name: &str, console: &str, messages: &str) -> (Guest, UnixStream) {
        let dir = std::env::temp_dir().join(format!("ferroce-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let logs = Logs { console: dir.join("console.log"), qemu: dir.join("qemu.log") };
        std::fs::write(&logs.console, console).unwrap();
        std::fs::write(&logs.qemu, messages).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let channel = Channel { stream: BufReader::new(TimedSocket::new(ours)), requests: 0 };
        let qemu = Mutex::new(Command::new("true").spawn().unwrap());
        (Guest { qemu, channels: vec![Mutex::new(channel)], dir, logs }, theirs)
    }

    fn reason(result: Result<Ended, Failure>) -> String {
        let Err(Failure::Broken(reason)) = result else { panic!("the command did not fail") };
        reason
    }

    #[test]
    fn a_failure_has_the_first_error_of_the_kernel_and_the_file_of_the_console() {
        let (guest, theirs) = guest("panic", PANIC, "");
        drop(theirs);
        let expected = format!(
            "`rping` in the guest: the guest ended (QEMU: exit status: 0); the guest's kernel printed \
             `BUG: kernel NULL pointer dereference, address: 0000000000000008`; console: {}",
            guest.logs.console.display()
        );
        assert_eq!(reason(guest.run(0, "rping", BOOT_LIMIT)), expected);
    }

    #[test]
    fn a_guest_that_does_not_answer_is_a_failure() {
        let warning = "qemu-system-x86_64: warning: TCG doesn't support requested feature\n";
        let (guest, _theirs) = guest("silent", "", warning);
        let reason = reason(guest.run(0, "rping", Duration::from_millis(1)));
        assert!(reason.contains("no answer within 0 s; found no fatal error on the console; "), "{reason}");
    }

    #[test]
    fn a_command_that_prints_without_end_reaches_its_time_limit() {
        let (guest, mut theirs) = guest("endless", "", "");
        let printer = std::thread::spawn(move || {
            while theirs.write_all(b"a line\nand a part of one").is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let reason = reason(guest.run(0, "yes", Duration::from_millis(50)));
        assert!(reason.contains("`yes` in the guest: no answer"), "{reason}");
        drop(guest);
        printer.join().unwrap();
    }

    #[test]
    fn an_error_of_qemu_is_reported_if_the_kernel_printed_none() {
        let messages = "qemu-system-x86_64: could not configure /dev/net/tun: Device or resource busy\n";
        let (guest, theirs) = guest("qemu", "[    0.311204] Run /init as init process\r\n", messages);
        drop(theirs);
        let reason = reason(guest.run(0, "rping", BOOT_LIMIT));
        for part in
            ["QEMU printed `qemu-system-x86_64: could not configure", "busy` in ", "qemu.log; console: "]
        {
            assert!(reason.contains(part), "{part:?} is missing: {reason}");
        }
    }

    #[test]
    fn an_error_after_which_the_kernel_goes_on_does_not_hide_the_fatal_one() {
        let warnings = "[   30.1] watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [rping:214]\r\n\
            [   31.5] BUG: workqueue lockup - pool cpus=1 node=0 flags=0x0 nice=0 stuck for 37s!\r\n\
            [   31.9] BUG: sleeping function called from invalid context at mm/slab.h:421\r\n\
            [   32.0] DEBUG: a line\r\n\
            [   32.1] traps: rping[214] general protection fault ip:5566 sp:7788 error:0 in rping\r\n";
        assert_eq!(kernel_error(warnings), None);
        let panic = "Kernel panic - not syncing: Attempted to kill init! exitcode=0x0000000b";
        assert_eq!(kernel_error(&format!("{warnings}[   41.9] {panic}\r\n")), Some(panic));
        for fatal in [
            "BUG: unable to handle page fault for address: ffffc90000a3f000",
            "kernel BUG at drivers/infiniband/core/iwcm.c:1028!",
            "general protection fault, probably for non-canonical address 0xdead000000000108: 0000 [#1] PREEMPT SMP NOPTI",
        ] {
            assert_eq!(kernel_error(&format!("{warnings}[   41.9] {fatal}\r\n")), Some(fatal));
        }
    }

    #[test]
    fn a_kernel_can_panic_without_another_error() {
        let console = "[    2.5] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100\r\n";
        let error = "Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100";
        assert_eq!(kernel_error(console), Some(error));
        assert_eq!(kernel_error("[    0.3] Run /init as init process\r\n"), None);
    }
}
