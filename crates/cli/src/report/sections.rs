//! The prose of the report: how it was measured, and on what.

use crate::page::escape;
use crate::perf::suite::Results;
use crate::sizes::format_size;
use std::fmt::Write;

/// How it was measured.
pub(super) fn method(page: &mut String, results: &Results) {
    page.push_str("<h2>How it was measured</h2>\n<ul>\n");
    for sentence in METHOD {
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

const METHOD: [&str; 11] = [
    "Client and server are two processes on this machine. RDMA travels as RoCEv2 packets over UDP on the loopback \
     interface, with the invariant CRC of every packet computed and checked.",
    "At each size the tests take turns in several short rounds, after a warm-up that is not counted; so figures that \
     are compared were measured within seconds of each other. Latency samples of all rounds are put together; of the \
     bandwidths the middle round is shown.",
    "TCP latency: ping-pong with blocking reads and writes and TCP_NODELAY, as sockets are normally used; half of the \
     round trip.",
    "TCP request/reply: a request of 16 bytes answered by a message of the size, the whole round trip. It is what a \
     program does without RDMA where it would READ with it.",
    "TCP bandwidth: one write per message, read into a buffer of the same size, until the receiver confirms that all \
     arrived. Small writes may share a segment (no TCP_NODELAY).",
    "UDP: ping-pong on connected sockets, both sides spinning on a nonblocking receive; half of the round trip. It is the \
     least that a message costs through this kernel.",
    "RC send and write latency: ping-pong, both sides polling; half of the round trip. The receiver of a write watches \
     its memory. RC read and atomic latency: one operation at a time, the whole round trip.",
    "RC bandwidth: one queue pair, up to 128 messages or 16 MiB posted, small ones in lists of 16, from the first post to \
     the last completion, which means that the peer acknowledged the data. Every message leaves from one buffer and \
     arrives at one buffer, as with TCP. Afterwards the receiver compares the bytes of the last message.",
    "Loss: RC write bandwidth between two processes that each lose one packet of a hundred on purpose, in turns with the \
     same test without loss.",
    "Queue pairs: very many are made and connected by two processes, and each carries a message in either direction. The \
     memory of one is the growth of a process's resident memory divided by their number.",
    "p99 is given from 100 samples on, p99.9 from 1000. GB is 10^9 bytes; KiB and MiB are powers of two.",
];

/// On what it was measured.
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
