//! Packets of a capture file with time, direction and link type.

use super::blocks::{Block, ENHANCED_PACKET, INTERFACE, OLD_PACKET, SIMPLE_PACKET, is_pcapng};
use super::{Blocks, ByteOrder, Damage, fill, fill_rest};
use std::io::Read;

const PCAP_MICROSECONDS: u32 = 0xa1b2_c3d4;
const PCAP_NANOSECONDS: u32 = 0xa1b2_3c4d;
/// The rest of a pcap file header, after the magic number.
const PCAP_HEADER_REST: usize = 20;
const PCAP_RECORD_HEADER: usize = 16;
/// The longest packet of a pcap file; libpcap's own limit is 256 KiB, and 128 MiB for USB.
const MAX_PCAP_PACKET: u32 = 16 << 20;
const MAX_INTERFACES: usize = 1 << 16;
const NS_PER_S: u128 = 1_000_000_000;
/// Options of pcapng blocks.
const END_OF_OPTIONS: u16 = 0;
const IF_TSRESOL: u16 = 9;
const IF_TSOFFSET: u16 = 14;
const EPB_FLAGS: u16 = 2;
const MICROSECONDS: u8 = 6;

/// What the bytes of a packet begin with; the numbers are those of tcpdump.org/linktypes.html.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkType(pub(crate) u16);

/// Which way a packet went, as far as the file shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Unknown,
    Received,
    Sent,
}

/// A packet of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    /// Nanoseconds since 1970.
    pub(crate) time_ns: u64,
    pub(crate) link: LinkType,
    pub(crate) direction: Direction,
    /// The bytes that the file has; fewer than there were if the snap length was smaller.
    pub(crate) bytes: &'a [u8],
}

/// Reads the packets of a file of either format.
pub(crate) struct Records<R>(Format<R>);

enum Format<R> {
    Pcapng { blocks: Blocks<R>, interfaces: Vec<Interface>, last_ns: u64 },
    Pcap { source: R, order: ByteOrder, ns_per_unit: u32, link: LinkType, packet: Vec<u8> },
}

#[derive(Clone, Copy)]
struct Interface {
    link: LinkType,
    snap_len: u32,
    resolution: u8,
    offset_s: i64,
}

impl<R: Read> Records<R> {
    /// Recognises the format.
    pub(crate) fn open(mut source: R) -> Result<Records<R>, Damage> {
        let mut first = [0; 4];
        if !fill(&mut source, &mut first)? {
            return Err(Damage::Malformed("the file is empty"));
        }
        if is_pcapng(first) {
            let blocks = Blocks::after(first, source);
            return Ok(Records(Format::Pcapng { blocks, interfaces: Vec::new(), last_ns: 0 }));
        }
        let (order, ns_per_unit) = match (u32::from_le_bytes(first), u32::from_be_bytes(first)) {
            (PCAP_MICROSECONDS, _) => (ByteOrder::Little, 1000),
            (PCAP_NANOSECONDS, _) => (ByteOrder::Little, 1),
            (_, PCAP_MICROSECONDS) => (ByteOrder::Big, 1000),
            (_, PCAP_NANOSECONDS) => (ByteOrder::Big, 1),
            _ => return Err(Damage::Malformed("the file is neither pcapng nor pcap")),
        };
        let mut rest = [0; PCAP_HEADER_REST];
        fill_rest(&mut source, &mut rest)?;
        // The upper half of the number describes a frame check sequence.
        let link = LinkType(order.u32(&rest[16..]).unwrap_or_default() as u16);
        Ok(Records(Format::Pcap { source, order, ns_per_unit, link, packet: Vec::new() }))
    }

    /// The next packet; `None` at the end of the file.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_>>, Damage> {
        match &mut self.0 {
            Format::Pcap { source, order, ns_per_unit, link, packet } => {
                next_of_pcap(source, *order, *ns_per_unit, *link, packet)
            }
            Format::Pcapng { blocks, interfaces, last_ns } => next_of_pcapng(blocks, interfaces, last_ns),
        }
    }
}

fn next_of_pcap<'a>(
    source: &mut impl Read,
    order: ByteOrder,
    ns_per_unit: u32,
    link: LinkType,
    packet: &'a mut Vec<u8>,
) -> Result<Option<Frame<'a>>, Damage> {
    let mut header = [0; PCAP_RECORD_HEADER];
    if !fill(source, &mut header)? {
        return Ok(None);
    }
    let field = |n: usize| order.u32(&header[4 * n..]).unwrap_or_default();
    let (seconds, fraction, len) = (field(0), field(1), field(2));
    if len > MAX_PCAP_PACKET {
        return Err(Damage::Malformed("a packet has an impossible length"));
    }
    packet.resize(len as usize, 0);
    fill_rest(source, packet)?;
    let time_ns = u64::from(seconds) * NS_PER_S as u64 + u64::from(fraction) * u64::from(ns_per_unit);
    Ok(Some(Frame { time_ns, link, direction: Direction::Unknown, bytes: packet }))
}

fn next_of_pcapng<'a, R: Read>(
    blocks: &'a mut Blocks<R>,
    interfaces: &mut Vec<Interface>,
    last_ns: &mut u64,
) -> Result<Option<Frame<'a>>, Damage> {
    // The loop only locates the packet: it borrows `blocks` mutably in each iteration, so the body is borrowed afterwards.
    let (found, order) = loop {
        let Some(block) = blocks.next()? else { return Ok(None) };
        if block.begins_section() {
            interfaces.clear();
        } else if block.kind == INTERFACE {
            let interface = interface(&block).ok_or(Damage::Malformed("an interface block is too short"))?;
            if interfaces.len() == MAX_INTERFACES {
                return Err(Damage::Malformed("the file has more than 65536 interfaces"));
            }
            interfaces.push(interface);
        } else if let Some(found) = locate(&block, interfaces, *last_ns) {
            break (found?, block.order);
        }
    };
    let body = blocks.body();
    *last_ns = found.time_ns;
    let direction = match option(order, &body[found.end..], EPB_FLAGS).and_then(|flags| order.u32(flags)) {
        Some(flags) if found.has_options && flags & 3 == 1 => Direction::Received,
        Some(flags) if found.has_options && flags & 3 == 2 => Direction::Sent,
        _ => Direction::Unknown,
    };
    let bytes = &body[found.start..found.start + found.len];
    Ok(Some(Frame { time_ns: found.time_ns, link: found.link, direction, bytes }))
}

/// The position of a packet in the body of its block.
struct Located {
    time_ns: u64,
    link: LinkType,
    start: usize,
    len: usize,
    /// End of the packet with its padding.
    end: usize,
    has_options: bool,
}

/// `None` for a block without packet.
fn locate(block: &Block<'_>, interfaces: &[Interface], last_ns: u64) -> Option<Result<Located, Damage>> {
    let (order, body) = (block.order, block.body);
    let word = |at: usize| body.get(at..).and_then(|bytes| order.u32(bytes));
    let located = match block.kind {
        SIMPLE_PACKET => word(0).and_then(|original_len| {
            let interface = *interfaces.first()?;
            let snap_len = if interface.snap_len == 0 { u32::MAX } else { interface.snap_len };
            let len = original_len.min(snap_len);
            located(body, (last_ns, interface.link), 4, len, false)
        }),
        ENHANCED_PACKET | OLD_PACKET => (|| {
            let number = match block.kind {
                OLD_PACKET => u32::from(order.u16(body)?),
                _ => word(0)?,
            };
            let interface = *interfaces.get(number as usize)?;
            let units = u64::from(word(4)?) << 32 | u64::from(word(8)?);
            let at = (interface.to_ns(units), interface.link);
            located(body, at, 20, word(12)?, block.kind == ENHANCED_PACKET)
        })(),
        _ => return None,
    };
    Some(located.ok_or(Damage::Malformed("a packet block names no interface or is too short")))
}

fn located(
    body: &[u8],
    (time_ns, link): (u64, LinkType),
    start: usize,
    len: u32,
    has_options: bool,
) -> Option<Located> {
    let len = len as usize;
    let end = start.checked_add(len)?;
    body.get(start..end)?;
    let end = end.next_multiple_of(4).min(body.len());
    Some(Located { time_ns, link, start, len, end, has_options })
}

fn interface(block: &Block<'_>) -> Option<Interface> {
    let (order, body) = (block.order, block.body);
    let link = LinkType(order.u16(body)?);
    let snap_len = order.u32(body.get(4..)?)?;
    let options = body.get(8..)?;
    let resolution = option(order, options, IF_TSRESOL).and_then(|value| value.first().copied());
    let offset_s = option(order, options, IF_TSOFFSET).and_then(|value| order.i64(value));
    let (resolution, offset_s) = (resolution.unwrap_or(MICROSECONDS), offset_s.unwrap_or(0));
    Some(Interface { link, snap_len, resolution, offset_s })
}

impl Interface {
    /// A time stamp in nanoseconds. The highest bit of the resolution chooses between powers of ten and of two.
    fn to_ns(self, units: u64) -> u64 {
        let exponent = u32::from(self.resolution & 0x7f);
        let base: u128 = if self.resolution & 0x80 == 0 { 10 } else { 2 };
        let ns = match base.checked_pow(exponent) {
            Some(per_second) => (u128::from(units) * NS_PER_S / per_second).min(u128::from(u64::MAX)) as u64,
            None => 0,
        };
        ns.saturating_add_signed(self.offset_s.saturating_mul(NS_PER_S as i64))
    }
}

/// The value of the first option with this code.
fn option(order: ByteOrder, mut options: &[u8], code: u16) -> Option<&[u8]> {
    loop {
        let (found, len) = (order.u16(options)?, usize::from(order.u16(options.get(2..)?)?));
        if found == END_OF_OPTIONS {
            return None;
        }
        let value = options.get(4..4 + len)?;
        if found == code {
            return Some(value);
        }
        options = options.get(4 + len.next_multiple_of(4)..)?;
    }
}
