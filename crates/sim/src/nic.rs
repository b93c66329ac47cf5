//! One simulated NIC: its objects, and how packets reach its queue pairs.

use crate::frame::{Frame, Unreadable};
use crate::host::{Queues, SimHost};
use crate::journal::{Entry, Journal, NodeId};
use crate::memory::Memory;
use crate::queues::{CompletionQueue, SharedReceiveQueue};
use ferroce_proto::qp::{Arrival, DropReason, Qp, ReorderBudget};
use ferroce_proto::verbs::{EventKind, MwBind, Route};
use ferroce_proto::{Gid, Qpn, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The objects that the queue pairs of a NIC share.
pub(crate) struct Resources {
    pub(crate) memory: Memory,
    pub(crate) cqs: Vec<CompletionQueue>,
    pub(crate) srqs: Vec<SharedReceiveQueue>,
    pub(crate) events: VecDeque<(Qpn, EventKind)>,
    pub(crate) outbox: VecDeque<Frame>,
    /// Maximum number of packets that wait for the link.
    pub(crate) link_depth: usize,
    /// Atomics that reached memory; more than were posted means that one ran twice.
    pub(crate) atomics_run: u64,
    /// Requests refused, by reason.
    pub(crate) refusals: BTreeMap<&'static str, u64>,
    /// Window binds that were executed.
    pub(crate) binds: Vec<MwBind>,
    pub(crate) rendezvous: Rendezvous,
    /// Packets that queue pairs received, and how often they read the clock.
    pub(crate) received: (u64, u64),
    pub(crate) reorder: Arc<ReorderBudget>,
    pub(crate) next_pd: u32,
    pub(crate) next_addr: u64,
}

/// Rendezvous sends of a NIC.
#[derive(Default)]
pub(crate) struct Rendezvous {
    /// Whether it sends them.
    pub(crate) enabled: bool,
    /// Whether all packets take rings, so that they may be longer than the path MTU.
    pub(crate) large_packets: bool,
    /// It declines to fetch every n-th of them; 0: none.
    pub(crate) decline_every: u64,
    /// Number sent, and number of fetches.
    pub(crate) sent: u64,
    pub(crate) fetches: u64,
}

impl Resources {
    pub(crate) fn link_is_full(&self) -> bool {
        self.outbox.len() >= self.link_depth
    }
}

pub(crate) struct Slot {
    pub(crate) qp: Qp,
    pub(crate) queues: Queues,
    /// When delayed ACKs must be sent.
    pub(crate) acks_due: Option<Time>,
}

impl Slot {
    /// Whether only ACKs are queued and their delay has not expired. Starts the delay if it does not run.
    fn delays_acks(&mut self, now: Time, ack_delay_ns: u64) -> bool {
        let may_wait = self.qp.has_replies() && self.qp.only_acks_wait();
        let until = self.acks_due.unwrap_or(now + ack_delay_ns);
        self.acks_due = (may_wait && now < until).then_some(until);
        self.acks_due.is_some()
    }
}

/// Time that a link needs for one packet, so no two packets of a node leave at the same time.
const PACKET_NS: u64 = 10;

/// The NIC.
pub(crate) struct Nic {
    pub(crate) id: NodeId,
    pub(crate) gid: Gid,
    pub(crate) alive: bool,
    link_free_at: Time,
    /// How long ACKs wait for a request that can carry them.
    pub(crate) ack_delay_ns: u64,
    /// Reported age of every arriving packet.
    pub(crate) rx_age_ns: u32,
    /// How late the timers of queue pairs are handled.
    pub(crate) timer_delay_ns: u64,
    /// A queue pair was called, or the link drained, since the last progress.
    needs_progress: bool,
    pub(crate) resources: Resources,
    pub(crate) qps: BTreeMap<Qpn, Slot>,
    pub(crate) groups: BTreeMap<Gid, BTreeSet<Qpn>>,
}

impl Nic {
    pub(crate) fn new(id: NodeId, gid: Gid) -> Nic {
        let resources = Resources {
            memory: Memory::default(),
            cqs: Vec::new(),
            srqs: Vec::new(),
            events: VecDeque::new(),
            outbox: VecDeque::new(),
            link_depth: usize::MAX,
            atomics_run: 0,
            refusals: BTreeMap::new(),
            binds: Vec::new(),
            rendezvous: Rendezvous::default(),
            received: (0, 0),
            reorder: ReorderBudget::new(ReorderBudget::DEFAULT),
            next_pd: 1,
            next_addr: 0x10_0000,
        };
        Nic {
            id,
            gid,
            alive: true,
            link_free_at: Time(0),
            ack_delay_ns: 0,
            rx_age_ns: 0,
            timer_delay_ns: 0,
            needs_progress: false,
            resources,
            qps: BTreeMap::new(),
            groups: BTreeMap::new(),
        }
    }

    /// Calls one queue pair with its host.
    pub(crate) fn with_qp<R>(
        &mut self,
        now: Time,
        qpn: Qpn,
        journal: &mut Journal,
        call: impl FnOnce(&mut Qp, &mut SimHost<'_>) -> R,
    ) -> Option<R> {
        let slot = self.qps.get_mut(&qpn)?;
        self.needs_progress = true;
        let nic = &mut self.resources;
        let mut host = SimHost {
            now,
            node: self.id,
            qpn,
            queues: slot.queues,
            nic,
            journal,
            source_bytes: None,
            stream: None,
        };
        Some(call(&mut slot.qp, &mut host))
    }

    /// Handles a received packet.
    pub(crate) fn receive(&mut self, now: Time, frame: &Frame, journal: &mut Journal) {
        if !self.alive {
            return;
        }
        let packet = match frame.decode() {
            Ok(packet) => packet,
            Err(unreadable) => {
                let (reason, why) = match unreadable {
                    Unreadable::Icrc => (DropReason::BadIcrc, "damaged".to_string()),
                    Unreadable::Malformed(why) => (DropReason::Malformed, why.to_string()),
                };
                journal.add(now, Entry::Dropped(self.id, Qpn::default(), reason, why));
                return;
            }
        };
        let Route { sgid, dgid, traffic_class, hop_limit, .. } = frame.route;
        // A rendezvous send arrives through a ring, never over the network.
        let ring = (frame.source_bytes.is_some() || self.resources.rendezvous.large_packets).then_some(1);
        let arrival = Arrival { sgid, dgid, traffic_class, hop_limit, ring, age_ns: self.rx_age_ns };
        let bytes = frame.received();
        for qpn in self.destinations(packet.headers.bth.dest_qpn, frame.route.dgid) {
            let found = self.with_qp(now, qpn, journal, |qp, host| {
                host.source_bytes = frame.source_bytes.clone();
                let mut reads = 0;
                let clock = || {
                    reads += 1;
                    now
                };
                let _ = qp.receive(&arrival, &bytes, clock, host);
                host.nic.received.0 += 1;
                host.nic.received.1 += reads;
            });
            if found.is_none() {
                let why = format!("no queue pair has number {qpn}");
                journal.add(now, Entry::Dropped(self.id, qpn, DropReason::NoSuchQp, why));
            }
        }
    }

    fn destinations(&self, qpn: Qpn, dgid: Gid) -> Vec<Qpn> {
        if qpn == Qpn::MULTICAST {
            self.groups.get(&dgid).into_iter().flatten().copied().collect()
        } else {
            vec![qpn]
        }
    }

    /// The earliest time at which a queue pair is due, or the link can send the next packet.
    pub(crate) fn deadline(&self) -> Option<Time> {
        if !self.alive {
            return None;
        }
        let link = (!self.resources.outbox.is_empty()).then_some(self.link_free_at);
        let due = |slot: &Slot| self.timer_of(&slot.qp).into_iter().chain(slot.acks_due).min();
        self.qps.values().filter_map(due).chain(link).min()
    }

    /// When the timer of a queue pair is handled.
    fn timer_of(&self, qp: &Qp) -> Option<Time> {
        qp.deadline().map(|at| at + self.timer_delay_ns)
    }

    /// The next packet to send, if one waits and the link is free.
    pub(crate) fn leave(&mut self, now: Time) -> Option<Frame> {
        if !self.alive || self.link_free_at > now {
            return None;
        }
        let frame = self.resources.outbox.pop_front()?;
        self.link_free_at = now + PACKET_NS;
        // The link accepts packets again.
        self.needs_progress = true;
        Some(frame)
    }

    /// Runs the timers that are due, and lets every queue pair send.
    pub(crate) fn progress(&mut self, now: Time, journal: &mut Journal) {
        let is_due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        let due = self.qps.values().any(|slot| is_due(self.timer_of(&slot.qp)) || is_due(slot.acks_due));
        if !self.alive || !(self.needs_progress || due) {
            return;
        }
        let numbers: Vec<Qpn> = self.qps.keys().copied().collect();
        for qpn in numbers {
            let ack_delay_ns = self.ack_delay_ns;
            let delays_acks = self.qps.get_mut(&qpn).is_some_and(|slot| slot.delays_acks(now, ack_delay_ns));
            let is_expired = self.qps.get(&qpn).is_some_and(|slot| is_due(self.timer_of(&slot.qp)));
            self.with_qp(now, qpn, journal, |qp, host| {
                if is_expired {
                    qp.handle_timeout(now, host);
                }
                if !delays_acks {
                    qp.poll_replies(now, host);
                }
                let sent = qp.counters().tx_packets;
                qp.poll_requests(now, host);
                if qp.counters().tx_packets > sent {
                    // A request was sent: delayed ACKs need not wait any longer.
                    qp.poll_replies(now, host);
                }
            });
        }
        self.needs_progress = false;
    }
}
