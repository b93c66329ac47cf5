//! The message of a ping-pong: its last byte is a counter, so that each differs from the one before.

use super::refused;
use super::station::{LATENCY_SENDS, Station};
use crate::failure::Failure;
use ferroce::{Payload, Region, SendWr};

/// Sends between two with a completion; those in between need no poll.
const SIGNAL_EVERY: u64 = LATENCY_SENDS as u64 / 2;

/// The sending half of a ping-pong.
pub(super) struct Ping<'a> {
    station: &'a Station,
    /// The message, if it is sent inline.
    inline: Option<Vec<u8>>,
    posted: u64,
}

impl<'a> Ping<'a> {
    pub(super) fn new(station: &'a Station) -> Ping<'a> {
        Ping { station, inline: station.lanes[0].inline.clone(), posted: 0 }
    }

    /// Sends the message with this count in its last byte.
    #[inline]
    pub(super) fn post(&mut self, count: u8) -> Result<(), Failure> {
        let lane = &self.station.lanes[0];
        self.posted += 1;
        let request = lane.request(0, self.posted.is_multiple_of(SIGNAL_EVERY));
        match &mut self.inline {
            Some(message) => {
                if let Some(last) = message.last_mut() {
                    *last = count;
                }
                lane.qp.post_send(&[SendWr { payload: Payload::Inline(message), ..request }])
            }
            None => {
                let last = self.station.layout.outgoing(0) + self.station.params.size - 1;
                self.station.region.host().store_u8(last as usize, count).map_err(refused)?;
                lane.qp.post_send(&[request])
            }
        }
    }
}

/// The receiving half: the last byte of an arriving message.
pub(super) struct LastByte<'a> {
    region: &'a Region,
    at: usize,
}

impl<'a> LastByte<'a> {
    pub(super) fn new(station: &'a Station) -> LastByte<'a> {
        let at = station.layout.incoming(0) + station.params.size - 1;
        LastByte { region: station.region.host(), at: at as usize }
    }

    /// Loads the byte.
    #[inline]
    pub(super) fn load(&self) -> Result<u8, Failure> {
        self.region.load_u8(self.at).map_err(refused)
    }
}
