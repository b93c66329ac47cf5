//! The tests, and what each measures.

use crate::name_of;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// One test. The order is that of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Test {
    /// TCP ping-pong, both sides blocking.
    TcpLat,
    /// TCP stream.
    TcpBw,
    /// Small TCP request, reply of the message size: what a READ replaces.
    TcpRr,
    /// TCP ping-pong, both sides spinning.
    TcpSpinLat,
    /// UDP ping-pong, both sides spinning.
    UdpLat,
    /// UDP stream, in packets like those of a WRITE.
    UdpBw,
    /// SEND ping-pong.
    SendLat,
    /// Many SENDs in flight.
    SendBw,
    /// WRITE ping-pong; the receiver polls its memory.
    WriteLat,
    /// Many WRITEs in flight.
    WriteBw,
    /// READ, one at a time.
    ReadLat,
    /// Many READs in flight.
    ReadBw,
    /// Fetch and add, one at a time.
    AtomicLat,
    /// Many fetch-and-adds in flight.
    AtomicBw,
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
    /// All tests with a latency or a bandwidth.
    pub(crate) fn all() -> impl Iterator<Item = Test> {
        Test::value_variants().iter().copied().filter(|test| *test != Test::Qps)
    }

    /// The name on the command line.
    pub(crate) fn name(self) -> String {
        name_of(self)
    }

    /// What moves the bytes.
    pub(crate) fn operation(self) -> Operation {
        match self {
            Test::SendLat | Test::SendBw | Test::Qps => Operation::Send,
            Test::WriteLat | Test::WriteBw => Operation::Write,
            Test::ReadLat | Test::ReadBw => Operation::Read,
            Test::AtomicLat | Test::AtomicBw => Operation::Atomic,
            Test::TcpLat | Test::TcpSpinLat | Test::TcpRr | Test::TcpBw => Operation::Tcp,
            Test::UdpLat | Test::UdpBw => Operation::Udp,
        }
    }

    /// Whether the result is a bandwidth rather than a latency.
    pub(crate) fn is_bandwidth(self) -> bool {
        use Test::{AtomicBw, ReadBw, SendBw, TcpBw, UdpBw, WriteBw};
        matches!(self, SendBw | WriteBw | ReadBw | AtomicBw | TcpBw | UdpBw)
    }

    /// Whether it uses sockets only, as something to compare with.
    pub(crate) fn is_baseline(self) -> bool {
        matches!(self.operation(), Operation::Tcp | Operation::Udp)
    }

    /// Whether both sides poll. Other TCP sides block, as usual for sockets, and the scheduler places them.
    pub(crate) fn polls(self) -> bool {
        self.operation() != Operation::Tcp || self == Test::TcpSpinLat
    }

    /// The divisor of a timed round trip: 2 for a ping-pong, whose figure is the time of one message; 1 for a READ,
    /// an atomic and a request, which end with the reply.
    pub(crate) fn messages_per_round_trip(self) -> f64 {
        match self {
            Test::SendLat | Test::WriteLat | Test::TcpLat | Test::TcpSpinLat | Test::UdpLat => 2.0,
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_wire_are_those_of_the_command_line() {
        for &test in Test::value_variants() {
            assert_eq!(serde_json::to_value(test).expect("a name"), test.name());
        }
    }
}
