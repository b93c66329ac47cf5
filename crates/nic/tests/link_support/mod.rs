//! What the tests of the links share.
#![allow(dead_code, reason = "each test file uses a part of it")]

use ferroce_nic::link::{Effort, Link, RxBatch, Sleep, TxBatch, UdpConfig, UdpLink, now};
use ferroce_proto::verbs::Route;
use ferroce_proto::{Gid, Time};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Far longer than any of these tests needs; reached only if packets are missing.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(20);

/// A link on addresses of the test's own.
pub(crate) fn open(addrs: &[&str]) -> UdpLink {
    UdpLink::open(&config(addrs)).expect("open a link")
}

/// IPv6 has one loopback address, so tests that bind it lock a file, in all processes of the machine.
pub(crate) fn lock_address(addr: &str) -> Option<std::fs::File> {
    if addr != "::1" {
        return None;
    }
    // SAFETY: takes nothing and touches nothing.
    let uid = unsafe { libc::geteuid() };
    let path = std::env::temp_dir().join(format!("ferroce-test-{uid}-loopback6.lock"));
    let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(path).unwrap();
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::flock(std::os::fd::AsRawFd::as_raw_fd(&file), libc::LOCK_EX) }, 0);
    Some(file)
}

pub(crate) fn config(addrs: &[&str]) -> UdpConfig {
    let bind = addrs.iter().map(|a| a.parse().unwrap()).collect();
    UdpConfig { bind: Some(bind), ..UdpConfig::default() }
}

pub(crate) fn gid(addr: &str) -> Gid {
    Gid::from_ip(addr.parse::<IpAddr>().unwrap())
}

pub(crate) fn route(from: &str, to: &str, entropy: u16) -> Route {
    Route { sgid: gid(from), dgid: gid(to), entropy, ..Route::default() }
}

/// A packet of `len` bytes for a queue pair of `slot`, marked with a number.
pub(crate) fn packet(slot: u8, number: u32, len: usize) -> Vec<u8> {
    assert!(len >= 16 && len.is_multiple_of(4));
    let mut bytes: Vec<u8> = (0..len).map(|i| (i as u32 * 31 + number * 7) as u8).collect();
    bytes[..12].copy_from_slice(&[0x64, 0x40, 0xff, 0xff, 0, slot, 0x12, 0x34, 0, 0, 0, 0]);
    bytes[12..16].copy_from_slice(&number.to_be_bytes());
    bytes
}

pub(crate) fn number_of(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[12..16].try_into().unwrap())
}

pub(crate) fn add(batch: &mut TxBatch, route: &Route, bytes: &[u8]) {
    batch.reserve(route, bytes.len()).copy_from_slice(bytes);
}

/// Replaces the contents of `rx` with all that has arrived, and returns the number of packets.
pub(crate) fn receive_all(link: &dyn Link, rx: &mut RxBatch) -> usize {
    link.receive(rx, Effort::Thorough);
    while rx.has_more() {
        link.receive(rx, Effort::Thorough);
    }
    rx.len()
}

/// When `receive` must be called although no descriptor is readable.
pub(crate) fn deadline(link: &dyn Link) -> Option<Time> {
    let sleep = link.prepare_sleep();
    link.end_sleep();
    match sleep {
        Sleep::Pending => Some(now()),
        Sleep::Allowed { deadline } => deadline,
    }
}

/// Receives until `count` packets are there.
pub(crate) fn receive(link: &dyn Link, count: usize) -> Vec<Vec<u8>> {
    receive_each(link, count, |p| p.bytes.to_vec())
}

/// Receives until `count` packets are there and keeps what `pick` takes of each.
pub(crate) fn receive_each<T>(
    link: &dyn Link,
    count: usize,
    pick: impl Fn(&ferroce_nic::link::RxPacket<'_>) -> T,
) -> Vec<T> {
    let mut rx = RxBatch::new();
    let mut got = Vec::new();
    let start = Instant::now();
    while got.len() < count {
        assert!(start.elapsed() < MAX_WAIT, "{} of {count} packets; {:?}", got.len(), link.counters());
        receive_all(link, &mut rx);
        got.extend(rx.packets().map(|p| pick(&p)));
    }
    got
}

/// Receives until `done` says so.
pub(crate) fn receive_until(link: &dyn Link, mut done: impl FnMut(&dyn Link) -> bool) -> Vec<Vec<u8>> {
    let mut rx = RxBatch::new();
    let mut got = Vec::new();
    let start = Instant::now();
    while !done(link) {
        assert!(start.elapsed() < MAX_WAIT, "waited in vain; {:?}", link.counters());
        receive_all(link, &mut rx);
        got.extend(rx.packets().map(|p| p.bytes.to_vec()));
    }
    got
}

/// Packets that are there now, without waiting for more. Over loopback whatever was sent has arrived.
pub(crate) fn drain(link: &dyn Link) -> Vec<Vec<u8>> {
    let mut rx = RxBatch::new();
    let mut got = Vec::new();
    // Datagrams that are all dropped give an empty batch, so one empty look proves nothing: look until the queue, which
    // holds at most a few thousand, must be empty.
    let mut empty = 0;
    while empty < 64 {
        if receive_all(link, &mut rx) == 0 {
            empty += 1;
        } else {
            empty = 0;
        }
        got.extend(rx.packets().map(|p| p.bytes.to_vec()));
    }
    got
}

/// Whether a program that a test needs can be run. Where it must be there (`FERROCE_REQUIRE_TOOLS=1`) its absence fails.
pub(crate) fn tool_is_there(name: &str) -> bool {
    let found = std::process::Command::new(name).arg("--version").output().is_ok();
    if !found {
        let why = format!("{name} is not installed");
        assert!(std::env::var_os("FERROCE_REQUIRE_TOOLS").is_none_or(|v| v != "1"), "{why}");
        println!("SKIPPED: {why}");
    }
    found
}
