//! Extended reliable connections: one connection, several shared receive queues.

mod support;

use ferroce::{
    ConnectError, Cq, Device, Endpoint, Error, Pd, PostError, Refusal, SendWr, WcOpcode, WcStatus, XrcDomain,
    XrcQp, XrcTarget, wr,
};
use support::{V4, watched};

/// The receiving side of a test, and an initiator of another device that is connected to it.
struct Setup {
    device: Device,
    pd: Pd,
    cq: Cq,
    domain: XrcDomain,
    target: XrcTarget,
    sender: (Pd, Cq, XrcQp),
}

fn setup() -> Setup {
    let (here, device) = (support::device(), support::device());
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let domain = device.alloc_xrc_domain().unwrap();
    let target = domain.target().address(V4).create().unwrap();
    let (send_pd, send_cq) = (here.alloc_pd().unwrap(), here.create_cq(64).unwrap());
    let initiator = send_pd.xrc(&send_cq).address(V4).retries(7).create().unwrap();
    initiator.connect(&target.endpoint().unwrap()).unwrap();
    target.connect(&initiator.endpoint().unwrap()).unwrap();
    Setup { device, pd, cq, domain, target, sender: (send_pd, send_cq, initiator) }
}

#[test]
fn one_connection_reaches_several_shared_receive_queues() {
    watched(|| {
        let s = setup();
        let other_cq = s.device.create_cq(16).unwrap();
        let queues =
            [s.domain.srq(&s.pd, &s.cq, 8, 1).unwrap(), s.domain.srq(&s.pd, &other_cq, 8, 1).unwrap()];
        let (pd, _, qp) = &s.sender;
        for (n, queue) in queues.iter().enumerate() {
            queue.recv(s.pd.buffer(64).unwrap()).unwrap();
            let mut message = pd.buffer(64).unwrap();
            message.set(&[n as u8 + 1; 5]).unwrap();
            qp.send_with_imm(message, 7, queue.number()).unwrap().wait().unwrap();
            let received = queue.cq().wait_shared_timeout(support::MAX_WAIT).unwrap();
            assert_eq!((&*received.buffer, received.imm()), (&[n as u8 + 1; 5][..], Some(7)));
            assert_eq!(received.completion.qpn, s.target.qpn());
        }
        // Receives into regions complete at the same queue.
        let region = s.pd.region(64).register().unwrap();
        queues[1].post_recv(&[wr::recv(9, &[region.sge(..).unwrap()])]).unwrap();
        qp.send(pd.buffer(8).unwrap(), queues[1].number()).unwrap().wait().unwrap();
        let received = support::success(&other_cq);
        assert_eq!((received.wr_id, received.opcode, received.byte_len), (9, WcOpcode::Recv, 8));
    });
}

#[test]
fn one_sided_operations_use_the_domain_of_the_named_queue() {
    watched(|| {
        let s = setup();
        let queue = s.domain.srq(&s.pd, &s.cq, 8, 1).unwrap();
        let region = s.pd.region(64).remote_read().remote_write().remote_atomic().register().unwrap();
        let (pd, cq, qp) = &s.sender;
        let mut message = pd.buffer(16).unwrap();
        message.set(b"extended reliable").unwrap_err();
        message.set(b"extended").unwrap();
        qp.write_from(message, region.remote(), queue.number()).unwrap().wait().unwrap();
        let mut back = pd.buffer(8).unwrap();
        back = qp.read_into(back, region.remote(), queue.number()).unwrap().wait().unwrap().buffer;
        assert_eq!(&*back, b"extended");
        let local = pd.region(64).register().unwrap();
        let old = [local.sge(..8).unwrap()];
        let add = wr::fetch_add(5, &old, region.remote().slice(8..).unwrap(), 3);
        qp.post_send(&[SendWr { srq: Some(queue.number()), ..add }]).unwrap();
        assert_eq!(support::success(cq).wr_id, 5);
        assert_eq!(region.load_u64(8).unwrap(), 3);
        // A queue of another protection domain gives access to other regions.
        let elsewhere = s.domain.srq(&s.device.alloc_pd().unwrap(), &s.cq, 8, 1).unwrap();
        let mut refused = qp.write_from(pd.buffer(8).unwrap(), region.remote(), elsewhere.number()).unwrap();
        let refused = refused.settle_timeout(support::MAX_WAIT).unwrap();
        assert_eq!(refused.completion.status, WcStatus::RemAccessErr);
    });
}

#[test]
fn parents_live_as_long_as_their_objects_and_dropped_queues_are_refused() {
    watched(|| {
        let Setup { device, pd, cq, domain, target, sender: (send_pd, _send_cq, qp) } = setup();
        let queue = domain.srq(&pd, &cq, 8, 1).unwrap();
        let number = queue.number();
        queue.recv(pd.buffer(8).unwrap()).unwrap();
        queue.recv(pd.buffer(8).unwrap()).unwrap();
        drop((domain, pd, device));
        qp.send(send_pd.buffer(8).unwrap(), number).unwrap().wait().unwrap();
        cq.wait_shared_timeout(support::MAX_WAIT).unwrap();
        drop(queue);
        let mut refused = qp.send(send_pd.buffer(8).unwrap(), number).unwrap();
        let refused = refused.settle_timeout(support::MAX_WAIT).unwrap();
        assert_eq!(refused.completion.status, WcStatus::RemInvReqErr);
        drop(target);
    });
}

#[test]
fn wrong_ends_and_objects_of_other_devices_are_refused() {
    watched(|| {
        let s = setup();
        let (send_pd, send_cq, qp) = &s.sender;
        let initiator = send_pd.xrc(send_cq).address(V4).create().unwrap();
        let reliable = send_pd.rc(send_cq).address(V4).create().unwrap();
        for peer in [initiator.endpoint().unwrap(), reliable.endpoint().unwrap()] {
            let refused = initiator.connect(&peer).unwrap_err();
            assert!(matches!(refused, Error::Connect(ConnectError::Transport { .. })), "{refused}");
        }
        let endpoint = s.target.endpoint().unwrap();
        assert_eq!(Endpoint::from_bytes(&endpoint.to_bytes()), Ok(endpoint));
        assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
        assert!(s.target.connect(&endpoint).is_err());
        let attribute = |error: Error| match error.refusal() {
            Some(Refusal::Invalid { attribute, .. }) => *attribute,
            _ => panic!("{error}"),
        };
        assert_eq!(attribute(s.domain.srq(send_pd, &s.cq, 8, 1).unwrap_err()), "xrcd");
        assert_eq!(attribute(s.domain.srq(&s.pd, send_cq, 8, 1).unwrap_err()), "cq");
        let queue = s.domain.srq(&s.pd, &s.cq, 8, 1).unwrap();
        assert_eq!(attribute(s.pd.rc(&s.cq).srq(&queue).create().unwrap_err()), "srq");
        let unaddressed = qp.post_send(&[wr::send(1, &[])]).unwrap_err();
        assert_eq!(support::post_error(&unaddressed), Some(PostError::NoRemoteSrq));
    });
}
