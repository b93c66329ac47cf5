//! Configuration of a switch.

/// A switch.
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// Its ports.
    pub ports: Vec<PortConfig>,
    /// Bytes of packet memory, shared by all ports.
    pub buffer: u64,
    /// Lossless operation. Without it, the switch drops packets.
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
    /// The port rate for which `alpha` is given; faster ports get proportionally more.
    pub alpha_rate: u64,
    /// Bytes that belong to each ingress queue alone.
    pub reserve: u32,
    /// A paused ingress queue resumes this many bytes below its threshold.
    pub resume_offset: u32,
    /// Headroom of an ingress queue in bytes; computed from its link if not set.
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
    /// They are the packet that crossed the threshold, the packet on the wire for which the PFC frame must wait, the PFC
    /// frame itself, a packet that the peer has just begun, and the bytes in flight during a round trip of the link.
    pub fn headroom_of(&self, port: &PortConfig) -> u32 {
        let on_wire = port.rate as u128 * u128::from(port.delay_ns) * 2 / 8_000_000_000;
        let bytes = on_wire + 3 * u128::from(self.max_packet) + u128::from(PFC_FRAME_BYTES);
        self.headroom.unwrap_or(u32::try_from(bytes).unwrap_or(u32::MAX))
    }
}

/// Random early detection on the length of the egress queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Red {
    /// Longest queue in bytes without marks.
    pub kmin: f64,
    /// Longest queue in bytes that is marked at random; above it, every packet is marked.
    pub kmax: f64,
    /// Marking probability at `kmax`.
    pub pmax: f64,
    /// The port rate for which the thresholds are given; they scale with the rate of a port. Zero disables scaling.
    pub rate: u64,
}

/// How a switch uses paths of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// A hash of the flow chooses.
    Ecmp,
    /// Round robin, packet by packet.
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

    /// Bytes of the buffer that are set aside for reserves and headrooms.
    pub fn set_aside(&self) -> u64 {
        self.pfc.map_or(0, |pfc| {
            let priorities = u64::from(pfc.lossless.count_ones());
            let each = |port| u64::from(pfc.headroom_of(port)) + u64::from(pfc.reserve);
            self.ports.iter().map(each).sum::<u64>() * priorities
        })
    }
}
