//! Addresses, the port, and what the kernel offers for fast datagrams.

use super::Finding;
use crate::devices::settings;
use crate::sockopt;
use ferroce_nic::link::LinkError;
use ferroce_nic::{Config, Error, GidEntry, Nic};
use rustix::net::{AddressFamily, SocketType};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, UdpSocket};

pub(super) fn check() -> Vec<Finding> {
    let config = match settings() {
        Ok(config) => config,
        Err(failure) => {
            return vec![
                Finding::fails("settings", failure.what())
                    .advise("docs/reference/environment.md lists the values"),
            ];
        }
    };
    let mut findings = match ferroce_nic::gid_table(&config) {
        Ok(gids) => vec![addresses(&gids), ipv6(&gids), port(config)],
        Err(error) => vec![
            Finding::fails("addresses", error.to_string())
                .advise("Name addresses of this machine, or unset FERROCE_ADDR to use all of them"),
        ],
    };
    findings.extend([segmentation(), coalescing(), steering()]);
    findings
}

fn port(config: Config) -> Finding {
    const CHECK: &str = "UDP port 4791";
    match Nic::open(config) {
        Ok(_) => Finding::works(CHECK, "free, or shared with your own processes"),
        Err(Error::Link(LinkError::PortTaken { addr, owner })) => {
            Finding::fails(CHECK, format!("{addr} is taken by {owner}")).advise(
                "End that program, or have it name its addresses (FERROCE_ADDR=127.0.0.1), since one that names none \
                 has all of them; then any other is yours: FERROCE_ADDR=127.0.0.2, or ferroce run --addr 127.0.0.2",
            )
        }
        Err(error) => Finding::fails(CHECK, error.to_string())
            .advise("docs/reference/environment.md lists the variables that change how the device is opened"),
    }
}

fn addresses(gids: &[GidEntry]) -> Finding {
    let usable: Vec<String> = gids
        .iter()
        .filter(|gid| gid.up && !gid.address.is_loopback())
        .map(|gid| gid.address.to_string())
        .collect();
    match (gids.is_empty(), usable.as_slice()) {
        (true, _) => Finding::fails("addresses", "this machine has none that could be a GID")
            .advise("ip link set lo up"),
        (false, []) => {
            Finding::limited("addresses", "only loopback: only programs of this machine can communicate")
        }
        (false, list) => Finding::works("addresses", list.join(", ")),
    }
}

fn ipv6(gids: &[GidEntry]) -> Finding {
    match UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)) {
        Ok(_) => {
            let count = gids.iter().filter(|gid| gid.address.is_ipv6()).count();
            Finding::works("IPv6", format!("{count} of {} GIDs", gids.len()))
        }
        Err(error) => Finding::limited("IPv6", format!("not here ({error}); IPv4 is enough")),
    }
}

/// `works` if the kernel supports it, else what is missing and what that costs.
fn offered(
    check: &'static str,
    tried: std::io::Result<()>,
    works: &str,
    missing: &str,
    cost: &str,
) -> Finding {
    match tried {
        Ok(()) => Finding::works(check, works),
        Err(error) => Finding::limited(check, format!("no {missing}: {error}; {cost}")),
    }
}

fn segmentation() -> Finding {
    let tried = udp_socket().and_then(|socket| sockopt::set_udp_segment(&socket, 1000));
    let works = "segmentation offload (UDP_SEGMENT)";
    offered("sending in batches", tried, works, "UDP_SEGMENT", "large messages cost more time")
}

fn coalescing() -> Finding {
    let tried = udp_socket().and_then(|socket| sockopt::set_udp_gro(&socket));
    let works = "receive offload (UDP_GRO)";
    offered("receiving in batches", tried, works, "UDP_GRO", "large messages cost more time")
}

/// Attaches a BPF program that always selects the first socket: one instruction, return 0.
fn steering() -> Finding {
    let mut code = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 }];
    let program = libc::sock_fprog { len: 1, filter: code.as_mut_ptr() };
    // SAFETY: the structure is plain data, read as the bytes that the kernel expects.
    let bytes = unsafe {
        std::slice::from_raw_parts((&raw const program).cast::<u8>(), size_of::<libc::sock_fprog>())
    };
    // A socket belongs to a reuseport group only if SO_REUSEPORT was set before it was bound.
    let attach = || -> std::io::Result<()> {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        rustix::net::sockopt::set_socket_reuseport(&socket, true)?;
        rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        sockopt::set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, bytes)
    };
    let works = "the kernel steers packets to their process (classic BPF)";
    offered("sharing the port", attach(), works, "BPF steering", "processes forward packets, which is slower")
}

fn udp_socket() -> std::io::Result<UdpSocket> {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
}
