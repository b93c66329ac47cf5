//! The functions of the iWARP fuzz targets. `crates/proto/tests/iwarp_fuzz_smoke.rs` includes this file, so that every test run
//! executes them with random bytes.

use ferroce_proto::cc::FixedWindow;
use ferroce_proto::iwarp::negotiation::{Initiator, Negotiated, Offer, Responder, Role};
use ferroce_proto::iwarp::reader::{Item, Reader};
use ferroce_proto::iwarp::wire::Fpdu;
use ferroce_proto::iwarp::{StreamEgress, StreamQp};
use ferroce_proto::qp::{
    DropReason, Events, Memory, Placement, QpConfig, RecvWqe, RefusalReason, ReorderBudget, Side, TxError,
    TxPayload,
};
use ferroce_proto::verbs::{
    Access, AtomicOp, Completion, EventKind, MemoryFault, Mtu, MwBind, Payload, QpCap, QpState, RecvWr,
    SendFlags, SendOp, SendWr, Sge, Transport, WcStatus,
};
use ferroce_proto::{LKey, PdId, Qpn, RKey, Srqn, Time};
use std::fmt;

/// Everything that a reader finds in `bytes`, cut into chunks of this length. The pieces of a segment are joined. Also returns whether
/// the reader refused the stream.
fn items(bytes: &[u8], has_crc: bool, piece_len: usize) -> (Vec<String>, bool) {
    let (mut reader, mut found, mut payload) = (Reader::new(has_crc), Vec::new(), Vec::new());
    for mut chunk in bytes.chunks(piece_len) {
        loop {
            match reader.next(&mut chunk) {
                Ok(Some(Item::Payload(piece))) => {
                    assert_eq!(piece.offset as usize, payload.len());
                    payload.extend_from_slice(piece.data);
                    if piece.is_end {
                        assert_eq!(piece.segment_len as usize, payload.len());
                        found.push(format!("{:?} {payload:?}", piece.header));
                        payload.clear();
                    }
                }
                Ok(Some(Item::Message(header, body))) => found.push(format!("{header:?} {body:?}")),
                Ok(None) => break,
                Err(error) => {
                    assert!(error.code().text().is_some());
                    return (found, true);
                }
            }
        }
        assert!(chunk.is_empty());
    }
    (found, false)
}

/// A stream is refused, or read the same for every chunk size. MPA frames consume at most their bytes.
pub fn stream(bytes: &[u8]) {
    let Some((&[choices, cut], bytes)) = bytes.split_first_chunk() else { return };
    let (has_crc, piece_len) = (choices & 1 != 0, usize::from(cut) + 1);
    assert_eq!(items(bytes, has_crc, bytes.len().max(1)), items(bytes, has_crc, piece_len));

    let (mut initiator, _) = Initiator::new(Offer::default(), b"");
    if let Ok((used, _)) = initiator.receive(bytes) {
        assert!(used <= bytes.len());
    }
    if let Ok((used, Some(request))) = Responder::new(Time(0)).receive(bytes) {
        assert!(used <= bytes.len());
        if let Ok((terms, reply)) = request.accept(&Offer::default(), request.private_data()) {
            assert!(terms.ord <= Offer::default().ord && reply.len() >= 20);
        }
    }
}

const PD: PdId = PdId(1);
const KEY: u32 = 0x11;
const SIZE: u64 = 4096;

/// A NIC with one region at address 0, and a stream that accepts a few bytes per call.
#[derive(Default)]
struct Nic {
    bytes: Vec<u8>,
    completions: Vec<(Side, Completion)>,
    room: usize,
}

impl Nic {
    fn span(&self, key: u32, addr: u64, len: u64) -> Result<std::ops::Range<usize>, MemoryFault> {
        if key != KEY {
            return Err(MemoryFault::NoSuchKey { key });
        }
        let end = addr.checked_add(len).filter(|end| *end <= SIZE);
        let out = MemoryFault::OutOfRange { key, addr, len, start: 0, region_len: SIZE };
        end.map(|end| addr as usize..end as usize).ok_or(out)
    }

    fn check_payload(&self, fpdu: &Fpdu<'_>) -> Result<(), TxError> {
        let TxPayload::Remote { rkey, addr, len, .. } = fpdu.payload else { return Ok(()) };
        self.span(rkey.0, addr, len.into()).map(drop).map_err(TxError::Fault)
    }
}

impl StreamEgress for Nic {
    fn send_fpdu(&mut self, fpdu: &Fpdu<'_>, from: usize) -> Result<usize, TxError> {
        self.check_payload(fpdu)?;
        let taken = (fpdu.encoded_len() - from).min(self.room);
        self.room -= taken;
        if taken == 0 { Err(TxError::Full) } else { Ok(from + taken) }
    }

    fn keep_fpdu(&mut self, fpdu: &Fpdu<'_>, from: usize) -> Result<(), TxError> {
        assert!(from < fpdu.encoded_len(), "nothing of it is left");
        self.check_payload(fpdu)
    }
}

impl Memory for Nic {
    fn scatter(
        &mut self,
        _: PdId,
        sges: &[Sge],
        offset: u64,
        data: &[u8],
        _: Placement,
    ) -> Result<(), MemoryFault> {
        let [sge] = sges else { panic!("one entry was posted") };
        assert!(offset + data.len() as u64 <= u64::from(sge.len), "placed outside the entry");
        let span = self.span(sge.lkey.0, sge.addr + offset, data.len() as u64)?;
        self.bytes[span].copy_from_slice(data);
        Ok(())
    }
    fn check_remote(
        &mut self,
        _: PdId,
        rkey: RKey,
        addr: u64,
        len: u64,
        _: Access,
    ) -> Result<(), MemoryFault> {
        self.span(rkey.0, addr, len).map(drop)
    }
    fn write_remote(
        &mut self,
        _: PdId,
        rkey: RKey,
        addr: u64,
        data: &[u8],
        _: Placement,
    ) -> Result<(), MemoryFault> {
        let span = self.span(rkey.0, addr, data.len() as u64).expect("checked when the segment began");
        self.bytes[span].copy_from_slice(data);
        Ok(())
    }
    fn atomic(&mut self, _: PdId, rkey: RKey, addr: u64, _: AtomicOp) -> Result<u64, MemoryFault> {
        self.span(rkey.0, addr, 8).map(|_| 0)
    }
    fn store_remote(&mut self, _: PdId, _: RKey, _: u64, _: [u8; 8]) -> Result<(), MemoryFault> {
        panic!("iWARP has no atomic write")
    }
    fn flush_remote(&mut self, _: PdId, _: RKey, _: Option<(u64, u64)>) -> Result<(), MemoryFault> {
        panic!("iWARP has no flush")
    }
    fn invalidate(&mut self, _: PdId, rkey: RKey) -> Result<(), MemoryFault> {
        self.span(rkey.0, 0, 0).map(drop)
    }
    fn bind_window(&mut self, _: PdId, _: &MwBind) -> Result<(), MemoryFault> {
        panic!("no window is bound")
    }
}

impl Events for Nic {
    fn xrc_pd(&mut self, _: Srqn) -> Option<PdId> {
        panic!("iWARP has no XRC")
    }
    fn take_shared_recv(&mut self, _: Option<Srqn>, _: &mut RecvWqe) -> bool {
        panic!("there is no shared queue")
    }
    fn complete(&mut self, side: Side, completion: Completion) {
        self.completions.push((side, completion));
    }
    fn event(&mut self, _: EventKind) {}
    fn dropped(&mut self, _: DropReason, _: fmt::Arguments<'_>) {}
    fn refused(&mut self, _: RefusalReason, why: fmt::Arguments<'_>) {
        assert!(!why.to_string().is_empty());
    }
    fn explain(&mut self, why: fmt::Arguments<'_>) {
        assert!(!why.to_string().is_empty());
    }
}

const SENDS: u64 = 8;
const RECEIVES: u64 = 4;

/// Posts READs, atomics, SENDs and receives.
fn post_work(qp: &mut StreamQp, nic: &mut Nic) {
    let sge = [Sge { addr: 64, len: 8, lkey: LKey(KEY) }];
    for wr_id in 0..RECEIVES {
        qp.post_recv(&RecvWr { wr_id, sges: &sge }, Time(0), nic).expect("there is room");
    }
    let (addr, rkey) = (0, RKey(KEY));
    for wr_id in 0..SENDS {
        let op = match wr_id % 3 {
            0 => SendOp::Read { addr, rkey },
            1 => SendOp::Atomic { addr, rkey, op: AtomicOp::FetchAdd { add: 1 } },
            _ => SendOp::Send,
        };
        let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&sge));
        let wr = SendWr { wr_id, op, flags, payload, ud: None, srq: None };
        qp.post_send(&wr, Time(0), nic).expect("there is room");
    }
}

/// For any stream, a queue pair with work stays inside its memory and completes each request once and in order.
pub fn machine(bytes: &[u8]) {
    let Some((&[choices, piece, room], bytes)) = bytes.split_first_chunk() else { return };
    let cap =
        QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let mut qp = StreamQp::new(&QpConfig {
        qpn: Qpn::new(3),
        transport: Transport::Rc,
        pd: PD,
        cap,
        signal_all: false,
        shared_recv: None,
        port_mtu: Mtu::B1024,
        congestion: FixedWindow { bytes: 0 }.into(),
        reorder: ReorderBudget::new(0),
        takes_large: false,
        takes_jumbo: false,
    });
    let role = if choices & 1 == 0 { Role::Initiator } else { Role::Responder };
    let (crc, rtr, is_ferroce, confirmation) = (false, None, choices & 2 == 0, None);
    let terms = Negotiated { role, crc, ird: 2, ord: 2, rtr, is_ferroce, confirmation };
    assert!(qp.start(terms, Access::REMOTE, 128));
    let mut nic = Nic { bytes: vec![0; SIZE as usize], ..Nic::default() };
    if choices & 2 == 0 {
        post_work(&mut qp, &mut nic);
    }
    for chunk in bytes.chunks(usize::from(piece) + 1) {
        nic.room = usize::from(room);
        qp.poll_transmit(Time(0), &mut nic);
        qp.receive(chunk, Time(0), &mut nic);
    }
    nic.room = usize::MAX;
    qp.poll_transmit(Time(0), &mut nic);
    qp.disconnect(Time(0), &mut nic);
    nic.room = usize::MAX;
    qp.poll_transmit(Time(0), &mut nic);
    assert_eq!(qp.state(), QpState::Err);
    assert!(qp.close().is_some());
    check_completions(&nic, if choices & 2 == 0 { [SENDS, RECEIVES] } else { [0, 0] });
}

fn check_completions(nic: &Nic, posted: [u64; 2]) {
    for (side, count) in [Side::Send, Side::Recv].into_iter().zip(posted) {
        let of: Vec<_> = nic.completions.iter().filter(|(s, _)| *s == side).map(|(_, c)| *c).collect();
        let ids: Vec<u64> = of.iter().map(|c| c.wr_id).collect();
        assert_eq!(ids, (0..count).collect::<Vec<_>>(), "each once, in order");
        let failed = of.iter().position(|c| c.status != WcStatus::Success).unwrap_or(of.len());
        assert!(of[failed..].iter().all(|c| c.status != WcStatus::Success), "{of:?}");
    }
}
