//! Makes the kernel drop packets to multicast groups that come from certain sockets of this host.
//!
//! This is an optimisation: such packets neither wake the process nor fill the socket. The caller drops those that still arrive.

use super::UdpLink;
use ferroce_proto::Gid;
use socket2::SockFilter;

/// A socket that packets come from: its address, zero for any, and its port.
pub(crate) type Origin = (Gid, u16);

/// Most origins in one filter, because every packet runs through the filter.
const MAX_ORIGINS: usize = 64;

/// Offsets from here on count from the IP header (`SKF_NET_OFF`); others count from the UDP header.
const IP_HEADER: u32 = -0x10_0000_i32 as u32;
const SPORT_AT: u32 = 0;
const IPV4_SOURCE_AT: u32 = IP_HEADER.wrapping_add(12);
const IPV6_SOURCE_AT: u32 = IP_HEADER.wrapping_add(8);

const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const JUMP_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
const DROP: u32 = 0;
const KEEP: u32 = u32::MAX;

impl UdpLink {
    /// Makes the kernel drop packets from these sockets to the groups for which `counts` returns `true`. This replaces the origins
    /// of earlier calls.
    pub(crate) fn ignore_in_groups(&self, origins: &[Origin], counts: impl Fn(Gid) -> bool) {
        // Another thread joins or leaves a group. The next call tries again.
        let Some(mut receiver) = self.receiver.try_lock() else { return };
        for membership in receiver.memberships.iter_mut().filter(|m| counts(m.group)) {
            if membership.ignored != origins {
                let program = program(origins, membership.group.to_ipv4().is_some());
                let attached = membership.sockets.iter().all(|socket| socket.attach_filter(&program).is_ok());
                // Without the filter the packets are delivered.
                membership.ignored = if attached { origins.to_vec() } else { Vec::new() };
            }
        }
    }
}

fn program(origins: &[Origin], is_ipv4: bool) -> Vec<SockFilter> {
    let is_of_kind = |gid: Gid| gid == Gid::ZERO || gid.to_ipv4().is_some() == is_ipv4;
    let mut program = Vec::new();
    for &(gid, port) in origins.iter().filter(|(gid, _)| is_of_kind(*gid)).take(MAX_ORIGINS) {
        let mut tests = vec![(LOAD_HALF, SPORT_AT, u32::from(port))];
        if let Some(v4) = gid.to_ipv4() {
            tests.push((LOAD_WORD, IPV4_SOURCE_AT, v4.to_bits()));
        } else if gid != Gid::ZERO {
            let words =
                gid.0.chunks_exact(4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
            tests.extend(
                (0..4).zip(words).map(|(n, word)| (LOAD_WORD, IPV6_SOURCE_AT.wrapping_add(4 * n), word)),
            );
        }
        for (index, &(load, at, value)) in tests.iter().enumerate() {
            // To the next origin: over the tests that are left, two steps each, and over the end.
            let otherwise = 2 * (tests.len() - index - 1) + 1;
            program.push(step(load, at, 0));
            program.push(step(JUMP_EQUAL, value, otherwise as u8));
        }
        program.push(step(RETURN, DROP, 0));
    }
    program.push(step(RETURN, KEEP, 0));
    program
}

fn step(code: u32, k: u32, if_unequal: u8) -> SockFilter {
    SockFilter::new(code as u16, 0, if_unequal, k)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{SocketAddr, UdpSocket};

    /// Which of these senders a socket with the filter receives from.
    fn heard(host: &str, sockets: &[UdpSocket], ignored: &[Origin]) -> Vec<usize> {
        let receiver = UdpSocket::bind((host, 0)).unwrap();
        let to = receiver.local_addr().unwrap();
        let program = program(ignored, to.is_ipv4());
        socket2::SockRef::from(&receiver).attach_filter(&program).unwrap();
        for (number, socket) in sockets.iter().enumerate() {
            socket.send_to(&[number as u8], to).unwrap();
        }
        receiver.set_nonblocking(true).unwrap();
        let mut byte = [0];
        std::iter::from_fn(|| receiver.recv(&mut byte).ok().map(|_| byte[0].into())).collect()
    }

    #[test]
    fn only_what_is_named_is_dropped() {
        for (host, other_host) in [("127.0.0.1", "127.0.0.2"), ("::1", "::2")] {
            let Ok(first) = UdpSocket::bind((host, 0)) else {
                return println!("SKIPPED: this machine has no {host}");
            };
            let sockets = [first, UdpSocket::bind((host, 0)).unwrap(), UdpSocket::bind((host, 0)).unwrap()];
            let origin = |n: usize| match sockets[n].local_addr().unwrap() {
                address @ (SocketAddr::V4(_) | SocketAddr::V6(_)) => {
                    (Gid::from_ip(address.ip()), address.port())
                }
            };
            let elsewhere = (Gid::from_ip(other_host.parse().unwrap()), origin(0).1);
            let anywhere = (Gid::ZERO, origin(2).1);
            assert_eq!(heard(host, &sockets, &[]), [0, 1, 2]);
            assert_eq!(heard(host, &sockets, &[elsewhere]), [0, 1, 2], "another address");
            assert_eq!(heard(host, &sockets, &[elsewhere, origin(1)]), [0, 2]);
            assert_eq!(heard(host, &sockets, &[origin(1), elsewhere, anywhere, origin(0)]), [] as [usize; 0]);
            let many: Vec<Origin> = (0..200).map(|n| (origin(0).0, n + 1)).collect();
            assert_eq!(heard(host, &sockets, &many), [0, 1, 2]);
        }
    }
}
