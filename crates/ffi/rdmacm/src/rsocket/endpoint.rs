//! The NIC's side of a stream: queue pair, completions and rings, driven by the stream machine.

use std::ptr;

use super::calls::{
    ACCESS_LOCAL_WRITE, ACCESS_REMOTE_WRITE, Entry, SEND_INLINE, WC_WITH_IMM, ibv_query_device, post_recv,
    post_send, rdma_destroy_qp,
};
use super::completions::Completions;
use super::errno::{Errno, Outcome};
use super::memory::Registered;
use super::messages::{self, MESSAGE_LEN, Slots};
use super::settings::Sizing;
use super::stream::{CONTROL_SLOTS, Control, End, Machine, Piece, Span, TABLE_SLOTS, Work};
use super::wire::{ConnectData, Mapping, Message, Order, RemoteBuffer};
use crate::abi::*;

const BATCH: usize = 32;
/// Retries of the transport, and after RNR NAKs.
const RETRIES: u8 = 7;
/// Size of the buffer that gathers inline data.
pub(crate) const MAX_INLINE: usize = 512;

/// A queue pair and its rings. The machine exists once the peer's data is known.
pub(crate) struct Endpoint {
    id: *mut rdma_cm_id,
    qp: *mut ibv_qp,
    pub(crate) completions: Completions,
    sizes: Sizing,
    /// The send ring, followed by a slot for each control message.
    pub(crate) send_ring: Registered,
    pub(crate) recv_ring: Registered,
    /// The table to which the peer writes its buffers and mappings.
    table: Registered,
    control_slot: u32,
    /// The memory of receives, if messages are SENDs (iWARP).
    slots: Option<Slots>,
    pub(crate) link: Option<Link>,
    /// Whether the peer writes to the program's memory, which the program may poll without a call.
    pub(crate) is_mapped: bool,
}

/// The state once the peer is known.
pub(crate) struct Link {
    pub(crate) machine: Machine,
    /// The peer's table of mappings; its `length` counts entries.
    pub(crate) peer_mappings: RemoteBuffer,
    pub(crate) peer_order: Order,
    /// The mappings that the peer announced, by index.
    pub(crate) mappings: Vec<Mapping>,
}

// SAFETY: handles that any thread may use; everything else changes only behind the socket's lock.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// # Safety
    /// The id is bound to a device, has no queue pair, and outlives the endpoint.
    pub(crate) unsafe fn new(id: *mut rdma_cm_id, mut sizing: Sizing) -> Outcome<Self> {
        // SAFETY: what the caller promises, for the whole block.
        unsafe {
            let context = (*id).verbs;
            if context.is_null() {
                return Err(Errno(libc::ENODEV));
            }
            let mut device = ibv_device_attr::zeroed();
            Errno::of_verb(ibv_query_device(context, &mut device))?;
            // A message that is a SEND takes a second request.
            let by_send = messages::are_sent(id);
            let max_queue = device.max_qp_wr.max(0) as u32;
            sizing.fit(if by_send { max_queue / 2 } else { max_queue });
            let (requests, receives) = match by_send {
                true => (2 * u32::from(sizing.send_queue), messages::receives(&sizing)),
                false => (sizing.send_queue.into(), sizing.recv_queue.into()),
            };
            let completions = Completions::new(context, requests + receives)?;
            let cap = ibv_qp_cap {
                max_send_wr: requests,
                max_recv_wr: receives,
                max_send_sge: 2,
                max_recv_sge: 1,
                max_inline_data: sizing.inline.max(MESSAGE_LEN as u32),
            };
            let cap = completions.create_qp(id, IBV_QPT_RC, cap)?;
            sizing.inline = cap.max_inline_data.min(MAX_INLINE as u32);
            let pd = (*(*id).qp).pd;
            let slots = by_send.then(|| Slots::new(pd, receives)).transpose();
            let rings = slots.and_then(|slots| Ok((slots, rings(pd, &sizing)?)));
            let (slots, [send_ring, recv_ring, table]) = rings.inspect_err(|_| rdma_destroy_qp(id))?;
            let mut endpoint = Self {
                id,
                qp: (*id).qp,
                completions,
                sizes: sizing,
                send_ring,
                recv_ring,
                table,
                control_slot: 0,
                slots,
                link: None,
                is_mapped: false,
            };
            endpoint.post_receives(receives as usize)?;
            Ok(endpoint)
        }
    }

    /// The private data that the peer receives.
    pub(crate) fn connect_data(&self) -> ConnectData {
        let data = RemoteBuffer {
            addr: self.recv_ring.addr(),
            rkey: self.recv_ring.rkey(),
            length: self.sizes.recv_ring / 2,
        };
        let table = RemoteBuffer { addr: self.table.addr(), rkey: self.table.rkey(), length: TABLE_SLOTS };
        ConnectData {
            order: Order::HERE,
            mappings_known: true,
            credits: self.sizes.recv_queue,
            mappings: self.sizes.mappings,
            table,
            data,
        }
    }

    /// The parameters of a request or a reply with this private data. RNR retries are unlimited, which makes control
    /// messages safe. An iWARP connection may begin with a READ, so both ends answer one.
    pub(crate) fn parameters(&self, data: &[u8; ConnectData::LEN]) -> rdma_conn_param {
        let depth = u8::from(self.slots.is_some());
        rdma_conn_param {
            initiator_depth: depth,
            responder_resources: depth,
            private_data: data.as_ptr().cast(),
            private_data_len: data.len() as u8,
            flow_control: 1,
            retry_count: RETRIES,
            rnr_retry_count: RETRIES,
            ..rdma_conn_param::zeroed()
        }
    }

    /// Starts the stream with the peer's data.
    pub(crate) fn meet(&mut self, peer: &ConnectData) {
        let ring = RemoteBuffer {
            addr: self.recv_ring.addr(),
            rkey: self.recv_ring.rkey(),
            length: self.sizes.recv_ring,
        };
        let buffers = u64::from(peer.table.length) * RemoteBuffer::LEN as u64;
        self.link = Some(Link {
            machine: Machine::new(&self.sizes, ring, peer),
            peer_mappings: RemoteBuffer {
                addr: peer.table.addr.wrapping_add(buffers),
                rkey: peer.table.rkey,
                length: peer.mappings.into(),
            },
            peer_order: peer.order,
            mappings: vec![Mapping::default(); self.sizes.mappings.into()],
        });
    }

    /// The protection domain for the program's own memory.
    pub(crate) fn pd(&self) -> *mut ibv_pd {
        // SAFETY: the queue pair lives as long as we do.
        unsafe { (*self.qp).pd }
    }

    /// Handles all completions, and sends the control messages that are due. Returns the number of completions.
    pub(crate) fn progress(&mut self) -> usize {
        let Some(link) = &mut self.link else { return 0 };
        let (mut total, mut received) = (0, 0);
        let mut batch = [ibv_wc::default(); BATCH];
        loop {
            let done = self.completions.poll(&mut batch);
            for wc in done {
                match Work::from_id(wc.wr_id) {
                    Work::Receive(slot) if wc.status == 0 => {
                        received += 1;
                        take_message(link, &self.table, self.slots.as_ref().map(|slots| (slots, slot)), wc);
                    }
                    Work::Receive(_) => link.machine.life.on_end(End::Failed),
                    work => link.machine.handle_sent(work, wc.status == 0),
                }
            }
            total += done.len();
            if done.len() < BATCH {
                break;
            }
        }
        if received > 0 && link.machine.life.is_connected() && self.post_receives(received).is_err() {
            self.fail();
        }
        self.flush_control();
        if self.is_mapped {
            self.completions.stay_attended();
        }
        total
    }

    fn fail(&mut self) {
        if let Some(link) = &mut self.link {
            link.machine.life.on_end(End::Failed);
        }
    }

    /// Sends the control messages that are due.
    pub(crate) fn flush_control(&mut self) {
        while let Some((control, work)) = self.link.as_mut().and_then(|link| link.machine.poll_control()) {
            let posted = match control {
                Control::Bare(message) => {
                    self.post_write(&mut [], RemoteBuffer::default(), Some(message), work, 0)
                }
                Control::Probe => self.post_write(&mut [], RemoteBuffer::default(), None, work, 0),
                Control::Entry { message, bytes, target } => self.post_entry(message, &bytes, target, work),
            };
            if posted.is_err() {
                self.fail();
            }
        }
    }

    fn post_entry(
        &mut self,
        message: Message,
        bytes: &[u8; RemoteBuffer::LEN],
        target: RemoteBuffer,
        work: Work,
    ) -> Outcome<()> {
        let length = RemoteBuffer::LEN as u32;
        if length <= self.sizes.inline {
            let mut entry = [Entry { addr: bytes.as_ptr() as u64, length, lkey: 0 }];
            return self.post_write(&mut entry, target, Some(message), work, SEND_INLINE);
        }
        // Each control message in flight has its own slot.
        let span = Span { offset: self.sizes.send_ring + self.control_slot * length, length };
        self.control_slot = (self.control_slot + 1) % CONTROL_SLOTS;
        // SAFETY: the array has `length` bytes.
        unsafe { self.send_ring.write(span, bytes.as_ptr()) };
        let addr = self.send_ring.addr() + u64::from(span.offset);
        let mut entry = [Entry { addr, length, lkey: self.send_ring.lkey() }];
        self.post_write(&mut entry, target, Some(message), work, 0)
    }

    /// Posts a piece whose bytes are in the ring, or at `inline_from` if it is inline.
    pub(crate) fn post_piece(
        &mut self,
        piece: &Piece,
        inline_from: *const u8,
        target: RemoteBuffer,
        message: Option<Message>,
    ) -> Outcome<()> {
        let work = Work::Sent(piece.ring_bytes());
        let Some(spans) = piece.spans else {
            let mut entry = [Entry { addr: inline_from as u64, length: piece.length, lkey: 0 }];
            return self.post_write(&mut entry, target, message, work, SEND_INLINE);
        };
        let (base, lkey) = (self.send_ring.addr(), self.send_ring.lkey());
        let entry = |span: Span| Entry { addr: base + u64::from(span.offset), length: span.length, lkey };
        let mut entries = spans.map(entry);
        let count = if spans[1].length > 0 { 2 } else { 1 };
        self.post_write(&mut entries[..count], target, message, work, 0)
    }

    fn post_write(
        &mut self,
        entries: &mut [Entry],
        target: RemoteBuffer,
        message: Option<Message>,
        work: Work,
        flags: u32,
    ) -> Outcome<()> {
        // SAFETY: all zeros are a request of nothing.
        let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
        request.wr_id = work.to_id();
        request.sg_list = entries.as_mut_ptr().cast();
        request.num_sge = entries.len() as i32;
        request.send_flags = flags;
        request.wr.rdma = wr_rdma { remote_addr: target.addr, rkey: target.rkey };
        request.opcode = IBV_WR_RDMA_WRITE;
        if let Some(message) = message {
            if self.slots.is_some() {
                return self.post_message(request, message);
            }
            request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
            request.imm_or_key = message.to_u32().to_be();
        }
        // SAFETY: the queue pair lives. The entries name our ring, which outlives it, or inline data that the call copies.
        Errno::of_verb(unsafe { post_send(self.qp, &mut request) })
    }

    /// The same with a message that is a SEND: behind the WRITE, or alone if there is nothing to write.
    fn post_message(&mut self, mut write: ibv_send_wr, message: Message) -> Outcome<()> {
        let bytes = message.to_u32().to_ne_bytes();
        let mut entry = Entry { addr: bytes.as_ptr() as u64, length: MESSAGE_LEN as u32, lkey: 0 };
        // SAFETY: all zeros are a request of nothing.
        let mut send: ibv_send_wr = unsafe { std::mem::zeroed() };
        (send.wr_id, send.opcode, send.send_flags) = (write.wr_id, IBV_WR_SEND, SEND_INLINE);
        (send.sg_list, send.num_sge) = ((&raw mut entry).cast(), 1);
        let is_bare = write.num_sge == 0;
        (write.wr_id, write.next) = (Work::Written.to_id(), &raw mut send);
        let first = if is_bare { &mut send } else { &mut write };
        // SAFETY: as in `post_write`; the message is inline, so the call copies its bytes.
        Errno::of_verb(unsafe { post_send(self.qp, first) })
    }

    /// Posts receives. They have memory only if messages are SENDs; otherwise messages are immediate data.
    fn post_receives(&mut self, mut count: usize) -> Outcome<()> {
        while count > 0 {
            let mut entries = [Entry::default(); BATCH];
            let mut list: [ibv_recv_wr; BATCH] = std::array::from_fn(|_| ibv_recv_wr {
                wr_id: Work::Receive(0).to_id(),
                next: ptr::null_mut(),
                sg_list: ptr::null_mut(),
                num_sge: 0,
            });
            let now = count.min(BATCH);
            for at in 0..now {
                if let Some(slots) = &mut self.slots {
                    let (slot, entry) = slots.take();
                    entries[at] = entry;
                    list[at].wr_id = Work::Receive(slot).to_id();
                    (list[at].sg_list, list[at].num_sge) = ((&raw mut entries[at]).cast(), 1);
                }
                if at > 0 {
                    list[at - 1].next = &raw mut list[at];
                }
            }
            // SAFETY: the queue pair lives, and the list is valid during the call.
            Errno::of_verb(unsafe { post_recv(self.qp, list.as_mut_ptr()) })?;
            count -= now;
        }
        Ok(())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // SAFETY: the id lives, and the queue pair is ours. Completion queue and rings are freed after it.
        unsafe { rdma_destroy_qp(self.id) };
    }
}

/// Passes a message to the machine, with its table entry. `slot` is the position of a message that is a SEND.
fn take_message(link: &mut Link, table: &Registered, slot: Option<(&Slots, u32)>, wc: &ibv_wc) {
    let message = match slot {
        _ if wc.wc_flags & WC_WITH_IMM != 0 => Message::from_u32(u32::from_be(wc.imm_or_key)),
        Some((slots, slot)) if wc.byte_len as usize == MESSAGE_LEN => slots.message(slot),
        _ => return,
    };
    let mut entry = None;
    match message {
        // Read immediately: the peer may overwrite the entry later.
        Message::Credits(_) => entry = new_buffer(table, link.machine.next_own_slot(), slot.is_some(), wc),
        Message::Mapping(index) => {
            if let Some(mapping) = link.mappings.get_mut(usize::from(index)) {
                let at = TABLE_SLOTS as usize * RemoteBuffer::LEN + usize::from(index) * Mapping::LEN;
                *mapping = Mapping::from_bytes(table.bytes(at), Order::HERE);
            }
        }
        _ => {}
    }
    link.machine.handle_message(message, entry);
}

/// The table entry that came with a credit message, if any. A WRITE with immediate data shows it by its length. A SEND does not, so
/// an entry is cleared after it was read.
fn new_buffer(table: &Registered, slot: u32, by_send: bool, wc: &ibv_wc) -> Option<RemoteBuffer> {
    let at = slot as usize * RemoteBuffer::LEN;
    let entry = RemoteBuffer::from_bytes(table.bytes(at), Order::HERE);
    if !by_send {
        return (wc.byte_len as usize >= RemoteBuffer::LEN).then_some(entry);
    }
    let empty = [0; RemoteBuffer::LEN];
    // SAFETY: the array is as long as the span.
    unsafe { table.write(Span { offset: at as u32, length: empty.len() as u32 }, empty.as_ptr()) };
    (entry.length != 0).then_some(entry)
}

/// The send ring, the receive ring and the table.
///
/// # Safety
/// The domain outlives them.
unsafe fn rings(pd: *mut ibv_pd, sizes: &Sizing) -> Outcome<[Registered; 3]> {
    let control = CONTROL_SLOTS as usize * RemoteBuffer::LEN;
    let table = TABLE_SLOTS as usize * RemoteBuffer::LEN + usize::from(sizes.mappings) * Mapping::LEN;
    let remote = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE;
    // SAFETY: what the caller promises.
    unsafe {
        Ok([
            Registered::new(pd, sizes.send_ring as usize + control, ACCESS_LOCAL_WRITE)?,
            Registered::new(pd, sizes.recv_ring as usize, remote)?,
            Registered::new(pd, table, remote)?,
        ])
    }
}
