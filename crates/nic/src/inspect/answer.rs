//! The server side, on the background thread.
//!
//! Nothing here may block. A document is never longer than the free buffer of a new socket, so one write suffices. The background thread
//! pauses between two calls, so a flood of requests costs little.

use super::question::Question;
use super::snapshot::Document;
use super::socket_path;
use crate::device_attr::DeviceAttr;
use crate::engine::{Chore, Engine, HISTORY_LEN, MAX_REGIONS, QpPage};
use ferroce_os::fork::Generation;
use ferroce_proto::Qpn;
use socket2::SockRef;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Most requests answered per call. Equal requests get the same document.
const MAX_ANSWERS: usize = 16;
/// Requested socket buffer; the kernel grants what its limits allow.
const WANTED_BUFFER: usize = 1 << 19;
/// Upper bound of the document's length without its queue pairs.
const FIXED_BYTES: usize = 12 * 1024 + MAX_REGIONS * REGION_BYTES;
/// Upper bound of a region's length.
const REGION_BYTES: usize = 384;
/// Upper bound of a history's length.
const HISTORY_BYTES: usize = HISTORY_LEN * 320;
/// Upper bound of a queue pair's length, with two completion queues.
const QP_BYTES: usize = 1100;
/// Making this many entries takes well under a millisecond. All documents of one call together have no more, and then each a
/// few.
const MAX_QPS: usize = 512;
const MIN_QPS: usize = 32;

/// The subject of the document.
pub(crate) struct Subject {
    /// The engine whose counters are reported.
    pub(crate) engine: Arc<Engine>,
    /// Returns the current attributes of the device.
    pub(crate) attributes: Box<dyn Fn() -> DeviceAttr + Send>,
    /// When the device was opened.
    pub(crate) since: Instant,
}

impl Subject {
    /// The document with at most `most` queue pairs, and how many it lists.
    fn document(&self, question: Question, most: usize) -> (Vec<u8>, usize) {
        let report = self.engine.report(QpPage { after: question.after, most });
        let history_of = (question.history_of != 0).then(|| Qpn::new(question.history_of));
        let objects = self.engine.objects(&report, history_of);
        let uptime_ms = self.since.elapsed().as_millis() as u64;
        let listed = report.counters.queue_pairs.len();
        let document =
            Document::new(uptime_ms, (self.attributes)(), report.counters, report.left_out, objects);
        // Cannot fail: all keys are strings, and all numbers are finite.
        (serde_json::to_vec(&document).unwrap_or_default(), listed)
    }
}

/// Listens for requests while it exists.
pub(crate) struct Answerer {
    listener: UnixListener,
    path: PathBuf,
    born: Generation,
    subject: Subject,
}

impl Answerer {
    /// Starts listening. This process owns the slot, so an existing socket file is left over from a dead owner.
    pub(crate) fn open(directory: &Path, subject: Subject, born: Generation) -> io::Result<Answerer> {
        let path = socket_path(directory, subject.engine.shared_port.slot());
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        Ok(Answerer { listener, path, born, subject })
    }
}

impl Chore for Answerer {
    fn descriptor(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    fn attend(&mut self) {
        // An error (no free descriptor, or the client has left) ends the loop; the next call tries again. All clients are accepted before
        // the first document is made, so no document is older than a request that it answers.
        let accept = || self.listener.accept().ok();
        let askers: Vec<_> = std::iter::from_fn(accept).take(MAX_ANSWERS).collect();
        let mut answered: Vec<((Question, usize), Vec<u8>)> = Vec::new();
        let mut left = MAX_QPS;
        for (asker, address) in askers {
            let question = address.as_abstract_name().map_or(Question::default(), Question::of_name);
            let most = most_qps(enlarge_buffer(&asker), question);
            let known = answered.iter().position(|(asked, _)| *asked == (question, most));
            let at = known.unwrap_or_else(|| {
                let (document, listed) = self.subject.document(question, most.min(left.max(MIN_QPS)));
                left = left.saturating_sub(listed);
                answered.push(((question, most), document));
                answered.len() - 1
            });
            send_nonblocking(&asker, &answered[at].1);
        }
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        // In a forked child the file is the parent's.
        if self.born.is_current() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Requests a larger buffer and returns how many bytes certainly fit. The kernel also counts its overhead, which is less than the data.
fn enlarge_buffer(asker: &UnixStream) -> usize {
    let socket = SockRef::from(asker);
    let _ = socket.set_send_buffer_size(WANTED_BUFFER);
    socket.send_buffer_size().unwrap_or(0) / 2
}

fn most_qps(buffer_bytes: usize, question: Question) -> usize {
    let fixed = FIXED_BYTES + if question.history_of == 0 { 0 } else { HISTORY_BYTES };
    (buffer_bytes.saturating_sub(fixed) / QP_BYTES).min(MAX_QPS)
}

/// Sends as much as the socket takes. If that is not all, the client reads a truncated document. A client that has left must not raise
/// SIGPIPE, because the application may not expect signals.
fn send_nonblocking(asker: &UnixStream, mut document: &[u8]) {
    let socket = SockRef::from(asker);
    while !document.is_empty() {
        match socket.send_with_flags(document, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            Ok(sent) if sent > 0 => document = &document[sent..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::tests::{attributes, longest_cq, longest_event, longest_qp, longest_region};
    use super::*;
    use std::io::Read;

    #[test]
    fn the_longest_document_fits_what_the_kernel_grants() {
        let qp = serde_json::to_vec(&longest_qp()).unwrap();
        let cq = serde_json::to_vec(&longest_cq()).unwrap();
        assert!(qp.len() + 2 * cq.len() < QP_BYTES, "{} + 2 * {}", qp.len(), cq.len());
        let region = serde_json::to_vec(&longest_region()).unwrap();
        assert!(region.len() < REGION_BYTES, "{}", region.len());
        let event = serde_json::to_vec(&longest_event()).unwrap();
        assert!(event.len() < HISTORY_BYTES / HISTORY_LEN, "{}", event.len());
        assert!(serde_json::to_vec(&attributes()).unwrap().len() < FIXED_BYTES / 4);
        let (mut reader, asker) = UnixStream::pair().unwrap();
        let document = vec![b'x'; enlarge_buffer(&asker)];
        let both = Question { after: 1, history_of: 1 };
        assert!(most_qps(document.len(), both) > 64, "{} bytes", document.len());
        send_nonblocking(&asker, &document);
        drop(asker);
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        assert_eq!(read.len(), document.len());
    }

    #[test]
    fn whoever_does_not_read_or_left_is_not_waited_for() {
        let (reader, asker) = UnixStream::pair().unwrap();
        let endless = vec![0; 16 << 20];
        send_nonblocking(&asker, &endless);
        drop(reader);
        send_nonblocking(&asker, &endless);
    }

    #[test]
    fn small_buffers_make_short_documents() {
        let plain = Question::default();
        assert_eq!(most_qps(0, plain), 0);
        assert_eq!(most_qps(FIXED_BYTES + 3 * QP_BYTES, plain), 3);
        assert_eq!(most_qps(FIXED_BYTES + 3 * QP_BYTES, Question { history_of: 1, ..plain }), 0);
        assert_eq!(most_qps(usize::MAX, plain), MAX_QPS);
    }
}
