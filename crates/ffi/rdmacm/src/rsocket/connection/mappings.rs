//! Memory of a program that its peer writes directly, by offset (`riomap`, `riounmap`, `riowrite`).

use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use libc::off_t;

use super::Connection;
use super::shared::Shared;
use super::transfer::SendPiece;
use crate::abi::ibv_mr;
use crate::rsocket::calls::{ACCESS_LOCAL_WRITE, ACCESS_REMOTE_WRITE, ibv_dereg_mr, ibv_reg_mr};
use crate::rsocket::errno::{Errno, Outcome};
use crate::rsocket::stream::Growth;
use crate::rsocket::vectors::Vectors;
use crate::rsocket::wire::{Mapping, Message, RemoteBuffer};

/// The maximum gap between writes without a reply in between. A reply takes longer than this, unless the peer runs on another
/// core; in that case this core need not yield.
const MAX_GAP: Duration = Duration::from_micros(2);

/// A buffer that the program mapped.
pub(crate) struct Mapped {
    mr: *mut ibv_mr,
    offset: u64,
    /// Its index in the peer's table; `None` for local use.
    slot: Option<u16>,
    /// Whether the mapping was announced to the peer.
    announced: bool,
}

// SAFETY: a handle that any thread may use.
unsafe impl Send for Mapped {}

impl Mapped {
    fn is(&self, buffer: *mut c_void, length: usize) -> bool {
        // SAFETY: the region lives as long as we do.
        unsafe { (*self.mr).addr == buffer && (*self.mr).length == length }
    }

    fn entry(&self) -> Mapping {
        // SAFETY: the region lives as long as we do.
        let (addr, rkey, length) = unsafe { ((*self.mr).addr as u64, (*self.mr).rkey, (*self.mr).length) };
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        Mapping { offset: self.offset, buffer: RemoteBuffer { addr, rkey, length } }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the region belongs to this value alone.
        unsafe { ibv_dereg_mr(self.mr) };
    }
}

impl Connection {
    /// Maps a buffer to an offset, or to its own address if that is -1. The next send announces it to the peer.
    pub(crate) fn map(
        &self,
        buffer: *mut c_void,
        length: usize,
        protection: c_int,
        offset: off_t,
    ) -> Outcome<off_t> {
        if protection & !(libc::PROT_WRITE | libc::PROT_NONE) != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let mut shared = self.shared.lock();
        let pd = shared.endpoint.as_ref().ok_or(Errno(libc::EINVAL))?.pd();
        let remote = protection & libc::PROT_WRITE != 0;
        let slot = if remote { Some(shared.free_slot().ok_or(Errno(libc::ENOMEM))?) } else { None };
        let access = if remote { ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE } else { ACCESS_LOCAL_WRITE };
        // SAFETY: the program promises that the buffer stays until it unmaps it.
        let mr = Errno::not_null(unsafe { ibv_reg_mr(pd, buffer, length, access) })?;
        let offset = if offset == -1 { buffer as off_t } else { offset };
        shared.mapped.push(Mapped { mr, offset: offset as u64, slot, announced: false });
        shared.note_mapped();
        Ok(offset)
    }

    pub(crate) fn unmap(&self, buffer: *mut c_void, length: usize) -> Outcome<()> {
        let mut shared = self.shared.lock();
        let at = shared.mapped.iter().position(|mapped| mapped.is(buffer, length));
        shared.mapped.remove(at.ok_or(Errno(libc::EINVAL))?);
        shared.note_mapped();
        Ok(())
    }

    /// Announces new mappings to the peer. The caller holds the write lock.
    pub(crate) fn announce_mappings(&self, must_not_wait: bool) -> Outcome<()> {
        loop {
            if self.shared.lock().unannounced().is_none() {
                return Ok(());
            }
            let mut shared = self.wait_for_room(must_not_wait, Shared::has_room)?;
            let Some(at) = shared.unannounced() else { return Ok(()) };
            let (entry, slot) = (shared.mapped[at].entry(), shared.mapped[at].slot.unwrap_or(0));
            let Some(link) = shared.link_mut() else { return Err(Errno(libc::ENOTCONN)) };
            let mut bytes = entry.to_bytes(link.peer_order);
            let target = RemoteBuffer {
                addr: link.peer_mappings.addr.wrapping_add(u64::from(slot) * Mapping::LEN as u64),
                ..link.peer_mappings
            };
            let Some(piece) = link.machine.send_ring.plan_direct(Mapping::LEN as u32) else { continue };
            shared.mapped[at].announced = true;
            let list = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
            let mut from = Vectors::new(&list)?;
            shared.send_piece(&piece, &mut from, |shared| {
                shared.link_mut()?.machine.send_ring.commit_direct(&piece);
                Some((target, Some(Message::Mapping(slot))))
            })?;
        }
    }

    /// Writes to the peer's mappings from `offset` on. Stops where no mapping follows.
    pub(crate) fn write_mapped(
        &self,
        mut from: Vectors<'_>,
        mut offset: u64,
        flags: c_int,
    ) -> Outcome<usize> {
        let started = Instant::now();
        let must_not_wait = self.flags.forbid_waiting(flags);
        let _guard = self.writing.lock();
        self.announce_mappings(must_not_wait)?;
        let mut growth = Growth::new();
        let mut written = 0;
        while from.left() > 0 {
            let limit = growth.next(from.left());
            let mut shared = match self.wait_for_room(must_not_wait, Shared::has_room) {
                Ok(shared) => shared,
                Err(_) if written > 0 => break,
                Err(errno) => return Err(errno),
            };
            let Some(target) = shared.find_mapping(offset) else { break };
            let Some(link) = shared.link_mut() else { break };
            let Some(piece) = link.machine.send_ring.plan_direct(limit.min(target.length)) else { continue };
            shared.send_piece(&piece, &mut from, |shared| {
                shared.link_mut()?.machine.send_ring.commit_direct(&piece);
                Some((target, None))
            })?;
            offset += u64::from(piece.length);
            written += piece.length as usize;
        }
        self.let_others_run(started);
        Ok(written)
    }

    /// Yields the core if the program polled its memory for a reply before this write: it then does so after this write, too, and the
    /// peer may need the same core for the reply.
    fn let_others_run(&self, started: Instant) {
        // Stored before yielding, so that the time of other threads counts as waiting.
        let ended = self.shared.lock().mapped_write.replace(Instant::now());
        if ended.is_some_and(|ended| started.saturating_duration_since(ended) > MAX_GAP) {
            std::thread::yield_now();
        }
    }
}

impl Shared {
    fn note_mapped(&mut self) {
        let is_mapped = self.mapped.iter().any(|mapped| mapped.slot.is_some());
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.is_mapped = is_mapped;
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.link().is_some_and(|link| link.machine.send_ring.has_room())
    }

    fn unannounced(&self) -> Option<usize> {
        self.mapped.iter().position(|mapped| mapped.slot.is_some() && !mapped.announced)
    }

    /// A free index in the peer's table.
    fn free_slot(&self) -> Option<u16> {
        // An accepted connection has the peer's data before it is established.
        let slots = self.endpoint.as_ref()?.link.as_ref()?.peer_mappings.length as u16;
        (0..slots).find(|slot| !self.mapped.iter().any(|mapped| mapped.slot == Some(*slot)))
    }

    /// The peer's memory at this offset, up to the end of the mapping.
    fn find_mapping(&self, offset: u64) -> Option<RemoteBuffer> {
        let mapping = self.link()?.mappings.iter().find(|mapping| mapping.reach(offset) > 0)?;
        let into = offset - mapping.offset;
        Some(RemoteBuffer {
            addr: mapping.buffer.addr.wrapping_add(into),
            rkey: mapping.buffer.rkey,
            length: mapping.reach(offset),
        })
    }
}
