//! The parameters of one test, and their valid combinations.

use super::test::{Operation, Test};
use crate::name_of;
use crate::sizes::format_size;
use crate::wire::WireChoice;
use clap::ValueEnum;
use ferroce_nic::MAX_INLINE;
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

/// One test at one size. The client chooses them, and the server checks them before it allocates anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Params {
    /// The test.
    pub(crate) test: Test,
    /// The wire of both devices. Sockets have the default.
    pub(crate) wire: WireChoice,
    /// Kind of queue pair.
    pub(crate) transport: Transport,
    /// Bytes per message.
    pub(crate) size: u64,
    /// Queue pairs, of each thread.
    pub(crate) queue_pairs: u32,
    /// Threads of each side, each with its own connection, completion queues and queue pairs.
    pub(crate) threads: u32,
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
    /// Path MTU in bytes; `None`: the largest that the interface allows.
    pub(crate) mtu: Option<u32>,
    /// Messages of a bandwidth test between two with a completion; `None`: a quarter of the depth.
    pub(crate) cq_moderation: Option<u32>,
    /// Make the calls of perftest's programs, in their order.
    pub(crate) like_perftest: bool,
    /// The buffers of both sides are in the memory of a GPU.
    pub(crate) gpu: bool,
}

/// Atomics work on eight bytes.
pub(crate) const ATOMIC_SIZE: u64 = 8;
/// Largest message; the protocol would allow twice that.
pub(crate) const MAX_SIZE: u64 = 1 << 30;
/// Depth of the queues of very many queue pairs.
pub(crate) const QPS_DEPTH: u32 = 16;
/// Largest datagram over IPv4, without its headers.
pub(crate) const MAX_UDP_SIZE: u64 = 65_507;
/// The UDP stream sends packets with this much of a message.
pub(crate) const UDP_STREAM_UNIT: u64 = 4096;
const MAX_QUEUE_PAIRS: u32 = 16_384;
const MAX_THREADS: u32 = 64;
const MAX_DEPTH: u32 = 8192;
/// Maximum number of completions in the queue of one side.
const MAX_COMPLETIONS: u64 = 1 << 22;
/// Maximum number of bytes that a bandwidth test posts without an explicit depth. The congestion window of a queue
/// pair is much smaller, and posted messages must still be sent when the time is up.
const POSTED_BYTES: u64 = 16 << 20;
/// All buffers of one side together.
const MAX_MEMORY: u64 = 4 << 30;
const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

impl Params {
    /// The defaults of perftest: 2 bytes for latency, 64 KiB for bandwidth.
    pub(crate) fn defaults(test: Test) -> Params {
        let size = match (test.operation(), test.is_bandwidth()) {
            (Operation::Atomic, _) => ATOMIC_SIZE,
            _ if test == Test::Qps => 64,
            (_, false) => 2,
            (_, true) => 65_536,
        };
        Params::of_size(test, size)
    }

    /// The defaults for messages of this size.
    pub(crate) fn of_size(test: Test, size: u64) -> Params {
        let queues_many = test.is_bandwidth() && !test.is_baseline();
        Params {
            test,
            wire: WireChoice::default(),
            transport: Transport::Rc,
            size,
            queue_pairs: if test == Test::Qps { 10_000 } else { 1 },
            threads: 1,
            tx_depth: match test {
                Test::Qps => QPS_DEPTH,
                _ if queues_many => (POSTED_BYTES / size.max(1)).clamp(4, 128) as u32,
                _ => 1,
            },
            inline: if test.is_bandwidth() || test == Test::Qps { 0 } else { 220 },
            events: false,
            bidirectional: false,
            post_list: 1,
            mtu: None,
            cq_moderation: None,
            like_perftest: false,
            gpu: false,
        }
    }

    /// Returns a sentence if the parameters are invalid. Everything that a peer could send is bounded here.
    pub(crate) fn check(&self) -> Result<(), String> {
        within("the size (-s)", self.size, 1, MAX_SIZE)?;
        // Options that do not apply to the test come first: a range for them would be misleading.
        match self.test {
            test if test.is_baseline() => return self.check_baseline(),
            test if !test.is_bandwidth() && test != Test::Qps => self.check_latency()?,
            _ => {}
        }
        within("the number of queue pairs (-q)", self.queue_pairs.into(), 1, MAX_QUEUE_PAIRS.into())?;
        within("the number of threads (-T)", self.threads.into(), 1, MAX_THREADS.into())?;
        within("the depth (-t)", self.tx_depth.into(), 1, MAX_DEPTH.into())?;
        within("the inline size (-I)", self.inline.into(), 0, MAX_INLINE.into())?;
        within("the post list (-l)", self.post_list.into(), 1, self.tx_depth.into())?;
        let moderation = self.cq_moderation.unwrap_or(1);
        within("the messages per completion (-Q)", moderation.into(), 1, self.tx_depth.into())?;
        if let Some(mtu) = self.mtu.filter(|mtu| !MTUS.contains(mtu)) {
            return Err(format!("{mtu} is not a path MTU (-m); use 256, 512, 1024, 2048 or 4096"));
        }
        let queue_pairs = u64::from(self.queue_pairs) * u64::from(self.threads);
        if self.size * queue_pairs * 2 > MAX_MEMORY {
            return Err(format!(
                "{} queue pairs with messages of {} need more than {} of buffers",
                queue_pairs,
                format_size(self.size),
                format_size(MAX_MEMORY)
            ));
        }
        if u64::from(self.queue_pairs) * u64::from(self.tx_depth) * 5 > MAX_COMPLETIONS {
            return Err(format!(
                "{} queue pairs of depth {} need more completions than a queue holds; lower -q or -t",
                self.queue_pairs, self.tx_depth
            ));
        }
        self.check_rdma()
    }

    fn check_baseline(&self) -> Result<(), String> {
        let name = self.test.name();
        let plain = Params::of_size(self.test, self.size);
        if *self != plain {
            return Err(format!(
                "{name} uses a plain socket: of the RDMA options only size, -n and -D apply"
            ));
        }
        if self.test == Test::UdpLat && self.size > MAX_UDP_SIZE {
            return Err(format!("a UDP datagram holds at most {MAX_UDP_SIZE} bytes, not {}", self.size));
        }
        if self.test == Test::UdpBw && !self.size.is_multiple_of(UDP_STREAM_UNIT) {
            return Err(format!(
                "{name} sends whole packets: multiples of {UDP_STREAM_UNIT} bytes, not {}",
                self.size
            ));
        }
        Ok(())
    }

    fn check_rdma(&self) -> Result<(), String> {
        let name = self.test.name();
        let transport = name_of(self.transport);
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
                return Err(format!("UD queue pairs have no WRITE; run {name} with -c rc or -c uc"));
            }
            (Operation::Atomic, _) if self.size != ATOMIC_SIZE => {
                return Err(format!("an atomic works on 8 bytes, so {name} has no other size than 8"));
            }
            _ => {}
        }
        if self.wire == WireChoice::Iwarp {
            self.check_iwarp()?;
        }
        let mtu = self.mtu.unwrap_or(MTUS[MTUS.len() - 1]);
        if self.transport == Transport::Ud && self.size > u64::from(mtu) {
            return Err(format!("a datagram message is one packet: at most {mtu} bytes, not {}", self.size));
        }
        if self.events && self.test == Test::WriteLat {
            return Err("write-lat cannot use events (-e): a WRITE makes no completion at its target".into());
        }
        if self.gpu && !matches!(self.test, Test::SendBw | Test::WriteBw | Test::ReadBw) {
            return Err(format!("--gpu is for send-bw, write-bw and read-bw, not for {name}"));
        }
        if self.gpu && self.inline > 0 {
            return Err(
                "a message that is copied at posting (-I) is in host memory, not in that of --gpu".into()
            );
        }
        if self.like_perftest {
            self.check_like_perftest()?;
        }
        if self.test == Test::Qps { self.check_qps() } else { Ok(()) }
    }

    fn check_iwarp(&self) -> Result<(), String> {
        if self.transport != Transport::Rc {
            let transport = name_of(self.transport);
            return Err(format!("iWARP has reliable connections only: use -c rc, not {transport}"));
        }
        if self.mtu.is_some() {
            return Err("iWARP has no path MTU (-m): TCP chooses the length of its segments".into());
        }
        Ok(())
    }

    fn check_qps(&self) -> Result<(), String> {
        let plain = Params { queue_pairs: self.queue_pairs, wire: self.wire, ..Params::defaults(Test::Qps) };
        if *self == plain { Ok(()) } else { Err("the test of many queue pairs only has their number".into()) }
    }

    fn check_like_perftest(&self) -> Result<(), String> {
        let plain = Params {
            like_perftest: true,
            wire: self.wire,
            tx_depth: self.tx_depth,
            inline: self.inline,
            mtu: self.mtu,
            cq_moderation: self.cq_moderation,
            ..Params::of_size(self.test, self.size)
        };
        if !matches!(self.test, Test::SendLat | Test::WriteBw | Test::ReadBw) || *self != plain {
            return Err(
                "--like-perftest is for send-lat, write-bw and read-bw over one reliable connection, \
                        without -e, -b and -l"
                    .into(),
            );
        }
        Ok(())
    }

    fn check_latency(&self) -> Result<(), String> {
        let name = self.test.name();
        for (wrong, option) in [
            (self.queue_pairs != 1, "several queue pairs (-q)"),
            (self.threads != 1, "several threads (-T)"),
            // A list makes the depth greater.
            (self.post_list != 1, "a post list (-l)"),
            (self.tx_depth != 1, "a depth (-t)"),
            (self.cq_moderation.is_some(), "a number of messages per completion (-Q)"),
            (self.bidirectional, "both directions (-b)"),
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
        for &test in Test::value_variants() {
            assert_eq!(Params::defaults(test).check(), Ok(()), "{}", test.name());
        }
    }

    #[test]
    fn large_messages_queue_fewer() {
        let depth = |size| Params::of_size(Test::WriteBw, size).tx_depth;
        assert_eq!([2, 64 << 10, 1 << 20, 8 << 20].map(depth), [128, 128, 16, 4]);
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
            Params { cq_moderation: Some(0), ..base.clone() },
            Params { cq_moderation: Some(129), ..base.clone() },
            Params { size: MAX_SIZE, queue_pairs: 16, ..base.clone() },
            Params { tx_depth: MAX_DEPTH, queue_pairs: 1000, ..base.clone() },
            Params { size: 65, ..Params::defaults(Test::Qps) },
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
        assert!(refused(Params { size: 5000, ..Params::defaults(Test::UdpBw) }).contains("4096"));
        assert!(refused(Params { size: 65_508, ..Params::defaults(Test::UdpLat) }).contains("65507"));
        assert!(refused(Params { events: true, ..Params::defaults(Test::TcpLat) }).contains("plain socket"));
        assert!(refused(Params { gpu: true, ..Params::defaults(Test::TcpBw) }).contains("plain socket"));
        assert!(refused(Params { gpu: true, ..base.clone() }).contains("--gpu is for send-bw"));
        let inline = Params { gpu: true, inline: 8, ..Params::defaults(Test::WriteBw) };
        assert!(refused(inline).contains("(-I)"));
        let iwarp = Params { wire: WireChoice::Iwarp, ..base.clone() };
        assert_eq!(iwarp.check(), Ok(()));
        assert!(refused(Params { transport: Transport::Ud, ..iwarp.clone() }).contains("-c rc, not ud"));
        assert!(refused(Params { mtu: Some(1024), ..iwarp }).contains("(-m)"));
        for messages in [1, 4] {
            let refusal = refused(Params { cq_moderation: Some(messages), ..base.clone() });
            assert!(refusal.contains("(-Q) belongs to the -bw tests"), "{refusal}");
        }
        let refusal = refused(Params { post_list: 4, tx_depth: 4, ..base });
        assert!(refusal.contains("(-l) belongs to the -bw tests"), "{refusal}");
    }

    #[test]
    fn only_some_tests_can_be_like_those_of_perftest() {
        let like = |test| Params { like_perftest: true, ..Params::defaults(test) };
        for test in [Test::SendLat, Test::WriteBw, Test::ReadBw] {
            assert_eq!(like(test).check(), Ok(()), "{}", test.name());
        }
        for params in [
            like(Test::SendBw),
            like(Test::WriteLat),
            Params { events: true, ..like(Test::SendLat) },
            Params { transport: Transport::Uc, ..like(Test::WriteBw) },
            Params { post_list: 2, ..like(Test::ReadBw) },
        ] {
            assert!(refused(params).contains("--like-perftest"));
        }
    }
}
