//! Golden packets: one of every kind, judged by a file of fixed bytes, by tshark and by scapy.

#[allow(dead_code, unused_imports, reason = "other tests use the rest")]
mod golden;

use ferroce_proto::Gid;
use ferroce_proto::wire::cm::{CmMad, CmMessage, IpHeader, PortSpace, ServiceId};
use ferroce_proto::wire::{
    FlowAddrs, ICRC_LEN, Ipv4Header, Ipv6Header, Opcode, Packet, Service, Syndrome, UdpHeader, dest_qpn,
    verify_icrc,
};
use golden::{Golden, TempFile, hex, unhex};
use std::fmt::Write as _;
use std::process::Command;
use std::{env, fs};

const GOLDEN_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/golden.hex");
const CAPTURED_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/captured.hex");
const KERNEL_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/kernel.hex");
const ICRC_SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/icrc.py");

/// Lines of `name bytes`; `#` begins a comment.
fn read_hex_file(path: &str) -> Vec<(String, Vec<u8>)> {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.split_once(' ').unwrap_or_else(|| panic!("no name and bytes: {line}")))
        .map(|(name, bytes)| (name.to_owned(), unhex(bytes.trim())))
        .collect()
}

/// After an intended change of the golden packets: `FERROCE_BLESS=1 cargo test -p ferroce-proto --test wire_golden`,
/// with tshark and scapy installed to check the new bytes.
#[test]
fn bytes_are_those_of_the_golden_file() {
    let built = golden::all();
    if env::var_os("FERROCE_BLESS").is_some() {
        let mut text =
            "# Ethernet frames, written by tests/wire_golden.rs; tshark and scapy agree.\n".to_owned();
        for golden in &built {
            writeln!(text, "{} {}", golden.name, hex(&golden.frame)).expect("strings take everything");
        }
        fs::write(GOLDEN_FILE, text).expect("the golden file is writable");
    }
    let kept = read_hex_file(GOLDEN_FILE);
    assert_eq!(built.len(), kept.len(), "number of golden packets");
    for (golden, (name, bytes)) in built.iter().zip(&kept) {
        assert_eq!(&golden.name, name);
        assert_eq!(hex(&golden.frame), hex(bytes), "{name}");
    }
}

#[test]
fn parsing_gives_back_what_was_built() {
    for golden in golden::all() {
        let name = &golden.name;
        let bytes = golden.transport_with_icrc();
        let ident = if golden.flow.is_ipv4() { golden.ident } else { 0 };
        assert_eq!(verify_icrc(&golden.flow, ident, bytes), Some(ident), "{name}");
        let packet =
            Packet::parse(&bytes[..bytes.len() - ICRC_LEN]).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(packet.headers, golden.headers, "{name}");
        assert_eq!(packet.payload, golden.payload, "{name}");
        assert_eq!(dest_qpn(bytes), Some(golden.headers.bth.dest_qpn), "{name}");
    }
}

#[test]
fn captured_packets_of_hardware_are_understood() {
    let captured = read_hex_file(CAPTURED_FILE);
    assert!(!captured.is_empty());
    for (name, frame) in captured {
        let (flow, ident, bytes) = outer_v4(&frame);
        assert_eq!(verify_icrc(&flow, ident, bytes), Some(ident), "{name}: hint right");
        assert_eq!(verify_icrc(&flow, 0, bytes), Some(ident), "{name}: hint wrong");
        let packet =
            Packet::parse(&bytes[..bytes.len() - ICRC_LEN]).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut again = vec![0; packet.headers.encoded_len()];
        packet.headers.write(&mut again);
        assert_eq!(hex(&again), hex(&bytes[..again.len()]), "{name}");
    }
}

/// Opcodes that a peer without XRC and congestion notification sends: RC, UC and UD, both IP versions.
const KERNEL_OPCODES: [&str; 36] = [
    "00", "01", "02", "03", "04", "05", "06", "07", "08", "09", "0a", "0b", "0c", "0d", "0e", "0f", "10",
    "11_ack", "11_rnr", "12", "13", "14", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29", "2a",
    "2b", "64", "65",
];

/// `cargo xtask interop --golden` takes them off the wire anew.
#[test]
fn packets_of_the_linux_kernel_are_understood() {
    let frames = read_hex_file(KERNEL_FILE);
    for version in ["v4", "v6"] {
        for opcode in KERNEL_OPCODES {
            let name = format!("{version}_{opcode}");
            assert!(frames.iter().any(|(kept, _)| *kept == name), "{name} is missing");
        }
    }
    for (name, frame) in frames {
        let (flow, ident, bytes) = if name.starts_with("v4") { outer_v4(&frame) } else { outer_v6(&frame) };
        assert_eq!(verify_icrc(&flow, ident, bytes), Some(ident), "{name}: hint right");
        assert_eq!(verify_icrc(&flow, 0, bytes), Some(ident), "{name}: hint wrong");
        let packet =
            Packet::parse(&bytes[..bytes.len() - ICRC_LEN]).unwrap_or_else(|e| panic!("{name}: {e}"));
        let opcode = packet.headers.bth.opcode.to_byte();
        assert_eq!(name[3..5], format!("{opcode:02x}"), "{name}: opcode");
        let mut again = vec![0; packet.headers.encoded_len()];
        packet.headers.write(&mut again);
        assert_eq!(hex(&again), hex(&bytes[..again.len()]), "{name}: written again");
        let mut damaged = bytes.to_vec();
        damaged[bytes.len() / 2] ^= 1;
        assert_ne!(verify_icrc(&flow, ident, &damaged), Some(ident), "{name}: a flipped bit shows");
    }
}

/// REQ, MRA, REP, RTU, DREQ and DREP over both, and the kernel's messages for datagrams and refusals.
const KERNEL_MESSAGES: [&str; 15] = [
    "v4_64_cm0010",
    "v4_64_cm0011",
    "v4_64_cm0012",
    "v4_64_cm0013",
    "v4_64_cm0014",
    "v4_64_cm0015",
    "v4_64_cm0016",
    "v4_64_cm0017",
    "v4_64_cm0018",
    "v6_64_cm0010",
    "v6_64_cm0011",
    "v6_64_cm0013",
    "v6_64_cm0014",
    "v6_64_cm0015",
    "v6_64_cm0016",
];

/// Messages of the kernel's connection manager are parsed, and written back with the same bytes.
#[test]
fn messages_of_the_kernels_connection_manager_are_understood() {
    let frames = read_hex_file(KERNEL_FILE);
    for wanted in KERNEL_MESSAGES {
        let (name, frame) = frames.iter().find(|(name, _)| name == wanted).expect(wanted);
        let (_, _, bytes) = if name.starts_with("v4") { outer_v4(frame) } else { outer_v6(frame) };
        let packet = Packet::parse(&bytes[..bytes.len() - ICRC_LEN]).expect(wanted);
        let mad = CmMad::parse(packet.payload).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        assert_eq!(name[8..], format!("{:04x}", mad.message.attr_id()), "{name}");
        assert_eq!(hex(&mad.to_bytes()), hex(packet.payload), "{name}: written again");
        if let CmMessage::Req(req) = &mad.message {
            let ip = IpHeader::parse(&req.private_data).expect("an IP header");
            assert_eq!(ip.src.is_ipv6(), name.starts_with("v6"), "{name}");
            assert_eq!(ServiceId(req.service_id).space(), Some(PortSpace::Tcp), "{name}");
        }
    }
}

fn outer_v4(frame: &[u8]) -> (FlowAddrs, u16, &[u8]) {
    let ip = Ipv4Header::parse(&frame[14..]).expect("an IPv4 header");
    let udp = UdpHeader::parse(&frame[34..]).expect("a UDP header");
    let (sgid, dgid) = (Gid::from_ip(ip.src.into()), Gid::from_ip(ip.dst.into()));
    let flow = FlowAddrs { sgid, dgid, sport: udp.sport, dport: udp.dport };
    (flow, ip.ident, &frame[42..14 + usize::from(ip.total_len)])
}

/// The identification is 0: IPv6 has none.
fn outer_v6(frame: &[u8]) -> (FlowAddrs, u16, &[u8]) {
    let ip = Ipv6Header::parse(&frame[14..]).expect("an IPv6 header");
    let udp = UdpHeader::parse(&frame[54..]).expect("a UDP header");
    let (sgid, dgid) = (Gid::from_ip(ip.src.into()), Gid::from_ip(ip.dst.into()));
    let flow = FlowAddrs { sgid, dgid, sport: udp.sport, dport: udp.dport };
    (flow, 0, &frame[62..54 + usize::from(ip.payload_len)])
}

fn output_lines(command: &mut Command) -> Vec<String> {
    let output = command.output().expect("the tool starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {errors}");
    String::from_utf8(output.stdout).expect("the tool prints text").lines().map(str::to_owned).collect()
}

fn capture_file(name: &str, goldens: &[Golden]) -> TempFile {
    TempFile::new(name, &golden::write_pcap(goldens.iter().map(|g| &g.frame[..])))
}

#[test]
fn scapy_and_zlib_compute_the_same_icrc() {
    let Some(mut python) = golden::python_with_scapy() else { return };
    let goldens = golden::all();
    let file = capture_file("icrc.pcap", &goldens);
    let lines = output_lines(python.arg(ICRC_SCRIPT).arg(file.path()));
    assert_eq!(lines.len(), goldens.len(), "frames that the script saw");
    for (golden, line) in goldens.iter().zip(&lines) {
        let name = &golden.name;
        let ours = hex(&golden.frame[golden.frame.len() - ICRC_LEN..]);
        let [found, by_scapy, by_definition] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{name}: unexpected line {line}")
        };
        assert_eq!(found, ours, "{name}: the frame did not survive its way to the script");
        assert_eq!(by_definition, ours, "{name}: zlib over the fields of the definition");
        if by_scapy == "-" {
            assert!(!golden.flow.is_ipv4(), "{name}: every scapy with RoCE knows IPv4");
            println!("\nSKIPPED: this scapy computes no ICRC over IPv6; {name} judged by zlib alone");
        } else {
            assert_eq!(by_scapy, ours, "{name}: scapy");
        }
    }
}

#[test]
fn tshark_reads_every_field() {
    let Some(mut tshark) = golden::tshark() else { return };
    let goldens = golden::all();
    let file = capture_file("dissect.pcap", &goldens);
    tshark.arg("-r").arg(file.path()).args(["-T", "fields", "-E", "separator=/t", "-E", "occurrence=f"]);
    tshark.args(["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]);
    for field in FIELDS {
        tshark.args(["-e", field]);
    }
    let lines = output_lines(&mut tshark);
    assert_eq!(lines.len(), goldens.len(), "frames that tshark saw");
    for (golden, line) in goldens.iter().zip(&lines) {
        let values: Vec<&str> = line.split('\t').collect();
        assert_eq!(values.len(), FIELDS.len(), "{}: {line}", golden.name);
        Dissected { name: &golden.name, values }.agrees_with(golden);
    }
}

const FIELDS: [&str; 30] = [
    "_ws.malformed",
    "_ws.expert.message",
    "frame.protocols",
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.tver",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.reserved7",
    "infiniband.bth.psn",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.syndrome.credit_count",
    "infiniband.aeth.syndrome.timer",
    "infiniband.aeth.syndrome.error_code",
    "infiniband.aeth.msn",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.atomicacketh.origremdt",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.immdt",
    "infiniband.ieth",
    "infiniband.invariant.crc",
    "data.data",
];

/// The output of tshark for one frame.
struct Dissected<'a> {
    name: &'a str,
    values: Vec<&'a str>,
}

impl Dissected<'_> {
    fn text(&self, field: &str) -> &str {
        let at = FIELDS.iter().position(|f| *f == field).expect("a field that was asked for");
        self.values[at]
    }

    /// tshark shows some numbers in decimal, some in hexadecimal, and byte strings as bare hexadecimal.
    fn number(&self, field: &str) -> Option<u64> {
        let text = self.text(field);
        let parsed = match text.strip_prefix("0x") {
            _ if text.is_empty() => return None,
            Some(hex) => u64::from_str_radix(hex, 16),
            None if ["infiniband.immdt", "infiniband.ieth"].contains(&field) => u64::from_str_radix(text, 16),
            None if text == "True" || text == "False" => Ok(u64::from(text == "True")),
            None => text.parse(),
        };
        Some(parsed.unwrap_or_else(|e| panic!("{}: {field} is {text}: {e}", self.name)))
    }

    fn expect(&self, field: &str, value: Option<impl Into<u64>>) {
        assert_eq!(self.number(field), value.map(Into::into), "{}: {field}", self.name);
    }

    fn agrees_with(&self, golden: &Golden) {
        for field in ["_ws.malformed", "_ws.expert.message"] {
            assert_eq!(self.text(field), "", "{}: {field}", self.name);
        }
        assert!(
            self.text("frame.protocols").contains(":udp:infiniband"),
            "{}: not taken for RoCEv2",
            self.name
        );
        self.bth_agrees_with(golden);
        // tshark supports neither CNPs nor XRC nor the ferroce extensions: of those it parses only the BTH.
        let opcode = golden.headers.bth.opcode;
        if ![Opcode::CNP, Opcode::UC_ACK].contains(&opcode) && opcode.service != Service::Xrc {
            self.extensions_agree_with(golden);
            self.rest_agrees_with(golden);
        }
    }

    fn bth_agrees_with(&self, golden: &Golden) {
        let bth = golden.headers.bth;
        self.expect("infiniband.bth.opcode", Some(bth.opcode.to_byte()));
        self.expect("infiniband.bth.se", Some(bth.solicited));
        self.expect("infiniband.bth.m", Some(bth.mig_req));
        self.expect("infiniband.bth.padcnt", Some(bth.pad));
        self.expect("infiniband.bth.tver", Some(0u8));
        self.expect("infiniband.bth.p_key", Some(bth.pkey.0));
        self.expect("infiniband.bth.destqp", Some(bth.dest_qpn.value()));
        self.expect("infiniband.bth.a", Some(bth.ack_req));
        self.expect("infiniband.bth.reserved7", Some(0u8));
        self.expect("infiniband.bth.psn", Some(bth.psn.value()));
    }

    fn extensions_agree_with(&self, golden: &Golden) {
        let h = &golden.headers;
        // tshark shows address and key of an atomic under the names of the RETH.
        let addr = h.reth.map(|r| r.addr).or(h.atomic.map(|a| a.addr));
        let rkey = h.reth.map(|r| r.rkey).or(h.atomic.map(|a| a.rkey));
        self.expect("infiniband.reth.va", addr);
        self.expect("infiniband.reth.r_key", rkey.map(|k| k.0));
        self.expect("infiniband.reth.dmalen", h.reth.map(|r| r.len));
        self.expect("infiniband.atomiceth.swapdt", h.atomic.map(|a| a.swap_or_add));
        self.expect("infiniband.atomiceth.cmpdt", h.atomic.map(|a| a.compare));
        self.expect("infiniband.atomicacketh.origremdt", h.atomic_ack);
        self.expect("infiniband.deth.q_key", h.deth.map(|d| d.qkey.0));
        self.expect("infiniband.deth.srcqp", h.deth.map(|d| d.src_qpn.value()));
        self.expect("infiniband.immdt", h.imm);
        self.expect("infiniband.ieth", h.ieth.map(|k| k.0));
        self.expect("infiniband.aeth.msn", h.aeth.map(|a| a.msn));
        let (credit, timer, error) = match h.aeth.map(|a| a.syndrome) {
            None => (None, None, None),
            Some(Syndrome::Ack { credit }) => (Some(credit), None, None),
            Some(Syndrome::RnrNak { timer }) => (None, Some(timer), None),
            Some(Syndrome::Nak(code)) => (None, None, Some(code as u8)),
        };
        self.expect("infiniband.aeth.syndrome.credit_count", credit);
        self.expect("infiniband.aeth.syndrome.timer", timer);
        self.expect("infiniband.aeth.syndrome.error_code", error);
    }

    fn rest_agrees_with(&self, golden: &Golden) {
        let crc = &golden.frame[golden.frame.len() - ICRC_LEN..];
        let crc = u32::from_be_bytes(crc.try_into().expect("four bytes"));
        self.expect("infiniband.invariant.crc", Some(crc));
        // Some versions show the pad as data, some do not.
        let data = unhex(self.text("data.data"));
        let (payload, pad) = data.split_at(golden.payload.len().min(data.len()));
        assert_eq!(hex(payload), hex(&golden.payload), "{}: payload", self.name);
        assert!(
            pad.len() <= usize::from(golden.headers.bth.pad) && pad.iter().all(|b| *b == 0),
            "{}",
            self.name
        );
    }
}
