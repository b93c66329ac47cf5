//! Secure set-up between NICs: by a key of the device, as `FERROCE_CM_KEY` gives it, and by keys of single ids.

mod cm_support;

use cm_support::{End, advance, connected, param, send};
use ferroce_nic::{CmEventKind, CmId, CmRefusal, CmTransport, Error, PortSpace, Qp, RejectReason, Secret};
use ferroce_proto::cm::CmError;
use ferroce_proto::verbs::{Access, AttrMask, Payload, QpAttr, QpState, RecvWr, SendFlags, SendOp, SendWr};
use std::net::SocketAddr;
use std::sync::Arc;

fn key(byte: u8) -> Secret {
    Secret::new(&[byte; 32]).unwrap()
}

fn end(address: &str, secret: Option<u8>) -> End {
    End::with_secret(&[address], secret.map(key))
}

/// Requests a connection and expects a reject that the listening program does not notice.
#[track_caller]
fn refused(client: &End, server: &End, to: SocketAddr) {
    let (id, qp) = (client.routed(PortSpace::Tcp, to), client.qp());
    id.connect(CmTransport::Rc, &param(&qp, b"hello")).unwrap();
    let event = client.next(CmEventKind::Rejected);
    assert_eq!(event.status, i32::from(RejectReason::CONSUMER.0));
    assert!(event.conn.private_data.starts_with(b"ferroce: not proven"), "{:?}", event.conn.private_data);
    assert!(server.channel.try_next().is_none());
}

#[test]
fn the_right_key_connects_and_carries_data() {
    let (client, server) = (end("127.44.1.1", Some(1)), end("127.44.1.1", Some(1)));
    let listener = server.listener("127.44.1.1:0", 8);
    let to = listener.local_addr().unwrap();
    let [(id, qp), (_their_id, their_qp)] = connected(&client, &server, to);
    send((&client, &qp), (&server, &their_qp));
    send((&server, &their_qp), (&client, &qp));
    id.disconnect().unwrap();
    client.next(CmEventKind::Disconnected);
    server.next(CmEventKind::Disconnected);
    assert_eq!([&client, &server].map(|end| end.nic.cm_counters().unproven), [0, 0]);
}

#[test]
fn another_key_and_none_are_refused() {
    let server = end("127.44.2.1", Some(1));
    let listener = server.listener("127.44.2.1:0", 8);
    let to = listener.local_addr().unwrap();
    refused(&end("127.44.2.2", Some(2)), &server, to);
    refused(&end("127.44.2.3", None), &server, to);
    assert_eq!(server.nic.counters().cm["unproven"], 2);
    // Who has the key gets in all the same.
    let client = end("127.44.2.4", Some(1));
    drop(connected(&client, &server, to));
}

#[test]
fn a_listener_without_the_key_is_refused() {
    let (client, server) = (end("127.44.3.1", Some(1)), end("127.44.3.2", None));
    let listener = server.listener("127.44.3.2:0", 8);
    let to = listener.local_addr().unwrap();
    let (id, qp) = (client.routed(PortSpace::Tcp, to), client.qp());
    id.connect(CmTransport::Rc, &param(&qp, b"hello")).unwrap();
    let request = server.next(CmEventKind::ConnectRequest);
    let their_qp = server.qp();
    advance(&request.id, &their_qp, &[QpState::Init, QpState::Rtr, QpState::Rts]);
    request.id.accept(&param(&their_qp, b"welcome")).unwrap();
    assert_eq!(client.next(CmEventKind::Rejected).status, i32::from(RejectReason::CONSUMER.0));
    assert_eq!(server.next(CmEventKind::Rejected).status, i32::from(RejectReason::CONSUMER.0));
}

#[test]
fn ids_may_have_keys_of_their_own() {
    let (client, server) = (end("127.44.4.1", Some(1)), end("127.44.4.1", None));
    let listener = server.id(PortSpace::Tcp);
    listener.set_secret(key(3));
    listener.bind("127.44.4.1:0".parse().unwrap()).unwrap();
    listener.listen(8).unwrap();
    let to = listener.local_addr().unwrap();
    refused(&client, &server, to);
    let (id, qp) = (client.routed(PortSpace::Tcp, to), client.qp());
    id.set_secret(key(3));
    let room = id.connect(CmTransport::Rc, &param(&qp, &[1; 37])).unwrap_err();
    assert!(
        room.to_string().contains("37 bytes of private data exceed the 36 that the message can carry"),
        "{room}"
    );
    id.connect(CmTransport::Rc, &param(&qp, &[1; 36])).unwrap();
    assert_eq!(server.next(CmEventKind::ConnectRequest).conn.private_data, [1; 36]);
}

/// A connection to the server at `address` that lacks nothing but the client's confirmation: ids and queue pairs of both.
fn unconfirmed(client: &End, server: &End, address: &str) -> [(Arc<CmId>, Qp); 2] {
    let listener = server.listener(address, 8);
    let to = listener.local_addr().unwrap();
    let (id, qp) = (client.routed(PortSpace::Tcp, to), client.qp());
    advance(&id, &qp, &[QpState::Init]);
    id.connect(CmTransport::Rc, &param(&qp, b"")).unwrap();
    let (request, their_qp) = (server.next(CmEventKind::ConnectRequest), server.qp());
    advance(&request.id, &their_qp, &[QpState::Init, QpState::Rtr, QpState::Rts]);
    request.id.accept(&param(&their_qp, b"")).unwrap();
    client.next(CmEventKind::ConnectResponse);
    advance(&id, &qp, &[QpState::Rtr, QpState::Rts]);
    [(id, qp), (request.id, their_qp)]
}

/// The peer knows everything but has not confirmed: its packets do not get in.
#[test]
fn nothing_gets_in_before_the_confirmation() {
    let (client, server) = (end("127.44.5.1", Some(1)), end("127.44.5.2", Some(1)));
    let [(id, qp), (their_id, their_qp)] = unconfirmed(&client, &server, "127.44.5.2:0");
    their_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap();
    let wr = SendWr {
        wr_id: 2,
        op: SendOp::Send,
        payload: Payload::Inline(&[]),
        flags: SendFlags::SIGNALED,
        ud: None,
        srq: None,
    };
    let dropped = || server.nic.counters().drops["wrong_state"];
    qp.post_send(&[wr]).unwrap();
    cm_support::wait_until(|| dropped() > 0);
    assert_eq!(server.nic.counters().completions, 0);
    // Data is no proof, whatever the program says.
    their_id.notify_established().unwrap();
    assert!(server.channel.try_next().is_none());
    id.establish().unwrap();
    server.next(CmEventKind::Established);
    assert_eq!(cm_support::completion(&server.cq).wr_id, 1);
    assert_eq!(cm_support::completion(&client.cq).wr_id, 2);
}

/// A second `accept` is an error, and opens nothing: neither for the queue pair of the first one nor for another.
#[test]
fn nothing_gets_in_after_a_second_accept() {
    let (client, server) = (end("127.44.8.1", Some(1)), end("127.44.8.2", Some(1)));
    let [(id, qp), (their_id, their_qp)] = unconfirmed(&client, &server, "127.44.8.2:0");
    their_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap();
    let other_qp = server.qp();
    for qp in [&their_qp, &other_qp, &their_qp] {
        let refused = their_id.accept(&param(qp, b"")).unwrap_err();
        assert!(matches!(refused, Error::Cm(CmRefusal::Protocol(CmError::WrongState))), "{refused}");
    }
    cm_support::post(&qp);
    cm_support::wait_until(|| server.nic.counters().drops["wrong_state"] > 0);
    assert_eq!(server.nic.counters().completions, 0);
    id.establish().unwrap();
    server.next(CmEventKind::Established);
    assert_eq!(cm_support::completion(&server.cq).wr_id, 1);
    assert_eq!(cm_support::completion(&client.cq).wr_id, 2);
}

/// No other connection of the queue pair opens it meanwhile, whether this end requests or accepts that one.
#[test]
fn nothing_gets_in_through_another_connection_of_the_queue_pair() {
    let (client, server) = (end("127.44.9.1", Some(1)), end("127.44.9.2", Some(1)));
    let [(id, qp), (_their_id, their_qp)] = unconfirmed(&client, &server, "127.44.9.2:0");
    their_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap();
    let wrong_state = |outcome: Result<(), Error>| {
        let refused = outcome.unwrap_err();
        assert!(matches!(refused, Error::Cm(CmRefusal::WrongState { .. })), "{refused}");
    };
    let elsewhere = client.listener("127.44.9.1:0", 8);
    let outgoing = server.routed(PortSpace::Tcp, elsewhere.local_addr().unwrap());
    wrong_state(outgoing.connect(CmTransport::Rc, &param(&their_qp, b"")));
    let listener = server.listener("127.44.9.2:0", 8);
    let (second, second_qp) = (client.routed(PortSpace::Tcp, listener.local_addr().unwrap()), client.qp());
    second.connect(CmTransport::Rc, &param(&second_qp, b"")).unwrap();
    let request = server.next(CmEventKind::ConnectRequest);
    wrong_state(request.id.accept(&param(&their_qp, b"")));
    cm_support::post(&qp);
    cm_support::wait_until(|| server.nic.counters().drops["wrong_state"] > 0);
    assert_eq!(server.nic.counters().completions, 0);
    id.establish().unwrap();
    server.next(CmEventKind::Established);
    assert_eq!(cm_support::completion(&server.cq).wr_id, 1);
    assert_eq!(cm_support::completion(&client.cq).wr_id, 2);
}

/// The peer of a connection that has ended without a proof stays outside until the queue pair is reset.
#[test]
fn nothing_gets_in_after_the_end_of_an_unconfirmed_connection() {
    let (client, server) = (end("127.44.10.1", Some(1)), end("127.44.10.2", Some(1)));
    let [(_id, qp), (their_id, their_qp)] = unconfirmed(&client, &server, "127.44.10.2:0");
    their_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap();
    drop(their_id);
    let elsewhere = client.listener("127.44.10.1:0", 8);
    let outgoing = server.routed(PortSpace::Tcp, elsewhere.local_addr().unwrap());
    let refused = outgoing.connect(CmTransport::Rc, &param(&their_qp, b"")).unwrap_err();
    assert!(matches!(refused, Error::Cm(CmRefusal::WrongState { .. })), "{refused}");
    cm_support::post(&qp);
    cm_support::wait_until(|| server.nic.counters().drops["wrong_state"] > 0);
    assert_eq!(server.nic.counters().completions, 0);
    let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
    their_qp.modify(&reset, AttrMask::STATE).unwrap();
    outgoing.connect(CmTransport::Rc, &param(&their_qp, b"")).unwrap();
}

/// The same for memory: a peer on this host needs no packet to write, and must not write either.
#[test]
fn nothing_is_written_before_the_confirmation() {
    let (client, server) = (end("127.44.7.1", Some(1)), end("127.44.7.2", Some(1)));
    let [(id, qp), _theirs] = unconfirmed(&client, &server, "127.44.7.2:0");
    let memory = server.nic.alloc_device_memory(64, 3).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::ZERO_BASED;
    let region = server.pd.register_device_memory(&memory, 0, 64, access).unwrap();
    let wr = SendWr {
        wr_id: 3,
        op: SendOp::Write { addr: 0, rkey: region.rkey() },
        payload: Payload::Inline(b"too soon"),
        flags: SendFlags::SIGNALED,
        ud: None,
        srq: None,
    };
    let written = || {
        let mut bytes = [0; 8];
        memory.copy_from(0, &mut bytes).unwrap();
        bytes
    };
    qp.post_send(&[wr]).unwrap();
    cm_support::wait_until(|| server.nic.counters().drops["wrong_state"] > 0);
    assert_eq!(written(), [0; 8]);
    id.establish().unwrap();
    server.next(CmEventKind::Established);
    assert_eq!(cm_support::completion(&client.cq).wr_id, 3);
    assert_eq!(&written(), b"too soon");
}

#[test]
fn datagram_services_are_proven_too() {
    let server = end("127.44.6.1", Some(1));
    let listener = server.id(PortSpace::Udp);
    listener.bind("127.44.6.1:0".parse().unwrap()).unwrap();
    listener.listen(8).unwrap();
    let to = listener.local_addr().unwrap();
    let client = end("127.44.6.2", Some(1));
    let id = client.routed(PortSpace::Udp, to);
    id.connect(CmTransport::Rc, &param(&client.qp(), b"who?")).unwrap();
    let question = server.next(CmEventKind::ConnectRequest);
    question.id.accept(&param(&server.qp(), b"me")).unwrap();
    assert_eq!(client.next(CmEventKind::Established).ud.unwrap().private_data[..3], *b"me\0");
    let stranger = end("127.44.6.3", None);
    let id = stranger.routed(PortSpace::Udp, to);
    id.connect(CmTransport::Rc, &param(&stranger.qp(), b"who?")).unwrap();
    assert_ne!(stranger.next(CmEventKind::Unreachable).status, 0);
    assert!(server.channel.try_next().is_none());
}
