//! How the ICRCs of a flow begin.
//!
//! Everything in front of the BTH is the same for the n-th packet of every train of a flow, and feeding it to the checksum
//! takes a quarter as long as feeding the payload. So the results are kept.

use ferroce_proto::wire::{FlowAddrs, Icrc};

/// Identifications that are kept: those of our own senders.
const KEPT: usize = 64;

/// The beginnings for one flow and packet length, the last that was asked for.
#[derive(Debug)]
pub(super) struct IcrcStarts {
    of: Option<(FlowAddrs, usize)>,
    by_ident: Box<[Option<Icrc>; KEPT]>,
}

impl Default for IcrcStarts {
    fn default() -> Self {
        IcrcStarts { of: None, by_ident: Box::new([const { None }; KEPT]) }
    }
}

impl IcrcStarts {
    /// What comes next is of this flow, from BTH to pad `transport_len` bytes long.
    pub(super) fn select(&mut self, flow: &FlowAddrs, transport_len: usize) {
        if self.of != Some((*flow, transport_len)) {
            self.of = Some((*flow, transport_len));
            self.by_ident.fill(None);
        }
    }

    /// An ICRC in the making, as far as the BTH.
    pub(super) fn start(&mut self, ident: u16) -> Option<Icrc> {
        let (flow, transport_len) = self.of.as_ref()?;
        let fresh = || Icrc::start_before_bth(flow, ident, *transport_len);
        match self.by_ident.get_mut(usize::from(ident)) {
            Some(kept) => Some(kept.get_or_insert_with(fresh).clone()),
            None => Some(fresh()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_proto::Gid;
    use ferroce_proto::wire::icrc;

    #[test]
    fn what_is_kept_is_what_would_be_computed() {
        let gid = |last| Gid::from_ip([10, 0, 0, last].into());
        let six = Gid::from_ip("fd00::1".parse().unwrap());
        let mut starts = IcrcStarts::default();
        assert!(starts.start(0).is_none());
        for flow in [
            FlowAddrs::new(gid(1), gid(2), 7),
            FlowAddrs::new(gid(1), gid(2), 8),
            FlowAddrs::new(six, six, 8),
        ] {
            for len in [16, 4108] {
                let packet: Vec<u8> = (0..len).map(|i| i as u8).collect();
                starts.select(&flow, len);
                for ident in [0, 1, 63, 64, 40_000, 1, 0] {
                    let mut started = starts.start(ident).unwrap();
                    started.update_headers(&packet);
                    assert_eq!(
                        started.finish(),
                        icrc(&flow, ident, &packet),
                        "{flow:?}, {ident}, {len} bytes"
                    );
                }
            }
        }
    }
}
