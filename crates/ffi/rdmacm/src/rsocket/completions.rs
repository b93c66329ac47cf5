//! A completion queue with a descriptor to sleep on.

use std::os::fd::RawFd;
use std::ptr;

use super::calls::{
    ibv_ack_cq_events, ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq,
    ibv_get_cq_event, poll_cq, rdma_create_qp, request_notify,
};
use super::errno::{Errno, Outcome};
use super::wait::set_nonblocking;
use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq, ibv_qp_cap, ibv_qp_init_attr, ibv_wc, rdma_cm_id};

/// Events are acknowledged in batches, since each acknowledgement takes a lock in libibverbs.
const ACK_BATCH: u32 = 128;

/// One queue for both directions, and its channel. Its descriptor never blocks; waiters sleep in `poll`.
pub(crate) struct Completions {
    channel: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
    armed: bool,
    /// Armed for an event that never comes, see [`Self::stay_attended`].
    attended: bool,
    unacknowledged: u32,
}

// SAFETY: handles that any thread may use; the fields change only behind the socket's lock.
unsafe impl Send for Completions {}

/// Whether a completion queue had an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Notification {
    /// The event was taken from the channel: other waiters must check the queue, too.
    Taken,
    Absent,
}

impl Completions {
    /// # Safety
    /// The context outlives the value.
    pub(crate) unsafe fn new(context: *mut ibv_context, depth: u32) -> Outcome<Self> {
        // SAFETY: what the caller promises.
        let channel = Errno::not_null(unsafe { ibv_create_comp_channel(context) })?;
        // SAFETY: as above; the channel is new.
        let made = unsafe {
            set_nonblocking((*channel).fd).and_then(|()| {
                Errno::not_null(ibv_create_cq(context, depth as i32, ptr::null_mut(), channel, 0))
            })
        };
        match made {
            Ok(cq) => Ok(Self { channel, cq, armed: false, attended: false, unacknowledged: 0 }),
            Err(errno) => {
                // SAFETY: made above and not published.
                unsafe { ibv_destroy_comp_channel(channel) };
                Err(errno)
            }
        }
    }

    /// Creates the id's queue pair, whose requests complete in this queue. Returns its actual sizes.
    ///
    /// # Safety
    /// The id lives, and has its device but no queue pair.
    pub(crate) unsafe fn create_qp(
        &self,
        id: *mut rdma_cm_id,
        qp_type: u32,
        cap: ibv_qp_cap,
    ) -> Outcome<ibv_qp_cap> {
        let mut attr = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: ptr::null_mut(),
            cap,
            qp_type,
            sq_sig_all: 1,
        };
        // SAFETY: what the caller promises; the queue lives.
        Errno::check(unsafe { rdma_create_qp(id, ptr::null_mut(), &mut attr) })?;
        Ok(attr.cap)
    }

    /// The descriptor of the channel. It becomes readable at the first completion after the queue was armed.
    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: the channel lives as long as we do.
        unsafe { (*self.channel).fd }
    }

    /// Polls completions. Returns none if the queue is empty or in error. An error appears at the queue pair, too.
    pub(crate) fn poll<'a>(&mut self, into: &'a mut [ibv_wc]) -> &'a [ibv_wc] {
        // SAFETY: the queue lives as long as we do.
        let count = unsafe { poll_cq(self.cq, into) };
        &into[..usize::try_from(count).unwrap_or(0)]
    }

    /// Arms the queue. Earlier completions must be polled afterwards.
    pub(crate) fn arm(&mut self) {
        if !self.armed {
            // SAFETY: the queue lives as long as we do.
            self.armed = unsafe { request_notify(self.cq, false) } == 0;
        }
    }

    /// Takes the event of the channel, if there is one.
    pub(crate) fn take_event(&mut self) -> Notification {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel lives, and its descriptor does not block.
        if unsafe { ibv_get_cq_event(self.channel, &mut cq, &mut context) } != 0 {
            return Notification::Absent;
        }
        (self.armed, self.attended) = (false, false);
        self.unacknowledged += 1;
        if self.unacknowledged >= ACK_BATCH {
            self.acknowledge();
        }
        Notification::Taken
    }

    /// Makes the background thread of the NIC drive the queue, for programs that poll their memory for the peer's writes
    /// without a call. An armed queue requests this. Here it is armed for solicited events, which never occur, so it stays armed.
    pub(crate) fn stay_attended(&mut self) {
        if self.armed {
            // An event may have disarmed the queue.
            let _ = self.take_event();
        }
        if !self.armed && !self.attended {
            // SAFETY: the queue lives as long as we do.
            self.attended = unsafe { request_notify(self.cq, true) } == 0;
        }
    }

    fn acknowledge(&mut self) {
        // SAFETY: the queue lives, and has delivered this number of events.
        unsafe { ibv_ack_cq_events(self.cq, self.unacknowledged) };
        self.unacknowledged = 0;
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        self.acknowledge();
        // SAFETY: both are ours, and the queue pair that used them is destroyed.
        unsafe {
            ibv_destroy_cq(self.cq);
            ibv_destroy_comp_channel(self.channel);
        }
    }
}
