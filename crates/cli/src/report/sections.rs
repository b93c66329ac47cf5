//! The prose of the report: how it was measured, and on what.

use crate::page::escape;
use crate::perf::suite::Results;
use crate::sizes::format_size;
use crate::wire::WireChoice;
use std::fmt::Write;

/// Writes how it was measured.
pub(super) fn method(page: &mut String, results: &Results) {
    page.push_str("<h2>How it was measured</h2>\n<ul>\n");
    let over = if results.wire == WireChoice::Iwarp { OVER_IWARP } else { OVER_ROCE };
    for sentence in METHOD.into_iter().chain(over).chain(results.omitted.iter().map(String::as_str)) {
        let _ = writeln!(page, "<li>{}</li>", escape(sentence));
    }
    if let Some(faults) = &results.faults {
        let _ = writeln!(
            page,
            "<li>Faults were injected into the RDMA packets of both sides: {}.</li>",
            escape(faults)
        );
    }
    page.push_str("</ul>\n");
}

const METHOD: [&str; 9] = [
    "Client and server are two processes on this machine, which exchange packets over the loopback interface.",
    "At each size the tests take turns in several short rounds, after a warm-up that is not counted; so figures that \
     are compared were measured within seconds of each other. Latency samples of all rounds are put together; of the \
     bandwidths the middle round is shown.",
    "TCP latency: ping-pong with blocking reads and writes and TCP_NODELAY, as sockets are normally used; half of the \
     round trip.",
    "TCP request/reply: a request of 16 bytes answered by a message of the size, the whole round trip. It is what a \
     program does without RDMA where it would READ with it.",
    "TCP bandwidth: one write per message, read into a buffer of the same size, until the receiver confirms that all \
     arrived. Small writes may share a segment (no TCP_NODELAY).",
    "RC send and write latency: ping-pong, both sides polling; half of the round trip. The receiver of a write watches \
     its memory. RC read and atomic latency: one operation at a time, the whole round trip.",
    "RC bandwidth: one queue pair, up to 128 messages or 16 MiB posted, small ones in lists of 16, from the first post until \
     the peer has all the data. Every message leaves from one buffer and arrives at one buffer, as with TCP. Afterwards the \
     receiver compares the bytes of the last message.",
    "Queue pairs: very many are made and connected by two processes, and each carries a message in either direction. The \
     memory of one is the growth of a process's resident memory divided by their number.",
    "p99 is given from 100 samples on, p99.9 from 1000. GB is 10^9 bytes; KiB and MiB are powers of two.",
];

/// Further sentences for RoCE.
const OVER_ROCE: [&str; 3] = [
    "RDMA travels as RoCEv2 packets over UDP, with the invariant CRC of every packet computed and checked. The last completion \
     of a bandwidth means that the peer acknowledged the data.",
    "UDP: ping-pong on connected sockets, both sides spinning on a nonblocking receive; half of the round trip. It is the \
     least that a message costs through this kernel.",
    "Loss: RC write bandwidth between two processes that each lose one packet of a hundred on purpose, in turns with the \
     same test without loss.",
];

/// Further sentences for iWARP.
const OVER_IWARP: [&str; 3] = [
    "RDMA travels as iWARP over TCP streams, one per queue pair. A completion means that TCP has taken the data, so a bandwidth \
     ends with a READ behind the last message. The sides of RC send grant each other receives, as perftest does.",
    "TCP, spinning: ping-pong with TCP_NODELAY, both sides spinning on nonblocking reads and writes; half of the round trip. It \
     is the least that a message costs through this kernel's TCP.",
    "The CRC of FPDUs is off unless FERROCE_MPA_CRC=1.",
];

/// Writes on which machine it was measured.
pub(super) fn machine(page: &mut String, results: &Results) {
    let machine = &results.machine;
    let virtual_note = if machine.virtualised { " (virtual machine)" } else { "" };
    let build = if machine.optimised { "optimised" } else { "not optimised" };
    page.push_str("<h2>Machine</h2>\n<dl>\n");
    for (name, value) in [
        ("Processor", format!("{}{virtual_note}", machine.cpu)),
        ("Cores", machine.cores.to_string()),
        ("Memory", format!("{:.1} GiB", machine.memory_bytes as f64 / f64::from(1 << 30))),
        ("Kernel", machine.kernel.clone()),
        ("Largest socket buffer", format!("{} (net.core.rmem_max)", format_size(machine.rmem_max_bytes))),
        ("ferroce", format!("{}, {build} build", machine.ferroce)),
        ("Date", results.date.clone()),
    ] {
        let _ = writeln!(page, "<dt>{name}</dt><dd>{}</dd>", escape(&value));
    }
    page.push_str("</dl>\n");
}
