//! Namespaces and TUN devices: the system calls that make a host.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

/// The device of every host.
pub(super) const INTERFACE: &str = "fab0";
const TUN: &str = "/dev/net/tun";
/// Packets that wait for the fabric. A TUN device gives no back-pressure to the sockets of a host, so the kernel drops further ones.
const QUEUE_PACKETS: libc::c_int = 10_000;
const PREFIX_V6: u32 = 64;

/// A step of making a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Thread,
    Namespaces,
    HostName,
    Files,
    OpenTun,
    MakeTun,
    Address,
    Init,
    Proc,
}

/// The step that failed, and the error of the system.
pub(super) type Refused = (Step, io::Error);

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Step::Thread => "starting its thread",
            Step::Namespaces => "making its namespaces",
            Step::HostName => "setting its name",
            Step::Files => "mounting its files",
            Step::OpenTun => "opening /dev/net/tun",
            Step::MakeTun => "making its TUN device",
            Step::Address => "setting the address of its TUN device",
            Step::Init => "starting its first process",
            Step::Proc => "mounting its /proc",
        })
    }
}

impl Step {
    /// What the user can do about an error of this step.
    pub(super) fn advice(self, error: &io::Error) -> &'static str {
        match (self, error.raw_os_error()) {
            (_, Some(libc::EMFILE | libc::ENFILE)) => {
                "Raise the limit of open files (ulimit -n), or use fewer hosts"
            }
            (_, Some(libc::ENOMEM | libc::EAGAIN)) => "Use fewer hosts, or a machine with more memory",
            (Step::Namespaces, Some(libc::ENOSPC)) => {
                "Raise the limits of namespaces: sysctl user.max_net_namespaces, user.max_mnt_namespaces and user.max_pid_namespaces"
            }
            (Step::Proc, Some(libc::EPERM)) => {
                "This container hides parts of /proc, so no other may be mounted; run it outside, or in one with --security-opt systempaths=unconfined (podman: --security-opt unmask=ALL)"
            }
            (Step::OpenTun, Some(libc::EACCES | libc::EPERM)) => {
                "Make it accessible: chmod 666 /dev/net/tun; a container needs --device /dev/net/tun"
            }
            (Step::OpenTun | Step::MakeTun, Some(libc::ENOENT | libc::ENODEV | libc::ENXIO)) => {
                "Load the driver: modprobe tun; a container needs --device /dev/net/tun"
            }
            _ => {
                "Some containers forbid namespaces, mounts and devices; run it outside, or in one with --privileged"
            }
        }
    }
}

/// Moves this thread into its own network, mount, host name and IPC namespaces, and its future children into their own PID namespace.
pub(super) fn leave_namespaces() -> io::Result<()> {
    let flags =
        libc::CLONE_NEWNET | libc::CLONE_NEWNS | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC | libc::CLONE_NEWPID;
    // SAFETY: changes only which namespaces this thread is in; it shares none of those with other threads afterwards.
    check(unsafe { libc::unshare(flags) })
}

/// Makes the TUN device of this thread's network namespace.
pub(super) fn open(mtu: u32, address: Ipv4Addr, address_v6: Ipv6Addr) -> Result<OwnedFd, Refused> {
    let tun = File::options().read(true).write(true).open(TUN).map_err(|error| (Step::OpenTun, error))?;
    let mut request = named(INTERFACE);
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request is an `ifreq` of ours, which the kernel reads and fills.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })
        .map_err(|error| (Step::MakeTun, error))?;
    configure(mtu, address, address_v6).map_err(|error| (Step::Address, error))?;
    rustix::io::ioctl_fionbio(&tun, true).map_err(|error| (Step::MakeTun, error.into()))?;
    Ok(tun.into())
}

fn configure(mtu: u32, address: Ipv4Addr, address_v6: Ipv6Addr) -> io::Result<()> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    let set = |name: &str, what: libc::Ioctl, fill: &dyn Fn(&mut libc::ifreq)| {
        let mut request = named(name);
        fill(&mut request);
        // SAFETY: the request is an `ifreq` of ours, which the kernel reads.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw mut request) })
    };
    let up = |name: &str| {
        let mut request = named(name);
        // SAFETY: the request is an `ifreq` of ours, which the kernel fills.
        check(unsafe {
            libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as libc::Ioctl, &raw mut request)
        })?;
        // SAFETY: the kernel has stored the flags.
        let flags = unsafe { request.ifr_ifru.ifru_flags } | libc::IFF_UP as libc::c_short;
        set(name, libc::SIOCSIFFLAGS as libc::Ioctl, &|r| r.ifr_ifru.ifru_flags = flags)
    };
    up("lo")?;
    set(INTERFACE, libc::SIOCSIFMTU as libc::Ioctl, &|r| r.ifr_ifru.ifru_mtu = mtu as libc::c_int)?;
    let queue =
        set(INTERFACE, libc::SIOCSIFTXQLEN as libc::Ioctl, &|r| r.ifr_ifru.ifru_metric = QUEUE_PACKETS);
    // Only root of the machine may change it, also in a network of its own. The usual queue has 500 packets.
    queue.or_else(|error| if error.raw_os_error() == Some(libc::EPERM) { Ok(()) } else { Err(error) })?;
    set(INTERFACE, libc::SIOCSIFADDR as libc::Ioctl, &|r| r.ifr_ifru.ifru_addr = inet(address))?;
    let mask = Ipv4Addr::new(255, 255, 255, 0);
    set(INTERFACE, libc::SIOCSIFNETMASK as libc::Ioctl, &|r| r.ifr_ifru.ifru_netmask = inet(mask))?;
    up(INTERFACE)?;
    // A kernel without IPv6 is no reason to stop.
    let _ = add_v6(address_v6);
    Ok(())
}

fn add_v6(address: Ipv6Addr) -> io::Result<()> {
    let socket = std::net::UdpSocket::bind("[::]:0")?;
    let mut request = named(INTERFACE);
    // SAFETY: the request is an `ifreq` of ours, which the kernel fills.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFINDEX as libc::Ioctl, &raw mut request) })?;
    let mut request = libc::in6_ifreq {
        ifr6_addr: libc::in6_addr { s6_addr: address.octets() },
        ifr6_prefixlen: PREFIX_V6,
        // SAFETY: the kernel has stored the index.
        ifr6_ifindex: unsafe { request.ifr_ifru.ifru_ifindex },
    };
    // SAFETY: the request is an `in6_ifreq` of ours, which the kernel reads.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFADDR as libc::Ioctl, &raw mut request) })
}

/// A request for an interface.
fn named(name: &str) -> libc::ifreq {
    // SAFETY: all-zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from as libc::c_char;
    }
    request
}

fn inet(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    for (to, from) in data[2..6].iter_mut().zip(address.octets()) {
        *to = from as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data }
}

fn check(returned: libc::c_int) -> io::Result<()> {
    match returned {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_follows_the_step_and_the_error() {
        let advice = |step: Step, code| step.advice(&io::Error::from_raw_os_error(code));
        assert!(advice(Step::OpenTun, libc::EACCES).contains("chmod"));
        assert!(advice(Step::OpenTun, libc::ENOENT).contains("modprobe"));
        assert!(advice(Step::OpenTun, libc::EMFILE).contains("ulimit"));
        assert!(advice(Step::Namespaces, libc::ENOSPC).contains("max_net_namespaces"));
        assert!(advice(Step::Files, libc::EPERM).contains("--privileged"));
        assert!(advice(Step::Proc, libc::EPERM).contains("systempaths"));
    }
}
