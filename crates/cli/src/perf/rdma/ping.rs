//! The message of a ping-pong: its last byte is a counter, so that each differs from the one before.

use super::context::{LATENCY_SENDS, TestContext};
use super::refused;
use crate::failure::Failure;
use ferroce::{Payload, Region, SendWr};

/// Sends between two with a completion; those in between need no poll.
const SIGNAL_EVERY: u64 = LATENCY_SENDS as u64 / 2;

/// The sending half of a ping-pong.
pub(super) struct Ping<'a> {
    context: &'a TestContext,
    /// The message, if it is sent inline.
    inline: Option<Vec<u8>>,
    posted: u64,
}

impl<'a> Ping<'a> {
    pub(super) fn new(context: &'a TestContext) -> Ping<'a> {
        Ping { context, inline: context.qps[0].inline.clone(), posted: 0 }
    }

    /// Sends the message with this count in its last byte.
    #[inline]
    pub(super) fn post(&mut self, count: u8) -> Result<(), Failure> {
        let qp = &self.context.qps[0];
        self.posted += 1;
        let request = qp.request(0, self.posted.is_multiple_of(SIGNAL_EVERY));
        match &mut self.inline {
            Some(message) => {
                if let Some(last) = message.last_mut() {
                    *last = count;
                }
                qp.queue_pair.post_send(&[SendWr { payload: Payload::Inline(message), ..request }])
            }
            None => {
                let last = self.context.layout.outgoing(0) + self.context.params.size - 1;
                self.context.region.host().store_u8(last as usize, count).map_err(refused)?;
                qp.queue_pair.post_send(&[request])
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
    pub(super) fn new(context: &'a TestContext) -> LastByte<'a> {
        let at = context.layout.incoming(0) + context.params.size - 1;
        LastByte { region: context.region.host(), at: at as usize }
    }

    /// Loads the byte.
    #[inline]
    pub(super) fn load(&self) -> Result<u8, Failure> {
        self.region.load_u8(self.at).map_err(refused)
    }
}
