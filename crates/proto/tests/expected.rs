//! What a queue pair says it expects, and what it does with packets whose payloads are already in place.

use ferroce_proto::cc::{Controller, FixedWindow};
use ferroce_proto::qp::state::AttrLimits;
use ferroce_proto::qp::{
    Arrival, DropReason, Expected, Host, Placed, Qp, QpConfig, RecvWqe, RefusalReason, Side, Target, TxError,
    TxPayload,
};
use ferroce_proto::verbs::*;
use ferroce_proto::wire::{Bth, Headers, NakCode, Opcode, Operation, Packet, Reth, Service, Syndrome};
use ferroce_proto::{Gid, LKey, PdId, Psn, Qpn, RKey, Srqn, Time};
use std::fmt;

const MTU: u32 = 1024;
const START: u32 = 0xff_fffe;
const RKEY: RKey = RKey(0x77);
const ADDR: u64 = 0x1_0000;
const NOW: Time = Time(1_000_000);

/// Grants everything, or nothing, and keeps what comes out.
#[derive(Default)]
struct Surroundings {
    refuses: bool,
    written: Vec<(u64, usize)>,
    checked: Vec<(u64, u64)>,
    sent: Vec<Headers>,
    completions: Vec<Completion>,
    dropped: Vec<DropReason>,
}

impl Surroundings {
    fn grant(&self) -> Result<(), MemoryFault> {
        if self.refuses { Err(MemoryFault::NoSuchKey { key: 1 }) } else { Ok(()) }
    }
}

impl Host for Surroundings {
    fn transmit(&mut self, _: &Route, headers: &Headers, _: TxPayload<'_>) -> Result<(), TxError> {
        self.sent.push(*headers);
        Ok(())
    }
    fn scatter(&mut self, _: PdId, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryFault> {
        self.written.push((sges[0].addr + offset, data.len()));
        self.grant()
    }
    fn check_scatter(&mut self, _: PdId, sges: &[Sge], offset: u64, len: u64) -> Result<(), MemoryFault> {
        self.checked.push((sges[0].addr + offset, len));
        self.grant()
    }
    fn check_remote(&mut self, _: PdId, _: RKey, addr: u64, len: u64, _: Access) -> Result<(), MemoryFault> {
        self.checked.push((addr, len));
        self.grant()
    }
    fn write_remote(&mut self, _: PdId, _: RKey, addr: u64, data: &[u8]) -> Result<(), MemoryFault> {
        self.written.push((addr, data.len()));
        self.grant()
    }
    fn atomic(&mut self, _: PdId, _: RKey, _: u64, _: AtomicOp) -> Result<u64, MemoryFault> {
        Ok(0)
    }
    fn invalidate(&mut self, _: PdId, _: RKey) -> Result<(), MemoryFault> {
        Ok(())
    }
    fn store_remote(&mut self, _: PdId, _: RKey, _: u64, _: [u8; 8]) -> Result<(), MemoryFault> {
        Ok(())
    }
    fn flush_remote(&mut self, _: PdId, _: RKey, _: Option<(u64, u64)>) -> Result<(), MemoryFault> {
        Ok(())
    }
    fn bind_window(&mut self, _: PdId, _: &MwBind) -> Result<(), MemoryFault> {
        Ok(())
    }
    fn xrc_pd(&mut self, _: Srqn) -> Option<PdId> {
        None
    }
    fn refused(&mut self, _: RefusalReason, _: fmt::Arguments<'_>) {}
    fn take_shared_recv(&mut self, _: Option<Srqn>, _: &mut RecvWqe) -> bool {
        false
    }
    fn complete(&mut self, _: Side, completion: Completion) {
        self.completions.push(completion);
    }
    fn event(&mut self, _: EventKind) {}
    fn dropped(&mut self, reason: DropReason, _: fmt::Arguments<'_>) {
        self.dropped.push(reason);
    }
    fn explain(&mut self, _: fmt::Arguments<'_>) {}
}

fn gid(last: u8) -> Gid {
    Gid::from_ip([10, 0, 0, last].into())
}

const QPN: Qpn = Qpn::new(0x12);

/// A queue pair in RTS that receives from `START` on and sends from 0 on.
fn queue_pair(transport: Transport, host: &mut Surroundings) -> Qp {
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 0 };
    let mut qp = Qp::new(QpConfig {
        qpn: QPN,
        transport,
        pd: PdId(1),
        cap,
        signal_all: true,
        shared_recv: false,
        port_mtu: Mtu::B4096,
        congestion: Controller::Fixed(FixedWindow { bytes: 1 << 20 }),
    });
    let attr = QpAttr {
        port: 1,
        access: Access::REMOTE_WRITE,
        path_mtu: Mtu::B1024,
        dest_qpn: Qpn::new(0x34),
        rq_psn: Psn::new(START),
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        av: AddressVector { dgid: gid(2), port: 1, ..AddressVector::default() },
        ..QpAttr::default()
    };
    use AttrMask as M;
    let reliable = transport == Transport::Rc;
    let only_rc = |mask| if reliable { mask } else { M::empty() };
    let steps = [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (
            QpState::Rtr,
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | only_rc(M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER),
        ),
        (QpState::Rts, M::SQ_PSN | only_rc(M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC)),
    ];
    for (state, mask) in steps {
        let route = mask.contains(M::AV).then(|| Route { sgid: gid(1), dgid: gid(2), ..Route::default() });
        let attr = QpAttr { state, ..attr };
        qp.modify(&attr, mask | M::STATE, route, &AttrLimits::default(), NOW, host).unwrap();
    }
    qp
}

fn arrival() -> Arrival {
    Arrival { sgid: gid(2), dgid: gid(1), ..Arrival::default() }
}

fn service_of(qp: &Qp) -> Service {
    if qp.transport() == Transport::Rc { Service::Rc } else { Service::Uc }
}

fn opcode(qp: &Qp, operation: Operation) -> Opcode {
    Opcode::new(service_of(qp), operation)
}

fn give(qp: &mut Qp, host: &mut Surroundings, operation: Operation, psn: u32, reth: Option<Reth>, len: u32) {
    let mut headers = Headers::new(Bth::new(opcode(qp, operation), QPN, Psn::new(psn)));
    headers.reth = reth;
    let payload = vec![0; len as usize];
    qp.handle_packet(&arrival(), &Packet { headers, payload: &payload }, NOW, host);
}

fn begin_write(qp: &mut Qp, host: &mut Surroundings, len: u32) {
    let reth = Some(Reth { addr: ADDR, rkey: RKEY, len });
    give(qp, host, Operation::WriteFirst, START, reth, MTU);
}

fn expected(qp: &Qp) -> Option<Expected> {
    qp.expected_after(opcode(qp, Operation::WriteMiddle))
}

fn placed(run: Expected, packets: u32, ack_req: bool) -> Placed {
    let run = Expected { packets, ..run };
    Placed { first: Bth::new(run.opcode, run.qpn, run.psn), run, ack_req }
}

#[test]
fn the_middle_of_a_write_is_expected_and_never_its_end() {
    for transport in [Transport::Rc, Transport::Uc] {
        for (len, middle) in [(MTU + 1, 0), (2 * MTU, 0), (2 * MTU + 1, 1), (10 * MTU, 8), (10 * MTU + 4, 9)]
        {
            let mut host = Surroundings::default();
            let mut qp = queue_pair(transport, &mut host);
            assert_eq!(expected(&qp), None, "nothing has begun");
            begin_write(&mut qp, &mut host, len);
            let Some(run) = expected(&qp) else {
                assert_eq!(middle, 0, "{transport:?}, {len} bytes");
                continue;
            };
            assert_eq!((run.qpn, run.from, run.pd), (QPN, gid(2), PdId(1)));
            assert_eq!(run.opcode, opcode(&qp, Operation::WriteMiddle));
            assert_eq!((run.psn, run.packets, run.payload_len), (Psn::new(START + 1), middle, MTU));
            assert_eq!(run.target, Target::Remote { rkey: RKEY, addr: ADDR + u64::from(MTU) });
            for other in [Operation::WriteLast, Operation::SendMiddle, Operation::Acknowledge] {
                assert_eq!(qp.expected_after(opcode(&qp, other)), None, "nothing follows {other:?}");
            }
        }
    }
}

#[test]
fn placed_packets_count_as_received_and_as_written() {
    for transport in [Transport::Rc, Transport::Uc] {
        let mut host = Surroundings::default();
        let mut qp = queue_pair(transport, &mut host);
        begin_write(&mut qp, &mut host, 10 * MTU);
        let run = expected(&qp).unwrap();
        host.checked.clear();
        qp.handle_placed(&arrival(), &placed(run, 5, true), NOW, &mut host);
        // One check over all of them, and not a byte copied: the one write is that of the first packet.
        assert_eq!(host.checked, [(ADDR + u64::from(MTU), 5 * u64::from(MTU))]);
        assert_eq!(host.written, [(ADDR, MTU as usize)]);
        assert_eq!((qp.counters().rx_packets, qp.counters().rx_bytes), (6, 6 * u64::from(MTU)));
        // The number wraps in between.
        assert_eq!(expected(&qp), Some(run.after(5)));
        assert_eq!(run.after(5).psn, Psn::new(4));
        qp.handle_placed(&arrival(), &placed(run.after(5), 3, false), NOW, &mut host);
        assert_eq!(expected(&qp), None);
        give(&mut qp, &mut host, Operation::WriteLast, 7, None, MTU);
        assert_eq!(host.written.last(), Some(&(ADDR + 9 * u64::from(MTU), MTU as usize)));
        assert_eq!(host.dropped, []);
        qp.poll_replies(NOW, &mut host);
        if transport == Transport::Rc {
            // What was asked for in the first run is answered for the whole of it.
            assert_eq!(host.sent.len(), 1);
            assert_eq!(host.sent[0].bth.psn, Psn::new(3));
        }
    }
}

#[test]
fn what_is_not_due_any_more_is_lost() {
    let mut host = Surroundings::default();
    let mut qp = queue_pair(Transport::Rc, &mut host);
    begin_write(&mut qp, &mut host, 10 * MTU);
    let run = expected(&qp).unwrap();
    let elsewhere = Target::Remote { rkey: RKEY, addr: ADDR };
    let wrong = [
        placed(run.after(1), 2, false),
        placed(run, 9, false),
        placed(Expected { target: elsewhere, ..run }, 2, false),
        placed(Expected { payload_len: 2 * MTU, ..run }, 2, false),
    ];
    for one in wrong {
        qp.handle_placed(&arrival(), &one, NOW, &mut host);
        assert_eq!(host.dropped.pop(), Some(DropReason::BadPsn), "{one:?}");
    }
    let stranger = Arrival { sgid: gid(3), ..arrival() };
    qp.handle_placed(&stranger, &placed(run, 2, false), NOW, &mut host);
    assert_eq!(host.dropped.pop(), Some(DropReason::WrongAddress));
    qp.fail(EventKind::QpFatal, NOW, &mut host);
    assert_eq!(expected(&qp), None);
    qp.handle_placed(&arrival(), &placed(run, 2, false), NOW, &mut host);
    assert_eq!(host.dropped.pop(), Some(DropReason::WrongState));
    assert_eq!(qp.counters().rx_packets, 1);
}

#[test]
fn memory_that_went_away_is_refused_as_ever() {
    let mut host = Surroundings::default();
    let mut qp = queue_pair(Transport::Rc, &mut host);
    begin_write(&mut qp, &mut host, 10 * MTU);
    let run = expected(&qp).unwrap();
    host.refuses = true;
    qp.handle_placed(&arrival(), &placed(run, 2, false), NOW, &mut host);
    assert_eq!(qp.state(), QpState::Err);
    qp.poll_replies(NOW, &mut host);
    let nak = host.sent.last().and_then(|h| h.aeth).map(|a| a.syndrome);
    assert_eq!(nak, Some(Syndrome::Nak(NakCode::RemoteAccess)));

    let mut host = Surroundings::default();
    let mut qp = queue_pair(Transport::Uc, &mut host);
    begin_write(&mut qp, &mut host, 10 * MTU);
    let run = expected(&qp).unwrap();
    host.refuses = true;
    qp.handle_placed(&arrival(), &placed(run, 2, false), NOW, &mut host);
    assert_eq!((qp.state(), host.dropped.pop()), (QpState::Rts, Some(DropReason::AccessDenied)));
    assert_eq!(expected(&qp), None);
}

#[test]
fn the_middle_of_a_read_response_is_expected_per_request_packet() {
    let mut host = Surroundings::default();
    let mut qp = queue_pair(Transport::Rc, &mut host);
    // 100 packets, so requests of 64 and of 36; the entries end in the middle of both.
    let sges = [
        Sge { addr: 0x1000, len: 40 * MTU + 8, lkey: LKey(5) },
        Sge { addr: 0x90_0000, len: 60 * MTU - 8, lkey: LKey(6) },
    ];
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Read { addr: ADDR, rkey: RKEY },
        flags: SendFlags::SIGNALED,
        payload: Payload::Sges(&sges),
        ud: None,
        srq: None,
    };
    qp.post_send(&wr, NOW, &mut host).unwrap();
    qp.poll_requests(NOW, &mut host);
    assert_eq!(host.sent.len(), 2);
    let middle = opcode(&qp, Operation::ReadResponseMiddle);
    let aeth = ferroce_proto::wire::Aeth { syndrome: Syndrome::Ack { credit: 31 }, msn: 0 };
    let payload = vec![0; MTU as usize];
    let give = |qp: &mut Qp, host: &mut Surroundings, operation, psn| {
        let mut headers = Headers::new(Bth::new(Opcode::new(Service::Rc, operation), QPN, Psn::new(psn)));
        headers.aeth = headers.bth.opcode.has_aeth().then_some(aeth);
        qp.handle_packet(&arrival(), &Packet { headers, payload: &payload }, NOW, host);
    };
    assert_eq!(qp.expected_after(middle), None, "a first packet comes first");
    give(&mut qp, &mut host, Operation::ReadResponseFirst, 0);
    let run = qp.expected_after(middle).unwrap();
    assert_eq!((run.psn, run.packets, run.opcode), (Psn::new(1), 39, middle));
    assert_eq!(run.target, Target::Local { lkey: LKey(5), addr: 0x1000 + u64::from(MTU) });
    qp.handle_placed(&arrival(), &placed(run, 39, false), NOW, &mut host);
    assert_eq!(qp.expected_after(middle), None, "the next payload has two places");
    give(&mut qp, &mut host, Operation::ReadResponseMiddle, 40);
    let run = qp.expected_after(middle).unwrap();
    assert_eq!((run.psn, run.packets), (Psn::new(41), 63 - 41));
    assert_eq!(run.target, Target::Local { lkey: LKey(6), addr: 0x90_0000 + u64::from(MTU) - 8 });
    qp.handle_placed(&arrival(), &placed(run, run.packets, false), NOW, &mut host);
    assert_eq!(qp.expected_after(middle), None, "the last packet of the request is due");
    give(&mut qp, &mut host, Operation::ReadResponseLast, 63);
    give(&mut qp, &mut host, Operation::ReadResponseFirst, 64);
    let run = qp.expected_after(middle).unwrap();
    assert_eq!((run.psn, run.packets), (Psn::new(65), 99 - 65));
    qp.handle_placed(&arrival(), &placed(run, run.packets, false), NOW, &mut host);
    assert_eq!((host.completions.len(), host.dropped.len()), (0, 0));
    give(&mut qp, &mut host, Operation::ReadResponseLast, 99);
    assert_eq!(host.completions.len(), 1);
    assert_eq!((host.completions[0].status, host.completions[0].byte_len), (WcStatus::Success, 100 * MTU));
    assert_eq!(qp.expected_after(middle), None);
}

#[test]
fn a_read_into_memory_that_went_away_fails() {
    let mut host = Surroundings::default();
    let mut qp = queue_pair(Transport::Rc, &mut host);
    let sges = [Sge { addr: 0x1000, len: 10 * MTU, lkey: LKey(5) }];
    let op = SendOp::Read { addr: ADDR, rkey: RKEY };
    let payload = Payload::Sges(&sges);
    qp.post_send(
        &SendWr { wr_id: 1, op, flags: SendFlags::empty(), payload, ud: None, srq: None },
        NOW,
        &mut host,
    )
    .unwrap();
    qp.poll_requests(NOW, &mut host);
    let mut headers = Headers::new(Bth::new(opcode(&qp, Operation::ReadResponseFirst), QPN, Psn::new(0)));
    headers.aeth = Some(ferroce_proto::wire::Aeth { syndrome: Syndrome::Ack { credit: 31 }, msn: 0 });
    qp.handle_packet(&arrival(), &Packet { headers, payload: &vec![0; MTU as usize] }, NOW, &mut host);
    let run = qp.expected_after(opcode(&qp, Operation::ReadResponseMiddle)).unwrap();
    host.refuses = true;
    qp.handle_placed(&arrival(), &placed(run, 3, false), NOW, &mut host);
    assert_eq!(qp.state(), QpState::Err);
    assert_eq!(host.completions[0].status, WcStatus::LocProtErr);
}
