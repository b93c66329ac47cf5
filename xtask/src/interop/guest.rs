//! The virtual machine and its command channels.
//!
//! The channels are serial ports, because the network under test may lose packets.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
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
/// Lifetime of the virtual machine. It ends then in any case.
const LIFE_LIMIT_S: u32 = 30 * 60;

/// A running guest. Dropping it ends the virtual machine.
pub(crate) struct Guest {
    qemu: Child,
    channels: Vec<Mutex<Channel>>,
    dir: PathBuf,
}

/// Exit status and output of a command, in the guest or on the host.
pub(crate) struct Ended {
    /// The exit status, 128 + n after signal n, as a shell reports it.
    pub(crate) status: i32,
    pub(crate) text: String,
}

struct Channel {
    stream: BufReader<UnixStream>,
    requests: u32,
}

impl Guest {
    /// Boots and waits for the answer to the first command.
    pub(crate) fn boot(image: &Image, dir: &Path) -> Result<Self, Failure> {
        std::fs::create_dir_all(dir)?;
        let qemu = qemu(image, dir).spawn()?;
        // Dropping `guest` ends the virtual machine.
        let mut guest = Self { qemu, channels: Vec::new(), dir: dir.to_path_buf() };
        let started = Instant::now();
        for at in 0..CHANNELS {
            let stream = guest.connect(&socket(dir, at), started)?;
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
        channel
            .run(command, limit)
            .map_err(|error| self.broken(&format!("`{command}` in the guest: {error}")))
    }

    fn connect(&mut self, path: &Path, started: Instant) -> Result<UnixStream, Failure> {
        loop {
            match UnixStream::connect(path) {
                Ok(stream) => return Ok(stream),
                Err(error) if started.elapsed() > BOOT_LIMIT => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
            if let Ok(Some(status)) = self.qemu.try_wait() {
                return Err(self.broken(&format!("QEMU ended: {status}")));
            }
        }
    }

    /// A failure with the last lines of the console, where a kernel reports a panic.
    fn broken(&self, what: &str) -> Failure {
        let tail = |name: &str| {
            let text = std::fs::read(self.dir.join(name)).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(15)..].join("\n")
        };
        Failure::Broken(format!("{what}\n{}\n{}", tail("qemu.log"), tail("console.log")))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The child is `timeout`, which passes the signal on to QEMU; killing it outright would leave QEMU behind.
        let _ = Command::new("kill").arg(self.qemu.id().to_string()).status();
        let _ = self.qemu.wait();
        // Error messages already contain the useful parts.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Channel {
    fn run(&mut self, command: &str, limit: Duration) -> std::io::Result<Ended> {
        self.requests += 1;
        let token = format!("@ferroce-{}", self.requests);
        writeln!(self.stream.get_mut(), "{token} {command}")?;
        self.stream.get_ref().set_read_timeout(Some(limit))?;
        let mut text = Vec::new();
        loop {
            let begin = text.len();
            if self.stream.read_until(b'\n', &mut text)? == 0 {
                return Err(std::io::Error::other("the guest went away"));
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

fn qemu(image: &Image, dir: &Path) -> Command {
    // The kernel ends the guest even if xtask is killed.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--", "timeout", "--kill-after=5", &LIFE_LIMIT_S.to_string()]);
    // KVM hangs on some machines, so it is never used.
    command.args(["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", PROCESSOR, "-smp", "2"]);
    command.args(["-m", "1024", "-nodefaults", "-no-reboot", "-display", "none"]);
    command.arg("-serial").arg(format!("file:{}", dir.join("console.log").display()));
    command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initramfs);
    command
        .args(["-append", &format!("console=ttyS0 quiet panic=-1 mitigations=off nokaslr audit=0 {CLOCK}")]);
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
    match std::fs::File::create(dir.join("qemu.log")) {
        Ok(log) => command.stderr(log),
        Err(_) => command.stderr(Stdio::null()),
    };
    command
}
