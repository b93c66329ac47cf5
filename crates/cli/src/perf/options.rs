//! The command line of `ferroce perf`.

use super::measure::{Budget, Limit};
use super::params::{MAX_UDP_SIZE, Params, Transport, UDP_STREAM_UNIT};
use super::test::{Operation, Test};
use crate::failure::Failure;
use crate::faults::FaultArgs;
use crate::sizes::parse_size;
use crate::wire::{WireArg, WireChoice};
use clap::{Args as ClapArgs, Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// Options of `ferroce perf`.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) suite: SuiteArgs,
}

/// Other modes than the suite.
#[derive(Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Test(TestCommand),
    /// Connect very many queue pairs: time, memory of each, one message on all. Both sides on this machine.
    Qps(QpsArgs),
    /// Compare WRITE bandwidth with lost packets (1 % by default) and without. Both sides on this machine.
    Loss(LossArgs),
}

const TEST_EXAMPLES: &str = "\
Examples, with write-bw for any test:
  ferroce perf write-bw                     the server, on one machine …
  ferroce perf write-bw 192.0.2.7 -s 64K    … and its client on another
  ferroce perf write-bw 192.0.2.7 -a --json all sizes, for programs";

const QPS_EXAMPLES: &str = "\
Examples:
  ferroce perf qps                          ten thousand queue pairs
  ferroce perf qps --count 1000 --json      fewer, for programs
  ferroce perf qps --wire iwarp -c 5000     the same with TCP connections";

const LOSS_EXAMPLES: &str = "\
Examples:
  ferroce perf loss                         one packet of a hundred lost
  ferroce perf loss --loss 0.1% -s 64K      fewer, and shorter messages";

/// Options of `qps`.
#[derive(ClapArgs)]
#[command(after_help = QPS_EXAMPLES)]
pub(crate) struct QpsArgs {
    /// Queue pairs of each side.
    #[arg(short, long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub(crate) count: u32,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) wire: WireArg,
}

/// Options of `loss`.
#[derive(ClapArgs)]
#[command(after_help = LOSS_EXAMPLES)]
pub(crate) struct LossArgs {
    /// Message size in bytes, or with K, M, G.
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size, default_value = "1M")]
    pub(crate) size: u64,
    /// Seconds to measure each of the two.
    #[arg(short = 'D', long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) duration: u64,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) wire: WireArg,
    /// Faults; 1 % loss if none is given.
    #[command(flatten)]
    pub(crate) faults: FaultArgs,
}

const EXAMPLES: &str = "\
Examples:
  ferroce perf                              everything on this machine, about a minute
  ferroce perf --quick --json > now.json    a rough run for a script
  ferroce perf --loss 1% --seed 7           the same with one packet of a hundred lost
  ferroce perf --wire iwarp                 the same over iWARP, compared with TCP

  ferroce perf send-lat                     server of one test, on one machine …
  ferroce perf send-lat 192.0.2.7 -s 64     … and its client on another
  ferroce perf write-bw 192.0.2.7 -a -q 4   all sizes, four queue pairs
  ferroce perf send-bw 192.0.2.7 -T 4       four threads on each side
  ferroce perf read-bw 192.0.2.7 -s 1M -D 10 -t 64
  ferroce perf tcp-bw 192.0.2.7 -s 1M       the same network with a socket, to compare
  ferroce perf write-bw 192.0.2.7 --wire iwarp

  ferroce perf qps --count 10000            what a queue pair costs
  ferroce perf loss --loss 1%               how much bandwidth is left when packets are lost";

/// Options of the suite.
#[derive(ClapArgs)]
pub(crate) struct SuiteArgs {
    /// Measure each cell only briefly: about ten seconds, rough figures.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Where to write the report.
    #[arg(long, value_name = "FILE", default_value = "ferroce-perf.html")]
    pub(crate) report: PathBuf,
    /// Write no report.
    #[arg(long, conflicts_with = "report")]
    pub(crate) no_report: bool,
    /// Print the results as JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) wire: WireArg,
    #[command(flatten)]
    pub(crate) faults: FaultArgs,
}

/// The subcommands of single tests, named as [`Test`] names them.
macro_rules! test_commands {
    ($($(#[$doc:meta])* $test:ident)+) => {
        /// One test between two machines.
        #[derive(Subcommand)]
        pub(crate) enum TestCommand { $($(#[$doc])* $test(TestArgs)),+ }

        impl TestCommand {
            /// The test and its options.
            pub(crate) fn split(self) -> (Test, TestArgs) {
                match self { $(TestCommand::$test(args) => (Test::$test, args)),+ }
            }
        }
    };
}

test_commands! {
    /// SEND ping-pong: half a round trip.
    SendLat
    /// WRITE ping-pong, the target polls its memory: half a round trip.
    WriteLat
    /// READ: a whole round trip.
    ReadLat
    /// Fetch and add: a whole round trip.
    AtomicLat
    /// SEND bandwidth and message rate.
    SendBw
    /// WRITE bandwidth and message rate.
    WriteBw
    /// READ bandwidth and message rate.
    ReadBw
    /// Fetch-and-add rate.
    AtomicBw
    /// TCP ping-pong, both sides blocking, to compare with send-lat.
    TcpLat
    /// TCP ping-pong, both sides spinning, to compare with send-lat over iWARP.
    TcpSpinLat
    /// TCP request and reply, to compare with read-lat.
    TcpRr
    /// TCP stream, to compare with the bandwidths.
    TcpBw
    /// UDP ping-pong, both sides spinning, to compare with send-lat.
    UdpLat
    /// UDP stream in packets like those of a WRITE: the limit of this machine's sockets.
    UdpBw
}

/// Options of one test. All are optional, so that a server can tell explicit values from defaults.
#[derive(ClapArgs, Default)]
#[command(after_help = TEST_EXAMPLES)]
pub(crate) struct TestArgs {
    /// The server's name or address. Without it, run as the server.
    pub(crate) host: Option<String>,
    /// Message size in bytes, or with K, M, G [default: 2 for latency, 64K for bandwidth].
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size)]
    pub(crate) size: Option<u64>,
    /// Every power of two from 2 bytes to 8 MiB.
    #[arg(short, long, conflicts_with = "size")]
    pub(crate) all: bool,
    /// Messages to measure, over all queue pairs [default: 1000 for latency, 5000 for bandwidth].
    #[arg(short = 'n', long = "iters", value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) iterations: Option<u64>,
    /// Measure for this many seconds instead.
    #[arg(short = 'D', long, value_name = "SECONDS", conflicts_with = "iterations", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) duration: Option<u64>,
    /// Queue pairs.
    #[arg(short, long = "qp", value_name = "COUNT")]
    pub(crate) qps: Option<u32>,
    /// Threads of each side, each with completion queues and queue pairs (-q) of its own. The result is the sum; without -n or -D, two
    /// seconds are measured.
    #[arg(short = 'T', long, value_name = "COUNT")]
    pub(crate) threads: Option<u32>,
    /// Messages in flight per queue pair [default: 128, fewer from 128 KiB on].
    #[arg(short, long, value_name = "COUNT")]
    pub(crate) tx_depth: Option<u32>,
    /// Copy messages up to this size at posting [default: 220 for latency, 0 for bandwidth].
    #[arg(short = 'I', long = "inline_size", alias = "inline", value_name = "BYTES")]
    pub(crate) inline: Option<u32>,
    /// Sleep on completion events instead of polling.
    #[arg(short, long)]
    pub(crate) events: bool,
    /// Both sides send. -n is for the client, the server sends until the client is done; messages of both count.
    #[arg(short, long)]
    pub(crate) bidirectional: bool,
    /// Work requests per posting call.
    #[arg(short = 'l', long = "post_list", alias = "post-list", value_name = "COUNT")]
    pub(crate) post_list: Option<u32>,
    /// Kind of queue pair: rc, uc or ud [default: rc].
    #[arg(
        short = 'c',
        long = "connection",
        value_name = "TYPE",
        ignore_case = true,
        hide_possible_values = true
    )]
    pub(crate) transport: Option<Transport>,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the largest that fits].
    #[arg(short, long, value_name = "BYTES")]
    pub(crate) mtu: Option<u32>,
    /// Messages between two that make a completion, for bandwidth [default: a quarter of the depth].
    #[arg(short = 'Q', long = "cq-mod", value_name = "COUNT")]
    pub(crate) cq_moderation: Option<u32>,
    /// Make the same calls as perftest's ib_send_lat, ib_write_bw and ib_read_bw, in the same order, for comparison.
    ///
    /// send-lat waits for the completion of each SEND before it polls for the answer, polls for one completion at a
    /// time and reposts each receive immediately. write-bw and read-bw make a completion every 100 messages (every
    /// message above 8 KiB; -Q changes it), poll for 16 at a time, and move small messages through a page; the server
    /// sleeps. There is no warm-up.
    #[arg(long, conflicts_with = "duration")]
    pub(crate) like_perftest: bool,
    /// Buffers of both sides in the memory of the first GPU, for the bandwidths. The bare copy to it is measured too, to compare.
    #[arg(long)]
    pub(crate) gpu: bool,
    /// Index of the local GID to send from (see `ferroce gids`) [default: the one of the route to the peer].
    #[arg(short = 'x', long = "gid-index", value_name = "INDEX")]
    pub(crate) gid_index: Option<u8>,
    /// TCP port on which the two sides agree on the test.
    #[arg(short, long, default_value_t = DEFAULT_PORT)]
    pub(crate) port: u16,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// A server without it takes the client's wire.
    #[command(flatten)]
    pub(crate) wire: WireArg,
    #[command(flatten)]
    pub(crate) faults: FaultArgs,
}

/// The port that perftest uses too.
pub(crate) const DEFAULT_PORT: u16 = 18515;

impl TestArgs {
    /// The parameters for the given or the default size, checked.
    pub(crate) fn params(&self, test: Test) -> Result<Params, Failure> {
        let size = self.size.unwrap_or(Params::defaults(test).size);
        let most = match self.transport {
            // A datagram test without a size uses one that fits.
            Some(Transport::Ud) if self.size.is_none() => u64::from(self.mtu.unwrap_or(4096)),
            _ => u64::MAX,
        };
        self.params_of_size(test, size.min(most))
    }

    /// The parameters for one size, checked.
    pub(crate) fn params_of_size(&self, test: Test, size: u64) -> Result<Params, Failure> {
        if let Some(option) = self.rdma_option().filter(|_| test.is_baseline()) {
            return Err(Failure::usage(format!(
                "{} uses a plain socket, which has no {option}",
                test.name()
            ))
            .advise("Of these options only -s, -a, -n, -D, -p and --json apply to it"));
        }
        let base = Params::of_size(test, size);
        let post_list = self.post_list.unwrap_or(base.post_list);
        let params = Params {
            test,
            // The variable does not concern sockets.
            wire: if test.is_baseline() { WireChoice::default() } else { self.wire.choice()? },
            transport: self.transport.unwrap_or(base.transport),
            size,
            queue_pairs: self.qps.unwrap_or(base.queue_pairs),
            threads: self.threads.unwrap_or(base.threads),
            tx_depth: self.tx_depth.unwrap_or_else(|| base.tx_depth.max(post_list.min(128))),
            inline: self.inline.unwrap_or(base.inline),
            events: self.events,
            bidirectional: self.bidirectional,
            post_list,
            mtu: self.mtu,
            cq_moderation: self.cq_moderation,
            like_perftest: self.like_perftest,
            gpu: self.gpu,
        };
        params.check().map_err(Failure::usage)?;
        if self.all && test.operation() == Operation::Atomic {
            return Err(Failure::usage(format!("an atomic works on 8 bytes: {} has no -a", test.name())));
        }
        Ok(params)
    }

    /// The first option that only applies to RDMA.
    fn rdma_option(&self) -> Option<&'static str> {
        let given = [
            ("-q", self.qps.is_some()),
            ("-T", self.threads.is_some()),
            ("-t", self.tx_depth.is_some()),
            ("-I", self.inline.is_some()),
            ("-e", self.events),
            ("-b", self.bidirectional),
            ("-l", self.post_list.is_some()),
            ("-c", self.transport.is_some()),
            ("-m", self.mtu.is_some()),
            ("-Q", self.cq_moderation.is_some()),
            ("--like-perftest", self.like_perftest),
            ("--gpu", self.gpu),
            ("-x", self.gid_index.is_some()),
            ("--wire", self.wire != WireArg::default()),
            ("faults of RDMA packets", self.faults != FaultArgs::default()),
        ];
        given.into_iter().find_map(|(option, given)| given.then_some(option))
    }

    /// The sizes to run if the path carries datagrams of up to `path_mtu` bytes.
    pub(crate) fn sizes(&self, params: &Params, path_mtu: u64) -> Vec<u64> {
        let most = match (params.test, params.transport) {
            (Test::UdpLat, _) => MAX_UDP_SIZE,
            (_, Transport::Ud) => path_mtu.min(params.mtu.unwrap_or(4096).into()),
            _ => u64::MAX,
        };
        if !self.all {
            // A requested size is never changed silently.
            return vec![if self.size.is_some() { params.size } else { params.size.min(most) }];
        }
        let least = if params.test == Test::UdpBw { UDP_STREAM_UNIT } else { 1 };
        (1..=23).map(|power| 1 << power).filter(|size| (least..=most).contains(size)).collect()
    }

    /// How long to measure.
    pub(crate) fn budget(&self, test: Test) -> Budget {
        let limit = match (self.duration, self.iterations) {
            (Some(seconds), _) => Limit::Time(Duration::from_secs(seconds)),
            (None, Some(count)) => Limit::Messages(count.div_ceil(self.threads.unwrap_or(1).max(1).into())),
            // So that the threads measure at the same time.
            (None, None) if self.threads.is_some_and(|threads| threads > 1) => {
                Limit::Time(Duration::from_secs(2))
            }
            (None, None) => Limit::Messages(if test.is_bandwidth() { 5000 } else { 1000 }),
        };
        let warm_up = if self.like_perftest { Duration::ZERO } else { Duration::from_millis(20) };
        Budget { warm_up, limit }
    }

    /// Checks a client's parameters against the explicit options of this server.
    pub(crate) fn agrees_with(&self, test: Test, requested: &Params) -> Result<(), String> {
        if requested.test != test {
            return Err(format!(
                "the server was started for {}, the client requests {}; start it with `ferroce perf {}`",
                test.name(),
                requested.test.name(),
                requested.test.name()
            ));
        }
        fn differs<T: PartialEq>(given: Option<T>, requested: T) -> bool {
            given.is_some_and(|given| given != requested)
        }
        let wire = self.wire.given().map_err(|failure| failure.what().to_owned())?;
        for (option, differs) in [
            ("--wire", !test.is_baseline() && differs(wire, requested.wire)),
            ("-s", differs(self.size, requested.size)),
            ("-q", differs(self.qps, requested.queue_pairs)),
            ("-T", differs(self.threads, requested.threads)),
            ("-t", differs(self.tx_depth, requested.tx_depth)),
            ("-I", differs(self.inline, requested.inline)),
            ("-e", self.events && !requested.events),
            ("-b", self.bidirectional && !requested.bidirectional),
            ("-l", differs(self.post_list, requested.post_list)),
            ("-c", differs(self.transport, requested.transport)),
            ("-m", self.mtu.is_some() && self.mtu != requested.mtu),
            ("-Q", self.cq_moderation.is_some() && self.cq_moderation != requested.cq_moderation),
            ("--like-perftest", self.like_perftest && !requested.like_perftest),
            ("--gpu", self.gpu && !requested.gpu),
        ] {
            if differs {
                return Err(format!(
                    "the server was started with another {option} than the client's; \
                     leave it out on the server, which takes the client's"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<(Test, TestArgs), clap::Error> {
        let args = Args::try_parse_from(line.split(' '))?;
        match args.command.expect("a command") {
            Command::Test(test) => Ok(test.split()),
            _ => panic!("a test"),
        }
    }

    fn params(line: &str) -> Result<Params, Failure> {
        let (test, args) = parse(line).expect("clap accepts it");
        args.params(test)
    }

    #[test]
    fn perftest_options_are_understood() {
        let line =
            "perf write-bw 192.0.2.7 -s 1M -n 100 -q 4 -t 64 -I 32 -e -b -l 8 -c UC -m 2048 -Q 9 -x 3 -p 7";
        let (test, args) = parse(line).expect("clap accepts it");
        assert_eq!((test, args.host.as_deref(), args.port), (Test::WriteBw, Some("192.0.2.7"), 7));
        assert_eq!((args.iterations, args.gid_index), (Some(100), Some(3)));
        let expected = Params {
            test: Test::WriteBw,
            wire: WireChoice::Roce,
            transport: Transport::Uc,
            size: 1 << 20,
            queue_pairs: 4,
            threads: 1,
            tx_depth: 64,
            inline: 32,
            events: true,
            bidirectional: true,
            post_list: 8,
            mtu: Some(2048),
            cq_moderation: Some(9),
            like_perftest: false,
            gpu: false,
        };
        assert_eq!(args.params(test), Ok(expected));
    }

    #[test]
    fn contradictions_are_refused() {
        for line in [
            "perf send-lat -s 8 -a",
            "perf send-lat -n 5 -D 5",
            "perf send-lat -n 0",
            "perf send-lat -D 1 --like-perftest",
            "perf send-lat -c xrc",
            "perf send-lat -s many",
            "perf --quick send-lat",
            "perf --no-report --report x.html",
            "perf qps --count 0",
            "perf loss -s many",
        ] {
            assert!(Args::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
        for line in ["perf atomic-lat -a", "perf read-bw -c uc", "perf write-lat -c ud", "perf send-lat -q 2"]
        {
            assert!(params(line).is_err(), "{line}");
        }
    }

    #[test]
    fn sockets_have_no_rdma_options() {
        let options = "-q 1,-t 1,-I 0,-e,-b,-l 1,-c rc,-m 1024,-Q 1,--like-perftest,-x 3,--wire iwarp,--loss 1%,--delay 1ms";
        for test in Test::all().filter(|test| test.is_baseline()) {
            for option in options.split(',') {
                let refusal = params(&format!("perf {} {option}", test.name())).expect_err(option);
                assert!(refusal.what().contains("plain socket"), "{option}: {}", refusal.what());
            }
            assert!(params(&format!("perf {} h -s 8K -n 5 -p 7 --json", test.name())).is_ok());
        }
    }

    #[test]
    fn datagram_sizes_fit_the_mtu() {
        assert_eq!(params("perf send-bw -c ud").map(|params| params.size), Ok(4096));
        assert_eq!(params("perf send-bw -c ud -m 1024").map(|params| params.size), Ok(1024));
        let (test, args) = parse("perf send-bw -a -c ud -m 1024").expect("clap accepts it");
        let sizes = args.sizes(&args.params(test).expect("allowed"), 4096);
        assert_eq!((sizes.first(), sizes.last(), sizes.len()), (Some(&2), Some(&1024), 10));
        let (test, args) = parse("perf send-bw -c ud").expect("clap accepts it");
        assert_eq!(args.sizes(&args.params(test).expect("allowed"), 1024), [1024]);
    }

    #[test]
    fn a_server_refuses_what_it_was_not_started_for() {
        let (test, server) = parse("perf send-bw -q 2").expect("clap accepts it");
        let requested = params("perf send-bw h -q 2 -s 64").expect("allowed");
        assert_eq!(server.agrees_with(test, &requested), Ok(()));
        let other = server.agrees_with(test, &params("perf send-bw h").expect("allowed"));
        assert!(other.expect_err("refused").contains("-q"));
        let other = server.agrees_with(test, &params("perf write-bw h").expect("allowed"));
        assert!(other.expect_err("refused").contains("ferroce perf write-bw"));
        let requested = params("perf send-bw h -q 2 --wire iwarp").expect("allowed");
        assert_eq!(server.agrees_with(test, &requested), Ok(()), "the server takes the client's wire");
        let (test, server) = parse("perf send-bw --wire roce").expect("clap accepts it");
        assert!(server.agrees_with(test, &requested).expect_err("refused").contains("--wire"));
    }
}
