//! How a train of packets is split between the buffer and the memory that its payloads belong to.

use ferroce_proto::qp::Expected;
use ferroce_proto::wire::{Bth, ICRC_LEN};
use std::ops::Range;

/// Bytes of a packet that stay in the buffer.
const OVERHEAD: usize = Bth::LEN + ICRC_LEN;

/// `packets` times a BTH and an ICRC in the buffer and a payload elsewhere; whatever follows is in the buffer again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) packets: usize,
    pub(super) payload_len: usize,
}

impl Split {
    /// Packets of one datagram that are placed at most; our senders make no longer trains.
    pub(super) const MOST_PACKETS: usize = 64;

    /// For a datagram of at most `most_len` bytes with the packets that are expected; `None` if there are none.
    pub(super) fn of(expected: &Expected, most_len: usize) -> Option<Split> {
        let payload_len = expected.payload_len as usize;
        let fit = most_len / (payload_len + OVERHEAD);
        let packets = fit.min(Split::MOST_PACKETS).min(expected.packets as usize);
        (packets > 0).then_some(Split { packets, payload_len })
    }

    /// Bytes of a packet in the datagram.
    pub(super) fn segment_len(&self) -> usize {
        self.payload_len + OVERHEAD
    }

    /// How many packets a datagram of `len` bytes has put something into the memory for.
    pub(super) fn touched_by(&self, len: usize) -> usize {
        len.div_ceil(self.segment_len()).min(self.packets)
    }

    /// How many whole ones.
    pub(super) fn whole_in(&self, len: usize) -> usize {
        (len / self.segment_len()).min(self.packets)
    }

    /// Where payload `i` is in the memory.
    pub(super) fn payload(&self, i: usize) -> Range<usize> {
        i * self.payload_len..(i + 1) * self.payload_len
    }

    /// Where BTH `i` is in the buffer.
    pub(super) fn bth(&self, i: usize) -> Range<usize> {
        i * OVERHEAD..i * OVERHEAD + Bth::LEN
    }

    /// Where ICRC `i` is in the buffer.
    pub(super) fn icrc(&self, i: usize) -> Range<usize> {
        i * OVERHEAD + Bth::LEN..(i + 1) * OVERHEAD
    }

    /// Where the parts between payloads are in a buffer of `buffer_len` bytes: in front of each payload, and after the
    /// last. An ICRC and the BTH after it are one.
    pub(super) fn between(&self, i: usize, buffer_len: usize) -> Range<usize> {
        let start = (i * OVERHEAD).saturating_sub(ICRC_LEN);
        if i < self.packets { start..self.bth(i).end } else { start..buffer_len }
    }

    /// Where in the buffer the rest of a datagram of `len` bytes is.
    pub(super) fn rest(&self, len: usize) -> Range<usize> {
        let start = self.packets * OVERHEAD;
        start..start + len.saturating_sub(self.packets * self.segment_len())
    }

    /// Puts a datagram of `len` bytes together again, from packet `from` on: afterwards it lies in the buffer as if it had
    /// been received there, except for the packets before. `take_back` fetches bytes from a place in the memory.
    pub(super) fn join(
        &self,
        buffer: &mut [u8],
        len: usize,
        from: usize,
        mut take_back: impl FnMut(usize, &mut [u8]),
    ) {
        buffer.copy_within(self.rest(len), self.packets * self.segment_len());
        // From the last to the first: a packet's place covers the overhead of later ones, which is moved by then.
        for i in (from..self.touched_by(len)).rev() {
            let mut overhead = [0; OVERHEAD];
            overhead.copy_from_slice(&buffer[i * OVERHEAD..(i + 1) * OVERHEAD]);
            let (bth, icrc) = overhead.split_at(Bth::LEN);
            let end = len.min((i + 1) * self.segment_len());
            let packet = &mut buffer[i * self.segment_len()..(i + 1) * self.segment_len()];
            let (head, body) = packet.split_at_mut(Bth::LEN);
            let (payload, tail) = body.split_at_mut(self.payload_len);
            let received = (end - i * self.segment_len()).saturating_sub(Bth::LEN).min(self.payload_len);
            take_back(self.payload(i).start, &mut payload[..received]);
            head.copy_from_slice(bth);
            tail.copy_from_slice(icrc);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPLIT: Split = Split { packets: 3, payload_len: 32 };

    /// What the kernel does with the list of places.
    fn receive(datagram: &[u8], buffer: &mut [u8], memory: &mut [u8]) {
        let mut rest = datagram;
        let mut put = |place: &mut [u8]| {
            let (now, later) = rest.split_at(place.len().min(rest.len()));
            place[..now.len()].copy_from_slice(now);
            rest = later;
        };
        for i in 0..SPLIT.packets {
            put(&mut buffer[SPLIT.between(i, 512)]);
            put(&mut memory[SPLIT.payload(i)]);
        }
        put(&mut buffer[SPLIT.between(SPLIT.packets, 512)]);
        assert!(rest.is_empty());
    }

    #[test]
    fn parts_follow_each_other_in_the_buffer() {
        let parts: Vec<_> = (0..=3).map(|i| SPLIT.between(i, 512)).collect();
        assert_eq!(parts, [0..12, 12..28, 28..44, 44..512]);
        assert_eq!((SPLIT.bth(2), SPLIT.icrc(2), SPLIT.rest(144 + 7)), (32..44, 44..48, 48..55));
    }

    #[test]
    fn a_datagram_of_any_length_comes_back_whole() {
        for len in 0..400 {
            let datagram: Vec<u8> = (0..len).map(|i| (i * 7 + i / 256) as u8).collect();
            for from in 0..=SPLIT.whole_in(len) {
                let (mut buffer, mut memory) = (vec![0xee; 512], vec![0; 96]);
                receive(&datagram, &mut buffer, &mut memory);
                SPLIT.join(&mut buffer, len, from, |at, out| {
                    out.copy_from_slice(&memory[at..at + out.len()]);
                    memory[at..at + out.len()].fill(0);
                });
                let start = from * SPLIT.segment_len();
                assert_eq!(
                    buffer[start..len.max(start)],
                    datagram[start..],
                    "{len} bytes, from packet {from}"
                );
                assert!(
                    memory[from * 32..].iter().all(|b| *b == 0),
                    "{len} bytes: something was left behind"
                );
                for i in 0..from {
                    let start = i * SPLIT.segment_len();
                    assert_eq!(buffer[SPLIT.bth(i)], datagram[start..start + 12]);
                }
            }
        }
    }
}
