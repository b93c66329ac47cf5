//! Completion queues that note when completions are made.

mod objects_support;

use ferroce_nic::{Cq, Moderation, Nic, Stamp};
use ferroce_proto::verbs::{Completion, RecvWr, SendOp, Transport};
use objects_support::{connect, create, open, post};

fn poll_stamped(cq: &Cq, count: usize) -> (Vec<Completion>, Vec<Stamp>) {
    let (mut all, mut stamps) = (Vec::new(), Vec::new());
    let give_up = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while all.len() < count {
        let (mut some, mut when) = ([Completion::default(); 2], [Stamp::default(); 2]);
        let n = cq.poll_stamped(&mut some, &mut when).unwrap();
        all.extend_from_slice(&some[..n]);
        stamps.extend_from_slice(&when[..n]);
        assert!(std::time::Instant::now() < give_up, "{} of {count} completions", all.len());
    }
    (all, stamps)
}

fn wall_ns() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// Sends `count` empty messages from one queue pair to another; the receiving end completes on `cq`.
fn exchange(nic: &Nic, cq: &Cq, count: u64) -> ferroce_nic::Qp {
    let pd = nic.alloc_pd().unwrap();
    let other = nic.create_cq(64, None, 0).unwrap();
    let (a, b) = (create(&pd, &other, Transport::Rc), create(&pd, cq, Transport::Rc));
    connect(nic, &a, b.qpn());
    connect(nic, &b, a.qpn());
    for id in 0..count {
        b.post_recv(&[RecvWr { wr_id: id, sges: &[] }]).unwrap();
        post(&a, id, SendOp::Send, &[]);
    }
    objects_support::completions(&other, count as usize);
    b
}

#[test]
fn stamps_come_with_their_completions() {
    let nic = open("127.91.4.1");
    let cq = nic.create_cq(64, None, 0).unwrap();
    cq.stamp_completions();
    let before = (nic.raw_clock_ns(), wall_ns());
    let qp = exchange(&nic, &cq, 7);
    let after = (nic.raw_clock_ns(), wall_ns());
    let (done, stamps) = poll_stamped(&cq, 7);
    assert_eq!(done.iter().map(|c| c.wr_id).collect::<Vec<_>>(), (0..7).collect::<Vec<_>>());
    for stamp in &stamps {
        assert!((before.0..=after.0).contains(&stamp.raw_ns), "{stamp:?} {before:?} {after:?}");
        assert!((before.1..=after.1).contains(&stamp.wall_ns), "{stamp:?} {before:?} {after:?}");
    }
    assert!(stamps.is_sorted_by_key(|stamp| stamp.raw_ns));
    drop(qp);
}

#[test]
fn a_poll_for_some_completions_takes_their_stamps_alone() {
    let nic = open("127.91.4.4");
    let cq = nic.create_cq(64, None, 0).unwrap();
    cq.stamp_completions();
    let _first = exchange(&nic, &cq, 3);
    let between = nic.raw_clock_ns();
    let second = exchange(&nic, &cq, 2);
    let mut some = [Completion::default(); 8];
    let n = cq.poll_selected(&mut some, |completion| completion.qpn == second.qpn()).unwrap();
    assert_eq!(some[..n].iter().map(|c| c.wr_id).collect::<Vec<_>>(), [0, 1]);
    let (done, stamps) = poll_stamped(&cq, 3);
    assert_eq!(done.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(stamps.iter().all(|stamp| stamp.raw_ns <= between), "{stamps:?} {between}");
}

#[test]
fn a_plain_poll_and_a_destroyed_queue_pair_take_their_stamps_along() {
    let nic = open("127.91.4.2");
    let cq = nic.create_cq(64, None, 0).unwrap();
    let early = exchange(&nic, &cq, 2);
    cq.stamp_completions();
    let first = exchange(&nic, &cq, 3);
    let second = exchange(&nic, &cq, 2);
    let third = exchange(&nic, &cq, 2);
    let mut one = [Completion::default()];
    assert_eq!(cq.poll(&mut one).unwrap(), 1);
    drop((early, second));
    let between = nic.raw_clock_ns();
    let last = exchange(&nic, &cq, 1);
    let (done, stamps) = poll_stamped(&cq, 6);
    assert_eq!(done.iter().filter(|c| c.qpn == third.qpn()).count(), 2);
    assert!(
        done.iter().zip(&stamps).all(|(c, s)| (s.raw_ns >= between) == (c.qpn == last.qpn())),
        "{stamps:?}"
    );
    drop((first, third, last));
}

#[test]
fn unasked_there_are_none_and_moderation_is_a_wish() {
    let nic = open("127.91.4.3");
    let cq = nic.create_cq(64, None, 0).unwrap();
    let qp = exchange(&nic, &cq, 2);
    let (_, stamps) = poll_stamped(&cq, 2);
    assert_eq!(stamps, [Stamp::default(); 2]);
    let wish = Moderation { count: 16, period_us: 100 };
    cq.moderate(wish);
    assert_eq!(cq.moderation(), wish);
    drop(qp);
}
