//! Jobs that a foreign launcher starts: mpirun, srun, mpiexec.
//!
//! A foreign launcher provides rank and size, but no rendezvous. Process 0 runs one, and writes its address and key
//! into a file that only this user can read. The launcher's name for the job is part of the file name. All processes
//! must have the same folder, so this works on one host; use `ferroce dsm run --hosts` for several.
//!
//! Process 0 holds a lock on the file. A file without it was left by a killed job whose name another job may get, because
//! launchers make names of process IDs.

use super::server::{Departure, Rendezvous};
use crate::error::Error;
use crate::settings::Settings;
use ferroce_os::thread::spawn;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum time until process 0 publishes the rendezvous.
const MAX_WAIT: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(10);

/// Variables of each launcher: rank, size, and the name of the job, if it has one. A Slurm step is recognised by a
/// variable that batch scripts do not have; a program that a batch script starts without srun is a job of one.
const LAUNCHERS: [(&str, &str, &[&str]); 3] = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"]),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", &["SLURM_JOB_ID", "SLURM_STEP_ID"]),
    ("PMI_RANK", "PMI_SIZE", &["PMI_JOBID"]),
];

/// Rank, size and job name from a foreign launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignJob {
    /// Number of this process.
    pub rank: u32,
    /// Number of processes.
    pub size: u32,
    /// The same for all processes of the job, and for no other job of this user.
    pub name: String,
}

impl ForeignJob {
    /// Reads the environment. If the launcher gives the job no name, `parent` does: it is the same in all processes.
    pub(crate) fn of(variable: impl Fn(&str) -> Option<String>, parent: u32) -> Option<Self> {
        LAUNCHERS.iter().find_map(|(rank, size, names)| {
            let rank = variable(rank)?.parse().ok()?;
            let size = variable(size)?.parse().ok()?;
            let words: Vec<String> = names.iter().filter_map(|name| variable(name)).collect();
            let name = if words.is_empty() { format!("parent-{parent}") } else { words.join("-") };
            Some(Self { rank, size, name })
        })
    }

    fn file(&self) -> PathBuf {
        let folder = ferroce_os::env::var_os("XDG_RUNTIME_DIR").filter(|folder| Path::new(folder).is_dir());
        let folder = folder.map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        folder.join(format!(
            "ferroce-dsm-{}-{}",
            own_user(),
            self.name.chars().map(plain).collect::<String>()
        ))
    }
}

/// The current user: the owner of our own entry in /proc.
fn own_user() -> u32 {
    std::fs::metadata("/proc/self").map_or(0, |entry| entry.uid())
}

/// The rendezvous that this process runs for the job.
#[derive(Debug)]
pub(crate) struct Kept {
    file: PathBuf,
    /// The file, locked.
    _locked: File,
    server: Option<JoinHandle<Departure>>,
}

impl Kept {
    /// Removes the file. All processes have joined.
    pub(crate) fn met(&self) {
        let _ = std::fs::remove_file(&self.file);
    }

    /// Waits until the others have left, because the rendezvous must stay open for them.
    pub(crate) fn finish(&mut self) {
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

/// Fills in the address of the rendezvous; process 0 creates it.
pub(crate) fn arrange(settings: &mut Settings) -> Result<Option<Kept>, Error> {
    let Some(job) = settings.foreign.clone().filter(|_| settings.meet.is_none()) else { return Ok(None) };
    let file = job.file();
    let failed = |source| Error::Meet { at: file.display().to_string(), source };
    let (kept, text) = match job.rank {
        0 => {
            let meeting = Rendezvous::bind(job.size)?;
            let text = format!("{} {}", meeting.address(), meeting.key);
            let locked = publish(&file, &text).map_err(failed)?;
            let server = spawn("ferroce-dsm-host", move || meeting.run()).map_err(failed)?;
            (Some(Kept { file: file.clone(), _locked: locked, server: Some(server) }), text)
        }
        _ => (None, await_text(&file).map_err(failed)?),
    };
    let (address, key) = text.trim().split_once(' ').unwrap_or_default();
    settings.meet = Some(address.parse().map_err(|_| failed(io::ErrorKind::InvalidData.into()))?);
    settings.key = key.to_owned();
    Ok(kept)
}

/// Writes the file under another name first and renames it, so that no process reads half of it. The lock ends with the returned file.
fn publish(file: &Path, text: &str) -> io::Result<File> {
    let fresh = file.with_extension("new");
    for old in [file, &fresh] {
        match std::fs::remove_file(old) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let mut written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    written.lock()?;
    written.write_all(text.as_bytes())?;
    std::fs::rename(&fresh, file)?;
    Ok(written)
}

/// The text that a running process 0 has published, if any.
fn published(file: &Path) -> io::Result<Option<String>> {
    // A file of another user in /tmp is not from our process 0.
    if !std::fs::symlink_metadata(file).is_ok_and(|entry| entry.is_file() && entry.uid() == own_user()) {
        return Ok(None);
    }
    let opened = match File::open(file) {
        // Process 0 has just removed the old one.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    match opened.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => io::read_to_string(opened).map(Some),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn await_text(file: &Path) -> io::Result<String> {
    let started = Instant::now();
    loop {
        if let Some(text) = published(file)? {
            return Ok(text);
        }
        if started.elapsed() > MAX_WAIT {
            let why = "no running process 0 wrote this file; below another launcher all processes must be on one machine";
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        std::thread::sleep(TICK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Option<ForeignJob> {
        let find = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        ForeignJob::of(find, 77)
    }

    #[test]
    fn launchers_are_known_by_their_variables() {
        let job = |rank, size, name: &str| Some(ForeignJob { rank, size, name: name.into() });
        let ompi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4"), ("PMIX_NAMESPACE", "x@1")];
        assert_eq!(of(&ompi), job(1, 4, "x@1"));
        assert_eq!(of(&ompi[..2]), job(1, 4, "parent-77"));
        let slurm = [("SLURM_PROCID", "0"), ("SLURM_JOB_ID", "9"), ("SLURM_STEP_ID", "2")];
        assert_eq!(of(&slurm), None, "a batch script is no step");
        let step = [&slurm[..], &[("SLURM_STEP_NUM_TASKS", "8")]].concat();
        assert_eq!(of(&step), job(0, 8, "9-2"));
        assert_eq!(of(&[("PMI_RANK", "3"), ("PMI_SIZE", "4")]), job(3, 4, "parent-77"));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn a_file_is_published_anew_and_an_abandoned_one_is_not_read() {
        let file = std::env::temp_dir().join(format!("ferroce-dsm-test-{}", std::process::id()));
        for text in ["first", "second"] {
            let locked = publish(&file, text).expect("a file of ours");
            assert_eq!(await_text(&file).expect("it is there"), text);
            // As if process 0 were killed.
            drop(locked);
            assert_eq!(published(&file).expect("a file of ours"), None);
        }
        std::fs::remove_file(&file).expect("our own file");
    }
}
