//! XRC domains, shared receive queues and receiving ends of a real NIC.

mod objects_support;

use ferroce_nic::{Cq, Error, EventSource, Nic, Pd, Qp, QpInit};
use ferroce_proto::verbs::{Access, EventKind, QpState, RecvWr, SendOp, Transport, WcOpcode, WcStatus};
use ferroce_proto::verbs::{AttrMask, QpAttr};
use objects_support::{Buffer, CAP, completions, connect, create, open, post_to};
use std::sync::Arc;

struct Setup {
    nic: Nic,
    pd: Arc<Pd>,
    cq: Cq,
}

fn setup(address: &str) -> Setup {
    let nic = open(address);
    let pd = nic.alloc_pd().unwrap();
    let cq = nic.create_cq(64, None, 0).unwrap();
    Setup { nic, pd, cq }
}

fn connected(s: &Setup, target: &Qp) -> Qp {
    let ini = create(&s.pd, &s.cq, Transport::XrcIni);
    connect(&s.nic, &ini, target.qpn());
    connect(&s.nic, target, ini.qpn());
    ini
}

#[test]
fn a_message_reaches_the_queue_it_names_and_completes_there() {
    let s = setup("127.91.1.1");
    let domain = s.nic.alloc_xrc_domain().unwrap();
    let recv_cq = s.nic.create_cq(16, None, 0).unwrap();
    let srq = s.pd.create_xrc_srq(16, 2, &domain, &recv_cq).unwrap();
    let target = domain.create_target(&s.nic).unwrap();
    let ini = connected(&s, &target);
    let memory = Buffer::new(&s.pd, 8192, Access::LOCAL_WRITE | Access::REMOTE);
    memory.fill(0, 4096, 7);
    srq.post_recv(&[RecvWr { wr_id: 5, sges: &[memory.sge(4096, 3000)] }]).unwrap();
    post_to(&ini, 1, SendOp::Send, &[memory.sge(0, 3000)], srq.number());
    let write = SendOp::Write { addr: memory.addr(7096), rkey: memory.mr.rkey() };
    post_to(&ini, 2, write, &[memory.sge(0, 8)], srq.number());
    assert!(completions(&s.cq, 2).iter().all(|c| c.status == WcStatus::Success));
    let got = completions(&recv_cq, 1)[0];
    assert_eq!((got.wr_id, got.opcode, got.byte_len, got.qpn), (5, WcOpcode::Recv, 3000, target.qpn()));
    assert!(memory.read(4096, 3008).iter().all(|b| *b == 7) && memory.read(7104, 1) == [0]);
}

#[test]
fn a_queue_that_is_gone_is_refused_and_every_handle_hears_of_it() {
    let s = setup("127.91.1.2");
    let domain = s.nic.alloc_xrc_domain().unwrap();
    let srq = s.pd.create_xrc_srq(16, 2, &domain, &s.cq).unwrap();
    let number = srq.number();
    let target = domain.create_target(&s.nic).unwrap();
    let ini = connected(&s, &target);
    let opened = domain.open_qp(&s.nic, target.qpn()).unwrap();
    assert_ne!(opened.handle(), target.handle());
    drop(srq);
    while s.nic.try_event().is_some() {}
    post_to(&ini, 1, SendOp::Send, &[], number);
    assert_eq!(completions(&s.cq, 1)[0].status, WcStatus::RemInvReqErr);
    let mut told: Vec<EventSource> = std::iter::from_fn(|| s.nic.try_event())
        .filter(|e| e.kind == EventKind::QpReqErr)
        .map(|e| e.source)
        .collect();
    told.sort_by_key(|source| matches!(source, EventSource::QpHandle(_, h) if *h != 0));
    let qpn = target.qpn();
    assert_eq!(told, [EventSource::QpHandle(qpn, 0), EventSource::QpHandle(qpn, opened.handle())]);
}

#[test]
fn a_receiving_end_lives_until_its_last_handle() {
    let s = setup("127.91.1.3");
    let domain = s.nic.alloc_xrc_domain().unwrap();
    let srq = s.pd.create_xrc_srq(16, 2, &domain, &s.cq).unwrap();
    let target = domain.create_target(&s.nic).unwrap();
    let qpn = target.qpn();
    let ini = connected(&s, &target);
    let opened = domain.open_qp(&s.nic, qpn).unwrap();
    drop(target);
    assert_eq!(opened.query().state, QpState::Rts);
    srq.post_recv(&[RecvWr { wr_id: 5, sges: &[] }]).unwrap();
    post_to(&ini, 1, SendOp::Send, &[], srq.number());
    assert!(completions(&s.cq, 2).iter().all(|c| c.status == WcStatus::Success));
    drop(opened);
    assert!(matches!(domain.open_qp(&s.nic, qpn), Err(Error::Invalid { attribute: "qpn", .. })));
}

#[test]
fn domains_are_shared_by_key_while_somebody_holds_them() {
    let s = setup("127.91.1.4");
    let key = (3, 4711);
    assert!(s.nic.find_xrc_domain(key).is_none());
    let (first, made) = s.nic.open_xrc_domain(key).unwrap();
    assert!(made);
    let (second, made) = s.nic.open_xrc_domain(key).unwrap();
    assert!(!made && Arc::ptr_eq(&first, &second) && first.other_holders() == 1);
    assert_ne!(s.nic.open_xrc_domain((3, 4712)).unwrap().0.id(), first.id());
    let target = second.create_target(&s.nic).unwrap();
    drop((first, second));
    let found = s.nic.find_xrc_domain(key).expect("the queue pair holds it");
    assert_eq!(found.other_holders(), 1);
    let other = s.nic.alloc_xrc_domain().unwrap();
    assert!(other.open_qp(&s.nic, target.qpn()).is_err(), "of another domain");
    drop((target, found));
    assert!(s.nic.find_xrc_domain(key).is_none());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let s = setup("127.91.1.5");
    let domain = s.nic.alloc_xrc_domain().unwrap();
    let srq = s.pd.create_srq(4, 1).unwrap();
    assert_eq!(srq.number(), None);
    let init = |transport, srq| QpInit {
        transport,
        send_cq: &s.cq,
        recv_cq: &s.cq,
        srq,
        cap: CAP,
        signal_all: false,
    };
    let made = |transport, srq| s.pd.create_qp(&init(transport, srq)).map(|qp| qp.qpn());
    assert!(matches!(made(Transport::XrcTgt, None), Err(Error::Invalid { attribute: "transport", .. })));
    assert!(matches!(made(Transport::XrcIni, Some(&srq)), Err(Error::Invalid { attribute: "srq", .. })));
    let numbered = s.pd.create_xrc_srq(4, 1, &domain, &s.cq).unwrap();
    assert!(matches!(made(Transport::Rc, Some(&numbered)), Err(Error::Invalid { attribute: "srq", .. })));
    assert!(matches!(s.pd.create_xrc_srq(0, 1, &domain, &s.cq), Err(Error::Invalid { .. })));
    let ini = create(&s.pd, &s.cq, Transport::XrcIni);
    assert_eq!(ini.query().cap.max_recv_wr, 0);
    assert!(domain.open_qp(&s.nic, ini.qpn()).is_err(), "a sending end cannot be opened");
    let target = domain.create_target(&s.nic).unwrap();
    assert!(target.post_recv(&[RecvWr { wr_id: 1, sges: &[] }]).is_err());
    let to_init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT;
    let attr = QpAttr { state: QpState::Init, port: 1, ..QpAttr::default() };
    assert!(target.modify(&attr, to_init).is_err(), "access flags are missing");
    target.modify(&attr, to_init | AttrMask::ACCESS_FLAGS).unwrap();
}
