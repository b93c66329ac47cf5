//! How a device is opened.

mod key;

pub use key::{KeyError, read_key};

use crate::congestion;
use crate::limits::Strict;
use crate::link::FaultConfig;
use crate::poller_activity::MAX_CONTEXTS;
use ferroce_proto::cc::Choice;
use ferroce_proto::cm::Secret;
use ferroce_proto::verbs::Mtu;
use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::path::PathBuf;

/// Settings of a device. Programs start from [`Config::from_env`] or [`Config::default`] and change fields. Every field has
/// an environment variable.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Addresses to use, each a GID. `None`: every address of the machine. `FERROCE_ADDR`, comma separated.
    pub addresses: Option<Vec<IpAddr>>,
    /// Most bytes in flight per queue pair; `None`: the size of a receive buffer on this machine. `FERROCE_WINDOW`.
    pub window_bytes: Option<u32>,
    /// Congestion control of queue pairs; `None`: a window that losses halve. `FERROCE_CC`, for example
    /// `dcqcn-paper,line_rate=10Gb/s`.
    pub congestion: Option<Choice>,
    /// Whether packets are ECN-capable and marks of switches are read, even if `congestion` does not need it. For programs that set the
    /// congestion control per queue pair.
    pub ecn: bool,
    /// Largest path MTU to offer; `None`: the largest that the interfaces support. `FERROCE_MTU`.
    pub mtu: Option<Mtu>,
    /// Faults to inject into outgoing packets. `FERROCE_FAULTS`.
    pub faults: Option<FaultConfig>,
    /// File to write every packet to. `FERROCE_CAPTURE`.
    pub capture: Option<PathBuf>,
    /// Key that both ends of every connection must prove to have; `None`: peers are not authenticated. The variable contains the path of a
    /// file, see [`crate::read_key`]. `FERROCE_CM_KEY`.
    pub cm_secret: Option<Secret>,
    /// Whether packets to processes of this host take shared memory. `FERROCE_LINK`: `auto` or `udp`.
    pub link: LinkChoice,
    /// Whether registered memory is moved into a memfd, which processes of this host can map. `FERROCE_MEMFD=0` turns it off.
    pub memfd: bool,
    /// The wire: RoCEv2 over UDP, or iWARP over TCP. `FERROCE_WIRE`: `roce` or `iwarp`.
    pub wire: Wire,
    /// iWARP: whether to request a CRC in every FPDU. It is used if either end requests it. `FERROCE_MPA_CRC=1` turns it on.
    pub mpa_crc: bool,
    /// Segmentation offload, sending and receiving. `FERROCE_OFFLOAD=0` turns both off.
    pub offload: bool,
    /// Largest number of progress contexts, 1 to 16: threads that poll completion queues of different contexts share no lock. `None`: two per
    /// processor. `FERROCE_PROGRESS_CONTEXTS`.
    pub progress_contexts: Option<u8>,
    /// Strict mode: refuse operations that hardware would refuse, even through shared memory (docs/use/strict.md). `FERROCE_STRICT`: `1`, or
    /// the name of a device whose limits apply too, such as `connectx-6`.
    pub strict: Option<Strict>,
    /// Report buffers that the program changes, or passes to a second request, before it has polled the completion of the first
    /// (docs/use/strict.md). Implies strict mode. `FERROCE_WATCH=1` turns it on.
    pub watch: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            addresses: None,
            window_bytes: None,
            congestion: None,
            ecn: false,
            mtu: None,
            faults: None,
            capture: None,
            cm_secret: None,
            link: LinkChoice::Auto,
            memfd: true,
            wire: Wire::Roce,
            mpa_crc: false,
            offload: true,
            progress_contexts: None,
            strict: None,
            watch: false,
        }
    }
}

/// The transports that packets may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkChoice {
    /// Shared memory to processes of this user on this host, UDP to all others. With fault injection or a capture, UDP to all, because the
    /// UDP link injects and captures.
    #[default]
    Auto,
    /// UDP to all.
    Udp,
}

/// The wire protocol of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wire {
    /// RoCEv2: RDMA in UDP datagrams on port 4791.
    #[default]
    Roce,
    /// iWARP: RDMA over TCP streams, connected by the connection manager. Reliable connections only.
    Iwarp,
}

impl Wire {
    /// The content of the kernel's `node_type` file for a device with this wire.
    pub fn node_type(self) -> &'static str {
        match self {
            Wire::Roce => "1: CA",
            Wire::Iwarp => "4: RNIC",
        }
    }
}

/// An environment variable with an invalid value.
#[derive(Debug, thiserror::Error)]
#[error("{variable}={value}: {why}")]
#[non_exhaustive]
pub struct ConfigError {
    /// The name of the variable.
    pub variable: &'static str,
    /// Its value.
    pub value: String,
    /// Why the value is invalid.
    pub why: String,
}

impl ConfigError {
    fn new(variable: &'static str, value: &OsStr, why: String) -> Self {
        ConfigError { variable, value: value.to_string_lossy().into_owned(), why }
    }
}

impl Config {
    /// The defaults, changed by the `FERROCE_*` variables.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_lookup(ferroce_os::env::var_os)
    }

    /// Whether packets are ECN-capable.
    pub(crate) fn uses_ecn(&self) -> bool {
        self.ecn || self.congestion.as_ref().is_some_and(congestion::uses_ecn)
    }

    /// Whether packets to a ferroce peer may be longer than the path MTU where the path carries them. Returns `false` if a setting models a real
    /// network or NIC: the MTU, faults, a capture, congestion control, strict mode.
    pub(crate) fn may_exceed_mtu(&self) -> bool {
        let has_network = self.mtu.is_some() || self.faults.is_some() || self.capture.is_some();
        let has_congestion = self.congestion.is_some() || self.ecn;
        self.strict.is_none() && !has_network && !has_congestion
    }

    /// The same settings with some fields changed: `Config::from_env()?.with(|config| config.offload = false)`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, ConfigError> {
        let mut config = Config::default();
        let raw = |variable: &'static str| lookup(variable).filter(|v| !v.is_empty()).map(|v| (variable, v));
        let set = |variable: &'static str| match raw(variable).map(|(_, v)| v.into_string()) {
            Some(Err(value)) => Err(ConfigError::new(variable, &value, "not UTF-8".into())),
            value => Ok(value.and_then(Result::ok).map(|v| (variable, v))),
        };
        if let Some((variable, value)) = set("FERROCE_ADDR")? {
            config.addresses = Some(parse_with(variable, &value, parse_addresses)?);
        }
        if let Some((variable, value)) = set("FERROCE_WINDOW")? {
            config.window_bytes = Some(parse_with(variable, &value, parse_window)?);
        }
        if let Some((variable, value)) = set("FERROCE_CC")? {
            config.congestion = Some(parse_with(variable, &value, congestion::parse)?);
        }
        if let Some((variable, value)) = set("FERROCE_MTU")? {
            config.mtu = Some(parse_with(variable, &value, parse_mtu)?);
        }
        if let Some((variable, value)) = set("FERROCE_FAULTS")? {
            config.faults = Some(parse_with(variable, &value, |v| {
                v.parse().map_err(|e: <FaultConfig as std::str::FromStr>::Err| e.to_string())
            })?);
        }
        config.capture = raw("FERROCE_CAPTURE").map(|(_, path)| path.into());
        // Not ignored if empty: setting the variable requests a key.
        if let Some(path) = lookup("FERROCE_CM_KEY") {
            let wrong = |e: KeyError| ConfigError::new("FERROCE_CM_KEY", &path, e.to_string());
            config.cm_secret = Some(read_key(path.as_ref()).map_err(wrong)?);
        }
        if let Some((variable, value)) = set("FERROCE_LINK")? {
            config.link = parse_with(variable, &value, parse_link)?;
        }
        if let Some((variable, value)) = set("FERROCE_WIRE")? {
            config.wire = parse_with(variable, &value, parse_wire)?;
        }
        if let Some((variable, value)) = set("FERROCE_MPA_CRC")? {
            config.mpa_crc = parse_with(variable, &value, parse_switch)?;
        }
        config.memfd = set("FERROCE_MEMFD")?.is_none_or(|(_, v)| v != "0");
        config.offload = set("FERROCE_OFFLOAD")?.is_none_or(|(_, v)| v != "0");
        if let Some((variable, value)) = set("FERROCE_PROGRESS_CONTEXTS")? {
            config.progress_contexts = Some(parse_with(variable, &value, parse_progress_contexts)?);
        }
        if let Some((variable, value)) = set("FERROCE_STRICT")? {
            config.strict = parse_with(variable, &value, parse_strict)?;
        }
        if let Some((variable, value)) = set("FERROCE_WATCH")? {
            config.watch = parse_with(variable, &value, parse_switch)?;
        }
        Ok(config)
    }
}

fn parse_link(value: &str) -> Result<LinkChoice, String> {
    match value {
        "auto" => Ok(LinkChoice::Auto),
        "udp" => Ok(LinkChoice::Udp),
        _ => Err("must be auto or udp".into()),
    }
}

fn parse_wire(value: &str) -> Result<Wire, String> {
    match value {
        "roce" => Ok(Wire::Roce),
        "iwarp" => Ok(Wire::Iwarp),
        _ => Err("must be roce or iwarp".into()),
    }
}

fn parse_strict(value: &str) -> Result<Option<Strict>, String> {
    let known = Strict::NAMES.iter().find(|(name, _)| *name == value).map(|(_, strict)| Some(*strict));
    known.or((value == "0").then_some(None)).ok_or_else(|| {
        let names: Vec<&str> = Strict::NAMES.iter().map(|(name, _)| *name).collect();
        format!("must be 0 or one of {}", names.join(", "))
    })
}

fn parse_switch(value: &str) -> Result<bool, String> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err("must be 0 or 1".into()),
    }
}

fn parse_with<T>(
    variable: &'static str,
    value: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, ConfigError> {
    parse(value).map_err(|why| ConfigError::new(variable, value.as_ref(), why))
}

fn parse_addresses(value: &str) -> Result<Vec<IpAddr>, String> {
    let parse = |word: &str| word.trim().parse().map_err(|_| format!("`{word}` is no IP address"));
    value.split(',').map(parse).collect()
}

fn parse_window(value: &str) -> Result<u32, String> {
    match value.parse() {
        Ok(bytes @ 4096..=67_108_864) => Ok(bytes),
        _ => Err("not a number of bytes from 4096 to 67108864".into()),
    }
}

fn parse_progress_contexts(value: &str) -> Result<u8, String> {
    let known = value.parse().ok().filter(|count| (1..=MAX_CONTEXTS).contains(&usize::from(*count)));
    known.ok_or_else(|| format!("not a number from 1 to {MAX_CONTEXTS}"))
}

fn parse_mtu(value: &str) -> Result<Mtu, String> {
    let known = value.parse().ok().and_then(Mtu::from_bytes);
    known.ok_or_else(|| "not one of 256, 512, 1024, 2048, 4096".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;

    fn with(name: &'static str, value: &'static str) -> Result<Config, ConfigError> {
        with_bytes(name, value.as_bytes())
    }

    fn with_bytes(name: &'static str, value: &[u8]) -> Result<Config, ConfigError> {
        Config::from_lookup(|n| (n == name).then(|| OsStr::from_bytes(value).to_owned()))
    }

    #[test]
    fn a_value_that_is_not_text_is_an_error() {
        for name in ["FERROCE_ADDR", "FERROCE_CM_KEY", "FERROCE_LINK", "FERROCE_OFFLOAD"] {
            let error = with_bytes(name, b"/dev/null/\xff").expect_err(name);
            assert_eq!(error.variable, name);
        }
    }

    #[test]
    fn a_key_file_may_have_any_name_but_an_empty_one() {
        let file = std::env::temp_dir().join(format!("ferroce-{}-key", std::process::id()));
        let file = file.with_extension(OsStr::from_bytes(b"\xff"));
        std::fs::write(&file, [7; 32]).expect("a file of ours");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("a file of ours");
        let found = with_bytes("FERROCE_CM_KEY", file.as_os_str().as_bytes());
        std::fs::remove_file(&file).expect("a file of ours");
        assert!(found.expect("a key").cm_secret.is_some());
        assert_eq!(with_bytes("FERROCE_CM_KEY", b"").expect_err("no name").variable, "FERROCE_CM_KEY");
    }

    #[test]
    fn variables_are_understood_or_named_in_the_error() {
        assert_eq!(with("FERROCE_ADDR", "127.0.0.5, ::1").unwrap().addresses.unwrap().len(), 2);
        assert_eq!(with("FERROCE_MTU", "2048").unwrap().mtu, Some(Mtu::B2048));
        assert!(!with("FERROCE_OFFLOAD", "0").unwrap().offload);
        assert_eq!(with("FERROCE_WIRE", "iwarp").unwrap().wire, Wire::Iwarp);
        assert!(with("FERROCE_MPA_CRC", "1").unwrap().mpa_crc);
        assert_eq!(Config::default().wire, Wire::Roce);
        assert_eq!(with("FERROCE_STRICT", "1").unwrap().strict, Some(Strict::AnyNic));
        assert_eq!(with("FERROCE_STRICT", "connectx-6").unwrap().strict, Some(Strict::ConnectX6));
        assert_eq!(with("FERROCE_STRICT", "0").unwrap().strict, None);
        assert!(with("FERROCE_WATCH", "1").unwrap().watch);
        assert!(with("FERROCE_CC", "dcqcn-paper").unwrap().uses_ecn());
        assert!(!with("FERROCE_CC", "swift").unwrap().uses_ecn());
        for (name, value) in [
            ("FERROCE_ADDR", "host"),
            ("FERROCE_MTU", "1500"),
            ("FERROCE_WINDOW", "1"),
            ("FERROCE_WIRE", "udp"),
            ("FERROCE_CC", "bbr"),
            ("FERROCE_MPA_CRC", "yes"),
            ("FERROCE_CM_KEY", "/"),
            ("FERROCE_STRICT", "connectx-9"),
            ("FERROCE_WATCH", "yes"),
        ] {
            let error = with(name, value).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name}={value}: ")), "{error}");
        }
    }
}
