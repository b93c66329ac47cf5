//! A pcapng file of everything that crossed a link, for Wireshark.
//!
//! A UDP socket does not provide the Ethernet, IP and UDP headers, so the capture reconstructs them. Ethernet addresses are
//! zero, as on the loopback interface. All other fields equal those on the wire, so Wireshark can check the ICRC. A TCP socket
//! does not provide segments either; the capture synthesises segments with matching sequence numbers.

use ferroce_os::fork::Generation;
use ferroce_proto::Gid;
use ferroce_proto::wire::{FlowAddrs, Ipv4Header, Ipv6Header, UdpHeader};
use parking_lot::{Condvar, Mutex};
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use pcap_file::{DataLink, PcapError};
use std::borrow::Cow;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// A packet is written to the file at most this long after it crossed the link, even if no other packet follows.
const FLUSH_EVERY: Duration = Duration::from_millis(500);
/// At the exit of the process, a lock may be held by a thread that no longer runs.
const LOCK_PATIENCE: Duration = Duration::from_millis(100);
/// Captures of this process, for [`flush_all`].
static OPEN: Mutex<Vec<(Generation, Weak<Shared>)>> = Mutex::new(Vec::new());
const BUFFER_LEN: usize = 256 * 1024;
const ETHERNET_LEN: usize = 14;

/// The direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Into this process.
    Received,
    /// Out of it.
    Sent,
}

/// The outer headers of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outer {
    pub(crate) flow: FlowAddrs,
    pub(crate) ident: u16,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
}

/// A TCP segment without options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpSegment {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) sequence: u32,
    pub(crate) acknowledged: u32,
    pub(crate) flags: u8,
}

impl TcpSegment {
    const LEN: usize = 20;
    const PROTOCOL: u8 = 6;
    /// Most payload of a segment, so that its length fits the IP header.
    pub(crate) const MOST: usize = u16::MAX as usize - Ipv4Header::LEN - Self::LEN;
    pub(crate) const FIN: u8 = 0x01;
    pub(crate) const SYN: u8 = 0x02;
    pub(crate) const RST: u8 = 0x04;
    pub(crate) const PSH: u8 = 0x08;
    pub(crate) const ACK: u8 = 0x10;

    fn header(&self, checksum: u16) -> [u8; Self::LEN] {
        const HEADER_WORDS: u8 = 5 << 4;
        let mut b = [0; Self::LEN];
        b[..2].copy_from_slice(&self.from.port().to_be_bytes());
        b[2..4].copy_from_slice(&self.to.port().to_be_bytes());
        b[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        b[8..12].copy_from_slice(&self.acknowledged.to_be_bytes());
        (b[12], b[13]) = (HEADER_WORDS, self.flags);
        // The receive window is not known.
        b[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
        b[16..18].copy_from_slice(&checksum.to_be_bytes());
        b
    }
}

/// Writes packets to a pcapng file. Any number of links and threads may share one.
///
/// A write error (disk full) ends the capture, but not the traffic; see [`Capture::errors`].
pub struct Capture {
    path: PathBuf,
    shared: Arc<Shared>,
    flusher: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    stopped: Condvar,
    errors: AtomicU64,
}

struct State {
    /// `None` once writing has failed.
    file: Option<PcapNgWriter<BufWriter<File>>>,
    frame: Vec<u8>,
    is_stopping: bool,
}

impl Capture {
    /// Creates `path`. If several processes use the same path, the first one gets it and the others write
    /// `name.<pid>.pcapng` in the same directory. An existing file is never overwritten.
    pub fn create(path: &Path) -> io::Result<Capture> {
        let (file, path) = create_unique(path)?;
        let state = State {
            file: Some(begin(file).map_err(to_io_error)?),
            frame: Vec::with_capacity(16 * 1024),
            is_stopping: false,
        };
        let shared =
            Arc::new(Shared { state: Mutex::new(state), stopped: Condvar::new(), errors: AtomicU64::new(0) });
        remember(&shared);
        let of_thread = Arc::clone(&shared);
        let flusher = ferroce_os::thread::spawn("ferroce-capture", move || of_thread.keep_flushing())?;
        Ok(Capture { path, shared, flusher: Some(flusher) })
    }

    /// The file that is written.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Packets that could not be written.
    pub fn errors(&self) -> u64 {
        self.shared.errors.load(Relaxed)
    }

    /// Adds a packet with this time; `packet` is the UDP payload, with the ICRC.
    pub(crate) fn record(&self, direction: Direction, time_ns: u64, outer: &Outer, packet: &[u8]) {
        self.write(direction, time_ns, |frame| build_udp(frame, outer, packet));
    }

    /// Adds a segment with this time and at most [`TcpSegment::MOST`] bytes.
    pub(crate) fn record_segment(
        &self,
        direction: Direction,
        time_ns: u64,
        segment: &TcpSegment,
        payload: &[u8],
    ) {
        self.write(direction, time_ns, |frame| build_tcp(frame, segment, payload));
    }

    fn write(&self, direction: Direction, time_ns: u64, build: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.shared.state.lock();
        let State { file, frame, .. } = &mut *state;
        let written = match file {
            Some(file) => {
                frame.clear();
                build(frame);
                write_frame(file, direction, time_ns, frame)
            }
            None => Err(PcapError::IncompleteBuffer),
        };
        if written.is_err() {
            *file = None;
            self.shared.errors.fetch_add(1, Relaxed);
        }
    }
}

fn remember(shared: &Arc<Shared>) {
    let mut open = OPEN.lock();
    open.retain(|(_, shared)| shared.strong_count() > 0);
    open.push((Generation::current(), Arc::downgrade(shared)));
}

/// Completes the files of a process that exits without closing its devices, as programs of librdmacm do. A forked child does
/// not write the buffers that it inherited from its parent.
pub(crate) fn flush_all() {
    let Some(open) = OPEN.try_lock_for(LOCK_PATIENCE) else { return };
    for (_, shared) in open.iter().filter(|(born, _)| born.is_current()) {
        if let Some(shared) = shared.upgrade()
            && let Some(mut state) = shared.state.try_lock_for(LOCK_PATIENCE)
        {
            shared.flush(&mut state);
        }
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.shared.state.lock().is_stopping = true;
        self.shared.stopped.notify_all();
        if let Some(flusher) = self.flusher.take() {
            let _ = flusher.join();
        }
        self.shared.flush(&mut self.shared.state.lock());
    }
}

impl Shared {
    fn keep_flushing(&self) {
        let mut state = self.state.lock();
        while !state.is_stopping {
            self.stopped.wait_for(&mut state, FLUSH_EVERY);
            self.flush(&mut state);
        }
    }

    fn flush(&self, state: &mut State) {
        let failed = state.file.as_mut().is_some_and(|file| file.get_mut().flush().is_err());
        if failed {
            state.file = None;
            self.errors.fetch_add(1, Relaxed);
        }
    }
}

fn create_unique(path: &Path) -> io::Result<(File, PathBuf)> {
    let pid = std::process::id().to_string();
    let names = std::iter::once(path.to_path_buf())
        .chain(std::iter::once(with_suffix(path, &pid)))
        .chain((2..100).map(|n| with_suffix(path, &format!("{pid}-{n}"))));
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for name in names {
        match OpenOptions::new().write(true).create_new(true).open(&name) {
            Ok(file) => return Ok((file, name)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => last = e,
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

/// `x.pcapng` becomes `x.<suffix>.pcapng`.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let extension = path.extension().map_or("pcapng".into(), |e| e.to_string_lossy());
    path.with_extension(format!("{suffix}.{extension}"))
}

fn begin(file: File) -> Result<PcapNgWriter<BufWriter<File>>, PcapError> {
    const NANOSECONDS: u8 = 9;
    let mut writer = PcapNgWriter::new(BufWriter::with_capacity(BUFFER_LEN, file))?;
    let interface = InterfaceDescriptionBlock {
        linktype: DataLink::ETHERNET,
        snaplen: 0,
        options: vec![
            InterfaceDescriptionOption::IfName(Cow::Borrowed("ferroce0")),
            InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
        ],
    };
    writer.write_block(&interface.into_block())?;
    Ok(writer)
}

fn write_frame(
    file: &mut PcapNgWriter<BufWriter<File>>,
    direction: Direction,
    time_ns: u64,
    frame: &[u8],
) -> Result<(), PcapError> {
    let inbound_or_outbound = match direction {
        Direction::Received => 1,
        Direction::Sent => 2,
    };
    let block = EnhancedPacketBlock {
        interface_id: 0,
        timestamp: Duration::from_nanos(time_ns),
        original_len: frame.len() as u32,
        data: Cow::Borrowed(frame),
        options: vec![EnhancedPacketOption::Flags(inbound_or_outbound)],
    };
    file.write_block(&block.into_block()).map(|_| ())
}

/// Ethernet and IP headers for `len` bytes of this protocol.
fn build_ip(frame: &mut Vec<u8>, outer: &Outer, protocol: u8, len: usize) {
    const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
    const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
    let FlowAddrs { sgid, dgid, .. } = outer.flow;
    frame.extend_from_slice(&[0; ETHERNET_LEN - 2]);
    match (sgid.to_ip(), dgid.to_ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            frame.extend_from_slice(&ETHERTYPE_IPV4);
            let header = Ipv4Header {
                tos: outer.tos,
                total_len: (Ipv4Header::LEN + len) as u16,
                ident: outer.ident,
                flags: Ipv4Header::DONT_FRAGMENT,
                ttl: outer.ttl,
                protocol,
                src,
                dst,
            };
            frame.extend_from_slice(&header.to_bytes());
        }
        _ => {
            frame.extend_from_slice(&ETHERTYPE_IPV6);
            let header = Ipv6Header {
                tclass: outer.tos,
                flow_label: 0,
                payload_len: len as u16,
                next_header: protocol,
                hop_limit: outer.ttl,
                src: sgid.0.into(),
                dst: dgid.0.into(),
            };
            frame.extend_from_slice(&header.to_bytes());
        }
    }
}

fn build_udp(frame: &mut Vec<u8>, outer: &Outer, packet: &[u8]) {
    let FlowAddrs { sport, dport, .. } = outer.flow;
    let len = UdpHeader::LEN + packet.len();
    build_ip(frame, outer, Ipv4Header::PROTOCOL_UDP, len);
    let mut udp = UdpHeader { sport, dport, len: len as u16, checksum: 0 };
    let sum = checksum(&outer.flow, Ipv4Header::PROTOCOL_UDP, &udp.to_bytes(), packet);
    // A sum of zero is written as ones, for zero means that there is no checksum.
    udp.checksum = if sum == 0 { u16::MAX } else { sum };
    frame.extend_from_slice(&udp.to_bytes());
    frame.extend_from_slice(packet);
}

fn build_tcp(frame: &mut Vec<u8>, segment: &TcpSegment, payload: &[u8]) {
    const TTL: u8 = 64;
    let gid = |address: SocketAddr| Gid::from_ip(address.ip());
    let flow = FlowAddrs::new(gid(segment.from), gid(segment.to), segment.from.port());
    let outer = Outer { flow, ident: 0, tos: 0, ttl: TTL };
    build_ip(frame, &outer, TcpSegment::PROTOCOL, TcpSegment::LEN + payload.len());
    let sum = checksum(&flow, TcpSegment::PROTOCOL, &segment.header(0), payload);
    frame.extend_from_slice(&segment.header(sum));
    frame.extend_from_slice(payload);
}

/// Checksum over pseudo header, header and data (RFC 768, RFC 9293), mandatory over IPv6. The 12 bytes in front of the address in
/// an IPv4-mapped GID are not part of the pseudo header.
fn checksum(flow: &FlowAddrs, protocol: u8, header: &[u8], packet: &[u8]) -> u16 {
    let skip = if flow.is_ipv4() { 12 } else { 0 };
    let parts: [&[u8]; 4] = [&flow.sgid.0[skip..], &flow.dgid.0[skip..], header, packet];
    let mut sum = (header.len() + packet.len()) as u64 + u64::from(protocol);
    for part in parts {
        let words = part.chunks_exact(2);
        let odd = words.remainder().first().map_or(0, |&b| u64::from(b) << 8);
        sum += odd + words.map(|w| u64::from(u16::from_be_bytes([w[0], w[1]]))).sum::<u64>();
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn to_io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(e) => e,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temporary(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("ferroce-{}-{name}.pcapng", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    #[test]
    fn a_second_capture_does_not_overwrite_the_first() {
        let path = temporary("second");
        let first = Capture::create(&path).unwrap();
        let second = Capture::create(&path).unwrap();
        assert_eq!(first.path(), path);
        let pid = std::process::id();
        assert!(second.path().to_string_lossy().ends_with(&format!("second.{pid}.pcapng")));
        for capture in [first, second] {
            let path = capture.path().to_path_buf();
            drop(capture);
            assert!(std::fs::metadata(&path).unwrap().len() > 0);
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn an_exit_completes_the_file() {
        let path = temporary("exit");
        let capture = Capture::create(&path).unwrap();
        let gid = Gid::from_ip("127.0.0.1".parse().unwrap());
        let outer = Outer { flow: FlowAddrs::new(gid, gid, 0xC000), ident: 0, tos: 0, ttl: 64 };
        capture.record(Direction::Sent, 0, &outer, b"the last packet of all");
        flush_all();
        let file = std::fs::read(&path).unwrap();
        assert!(file.windows(8).any(|bytes| bytes == b"the last"));
        drop(capture);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_full_disk_ends_the_capture_and_nothing_else() {
        let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let state = State { file: Some(begin(file).unwrap()), frame: Vec::new(), is_stopping: false };
        let (state, errors) = (Mutex::new(state), AtomicU64::new(0));
        let shared = Arc::new(Shared { state, stopped: Condvar::new(), errors });
        let capture = Capture { path: "/dev/full".into(), shared, flusher: None };
        let gid = Gid::from_ip("127.0.0.1".parse().unwrap());
        let outer = Outer { flow: FlowAddrs::new(gid, gid, 0xC000), ident: 0, tos: 0, ttl: 64 };
        for _ in 0..1000 {
            capture.record(Direction::Sent, 0, &outer, &[7; 4096]);
        }
        assert!(capture.errors() > 900);
    }
}
