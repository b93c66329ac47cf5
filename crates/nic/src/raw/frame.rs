//! The headers of a frame, in the form in which rules name their fields.

use super::flow::FlowLayer;

const VLAN: [u16; 2] = [0x8100, 0x88a8];
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// The shortest frame: two addresses and a type.
pub(super) const MIN_FRAME: usize = 14;

/// Headers that were found.
#[derive(Default)]
pub(super) struct Frame {
    /// Destination, source, type behind the last tag, the last tag.
    pub(super) eth: [u8; 16],
    /// Source, destination, protocol, type of service, TTL, flags.
    pub(super) ipv4: Option<[u8; 12]>,
    /// Source, destination, flow label, next header, traffic class, hop limit.
    pub(super) ipv6: Option<[u8; 39]>,
    /// Destination and source port.
    pub(super) tcp: Option<[u8; 4]>,
    /// Destination and source port.
    pub(super) udp: Option<[u8; 4]>,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

impl Frame {
    /// `None` if there is not even an Ethernet header. What is cut short further up is simply not there.
    pub(super) fn parse(bytes: &[u8]) -> Option<Frame> {
        let mut frame = Frame::default();
        frame.eth[..12].copy_from_slice(bytes.get(..12)?);
        let (mut at, mut ether_type) = (12, be16(bytes, 12)?);
        while VLAN.contains(&ether_type) {
            frame.eth[14..].copy_from_slice(bytes.get(at + 2..at + 4)?);
            at += 4;
            ether_type = be16(bytes, at)?;
        }
        frame.eth[12..14].copy_from_slice(&ether_type.to_be_bytes());
        let payload = bytes.get(at + 2..)?;
        // A packet that ends within a header has none from there on.
        let _ = match ether_type {
            IPV4 => frame.parse_ipv4(payload),
            IPV6 => frame.parse_ipv6(payload),
            _ => None,
        };
        Some(frame)
    }

    fn parse_ipv4(&mut self, ip: &[u8]) -> Option<()> {
        let fixed = ip.get(..20)?;
        let mut fields = [0; 12];
        fields[..8].copy_from_slice(&fixed[12..20]);
        (fields[8], fields[9], fields[10], fields[11]) = (fixed[9], fixed[1], fixed[8], fixed[6] >> 5);
        self.ipv4 = Some(fields);
        let is_first_fragment = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x1fff == 0;
        let header = usize::from(fixed[0] & 0xf) * 4;
        if is_first_fragment && header >= 20 { self.parse_ports(fixed[9], ip.get(header..)?) } else { None }
    }

    fn parse_ipv6(&mut self, ip: &[u8]) -> Option<()> {
        let fixed = ip.get(..40)?;
        let mut fields = [0; 39];
        fields[..32].copy_from_slice(&fixed[8..40]);
        let word = u32::from_be_bytes([fixed[0], fixed[1], fixed[2], fixed[3]]);
        fields[32..36].copy_from_slice(&(word & 0xf_ffff).to_be_bytes());
        (fields[36], fields[37], fields[38]) = (fixed[6], (word >> 20) as u8, fixed[7]);
        self.ipv6 = Some(fields);
        self.parse_ports(fixed[6], ip.get(40..)?)
    }

    fn parse_ports(&mut self, protocol: u8, segment: &[u8]) -> Option<()> {
        let ports = segment.get(..4)?;
        let fields = Some([ports[2], ports[3], ports[0], ports[1]]);
        match protocol {
            TCP => self.tcp = fields,
            UDP => self.udp = fields,
            _ => {}
        }
        Some(())
    }

    /// The fields of a header, if it is there.
    pub(super) fn layer(&self, layer: FlowLayer) -> Option<&[u8]> {
        match layer {
            FlowLayer::Eth => Some(&self.eth),
            FlowLayer::Ipv4 => self.ipv4.as_ref().map(<[u8; 12]>::as_slice),
            FlowLayer::Ipv6 => self.ipv6.as_ref().map(<[u8; 39]>::as_slice),
            FlowLayer::Tcp => self.tcp.as_ref().map(<[u8; 4]>::as_slice),
            FlowLayer::Udp => self.udp.as_ref().map(<[u8; 4]>::as_slice),
        }
    }

    /// Whether it is for several receivers.
    pub(super) fn is_multicast(&self) -> bool {
        self.eth[0] & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::FlowFilter;

    fn udp_in_ipv4(tags: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        bytes.extend_from_slice(tags);
        bytes.extend_from_slice(&[0x08, 0x00]);
        bytes.extend_from_slice(&[0x45, 3, 0, 28, 0, 0, 0x40, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend_from_slice(&[0x12, 0x34, 0x56, 0x78, 0, 8, 0, 0]);
        bytes
    }

    #[test]
    fn fields_are_found_behind_tags_too() {
        for (tags, last) in [(&[][..], [0, 0]), (&[0x88, 0xa8, 0, 1, 0x81, 0, 0x20, 5], [0x20, 5])] {
            let frame = Frame::parse(&udp_in_ipv4(tags)).unwrap();
            assert_eq!(frame.eth[12..14], [0x08, 0x00]);
            assert_eq!(frame.eth[14..], last);
            assert_eq!(frame.ipv4, Some([10, 0, 0, 1, 10, 0, 0, 2, UDP, 3, 64, 2]));
            assert_eq!(frame.udp, Some([0x56, 0x78, 0x12, 0x34]));
            assert!(frame.tcp.is_none() && frame.ipv6.is_none());
        }
    }

    #[test]
    fn a_frame_cut_anywhere_is_no_trouble() {
        let whole = udp_in_ipv4(&[0x81, 0, 0, 7]);
        for len in 0..whole.len() {
            let frame = Frame::parse(&whole[..len]);
            assert_eq!(frame.is_some(), len >= 18, "{len}");
            assert!(frame.is_none_or(|f| f.ipv4.is_some() == (len >= 38) && f.udp.is_some() == (len >= 42)));
        }
    }

    #[test]
    fn only_bits_of_the_mask_count() {
        let frame = Frame::parse(&udp_in_ipv4(&[])).unwrap();
        let filter =
            |layer, value: &[u8], mask: &[u8]| FlowFilter { layer, value: value.into(), mask: mask.into() };
        assert!(filter(FlowLayer::Ipv4, &[10, 9, 9, 9], &[255, 0, 0, 0]).matches(&frame));
        assert!(!filter(FlowLayer::Ipv4, &[11, 0, 0, 1], &[255, 0, 0, 0]).matches(&frame));
        assert!(filter(FlowLayer::Udp, &[0x56, 0x78], &[255, 255]).matches(&frame));
        assert!(!filter(FlowLayer::Tcp, &[], &[]).matches(&frame));
    }
}
