//! Foreign launchers: an unmodified mpirun, and srun with a Slurm cluster of one node that exists for the tests.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::worker::SKIPPED;
use crate::tools::which;

/// The address of the worker's interface: Slurm resolves no names on a machine with only loopback.
const ADDRESS: &str = "198.18.0.1";
/// Time limit for the node of the cluster to report.
const MAX_WAIT: Duration = Duration::from_secs(30);

fn needs(programs: &[&str], packages: &str) -> Result<(), String> {
    match programs.iter().find(|program| which(program).is_none()) {
        Some(missing) => Err(format!("{SKIPPED}{missing} is missing: apt-get install {packages}")),
        None => Ok(()),
    }
}

/// An mpirun command with this number of processes; the caller appends the program.
pub(super) fn mpirun(processes: u32) -> Result<Command, String> {
    needs(&["mpirun"], "openmpi-bin")?;
    let mut command = mpirun_as_root();
    command.args(["-n", &processes.to_string(), "--oversubscribe", "--bind-to", "none"]);
    Ok(command)
}

/// mpirun, which refuses to run as root otherwise.
pub(super) fn mpirun_as_root() -> Command {
    let mut command = Command::new("mpirun");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command
}

/// A Slurm cluster on this machine. Dropping it ends the cluster.
pub(super) struct Slurm {
    daemons: Vec<Child>,
    configuration: PathBuf,
}

impl Slurm {
    /// Starts a cluster with all its files in a folder below `folder`, and waits until its node is idle.
    pub(super) fn start(folder: &Path) -> Result<Slurm, String> {
        needs(&["slurmctld", "slurmd", "srun", "sinfo"], "slurmctld slurmd slurm-client")?;
        // Slurm requires real root: root of a user namespace is not enough.
        let users = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        if !users.contains("4294967295") {
            return Err(format!("{SKIPPED}Slurm's daemons want to be root"));
        }
        let folder = folder.join("slurm");
        // Removes the state of an earlier cluster.
        let _ = std::fs::remove_dir_all(&folder);
        let wrong = |error: std::io::Error| format!("{}: {error}", folder.display());
        std::fs::create_dir_all(folder.join("state")).map_err(wrong)?;
        std::fs::create_dir_all(folder.join("spool")).map_err(wrong)?;
        let configuration = folder.join("slurm.conf");
        std::fs::write(&configuration, text(&folder)?).map_err(wrong)?;
        let mut slurm = Slurm { daemons: Vec::new(), configuration };
        for daemon in ["slurmctld", "slurmd"] {
            // slurmd does not start without control groups, although its configuration uses none. The worker's /sys has none,
            // so slurmd runs in the mount namespace of the worker's parent.
            let mut command = Command::new("nsenter");
            let parent = std::os::unix::process::parent_id().to_string();
            command.args(["-t", &parent, "-m", daemon, "-D"]).env("SLURM_CONF", &slurm.configuration);
            let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            slurm.daemons.push(quiet.spawn().map_err(|error| format!("{daemon}: {error}"))?);
        }
        slurm.wait_until_idle()?;
        Ok(slurm)
    }

    fn wait_until_idle(&mut self) -> Result<(), String> {
        let started = Instant::now();
        while started.elapsed() < MAX_WAIT
            && self.daemons.iter_mut().all(|daemon| matches!(daemon.try_wait(), Ok(None)))
        {
            let mut command = Command::new("sinfo");
            command.args(["-h", "-o", "%t"]).env("SLURM_CONF", &self.configuration);
            let output = command.output().map_err(|error| format!("sinfo: {error}"))?;
            if output.stdout.starts_with(b"idle") {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(format!(
            "the node of Slurm did not come up; see {}",
            self.configuration.with_file_name("").display()
        ))
    }

    /// An srun command with this number of processes; the caller appends the program.
    pub(super) fn srun(&self, processes: u32) -> Command {
        let mut command = Command::new("srun");
        command.args(["-n", &processes.to_string(), "--overcommit"]).env("SLURM_CONF", &self.configuration);
        command
    }
}

/// The settings: no users, no accounting, no control groups.
fn text(folder: &Path) -> Result<String, String> {
    let name = Command::new("hostname").arg("-s").output().map_err(|error| format!("hostname: {error}"))?;
    let name = String::from_utf8_lossy(&name.stdout).trim().to_owned();
    let at = |file: &str| folder.join(file).display().to_string();
    Ok(format!(
        "ClusterName=ferroce\nSlurmctldHost={name}({ADDRESS})\nSlurmUser=root\nAuthType=auth/none\nCredType=cred/none\n\
        ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/linear\nMpiDefault=none\nReturnToService=2\n\
        SlurmctldPidFile={}\nSlurmdPidFile={}\nSlurmctldLogFile={}\nSlurmdLogFile={}\nStateSaveLocation={}\nSlurmdSpoolDir={}\n\
        NodeName={name} NodeAddr={ADDRESS} CPUs=1 State=UNKNOWN\n\
        PartitionName=all Nodes={name} Default=YES State=UP OverSubscribe=FORCE:8\n",
        at("controller.pid"),
        at("node.pid"),
        at("controller.log"),
        at("node.log"),
        at("state"),
        at("spool"),
    ))
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}
