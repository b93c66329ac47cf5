//! What the attributes of the device and its port state holds: numbers of objects, and the length of a datagram.

mod objects_support;

use ferroce_nic::{Config, Error, MAX_OBJECTS, Nic};
use ferroce_proto::Qkey;
use ferroce_proto::verbs::{
    Access, AddressVector, AttrMask, Payload, QpAttr, QpState, SendFlags, SendOp, SendWr, Transport,
    UdTarget, WcStatus,
};
use objects_support::{Buffer, completions, create, open};

#[test]
fn no_more_objects_than_stated() {
    let nic = open("127.91.48.1");
    let mut pds: Vec<_> = (0..MAX_OBJECTS).map(|_| nic.alloc_pd().unwrap()).collect();
    let refused = nic.alloc_pd().map(drop).unwrap_err();
    assert!(
        matches!(refused, Error::Exhausted { limit, .. } if limit == u64::from(MAX_OBJECTS)),
        "{refused}"
    );
    let shared = nic.share_pd(&pds[0]);
    drop(pds.pop());
    drop(nic.alloc_pd().unwrap());
    drop((shared, pds));
    let pd = nic.alloc_pd().unwrap();
    let cq = nic.create_cq(1, None, 0).unwrap();
    drop((pd.create_srq(1, 1).unwrap(), pd.create_wq(1, 1, &cq).unwrap()));
}

#[test]
fn a_datagram_has_at_most_the_active_mtu() {
    // Loopback carries more than the wire; the program was told of the wire.
    let nic = Nic::open(Config::from_env().unwrap()).unwrap();
    let attributes = nic.attributes();
    if attributes.active_mtu == attributes.largest_mtu {
        return println!("SKIPPED: all interfaces of this machine carry the same path MTU");
    }
    let pd = nic.alloc_pd().unwrap();
    let cq = nic.create_cq(8, None, 0).unwrap();
    let buffer = Buffer::new(&pd, 4096, Access::LOCAL_WRITE);
    let sgid_index = nic.gids().iter().position(|entry| entry.address.is_loopback()).unwrap();
    let dgid = nic.gids()[sgid_index].gid;
    let vector = AddressVector { sgid_index: sgid_index as u8, dgid, ..AddressVector::default() };
    let target = pd.create_address_handle(&vector).unwrap();
    let send = |len| {
        let qp = create(&pd, &cq, Transport::Ud);
        use AttrMask as M;
        let attr = QpAttr { port: 1, ..QpAttr::default() };
        for (state, mask) in [
            (QpState::Init, M::PKEY_INDEX | M::PORT | M::QKEY),
            (QpState::Rtr, M::empty()),
            (QpState::Rts, M::SQ_PSN),
        ] {
            qp.modify(&QpAttr { state, ..attr }, mask | M::STATE).unwrap();
        }
        let ud = Some(UdTarget { route: *target.route(), qpn: qp.qpn(), qkey: Qkey::default() });
        let payload = Payload::Sges(&[buffer.sge(0, len)]);
        let wr = SendWr { wr_id: 1, op: SendOp::Send, flags: SendFlags::SIGNALED, payload, ud, srq: None };
        qp.post_send(&[wr]).unwrap();
        completions(&cq, 1)[0].status
    };
    assert_eq!(send(attributes.active_mtu), WcStatus::Success);
    assert_eq!(send(attributes.active_mtu + 1), WcStatus::LocLenErr);
}
