//! The shared state of the processes of one user and one network namespace.
//!
//! There is no daemon, so this state must survive the death of any process at any moment:
//!
//! - a **slot** is a byte of a file that its owner keeps locked. The kernel releases the lock when the last descriptor of the
//!   open file is closed, however the process ends. So a forked child keeps the slot that it inherited;
//! - the **roster** lists the order in which the kernel holds the sockets that share a port. It is a hint: a stale roster
//!   causes misrouted packets, which are forwarded and not lost (`link::SharedPort`).
//!
//! | file | contents |
//! |---|---|
//! | `directory` | the directory, and why its owner is checked |
//! | `lock` | byte locks that the kernel releases when their owner dies |
//! | `ports` | which process has which port of the connection manager |
//! | `roster` | the order of the sockets on each address, as text |
//! | `sweep` | removes files of dead processes |

mod directory;
mod lock;
mod ports;
mod roster;
mod sweep;

use directory::{make_directory, own_directories, plain_directory};
use lock::ByteLocks;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use directory::default_base;
pub use directory::effective_uid;
pub use ports::{Holder, PortError, Ports};
pub use roster::Roster;

/// Lowest slot. Slot 0 would own the special queue pairs 0 and 1.
pub const FIRST_SLOT: u8 = 1;
/// Highest slot. Slot 255 would own the multicast queue pair number.
pub const LAST_SLOT: u8 = 254;

/// The byte that guards the roster; slots lock the byte of their own number.
const ROSTER_BYTE: u8 = 0;
const ROSTER_FILE: &str = "roster";
const LOCK_FILE: &str = "lock";
/// How often a process tries to enter a registry that others remove meanwhile.
const ATTEMPTS: u32 = 100;
/// Far longer than a running process holds the roster. After this time its holder is stopped by a signal or a debugger.
const ROSTER_PATIENCE: Duration = Duration::from_secs(5);

/// Why the registry cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// A system call failed.
    #[error("{}: {what}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The error of the kernel.
        source: io::Error,
    },
    /// Every slot is taken.
    #[error("all 254 process slots in {} are in use: end some programs that use ferroce", path.display())]
    Full {
        /// The directory.
        path: PathBuf,
    },
    /// Another process does not release the roster.
    #[error("{}: another process has held the lock for five seconds; is it stopped?", path.display())]
    Stuck {
        /// The directory.
        path: PathBuf,
    },
}

/// Membership of the processes that share a host: holds one slot until it is dropped.
#[derive(Debug)]
pub struct Registry {
    directory: PathBuf,
    locks: ByteLocks,
    slot: u8,
}

impl Registry {
    /// Opens the registry of this user and network namespace under `base` (see [`default_base`]) and claims a slot.
    pub fn open(base: &Path) -> Result<Registry, RegistryError> {
        for _ in 0..ATTEMPTS {
            match Registry::enter(base) {
                Ok(Some(registry)) => {
                    sweep::sweep_registries(&registry.directory);
                    return Ok(registry);
                }
                Ok(None) => {}
                // Another process has removed it as abandoned.
                Err(RegistryError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Err(io_error(base, "enter a registry before it is removed", io::ErrorKind::NotFound.into()))
    }

    /// Claims a slot in the one directory of this user; `None` if the directories changed meanwhile.
    ///
    /// Locks all directories and then lists them once more. A process that creates another one afterwards finds this process in
    /// the chosen one. A directory that was created earlier is in the list. So no two directories are in use at the same time.
    fn enter(base: &Path) -> Result<Option<Registry>, RegistryError> {
        let mut directories = own_directories(base)?;
        if directories.is_empty() {
            make_directory(base)?;
            directories = own_directories(base)?;
        }
        let mut found = directories.iter().map(|path| Registry::at(path)).collect::<Result<Vec<_>, _>>()?;
        // Every process locks them in the order of their names, so no two processes wait for each other.
        let locked =
            found.iter().map(|registry| registry.lock(ROSTER_PATIENCE)).collect::<Result<Vec<_>, _>>()?;
        let is_there = |registry: &Registry| registry.locks.is_at(&registry.directory.join(LOCK_FILE));
        if found.is_empty() || own_directories(base)? != directories || !found.iter().all(is_there) {
            return Ok(None);
        }
        let in_use =
            if found.len() > 1 { found.iter().position(|registry| is_in_use(&registry.locks)) } else { None };
        let chosen = in_use.unwrap_or(0);
        let slot = found[chosen].change(Registry::claim)??;
        drop(locked);
        let registry = Registry { slot, ..found.swap_remove(chosen) };
        Ports::open(registry.directory.clone(), registry.slot)?.release_inherited()?;
        Ok(Some(registry))
    }

    /// The registry in `directory`, without a slot.
    fn at(directory: &Path) -> Result<Registry, RegistryError> {
        let locks = ByteLocks::open(&directory.join(LOCK_FILE))
            .map_err(|source| io_error(directory, "open the lock file", source))?;
        Ok(Registry { directory: directory.to_path_buf(), locks, slot: 0 })
    }

    /// The slot of this process.
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// The directory that only this user may enter.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The Unix socket on which the process in `slot` receives forwarded packets.
    pub fn socket_path(&self, slot: u8) -> PathBuf {
        self.directory.join(format!("slot-{slot}.sock"))
    }

    /// Whether some process holds `slot`.
    pub fn is_alive(&self, slot: u8) -> bool {
        slot == self.slot || self.locks.is_held(slot).unwrap_or(true)
    }

    /// How many slots are held.
    pub fn slots_held(&self) -> usize {
        (FIRST_SLOT..=LAST_SLOT).filter(|&slot| self.is_alive(slot)).count()
    }

    /// Runs `change` on the roster under its lock, and stores the result.
    pub fn update<T>(&self, change: impl FnOnce(&Registry, &mut Roster) -> T) -> Result<T, RegistryError> {
        let _locked = self.lock(ROSTER_PATIENCE)?;
        self.change(change)
    }

    /// Like [`Self::update`], but gives up with `None` after `max_wait`: for the receive path.
    pub fn try_update<T>(
        &self,
        max_wait: Duration,
        change: impl FnOnce(&Registry, &mut Roster) -> T,
    ) -> Result<Option<T>, RegistryError> {
        match self.lock(max_wait) {
            Ok(_locked) => self.change(change).map(Some),
            Err(RegistryError::Stuck { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn lock(&self, max_wait: Duration) -> Result<RosterLock<'_>, RegistryError> {
        let start = Instant::now();
        let failed = |e| io_error(&self.directory, "lock the roster", e);
        while !self.locks.try_lock(ROSTER_BYTE).map_err(failed)? {
            if start.elapsed() > max_wait {
                return Err(RegistryError::Stuck { path: self.directory.clone() });
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(RosterLock(&self.locks))
    }

    /// Runs `change` on the roster and stores the result. The caller holds the lock.
    fn change<T>(&self, change: impl FnOnce(&Registry, &mut Roster) -> T) -> Result<T, RegistryError> {
        let mut roster = self.load();
        let before = roster.clone();
        let result = change(self, &mut roster);
        if roster != before {
            self.store(&roster).map_err(|e| io_error(&self.directory, "write the roster", e))?;
        }
        Ok(result)
    }

    /// Reads the roster. An unreadable one counts as empty: its writer may have died at any instruction.
    fn load(&self) -> Roster {
        let text = std::fs::read_to_string(self.directory.join(ROSTER_FILE)).unwrap_or_default();
        Roster::parse(&text).unwrap_or_else(Roster::new)
    }

    fn store(&self, roster: &Roster) -> io::Result<()> {
        let fresh = self.directory.join("roster.new");
        std::fs::write(&fresh, roster.to_string())?;
        std::fs::set_permissions(&fresh, PermissionsExt::from_mode(0o600))?;
        std::fs::rename(&fresh, self.directory.join(ROSTER_FILE))
    }

    /// Claims the next free slot in cyclic order and not the lowest one: packets in flight may still name a slot that was just
    /// freed.
    fn claim(&self, roster: &mut Roster) -> Result<u8, RegistryError> {
        roster.prune_all(|slot| self.locks.is_held(slot).unwrap_or(true));
        sweep::sweep_sockets(&self.directory, &self.locks);
        let count = u16::from(LAST_SLOT - FIRST_SLOT) + 1;
        for step in 0..count {
            let slot = FIRST_SLOT + ((u16::from(roster.last_slot) + step) % count) as u8;
            match self.locks.try_lock(slot) {
                Ok(true) => {
                    roster.last_slot = slot;
                    roster.forget(slot);
                    return Ok(slot);
                }
                Ok(false) => {}
                Err(source) => return Err(io_error(&self.directory, "claim a slot", source)),
            }
        }
        Err(RegistryError::Full { path: self.directory.clone() })
    }
}

/// The directory that processes of this user and network namespace use. It may be missing. Claims no slot in it.
pub fn own_directory() -> Result<PathBuf, RegistryError> {
    let base = default_base();
    let directories = own_directories(&base)?;
    let is_taken = |path: &&PathBuf| Registry::at(path).is_ok_and(|registry| is_in_use(&registry.locks));
    let in_use = directories.iter().find(is_taken);
    Ok(in_use.cloned().unwrap_or_else(|| plain_directory(&base)))
}

/// Whether another process has a slot in the registry of these locks.
fn is_in_use(locks: &ByteLocks) -> bool {
    locks.is_any_held(FIRST_SLOT..=LAST_SLOT).unwrap_or(true)
}

/// Unlocks the roster on drop, also after a panic. Closing the file is not enough if the process has forked meanwhile.
struct RosterLock<'a>(&'a ByteLocks);

impl Drop for RosterLock<'_> {
    fn drop(&mut self) {
        self.0.unlock(ROSTER_BYTE);
    }
}

pub(crate) fn io_error(path: &Path, what: &'static str, source: io::Error) -> RegistryError {
    RegistryError::Io { path: path.to_path_buf(), what, source }
}
