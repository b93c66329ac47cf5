//! The meaning of each counter, in one line. Unknown counters of a newer NIC are shown without one.

use ferroce_nic::RefusalReason;

/// Reasons to drop a packet.
const DROPS: [(&str, &str); 21] = [
    ("malformed", "not a valid RoCE packet"),
    ("bad_icrc", "checksum (ICRC) wrong: damaged on the way"),
    ("no_such_qp", "no queue pair with this number"),
    ("wrong_state", "the queue pair was not ready to receive"),
    ("wrong_transport", "for another transport than the queue pair's"),
    ("wrong_address", "not from the peer's address, or not to ours"),
    ("wrong_port", "from a UDP port that the peer's process on this host does not own: forged"),
    ("bad_pkey", "partition key mismatch"),
    ("bad_qkey", "queue key mismatch (UD)"),
    ("bad_psn", "PSN outside the expected range, or a response without a request"),
    ("broken_message", "part of a UC message is missing"),
    ("no_receive", "no receive was posted (UC, UD)"),
    ("unfit", "larger than its receive (UC, UD) or its request"),
    ("unexpected_opcode", "an opcode that is not valid at this point of a message"),
    ("stale_duplicate", "a duplicate READ or atomic that is no longer in the replay list"),
    ("access_denied", "memory protection refused it (UC)"),
    ("rx_overruns", "the kernel's receive buffer was full"),
    ("send_errors", "refused by the kernel when sending"),
    ("forward_errors", "for a process that is gone or does not keep up"),
    ("local_lost", "for a process of this host that is gone or does not read"),
    ("injected_losses", "lost on purpose (fault injection)"),
];

/// A reason to drop a packet.
pub(crate) fn of_drop(reason: &str) -> &'static str {
    DROPS.iter().find(|(known, _)| *known == reason).map_or("", |(_, meaning)| meaning)
}

/// The name of a known reason to drop a packet.
pub(crate) fn known_drop(reason: &str) -> Option<&'static str> {
    DROPS.iter().map(|(known, _)| *known).find(|known| *known == reason)
}

/// The name of a known reason to refuse a request.
pub(crate) fn known_refusal(reason: &str) -> Option<&'static str> {
    RefusalReason::ALL.into_iter().map(RefusalReason::name).find(|known| *known == reason)
}

/// A reason to refuse a request.
pub(crate) fn of_refusal(reason: &str) -> &'static str {
    RefusalReason::ALL.into_iter().find(|known| known.name() == reason).map_or("", RefusalReason::text)
}

/// A counter of the connection manager.
pub(crate) fn of_cm(name: &str) -> &'static str {
    match name {
        "received" => "messages received and understood",
        "sent" => "messages sent, retransmissions included",
        "repeated" => "of those, retransmissions after a timeout or a duplicate",
        "malformed" => "malformed datagrams to QP1",
        "foreign" => "management datagrams of another class",
        "strays" => "about unknown or closed connections",
        "duplicates" => "duplicate messages",
        "wrong_address" => "not from the address of the connection's peer",
        "unexpected" => "not valid in the connection's state",
        "no_listener" => "requests to ports without a listener",
        "backlog_full" => "REQs dropped: the backlog of the listener is full",
        "overload" => {
            "REQs dropped: the limit on half-open or total connections, or on stored proofs, is reached"
        }
        "stale" => "REQs with a queue pair that is in an older connection",
        "rejected" => "rejects received",
        "refused" => "rejects sent",
        "timed_out" => "connections and SIDR requests that timed out",
        "established" => "connections established",
        "peer_died" => "connections that ended because the peer's process on this host died",
        "paced" => "messages that were queued because enough were in flight",
        "unproven" => "dropped or refused: no proof of the key, or a wrong one",
        "replayed" => "REQs refused: their proof is too old or was used before",
        "connections_now" => "connections, including those in TIMEWAIT",
        "half_open_now" => "half-open connections of peers",
        "refused_now" => "refused iWARP requests whose sockets still close",
        "pending_requests_now" => "REQs that the application has neither accepted nor rejected",
        _ => of_cm_family(name),
    }
}

/// Counters by kind of message or by reason.
fn of_cm_family(name: &str) -> &'static str {
    let families = [
        ("received_", "messages of this kind received"),
        ("sent_", "messages of this kind sent"),
        ("repeated_", "messages of this kind retransmitted"),
        ("rejected_", "rejects received for this reason"),
        ("refused_", "rejects sent for this reason"),
    ];
    families.iter().find(|(prefix, _)| name.starts_with(prefix)).map_or("", |(_, meaning)| meaning)
}

/// A counter of the link.
pub(crate) fn of_link(name: &str) -> &'static str {
    match name {
        "tx_packets" => "packets sent",
        "tx_bytes" => "bytes sent, BTH to ICRC",
        "tx_calls" => "system calls that sent",
        "gso_batches" => "runs sent as one by segmentation offload",
        "too_long" => "packets longer than the path MTU",
        "rx_packets" => "packets received intact",
        "rx_bytes" => "bytes received, BTH to ICRC",
        "rx_calls" => "system calls that received",
        "misdelivered" => "packets that arrived for another process",
        "forwarded_out" => "of those, forwarded",
        "forwarded_in" => "packets that another process forwarded to this one",
        "repairs" => "repairs of the order of processes on the port",
        "injected_duplicates" => "packets doubled on purpose",
        "injected_corruptions" => "packets, or reads of streams, damaged on purpose",
        "injected_shorts" => "reads and writes of streams cut short on purpose",
        "injected_stalls" => "reads and writes of streams that had to be repeated on purpose",
        "injected_resets" => "streams reset on purpose",
        "injected_reorders" => "packets delayed on purpose",
        "injected_marks" => "packets marked on purpose (ECN)",
        "capture_errors" => "packets missing in the capture file",
        "local_tx_packets" => "packets given to processes of this host through shared memory",
        "local_tx_bytes" => "their bytes, BTH to padding",
        "local_rx_packets" => "packets taken from processes of this host",
        "local_rx_bytes" => "their bytes, BTH to padding",
        "local_waited" => "of those sent, found a ring full and waited",
        "local_echoes" => "came by UDP as well (multicast) and were dropped",
        "local_bells" => "sleeping processes of this host woken",
        "direct_mapped" => "one-sided operations in a local peer's memory, mapped here",
        "direct_copied" => "those that the kernel copied between the processes",
        "messages_fetched" => "messages copied from the mapped memory of another process of this host",
        "direct_gpu" => {
            "operations and messages that a GPU copied between processes of this host, one copy each"
        }
        "staged_gpu" => "copies between the memory of a GPU and packets",
        "rendezvous_sends" => "messages that a process of this host copied from this one's memory",
        "rcvbuf_bytes" => "largest receive buffer, in bytes",
        _ => "",
    }
}

/// Counters of the link that count dropped packets; they are shown with the drops.
pub(crate) fn is_drop(link_counter: &str) -> bool {
    !of_drop(link_counter).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_of_the_connection_manager_is_explained() {
        for (name, _) in ferroce_nic::CmCounters::default().named() {
            assert!(!of_cm(name).is_empty(), "{name}");
        }
        assert_eq!(of_cm("brand_new"), "");
    }
}
