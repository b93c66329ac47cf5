//! A queue pair as the engine sees it: the state machine and what belongs to it.

use super::guarded::Guarded;
use super::history::History;
use super::jumbo::JumboPath;
use super::{Resends, StreamEnd};
use crate::counters::Tally;
use crate::link::SinglePacket;
use crate::local::Path;
use crate::memory::{CacheOwner, InFlight};
use crate::queues::{CqCore, EventQueue, EventSource, SrqCore};
use ferroce_os::lock::Mutex;
use ferroce_proto::Qpn;
use ferroce_proto::qp;
use ferroce_proto::verbs::EventKind;
use ferroce_shm::QpDescriptor;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// The part that the engine works on.
#[repr(align(128))] // no cache line shared with another object that another core writes
pub(crate) struct QpCore {
    pub(crate) qpn: Qpn,
    pub(crate) send_cq: Arc<CqCore>,
    pub(crate) recv_cq: Arc<CqCore>,
    pub(crate) srq: Option<Arc<SrqCore>>,
    /// The XRC domain, if this is the receiving end of an extended reliable connection.
    pub(crate) xrc_domain: Option<u32>,
    /// The live handles of a queue pair that can have several. The list is empty once the queue pair is being destroyed.
    handles: Option<Mutex<Vec<Handle>>>,
    /// The state machine of RoCE. Where there is a `stream`, it stays in RESET and keeps the number.
    pub(crate) machine: Mutex<qp::Qp>,
    /// The state machine and the stream of iWARP.
    pub(super) stream: Option<Box<StreamEnd>>,
    pub(crate) events: Arc<EventQueue>,
    /// How to reach the peer's memory, if it is on this host.
    pub(crate) path: Guarded<Option<Path>>,
    /// Buffer for one small packet that is sent without a batch.
    pub(crate) short: Guarded<SinglePacket>,
    /// Its share of the device's counters.
    pub(crate) tally: Tally,
    /// Its last events.
    pub(crate) history: History,
    /// Its peer is on this host and may send it larger packets than a wire could carry.
    pub(crate) takes_large: AtomicBool,
    /// Whether its path carries jumbo packets.
    pub(crate) jumbo_path: JumboPath,
    /// Rendezvous sends of the peer can be fetched.
    pub(crate) fetches: AtomicBool,
    /// Also those in the memory of a GPU.
    pub(crate) fetches_gpu: AtomicBool,
    /// The descriptor that local peers read, in one word.
    pub(crate) published_word: AtomicU64,
    /// The descriptor that local peers read.
    pub(crate) published: Mutex<Option<QpDescriptor>>,
    /// Local peers have read a descriptor of it, so an access through it may be in progress.
    pub(crate) was_published: AtomicBool,
    /// Which payloads are copied because of retransmissions.
    pub(crate) resends: Resends,
    /// Earliest deadline in the timer heap; `u64::MAX` if none.
    pub(crate) timer_at: AtomicU64,
    /// Already in the engine's list of queue pairs to finish.
    pub(crate) touched: AtomicBool,
    /// Already in the engine's list of queue pairs with more to send.
    pub(crate) ready: AtomicBool,
    /// `Some` with `Config::watch`.
    pub(crate) in_flight: Option<InFlight>,
    /// A completion found its CQ full.
    pub(crate) overrun: AtomicBool,
    /// All packets are dropped: the peer must prove its key first.
    pub(crate) is_shut: AtomicBool,
}

/// One of several handles of a queue pair, and the queue of its events.
struct Handle {
    number: u32,
    events: Arc<EventQueue>,
}

impl CacheOwner for QpCore {
    fn wait_for_holder(&self) {
        drop(self.machine.lock());
    }
}

/// The queues that a queue pair takes receives from and adds completions to.
pub(crate) struct QpQueues {
    pub(crate) send_cq: Arc<CqCore>,
    pub(crate) recv_cq: Arc<CqCore>,
    pub(crate) srq: Option<Arc<SrqCore>>,
}

impl QpCore {
    /// A queue pair with a single handle or, if an XRC domain is given, with several that are opened and closed; the first has number 0.
    pub(crate) fn new(
        machine: qp::Qp,
        queues: QpQueues,
        xrc_domain: Option<u32>,
        events: Arc<EventQueue>,
        in_flight: Option<InFlight>,
    ) -> QpCore {
        let QpQueues { send_cq, recv_cq, srq } = queues;
        let first = || Mutex::new(vec![Handle { number: 0, events: events.clone() }]);
        QpCore {
            qpn: machine.qpn(),
            send_cq,
            recv_cq,
            srq,
            xrc_domain,
            handles: xrc_domain.map(|_| first()),
            machine: Mutex::new(machine),
            stream: None,
            events,
            path: Guarded::new(None),
            short: Guarded::default(),
            tally: Tally::default(),
            history: History::default(),
            takes_large: AtomicBool::new(false),
            jumbo_path: JumboPath::default(),
            fetches: AtomicBool::new(false),
            fetches_gpu: AtomicBool::new(false),
            published_word: AtomicU64::new(0),
            published: Mutex::new(None),
            was_published: AtomicBool::new(false),
            resends: Resends::default(),
            timer_at: AtomicU64::new(u64::MAX),
            touched: AtomicBool::new(false),
            ready: AtomicBool::new(false),
            in_flight,
            overrun: AtomicBool::new(false),
            is_shut: AtomicBool::new(false),
        }
    }

    /// The same queue pair over a stream.
    pub(crate) fn with_stream(self, stream: Box<StreamEnd>) -> QpCore {
        QpCore { stream: Some(stream), ..self }
    }

    /// Identifies it among all queue pairs of the process.
    #[inline(always)]
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Raises an event, one for every handle.
    pub(crate) fn raise(&self, kind: EventKind) {
        match &self.handles {
            None => self.events.raise(kind, EventSource::Qp(self.qpn)),
            Some(handles) => {
                for handle in handles.lock().iter() {
                    handle.events.raise(kind, EventSource::QpHandle(self.qpn, handle.number));
                }
            }
        }
    }

    /// Adds a handle. Returns `false` if the queue pair has only one, or if its last handle was closed.
    pub(crate) fn open_handle(&self, number: u32, events: Arc<EventQueue>) -> bool {
        let Some(handles) = &self.handles else { return false };
        let mut handles = handles.lock();
        let is_alive = !handles.is_empty();
        if is_alive {
            handles.push(Handle { number, events });
        }
        is_alive
    }

    /// Closes a handle. Returns whether it was the last.
    pub(crate) fn close_handle(&self, number: u32) -> bool {
        self.handles.as_ref().is_none_or(|handles| {
            let mut handles = handles.lock();
            handles.retain(|handle| handle.number != number);
            handles.is_empty()
        })
    }
}
