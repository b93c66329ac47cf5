//! Packets of the kernel, recorded for tests that run without a virtual machine.
//!
//! They are captured on the tap device, not by ferroce, whose errors must not affect them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::namespace::{GUEST_V4, GUEST_V6, TAP};
use super::{Failure, capture, replace_file};
use crate::tools::which;

const ETHERNET: usize = 14;
const UDP: usize = 8;
const ROCE_PORT: [u8; 2] = 4791u16.to_be_bytes();
const RC_ACKNOWLEDGE: u8 = 0x11;
const UD_SEND_ONLY: u8 = 0x64;
/// Offset of the MAD, behind BTH and DETH.
const MAD: usize = 20;
/// The management class of communication management.
const CM_CLASS: u8 = 7;

/// A capture in progress.
pub(crate) struct Tap {
    dumpcap: Child,
    file: PathBuf,
}

impl Tap {
    pub(crate) fn start(dir: &Path) -> Result<Self, Failure> {
        if which("dumpcap").is_none() {
            return Err(Failure::Skip("dumpcap is missing; it comes with tshark".to_owned()));
        }
        let file = dir.join("tap.pcapng");
        let filter = format!("udp port 4791 and (src host {GUEST_V4} or src host {GUEST_V6})");
        // The kernel ends dumpcap even if xtask is killed.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "TERM", "--", "dumpcap", "-q", "-i", TAP, "-f", &filter, "-w"])
            .arg(&file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let dumpcap = command.spawn()?;
        let started = Instant::now();
        while !file.exists() && started.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self { dumpcap, file })
    }

    /// Stops the capture and writes the shortest captured frame of each kind. Kinds that were not captured keep their frame.
    /// Returns the number of captured kinds.
    pub(crate) fn finish(mut self, into: &Path) -> Result<usize, Failure> {
        Command::new("kill").args(["-INT", &self.dumpcap.id().to_string()]).status()?;
        self.dumpcap.wait()?;
        let bytes = std::fs::read(&self.file)?;
        std::fs::remove_file(&self.file)?;
        let mut captured: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for (frame, _) in capture::packets(&bytes) {
            let Some(kind) = kind(&frame) else { continue };
            let shortest = captured.entry(kind).or_insert_with(|| frame.clone());
            if frame.len() < shortest.len() {
                *shortest = frame;
            }
        }
        if !captured.is_empty() {
            let old = std::fs::read_to_string(into).unwrap_or_default();
            replace_file(into, &merged(&old, &captured))?;
        }
        Ok(captured.len())
    }
}

/// The text of the file with these frames in place of those of the same kinds.
fn merged(old: &str, captured: &BTreeMap<String, Vec<u8>>) -> String {
    let kept = old.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(' '));
    let mut frames: BTreeMap<&str, String> = kept.map(|(name, hex)| (name, hex.to_owned())).collect();
    for (name, frame) in captured {
        frames.insert(name, frame.iter().map(|byte| format!("{byte:02x}")).collect());
    }
    let mut text = "# Frames of Linux 6.1's Soft-RoCE, taken off the wire by `cargo xtask interop --golden`: for each IP\n\
                    # version and opcode (hexadecimal) the shortest that was seen; of connection management one for each attribute.\n"
        .to_owned();
    for (name, hex) in frames {
        let _ = writeln!(text, "{name} {hex}");
    }
    text
}

/// Writes the frames of SoftiWARP that a case printed as `golden NAME HEX`. Without frames, the file stays unchanged.
pub(crate) fn write_streams(artefacts: &Path, into: &Path) -> Result<usize, Failure> {
    let log = artefacts.join("iwarp-handmade-v4-to-kernel.log");
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let frames: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("golden ")).collect();
    if !frames.is_empty() {
        let head = "# Frames of Linux 6.1's SoftiWARP, as `iwarp_peer handmade` received them from rping: `cargo xtask interop --golden`.\n\
                    # Connection, whether FPDUs have a CRC, number of the frame; the first one is the MPA reply.\n";
        replace_file(into, &format!("{head}{}\n", frames.join("\n")))?;
    }
    Ok(frames.len())
}

/// The kind of a frame, as a name for sorting. It includes the syndrome of acknowledgements and the attribute of messages of
/// connection management.
fn kind(frame: &[u8]) -> Option<String> {
    let (version, ip) = match frame.get(12..14)? {
        [0x08, 0x00] => ("v4", 20),
        [0x86, 0xdd] => ("v6", 40),
        _ => return None,
    };
    let udp = frame.get(ETHERNET + ip..)?;
    let bth = udp.get(UDP..).filter(|_| udp.get(2..4) == Some(&ROCE_PORT))?;
    let opcode = *bth.first()?;
    let to_manager = bth.get(5..8)? == [0, 0, 1] && bth.get(MAD + 1) == Some(&CM_CLASS);
    let detail = match (opcode, bth.get(12)?) {
        (UD_SEND_ONLY, _) if to_manager => {
            let attribute = bth.get(MAD + 16..MAD + 18)?;
            format!("_cm{:02x}{:02x}", attribute[0], attribute[1])
        }
        (RC_ACKNOWLEDGE, 0..=0x1f) => "_ack".to_owned(),
        (RC_ACKNOWLEDGE, 0x20..=0x3f) => "_rnr".to_owned(),
        (RC_ACKNOWLEDGE, syndrome) => format!("_nak{}", syndrome & 0x1f),
        _ => String::new(),
    };
    Some(format!("{version}_{opcode:02x}{detail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_that_were_not_captured_keep_their_frame() {
        let captured = BTreeMap::from([("v4_00".to_owned(), vec![0xcc, 1]), ("v4_01".to_owned(), vec![2])]);
        let text = merged("# head\nv4_00 aa\nv4_11_nak3 bb\n", &captured);
        let frames: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(frames, ["v4_00 cc01", "v4_01 02", "v4_11_nak3 bb"]);
    }

    #[test]
    fn frames_are_named_by_version_opcode_and_syndrome() {
        let mut frame = vec![0; ETHERNET + 20 + UDP + 16];
        frame[12] = 8;
        frame[36..38].copy_from_slice(&ROCE_PORT);
        assert_eq!(kind(&frame).as_deref(), Some("v4_00"));
        frame[42] = RC_ACKNOWLEDGE;
        frame[54] = 0x63;
        assert_eq!(kind(&frame).as_deref(), Some("v4_11_nak3"));
        assert_eq!(kind(&frame[..30]), None);
        frame.resize(ETHERNET + 20 + UDP + MAD + 256, 0);
        let bth = &mut frame[ETHERNET + 20 + UDP..];
        (bth[0], bth[7], bth[MAD + 1], bth[MAD + 17]) = (UD_SEND_ONLY, 1, CM_CLASS, 0x10);
        assert_eq!(kind(&frame).as_deref(), Some("v4_64_cm0010"));
    }
}
