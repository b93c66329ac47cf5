//! The NIC of the queue pair under test. It has no memory: an address contains the number of its work request, so every access can be
//! checked against the outstanding requests, and every completion against the posted ones.

use ferroce_proto::qp::{
    Attempt, DropReason, Egress, Events, JUMBO_SEGMENT, LARGE_SEGMENT, Memory, OneSided, Placement, RecvWqe,
    RefusalReason, Segment, Side, TxError, TxPayload, WriteHeaders,
};
use ferroce_proto::verbs::{
    Access, AtomicOp, Completion, EventKind, MemoryFault, MwBind, Route, Sge, Transport, WcStatus,
};
use ferroce_proto::wire::{Headers, RendezvousSend, SourceRef};
use ferroce_proto::{LKey, PdId, Psn, Qpn, RKey, Srqn};
use std::collections::VecDeque;
use std::fmt;

pub const PD: PdId = PdId(5);
pub const RKEY: RKey = RKey(0x77);
pub const SRQ: Srqn = Srqn::new(3);
/// The only region that the peer may use.
pub const REGION: (u64, u64) = (0x10_0000, 4096);
const NO_KEY: MemoryFault = MemoryFault::NoSuchKey { key: 0 };

/// A piece of memory that belongs to this work request.
pub fn sge(wr_id: u64, len: u32) -> Sge {
    Sge { addr: wr_id << 32, len, lkey: LKey(1) }
}

/// Behaviour of the NIC, which the input chooses.
#[derive(Clone, Copy, Default)]
pub struct Behaviour(pub u8);

impl Behaviour {
    fn has(self, bit: u8) -> bool {
        self.0 & 1 << bit != 0
    }
    fn is_full(self) -> bool {
        self.has(0)
    }
    fn faults(self) -> bool {
        self.has(1)
    }
    fn rendezvous(self) -> bool {
        self.has(2)
    }
    fn is_direct(self) -> bool {
        self.has(3)
    }
    fn coalesces(self) -> bool {
        self.has(4)
    }
    fn sends_large(self) -> bool {
        self.has(5)
    }
    fn forbids_region(self) -> bool {
        self.has(6)
    }
    fn carries_jumbo(self) -> bool {
        self.has(7)
    }
}

/// A posted send: its number, and whether its success is reported.
#[derive(Clone, Copy)]
pub struct Sent {
    pub wr_id: u64,
    pub signaled: bool,
}

pub struct Host {
    pub transport: Transport,
    pub qpn: Qpn,
    pub peer: Qpn,
    pub behaviour: Behaviour,
    /// Sends that may still complete.
    pub sends: VecDeque<Sent>,
    /// Receives that were posted and have not completed. Of a shared queue: those that the queue pair has taken.
    pub receives: VecDeque<u64>,
    /// Receives that wait in the shared queue.
    pub shared: Option<VecDeque<u64>>,
    /// Rights that the queue pair granted since it left RESET.
    pub granted: Access,
    pub mtu: u32,
    /// Packets beyond the path MTU were allowed at least once through shared memory.
    pub allowed_large: bool,
    /// The path carried jumbo packets at least once.
    pub allowed_jumbo: bool,
    /// The peer has requested a READ whose response is a jumbo packet.
    pub requested_jumbo: bool,
    /// The PSNs of the last requests that the queue pair sent.
    pub requests: VecDeque<Psn>,
    /// The PSN that its last ACK or NAK implies as the next one.
    pub expected: Psn,
    pub sent: u64,
}

impl Host {
    fn check_send_memory(&self, sges: &[Sge], offset: u64, len: u64) -> Result<(), MemoryFault> {
        assert!(offset + len <= sges.iter().map(|sge| u64::from(sge.len)).sum(), "beyond the request's SGEs");
        for sge in sges.iter().filter(|sge| sge.len > 0) {
            let wr_id = sge.addr >> 32;
            assert!(
                self.sends.iter().any(|sent| sent.wr_id == wr_id),
                "memory of request {wr_id} after its end"
            );
        }
        if self.behaviour.faults() { Err(NO_KEY) } else { Ok(()) }
    }

    fn check_region(&self, rkey: RKey, addr: u64, len: u64, need: Access) -> Result<(), MemoryFault> {
        assert!(self.granted.contains(need), "{need} without the right of the queue pair");
        let (start, region_len) = REGION;
        let is_inside = addr >= start && addr - start <= region_len && len <= region_len - (addr - start);
        let is_open = rkey == RKEY && !self.behaviour.forbids_region();
        if is_open && is_inside { Ok(()) } else { Err(NO_KEY) }
    }

    fn notice(&mut self, headers: &Headers) {
        self.sent += 1;
        let bth = &headers.bth;
        if bth.opcode.operation.is_response() {
            self.expected = match headers.aeth {
                Some(aeth) if matches!(aeth.syndrome, ferroce_proto::wire::Syndrome::Ack { .. }) => {
                    bth.psn.plus(1)
                }
                _ => bth.psn,
            };
        } else {
            self.requests.push_back(bth.psn);
            self.requests.drain(..self.requests.len().saturating_sub(16));
        }
    }

    fn send_done(&mut self, done: &Completion) {
        loop {
            let sent = self.sends.pop_front().expect("a completion of something posted");
            if sent.wr_id == done.wr_id {
                assert!(
                    sent.signaled || done.status != WcStatus::Success,
                    "an unsignalled success is reported"
                );
                return;
            }
            assert!(!sent.signaled, "request {} was passed over by {}", sent.wr_id, done.wr_id);
        }
    }
}

impl Egress for Host {
    fn send<W: WriteHeaders>(&mut self, _route: &Route, segment: &Segment<'_, W>) -> Result<u32, TxError> {
        if self.behaviour.is_full() {
            return Err(TxError::Full);
        }
        let len = segment.payload.len();
        // A message that was divided into large segments is retransmitted in the same segments.
        let may_be_large = self.allowed_large || self.transport == Transport::Ud;
        let headers = segment.headers.to_headers(len);
        let may_be_jumbo = match headers.bth.opcode.operation.is_read_response() {
            true => self.requested_jumbo,
            false => self.allowed_jumbo && headers.bth.jumbo,
        };
        assert!(may_be_jumbo || !headers.bth.partial_icrc, "only a jumbo packet may have a partial ICRC");
        let limit = match (may_be_jumbo, may_be_large) {
            (true, _) => JUMBO_SEGMENT,
            (_, true) => LARGE_SEGMENT,
            _ => self.mtu,
        };
        assert!(len as u32 <= limit, "{len} bytes in one packet of at most {limit}");
        let packets = Segment {
            headers: &headers,
            payload: segment.payload,
            count: segment.count,
            transmission: segment.transmission,
            is_acknowledged: segment.is_acknowledged,
        };
        for n in 0..segment.count {
            let (headers, payload) = packets.packet(n);
            if self.transport != Transport::Ud {
                assert_eq!(headers.bth.dest_qpn, self.peer);
            }
            let mut bytes = [0; Headers::MAX_LEN + 16];
            let written = headers.write(&mut bytes);
            let parsed = Headers::parse(&bytes[..written], |_| true).expect("it sends packets only");
            assert_eq!((parsed.bth.opcode, parsed.bth.psn), (headers.bth.opcode, headers.bth.psn));
            let readable = match payload {
                TxPayload::None | TxPayload::Bytes(_) => Ok(()),
                TxPayload::Local { pd, sges, offset, len } => {
                    assert_eq!(pd, PD);
                    self.check_send_memory(sges, offset, len.into())
                }
                TxPayload::Remote { rkey, addr, len, .. } if len > 0 => {
                    self.check_region(rkey, addr, len.into(), Access::REMOTE_READ)
                }
                TxPayload::Remote { .. } => Ok(()),
            };
            match readable {
                Err(fault) if n == 0 => return Err(TxError::Fault(fault)),
                Err(_) => return Ok(n),
                Ok(()) => self.notice(&headers),
            }
        }
        Ok(segment.count)
    }

    fn try_direct(&mut self, _pd: PdId, _request: &OneSided<'_>) -> Attempt {
        Attempt::of(self.behaviour.is_direct())
    }

    fn can_access(&mut self, _rkey: RKey, _need: Access) -> bool {
        self.behaviour.is_direct()
    }

    fn has_drained(&mut self) -> bool {
        self.behaviour.is_direct()
    }

    fn try_rendezvous(&mut self, _route: &Route, head: &RendezvousSend, payload: TxPayload<'_>) -> Attempt {
        let TxPayload::Local { sges, offset, len, .. } = payload else {
            panic!("{payload:?} is not local memory")
        };
        let is_readable = self.check_send_memory(sges, offset, len.into()).is_ok();
        let is_sent = is_readable && self.behaviour.rendezvous() && !self.behaviour.is_full();
        if is_sent {
            self.requests.push_back(head.psn.plus(head.packets - 1));
        }
        Attempt::of(is_sent)
    }

    fn coalesces(&mut self) -> bool {
        self.behaviour.coalesces()
    }

    fn large_segment(&mut self) -> Option<u32> {
        self.allowed_large |= self.behaviour.sends_large();
        self.behaviour.sends_large().then_some(LARGE_SEGMENT)
    }

    fn carries_jumbo(&mut self, _route: &Route) -> bool {
        self.allowed_jumbo |= self.behaviour.carries_jumbo();
        self.behaviour.carries_jumbo()
    }
}

impl Memory for Host {
    fn is_peer(&mut self, slot: u8) -> bool {
        slot == 1
    }

    fn fetch(&mut self, pd: PdId, sges: &[Sge], source: &SourceRef) -> Attempt {
        let fits = u64::from(source.message_len()) <= sges.iter().map(|sge| u64::from(sge.len)).sum();
        Attempt::of(
            self.behaviour.rendezvous() && fits && self.scatter(pd, sges, 0, &[0], Placement::Last).is_ok(),
        )
    }

    fn fetch_remote(&mut self, pd: PdId, rkey: RKey, addr: u64, source: &SourceRef) -> Attempt {
        let len = source.message_len().into();
        let may_write = self.check_remote(pd, rkey, addr, len, Access::REMOTE_WRITE).is_ok();
        Attempt::of(self.behaviour.rendezvous() && may_write)
    }

    fn scatter(
        &mut self,
        pd: PdId,
        sges: &[Sge],
        offset: u64,
        data: &[u8],
        _: Placement,
    ) -> Result<(), MemoryFault> {
        assert_eq!(pd, PD);
        let wr_id = sges.iter().find(|sge| sge.len > 0).expect("bytes without a place").addr >> 32;
        if self.receives.front() != Some(&wr_id) {
            return self.check_send_memory(sges, offset, data.len() as u64);
        }
        assert!(offset + data.len() as u64 <= sges.iter().map(|sge| u64::from(sge.len)).sum());
        if self.behaviour.faults() { Err(NO_KEY) } else { Ok(()) }
    }

    fn check_remote(
        &mut self,
        _pd: PdId,
        rkey: RKey,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(), MemoryFault> {
        if len == 0 { Ok(()) } else { self.check_region(rkey, addr, len, need) }
    }

    fn write_remote(
        &mut self,
        _pd: PdId,
        rkey: RKey,
        addr: u64,
        data: &[u8],
        _: Placement,
    ) -> Result<(), MemoryFault> {
        self.check_region(rkey, addr, data.len() as u64, Access::REMOTE_WRITE)
    }

    fn atomic(&mut self, _pd: PdId, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        self.check_region(rkey, addr, 8, Access::REMOTE_ATOMIC).map(|()| op.apply(7))
    }

    fn store_remote(&mut self, _pd: PdId, rkey: RKey, addr: u64, _value: [u8; 8]) -> Result<(), MemoryFault> {
        assert_eq!(addr % 8, 0);
        self.check_region(rkey, addr, 8, Access::REMOTE_WRITE)
    }

    fn flush_remote(&mut self, _pd: PdId, rkey: RKey, range: Option<(u64, u64)>) -> Result<(), MemoryFault> {
        let (addr, len) = range.unwrap_or(REGION);
        self.check_region(rkey, addr, len, Access::FLUSH_GLOBAL)
    }

    fn invalidate(&mut self, _pd: PdId, rkey: RKey) -> Result<(), MemoryFault> {
        if rkey == RKEY { Ok(()) } else { Err(NO_KEY) }
    }

    fn bind_window(&mut self, _pd: PdId, _bind: &MwBind) -> Result<(), MemoryFault> {
        if self.behaviour.faults() { Err(NO_KEY) } else { Ok(()) }
    }
}

impl Events for Host {
    fn xrc_pd(&mut self, srq: Srqn) -> Option<PdId> {
        (srq == SRQ).then_some(PD)
    }

    fn take_shared_recv(&mut self, xrc: Option<Srqn>, into: &mut RecvWqe) -> bool {
        assert_eq!(xrc.is_some(), self.transport == Transport::XrcTgt);
        assert!(xrc.is_none_or(|srq| srq == SRQ), "a queue of another domain");
        assert!(self.receives.is_empty(), "a second receive while one is in use");
        let Some(wr_id) = self.shared.as_mut().and_then(VecDeque::pop_front) else { return false };
        into.assign(wr_id, &[sge(wr_id, 600)]);
        self.receives.push_back(wr_id);
        true
    }

    fn complete(&mut self, side: Side, completion: Completion) {
        assert_eq!(completion.qpn, self.qpn);
        match side {
            Side::Send => self.send_done(&completion),
            Side::Recv | Side::Xrc(_) => {
                assert_eq!(matches!(side, Side::Xrc(_)), self.transport == Transport::XrcTgt);
                assert_eq!(self.receives.pop_front(), Some(completion.wr_id), "receives complete in order");
            }
        }
    }

    fn event(&mut self, _kind: EventKind) {}

    fn dropped(&mut self, _reason: DropReason, why: fmt::Arguments<'_>) {
        format_only(why);
    }

    fn refused(&mut self, _reason: RefusalReason, why: fmt::Arguments<'_>) {
        format_only(why);
    }

    fn explain(&mut self, why: fmt::Arguments<'_>) {
        format_only(why);
    }
}

/// Formats without storing: a description must not panic either.
fn format_only(why: fmt::Arguments<'_>) {
    struct Nowhere;
    impl fmt::Write for Nowhere {
        fn write_str(&mut self, _: &str) -> fmt::Result {
            Ok(())
        }
    }
    fmt::write(&mut Nowhere, why).expect("nowhere has room");
}
