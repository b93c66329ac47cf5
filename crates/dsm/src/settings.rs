//! Settings of a job from the environment.

use crate::error::Error;
use crate::job::Tuning;
use crate::meet::ForeignJob;
use std::net::SocketAddr;

/// How the processes of a job reach each other's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum TransportKind {
    /// All on one host: every process maps the same memory.
    Local,
    /// One-sided RDMA: READ, WRITE and atomics.
    Rdma,
    /// Two-sided RDMA: SEND and RECV, with a service thread at each home.
    RdmaMsg,
    /// The same messages over plain UDP sockets.
    Udp,
}

impl TransportKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Local, Self::Rdma, Self::RdmaMsg, Self::Udp];

    /// The name in `FERROCE_DSM_TRANSPORT` and `--transport`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Rdma => "rdma",
            Self::RdmaMsg => "rdma-msg",
            Self::Udp => "udp",
        }
    }

    /// The transport with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// How page faults of the program are caught.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum FaultKind {
    /// By userfaultfd where the system allows it, else by SIGSEGV.
    #[default]
    Auto,
    /// By SIGSEGV: rights of the mapping.
    Signal,
    /// By userfaultfd only.
    Userfault,
}

impl FaultKind {
    /// The name in `FERROCE_DSM_FAULTS`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(Self::Auto),
            "signal" => Some(Self::Signal),
            "userfaultfd" => Some(Self::Userfault),
            _ => None,
        }
    }
}

/// The settings for [`crate::Job::join`]. `Settings::default()` is a job of one process.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Number of this process.
    pub rank: u32,
    /// Number of processes.
    pub size: u32,
    /// The launcher's rendezvous; needed where `size` is more than 1.
    pub meet: Option<SocketAddr>,
    /// The key that proves to the rendezvous that this process belongs to the job.
    pub key: String,
    /// Below mpirun or srun: rank and size from there. Process 0 then runs the rendezvous.
    pub foreign: Option<ForeignJob>,
    /// Processes with different numbers count as on different hosts. For experiments on one host.
    pub host: Option<u32>,
    /// `None`: local if all processes are on one host, else one-sided RDMA.
    pub transport: Option<TransportKind>,
    /// How page faults are caught, if there are any.
    pub faults: FaultKind,
    /// Optimisations that are on or off at the start; a program may change them later.
    pub switches: Vec<(Tuning, bool)>,
    /// Size of the shared heap: address space, not memory.
    pub heap_bytes: usize,
    /// Maximum number of pages of other homes that a process keeps.
    pub cache_pages: usize,
    /// Whether adjacent pages are fetched with a page.
    pub prefetch: bool,
    /// Maximum number of pages that one fault prefetches.
    pub prefetch_pages: usize,
    /// How many pages behind the faulting one are checked for those that were fetched together with it the last time.
    pub max_checking_pages: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rank: 0,
            size: 1,
            meet: None,
            key: String::new(),
            foreign: None,
            host: None,
            transport: None,
            faults: FaultKind::default(),
            switches: Vec::new(),
            heap_bytes: 64 << 30,
            cache_pages: 16384,
            prefetch: true,
            prefetch_pages: 16,
            max_checking_pages: 8,
        }
    }
}

/// Maximum number of processes of a job.
pub const MAX_SIZE: u32 = 1024;

impl Settings {
    /// Reads the variables of docs/reference/environment.md. Without any, it reads those of mpirun and srun; without
    /// those, it returns a job of one process.
    pub fn from_env() -> Result<Self, Error> {
        let default = Self::default();
        let size = number("FERROCE_DSM_SIZE")?;
        let foreign = match size {
            Some(_) => None,
            None => ForeignJob::of(
                |name| ferroce_os::env::var(name).ok().flatten(),
                std::os::unix::process::parent_id(),
            ),
        };
        let foreign = foreign.filter(|job| job.size > 1);
        let settings = Self {
            rank: number("FERROCE_DSM_RANK")?.or(foreign.as_ref().map(|job| job.rank)).unwrap_or(0),
            size: size.or(foreign.as_ref().map(|job| job.size)).unwrap_or(1),
            foreign,
            host: None,
            meet: read("FERROCE_DSM_MEET", "an address and port", |text| text.parse().ok())?,
            key: read("FERROCE_DSM_KEY", "text", |text| Some(text.to_owned()))?.unwrap_or_default(),
            transport: read(
                "FERROCE_DSM_TRANSPORT",
                "local, rdma, rdma-msg or udp",
                TransportKind::from_name,
            )?,
            faults: read(
                "FERROCE_DSM_FAULTS",
                "auto, signal or userfaultfd",
                FaultKind::from_name,
            )?
            .unwrap_or_default(),
            switches: read(
                "FERROCE_DSM_SWITCHES",
                "a list of home-migration, write-detection, tree, changed-blocks, parcels, prefetch, colocated, each optionally with the prefix no-",
                switches,
            )?
            .unwrap_or_default(),
            heap_bytes: read("FERROCE_DSM_HEAP", "a number of bytes, such as 64G", bytes)?
                .unwrap_or(default.heap_bytes),
            cache_pages: number("FERROCE_DSM_CACHE_PAGES")?.unwrap_or(default.cache_pages),
            prefetch: number::<u8>("FERROCE_DSM_PREFETCH")?.map_or(default.prefetch, |on| on != 0),
            prefetch_pages: number("FERROCE_DSM_PREFETCH_PAGES")?.unwrap_or(default.prefetch_pages),
            max_checking_pages: number("FERROCE_DSM_MAX_CHECKING_PAGES")?
                .unwrap_or(default.max_checking_pages),
        };
        settings.checked()
    }

    /// The rank that a launcher gave this process, if any, for messages before it has joined.
    pub fn rank_from_env() -> Option<u32> {
        let foreign =
            || ForeignJob::of(|name| ferroce_os::env::var(name).ok().flatten(), 0).map(|job| job.rank);
        number("FERROCE_DSM_RANK").ok()?.or_else(foreign)
    }

    /// Returns the settings if they are valid, with the heap rounded up to whole pages.
    pub(crate) fn checked(mut self) -> Result<Self, Error> {
        let wrong = |variable, value: String, wanted| Err(Error::Setting { variable, value, wanted });
        if self.size == 0 || self.size > MAX_SIZE {
            return wrong("FERROCE_DSM_SIZE", self.size.to_string(), "a number from 1 to 1024");
        }
        if self.rank >= self.size {
            return wrong("FERROCE_DSM_RANK", self.rank.to_string(), "a number below FERROCE_DSM_SIZE");
        }
        if self.size > 1 && self.meet.is_none() && self.foreign.is_none() {
            return wrong(
                "FERROCE_DSM_MEET",
                String::new(),
                "the address of the rendezvous, which a job of several processes needs",
            );
        }
        if self.cache_pages < 4 {
            return wrong("FERROCE_DSM_CACHE_PAGES", self.cache_pages.to_string(), "at least 4");
        }
        if self.heap_bytes > 16 << 40 {
            return wrong("FERROCE_DSM_HEAP", self.heap_bytes.to_string(), "at most 16T");
        }
        self.heap_bytes = self.heap_bytes.max(crate::PAGE).next_multiple_of(crate::PAGE);
        Ok(self)
    }
}

fn read<T>(
    variable: &'static str,
    wanted: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, Error> {
    match ferroce_os::env::var(variable) {
        Ok(None) => Ok(None),
        Ok(Some(value)) if value.is_empty() => Ok(None),
        Ok(Some(value)) => parse(&value).map(Some).ok_or(Error::Setting { variable, value, wanted }),
        Err(value) => {
            Err(Error::Setting { variable, value: value.to_string_lossy().into(), wanted: "UTF-8 text" })
        }
    }
}

fn number<T: std::str::FromStr>(variable: &'static str) -> Result<Option<T>, Error> {
    read(variable, "a whole number", |text| text.parse().ok())
}

/// `tree,no-parcels`
fn switches(text: &str) -> Option<Vec<(Tuning, bool)>> {
    let one = |word: &str| match word.strip_prefix("no-") {
        Some(name) => Tuning::from_name(name).map(|tuning| (tuning, false)),
        None => Tuning::from_name(word).map(|tuning| (tuning, true)),
    };
    text.split(',').map(|word| one(word.trim())).collect()
}

fn bytes(text: &str) -> Option<usize> {
    let (digits, shift) = match "KMGT".find(text.chars().last()?.to_ascii_uppercase()) {
        Some(unit) => (&text[..text.len() - 1], 10 * (unit + 1)),
        None => (text, 0),
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes("64G"), Some(64 << 30));
        assert_eq!(bytes("2m"), Some(2 << 20));
        assert_eq!(bytes("G"), None);
        assert_eq!(bytes("99999999999T"), None);
    }

    #[test]
    fn switches_are_a_list() {
        let both = vec![(Tuning::BroadcastTree, true), (Tuning::Parcels, false)];
        assert_eq!(switches("tree, no-parcels"), Some(both));
        assert_eq!(switches("tree,forest"), None);
    }

    #[test]
    fn a_rank_beyond_the_size_is_refused() {
        let error = Settings { rank: 3, size: 2, ..Settings::default() }.checked().unwrap_err();
        assert_eq!(error.to_string(), "FERROCE_DSM_RANK is \"3\"; set it to a number below FERROCE_DSM_SIZE");
    }
}
