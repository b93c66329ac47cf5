//! Streams at the end of a device or a process. TCP has accepted the data of completed requests. But closing a socket that has unread bytes, or
//! that gets more, resets the connection and loses this data. So the streams are served until the peers have received it.

use super::Streams;
use super::drive::BUFFER;
use crate::engine::Engine;
use crate::engine::drive::SETTLE_NS;
use crate::link::now;
use ferroce_proto::verbs::QpState;
use std::time::Duration;

/// The interval at which the streams are served.
const SETTLE_PAUSE: Duration = Duration::from_micros(50);

/// The remaining work on the streams that end.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    /// A peer has not closed its half.
    is_open: bool,
    /// A peer does not have everything.
    is_unsent: bool,
}

impl Engine {
    /// Serves the streams that end until their peers have closed them, for a tenth of a second at most, or for `patience_ns` where a peer
    /// does not have everything.
    pub(in crate::engine) fn settle_streams(&self, streams: &Streams, patience_ns: u64) {
        let (start, mut buffer) = (now(), vec![0; BUFFER]);
        loop {
            let left = self.serve_ending(streams, &mut buffer);
            let patience_ns = if left.is_unsent { patience_ns } else { SETTLE_NS };
            if !(left.is_open || left.is_unsent) || now().since_ns(start) >= patience_ns {
                return;
            }
            std::thread::sleep(SETTLE_PAUSE);
        }
    }

    /// Serves the streams that are closing, and the queue pairs that must finish a message first.
    fn serve_ending(&self, streams: &Streams, buffer: &mut [u8]) -> Left {
        let mut left = Left::default();
        for qp in self.qps.all() {
            let Some(stream) = qp.stream() else { continue };
            // At the exit of a process the lock may belong to a thread that no longer runs.
            let Some(mut machine) = stream.machine.try_lock() else {
                left.is_unsent = true;
                continue;
            };
            if machine.state() == QpState::Sqd {
                self.serve_locked(&qp, stream, &mut machine, true, buffer, now());
                left.is_unsent |= machine.state() == QpState::Sqd;
            }
        }
        for number in streams.closing.numbers() {
            self.serve_closing(streams, number, buffer);
        }
        left.is_open = streams.closing.any(|_| true);
        left.is_unsent |= streams.closing.any(|stream| stream.is_unsent());
        left
    }
}
