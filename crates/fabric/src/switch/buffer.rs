//! Buffer management of a switch: admission of packets, and when a peer must pause.

use super::config::SwitchConfig;
use super::{DropReason, PRIORITIES};

/// Packets of one ingress port and priority.
#[derive(Clone, Copy, Debug, Default)]
struct Ingress {
    /// Bytes in the reserve and the shared part.
    bytes: u32,
    /// Bytes in the headroom.
    headroom: u32,
    paused: bool,
}

impl Ingress {
    fn shared(&self, reserve: u32) -> u32 {
        self.bytes.saturating_sub(reserve)
    }
}

/// The packet memory.
#[derive(Debug)]
pub(super) struct Buffer {
    capacity: u64,
    used: u64,
    most_used: u64,
    egress_alpha: f64,
    lossless: Option<Lossless>,
}

#[derive(Debug)]
struct Lossless {
    /// Bytes of the buffer without all reserves and headrooms.
    shared_capacity: u64,
    shared_used: u64,
    reserve: u32,
    resume_offset: u32,
    priorities: u8,
    /// Per port: alpha and headroom.
    ports: Vec<(f64, u32)>,
    ingress: Vec<[Ingress; PRIORITIES]>,
}

impl Lossless {
    /// Shared bytes that an ingress queue of a port may use now.
    fn threshold(&self, port: usize) -> f64 {
        self.ports[port].0 * (self.shared_capacity - self.shared_used) as f64
    }

    fn has(&self, priority: u8) -> bool {
        self.priorities & (1 << priority) != 0
    }
}

impl Buffer {
    pub(super) fn new(config: &SwitchConfig) -> Buffer {
        let lossless = config.pfc.map(|pfc| Lossless {
            shared_capacity: config.buffer.saturating_sub(config.set_aside()),
            shared_used: 0,
            reserve: pfc.reserve,
            resume_offset: pfc.resume_offset,
            priorities: pfc.lossless,
            ports: config
                .ports
                .iter()
                .map(|port| {
                    let faster = (port.rate as f64 / pfc.alpha_rate.max(1) as f64).max(1.0);
                    (pfc.alpha * faster, pfc.headroom_of(port))
                })
                .collect(),
            ingress: vec![Default::default(); config.ports.len()],
        });
        Buffer { capacity: config.buffer, used: 0, most_used: 0, egress_alpha: config.egress_alpha, lossless }
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn most_used(&self) -> u64 {
        self.most_used
    }

    /// Admits a packet or refuses it; `queued` is the length of its egress queue in bytes.
    #[inline]
    pub(super) fn admit(
        &mut self,
        ingress: u32,
        priority: u8,
        bytes: u32,
        queued: u32,
    ) -> Result<(), DropReason> {
        let used = self.used + u64::from(bytes);
        if used > self.capacity {
            return Err(DropReason::Buffer);
        }
        match &mut self.lossless {
            Some(lossless) if lossless.has(priority) => lossless.admit(ingress as usize, priority, bytes)?,
            Some(_) => {}
            // Priority 0 carries no data: the whole buffer is its limit.
            None if priority > 0 => {
                let threshold = self.egress_alpha * (self.capacity - self.used) as f64;
                if f64::from(queued) + f64::from(bytes) > threshold {
                    return Err(DropReason::Buffer);
                }
            }
            None => {}
        }
        self.used = used;
        self.most_used = self.most_used.max(used);
        Ok(())
    }

    /// A packet left.
    #[inline]
    pub(super) fn release(&mut self, ingress: u32, priority: u8, bytes: u32) {
        self.used -= u64::from(bytes);
        if let Some(lossless) = &mut self.lossless
            && lossless.has(priority)
        {
            let reserve = lossless.reserve;
            let queue = &mut lossless.ingress[ingress as usize][usize::from(priority)];
            let from_headroom = bytes.min(queue.headroom);
            queue.headroom -= from_headroom;
            let before = queue.shared(reserve);
            queue.bytes -= bytes - from_headroom;
            lossless.shared_used -= u64::from(before - queue.shared(reserve));
        }
    }

    /// Whether an ingress queue must pause its peer now. Returns `true` once per pause.
    #[inline]
    pub(super) fn must_pause(&mut self, ingress: u32, priority: u8) -> bool {
        let Some(lossless) = self.lossless.as_mut().filter(|lossless| lossless.has(priority)) else {
            return false;
        };
        let threshold = lossless.threshold(ingress as usize);
        let reserve = lossless.reserve;
        let queue = &mut lossless.ingress[ingress as usize][usize::from(priority)];
        let shared = queue.shared(reserve);
        let full = queue.headroom > 0 || (shared > 0 && f64::from(shared) >= threshold);
        let pause = full && !queue.paused;
        queue.paused |= full;
        pause
    }

    /// Whether the peer of an ingress queue may resume now. Returns `true` once per pause.
    #[inline]
    pub(super) fn must_resume(&mut self, ingress: u32, priority: u8) -> bool {
        let Some(lossless) = self.lossless.as_mut().filter(|lossless| lossless.has(priority)) else {
            return false;
        };
        let threshold = lossless.threshold(ingress as usize);
        let (reserve, offset) = (lossless.reserve, lossless.resume_offset);
        let queue = &mut lossless.ingress[ingress as usize][usize::from(priority)];
        if !queue.paused || queue.headroom > 0 {
            return false;
        }
        let shared = queue.shared(reserve);
        let resume = shared == 0 || f64::from(shared) + f64::from(offset) <= threshold;
        queue.paused = !resume;
        resume
    }
}

impl Lossless {
    fn admit(&mut self, port: usize, priority: u8, bytes: u32) -> Result<(), DropReason> {
        let threshold = self.threshold(port);
        let reserve = self.reserve;
        let queue = &mut self.ingress[port][usize::from(priority)];
        let before = queue.shared(reserve);
        let shared = (queue.bytes + bytes).saturating_sub(reserve);
        let fits = self.shared_used + u64::from(shared - before) <= self.shared_capacity;
        if shared == 0 || (fits && f64::from(shared) <= threshold) {
            queue.bytes += bytes;
            self.shared_used += u64::from(shared - before);
        } else if queue.headroom + bytes <= self.ports[port].1 {
            queue.headroom += bytes;
        } else {
            return Err(DropReason::Headroom);
        }
        Ok(())
    }
}
