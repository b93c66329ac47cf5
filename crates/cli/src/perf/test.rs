//! The tests, and what each measures.

use serde::{Deserialize, Serialize};

/// One test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Test {
    /// SEND ping-pong.
    SendLat,
    /// WRITE ping-pong; the receiver polls its memory.
    WriteLat,
    /// READ, one at a time.
    ReadLat,
    /// Fetch and add, one at a time.
    AtomicLat,
    /// Many SENDs in flight.
    SendBw,
    /// Many WRITEs in flight.
    WriteBw,
    /// Many READs in flight.
    ReadBw,
    /// Many fetch-and-adds in flight.
    AtomicBw,
    /// TCP ping-pong.
    TcpLat,
    /// Small TCP request, reply of the message size: what a READ replaces.
    TcpRr,
    /// TCP stream.
    TcpBw,
    /// UDP ping-pong, both sides spinning.
    UdpLat,
    /// UDP stream, in packets like those of a WRITE.
    UdpBw,
    /// Very many queue pairs; its result is neither a latency nor a bandwidth.
    Qps,
}

/// What moves the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    /// Two-sided message.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// Fetch and add.
    Atomic,
    /// A TCP socket.
    Tcp,
    /// A UDP socket.
    Udp,
}

impl Test {
    /// All tests with a latency or a bandwidth, in the order in which they are listed.
    pub(crate) const ALL: [Test; 13] = [
        Test::TcpLat,
        Test::TcpBw,
        Test::TcpRr,
        Test::UdpLat,
        Test::UdpBw,
        Test::SendLat,
        Test::SendBw,
        Test::WriteLat,
        Test::WriteBw,
        Test::ReadLat,
        Test::ReadBw,
        Test::AtomicLat,
        Test::AtomicBw,
    ];

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Test::SendLat => "send-lat",
            Test::WriteLat => "write-lat",
            Test::ReadLat => "read-lat",
            Test::AtomicLat => "atomic-lat",
            Test::SendBw => "send-bw",
            Test::WriteBw => "write-bw",
            Test::ReadBw => "read-bw",
            Test::AtomicBw => "atomic-bw",
            Test::TcpLat => "tcp-lat",
            Test::TcpRr => "tcp-rr",
            Test::TcpBw => "tcp-bw",
            Test::UdpLat => "udp-lat",
            Test::UdpBw => "udp-bw",
            Test::Qps => "qps",
        }
    }

    /// What moves the bytes.
    pub(crate) fn operation(self) -> Operation {
        match self {
            Test::SendLat | Test::SendBw | Test::Qps => Operation::Send,
            Test::WriteLat | Test::WriteBw => Operation::Write,
            Test::ReadLat | Test::ReadBw => Operation::Read,
            Test::AtomicLat | Test::AtomicBw => Operation::Atomic,
            Test::TcpLat | Test::TcpRr | Test::TcpBw => Operation::Tcp,
            Test::UdpLat | Test::UdpBw => Operation::Udp,
        }
    }

    /// Whether the result is a bandwidth rather than a latency.
    pub(crate) fn is_bandwidth(self) -> bool {
        matches!(
            self,
            Test::SendBw | Test::WriteBw | Test::ReadBw | Test::AtomicBw | Test::TcpBw | Test::UdpBw
        )
    }

    /// Whether it uses sockets only, as something to compare with.
    pub(crate) fn is_baseline(self) -> bool {
        matches!(self.operation(), Operation::Tcp | Operation::Udp)
    }

    /// Whether both sides poll. TCP sides block, as usual for sockets, and the scheduler places them.
    pub(crate) fn polls(self) -> bool {
        self.operation() != Operation::Tcp
    }

    /// The divisor of a timed round trip: 2 for a ping-pong, whose figure is the time of one message; 1 for a READ,
    /// an atomic and a request, which end with the reply.
    pub(crate) fn messages_per_round_trip(self) -> f64 {
        match self {
            Test::SendLat | Test::WriteLat | Test::TcpLat | Test::UdpLat => 2.0,
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_wire_are_those_of_the_command_line() {
        for test in Test::ALL.into_iter().chain([Test::Qps]) {
            assert_eq!(serde_json::to_value(test).expect("a name"), test.name());
        }
    }
}
