//! The direction of a starting PSN, against bytes that a kernel sent.
//!
//! Each end announces the first sequence number that it expects, and the other end starts sending with it (IBA 12.7.31). Two
//! ends that both read it as "the one I begin with" can connect, so no pair of ferroce ends can find that mistake.

#[allow(dead_code, unused_imports, reason = "other tests use the rest")]
mod golden;

use ferroce_proto::cm::{
    Accept, Cm, Config, Connect, Event, IpHeader, MadAddressing, Path, Scope, ServiceId,
};
use ferroce_proto::verbs::{Mtu, QpState};
use ferroce_proto::wire::MAD_LEN;
use ferroce_proto::{Gid, Psn, Qpn, Time};
use golden::unhex;
use std::net::{IpAddr, Ipv4Addr};

/// Ethernet, IPv4, UDP, BTH and DETH precede a MAD.
const IN_FRONT: usize = 14 + 20 + 8 + 12 + 8;
/// Offsets of the starting PSN in the MADs of REQ and REP.
const REQ_PSN_AT: usize = 24 + 44;
const REP_PSN_AT: usize = 24 + 20;
/// The starting PSNs of the kernel in the captured REQ and REP.
const PSN_OF_KERNELS_REQ: [u8; 3] = [0xb5, 0x49, 0x5e];
const PSN_OF_KERNELS_REP: [u8; 3] = [0x18, 0x6b, 0xa9];
/// Offset of the remote communication id in a REP.
const REMOTE_ID_AT: usize = 24 + 4;

fn kernels(name: &str) -> Vec<u8> {
    let file = include_str!("data/kernel.hex");
    let line = file.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    unhex(line.unwrap_or_else(|| panic!("{name} is in the file")))[IN_FRONT..][..MAD_LEN].to_vec()
}

fn cm() -> Cm {
    let mut next = 0x0102_0304_0506_0708_u64;
    Cm::new(
        Config { slot: 7, ..Config::default() },
        Box::new(move || {
            next = next.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            next
        }),
    )
}

fn addresses() -> (Gid, Gid) {
    let gid = |last| Gid::from_ip(IpAddr::V4(Ipv4Addr::new(10, 77, 0, last)));
    (gid(1), gid(2))
}

fn inbound() -> MadAddressing {
    let (ours, kernels) = addresses();
    MadAddressing { sgid: kernels, dgid: ours, sgid_index: 0, mtu: Mtu::B4096 }
}

fn psn_at(mad: &[u8], at: usize) -> Psn {
    Psn::new(u32::from_be_bytes([0, mad[at], mad[at + 1], mad[at + 2]]))
}

#[test]
fn the_req_of_a_kernel_carries_our_first_psn() {
    let mad = kernels("v4_64_cm0010");
    assert_eq!(mad[REQ_PSN_AT..][..3], PSN_OF_KERNELS_REQ, "the bytes are those of that day");
    let mut cm = cm();
    let service = ServiceId(u64::from_be_bytes(mad[32..40].try_into().unwrap()));
    cm.listen(service, Scope::Any, 4).unwrap();
    cm.handle_mad(&inbound(), &mad, Time(0)).unwrap();
    let Some(Event::Request(request)) = cm.poll_event() else { panic!("no offer") };
    cm.accept(request.id, &Accept { qpn: Qpn::new(9), ..Accept::default() }, Time(0)).unwrap();
    let rep = cm.poll_transmit().expect("an answer").mad;
    let (rtr, _) = cm.qp_attributes(request.id, QpState::Rtr).unwrap();
    let (rts, _) = cm.qp_attributes(request.id, QpState::Rts).unwrap();
    assert_eq!(rts.sq_psn, Psn::new(0x00b5_495e), "the kernel waits for this one");
    assert_eq!(rtr.rq_psn, psn_at(&rep[..], REP_PSN_AT), "and we for the one that we told it");
    assert_ne!(rtr.rq_psn, rts.sq_psn, "or nothing was shown");
}

#[test]
fn the_rep_of_a_kernel_carries_our_first_psn() {
    let mut answer = kernels("v4_64_cm0013");
    assert_eq!(answer[REP_PSN_AT..][..3], PSN_OF_KERNELS_REP, "the bytes are those of that day");
    let mut cm = cm();
    let (ours, kernels) = addresses();
    let path = Path { sgid: ours, dgid: kernels, mtu: Mtu::B1024, ..Path::default() };
    let ip = IpHeader { sport: 1, src: ours.to_ip(), dst: kernels.to_ip() };
    let offer = Connect {
        service: ServiceId(0x0106_1d2f),
        path,
        ip: Some(ip),
        qpn: Qpn::new(9),
        ..Connect::default()
    };
    let id = cm.connect(&offer, Time(0)).unwrap();
    let req = cm.poll_transmit().expect("an offer").mad;
    // The one thing in it that is about this connection and not that of the day.
    answer[REMOTE_ID_AT..][..4].copy_from_slice(&id.0.to_be_bytes());
    cm.handle_mad(&inbound(), &answer, Time(1)).unwrap();
    assert!(matches!(cm.poll_event(), Some(Event::Response(_))));
    let (rtr, _) = cm.qp_attributes(id, QpState::Rtr).unwrap();
    let (rts, _) = cm.qp_attributes(id, QpState::Rts).unwrap();
    assert_eq!(rts.sq_psn, Psn::new(0x0018_6ba9), "the kernel waits for this one");
    assert_eq!(rtr.rq_psn, psn_at(&req[..], REQ_PSN_AT), "and we for the one that we told it");
    assert_ne!(rtr.rq_psn, rts.sq_psn, "or nothing was shown");
}
