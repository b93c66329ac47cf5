//! A process that dies takes the job with it, and everybody says why.

#[allow(dead_code)]
mod support;

use ferroce_dsm::{Departure, Job, TransportKind};
use support::{Plan, work};

fn survivors_name_the_dead(test: &str, transport: TransportKind, wait: fn(&Job)) {
    work(|job| {
        job.barrier().unwrap();
        if job.rank() == 1 {
            std::process::abort();
        }
        wait(job);
    });
    let ended = Plan { test, size: 3, transport, variables: &[] }.run_with(|_| ());
    assert_eq!(ended.departure, Departure::Down { rank: 1, why: "its connection closed".into() });
    for rank in [0, 2] {
        let sentence = format!("process {rank} stops: process 1 of the job is down: its connection closed");
        assert!(ended.errors[rank].contains(&sentence), "process {rank}: {}", ended.errors[rank]);
        assert_eq!(ended.statuses[rank].code(), Some(70));
    }
}

#[test]
fn in_a_local_barrier() {
    survivors_name_the_dead("in_a_local_barrier", TransportKind::Local, |job| job.barrier().unwrap());
}

#[test]
fn in_a_local_receive() {
    survivors_name_the_dead("in_a_local_receive", TransportKind::Local, |job| {
        job.recv(None, None, &mut [0; 8]).unwrap();
    });
}
