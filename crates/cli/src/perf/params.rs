//! The parameters of one test, and which of them go together.

use super::test::{Operation, Test};
use crate::sizes::format_size;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Kind of queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub(crate) enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl Transport {
    /// As it is written.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Transport::Rc => "rc",
            Transport::Uc => "uc",
            Transport::Ud => "ud",
        }
    }
}

/// One test at one size; the client decides, and the server checks it before it allocates anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Params {
    /// Which test.
    pub(crate) test: Test,
    /// Kind of queue pair.
    pub(crate) transport: Transport,
    /// Bytes per message.
    pub(crate) size: u64,
    /// Queue pairs.
    pub(crate) queue_pairs: u32,
    /// Messages in flight per queue pair.
    pub(crate) tx_depth: u32,
    /// Messages up to this size are copied at posting.
    pub(crate) inline: u32,
    /// Sleep on completion events instead of polling.
    pub(crate) events: bool,
    /// Both sides send.
    pub(crate) bidirectional: bool,
    /// Work requests per posting call.
    pub(crate) post_list: u32,
    /// Path MTU in bytes; the best that the interface allows when absent.
    pub(crate) mtu: Option<u32>,
}

/// Atomics work on eight bytes.
pub(crate) const ATOMIC_SIZE: u64 = 8;
/// Largest message; the protocol would allow twice that.
pub(crate) const MAX_SIZE: u64 = 1 << 30;
/// Largest datagram over IPv4, without its headers.
pub(crate) const MAX_UDP_SIZE: u64 = 65_507;
const MAX_QUEUE_PAIRS: u32 = 16_384;
const MAX_DEPTH: u32 = 8192;
const MAX_INLINE: u32 = 4096;
/// All buffers of one side together.
const MAX_MEMORY: u64 = 4 << 30;
const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

impl Params {
    /// What perftest uses when nothing is said: 2 bytes for latency, 64 KiB for bandwidth.
    pub(crate) fn defaults(test: Test) -> Params {
        let size = match (test.operation(), test.is_bandwidth()) {
            (Operation::Atomic, _) => ATOMIC_SIZE,
            (_, false) => 2,
            (_, true) => 65_536,
        };
        Params {
            test,
            transport: Transport::Rc,
            size,
            queue_pairs: 1,
            tx_depth: if test.is_bandwidth() { 128 } else { 1 },
            inline: if test.is_bandwidth() { 0 } else { 220 },
            events: false,
            bidirectional: false,
            post_list: 1,
            mtu: None,
        }
    }

    /// Says in one sentence what is wrong, if anything is. Everything that a peer could send is bounded here.
    pub(crate) fn check(&self) -> Result<(), String> {
        within("the size (-s)", self.size, 1, MAX_SIZE)?;
        within("the number of queue pairs (-q)", self.queue_pairs.into(), 1, MAX_QUEUE_PAIRS.into())?;
        within("the depth (-t)", self.tx_depth.into(), 1, MAX_DEPTH.into())?;
        within("the inline size (-I)", self.inline.into(), 0, MAX_INLINE.into())?;
        within("the post list (-l)", self.post_list.into(), 1, self.tx_depth.into())?;
        if let Some(mtu) = self.mtu.filter(|mtu| !MTUS.contains(mtu)) {
            return Err(format!("{mtu} is no path MTU (-m); there are 256, 512, 1024, 2048 and 4096"));
        }
        if self.size * u64::from(self.queue_pairs) * 2 > MAX_MEMORY {
            return Err(format!(
                "{} queue pairs with messages of {} need more than {} of buffers",
                self.queue_pairs,
                format_size(self.size),
                format_size(MAX_MEMORY)
            ));
        }
        if self.test.is_baseline() { self.check_baseline() } else { self.check_rdma() }
    }

    fn check_baseline(&self) -> Result<(), String> {
        let name = self.test.name();
        let plain = Params { size: self.size, ..Params::defaults(self.test) };
        if *self != plain {
            return Err(format!(
                "{name} uses a plain socket: of the RDMA options only size, -n and -D apply"
            ));
        }
        if self.test == Test::UdpLat && self.size > MAX_UDP_SIZE {
            return Err(format!("a UDP datagram holds at most {MAX_UDP_SIZE} bytes, not {}", self.size));
        }
        Ok(())
    }

    fn check_rdma(&self) -> Result<(), String> {
        let name = self.test.name();
        let transport = self.transport.name();
        match (self.test.operation(), self.transport) {
            (Operation::Read, Transport::Uc | Transport::Ud) => {
                return Err(format!(
                    "READ needs a reliable connection: {name} runs with -c rc, not {transport}"
                ));
            }
            (Operation::Atomic, Transport::Uc | Transport::Ud) => {
                return Err(format!(
                    "atomics need a reliable connection: {name} runs with -c rc, not {transport}"
                ));
            }
            (Operation::Write, Transport::Ud) => {
                return Err(format!("datagrams know no WRITE: {name} runs with -c rc or uc, not ud"));
            }
            (Operation::Atomic, _) if self.size != ATOMIC_SIZE => {
                return Err(format!("an atomic works on 8 bytes, so {name} has no other size than 8"));
            }
            _ => {}
        }
        let mtu = self.mtu.unwrap_or(MTUS[MTUS.len() - 1]);
        if self.transport == Transport::Ud && self.size > u64::from(mtu) {
            return Err(format!("a datagram message is one packet: at most {mtu} bytes, not {}", self.size));
        }
        if self.events && self.test == Test::WriteLat {
            return Err("write-lat cannot use events (-e): a WRITE makes no completion at its target".into());
        }
        if !self.test.is_bandwidth() {
            self.check_latency()?;
        }
        Ok(())
    }

    fn check_latency(&self) -> Result<(), String> {
        let name = self.test.name();
        for (wrong, option) in [
            (self.queue_pairs != 1, "several queue pairs (-q)"),
            (self.tx_depth != 1, "a depth (-t)"),
            (self.post_list != 1, "a post list (-l)"),
            (self.bidirectional, "both directions at once (-b)"),
        ] {
            if wrong {
                return Err(format!("{name} has one message in flight: {option} belongs to the -bw tests"));
            }
        }
        Ok(())
    }
}

fn within(what: &str, value: u64, least: u64, most: u64) -> Result<(), String> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(format!("{what} must be from {least} to {most}, not {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(params: Params) -> String {
        params.check().expect_err("must be refused")
    }

    #[test]
    fn defaults_are_allowed() {
        for test in Test::ALL {
            assert_eq!(Params::defaults(test).check(), Ok(()), "{}", test.name());
        }
    }

    #[test]
    fn transports_and_operations() {
        use Transport::{Rc, Uc, Ud};
        for (test, allowed) in [
            (Test::SendLat, &[Rc, Uc, Ud][..]),
            (Test::SendBw, &[Rc, Uc, Ud]),
            (Test::WriteLat, &[Rc, Uc]),
            (Test::WriteBw, &[Rc, Uc]),
            (Test::ReadLat, &[Rc]),
            (Test::ReadBw, &[Rc]),
            (Test::AtomicLat, &[Rc]),
            (Test::AtomicBw, &[Rc]),
            (Test::TcpBw, &[Rc]),
        ] {
            for transport in [Rc, Uc, Ud] {
                let mut params = Params { transport, ..Params::defaults(test) };
                params.size =
                    params.size.min(2048).max(if test.operation() == Operation::Atomic { 8 } else { 1 });
                assert_eq!(
                    params.check().is_ok(),
                    allowed.contains(&transport),
                    "{} {transport:?}",
                    test.name()
                );
            }
        }
    }

    #[test]
    fn numbers_from_a_peer_are_bounded() {
        let base = Params::defaults(Test::WriteBw);
        for params in [
            Params { size: 0, ..base.clone() },
            Params { size: u64::MAX, ..base.clone() },
            Params { queue_pairs: 0, ..base.clone() },
            Params { queue_pairs: u32::MAX, ..base.clone() },
            Params { tx_depth: 0, ..base.clone() },
            Params { tx_depth: u32::MAX, ..base.clone() },
            Params { inline: u32::MAX, ..base.clone() },
            Params { post_list: 0, ..base.clone() },
            Params { post_list: 129, ..base.clone() },
            Params { mtu: Some(1500), ..base.clone() },
            Params { size: MAX_SIZE, queue_pairs: 16, ..base.clone() },
        ] {
            refused(params);
        }
    }

    #[test]
    fn refusals_name_the_option() {
        let base = Params::defaults(Test::SendLat);
        assert!(refused(Params { queue_pairs: 2, ..base.clone() }).contains("-q"));
        assert!(refused(Params { bidirectional: true, ..base.clone() }).contains("-b"));
        assert!(refused(Params { events: true, ..Params::defaults(Test::WriteLat) }).contains("-e"));
        assert!(refused(Params { size: 16, ..Params::defaults(Test::AtomicLat) }).contains("8 bytes"));
        assert!(refused(Params { size: 4097, transport: Transport::Ud, ..base.clone() }).contains("4096"));
        assert!(refused(Params { size: 65_508, ..Params::defaults(Test::UdpLat) }).contains("65507"));
        assert!(refused(Params { events: true, ..Params::defaults(Test::TcpLat) }).contains("plain socket"));
    }
}
