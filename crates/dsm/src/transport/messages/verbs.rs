//! Messages over SEND and RECV of reliable connections, one to each process, with one receive queue for all.

use super::{Carrier, LARGEST};
use crate::error::Error;
use crate::meet::Meeting;
use crate::transport::rdma::{connect, failed, queue_pairs, sleep_on_channel};
use ferroce::{
    Completion, Cq, Device, Outcome, Qpn, RcQp, RecvWr, Region, SendFlags, SendWr, Srq, WcOpcode, wr,
};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Bytes of a slot.
const SLOT: usize = LARGEST.next_multiple_of(64);
/// Maximum number of posted receives, and of sends in flight.
const SLOTS: usize = 256;

pub(super) struct Verbs {
    cq: Cq,
    srq: Srq,
    inbox: Region,
    outbox: Region,
    peers: Vec<Option<RcQp>>,
    ranks: HashMap<Qpn, u32>,
    sending: Mutex<Sending>,
}

struct Sending {
    free: Vec<usize>,
    /// Messages without a slot yet.
    queue: VecDeque<(u32, Vec<u8>)>,
}

fn slot(region: &Region, at: usize, len: usize) -> Result<ferroce::Sge, Error> {
    region.sge((at * SLOT) as u64..(at * SLOT + len) as u64).map_err(failed)
}

impl Verbs {
    pub(super) fn open(rank: u32, size: u32, meeting: &Meeting) -> Result<Self, Error> {
        let device = Device::open().map_err(failed)?;
        let pd = device.alloc_pd().map_err(failed)?;
        let cq = device.create_cq(2 * SLOTS as u32 + 16).map_err(failed)?;
        let srq = pd.srq(SLOTS as u32, 1).map_err(failed)?;
        let inbox = pd.region(SLOTS * SLOT).register().map_err(failed)?;
        let outbox = pd.region(SLOTS * SLOT).register().map_err(failed)?;
        let builder = || pd.rc(&cq).srq(&srq).depth(SLOTS as u32, 1);
        let (peers, endpoints) = queue_pairs(rank, size, &device, meeting, builder)?;
        let ranks = (0..).zip(&peers).filter_map(|(rank, qp)| Some((qp.as_ref()?.qpn(), rank))).collect();
        let sending = Mutex::new(Sending { free: (0..SLOTS).collect(), queue: VecDeque::new() });
        let verbs = Self { cq, srq, inbox, outbox, peers, ranks, sending };
        for at in 0..SLOTS {
            verbs.post_recv(at)?;
        }
        for (qp, line) in verbs.peers.iter().zip(&meeting.gather(&endpoints)?) {
            qp.as_ref().map_or(Ok(()), |qp| connect(qp, line, line, rank))?;
        }
        Ok(verbs)
    }

    fn post_recv(&self, at: usize) -> Result<(), Error> {
        let sges = [slot(&self.inbox, at, SLOT)?];
        self.srq.post_recv(&[RecvWr { wr_id: at as u64, sges: &sges }]).map_err(failed)
    }

    /// Sends queued messages while there are free slots.
    fn pump(&self, sending: &mut Sending) -> Result<(), Error> {
        while let Some(&at) = sending.free.last() {
            let Some((to, message)) = sending.queue.pop_front() else { break };
            let Some(qp) = self.peers.get(to as usize).and_then(Option::as_ref) else { continue };
            sending.free.pop();
            self.outbox.write(at * SLOT, &message).map_err(failed)?;
            let sges = [slot(&self.outbox, at, message.len())?];
            let request = SendWr { flags: SendFlags::SIGNALED, ..wr::send(at as u64, &sges) };
            qp.post_send(&[request]).map_err(failed)?;
        }
        Ok(())
    }

    fn handle(&self, completion: &Completion, each: &mut dyn FnMut(u32, &[u8])) -> Result<(), Error> {
        let rank = self.ranks.get(&completion.qpn).copied().unwrap_or(u32::MAX);
        if let Err(error) = completion.ok() {
            return Err(Error::Transport(format!("process {rank} cannot be reached: {}", error.explain())));
        }
        let at = completion.wr_id as usize;
        if completion.opcode == WcOpcode::Recv {
            let mut message = vec![0; completion.byte_len as usize];
            self.inbox.read(at * SLOT, &mut message).map_err(failed)?;
            self.post_recv(at)?;
            each(rank, &message);
        } else {
            self.sending.lock().free.push(at);
        }
        Ok(())
    }

    /// Handles all completions, and returns their number.
    fn drain(&self, each: &mut dyn FnMut(u32, &[u8])) -> Result<usize, Error> {
        let mut done = [Completion::default(); 16];
        let mut total = 0;
        loop {
            let count = self.cq.poll(&mut done).map_err(failed)?;
            for completion in &done[..count] {
                self.handle(completion, each)?;
            }
            total += count;
            if count == 0 {
                return Ok(total);
            }
        }
    }
}

impl Carrier for Verbs {
    fn send(&self, to: u32, message: Vec<u8>) -> Result<(), Error> {
        let mut sending = self.sending.lock();
        sending.queue.push_back((to, message));
        self.pump(&mut sending)
    }

    fn receive(&self, timeout: Duration, each: &mut dyn FnMut(u32, &[u8])) -> Result<(), Error> {
        self.cq.arm(false).map_err(failed)?;
        if self.drain(each)? == 0 {
            sleep_on_channel(&self.cq, timeout);
            self.drain(each)?;
        }
        self.pump(&mut self.sending.lock())
    }
}
