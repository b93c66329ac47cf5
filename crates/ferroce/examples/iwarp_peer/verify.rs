//! interop/verify with `-t iwarp`: every operation in every length, every byte checked, and the bytes behind the target.
//!
//! A TCP connection carries addresses and barriers. The layout of the memory, the numbers in the messages and the order of
//! the steps are those of interop/verify/transfer.c.

use super::{Fallible, Options, accept, success};
use ferroce::{
    Connection, Connector, Cq, Device, Listener, RKey, Rc, RcQp, Region, RemoteRegion, Srq, WcOpcode, wr,
};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

const GUARD: usize = 64;
const GRH: usize = 40;
const UNTOUCHED: u8 = 0xee;
/// The connection manager's port, behind that of the control connection.
const PORT_OFFSET: usize = 1000;
/// A description of an end: GID, address, key, sequence number, numbers of up to 16 queue pairs.
const DESCRIPTION_LEN: usize = 16 + 8 + 4 + 4 + 16 * 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Send,
    Write,
    Read,
}

impl Operation {
    const ALL: [(&'static str, Operation); 3] =
        [("send", Operation::Send), ("write", Operation::Write), ("read", Operation::Read)];

    /// Its number in the verbs of C, which the data depends on.
    fn number(self) -> u64 {
        match self {
            Operation::Write => 0,
            Operation::Send => 2,
            Operation::Read => 4,
        }
    }
}

#[derive(Clone, Copy)]
struct Job {
    operation: Operation,
    size: usize,
    round: usize,
}

struct End {
    requester: bool,
    control: TcpStream,
    cq: Cq,
    recv_cq: Cq,
    srq: Option<Srq>,
    qps: Vec<RcQp>,
    memory: Region,
    theirs: RemoteRegion,
    slots: usize,
    stride: usize,
    seed: u64,
    inlined: bool,
    /// Dropped last.
    _connections: Vec<Connection<Rc>>,
}

pub(crate) fn run(device: &Device, words: &[String]) -> Fallible<()> {
    let (options, rest) = Options::parse(words, "tapsnkqoxdg")?;
    let list = options.text('s').unwrap_or("2,1024,4099");
    let sizes: Vec<usize> = list.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let rounds = options.number('n', 2)?;
    let only = options.text('o').unwrap_or("all");
    let longest = sizes.iter().copied().max().unwrap_or(0).max(8);
    let mut end = End::open(device, &options, rest.first(), longest)?;
    for (name, operation) in Operation::ALL.into_iter().filter(|(name, _)| only == "all" || only == *name) {
        for &size in &sizes {
            for round in 0..rounds {
                let job = Job { operation, size, round };
                end.round(job).map_err(|error| format!("{name} size {size} round {round}: {error}"))?;
            }
            println!("iwarp {name} size {size}: ok");
        }
    }
    end.barrier()?;
    println!("verify: PASSED");
    Ok(())
}

/// The control connection.
fn control(options: &Options, host: Option<&String>) -> Fallible<TcpStream> {
    let port = u16::try_from(options.number('p', 18520)?)?;
    let stream = match host {
        Some(host) => TcpStream::connect((host.as_str(), port))?,
        None => TcpListener::bind(("::", port))?.accept()?.0,
    };
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(super::MAX_WAIT))?;
    Ok(stream)
}

impl End {
    fn open(device: &Device, options: &Options, host: Option<&String>, longest: usize) -> Fallible<End> {
        let (count, slots) = (options.number('q', 1)?, options.number('k', 4)?);
        let mut control = control(options, host)?;
        let address = options.address('a', options.number('p', 18520)? + PORT_OFFSET)?;
        let listener = if host.is_none() { Some(Listener::bind(device, address)?) } else { None };
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(256)?);
        let recv_cq = device.create_cq(256)?;
        let stride = GUARD + GRH + longest.next_multiple_of(8);
        let memory = pd.region(2 * count * slots * stride + GUARD).remote_read().remote_write().register()?;
        let mut description = [0; DESCRIPTION_LEN];
        description[16..24].copy_from_slice(&memory.remote().addr.to_le_bytes());
        description[24..28].copy_from_slice(&memory.rkey().0.to_le_bytes());
        control.write_all(&description)?;
        control.read_exact(&mut description)?;
        let number = |part: &[u8]| part.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
        let rkey = RKey(number(&description[24..28]) as u32);
        let theirs = RemoteRegion { addr: number(&description[16..24]), len: memory.remote().len, rkey };
        let srq = if options.has('S') { Some(pd.srq(256, 1)?) } else { None };
        let mut end = End {
            requester: host.is_some(),
            control,
            srq,
            qps: Vec::new(),
            memory,
            theirs,
            slots,
            stride,
            seed: options.number('x', 0)? as u64,
            inlined: options.has('i'),
            _connections: Vec::new(),
            recv_cq,
            cq,
        };
        for _ in 0..count {
            let builder = pd.rc(&end.cq).recv_cq(&end.recv_cq);
            let qp = match &end.srq {
                Some(srq) => builder.srq(srq).create()?,
                None => builder.create()?,
            };
            end._connections.push(match &listener {
                Some(listener) => accept(listener)?.accept(&qp, &[])?,
                None => Connector::new(device, address).connect(&qp)?,
            });
            end.qps.push(qp);
        }
        end.barrier()?;
        Ok(end)
    }

    fn barrier(&mut self) -> Fallible<()> {
        self.control.write_all(b".")?;
        Ok(self.control.read_exact(&mut [0])?)
    }

    fn all_slots(&self) -> std::ops::Range<usize> {
        0..self.slots * self.qps.len()
    }

    /// Offset of the data of a slot, of those that the peer reaches (`inner`) or of the others.
    fn offset(&self, inner: bool, slot: usize) -> usize {
        let before = if inner { self.all_slots().end } else { 0 };
        (before + slot) * self.stride + GUARD + GRH
    }

    /// The data of a message.
    fn data(&self, job: Job, message: usize) -> Vec<u8> {
        let parts = [job.operation.number(), job.size as u64, job.round as u64, message as u64];
        let base = parts.iter().fold(self.seed + 1, |x, part| x.wrapping_mul(1_000_003).wrapping_add(*part));
        let word = |at: usize| {
            let x = base.wrapping_add(at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (x ^ x >> 29).to_le_bytes()
        };
        let mut data: Vec<u8> = (0..job.size).step_by(8).flat_map(word).collect();
        data.truncate(job.size);
        data
    }

    fn clear(&self, inner: bool, slot: usize, size: usize) -> Fallible<()> {
        Ok(self.memory.write(self.offset(inner, slot), &vec![UNTOUCHED; size + GUARD / 2])?)
    }

    fn is_right(&self, job: Job, inner: bool, slot: usize, message: usize) -> Fallible<bool> {
        let mut found = vec![0; job.size + GUARD / 2];
        self.memory.read(self.offset(inner, slot), &mut found)?;
        let (data, behind) = found.split_at(job.size);
        Ok(data == self.data(job, message) && behind.iter().all(|byte| *byte == UNTOUCHED))
    }

    fn check(&self, job: Job, inner: bool, slot: usize, message: usize) -> Fallible<()> {
        match self.is_right(job, inner, slot, message)? {
            true => Ok(()),
            false => Err(format!("slot {slot} has wrong bytes, or bytes behind its end were written").into()),
        }
    }

    fn round(&mut self, job: Job) -> Fallible<()> {
        if !self.requester {
            self.prepare(job)?;
        }
        self.barrier()?;
        if self.requester {
            self.request(job)?;
        }
        self.barrier()?;
        if !self.requester {
            self.answer(job)?;
        }
        Ok(())
    }

    fn prepare(&self, job: Job) -> Fallible<()> {
        for slot in self.all_slots() {
            self.clear(true, slot, job.size)?;
            let offset = self.offset(true, slot);
            match job.operation {
                Operation::Read => self.memory.write(offset, &self.data(job, slot))?,
                Operation::Send => {
                    let sges = [self.memory.sge(offset as u64..(offset + job.size) as u64)?];
                    let receive = [wr::recv(slot as u64, &sges)];
                    match &self.srq {
                        Some(srq) => srq.post_recv(&receive)?,
                        None => self.qps[slot / self.slots].post_recv(&receive)?,
                    }
                }
                Operation::Write => {}
            }
        }
        Ok(())
    }

    fn request(&self, job: Job) -> Fallible<()> {
        for slot in self.all_slots() {
            self.clear(false, slot, job.size)?;
            if job.operation != Operation::Read {
                self.memory.write(self.offset(false, slot), &self.data(job, slot))?;
            }
        }
        for slot in self.all_slots() {
            let start = self.offset(false, slot) as u64;
            let (middle, stop) = (start + ((job.size / 2) | 1) as u64, start + job.size as u64);
            // Every other message is gathered from two pieces, the first of odd length.
            let sges = match slot % 2 == 1 && job.size > 3 {
                true => vec![self.memory.sge(start..middle)?, self.memory.sge(middle..stop)?],
                false => vec![self.memory.sge(start..stop)?],
            };
            let to = self.offset(true, slot) as u64;
            let remote = self.theirs.slice(to..to + job.size as u64)?;
            let data = self.data(job, slot);
            let inlined = self.inlined && job.size <= 64;
            let (qp, id) = (&self.qps[slot / self.slots], slot as u64);
            match job.operation {
                Operation::Send if inlined => qp.send_inline(id, &data)?,
                Operation::Send => qp.send_from(id, &sges)?,
                Operation::Write if inlined => qp.write_inline(id, &data, remote)?,
                Operation::Write => qp.write(id, &sges, remote)?,
                Operation::Read => qp.read(id, &sges, remote)?,
            }
        }
        for _ in self.all_slots() {
            success(&self.cq)?;
        }
        match job.operation {
            Operation::Read => self.all_slots().try_for_each(|slot| self.check(job, false, slot, slot)),
            _ => Ok(()),
        }
    }

    fn answer(&self, job: Job) -> Fallible<()> {
        match job.operation {
            Operation::Read => Ok(()),
            Operation::Write => self.all_slots().try_for_each(|slot| self.await_write(job, slot)),
            Operation::Send => {
                let mut arrived = vec![0; self.qps.len()];
                for _ in self.all_slots() {
                    let completion = success(&self.recv_cq)?;
                    let queue = self.qps.iter().position(|qp| qp.qpn() == completion.qpn);
                    let queue = queue.ok_or("a completion of a foreign queue pair")?;
                    if (completion.opcode, completion.byte_len as usize) != (WcOpcode::Recv, job.size) {
                        return Err(format!("{completion:?}").into());
                    }
                    let message = queue * self.slots + arrived[queue];
                    arrived[queue] += 1;
                    self.check(job, true, completion.wr_id as usize, message)?;
                }
                Ok(())
            }
        }
    }

    /// Waits for the data of a WRITE. The completion at the requester only means that TCP has accepted the bytes.
    fn await_write(&self, job: Job, slot: usize) -> Fallible<()> {
        let start = Instant::now();
        while !self.is_right(job, true, slot, slot)? && start.elapsed() < super::MAX_WAIT {
            let _ = self.recv_cq.try_next()?;
        }
        self.check(job, true, slot, slot)
    }
}
