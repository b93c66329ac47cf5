//! What most likely arrives next, and where its payloads may be put at once.

use crate::memory::Landing;
use ferroce_proto::qp::Expected;
use std::fmt;

/// A run of packets that is expected, with memory for their payloads. A link that can, puts the payloads there while it
/// receives, checks that the packets were the expected ones, and passes them on as placed; see [`super::RxPacket`].
///
/// A wrong guess is taken back: the packets go the ordinary way. The memory keeps no trace of them, but what it held
/// before is lost. That is allowed because it belongs to the middle of a message that is not complete.
pub struct Forecast<'a> {
    expected: Expected,
    landing: Landing<'a>,
    /// Packets of the run that have arrived.
    arrived: u32,
}

impl<'a> Forecast<'a> {
    /// `landing` has room for all of `expected`.
    pub(crate) fn new(expected: Expected, landing: Landing<'a>) -> Forecast<'a> {
        Forecast { expected, landing, arrived: 0 }
    }

    /// The packets that have not arrived yet.
    pub(crate) fn rest(&self) -> Expected {
        self.expected.after(self.arrived)
    }

    /// The memory of all packets and where in it the rest begins.
    pub(crate) fn landing(&mut self) -> (&mut Landing<'a>, usize) {
        (&mut self.landing, self.arrived as usize * self.expected.payload_len as usize)
    }

    /// Some more have arrived.
    pub(crate) fn advance(&mut self, packets: u32) {
        self.arrived += packets;
    }
}

impl fmt::Debug for Forecast<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forecast").field("rest", &self.rest()).finish_non_exhaustive()
    }
}
