//! Jobs that differ from others only in a size, a depth or an address, and a short list with one program of each kind.
//!
//! `cargo xtask test` leaves the variations out, and runs the short list alone over UDP; `--full` runs everything on both links.

use super::pool::Job;

/// Parts of the names of variations.
const VARIATIONS: [&str; 26] = [
    "riostream -T v -S",
    "riostream -S",
    "rstream -S",
    "udpong",
    " -D ",
    "_bw -a",
    "_lat -a",
    "-m 512",
    "-m 1024",
    "-m 2048",
    " -l 16",
    " -q 8 ",
    " -b -c",
    " -e -c",
    "_lat -e",
    " -I 64",
    " --ipv6",
    "_lat -n 300",
    " -x {v6}",
    " --use-srq ",
    "_lat -c",
    "_lat -A",
    "ucx ud_verbs",
    "uct ",
    "-n 4,",
    "random buffers",
];

/// Jobs whose names contain such a part, but which test something different.
#[rustfmt::skip]
const KEPT: [&str; 18] = [
    "riostream -S 5000 -C 50 -T b -T v -p {port} -s 127.0.0.1",
    "rstream -S 5000 -C 100 -I 10 -T a -T v -p {port} -s 127.0.0.1",
    "rstream -S 5000 -C 100 -T f -T b -p {port} -s 127.0.0.1",
    "rstream -S 100000 -C 100 -T b -T v -p {port} -s fd18::1",
    "udpong -p {port} -s 127.0.0.1 -S 500 -C 500",
    "ib_send_bw -D 3 -f 1",
    "ib_write_bw -a",
    "ib_send_bw -l 16",
    "ib_send_lat -e",
    "ib_send_bw -e -c UD",
    "ib_write_lat -I 64 -s 64",
    "ib_send_bw --ipv6 -n 300 -R -F -p {port} 198.18.0.1",
    "ib_send_lat -n 300 -R -F -p {port} 198.18.0.1",
    "ib_send_bw -x {v6}",
    "ib_send_lat -c UD",
    "ucx ud_verbs tag_bw",
    "ucx ud_verbs ucp_am_lat",
    "uct rc_verbs put_bw",
];

/// One of each kind: transports, operations, connections, streams, middleware.
#[rustfmt::skip]
const SHORT: [&str; 23] = [
    "test_qp",
    "test_atomic",
    "transfer",
    "qemu-img dd over iSER",
    "ucx rc_verbs tag_bw",
    "mpirun -n 2, rc_verbs",
    "fi_pingpong verbs msg",
    "rping -c -v -C 10 -p {port} -a 127.0.0.1",
    "udaddy -s 127.0.0.1",
    "mckey -m 239.1.1.1 -b 198.18.0.1 -s",
    "rstream -S 5000 -C 100 -I 10 -T v -p {port} -s 127.0.0.1",
    "ibv_rc_pingpong -g {v4}",
    "ibv_rc_pingpong -g {v6}",
    "ibv_uc_pingpong -g {v4}",
    "ibv_ud_pingpong -g {v4} -s 1024",
    "ibv_srq_pingpong -g {v4}",
    "ibv_xsrq_pingpong -g {v4}",
    "ib_send_bw",
    "ib_write_bw",
    "ib_read_bw",
    "ib_atomic_bw",
    "ib_send_lat -e",
    "ib_write_bw -q 8",
];

pub(super) fn is_variation(job: &Job) -> bool {
    let has_variation = || VARIATIONS.iter().any(|part| job.name.contains(part));
    !matches!(job.kind, "pyverbs" | "trial") && !KEPT.contains(&job.name.as_str()) && has_variation()
}

pub(super) fn is_short(job: &Job) -> bool {
    SHORT.contains(&job.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::super::jobs;
    use super::*;

    #[test]
    fn every_entry_names_a_job() {
        let jobs = jobs(&[]);
        let is_job = |name: &&str| jobs.iter().any(|job| job.name == *name);
        assert_eq!(KEPT.iter().chain(&SHORT).find(|name| !is_job(name)), None);
        let is_left_out = |part: &&str| jobs.iter().any(|job| job.name.contains(*part) && is_variation(job));
        assert_eq!(VARIATIONS.iter().find(|part| !is_left_out(part)), None, "leaves nothing out");
        let is_needed = |name: &&str| VARIATIONS.iter().any(|part| name.contains(part));
        assert_eq!(KEPT.iter().find(|name| !is_needed(name)), None, "no variation names it");
    }

    #[test]
    fn every_kind_of_job_and_every_program_is_left() {
        let jobs = jobs(&[]);
        let words =
            |job: &Job| [job.kind.to_owned(), job.name.split(' ').next().unwrap_or_default().to_owned()];
        let left: Vec<String> = jobs.iter().filter(|job| !is_variation(job)).flat_map(words).collect();
        assert_eq!(jobs.iter().flat_map(words).find(|word| !left.contains(word)), None);
    }
}
