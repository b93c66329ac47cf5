//! Operations on a mapping as messages: a request carries operations, and a thread of the other process executes them and
//! replies. One-sided operations need no such thread.
//!
//! | file | question |
//! |---|---|
//! | here | which thread sends, receives and waits |
//! | `codec` | what a request and a reply look like |
//! | `udp` | messages over plain sockets, with acknowledgement and retransmission |
//! | `reliability` | which datagram was lost, as a machine without sockets |
//! | `verbs` | messages over SEND and RECV |

mod codec;
mod reliability;
mod udp;
mod verbs;

use super::rdma::each_peer;
use super::{Op, Transport, poll_until};
use crate::error::Error;
use crate::map::Mapping;
use crate::meet::Meeting;
use codec::Message;
use ferroce_os::thread::spawn;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest message: two pages and the headers.
const LARGEST: usize = 2 * crate::PAGE + 256;
/// How long the service thread waits for a message before it checks whether it should end.
const SERVICE_POLL: Duration = Duration::from_millis(20);

/// Carries messages of up to [`LARGEST`] bytes, in order, exactly once.
trait Carrier: Send + Sync {
    /// Never waits for the receiver.
    fn send(&self, to: u32, message: Vec<u8>) -> Result<(), Error>;
    /// Delivers received messages; waits at most `timeout` for one. Only the service thread calls it.
    fn receive(&self, timeout: Duration, each: &mut dyn FnMut(u32, &[u8])) -> Result<(), Error>;
    /// Delivers messages that are here, to a thread of the program that polls, one at a time. A carrier may leave them to the
    /// service thread.
    fn poll(&self, _each: &mut dyn FnMut(u32, &[u8])) -> Result<(), Error> {
        Ok(())
    }
    /// The same for a thread of the program that waits until `ready`, one at a time. May return earlier. Returns `false` if this
    /// carrier leaves all messages to the service thread.
    fn receive_in_caller(
        &self,
        _most: Duration,
        _ready: &mut dyn FnMut() -> bool,
        _each: &mut dyn FnMut(u32, &[u8]),
    ) -> Result<bool, Error> {
        Ok(false)
    }
}

pub(crate) struct Messages {
    shared: Arc<Shared>,
    /// How long to poll for replies before sleeping.
    spin: Duration,
    service: Option<JoinHandle<()>>,
}

struct Shared {
    mapping: Arc<Mapping>,
    carrier: Box<dyn Carrier>,
    next: AtomicU64,
    calls: Mutex<Calls>,
    /// Notified when a call is done, or a peer has written to our mapping.
    changed: Condvar,
    /// Held by the thread of the program that receives messages in place of the service thread.
    receiver: Mutex<()>,
    ended: AtomicBool,
}

#[derive(Default)]
struct Calls {
    waiting: HashMap<u64, Call>,
    failure: Option<String>,
    /// Messages that were handled.
    handled: u64,
}

/// A request without a reply yet.
struct Call {
    /// Where the bytes of the reply go.
    destinations: Vec<(usize, usize)>,
    /// Requests that its caller waits for.
    left: Option<Arc<AtomicUsize>>,
}

impl Messages {
    /// Over UDP sockets, or over SEND and RECV.
    pub(crate) fn open(
        over_udp: bool,
        rank: u32,
        size: u32,
        mapping: &Arc<Mapping>,
        meeting: &Meeting,
        spin: Duration,
    ) -> Result<Self, Error> {
        let carrier: Box<dyn Carrier> = match over_udp {
            true => Box::new(udp::Udp::open(rank, size, meeting)?),
            false => Box::new(verbs::Verbs::open(rank, size, meeting)?),
        };
        let shared = Arc::new(Shared {
            mapping: mapping.clone(),
            carrier,
            next: AtomicU64::new(0),
            calls: Mutex::default(),
            changed: Condvar::new(),
            receiver: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let server = shared.clone();
        let service = spawn("ferroce-dsm-home", move || server.serve())
            .map_err(|source| Error::System { call: "starting the service thread", source })?;
        meeting.gather("serving")?;
        Ok(Self { shared, spin, service: Some(service) })
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        if let Some(service) = self.service.take() {
            let _ = service.join();
        }
    }
}

impl Shared {
    fn serve(&self) {
        while !self.ended.load(Ordering::Acquire) {
            if let Err(error) = self.handle_all(|each| self.carrier.receive(SERVICE_POLL, each)) {
                self.calls.lock().failure = Some(error.to_string());
                self.changed.notify_all();
                return;
            }
        }
    }

    /// Handles all messages that `receive` delivers.
    fn handle_all<T>(
        &self,
        receive: impl FnOnce(&mut dyn FnMut(u32, &[u8])) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut failure = None;
        let received =
            receive(&mut |from, bytes| failure = failure.take().or(self.handle(from, bytes).err()));
        failure.map_or(received, Err)
    }

    /// Handles messages that are here, unless another thread of the program does.
    fn poll(&self) -> Result<(), Error> {
        if let Some(_receiver) = self.receiver.try_lock() {
            self.handle_all(|each| self.carrier.poll(each))?;
        }
        self.calls.try_lock().map_or(Ok(()), |calls| Self::check(&calls))
    }

    fn handle(&self, from: u32, bytes: &[u8]) -> Result<(), Error> {
        let wrong = |why: codec::Malformed| {
            Error::Transport(format!("process {from} sent a malformed message: {why:?}"))
        };
        match Message::parse(bytes).map_err(wrong)? {
            Message::Request { id, ops } => {
                let reply = codec::serve(&self.mapping, id, ops).map_err(wrong)?;
                self.carrier.send(from, reply)?;
            }
            Message::Reply { id, bytes } => {
                let call = self.calls.lock().waiting.remove(&id);
                if let Some(call) = call {
                    self.finish(&call, bytes).map_err(wrong)?;
                }
            }
        }
        // Waiters for a word in our mapping check it again.
        self.calls.lock().handled += 1;
        self.changed.notify_all();
        Ok(())
    }

    fn finish(&self, call: &Call, mut bytes: &[u8]) -> Result<(), codec::Malformed> {
        for &(at, len) in &call.destinations {
            let (part, rest) = bytes.split_at_checked(len).ok_or(codec::Malformed::Short)?;
            self.mapping.write(at, part);
            bytes = rest;
        }
        if let Some(left) = &call.left {
            left.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    }

    fn send_requests(&self, to: u32, ops: &[Op], left: Option<&Arc<AtomicUsize>>) -> Result<(), Error> {
        for request in codec::requests(ops, &self.mapping) {
            let id = self.next.fetch_add(1, Ordering::Relaxed);
            if let Some(left) = left {
                left.fetch_add(1, Ordering::AcqRel);
            }
            let call = Call { destinations: request.destinations, left: left.cloned() };
            self.calls.lock().waiting.insert(id, call);
            self.carrier.send(to, codec::with_id(request.bytes, id))?;
        }
        Ok(())
    }

    /// Waits for messages until `ready`, at most for `most`. May return earlier.
    fn wait(&self, most: Duration, ready: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        if let Some(_receiver) = self.receiver.try_lock()
            && self.handle_all(|each| self.carrier.receive_in_caller(most, ready, each))?
        {
            return Self::check(&self.calls.lock());
        }
        let seen = self.calls.lock().handled;
        if ready() {
            return Ok(());
        }
        let mut calls = self.calls.lock();
        if calls.handled == seen {
            self.changed.wait_for(&mut calls, most);
        }
        Self::check(&calls)
    }

    fn check(calls: &Calls) -> Result<(), Error> {
        calls.failure.as_ref().map_or(Ok(()), |why| Err(Error::Transport(why.clone())))
    }
}

impl Transport for Messages {
    fn execute(&self, ops: &[(u32, Op)], meanwhile: &mut dyn FnMut()) -> Result<(), Error> {
        let left = Arc::new(AtomicUsize::new(0));
        each_peer(ops, |to, ops| self.shared.send_requests(to, ops, Some(&left)))?;
        meanwhile();
        let mut ready = || left.load(Ordering::Acquire) == 0;
        poll_until(self.spin, ready, || self.progress())?;
        while !ready() {
            self.shared.wait(Duration::from_millis(100), &mut ready)?;
        }
        Ok(())
    }

    fn post(&self, ops: &[(u32, Op)]) -> Result<(), Error> {
        each_peer(ops, |to, ops| self.shared.send_requests(to, ops, None))
    }

    fn progress(&self) -> Result<(), Error> {
        self.shared.poll()
    }

    fn sleep(&self, most: Duration, ready: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        self.shared.wait(most, ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::anonymous_file;

    /// The other process, which replies immediately.
    struct ImmediatePeer {
        mapping: Mapping,
        replies: Mutex<Vec<Vec<u8>>>,
    }

    impl Carrier for ImmediatePeer {
        fn send(&self, _to: u32, message: Vec<u8>) -> Result<(), Error> {
            let Ok(Message::Request { id, ops }) = Message::parse(&message) else { panic!("a request") };
            let reply = codec::serve(&self.mapping, id, ops).expect("a good request");
            self.replies.lock().push(reply);
            Ok(())
        }

        fn receive(&self, _timeout: Duration, _each: &mut dyn FnMut(u32, &[u8])) -> Result<(), Error> {
            panic!("there is no service thread")
        }

        fn poll(&self, each: &mut dyn FnMut(u32, &[u8])) -> Result<(), Error> {
            self.replies.lock().drain(..).for_each(|reply| each(1, &reply));
            Ok(())
        }

        fn receive_in_caller(
            &self,
            _most: Duration,
            _ready: &mut dyn FnMut() -> bool,
            _each: &mut dyn FnMut(u32, &[u8]),
        ) -> Result<bool, Error> {
            panic!("the reply has arrived: no reason to sleep")
        }
    }

    fn mapping() -> Mapping {
        let file = anonymous_file(c"test", 1 << 16).expect("memory");
        Mapping::anywhere(&file, 0, 1 << 16).expect("a mapping")
    }

    #[test]
    fn a_reply_that_comes_soon_is_received_without_sleeping() {
        let theirs = mapping();
        theirs.write(64, b"page");
        let shared = Arc::new(Shared {
            mapping: Arc::new(mapping()),
            carrier: Box::new(ImmediatePeer { mapping: theirs, replies: Mutex::default() }),
            next: AtomicU64::new(0),
            calls: Mutex::default(),
            changed: Condvar::new(),
            receiver: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let messages = Messages { shared, spin: Duration::from_secs(60), service: None };
        let read = Op::Read { remote: 64, local: 128, len: 4 };
        messages.execute(&[(1, read)], &mut || ()).expect("a reply");
        let mut bytes = [0; 4];
        messages.shared.mapping.read(128, &mut bytes);
        assert_eq!(&bytes, b"page");
    }
}
