//! The next hop of a path, and whether it answers: a NIC needs its Ethernet address for the packets.

use crate::error::Error;
use ferroce_os::interfaces::open_udp;
use socket2::{Socket, Type};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

/// Linux sends three solicitations, a second apart, to an address that does not answer.
const MAX_WAIT: Duration = Duration::from_secs(5);
const RETRY_EVERY: Duration = Duration::from_millis(5);
/// Time limit of a netlink reply, which normally comes immediately.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The port of the discard service (RFC 863).
const DISCARD: u16 = 9;

/// An entry of the kernel's neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its NUD state.
    state: u16,
    /// Its Ethernet address, if it is known.
    pub mac: Option<[u8; 6]>,
}

impl Neighbour {
    /// The entry of an address on an interface. Sends nothing, so an address that was never used has none.
    pub fn find(if_index: u32, address: IpAddr) -> io::Result<Option<Neighbour>> {
        let header = [family(address), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut found = None;
        query_kernel(libc::RTM_GETNEIGH, libc::NLM_F_DUMP, &header, |kind, body| {
            found = found.or_else(|| entry(body, if_index, address).filter(|_| kind == libc::RTM_NEWNEIGH));
        })?;
        Ok(found)
    }
}

/// Where packets go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NextHop {
    address: IpAddr,
    if_index: u32,
}

impl NextHop {
    /// The next hop of packets from `from`, an address of this host, to `to`.
    fn find(from: Option<IpAddr>, to: IpAddr, scope_id: u32) -> io::Result<Option<NextHop>> {
        let length = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
        let mut request = vec![family(to), length(to), from.map_or(0, length), 0, 0, 0, 0, 0, 0, 0, 0, 0];
        push_attribute(&mut request, libc::RTA_DST, &octets(to));
        from.iter().for_each(|from| push_attribute(&mut request, libc::RTA_SRC, &octets(*from)));
        if matches!(to, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            push_attribute(&mut request, libc::RTA_OIF, &scope_id.to_ne_bytes());
        }
        let mut found = None;
        query_kernel(libc::RTM_GETROUTE, 0, &request, |kind, body| {
            let (mut gateway, mut if_index) = (to, None);
            for (kind, value) in attributes(body.get(12..).unwrap_or_default()) {
                match kind {
                    libc::RTA_GATEWAY => gateway = address_of(value).unwrap_or(to),
                    // Of another IP version: its family, then the address.
                    libc::RTA_VIA => gateway = value.get(2..).and_then(address_of).unwrap_or(to),
                    libc::RTA_OIF => if_index = value.try_into().ok().map(u32::from_ne_bytes),
                    _ => {}
                }
            }
            if let Some(if_index) = if_index.filter(|_| kind == libc::RTM_NEWROUTE) {
                found = Some(NextHop { address: gateway, if_index });
            }
        })?;
        Ok(found)
    }
}

/// Refuses a destination whose next hop does not answer ARP or neighbour solicitations, as Linux does when it resolves the Ethernet address of a
/// RoCE path. Where the table has no entry, the interface has no such addresses. Sends an empty datagram, which goes no further than the next hop.
/// If the kernel does not report its tables (seccomp, a VRF), nothing is refused: the caller has found a route.
pub(crate) fn check_next_hop(
    from: IpAddr,
    to: IpAddr,
    scope_id: u32,
    name_of: impl FnOnce(u32) -> String,
) -> Result<(), Error> {
    let hop = NextHop::find(Some(from), to, scope_id).or_else(|_| NextHop::find(None, to, scope_id));
    let Ok(Some(hop)) = hop else { return Ok(()) };
    let (start, mut has_sent, mut is_resolving) = (Instant::now(), false, false);
    loop {
        let state = Neighbour::find(hop.if_index, hop.address).ok().flatten().map(|entry| entry.state);
        let is_late = start.elapsed() > MAX_WAIT;
        match state {
            None | Some(libc::NUD_NONE | libc::NUD_FAILED) if !has_sent => {
                // An earlier failure may be outdated.
                let _ = send_empty(from, to, scope_id);
                has_sent = true;
            }
            // Only the failure of a resolution that was seen to run counts: a firewall may have dropped the datagram.
            Some(libc::NUD_FAILED) if is_resolving => break,
            Some(libc::NUD_INCOMPLETE) if is_late => break,
            Some(libc::NUD_NONE | libc::NUD_INCOMPLETE | libc::NUD_FAILED) if !is_late => {
                is_resolving |= state == Some(libc::NUD_INCOMPLETE);
                std::thread::sleep(RETRY_EVERY);
            }
            _ => return Ok(()),
        }
    }
    let waited_ms = start.elapsed().as_millis() as u64;
    let interface = name_of(hop.if_index);
    Err(Error::NextHopSilent { to, next_hop: hop.address, interface, waited_ms })
}

fn send_empty(from: IpAddr, to: IpAddr, scope_id: u32) -> io::Result<()> {
    let at = |address: IpAddr, port| match address {
        IpAddr::V4(_) => SocketAddr::new(address, port),
        IpAddr::V6(address) => SocketAddrV6::new(address, port, 0, scope_id).into(),
    };
    let socket = Socket::from(open_udp(to.is_ipv4())?);
    match to {
        IpAddr::V4(_) => socket.set_ttl_v4(1)?,
        IpAddr::V6(_) => socket.set_unicast_hops_v6(1)?,
    }
    socket.bind(&at(from, 0).into())?;
    socket.send_to(&[], &at(to, DISCARD).into()).map(drop)
}

fn family(address: IpAddr) -> u8 {
    (if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn address_of(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(|v4| IpAddr::from(Ipv4Addr::from(v4)));
    v4.or_else(|_| <[u8; 16]>::try_from(octets).map(|v6| Ipv6Addr::from(v6).into())).ok()
}

/// Sends a netlink request for the kernel's tables, and calls `each` with the type and body of each message of the reply.
fn query_kernel(kind: u16, flags: i32, body: &[u8], mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
    let mut socket = Socket::new(libc::AF_NETLINK.into(), Type::RAW, Some(libc::NETLINK_ROUTE.into()))?;
    socket.set_read_timeout(Some(ANSWER_WITHIN))?;
    let mut request = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
    request.extend(kind.to_ne_bytes());
    request.extend(((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
    request.extend([0; 8]);
    request.extend(body);
    socket.send(&request)?;
    let mut answer = vec![0u8; 1 << 16];
    loop {
        let n = socket.read(&mut answer)?;
        let mut rest = &answer[..n];
        let mut is_over = n == 0 || flags & libc::NLM_F_DUMP == 0;
        while let Some((kind, body)) = next_message(&mut rest) {
            match i32::from(kind) {
                libc::NLMSG_DONE => is_over = true,
                libc::NLMSG_ERROR => {
                    let number =
                        body.get(..4).and_then(|bytes| bytes.try_into().ok()).map_or(0, i32::from_ne_bytes);
                    return Err(io::Error::from_raw_os_error(number.saturating_neg()));
                }
                _ => each(kind, body),
            }
        }
        if is_over {
            return Ok(());
        }
    }
}

const HEADER: usize = 16;

/// Takes one message off the front: its type and what follows its header.
fn next_message<'a>(rest: &mut &'a [u8]) -> Option<(u16, &'a [u8])> {
    let len = u32::from_ne_bytes(rest.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(rest.get(4..6)?.try_into().ok()?);
    let body = rest.get(HEADER..len)?;
    *rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    Some((kind, body))
}

/// The entry of the table, if it is the one for this address.
fn entry(body: &[u8], if_index: u32, address: IpAddr) -> Option<Neighbour> {
    let (fixed, rest) = body.split_at_checked(12)?;
    if u32::from_ne_bytes(fixed[4..8].try_into().ok()?) != if_index {
        return None;
    }
    let (mut is_it, mut mac) = (false, None);
    for (kind, value) in attributes(rest) {
        match kind {
            libc::NDA_DST => is_it = value == octets(address),
            libc::NDA_LLADDR => mac = value.try_into().ok(),
            _ => {}
        }
    }
    is_it.then(|| Neighbour { state: u16::from_ne_bytes([fixed[8], fixed[9]]), mac })
}

/// The attributes of a message: type and value.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head = rest.get(..4)?;
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = rest.get(4..len)?;
        let kind = u16::from_ne_bytes([head[2], head[3]]);
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

fn push_attribute(request: &mut Vec<u8>, kind: u16, value: &[u8]) {
    request.extend((4 + value.len() as u16).to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_its_own_next_hop() {
        let here = IpAddr::from([127, 0, 0, 1]);
        let hop = NextHop::find(Some(here), here, 0).expect("a route").expect("an interface");
        assert_eq!(hop.address, here);
        assert_eq!(Neighbour::find(hop.if_index, here).expect("a table"), None);
    }

    #[test]
    fn truncated_messages_of_the_kernel_end_the_walk() {
        assert_eq!(attributes(&[]).count(), 0);
        assert_eq!(attributes(&[3, 0, 1, 0]).count(), 0, "shorter than its own header");
        assert_eq!(attributes(&[9, 0, 1, 0, 7]).count(), 0, "longer than the message");
        assert_eq!(attributes(&[5, 0, 1, 0, 7]).collect::<Vec<_>>(), [(1, &[7u8][..])]);
        let mut rest: &[u8] = &[15, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(next_message(&mut rest), None, "shorter than its header");
        assert_eq!(entry(&[0; 11], 0, IpAddr::from([0; 4])), None);
    }
}
