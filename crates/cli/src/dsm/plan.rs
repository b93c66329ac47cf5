//! Which process is started on which host, and with which environment.

use super::hosts::{self, Host};
use super::options::Run;
use crate::failure::Failure;
use crate::name_of;
use ferroce_dsm::MAX_SIZE;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};

/// Processes without a hosts file and without -n.
const DEFAULT_PROCESSES: u32 = 2;

/// The whole job, before anything has started.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The host of each rank; `None`: this one.
    pub(crate) hosts: Vec<Option<Host>>,
    /// The address of the rendezvous.
    pub(crate) meet: SocketAddr,
    /// Variables of all processes, in addition to those of the rendezvous.
    pub(crate) variables: Vec<(&'static str, String)>,
    /// Notes to print before the job starts.
    pub(crate) notes: Vec<String>,
}

impl Plan {
    /// Builds the plan from the options.
    pub(crate) fn of(args: &Run) -> Result<Plan, Failure> {
        let mut plan = Plan {
            hosts: vec![None; args.processes.unwrap_or(DEFAULT_PROCESSES) as usize],
            meet: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
            variables: Vec::new(),
            notes: Vec::new(),
        };
        if let Some(path) = &args.hosts {
            let list = hosts::read(path)?;
            if list.passwords {
                plan.notes.push(format!(
                    "the passwords in {} are not used: ssh must work without (ssh-copy-id), and they are better removed",
                    path.display()
                ));
            }
            plan.hosts = assign_hosts(&list.hosts, args.processes);
            if plan.size() > MAX_SIZE {
                let (all, path) = (plan.size(), path.display());
                return Err(Failure::usage(format!(
                    "{all} processes of {path} exceed the maximum of a job, {MAX_SIZE}"
                ))
                .advise("Choose the number of processes with -n"));
            }
            plan.variables = hosts::settings_next_to(path)?;
            // A variable of the user has priority over a file.
            plan.variables.retain(|(name, _)| std::env::var_os(name).is_none());
            plan.meet = SocketAddr::new(rendezvous_address(args.meet, &plan.hosts)?, 0);
        }
        if let Some(transport) = args.transport {
            plan.variables.retain(|(name, _)| *name != "FERROCE_DSM_TRANSPORT");
            plan.variables.push(("FERROCE_DSM_TRANSPORT", name_of(transport)));
        }
        if args.stat.is_some() {
            plan.variables.push(("FERROCE_DSM_STAT", "1".to_owned()));
        }
        Ok(plan)
    }

    /// Number of processes.
    pub(crate) fn size(&self) -> u32 {
        self.hosts.len() as u32
    }
}

/// Assigns to each host as many consecutive ranks as its entry names, and starts over at the end of the list.
fn assign_hosts(hosts: &[Host], processes: Option<u32>) -> Vec<Option<Host>> {
    let of_each = hosts.iter().flat_map(|host| {
        let other = (!is_here(host)).then(|| host.clone());
        std::iter::repeat_n(other, host.processes as usize)
    });
    let all: Vec<Option<Host>> = of_each.collect();
    let wanted = processes.map_or(all.len(), |processes| processes as usize);
    all.iter().cycle().take(wanted).cloned().collect()
}

/// Whether processes of this entry need no ssh. An entry with a user or a port needs it: it may be a container.
fn is_here(host: &Host) -> bool {
    host.user.is_none() && host.port.is_none() && is_own_name(&host.name)
}

/// Whether a name is this host.
fn is_own_name(name: &str) -> bool {
    let own = rustix::system::uname();
    name == "localhost"
        || own.nodename().to_str() == Ok(name)
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The first host that is not this machine. An entry with a port of this machine may be a container, which reaches every
/// address of the machine.
fn first_remote(hosts: &[Option<Host>]) -> Option<&Host> {
    let mut others = hosts.iter().flatten();
    others.clone().find(|host| !is_own_name(&host.name)).or_else(|| others.next())
}

/// The address that other hosts use for this one: the source address of packets to the first of them.
fn rendezvous_address(given: Option<IpAddr>, hosts: &[Option<Host>]) -> Result<IpAddr, Failure> {
    if let Some(address) = given {
        return Ok(address);
    }
    let Some(host) = first_remote(hosts) else { return Ok(Ipv4Addr::LOCALHOST.into()) };
    let found = (host.name.as_str(), 9).to_socket_addrs().and_then(|mut all| {
        let target = all.next().ok_or(std::io::ErrorKind::NotFound)?;
        let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        // Connecting a UDP socket sends nothing; it only chooses a route.
        let socket = UdpSocket::bind(any)?;
        socket.connect(target)?;
        Ok(socket.local_addr()?.ip())
    });
    found.map_err(|error| {
        Failure::io(format!("cannot determine the route from {} to this machine", host.name), error)
            .advise("Name an address of this machine that the others reach: --meet ADDRESS")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, processes: u32) -> Host {
        Host { name: name.into(), user: None, port: None, processes }
    }

    #[test]
    fn processes_are_distributed_round_robin() {
        let hosts = [host("localhost", 1), host("far.test", 2)];
        let far = Some(hosts[1].clone());
        assert_eq!(assign_hosts(&hosts, None), [None, far.clone(), far.clone()]);
        assert_eq!(assign_hosts(&hosts, Some(2)), [None, far.clone()]);
        assert_eq!(assign_hosts(&hosts, Some(5)), [None, far.clone(), far.clone(), None, far]);
    }

    #[test]
    fn a_port_or_a_user_of_this_machine_means_ssh() {
        let port = Host { port: Some(2222), ..host("localhost", 1) };
        let user = Host { user: Some("ann".into()), ..host("127.0.0.1", 1) };
        let hosts = [host("localhost", 1), port.clone(), user.clone()];
        assert_eq!(assign_hosts(&hosts, None), [None, Some(port.clone()), Some(user)]);
        let far = Host { port: Some(2222), ..host("far.test", 1) };
        let [port, there] = [port, far.clone()].map(Some);
        let address = rendezvous_address(None, std::slice::from_ref(&port));
        assert!(address.is_ok_and(|address| address.is_loopback()));
        assert_eq!(first_remote(&[port, there]), Some(&far));
    }

    #[test]
    fn this_machine_needs_no_route() {
        assert_eq!(rendezvous_address(None, &[None]), Ok(Ipv4Addr::LOCALHOST.into()));
        let given = "192.0.2.1".parse().expect("an address");
        assert_eq!(rendezvous_address(Some(given), &[Some(host("x", 1))]), Ok(given));
    }
}
