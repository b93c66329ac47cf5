//! What a switch is made of.

/// A switch.
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// Its ports.
    pub ports: Vec<PortConfig>,
    /// Bytes of packet memory, shared by all ports.
    pub buffer: u64,
    /// Lossless operation; none: packets are dropped.
    pub pfc: Option<Pfc>,
    /// Without PFC, a queue may hold this many times the free bytes of the buffer.
    pub egress_alpha: f64,
    /// Marking of ECN-capable packets.
    pub red: Option<Red>,
    /// How equal paths are used.
    pub balance: Balance,
}

/// A port and its link.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// Bits per second.
    pub rate: u64,
    /// Propagation delay in nanoseconds.
    pub delay_ns: u64,
}

/// Priority flow control (IEEE 802.1Qbb).
#[derive(Clone, Copy, Debug)]
pub struct Pfc {
    /// An ingress queue may hold this many times the free bytes of the shared buffer before it pauses its peer.
    pub alpha: f64,
    /// The rate that `alpha` is for; faster ports get proportionally more.
    pub alpha_rate: u64,
    /// Bytes that belong to each ingress queue alone.
    pub reserve: u32,
    /// A paused ingress queue resumes this many bytes below its threshold.
    pub resume_offset: u32,
    /// Headroom of an ingress queue in bytes; none: what its link needs.
    pub headroom: Option<u32>,
    /// Largest packet on the wire, for the headroom.
    pub max_packet: u32,
    /// Priorities that pause, as bits.
    pub lossless: u8,
}

/// Bytes of a PFC frame on the wire, with preamble and gap.
pub const PFC_FRAME_BYTES: u32 = 84;

impl Pfc {
    /// Bytes that can still arrive after a port has decided to pause.
    ///
    /// The packet that made it decide counts. Then the PFC frame waits for a packet on the wire, is transmitted, and
    /// propagates; the peer may just have begun a packet, and the link is full of bytes when it stops.
    pub fn headroom_of(&self, port: &PortConfig) -> u32 {
        let on_wire = port.rate as u128 * u128::from(port.delay_ns) * 2 / 8_000_000_000;
        let bytes = on_wire + 3 * u128::from(self.max_packet) + u128::from(PFC_FRAME_BYTES);
        self.headroom.unwrap_or(u32::try_from(bytes).unwrap_or(u32::MAX))
    }
}

/// Random early detection on the length of the egress queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Red {
    /// Up to this many bytes nothing is marked.
    pub kmin: f64,
    /// Above this many bytes everything is marked.
    pub kmax: f64,
    /// Probability just below `kmax`.
    pub pmax: f64,
    /// The rate that the thresholds are for; other ports scale them. Zero: no scaling.
    pub rate: u64,
}

/// How a switch uses paths of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// A hash of the flow chooses.
    Ecmp,
    /// Packets take turns.
    Spray,
    /// Each packet takes the shortest queue.
    LeastQueue,
}

impl SwitchConfig {
    /// The marking of a port.
    pub(super) fn red_of(&self, port: &PortConfig) -> Option<Red> {
        self.red.map(|red| {
            let factor = if red.rate == 0 { 1.0 } else { port.rate as f64 / red.rate as f64 };
            Red { kmin: red.kmin * factor, kmax: red.kmax * factor, ..red }
        })
    }

    /// Bytes that reserves and headrooms take from the buffer.
    pub fn set_aside(&self) -> u64 {
        self.pfc.map_or(0, |pfc| {
            let priorities = u64::from(pfc.lossless.count_ones());
            let each = |port| u64::from(pfc.headroom_of(port)) + u64::from(pfc.reserve);
            self.ports.iter().map(each).sum::<u64>() * priorities
        })
    }
}
