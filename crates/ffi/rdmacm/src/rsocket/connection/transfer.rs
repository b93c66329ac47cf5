//! Send and receive.

use std::ffi::c_int;

use parking_lot::MutexGuard;

use super::Connection;
use super::shared::{Shared, State};
use crate::rsocket::endpoint::MAX_INLINE;
use crate::rsocket::errno::{Errno, Outcome};
use crate::rsocket::memory::Registered;
use crate::rsocket::stream::{End, Growth, Piece};
use crate::rsocket::vectors::Vectors;
use crate::rsocket::wire::{Message, RemoteBuffer};

impl Connection {
    /// Waits for a connection in progress. Fails if the socket is not connected.
    fn settle(&self, must_not_wait: bool) -> Outcome<()> {
        let state = self.shared.lock().state;
        match state {
            State::Connected => Ok(()),
            state if state.is_opening() => self.finish_opening(must_not_wait),
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    pub(crate) fn send(&self, mut from: Vectors<'_>, flags: c_int) -> Outcome<usize> {
        let must_not_wait = self.flags.forbid_waiting(flags);
        self.settle(must_not_wait)?;
        let _guard = self.writing.lock();
        self.announce_mappings(must_not_wait)?;
        let mut growth = Growth::new();
        let mut sent = 0;
        while from.left() > 0 {
            let limit = growth.next(from.left());
            let mut shared = match self.wait_for_room(must_not_wait, Shared::can_send) {
                Ok(shared) => shared,
                Err(_) if sent > 0 => break,
                Err(errno) => return Err(errno),
            };
            let Some(link) = shared.link_mut() else { break };
            let Some(piece) = link.machine.send_ring.plan(limit) else { continue };
            let posted = shared.send_piece(&piece, &mut from, |shared| {
                let link = shared.link_mut()?;
                Some((link.machine.send_ring.commit(&piece), Some(Message::Data(piece.length))))
            });
            posted?;
            sent += piece.length as usize;
        }
        Ok(sent)
    }

    /// Waits until a request can be posted. Returns an error if the connection is closed for writing.
    pub(crate) fn wait_for_room(
        &self,
        must_not_wait: bool,
        has_room: impl Fn(&Shared) -> bool,
    ) -> Outcome<MutexGuard<'_, Shared>> {
        let shared = self.shared.lock();
        let shared = if has_room(&shared) && shared.is_writable() {
            shared
        } else {
            drop(shared);
            self.wait(must_not_wait, |shared| has_room(shared) || !shared.is_writable())?
        };
        if shared.is_writable() { Ok(shared) } else { Err(shared.why_not_writable()) }
    }

    pub(crate) fn receive(&self, mut into: Vectors<'_>, flags: c_int) -> Outcome<usize> {
        let must_not_wait = self.flags.forbid_waiting(flags);
        self.settle(must_not_wait)?;
        let _guard = self.reading.lock();
        let mut got = 0;
        while into.left() > 0 {
            let mut shared = match self.wait_for_data(must_not_wait) {
                Ok(shared) => shared,
                Err(_) if got > 0 => break,
                Err(errno) => return Err(errno),
            };
            let (Some(link), Some(endpoint)) = (shared.link(), &shared.endpoint) else { break };
            if !link.machine.recv_ring.has_data() {
                // The end of the stream. A failure is reported once all data is read.
                if got == 0 && link.machine.life.end() == Some(End::Failed) {
                    return Err(Errno(libc::ECONNRESET));
                }
                break;
            }
            let spans = link.machine.recv_ring.next(into.left());
            let length = spans[0].length + spans[1].length;
            let ring: *const Registered = &endpoint.recv_ring;
            if flags & libc::MSG_PEEK != 0 {
                // SAFETY: the ring lives as long as the socket, which this call keeps.
                unsafe { &*ring }.drain(spans, &mut into);
                return Ok(length as usize);
            }
            // SAFETY: as above. The peer may not write these bytes until `on_read`, and only one thread reads at a time.
            MutexGuard::unlocked(&mut shared, || unsafe { &*ring }.drain(spans, &mut into));
            shared.finish_reading(length);
            got += length as usize;
            if flags & libc::MSG_WAITALL == 0 {
                break;
            }
        }
        Ok(got)
    }

    fn wait_for_data(&self, must_not_wait: bool) -> Outcome<MutexGuard<'_, Shared>> {
        let shared = self.shared.lock();
        if shared.has_data() {
            return Ok(shared);
        }
        drop(shared);
        self.wait(must_not_wait, |shared| shared.has_data() || !shared.is_readable())
    }
}

impl Shared {
    fn finish_reading(&mut self, length: u32) {
        if let Some(link) = self.link_mut() {
            link.machine.recv_ring.on_read(length);
        }
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.flush_control();
        }
    }

    fn why_not_writable(&self) -> Errno {
        match self.link() {
            None => Errno(libc::ENOTCONN),
            Some(link) if link.machine.life.is_shut_for_writing() => Errno(libc::EPIPE),
            Some(_) => Errno(libc::ECONNRESET),
        }
    }
}

/// The target of a piece, and its message; `None` if the connection is gone.
pub(crate) type Destination = Option<(RemoteBuffer, Option<Message>)>;

/// Posting with the state's lock, which is released while the program's bytes are copied.
pub(crate) trait SendPiece {
    /// Copies the next bytes of `from` to the send ring or an inline buffer, and posts them to the target of `commit`.
    fn send_piece(
        &mut self,
        piece: &Piece,
        from: &mut Vectors<'_>,
        commit: impl FnOnce(&mut Shared) -> Destination,
    ) -> Outcome<()>;
}

impl SendPiece for MutexGuard<'_, Shared> {
    fn send_piece(
        &mut self,
        piece: &Piece,
        from: &mut Vectors<'_>,
        commit: impl FnOnce(&mut Shared) -> Destination,
    ) -> Outcome<()> {
        let gone = Errno(libc::ENOTCONN);
        let mut inline = [0u8; MAX_INLINE];
        match piece.spans {
            None => {
                let mut at = 0;
                from.walk(piece.length as usize, |start, count| {
                    // SAFETY: the program's buffers have the lengths in its list; inline pieces fit into the array.
                    unsafe {
                        std::ptr::copy_nonoverlapping(start, inline[at..at + count].as_mut_ptr(), count)
                    };
                    at += count;
                });
            }
            Some(spans) => {
                let ring: *const Registered = &self.endpoint.as_ref().ok_or(gone)?.send_ring;
                // SAFETY: the ring lives as long as the socket, which the call keeps. Only one thread writes at a time, so
                // only this thread accesses these bytes.
                MutexGuard::unlocked(self, || unsafe { &*ring }.fill(spans, from));
            }
        }
        let (target, message) = commit(self).ok_or(gone)?;
        let endpoint = self.endpoint.as_mut().ok_or(gone)?;
        let posted = endpoint.post_piece(piece, inline.as_ptr(), target, message);
        if posted.is_err()
            && let Some(link) = self.link_mut()
        {
            link.machine.life.on_end(End::Failed);
        }
        posted
    }
}
