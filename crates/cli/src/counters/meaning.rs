//! What each counter means, in words that fit a line. A name that a newer NIC added has none, and is shown all the same.

/// A reason to drop a packet.
pub(crate) fn of_drop(reason: &str) -> &'static str {
    match reason {
        "malformed" => "no RoCE packet",
        "bad_icrc" => "checksum (ICRC) wrong: damaged on the way",
        "no_such_qp" => "no queue pair with this number",
        "wrong_state" => "the queue pair was not ready to receive",
        "wrong_transport" => "for another transport than the queue pair's",
        "wrong_address" => "not from the peer's address, or not to ours",
        "bad_pkey" => "partition key mismatch",
        "bad_qkey" => "queue key mismatch (UD)",
        "bad_psn" => "sequence number outside the window",
        "broken_message" => "part of a UC message is missing",
        "no_receive" => "no receive was posted (UC, UD)",
        "unfit" => "larger than its receive or region (UC, UD)",
        "unexpected_opcode" => "an opcode that may not stand here",
        "stale_duplicate" => "a repeated READ or atomic no longer remembered",
        "access_denied" => "memory protection refused it (UC)",
        "rx_overruns" => "the kernel's receive buffer was full",
        "send_errors" => "refused by the kernel when sending",
        "forward_errors" => "for a process that is gone or does not keep up",
        "injected_losses" => "lost on purpose (fault injection)",
        _ => "",
    }
}

/// A reason to refuse a request.
pub(super) fn of_refusal(reason: &str) -> &'static str {
    match reason {
        "invalid_request" => "opcode, length or number of requests not allowed",
        "no_such_srq" => "no such shared receive queue in the XRC domain (XRC)",
        "receive_too_small" => "longer than the receive it met",
        "receive_memory" => "the receive names memory that is not usable",
        "no_such_key" => "a key that names nothing (any more)",
        "wrong_pd" => "memory of another protection domain",
        "out_of_range" => "outside the region or window",
        "denied" => "a right that is not granted",
        "wrong_qp" => "a memory window of another queue pair",
        "misaligned" => "an atomic that is not aligned to 8",
        "not_present" => "a page of on-demand memory that is not mapped",
        "window" => "a memory window in the wrong state for it",
        _ => "",
    }
}

/// A counter of the link.
pub(crate) fn of_link(name: &str) -> &'static str {
    match name {
        "tx_packets" => "packets sent",
        "tx_bytes" => "bytes sent, BTH to ICRC",
        "tx_calls" => "system calls that sent",
        "gso_batches" => "runs sent as one by segmentation offload",
        "too_long" => "packets longer than the path takes",
        "rx_packets" => "packets received intact",
        "rx_bytes" => "bytes received, BTH to ICRC",
        "rx_calls" => "system calls that looked for packets",
        "misdelivered" => "packets that arrived for another process",
        "forwarded_out" => "of those, handed on",
        "forwarded_in" => "packets that another process handed on to this one",
        "repairs" => "repairs of the order of processes on the port",
        "injected_duplicates" => "packets doubled on purpose",
        "injected_corruptions" => "packets damaged on purpose",
        "injected_reorders" => "packets delayed on purpose",
        "capture_errors" => "packets missing in the capture file",
        "rcvbuf_bytes" => "largest receive buffer, in bytes",
        _ => "",
    }
}

/// Counters of the link that are dropped packets, and are shown with those.
pub(crate) fn is_drop(link_counter: &str) -> bool {
    !of_drop(link_counter).is_empty()
}
