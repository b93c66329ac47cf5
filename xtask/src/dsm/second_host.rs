//! A second host for `ferroce dsm run --hosts`: a network namespace, connected to the worker's by a veth pair, and a replacement of ssh
//! that starts commands there.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::process::succeed;

/// Addresses of the veth pair, from a range reserved for tests.
const HERE: &str = "198.18.7.1";
const THERE: &str = "198.18.7.2";
const NETWORK: &str = "198.18.7.0/24";

/// Options of `tc` that limit the rate. The burst must be longer than a segmentation batch.
const NARROW: &str = "rate 1gbit burst 128k latency 50ms";

/// The second host. Dropping it removes the namespace.
pub(super) struct SecondHost {
    /// A process that keeps the namespace alive. Its input is a pipe whose only other end is here, so it ends with this process.
    keeper: Child,
    ssh: PathBuf,
    hosts: PathBuf,
}

impl SecondHost {
    /// Creates the namespace and the veth pair; files go to `folder`.
    fn make(folder: &Path) -> Result<SecondHost, String> {
        let keeper = Command::new("unshare")
            .args(["-n", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("unshare did not start: {error}"))?;
        let id = keeper.id();
        let host = SecondHost { keeper, ssh: folder.join("ssh-stand-in"), hosts: folder.join("two-hosts") };
        let script =
            format!("#!/bin/sh\nfor word; do line=$word; done\nexec nsenter -t {id} -n sh -c \"$line\"\n");
        write(&host.ssh, &script)?;
        host.add_veth()?;
        Ok(host)
    }

    /// The host in `slot`, created on first use.
    pub(super) fn in_slot<'a>(slot: &'a mut Option<Self>, folder: &Path) -> Result<&'a Self, String> {
        if slot.is_none() {
            *slot = Some(SecondHost::make(folder)?);
        }
        slot.as_ref().ok_or_else(|| "no second host".to_owned())
    }

    /// Connects both namespaces by a veth pair. The keeper enters its namespace a moment after its start, so the script waits for it.
    fn add_veth(&self) -> Result<(), String> {
        let id = self.keeper.id();
        let script = format!(
            "set -e
            while test \"$(readlink /proc/{id}/ns/net)\" = \"$(readlink /proc/self/ns/net)\"; do sleep 0.01; done
            ip link add dsm0 type veth peer name dsm1 netns {id}
            ip addr add {HERE}/24 dev dsm0
            ip link set dsm0 mtu 9000 up
            nsenter -t {id} -n sh -ec '
                ip link set lo up
                ip addr add {THERE}/24 dev dsm1
                ip link set dsm1 mtu 9000 up'"
        );
        succeed(Command::new("timeout").args(["10", "sh", "-c", &script]))
            .map_err(|why| format!("no second host: {why}"))
    }

    /// Options of `ferroce dsm run` that start half of the processes on this host.
    pub(super) fn options(&self, processes: u32) -> Result<Vec<String>, String> {
        let half = processes.div_ceil(2);
        write(&self.hosts, &format!("localhost {half}\n{THERE} {half}\n"))?;
        let ssh = format!("sh {}", self.ssh.display());
        let hosts = self.hosts.display().to_string();
        Ok(vec!["--hosts".into(), hosts, "--meet".into(), HERE.into(), "--ssh".into(), ssh])
    }

    /// Arguments of the example `figures` that start its second process on this host.
    pub(super) fn options_of_figures(&self) -> Vec<String> {
        let id = self.keeper.id().to_string();
        [HERE, "nsenter", "-t", &id, "-n"].map(str::to_owned).into()
    }

    /// Runs a program while both ends of the veth pair are limited to 1 Gb/s.
    pub(super) fn narrowed(&self, program: &Path) -> Command {
        let id = self.keeper.id();
        let script = format!(
            "there='nsenter -t {id} -n'
            trap 'tc qdisc del dev dsm0 root; $there tc qdisc del dev dsm1 root' EXIT
            tc qdisc replace dev dsm0 root tbf {NARROW} || exit
            $there tc qdisc replace dev dsm1 root tbf {NARROW} || exit
            \"$@\""
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]).arg(program);
        command
    }

    /// Options of mpirun that start one of two processes on this host and keep all its traffic on the veth pair.
    pub(super) fn options_of_mpirun(&self) -> Result<Vec<String>, String> {
        let agent = self.ssh.with_file_name("mpi-stand-in");
        let id = self.keeper.id();
        // mpirun passes the words of the command one by one, after the name of the host.
        let script = format!("#!/bin/sh\nshift\nexec nsenter -t {id} -n sh -c \"$*\"\n");
        write(&agent, &script)?;
        let mut words = vec!["--host".to_owned(), format!("{HERE}:1,{THERE}:1")];
        let settings = [
            ("plm_rsh_agent", format!("sh {}", agent.display())),
            ("btl", "self,tcp".to_owned()),
            ("btl_tcp_if_include", NETWORK.to_owned()),
            ("oob_tcp_if_include", NETWORK.to_owned()),
        ];
        for (name, value) in settings {
            words.extend(["--mca".to_owned(), name.to_owned(), value]);
        }
        Ok(words)
    }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

impl Drop for SecondHost {
    fn drop(&mut self) {
        // The kernel removes the namespace and the veth pair with the last process in it.
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
