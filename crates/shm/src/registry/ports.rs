//! The table of ports and their owners, by which the connection managers of one host share addresses.
//!
//! A file with one line per claim. It is changed under a byte lock and replaced as a whole, so no process reads half of it, even if the writer
//! dies. A claim is valid as long as the slot of its owner is locked. Ports that programs do not choose themselves come
//! from blocks: ten thousand connections take a few hundred lines, not ten thousand.

use super::lock::ByteLocks;
use super::roster::Roster;
use super::{RegistryError, io_error};
use ferroce_os::lock::Mutex;
use ferroce_proto::Gid;
use ferroce_proto::cm::{PortSpace, Scope};
use rand::seq::SliceRandom;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const TITLE: &str = "ferroce ports 1";
const FILE: &str = "ports";
const LOCK_FILE: &str = "ports.lock";
const LOCK_BYTE: u8 = 0;
const MAX_WAIT: Duration = Duration::from_secs(5);

/// Ports for programs that do not choose one.
const EPHEMERAL: std::ops::Range<u16> = 40_960..65_472;
/// Ephemeral ports that a process claims in one step.
const BLOCK: u16 = 64;

/// The purpose of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// A block of ephemeral ports, which its owner assigns one by one.
    Block,
    /// Bound exclusively.
    Bound,
    /// Bound, and may be shared with other claims of this kind.
    Shared,
    /// A program listens on it.
    Listening,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim {
    slot: u8,
    space: PortSpace,
    first: u16,
    last: u16,
    scope: Scope,
    usage: Use,
}

/// The table of ports, for the owner of one slot.
pub struct Ports {
    directory: PathBuf,
    slot: u8,
    /// Locks of the slots, which show which processes are alive.
    slots: ByteLocks,
    lock: ByteLocks,
    /// Unused ports of this process's blocks.
    free: Mutex<HashMap<PortSpace, VecDeque<u16>>>,
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    /// Inode and modification time of the file that was read last.
    seen: Option<(u64, i64, i64)>,
    claims: Vec<Claim>,
}

/// The holder of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// This very program.
    pub is_own: bool,
    /// One of the two claims is for every address of the host.
    pub is_wildcard: bool,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = if self.is_own { "this program itself" } else { "another program of this user" };
        let how = if self.is_wildcard { ", and one of the two claims is for all addresses" } else { "" };
        write!(f, "{who} has the port{how}")
    }
}

/// Why a port cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// Another claim has it.
    #[error("{0}")]
    InUse(Holder),
    /// No port is left.
    #[error("all ports are taken")]
    Exhausted,
    /// The table cannot be read or changed.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

impl Ports {
    /// Opens the table in the registry's directory for the owner of `slot`.
    pub fn open(directory: PathBuf, slot: u8) -> Result<Ports, RegistryError> {
        let open = |name: &str| {
            ByteLocks::open(&directory.join(name)).map_err(|e| io_error(&directory, "open a lock file", e))
        };
        let (slots, lock) = (open("lock")?, open(LOCK_FILE)?);
        let (free, cache) = (Mutex::default(), Mutex::default());
        Ok(Ports { directory, slot, slots, lock, free, cache })
    }

    /// Releases the ports of an earlier owner of the slot, which was killed. They would otherwise count as ports of the new owner.
    pub(super) fn release_inherited(&self) -> Result<(), RegistryError> {
        let is_inherited = |claim: &Claim| claim.slot == self.slot;
        if self.load().iter().any(is_inherited) {
            self.update(|claims| claims.retain(|claim| !is_inherited(claim)))?;
        }
        Ok(())
    }

    /// Whether the owner of `slot` is alive.
    pub fn is_alive(&self, slot: u8) -> bool {
        slot == self.slot || self.slots.is_held(slot).unwrap_or(true)
    }

    /// Whether the owner of `slot` receives packets to `address`, which is an address of this host.
    pub fn receives_at(&self, slot: u8, address: Gid) -> bool {
        let text = std::fs::read_to_string(self.directory.join(super::ROSTER_FILE)).unwrap_or_default();
        let ip = address.to_ip();
        let every: IpAddr =
            if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        Roster::parse(&text)
            .is_some_and(|roster| [ip, every].iter().any(|&bound| roster.order(bound).contains(&slot)))
    }

    /// Claims a port that the program chose.
    pub fn bind(&self, space: PortSpace, port: u16, scope: Scope, may_share: bool) -> Result<(), PortError> {
        let usage = if may_share { Use::Shared } else { Use::Bound };
        let claim = Claim { slot: self.slot, space, first: port, last: port, scope, usage };
        self.update(|claims| {
            claim.check(claims.iter())?;
            claims.push(claim);
            Ok(())
        })?
    }

    /// Releases a port that the program chose.
    pub fn unbind(&self, space: PortSpace, port: u16, scope: Scope) {
        let same = |c: &Claim| {
            (c.slot, c.space, c.first, c.scope) == (self.slot, space, port, scope) && c.usage != Use::Block
        };
        // Without the registry the claim dies with the process.
        let _ = self.update(|claims| {
            if let Some(at) = claims.iter().position(same) {
                claims.swap_remove(at);
            }
        });
    }

    /// Marks a bound or ephemeral port as listening.
    pub fn listen(&self, space: PortSpace, port: u16, scope: Scope) -> Result<(), PortError> {
        let usage = Use::Listening;
        let claim = Claim { slot: self.slot, space, first: port, last: port, scope, usage };
        self.update(|claims| {
            let own = claims.iter().position(|c| {
                (c.slot, c.space, c.first, c.scope) == (self.slot, space, port, scope)
                    && matches!(c.usage, Use::Bound | Use::Shared)
            });
            let others = claims.iter().enumerate().filter(|(at, _)| Some(*at) != own);
            claim.check(others.map(|(_, other)| other))?;
            match own {
                Some(at) => claims[at] = claim,
                None => claims.push(claim),
            }
            Ok(())
        })?
    }

    /// Takes a port that no other process has, on any address.
    pub fn take_ephemeral(&self, space: PortSpace) -> Result<u16, PortError> {
        let mut free_ports = self.free.lock();
        let free = free_ports.entry(space).or_default();
        if let Some(port) = free.pop_front() {
            return Ok(port);
        }
        let first = self.claim_block(space)?;
        let mut block: Vec<u16> = (first..first + BLOCK).collect();
        block.shuffle(&mut ferroce_os::random::generator());
        free.extend(block);
        free.pop_front().ok_or(PortError::Exhausted)
    }

    /// Returns a port. The other free ports are used first: a peer may still have state of a connection from this one.
    pub fn return_ephemeral(&self, space: PortSpace, port: u16) {
        self.free.lock().entry(space).or_default().push_back(port);
    }

    fn claim_block(&self, space: PortSpace) -> Result<u16, PortError> {
        let mut firsts: Vec<u16> = EPHEMERAL.step_by(BLOCK.into()).collect();
        firsts.shuffle(&mut ferroce_os::random::generator());
        let scope = Scope::Any;
        self.update(|claims| {
            let free = firsts.iter().find_map(|&first| {
                let last = first + (BLOCK - 1);
                let block = Claim { slot: self.slot, space, first, last, scope, usage: Use::Block };
                let taken = |c: &Claim| c.space == space && c.first <= last && first <= c.last;
                (!claims.iter().any(taken)).then_some(block)
            });
            let block = free.ok_or(PortError::Exhausted)?;
            claims.push(block);
            Ok(block.first)
        })?
    }

    /// The slot of the living process that listens on this port at `address`.
    pub fn listener(&self, space: PortSpace, port: u16, address: Gid) -> Option<u8> {
        let mut cache = self.cache.lock();
        self.refresh(&mut cache);
        let found = cache.claims.iter().filter(|c| {
            c.usage == Use::Listening && c.space == space && c.first == port && c.scope.covers(address)
        });
        // The claim with the narrowest scope wins, as within one process.
        found.filter(|c| self.is_alive(c.slot)).min_by_key(|c| c.scope).map(|c| c.slot)
    }

    /// Reads the file if it has changed since the last time.
    fn refresh(&self, cache: &mut Cache) {
        let stamp =
            std::fs::metadata(self.directory.join(FILE)).map(|m| (m.ino(), m.mtime(), m.mtime_nsec())).ok();
        if stamp.is_none() || stamp != cache.seen {
            cache.claims = self.load();
            cache.seen = stamp;
        }
    }

    fn update<T>(&self, change: impl FnOnce(&mut Vec<Claim>) -> T) -> Result<T, RegistryError> {
        let start = Instant::now();
        let failed = |what| move |e| io_error(&self.directory, what, e);
        // The byte lock belongs to the opened file, so it does not exclude threads of this process. The cache's lock does.
        let mut cache = self.cache.lock();
        while !self.lock.try_lock(LOCK_BYTE).map_err(failed("lock the port table"))? {
            if start.elapsed() > MAX_WAIT {
                return Err(RegistryError::Stuck { path: self.directory.clone() });
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let _guard = Unlock(&self.lock);
        let mut claims = self.load();
        let before = claims.clone();
        claims.retain(|c| self.is_alive(c.slot));
        let result = change(&mut claims);
        if claims != before {
            self.store(&claims).map_err(failed("write the port table"))?;
        }
        cache.seen = None;
        Ok(result)
    }

    /// Reads the table. An unreadable one counts as empty.
    fn load(&self) -> Vec<Claim> {
        let text = std::fs::read_to_string(self.directory.join(FILE)).unwrap_or_default();
        parse(&text).unwrap_or_default()
    }

    fn store(&self, claims: &[Claim]) -> std::io::Result<()> {
        let mut text = format!("{TITLE}\n");
        for claim in claims {
            text.push_str(&format!("{claim}\n"));
        }
        let fresh = self.directory.join("ports.new");
        std::fs::write(&fresh, text)?;
        std::fs::set_permissions(&fresh, PermissionsExt::from_mode(0o600))?;
        std::fs::rename(&fresh, self.directory.join(FILE))
    }
}

struct Unlock<'a>(&'a ByteLocks);

impl Drop for Unlock<'_> {
    fn drop(&mut self) {
        self.0.unlock(LOCK_BYTE);
    }
}

impl Claim {
    /// Returns an error if this claim conflicts with one of `others`.
    fn check<'a>(&self, mut others: impl Iterator<Item = &'a Claim>) -> Result<(), PortError> {
        let Some(other) = others.find(|other| self.conflicts(other)) else { return Ok(()) };
        let is_wildcard = [self, other].iter().any(|claim| !matches!(claim.scope, Scope::Only(_)));
        Err(PortError::InUse(Holder { is_own: other.slot == self.slot, is_wildcard }))
    }

    fn conflicts(&self, other: &Claim) -> bool {
        let meets = self.space == other.space
            && self.first <= other.last
            && other.first <= self.last
            && self.scope.overlaps(other.scope);
        let shared = self.usage == Use::Shared && other.usage == Use::Shared;
        // A port of a block is the source port of connections, which are identified by their communication IDs and not by their
        // ports. So another program may listen on it.
        let either_block = self.usage == Use::Block || other.usage == Use::Block;
        meets && !shared && !either_block
    }

    fn parse(line: &str) -> Option<Claim> {
        let mut words = line.split(' ');
        let slot = words.next()?.parse().ok()?;
        let space = PortSpace::from_code(u16::from_str_radix(words.next()?, 16).ok()?)?;
        let (first, last) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let scope = match words.next()? {
            "any" => Scope::Any,
            "any4" => Scope::AnyV4,
            "any6" => Scope::AnyV6,
            address => Scope::Only(Gid::from_ip(address.parse().ok()?)),
        };
        let usage = match words.next()? {
            "block" => Use::Block,
            "bound" => Use::Bound,
            "shared" => Use::Shared,
            "listening" => Use::Listening,
            _ => return None,
        };
        Some(Claim { slot, space, first, last, scope, usage })
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:x} {} {} ", self.slot, self.space as u16, self.first, self.last)?;
        match self.scope {
            Scope::Any => f.write_str("any")?,
            Scope::AnyV4 => f.write_str("any4")?,
            Scope::AnyV6 => f.write_str("any6")?,
            Scope::Only(gid) => write!(f, "{}", gid.to_ip())?,
        }
        f.write_str(match self.usage {
            Use::Block => " block",
            Use::Bound => " bound",
            Use::Shared => " shared",
            Use::Listening => " listening",
        })
    }
}

fn parse(text: &str) -> Option<Vec<Claim>> {
    let mut lines = text.lines();
    if lines.next()? != TITLE {
        return None;
    }
    lines.map(Claim::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{LAST_SLOT, Registry, default_base};
    use super::*;
    use std::path::Path;

    const TCP: PortSpace = PortSpace::Tcp;

    /// A directory of its own, with slots 1 to 3 held as their processes would.
    struct Host {
        directory: PathBuf,
        slots: Vec<ByteLocks>,
    }

    impl Host {
        fn new(name: &str) -> Host {
            let directory = default_base().join(format!("ferroce-ports-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&directory).unwrap();
            let slots = (1..=3).map(|slot| hold(&directory, slot)).collect();
            Host { directory, slots }
        }
        fn ports(&self, slot: u8) -> Ports {
            Ports::open(self.directory.clone(), slot).unwrap()
        }
    }

    impl Drop for Host {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }

    fn hold(directory: &Path, slot: u8) -> ByteLocks {
        let locks = ByteLocks::open(&directory.join("lock")).unwrap();
        assert!(locks.try_lock(slot).unwrap());
        locks
    }

    fn only(address: &str) -> Scope {
        Scope::Only(Gid::from_ip(address.parse().unwrap()))
    }

    #[test]
    fn a_port_has_one_owner_per_address() {
        let host = Host::new("owner");
        let (one, two) = (host.ports(1), host.ports(2));
        one.bind(TCP, 7471, only("10.0.0.1"), false).unwrap();
        let holder = |bound: Result<(), PortError>| match bound {
            Err(PortError::InUse(Holder { is_own, is_wildcard })) => [is_own, is_wildcard],
            other => panic!("{other:?}"),
        };
        assert_eq!(holder(two.bind(TCP, 7471, only("10.0.0.1"), false)), [false, false]);
        assert_eq!(holder(two.bind(TCP, 7471, Scope::Any, true)), [false, true]);
        assert_eq!(holder(one.bind(TCP, 7471, only("10.0.0.1"), false)), [true, false]);
        two.bind(TCP, 7471, only("10.0.0.2"), false).unwrap();
        two.bind(TCP, 7471, Scope::AnyV6, false).unwrap();
        two.bind(PortSpace::Udp, 7471, Scope::Any, false).unwrap();
        one.unbind(TCP, 7471, only("10.0.0.1"));
        two.bind(TCP, 7471, only("10.0.0.1"), false).unwrap();
    }

    #[test]
    fn sharing_ends_where_listening_begins() {
        let host = Host::new("share");
        let (one, two) = (host.ports(1), host.ports(2));
        one.bind(TCP, 80, Scope::AnyV4, true).unwrap();
        two.bind(TCP, 80, Scope::AnyV4, true).unwrap();
        assert!(matches!(one.listen(TCP, 80, Scope::AnyV4), Err(PortError::InUse(_))));
        two.unbind(TCP, 80, Scope::AnyV4);
        one.listen(TCP, 80, Scope::AnyV4).unwrap();
        assert!(matches!(two.bind(TCP, 80, Scope::AnyV4, true), Err(PortError::InUse(_))));
    }

    #[test]
    fn listeners_are_found_until_they_die() {
        let mut host = Host::new("die");
        let (one, two) = (host.ports(1), host.ports(2));
        let gid = |a: &str| Gid::from_ip(a.parse().unwrap());
        one.listen(TCP, 5, Scope::AnyV4).unwrap();
        two.bind(TCP, 6, Scope::AnyV4, false).unwrap();
        assert_eq!(two.listener(TCP, 5, gid("127.0.0.1")), Some(1));
        assert_eq!(two.listener(TCP, 5, gid("::1")), None);
        assert_eq!(two.listener(TCP, 6, gid("127.0.0.1")), None, "bound is not listening");
        host.slots[0].unlock(1);
        assert_eq!(two.listener(TCP, 5, gid("127.0.0.1")), None);
        two.listen(TCP, 5, Scope::Any).unwrap();
        assert_eq!(one.listener(TCP, 5, gid("::1")), Some(2));
        // A new owner of a slot does not inherit.
        host.slots[0] = hold(&host.directory, 1);
        one.listen(TCP, 9, Scope::Any).unwrap();
        let reborn = host.ports(1);
        reborn.release_inherited().unwrap();
        assert_eq!(reborn.listener(TCP, 9, gid("::1")), None);
        assert_eq!(reborn.listener(TCP, 5, gid("::1")), Some(2));
    }

    #[test]
    fn a_new_owner_of_a_slot_has_no_ports() {
        let host = Host::new("inherit");
        let [dead, other] = [(); 2].map(|()| Registry::open(&host.directory).unwrap());
        let (directory, slot) = (dead.directory().to_path_buf(), dead.slot());
        Ports::open(directory.clone(), slot).unwrap().listen(TCP, 7, Scope::Any).unwrap();
        let ports = Ports::open(directory, other.slot()).unwrap();
        assert_eq!(ports.listener(TCP, 7, Gid::ZERO), Some(slot));
        drop(dead);
        let mut opened = (0..=LAST_SLOT).map(|_| Registry::open(&host.directory).unwrap());
        let _heir = opened.find(|registry| registry.slot() == slot).unwrap();
        assert_eq!(ports.listener(TCP, 7, Gid::ZERO), None);
    }

    #[test]
    fn ephemeral_ports_never_meet() {
        let host = Host::new("ephemeral");
        let (one, two) = (host.ports(1), host.ports(2));
        let mut seen = std::collections::HashSet::new();
        for n in 0..2000 {
            let port = if n % 2 == 0 { &one } else { &two }.take_ephemeral(TCP).unwrap();
            assert!(EPHEMERAL.contains(&port) && seen.insert(port), "{port}");
        }
        let port = one.take_ephemeral(TCP).unwrap();
        two.bind(TCP, port, Scope::Any, true).unwrap();
        two.unbind(TCP, port, Scope::Any);
        one.listen(TCP, port, Scope::Any).unwrap();
        assert!(matches!(two.bind(TCP, port, Scope::Any, true), Err(PortError::InUse(_))));
        assert_eq!(two.listener(TCP, port, Gid::ZERO), Some(1));
    }

    #[test]
    fn a_broken_table_is_an_empty_one() {
        let host = Host::new("broken");
        std::fs::write(host.directory.join(FILE), "what is this").unwrap();
        let one = host.ports(1);
        one.listen(TCP, 5, Scope::Any).unwrap();
        assert_eq!(one.listener(TCP, 5, Gid::ZERO), Some(1));
    }
}
