//! The wire format of stream sockets: private data at connection, immediate data afterwards, and entries that each end writes to
//! the table of the other. It equals that of rdma-core's librdmacm byte for byte (rsocket.c of version 44).
//!
//! All input is untrusted: parsing refuses malformed bytes, and checks every length.

/// Why bytes are malformed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Malformed {
    /// The bytes are shorter than the structure.
    Short,
    /// Another version of the protocol.
    Version(u8),
    /// The peer's table has no entries.
    NoTable,
}

/// The byte order of an end's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Little,
    Big,
}

impl Order {
    /// The byte order of this host.
    pub(crate) const HERE: Order = if cfg!(target_endian = "big") { Order::Big } else { Order::Little };

    /// Converts a number from this order to that of the host, or back.
    fn u64(self, value: u64) -> u64 {
        if self == Order::Big { value.to_be() } else { value.to_le() }
    }

    fn u32(self, value: u32) -> u32 {
        if self == Order::Big { value.to_be() } else { value.to_le() }
    }
}

/// The bytes at an offset.
pub(crate) fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|byte| bytes[at + byte])
}

/// Memory of the peer that we may write, or memory of ours that the peer may write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RemoteBuffer {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) length: u32,
}

impl RemoteBuffer {
    pub(crate) const LEN: usize = 16;

    /// The bytes for an end with this byte order.
    pub(crate) fn to_bytes(self, order: Order) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&order.u64(self.addr).to_ne_bytes());
        bytes[8..12].copy_from_slice(&order.u32(self.rkey).to_ne_bytes());
        bytes[12..].copy_from_slice(&order.u32(self.length).to_ne_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: [u8; Self::LEN], order: Order) -> Self {
        Self {
            addr: order.u64(u64::from_ne_bytes(part(&bytes, 0))),
            rkey: order.u32(u32::from_ne_bytes(part(&bytes, 8))),
            length: order.u32(u32::from_ne_bytes(part(&bytes, 12))),
        }
    }
}

/// An entry of the table of mappings: memory that `riowrite` addresses by offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Mapping {
    pub(crate) offset: u64,
    pub(crate) buffer: RemoteBuffer,
}

impl Mapping {
    pub(crate) const LEN: usize = 8 + RemoteBuffer::LEN;

    pub(crate) fn to_bytes(self, order: Order) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&order.u64(self.offset).to_ne_bytes());
        bytes[8..].copy_from_slice(&self.buffer.to_bytes(order));
        bytes
    }

    pub(crate) fn from_bytes(bytes: [u8; Self::LEN], order: Order) -> Self {
        let offset = order.u64(u64::from_ne_bytes(part(&bytes, 0)));
        Self { offset, buffer: RemoteBuffer::from_bytes(part(&bytes, 8), order) }
    }

    /// The number of bytes of the mapping from `offset` on; 0 if it is outside.
    pub(crate) fn reach(&self, offset: u64) -> u32 {
        match offset.checked_sub(self.offset) {
            Some(into) if into < u64::from(self.buffer.length) => self.buffer.length - into as u32,
            _ => 0,
        }
    }
}

const VERSION: u8 = 1;
/// The sender reads its memory as big endian.
const FLAG_BIG_ENDIAN: u8 = 1;
/// The sender supports mappings.
const FLAG_MAPPINGS: u8 = 1 << 1;

/// The private data of a connection request and its reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ConnectData {
    pub(crate) order: Order,
    /// Whether the sender supports mappings.
    pub(crate) mappings_known: bool,
    /// Messages that the sender accepts before it grants credits again.
    pub(crate) credits: u16,
    /// Entries of the sender's table of mappings.
    pub(crate) mappings: u16,
    /// The sender's table of buffers: its `length` counts entries, not bytes. The table of mappings follows it.
    pub(crate) table: RemoteBuffer,
    /// The first buffer to write data to.
    pub(crate) data: RemoteBuffer,
}

impl ConnectData {
    pub(crate) const LEN: usize = 8 + 2 * RemoteBuffer::LEN;

    pub(crate) fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = VERSION;
        bytes[1] = if self.order == Order::Big { FLAG_BIG_ENDIAN } else { 0 };
        if self.mappings_known {
            bytes[1] |= FLAG_MAPPINGS;
        }
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = scaled(self.mappings);
        bytes[8..24].copy_from_slice(&self.table.to_bytes(Order::Big));
        bytes[24..].copy_from_slice(&self.data.to_bytes(Order::Big));
        bytes
    }

    /// Parses the beginning of private data, which the connection manager may have padded.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; Self::LEN] = bytes.first_chunk().ok_or(Malformed::Short)?;
        if bytes[0] != VERSION {
            return Err(Malformed::Version(bytes[0]));
        }
        let table = RemoteBuffer::from_bytes(part(bytes, 8), Order::Big);
        if table.length == 0 {
            return Err(Malformed::NoTable);
        }
        let mappings_known = bytes[1] & FLAG_MAPPINGS != 0;
        Ok(Self {
            order: if bytes[1] & FLAG_BIG_ENDIAN != 0 { Order::Big } else { Order::Little },
            mappings_known,
            credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            mappings: if mappings_known { unscaled(bytes[7]) } else { 0 },
            table,
            data: RemoteBuffer::from_bytes(part(bytes, 24), Order::Big),
        })
    }
}

/// Encodes a count in one byte: exact up to 128, in steps of 256 above.
fn scaled(value: u16) -> u8 {
    if value <= 128 { value as u8 } else { 128 | (value >> 8).min(127) as u8 }
}

fn unscaled(byte: u8) -> u16 {
    if byte <= 128 { u16::from(byte) } else { u16::from(byte & 127) << 8 }
}

/// The nearest count that the encoding can represent.
pub(crate) fn expressible_mappings(wanted: u32) -> u16 {
    unscaled(scaled(wanted.min(u32::from(u16::MAX)) as u16))
}

/// Immediate data: the meaning of a message. The three high bits are the kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Message {
    /// The sender has written this many further bytes.
    Data(u32),
    /// The sender accepts data messages up to this number. If bytes come with the message, they describe one more buffer.
    Credits(u16),
    /// The sender has written this entry of the table of mappings.
    Mapping(u16),
    /// Both directions end.
    Disconnect,
    /// A keepalive without content.
    KeepAlive,
    /// The sender has stopped sending.
    Shutdown,
    /// A message of a later version, which is ignored.
    Unknown(u32),
}

const KIND_SHIFT: u32 = 29;
const VALUE_MASK: u32 = (1 << KIND_SHIFT) - 1;
const KIND_DATA: u32 = 0;
const KIND_DATA_MORE: u32 = 1;
const KIND_BUFFER: u32 = 4;
const KIND_MAPPING: u32 = 6;
const KIND_CONTROL: u32 = 7;

impl Message {
    /// The maximum number of bytes that one message can announce.
    pub(crate) const MAX_DATA: u32 = VALUE_MASK;

    pub(crate) fn to_u32(self) -> u32 {
        let of = |kind: u32, value: u32| kind << KIND_SHIFT | (value & VALUE_MASK);
        match self {
            Message::Data(length) => of(KIND_DATA, length),
            Message::Credits(upto) => of(KIND_BUFFER, upto.into()),
            Message::Mapping(index) => of(KIND_MAPPING, index.into()),
            Message::Disconnect => of(KIND_CONTROL, 0),
            Message::KeepAlive => of(KIND_CONTROL, 1),
            Message::Shutdown => of(KIND_CONTROL, 2),
            Message::Unknown(raw) => raw,
        }
    }

    pub(crate) fn from_u32(raw: u32) -> Self {
        let value = raw & VALUE_MASK;
        match (raw >> KIND_SHIFT, value) {
            (KIND_DATA | KIND_DATA_MORE, length) => Message::Data(length),
            (KIND_BUFFER, upto) => Message::Credits(upto as u16),
            (KIND_MAPPING, index) => Message::Mapping(index as u16),
            (KIND_CONTROL, 0) => Message::Disconnect,
            (KIND_CONTROL, 1) => Message::KeepAlive,
            (KIND_CONTROL, 2) => Message::Shutdown,
            _ => Message::Unknown(raw),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ConnectData {
        ConnectData {
            order: Order::Little,
            mappings_known: true,
            credits: 384,
            mappings: 1,
            table: RemoteBuffer { addr: 0x0011_2233_4455_6677, rkey: 0x8899_aabb, length: 2 },
            data: RemoteBuffer { addr: 0x7f00_0000_1000, rkey: 0x0102_0304, length: 65536 },
        }
    }

    /// The bytes that rdma-core's structure has on the wire, written out by hand.
    #[test]
    fn connect_data_is_byte_exact() {
        #[rustfmt::skip]
        let golden = [
            1, 2, 0x01, 0x80, 0, 0, 0, 1,
            0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0, 0, 0, 2,
            0, 0, 0x7f, 0, 0, 0, 0x10, 0, 1, 2, 3, 4, 0, 1, 0, 0,
        ];
        assert_eq!(sample().to_bytes(), golden);
        let mut padded = golden.to_vec();
        padded.resize(196, 0);
        assert_eq!(ConnectData::parse(&padded), Ok(sample()));
    }

    #[test]
    fn unusable_connect_data_is_refused() {
        let good = sample().to_bytes();
        assert_eq!(ConnectData::parse(&good[..39]), Err(Malformed::Short));
        assert_eq!(ConnectData::parse(&[]), Err(Malformed::Short));
        let mut later = good;
        later[0] = 2;
        assert_eq!(ConnectData::parse(&later), Err(Malformed::Version(2)));
        let mut empty = good;
        empty[20..24].fill(0);
        assert_eq!(ConnectData::parse(&empty), Err(Malformed::NoTable));
    }

    #[test]
    fn a_peer_without_mappings_has_none() {
        let mut bytes = sample().to_bytes();
        bytes[1] = FLAG_BIG_ENDIAN;
        let parsed = ConnectData::parse(&bytes).unwrap();
        assert_eq!((parsed.mappings, parsed.order), (0, Order::Big));
    }

    #[test]
    fn messages_are_byte_exact() {
        let golden = [
            (Message::Data(5), 0x0000_0005),
            (Message::Data(Message::MAX_DATA), 0x1fff_ffff),
            (Message::Credits(0x1ff), 0x8000_01ff),
            (Message::Mapping(3), 0xc000_0003),
            (Message::Disconnect, 0xe000_0000),
            (Message::KeepAlive, 0xe000_0001),
            (Message::Shutdown, 0xe000_0002),
        ];
        for (message, raw) in golden {
            assert_eq!(message.to_u32(), raw);
            assert_eq!(Message::from_u32(raw), message);
        }
        assert_eq!(Message::from_u32(0xe000_0003), Message::Unknown(0xe000_0003));
        assert_eq!(Message::from_u32(0x4000_0001), Message::Unknown(0x4000_0001));
        // A credit number wraps at sixteen bits, as the peer may have counted further.
        assert_eq!(Message::from_u32(0x8001_0002), Message::Credits(2));
    }

    #[test]
    fn table_entries_follow_the_readers_order() {
        let buffer = RemoteBuffer { addr: 0x0102_0304_0506_0708, rkey: 0x090a_0b0c, length: 0x0d0e_0f10 };
        let big: Vec<u8> = (1..=16).collect();
        assert_eq!(buffer.to_bytes(Order::Big)[..], big[..]);
        assert_eq!(buffer.to_bytes(Order::Little)[..8], [8, 7, 6, 5, 4, 3, 2, 1]);
        let mapping = Mapping { offset: 9, buffer };
        for order in [Order::Little, Order::Big] {
            assert_eq!(Mapping::from_bytes(mapping.to_bytes(order), order), mapping);
        }
        assert_eq!(mapping.to_bytes(Order::Big)[..8], [0, 0, 0, 0, 0, 0, 0, 9]);
    }

    #[test]
    fn counts_in_one_byte() {
        for exact in [0, 1, 127, 128] {
            assert_eq!(expressible_mappings(exact), exact as u16);
        }
        assert_eq!(expressible_mappings(512), 512);
        assert_eq!(expressible_mappings(700), 512);
        assert_eq!(expressible_mappings(u32::MAX), 127 << 8);
    }

    #[test]
    fn reach_of_a_mapping() {
        let mapping = Mapping { offset: 100, buffer: RemoteBuffer { addr: 0, rkey: 0, length: 10 } };
        assert_eq!([99, 100, 109, 110, u64::MAX].map(|at| mapping.reach(at)), [0, 10, 1, 0, 0]);
        let last = Mapping { offset: u64::MAX - 1, ..mapping };
        assert_eq!(last.reach(u64::MAX), 9, "an end beyond all numbers does not wrap");
    }
}
