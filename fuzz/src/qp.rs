//! A whole queue pair under any sequence of packets, calls and time.
//!
//! Most packets are almost valid: the PSN is the expected one or close to it, and lengths and keys are those of a correct peer. The input
//! decides which field is wrong.

use super::choices::Choices;
use super::qp_host::{Behaviour, Host, PD, REGION, RKEY, SRQ, Sent, sge};
use ferroce_proto::cc::{FixedWindow, HalvingWindow};
use ferroce_proto::qp::state::{AttrLimits, transitions};
use ferroce_proto::qp::{Arrival, Qp, QpConfig, ReorderBudget};
use ferroce_proto::verbs::{
    Access, AddressVector, AtomicOp, AttrMask, FlushWhat, Mtu, MwBind, Payload, QpAttr, QpCap, QpState,
    RecvWr, Route, SendFlags, SendOp, SendWr, Transport, UdTarget,
};
use ferroce_proto::wire::{
    Aeth, AtomicEth, Bth, Deth, Feth, Headers, Opcode, Operation, PiggybackedAck, RendezvousSend, Reth,
    SourcePiece, SourceRef, Syndrome,
};
use ferroce_proto::{Gid, LKey, PKey, Psn, Qkey, Qpn, RKey, Time};
use std::collections::VecDeque;
use std::sync::Arc;

const QPN: Qpn = Qpn::new(17);
const PEER: Qpn = Qpn::new(23);
const QKEY: Qkey = Qkey(0x1111);
const CAP: QpCap =
    QpCap { max_send_wr: 8, max_recv_wr: 4, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 64 };
const LIMITS: AttrLimits =
    AttrLimits { max_rd_atomic: 4, max_dest_rd_atomic: 4, pkeys: 1, gids: 1, active_mtu: Mtu::B4096 };
/// Less than all packets of a full store need, so that the bound is reached.
const REORDER_BYTES: usize = 64 * 1024;
/// More timers than any state of a queue pair can expire at one moment.
const MAX_TIMEOUTS: usize = 64;

struct World {
    qp: Qp,
    host: Host,
    now: Time,
    next_id: u64,
    reorder: Arc<ReorderBudget>,
    /// Heap bytes of the new queue pair.
    footprint: usize,
}

fn address(number: u8) -> Gid {
    Gid::from_ip([10, 0, 0, number].into())
}

/// For any sequence, a queue pair does not panic. It completes each request once and in order, accesses only memory that was granted and
/// memory of outstanding requests, and keeps its own memory inside its bounds.
pub fn qp(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let mut world = World::new(&mut choices);
    for _ in 0..3 {
        world.advance_state(0);
    }
    while !choices.0.is_empty() {
        world.step(&mut choices);
        world.settle();
    }
    world.end();
}

impl World {
    fn new(choices: &mut Choices<'_>) -> World {
        let kind = choices.byte();
        let transport = Transport::ALL[usize::from(kind) % 5];
        let has_srq = transport == Transport::XrcTgt || (kind & 0x80 != 0 && transport.receives());
        let window = 2048;
        let congestion = match kind & 0x40 {
            0 => FixedWindow { bytes: window }.into(),
            _ => HalvingWindow::new(window).into(),
        };
        let reorder = ReorderBudget::new(REORDER_BYTES);
        let qp = Qp::new(QpConfig {
            qpn: QPN,
            transport,
            pd: PD,
            cap: CAP,
            signal_all: kind & 0x20 != 0,
            shared_recv: (has_srq && !transport.is_xrc()).then_some(PD),
            port_mtu: Mtu::B256,
            congestion,
            reorder: Arc::clone(&reorder),
            takes_large: true,
            takes_jumbo: true,
        });
        let host = Host {
            transport,
            qpn: QPN,
            peer: PEER,
            behaviour: Behaviour::default(),
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            shared: has_srq.then(VecDeque::new),
            granted: Access::empty(),
            mtu: Mtu::B256.bytes(),
            allowed_large: false,
            allowed_jumbo: false,
            requested_jumbo: false,
            requests: VecDeque::new(),
            expected: Psn::new(0),
            sent: 0,
        };
        let footprint = qp.memory_footprint();
        World { qp, host, now: Time(1), next_id: 0, reorder, footprint }
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 16 {
            0..=6 => self.packet(choices),
            7 => self.rendezvous(choices),
            8..=9 => self.pass_time(choices.byte()),
            10..=11 => self.post_send(choices),
            12 => self.post_recv(choices.byte()),
            13 => self.host.behaviour = Behaviour(choices.byte()),
            14 => self.advance_state(choices.byte()),
            _ => self.modify(choices),
        }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// The calls of a NIC after each step, and the checks.
    fn settle(&mut self) {
        for _ in 0..MAX_TIMEOUTS {
            if self.qp.deadline().is_none_or(|at| at > self.now) {
                break;
            }
            self.qp.handle_timeout(self.now, &mut self.host);
        }
        self.qp.poll_replies(self.now, &mut self.host);
        self.qp.poll_requests(self.now, &mut self.host);
        self.check();
    }

    fn check(&mut self) {
        let (qp, host) = (&self.qp, &mut self.host);
        let outstanding = qp.sends_outstanding();
        assert!(outstanding <= host.sends.len(), "more sends outstanding than posted");
        let done = host.sends.len() - outstanding;
        assert!(host.sends.drain(..done).all(|sent| !sent.signaled), "a send ended without its completion");
        let in_use = host.receives.len() - qp.recvs_waiting();
        assert!(in_use <= 1, "{in_use} receives ended without their completion");
        match qp.state() {
            QpState::Err => {
                assert!(host.sends.is_empty() && host.receives.is_empty(), "ERR returns everything");
            }
            QpState::Sqe => {
                assert!(matches!(host.transport, Transport::Uc | Transport::Ud) && host.sends.is_empty());
            }
            QpState::Reset => assert_eq!((outstanding, qp.recvs_waiting()), (0, 0)),
            _ => {}
        }
        assert!(self.reorder.left() <= REORDER_BYTES);
        let kept = REORDER_BYTES - self.reorder.left();
        // Replay entries of READs and atomics are the rest.
        assert!(qp.memory_footprint() <= self.footprint + kept + 4096, "{} bytes", qp.memory_footprint());
    }

    /// Moves to ERR and RESET, which must return all requests and free all memory.
    fn end(mut self) {
        self.host.behaviour = Behaviour::default();
        self.change(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE);
        self.settle();
        self.change(&QpAttr { state: QpState::Reset, ..QpAttr::default() }, AttrMask::STATE);
        assert_eq!(self.reorder.left(), REORDER_BYTES, "RESET frees the stored packets");
        assert_eq!(self.qp.deadline(), None);
    }

    /// The next transition towards RTS, with valid attributes. From RTS to SQD or RESET, from ERR to RESET.
    fn advance_state(&mut self, choice: u8) {
        let from = self.qp.state();
        let to = match from {
            QpState::Reset => QpState::Init,
            QpState::Init => QpState::Rtr,
            QpState::Rtr | QpState::Sqd | QpState::Sqe => QpState::Rts,
            QpState::Rts if choice & 0x80 != 0 => QpState::Sqd,
            QpState::Rts | QpState::Err => QpState::Reset,
        };
        let mut rows = transitions().filter(|row| (row.from, row.to) == (from, to));
        let Some(attrs) = rows.next().and_then(|row| row.attrs(self.host.transport)) else { return };
        let access = Access::LOCAL_WRITE | Access::from_bits_truncate((!u32::from(choice) & 7) << 1);
        let attr = QpAttr {
            state: to,
            path_mtu: Mtu::B256,
            qkey: QKEY,
            rq_psn: Psn::new(0xff_fffe),
            sq_psn: Psn::new(0xff_fff0),
            dest_qpn: PEER,
            access: access | Access::FLUSH_GLOBAL,
            av: AddressVector { dgid: address(2), hop_limit: 64, port: 1, ..AddressVector::default() },
            max_rd_atomic: 1 + choice % 3,
            max_dest_rd_atomic: 1 + choice % 4,
            min_rnr_timer: choice % 32,
            port: 1,
            timeout: 8 + choice % 8,
            retry_cnt: choice % 8,
            rnr_retry: choice / 8 % 8,
            ..QpAttr::default()
        };
        self.change(&attr, attrs.required | AttrMask::STATE);
    }

    /// Any state and mask.
    fn modify(&mut self, choices: &mut Choices<'_>) {
        let [state, value, m0, m1, m2] = [(); 5].map(|()| choices.byte());
        let mut attr = self.qp.query();
        attr.state = QpState::ALL[usize::from(state) % 7];
        (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (value % 40, value % 9, value / 3 % 9);
        (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (value % 6, value / 4 % 6);
        attr.min_rnr_timer = value % 40;
        let bits =
            if value & 0x80 != 0 { AttrMask::STATE.bits() } else { u32::from_be_bytes([0, m0, m1, m2]) };
        // The host checks packets against the path MTU and the peer of `advance_state`, so they must not change.
        let mask = AttrMask::from_bits_retain(bits)
            - AttrMask::PATH_MTU
            - AttrMask::DEST_QPN
            - AttrMask::ACCESS_FLAGS;
        self.change(&attr, mask);
    }

    fn change(&mut self, attr: &QpAttr, mask: AttrMask) {
        let route = Route { sgid: address(1), dgid: address(2), hop_limit: 64, ..Route::default() };
        let before = self.qp.query();
        let route = mask.contains(AttrMask::AV).then_some(route);
        match self.qp.modify(attr, mask, route, &LIMITS, self.now, &mut self.host) {
            Err(_) => assert_eq!(self.qp.query(), before, "a refused call changes nothing"),
            Ok(()) => {
                self.host.granted |= self.qp.query().access;
                if self.qp.state() == QpState::Rtr && before.state != QpState::Rtr {
                    self.host.expected = self.qp.query().rq_psn;
                }
            }
        }
        if self.qp.state() == QpState::Reset {
            self.host.sends.clear();
            self.host.receives.clear();
            self.host.granted = Access::empty();
        }
    }

    /// From 250 ns to about four seconds.
    fn pass_time(&mut self, choice: u8) {
        self.now = match self.qp.deadline() {
            Some(due) if choice >= 128 => due.max(self.now),
            _ => self.now + (250_u64 << (choice % 25)),
        };
    }

    fn post_recv(&mut self, choice: u8) {
        let wr_id = self.id();
        if let Some(shared) = &mut self.host.shared {
            if shared.len() < 4 {
                shared.push_back(wr_id);
            }
            return;
        }
        let sges = [sge(wr_id, u32::from(choice) * 4), sge(wr_id, 100)];
        let sges = &sges[..usize::from(choice) % 3];
        // In ERR it completes immediately.
        self.host.receives.push_back(wr_id);
        let posted = self.qp.post_recv(&RecvWr { wr_id, sges }, self.now, &mut self.host);
        if posted.is_err() {
            assert_eq!(self.host.receives.pop_back(), Some(wr_id), "a refused receive completed");
        }
    }

    fn post_send(&mut self, choices: &mut Choices<'_>) {
        let [kind, len, flags] = [(); 3].map(|()| choices.byte());
        let wr_id = self.id();
        let (addr, rkey) = (REGION.0 + u64::from(len) * 8, RKEY);
        let len = u32::from(len) * 11;
        let op = match kind % 12 {
            0 | 1 => SendOp::Send,
            2 => SendOp::SendImm(9),
            3 => SendOp::SendInv(rkey),
            4 => SendOp::Write { addr, rkey },
            5 => SendOp::WriteImm { addr, rkey, imm: 8 },
            6 => SendOp::Read { addr, rkey },
            7 => SendOp::Atomic { addr, rkey, op: AtomicOp::FetchAdd { add: 1 } },
            8 => SendOp::AtomicWrite { addr, rkey, value: [1; 8] },
            9 => SendOp::Flush { addr, rkey, len, what: FlushWhat { global: true, ..FlushWhat::default() } },
            10 => SendOp::LocalInv(rkey),
            _ => {
                let access = Access::REMOTE_READ;
                SendOp::BindMw(MwBind { window: 1, rkey, lkey: LKey(1), addr: 0, len: 8, access })
            }
        };
        let sges = [sge(wr_id, if kind % 12 == 7 { 8 } else { len }), sge(wr_id, 3)];
        let count = if matches!(kind % 12, 8..) { 0 } else { 1 + usize::from(kind >= 0xf0) };
        let inline = [7; 80];
        let payload = match flags & 0x40 {
            0 => Payload::Sges(&sges[..count]),
            _ => Payload::Inline(&inline[..(len as usize).min(80)]),
        };
        let route = Route { sgid: address(1), dgid: address(2), hop_limit: 64, ..Route::default() };
        let ud = (flags & 0x20 == 0).then_some(UdTarget { route, qpn: PEER, qkey: QKEY });
        let flags = SendFlags::from_bits_truncate(u32::from(flags) & 7);
        let srq = (kind & 0x80 == 0).then_some(SRQ);
        let wr = SendWr { wr_id, op, flags, payload, ud, srq };
        let signaled = flags.contains(SendFlags::SIGNALED) || self.qp.signals_all();
        // It may complete before the call returns.
        self.host.sends.push_back(Sent { wr_id, signaled });
        let now = self.now;
        if self.qp.post_send(|| wr, || now, &mut self.host).is_err() {
            assert!(
                self.host.sends.pop_back().is_some_and(|sent| sent.wr_id == wr_id),
                "a refused send completed"
            );
        }
    }

    fn arrival(&self, choice: u8) -> Arrival {
        let peer = if choice & 0x1f == 0x1f { 3 } else { 2 };
        let ring = (choice & 0x20 != 0).then_some(choice >> 6);
        Arrival { sgid: address(peer), dgid: address(1), traffic_class: 0, hop_limit: 64, ring, age_ns: 0 }
    }

    fn packet(&mut self, choices: &mut Choices<'_>) {
        let [opcode, distance, flags, len, value, from] = [(); 6].map(|()| choices.byte());
        // Most are packets of this service; the others have any opcode.
        let byte = if flags & 1 == 0 { (self.qp.service() as u8) << 5 | opcode & 0x1f } else { opcode };
        let opcode = Opcode::from_byte(byte).unwrap_or(Opcode::new(self.qp.service(), OPERATION));
        let psn = self.psn_near(opcode, distance);
        let bth = Bth {
            ack_req: flags & 2 != 0,
            partial_icrc: from & 4 != 0,
            jumbo: from & 8 != 0,
            hello: flags & 4 != 0,
            extended: flags & 8 != 0,
            selective: flags & 16 != 0,
            solicited: flags & 32 != 0,
            pkey: if flags & 0xc0 == 0xc0 { PKey(u16::from(value)) } else { PKey::DEFAULT },
            ..Bth::new(opcode, QPN, psn)
        };
        let payload_len = self.payload_len(&bth, len);
        let headers = Headers {
            bth: Bth { pad: payload_len.wrapping_neg() as u8 & 3, ..bth },
            ..self.extensions(bth, len, value)
        };
        let mut bytes = [0; Headers::MAX_LEN + 16 + 2 * 4096];
        let written = headers.write(&mut bytes);
        let end = written + payload_len.next_multiple_of(4);
        let changes = if from & 0x10 != 0 { choices.take(2) } else { &[] };
        if let [at, value] = *changes {
            bytes[usize::from(at) % end] = value;
        }
        if opcode.operation.is_request() && distance == 0 {
            self.host.expected = psn.plus(1);
        }
        self.receive(from, &bytes[..end]);
    }

    fn receive(&mut self, from: u8, bytes: &[u8]) {
        let requests_jumbo = |headers: &Headers| headers.bth.jumbo && headers.bth.opcode.operation == READ;
        self.host.requested_jumbo |= Headers::parse(bytes, |_| true).is_ok_and(|h| requests_jumbo(&h));
        let (arrival, now) = (self.arrival(from), self.now);
        let _ = self.qp.receive(&arrival, bytes, || now, &mut self.host);
    }

    /// A PSN close to the expected one or, for responses, to that of a request in flight.
    fn psn_near(&self, opcode: Opcode, distance: u8) -> Psn {
        let middle = match opcode.operation.is_response() {
            true => self.host.requests.get(usize::from(distance >> 4)).or(self.host.requests.back()).copied(),
            false => Some(self.host.expected),
        };
        let (middle, distance) = (
            middle.unwrap_or(Psn::new(0)),
            if opcode.operation.is_response() { distance & 15 } else { distance },
        );
        match distance {
            0..96 => middle.plus(distance.into()),
            96..192 => middle.minus(u32::from(distance) - 95),
            _ => middle.plus(u32::from(distance - 191) << 17),
        }
    }

    fn payload_len(&self, bth: &Bth, choice: u8) -> usize {
        let (operation, mtu) = (bth.opcode.operation, self.host.mtu as usize);
        let any = usize::from(choice & 0x7f) * 3;
        match choice {
            0x80.. => any,
            _ if bth.jumbo && operation.is_first() => mtu + any,
            _ if operation == Operation::AtomicWrite => 8,
            _ if operation.is_first() || operation.is_middle() => mtu,
            _ if operation.is_send() || operation.is_write() || operation.is_read_response() => any.min(mtu),
            _ => 0,
        }
    }

    fn extensions(&self, bth: Bth, len: u8, value: u8) -> Headers {
        let rkey = if value == 0xff { RKey(0x1234_5678) } else { RKEY };
        let addr = REGION.0 + u64::from(value) * 16;
        let is_write = bth.opcode.operation.is_write();
        let first = bth.opcode.operation.is_first();
        let total = match (is_write, first) {
            (true, true) => self.host.mtu * 2 + u32::from(value & 3) * self.host.mtu / 2,
            (true, false) => self.payload_len(&bth, len) as u32,
            _ => u32::from(len) * 7,
        };
        let total = if value == 0xfe { u32::MAX } else { total };
        // Reserved syndromes are malformed. Only changed bytes produce them.
        let aeth =
            Aeth { syndrome: Syndrome::from_byte(value).unwrap_or(Syndrome::ACK_NO_CREDIT), msn: len.into() };
        let psn = self.host.requests.back().copied().unwrap_or_default().minus(u32::from(value & 3));
        Headers {
            feth: Some(Feth { placement: value & 3, level: value >> 2 & 1 }),
            reth: Some(Reth { addr, rkey, len: total }),
            aeth: Some(aeth),
            atomic: Some(AtomicEth { addr, rkey, swap_or_add: 1, compare: 7 }),
            atomic_ack: Some(7),
            deth: Some(Deth { qkey: if value == 0xfd { Qkey(1) } else { QKEY }, src_qpn: PEER }),
            imm: Some(5),
            ieth: Some(rkey),
            xrceth: Some(if value == 0xfc { ferroce_proto::Srqn::new(9) } else { SRQ }),
            piggybacked_ack: Some(PiggybackedAck { psn, aeth, jumbo: value & 4 != 0 }),
            ..Headers::new(bth)
        }
    }

    /// A record as a local peer writes it.
    fn rendezvous(&mut self, choices: &mut Choices<'_>) {
        let [distance, len, packets, from, flags] = [(); 5].map(|()| choices.byte());
        let psn = self.psn_near(Opcode::new(self.qp.service(), OPERATION), distance);
        let bytes = 1 + u32::from(len) * 4;
        let source = SourceRef::new([SourcePiece { addr: 0x5000, len: bytes }]).expect("one piece");
        let exact = bytes.div_ceil(self.host.mtu);
        let aeth = Aeth { syndrome: Syndrome::ACK_NO_CREDIT, msn: 1 };
        let acked = self.host.requests.back().copied().unwrap_or_default();
        let head = RendezvousSend {
            dest_qpn: QPN,
            pkey: PKey::DEFAULT,
            psn,
            packets: if packets < 200 { exact } else { packets.into() },
            solicited: flags & 1 != 0,
            reth: (flags & 8 != 0).then_some(Reth { addr: 0x9000, rkey: RKey(flags.into()), len: bytes }),
            imm: (flags & 10 != 0).then_some(3),
            piggybacked_ack: (flags & 4 != 0).then_some(PiggybackedAck {
                psn: acked,
                aeth,
                jumbo: flags & 8 != 0,
            }),
        };
        if distance == 0 {
            self.host.expected = psn.plus(head.packets);
        }
        let (record, end) = head.to_bytes(&source);
        self.receive(from & !0xc0 | 0x60, &record[..end]);
    }
}

const OPERATION: Operation = Operation::SendOnly;
const READ: Operation = Operation::ReadRequest;
