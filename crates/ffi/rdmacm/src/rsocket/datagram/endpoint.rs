//! The NIC's side of a datagram socket at one local address: a UD queue pair and slots for messages.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ptr;

use super::header::SourceHeader;
use crate::abi::*;
use crate::address::gid_of;
use crate::rsocket::address::Address;
use crate::rsocket::calls::*;
use crate::rsocket::channel::Channel;
use crate::rsocket::completions::Completions;
use crate::rsocket::errno::{Errno, Outcome};
use crate::rsocket::memory::Registered;
use crate::rsocket::settings::Sizing;
use crate::rsocket::stream::Span;
use crate::rsocket::vectors::Vectors;
use crate::verbs::ibv_query_gid;

/// Bytes for one message with its header, as in rdma-core.
pub(crate) const SLOT: u32 = 2048;
/// Length of the GRH that the NIC writes in front of every message. It is not read, so all receives share one buffer for it.
const GRH: u32 = 40;
/// The key that all datagram sockets share.
const QKEY: u32 = 0x0123_4567;
const BATCH: usize = 32;
/// The bit of a receive in `wr_id`, above the slot's number.
const RECEIVE: u64 = 1 << 32;

/// A received message in its slot.
#[derive(Clone, Copy)]
pub(crate) struct Arrived {
    pub(crate) source: SocketAddr,
    pub(crate) data: Span,
    slot: u32,
}

/// The address of a peer's queue pair.
pub(crate) struct Handle(*mut ibv_ah);

// SAFETY: a handle that any thread may use.
unsafe impl Send for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: ours; a posted message has its own copy of the route.
        unsafe { ibv_destroy_ah(self.0) };
    }
}

/// One queue pair. `drop` destroys it first, then the fields in their order.
pub(crate) struct Endpoint {
    /// Address handles in the queue pair's domain, by peer address.
    handles: HashMap<IpAddr, Handle>,
    pub(crate) completions: Completions,
    send: Registered,
    recv: Registered,
    channel: Channel,
    pub(crate) local: SocketAddr,
    header: SourceHeader,
    sgid_index: u8,
    free: Vec<u32>,
    slots: u32,
    recv_slots: u32,
    /// The maximum payload of a message, limited by the slot and the MTU.
    pub(crate) capacity: usize,
}

impl Endpoint {
    pub(crate) fn new(local: SocketAddr, sizing: &Sizing) -> Outcome<Self> {
        let channel = Channel::new(RDMA_PS_UDP)?;
        let id = channel.id();
        let mut address = Address::from(local);
        // SAFETY: the id lives as long as the channel; this holds for the whole block.
        unsafe {
            Errno::check(rdma_bind_addr(id, address.as_ptr()))?;
            if (*id).verbs.is_null() {
                return Err(Errno(libc::ENODEV));
            }
            let slots = (sizing.send_ring / SLOT).min(sizing.send_queue.into()).max(1);
            let recv_slots = (sizing.recv_ring / SLOT).min(sizing.recv_queue.into()).max(1);
            let completions = Completions::new((*id).verbs, slots + recv_slots)?;
            let cap = ibv_qp_cap {
                max_send_wr: slots,
                max_recv_wr: recv_slots,
                max_send_sge: 1,
                max_recv_sge: 2,
                max_inline_data: 0,
            };
            completions.create_qp(id, IBV_QPT_UD, cap)?;
            let rings = Self::rings((*(*id).qp).pd, slots, recv_slots);
            let (send, recv) = rings.inspect_err(|_| rdma_destroy_qp(id))?;
            let mut endpoint = Self {
                handles: HashMap::new(),
                completions,
                send,
                recv,
                channel,
                local,
                header: SourceHeader::new(local),
                sgid_index: gid_index(id, local.ip()),
                free: (0..slots).collect(),
                slots,
                recv_slots,
                capacity: mtu(id).min(SLOT as usize) - SourceHeader::new(local).as_bytes().len(),
            };
            for slot in 0..recv_slots {
                endpoint.post_receive(slot)?;
            }
            Ok(endpoint)
        }
    }

    /// # Safety
    /// The domain outlives the values.
    unsafe fn rings(pd: *mut ibv_pd, slots: u32, recv_slots: u32) -> Outcome<(Registered, Registered)> {
        // SAFETY: what the caller promises.
        unsafe {
            let send = Registered::new(pd, (slots * SLOT) as usize, ACCESS_LOCAL_WRITE)?;
            let recv = Registered::new(pd, (recv_slots * SLOT + GRH) as usize, ACCESS_LOCAL_WRITE)?;
            Ok((send, recv))
        }
    }

    fn qp(&self) -> *mut ibv_qp {
        // SAFETY: the id lives as long as the channel, and has its queue pair since `new`.
        unsafe { (*self.channel.id()).qp }
    }

    pub(crate) fn qpn(&self) -> u32 {
        // SAFETY: the queue pair lives as long as we do.
        unsafe { (*self.qp()).qp_num }
    }

    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.slots as usize
    }

    /// Handles completions; passes received messages to `take`. Returns the number of completions.
    pub(crate) fn progress(&mut self, mut take: impl FnMut(Arrived)) -> usize {
        let mut total = 0;
        let mut batch = [ibv_wc::default(); BATCH];
        loop {
            let done = self.completions.poll(&mut batch).len();
            for wc in &batch[..done] {
                let slot = wc.wr_id as u32;
                if wc.wr_id & RECEIVE == 0 {
                    self.free.push(slot);
                } else if let Some(arrived) = self.read_header(slot, wc) {
                    take(arrived);
                } else {
                    // A foreign message, or the queue pair is being destroyed. In the second case posting fails, which has no
                    // effect.
                    let _ = self.post_receive(slot);
                }
            }
            total += done;
            if done < BATCH {
                return total;
            }
        }
    }

    fn read_header(&self, slot: u32, wc: &ibv_wc) -> Option<Arrived> {
        let length = wc.byte_len.checked_sub(GRH).filter(|length| *length <= SLOT && wc.status == 0)?;
        if slot >= self.recv_slots {
            return None;
        }
        let offset = slot * SLOT;
        let head: [u8; SourceHeader::MAX_LEN] = self.recv.bytes(offset as usize);
        let seen = head.len().min(length as usize);
        let (source, header) = SourceHeader::parse(&head[..seen]).ok()?;
        let header = header as u32;
        Some(Arrived { source, data: Span { offset: offset + header, length: length - header }, slot })
    }

    /// Copies a message to the program, as many bytes as fit.
    pub(crate) fn copy(&self, arrived: &Arrived, into: &mut Vectors<'_>) {
        self.recv.drain([arrived.data], into);
    }

    /// Reposts its slot.
    pub(crate) fn release(&mut self, arrived: &Arrived) {
        // If posting fails, the queue pair is destroyed, and the socket with it.
        let _ = self.post_receive(arrived.slot);
    }

    fn post_receive(&mut self, slot: u32) -> Outcome<()> {
        let (addr, lkey) = (self.recv.addr(), self.recv.lkey());
        let header = Entry { addr: addr + u64::from(self.recv_slots * SLOT), length: GRH, lkey };
        let body = Entry { addr: addr + u64::from(slot * SLOT), length: SLOT, lkey };
        let mut entries = [header, body];
        let mut request = ibv_recv_wr {
            wr_id: RECEIVE | u64::from(slot),
            next: ptr::null_mut(),
            sg_list: entries.as_mut_ptr().cast(),
            num_sge: 2,
        };
        // SAFETY: the queue pair and the memory live.
        Errno::of_verb(unsafe { post_recv(self.qp(), &mut request) })
    }

    /// Sends the program's bytes to a queue pair. The caller has checked that they fit and that a slot is free.
    pub(crate) fn send(&mut self, to: IpAddr, qpn: u32, mut from: Vectors<'_>) -> Outcome<()> {
        let ah = self.handle(to)?;
        let slot = self.free.pop().ok_or(Errno::WOULD_BLOCK)?;
        let offset = slot * SLOT;
        let (header, body) = (self.header.as_bytes(), from.left() as u32);
        let head = Span { offset, length: header.len() as u32 };
        // SAFETY: the header has as many bytes as the span.
        unsafe { self.send.write(head, header.as_ptr()) };
        self.send.fill([Span { offset: offset + head.length, length: body }], &mut from);
        let addr = self.send.addr() + u64::from(offset);
        let mut entry = [Entry { addr, length: head.length + body, lkey: self.send.lkey() }];
        // SAFETY: all zeros are a request of nothing.
        let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
        request.wr_id = slot.into();
        request.sg_list = entry.as_mut_ptr().cast();
        request.num_sge = 1;
        request.opcode = IBV_WR_SEND;
        request.wr.ud = wr_ud { ah, remote_qpn: qpn, remote_qkey: QKEY };
        // SAFETY: the queue pair and the handle live, and the slot is reserved until the request completes.
        let posted = Errno::of_verb(unsafe { post_send(self.qp(), &mut request) });
        if posted.is_err() {
            self.free.push(slot);
        }
        posted
    }

    fn handle(&mut self, to: IpAddr) -> Outcome<*mut ibv_ah> {
        const MOST: usize = 1024;
        if let Some(handle) = self.handles.get(&to) {
            return Ok(handle.0);
        }
        if self.handles.len() >= MOST {
            self.handles.clear();
        }
        // SAFETY: the id lives and has its device; the queue pair has its domain.
        let handle = unsafe {
            let mut attr = ibv_ah_attr {
                is_global: 1,
                port_num: (*self.channel.id()).port_num,
                grh: ibv_global_route {
                    dgid: gid_of(to),
                    sgid_index: self.sgid_index,
                    hop_limit: 64,
                    ..Default::default()
                },
                ..Default::default()
            };
            Handle(Errno::not_null(ibv_create_ah((*self.qp()).pd, &mut attr))?)
        };
        Ok(self.handles.entry(to).or_insert(handle).0)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // SAFETY: the id lives, and the queue pair is ours. Completion queue and memory are freed after it.
        unsafe { rdma_destroy_qp(self.channel.id()) };
    }
}

/// # Safety
/// The id lives and has its device.
unsafe fn mtu(id: *mut rdma_cm_id) -> usize {
    const LEAST: usize = 256;
    let mut port = ibv_port_attr::zeroed();
    // SAFETY: what the caller promises.
    let known = unsafe { ibv_query_port((*id).verbs, (*id).port_num, &mut port) } == 0;
    // `enum ibv_mtu`: 1 is 256 bytes, and each further code twice as many.
    if known { LEAST << port.active_mtu.clamp(1, 5) >> 1 } else { LEAST }
}

/// # Safety
/// The id lives and has its device.
unsafe fn gid_index(id: *mut rdma_cm_id, ip: IpAddr) -> u8 {
    let wanted = gid_of(ip);
    let is_wanted = |index: &u8| {
        let mut gid = ibv_gid::default();
        // SAFETY: what the caller promises.
        let known = unsafe { ibv_query_gid((*id).verbs, (*id).port_num, (*index).into(), &mut gid) };
        known == 0 && gid == wanted
    };
    (0..=u8::MAX).find(is_wanted).unwrap_or(0)
}
