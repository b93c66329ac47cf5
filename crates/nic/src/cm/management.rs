//! Packets to QP1: connection management on the engine.

use super::CmService;
use super::service::{Destination, LOCK_PATIENCE, Managed};
use crate::engine::{ManagementAgent, StreamEvent};
use crate::link::{RxPacket, SLOT_HINT_AT, TxBatch, now};
use crate::local::LocalPeers;
use ferroce_os::clock::wall_clock_ns;
use ferroce_os::lock::{MutexGuard, lock_within};
use ferroce_os::log;
use ferroce_proto::cm::Transmit;
use ferroce_proto::qp::DropReason;
use ferroce_proto::verbs::Route;
use ferroce_proto::wire::cm::{CmMad, CmMessage};
use ferroce_proto::wire::{NotGsi, Packet, check_gsi, gsi_headers};
use ferroce_proto::{Gid, Time};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

impl CmService {
    /// Runs `work` on the connection manager, then sends its messages and delivers its events.
    pub(super) fn manage<R>(&self, work: impl FnOnce(&mut Managed) -> R) -> R {
        self.manage_locked(self.managed.lock(), work)
    }

    /// Sends messages under the lock, so that they keep the order of the state machine and leave before their events reach the program. A
    /// program may exit as soon as it gets `Disconnected`; an answer that is still queued would be lost.
    fn manage_locked<R>(
        &self,
        mut managed: MutexGuard<'_, Managed>,
        work: impl FnOnce(&mut Managed) -> R,
    ) -> R {
        if managed.cm.has_secrets() {
            managed.cm.set_unix_time(wall_clock_ns(), now());
        }
        let result = work(&mut managed);
        self.send_waiting(&mut managed);
        managed.deliver();
        // Delivery rejects a connection request whose listener was destroyed.
        self.send_waiting(&mut managed);
        let deadline = managed.cm.deadline().map_or(u64::MAX, |t| t.0).min(self.next_liveness_check_ns());
        self.engine.set_agent_deadline(deadline);
        let garbage = managed.take_garbage();
        drop(managed);
        drop(garbage);
        self.engine.activity.wake_before(deadline);
        result
    }

    fn send_waiting(&self, managed: &mut Managed) {
        let out: SmallVec<[Transmit; 4]> = std::iter::from_fn(|| managed.cm.poll_transmit()).collect();
        if !out.is_empty() {
            self.engine.with_own_batch(|tx| self.send_messages(tx, &out));
        }
    }

    /// Sends messages. Retries take the wire: a local peer that has not answered may not read its ring.
    fn send_messages(&self, tx: &mut TxBatch, messages: &[Transmit]) {
        self.write_messages(tx, messages.iter().filter(|message| !message.is_repeat), |tx| {
            self.engine.link.send(tx)
        });
        let repeats = messages.iter().filter(|message| message.is_repeat);
        self.write_messages(tx, repeats, |tx| self.engine.wire.send(tx));
    }

    fn write_messages<'a>(
        &self,
        tx: &mut TxBatch,
        messages: impl Iterator<Item = &'a Transmit>,
        send: impl Fn(&mut TxBatch),
    ) {
        for message in messages {
            let headers = gsi_headers();
            let (head, len) = (headers.encoded_len(), headers.encoded_len() + message.mad.len());
            if !tx.has_room(len) {
                send(tx);
            }
            // Processes that share an address share QP1, and the kernel picks one of them by flow. A new flow per message lets a retry
            // reach another process if the first message was lost while a process forwarded it.
            let route = Route { entropy: fresh_entropy(), ..message.route };
            let packet = tx.reserve(&route, len);
            headers.write(packet);
            packet[head..].copy_from_slice(&message.mad[..]);
            let dgid = message.route.dgid;
            let slot = self.slot_hint(message, self.is_here(dgid));
            packet[head + SLOT_HINT_AT] = slot;
            if slot != 0 {
                // The peer may be killed right after its answer.
                self.watch_peer((dgid, slot), now());
            }
        }
        if !tx.is_empty() {
            send(tx);
        }
    }

    /// Whether this is an address of this host.
    fn is_here(&self, address: Gid) -> bool {
        let is_local = |local_peers: &Arc<LocalPeers>| local_peers.is_local(address);
        address.to_ip().is_loopback()
            || self.addresses.find(address).is_some()
            || self.engine.local_peers.as_ref().is_some_and(is_local)
    }
}

impl ManagementAgent for CmService {
    /// Handles a packet to QP1, or forwards it to the process that must handle it.
    fn receive(&self, rx: &RxPacket<'_>, packet: &Packet<'_>, now: Time) {
        match check_gsi(&packet.headers) {
            Ok(()) => {}
            Err(NotGsi::Unexpected(opcode)) => {
                self.engine.device.counters.dropped(DropReason::UnexpectedOpcode);
                return log::drop(format_args!("{opcode:?} to QP1 from {}", rx.arrival.sgid));
            }
            Err(NotGsi::Qkey) => {
                self.engine.device.counters.dropped(DropReason::BadQkey);
                return log::drop(format_args!("wrong Q_Key to QP1 from {}", rx.arrival.sgid));
            }
        }
        let mad = match CmMad::parse(packet.payload) {
            Ok(mad) => mad,
            Err(bad) => {
                self.managed.lock().cm.count_bad(bad);
                self.engine.device.counters.dropped(DropReason::Malformed);
                return log::drop(format_args!("management datagram from {}: {bad}", rx.arrival.sgid));
            }
        };
        if let Destination::Slot(slot) = self.destination(&mad, rx.arrival.dgid) {
            // That process is alive, so this one must not answer for it. If the packet is lost, the peer retries.
            self.engine.shared_port.forward(slot, rx);
            return;
        }
        match self.inbound(rx) {
            Some(inbound) => self.manage(|managed| {
                if let Some(id) = mad.message.introduced().filter(|_| self.is_here(rx.arrival.sgid)) {
                    let peer = (rx.arrival.sgid, id.slot());
                    // A peer that was killed right after its answer stays watched: it was alive when it got the request.
                    if matches!(mad.message, CmMessage::Req(_)) {
                        self.recheck_peer(peer, managed, now);
                    }
                    self.watch_peer(peer, now);
                }
                managed.cm.handle_message(&inbound, &mad, now);
            }),
            None => {
                self.engine.device.counters.dropped(DropReason::WrongAddress);
                log::drop(format_args!(
                    "management datagram from {} to {}: not ours",
                    rx.arrival.sgid, rx.arrival.dgid
                ));
            }
        }
    }

    fn socket_ready(&self, number: u64, now: Time) {
        self.streams.iter().for_each(|streams| self.stream_socket_ready(streams, number, now));
    }

    fn stream_events(&self, events: &[(u64, StreamEvent)], _: Time) {
        self.streams.iter().for_each(|streams| self.on_stream_events(streams, events));
    }

    fn handle_timeout(&self, now: Time) {
        if let Some(streams) = &self.streams {
            return self.handle_stream_timeout(streams, now);
        }
        self.manage(|managed| {
            managed.cm.handle_timeout(now);
            self.check_liveness(managed, now);
        });
    }

    fn close(&self) {
        if let Some(streams) = &self.streams {
            return self.close_streams(streams);
        }
        // With a time limit: at the exit of the process the lock may belong to a thread that no longer runs.
        if let Some(managed) = lock_within(&self.managed, LOCK_PATIENCE) {
            self.manage_locked(managed, |managed| managed.release_all(now()));
        }
    }

    fn named_counters(&self) -> BTreeMap<&'static str, u64> {
        // At the exit of the process the lock may belong to a thread that no longer runs.
        let Some(managed) = lock_within(&self.managed, LOCK_PATIENCE) else { return BTreeMap::new() };
        let now = match &self.streams {
            Some(streams) => streams.named_counters(self.engine.refused_now()),
            None => vec![
                ("connections_now", managed.cm.connections() as u64),
                ("half_open_now", managed.cm.half_open() as u64),
                ("pending_requests_now", managed.cm.pending() as u64),
            ],
        };
        managed.cm.counters().named().into_iter().chain(now).collect()
    }
}

/// A number that differs from the one before. Not from the thread's generator, which no longer exists when the last messages leave at exit.
fn fresh_entropy() -> u16 {
    static STEPS: AtomicU64 = AtomicU64::new(0);
    let step = STEPS.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    let mixed = (step ^ step >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 48) as u16
}
