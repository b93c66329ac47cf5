//! Packets in, with their payloads put straight to where they belong.
//!
//! While a long message comes in, the next datagram is nearly always a train of its middle packets: a BTH, as many bytes
//! as the MTU, an ICRC, and so on. The kernel is given a list of places that sends the payloads to the memory of the
//! message and everything else to the ordinary buffer:
//!
//! ```text
//! datagram  BTH payload ICRC BTH payload ICRC ... BTH payload ICRC whatever follows
//! buffer    BTH         ICRC BTH         ICRC ... BTH         ICRC whatever follows
//! memory        payload          payload              payload
//! ```
//!
//! Afterwards each packet is checked: length, destination, opcode, number, source, ICRC. From the first that is not as
//! expected on, the payloads are taken back into the buffer, which then looks as if nothing had been tried, and the rest
//! goes the ordinary way. Of a datagram that is not at all what was expected, that is everything.
//!
//! What a wrong guess destroys is the memory of middle packets that have not arrived: undefined by the verbs until the
//! message completes, and overwritten before it does. The last packet of a message is never guessed, so a program
//! that watches the last bytes sees them change once, and last.

use super::UdpLink;
use super::ident::Train;
use super::receive::{Datagram, Receiver};
use super::source::SourceKind;
use super::split::Split;
use super::starts::IcrcStarts;
use super::sys;
use crate::link::batch::{RX_BUFFER_LEN, RxMeta};
use crate::link::counters::add;
use crate::link::{Forecast, PlacedRun, RxBatch};
use crate::memory::Landing;
use ferroce_proto::qp::Expected;
use ferroce_proto::wire::{Bth, FlowAddrs, Icrc};

/// Trains taken in one call. The sender waits for their acknowledgement, which leaves after the call.
const MOST_TRAINS: usize = 2;
/// Where in the BTH the congestion marks are; before them is what all packets of a run have in common.
const VARIANT_AT: usize = 4;
/// Where in the BTH the acknowledge request is, and which bit.
const ACK_REQ_AT: usize = 8;
const ACK_REQ: u8 = 0x80;

/// What came of one look.
enum Look {
    Empty,
    /// Not what was expected: the datagram lies in the buffer as if it had been received there.
    Unexpected,
    /// It began as expected. Whether all of it was, and the owner of the last packet that was not ours.
    Taken {
        whole: bool,
        misdelivered: Option<u8>,
    },
}

/// What a look needs: the forecast, and how the datagram is split after it.
struct Guess<'f, 'a> {
    expected: Expected,
    split: Split,
    landing: &'f mut Landing<'a>,
    /// Where in the landing the first payload goes.
    start: usize,
}

impl UdpLink {
    /// Reads from the source that had traffic last, and puts payloads in place as far as the forecast is right. Returns
    /// that source and how many buffers were used; `None` if it is not to be had this way.
    pub(super) fn look_and_place(
        &self,
        receiver: &mut Receiver,
        rx: &mut RxBatch,
        mut forecast: Forecast<'_>,
    ) -> Option<(usize, usize)> {
        let index = receiver.rota.favourite();
        let kind = receiver.sources.get(index)?.kind;
        let SourceKind::Address(address) = kind else { return None };
        // A capture wants packets in one piece.
        if self.capture.is_some() {
            return None;
        }
        let mut used = 0;
        let mut last = Look::Empty;
        while used < MOST_TRAINS {
            let expected = forecast.rest();
            let Some(split) = Split::of(&expected, RX_BUFFER_LEN) else { break };
            let (landing, start) = forecast.landing();
            let mut guess = Guess { expected, split, landing, start };
            let (look, good) = self.place_train(receiver, index, rx, used, &mut guess);
            forecast.advance(good as u32);
            if let Look::Empty = look {
                break;
            }
            (used, last) = (used + 1, look);
            if !matches!(last, Look::Taken { whole: true, .. }) {
                break;
            }
        }
        // From here on nothing touches the memory of the message, whatever has to be waited for.
        drop(forecast);
        receiver.sources[index].on_placing(used);
        match last {
            Look::Unexpected => self.take_datagram(receiver, (index, 0), None, rx, used - 1),
            Look::Taken { misdelivered: Some(slot), .. } => self.on_misdelivery(receiver, address, slot),
            _ => {}
        }
        Some((index, used))
    }

    /// One look. Also returns how many packets were placed.
    fn place_train(
        &self,
        receiver: &mut Receiver,
        index: usize,
        rx: &mut RxBatch,
        buffer: usize,
        guess: &mut Guess<'_, '_>,
    ) -> (Look, usize) {
        let only = receiver.only_address(receiver.sources[index].kind);
        let Receiver { sources, arrived, idents, starts, .. } = receiver;
        let (source, message, split) = (&sources[index], &mut arrived[0], guess.split);
        add(&self.counters.rx_calls, 1);
        if !sys::receive_split(source.fd, rx.buffer_mut(buffer), guess.landing, guess.start, split, message) {
            return (Look::Empty, 0);
        }
        let len = message.len.min(RX_BUFFER_LEN);
        let mut train = Train::new(idents);
        let datagram = Datagram::read(message, source.kind, only, buffer);
        let good = datagram.as_ref().map_or(0, |d| guess.right(d, rx.buffer(buffer), &mut train, starts));
        let wrong = split.touched_by(len) - good;
        if wrong > 0 {
            let (landing, start) = (&mut *guess.landing, guess.start);
            split.join(rx.buffer_mut(buffer), len, good, |at, out| landing.take_back(start + at, out));
        }
        rx.on_misplaced(wrong);
        add(&self.counters.misplaced, wrong as u64);
        let Some(mut datagram) = datagram.filter(|_| good > 0) else { return (Look::Unexpected, 0) };
        self.keep_run(rx, &split, buffer, good, datagram.meta);
        datagram.bytes = if wrong > 0 { good * split.segment_len()..len } else { split.rest(len) };
        let whole = datagram.bytes.is_empty();
        let misdelivered = if whole { None } else { self.take_train(&mut train, &datagram, rx).misdelivered };
        (Look::Taken { whole, misdelivered }, good)
    }

    /// Adds what was placed to the batch.
    fn keep_run(&self, rx: &mut RxBatch, split: &Split, buffer: usize, packets: usize, meta: RxMeta) {
        let asks = |i: usize| rx.buffer(buffer)[split.bth(i)][ACK_REQ_AT] & ACK_REQ != 0;
        let run = PlacedRun { packets: packets as u32, ack_req: (0..packets).any(asks) };
        rx.push_run(buffer, split.bth(0), run, meta);
        add(&self.counters.placed, packets as u64);
        add(&self.counters.rx_packets, packets as u64);
        add(&self.counters.rx_bytes, (packets * split.segment_len()) as u64);
    }
}

impl Guess<'_, '_> {
    /// How many packets at the start of a datagram are the expected ones.
    fn right(
        &self,
        datagram: &Datagram,
        buffer: &[u8],
        train: &mut Train<'_>,
        starts: &mut IcrcStarts,
    ) -> usize {
        let split = &self.split;
        let RxMeta { sgid, dgid, sport, .. } = datagram.meta;
        if datagram.segment_len != split.segment_len() || sgid != self.expected.from {
            return 0;
        }
        starts.select(&FlowAddrs::new(sgid, dgid, sport), Bth::LEN + split.payload_len);
        let is_right = |i: usize| {
            // Only with the likely identification: for a stranger's, the ordinary way is fast enough.
            let ident = if sgid.to_ipv4().is_some() { train.guess() } else { 0 };
            let start = starts.start(ident);
            self.is_expected(i, buffer)
                && start.is_some_and(|start| self.is_intact(i, buffer, start))
                && train.accept(sgid, sport, ident)
        };
        let packets = split.whole_in(datagram.bytes.len());
        (0..packets).map(is_right).position(|right| !right).unwrap_or(packets)
    }

    /// Whether packet `i` has the header that was expected.
    fn is_expected(&self, i: usize, buffer: &[u8]) -> bool {
        let (first, head) = (&buffer[self.split.bth(0)], &buffer[self.split.bth(i)]);
        let Expected { qpn, opcode, psn, .. } = self.expected;
        let fits = |bth: Bth| {
            bth.opcode == opcode && bth.dest_qpn == qpn && bth.psn == psn.plus(i as u32) && bth.pad == 0
        };
        head[..VARIANT_AT] == first[..VARIANT_AT] && Bth::parse(head).is_ok_and(fits)
    }

    /// Whether the ICRC of packet `i` is right.
    fn is_intact(&self, i: usize, buffer: &[u8], mut icrc: Icrc) -> bool {
        let payload = self.split.payload(i);
        icrc.update_headers(&buffer[self.split.bth(i)]);
        self.landing.update(&mut icrc, self.start + payload.start..self.start + payload.end);
        icrc.finish() == buffer[self.split.icrc(i)]
    }
}
