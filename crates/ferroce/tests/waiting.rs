//! Waiting: no wake-up is lost, for any combination of waiters and threads, and objects may be dropped in any order.

mod support;

use ferroce::{Cq, Error, Pending, RcQp, WcStatus, wr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::{MAX_WAIT, Pair, V4, join, next, pattern, success, until, watched};

/// Small pauses of changing length, so that sends fall into every moment of the peer's way to sleep.
struct Pauses(u64);

impl Pauses {
    fn pause(&mut self, longest_us: u64) {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let end = Instant::now() + Duration::from_nanos((self.0 >> 33) % (longest_us * 1000));
        while Instant::now() < end {
            std::hint::spin_loop();
        }
    }
}

/// A queue pair whose sends and receives complete on queues of their own, since they do not keep each other's order.
struct Player {
    qp: RcQp,
    sends: Cq,
    recvs: Cq,
}

impl Player {
    fn pair() -> [Player; 2] {
        let player = |_| {
            let device = support::device();
            let pd = device.alloc_pd().unwrap();
            let (sends, recvs) = (device.create_cq(16).unwrap(), device.create_cq(16).unwrap());
            let qp = pd.rc(&sends).recv_cq(&recvs).address(V4).create().unwrap();
            qp.post_recv(&[wr::recv(0, &[])]).unwrap();
            Player { qp, sends, recvs }
        };
        let players = [0, 1].map(player);
        join(&players[0].qp, &players[1].qp);
        players
    }

    fn throw(&self, wait: impl Fn(&Cq)) {
        self.qp.send_from(0, &[]).unwrap();
        wait(&self.sends);
    }

    fn catch(&self, wait: impl Fn(&Cq)) {
        wait(&self.recvs);
        self.qp.post_recv(&[wr::recv(0, &[])]).unwrap();
    }

    /// Plays on two threads, with pauses of up to `longest_us`, waiting as `wait` does.
    fn play(rounds: u32, longest_us: u64, wait: impl Fn(&Cq) + Copy + Send + 'static) {
        let [a, b] = Player::pair();
        let echo = std::thread::spawn(move || {
            let mut pauses = Pauses(7);
            for _ in 0..rounds {
                b.catch(wait);
                pauses.pause(longest_us);
                b.throw(wait);
            }
            b
        });
        let mut pauses = Pauses(1);
        for _ in 0..rounds {
            pauses.pause(longest_us);
            a.throw(wait);
            a.catch(wait);
        }
        echo.join().unwrap();
    }
}

#[test]
fn waits_that_sleep_are_woken_each_time() {
    watched(|| {
        Player::play(3000, 100, |cq| {
            success(cq);
        });
    });
}

/// Twice as many pairs as processors, all of whose threads spin: a waiting thread must yield to the one that it waits for.
#[test]
fn more_spinning_threads_than_processors_make_progress() {
    watched(|| {
        let processors = std::thread::available_parallelism().map_or(2, usize::from).min(8);
        let pairs = (0..2 * processors).map(|_| {
            std::thread::spawn(|| {
                Player::play(300, 1, |cq| {
                    while cq.try_next().unwrap().is_none() {
                        std::hint::spin_loop();
                    }
                });
            })
        });
        pairs.collect::<Vec<_>>().into_iter().for_each(|pair| pair.join().unwrap());
    });
}

/// The protocol by hand, without any polling that could hide a lost wake-up: arm, look, sleep on the descriptor.
fn sleep_for_one(cq: &Cq) {
    loop {
        cq.arm(false).unwrap();
        if let Some(completion) = cq.try_next().unwrap() {
            assert_eq!(completion.status, WcStatus::Success);
            return;
        }
        let mut fd = libc::pollfd { fd: cq.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, and the count is one.
        let ready = unsafe { libc::poll(&mut fd, 1, MAX_WAIT.as_millis() as i32) };
        assert_eq!(ready, 1, "watchdog: a wake-up was lost");
        cq.clear_events();
    }
}

#[test]
fn the_descriptor_becomes_readable_each_time() {
    watched(|| Player::play(3000, 30, sleep_for_one));
}

/// Sends a message to and fro with owned buffers.
fn play(qp: &RcQp, pd: &ferroce::Pd, begins: bool, rounds: u64, mut next: Pending) {
    let mut pauses = Pauses(rounds + u64::from(begins));
    for n in 0..rounds {
        let mut ball = pd.buffer(8).unwrap();
        ball.set(&n.to_ne_bytes()).unwrap();
        let serve = |ball| drop(qp.send(ball).unwrap().wait().unwrap());
        if begins {
            serve(ball);
            assert_eq!(*next.wait().unwrap().buffer, n.to_ne_bytes());
            next = qp.recv(pd.buffer(8).unwrap()).unwrap();
        } else {
            assert_eq!(*next.wait().unwrap().buffer, n.to_ne_bytes());
            next = qp.recv(pd.buffer(8).unwrap()).unwrap();
            pauses.pause(60);
            serve(ball);
        }
    }
}

#[test]
fn many_threads_wait_on_one_queue_for_different_things() {
    watched(|| {
        let device = support::device();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(4096).unwrap());
        let remote = pd.region(64).remote_write().register().unwrap();
        let mut threads = Vec::new();
        for _ in 0..4 {
            let (a, b) = (pd.rc(&cq).create().unwrap(), pd.rc(&cq).create().unwrap());
            join(&a, &b);
            for (qp, begins) in [(a, true), (b, false)] {
                let pd = pd.clone();
                let first = qp.recv(pd.buffer(8).unwrap()).unwrap();
                threads.push(std::thread::spawn(move || play(&qp, &pd, begins, 150, first)));
            }
        }
        // Plain completions on the same queue. Who gets which does not matter, but each is got once.
        let got = Arc::new(AtomicUsize::new(0));
        // A queue pair that is destroyed takes its completions along, and the other thread may count on them.
        let mut kept = Vec::new();
        for _ in 0..2 {
            let (a, b) = (pd.rc(&cq).create().unwrap(), pd.rc(&cq).create().unwrap());
            join(&a, &b);
            let (cq, remote, got) = (cq.clone(), remote.clone(), got.clone());
            kept.push((a.clone(), b));
            threads.push(std::thread::spawn(move || {
                for n in 0..300u64 {
                    a.write_inline(n, &n.to_ne_bytes(), remote.remote()).unwrap();
                    success(&cq);
                    got.fetch_add(1, Ordering::SeqCst);
                }
            }));
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(got.load(Ordering::SeqCst), 600);
        assert_eq!(cq.try_next().unwrap(), None);
    });
}

#[test]
fn two_threads_post_on_the_two_halves() {
    watched(|| {
        let Pair { a, b } = Pair::rc_with(V4, |qp| qp.depth(64, 64));
        let messages = 2000u64;
        let (_, receiver) = b.qp.clone().split();
        let (sender, _) = a.qp.clone().split();
        let pd = b.pd.clone();
        let receiving = std::thread::spawn(move || {
            let mut pending: std::collections::VecDeque<Pending> =
                (0..32).map(|_| receiver.recv(pd.buffer(64).unwrap()).unwrap()).collect();
            for n in 0..messages {
                let buffer = pending.pop_front().unwrap().wait().unwrap().buffer;
                assert_eq!(*buffer, n.to_ne_bytes());
                pending.push_back(receiver.recv(buffer).unwrap());
            }
        });
        let mut buffer = a.pd.buffer(8).unwrap();
        for n in 0..messages {
            buffer.set(&n.to_ne_bytes()).unwrap();
            buffer = sender.send(buffer).unwrap().wait().unwrap().buffer;
        }
        receiving.join().unwrap();
        drop(b.qp);
    });
}

#[test]
fn many_threads_post_on_one_queue_pair() {
    watched(|| {
        let Pair { a, b } = Pair::rc_with(V4, |qp| qp.depth(256, 16));
        let words = b.open_region(8 * 8);
        let threads: Vec<_> = (0..8u64)
            .map(|t| {
                let (qp, old) = (a.qp.clone(), a.open_region(8));
                let at = words.remote().slice(t * 8..).unwrap();
                std::thread::spawn(move || {
                    for _ in 0..20 {
                        qp.fetch_add(t, old.sge(..).unwrap(), at, t + 1).unwrap();
                    }
                    old
                })
            })
            .collect();
        let kept: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        let mut per_thread = [0; 8];
        for _ in 0..160 {
            per_thread[success(&a.cq).wr_id as usize] += 1;
        }
        assert_eq!(per_thread, [20; 8]);
        for t in 0..8 {
            assert_eq!(words.load_u64(t * 8).unwrap(), 20 * (t as u64 + 1));
        }
        drop(kept);
    });
}

#[test]
fn a_waiter_leaves_the_completions_of_others_in_the_queue() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let cq = a.device.create_cq(3).unwrap();
        let (from, to) = (a.pd.rc(&cq).create().unwrap(), b.pd.rc(&b.cq).create().unwrap());
        join(&from, &to);
        let region = b.open_region(8);
        let target = region.remote();
        let owned = || {
            drop(to.recv(b.pd.buffer(8).unwrap()).unwrap());
            from.send(a.pd.buffer(8).unwrap()).unwrap()
        };
        for n in 1..=2 {
            from.write_inline(n, b"1", target).unwrap();
            owned().wait().unwrap();
        }
        assert_eq!([next(&cq).wr_id, next(&cq).wr_id], [1, 2]);

        // They fill it as if nobody had polled.
        for n in 3..=5 {
            from.write_inline(n, b"3", target).unwrap();
        }
        let pending = from.send(a.pd.buffer(8).unwrap()).unwrap();
        let waiting = std::thread::spawn(|| pending.settle().unwrap_err());
        // Without a receive at the peer it does not complete, so the waiter sleeps.
        std::thread::sleep(Duration::from_millis(20));
        drop(to.recv(b.pd.buffer(8).unwrap()).unwrap());
        let error = waiting.join().unwrap();
        assert!(matches!(error.refusal(), Some(ferroce::Refusal::CqOverrun { depth: 3 })), "{error}");
        assert_eq!([3, 4, 5].map(|_| next(&cq).wr_id), [3, 4, 5]);
    });
}

#[test]
fn a_dropped_ticket_stops_nothing() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        drop(b.qp.recv(b.pd.buffer(1 << 20).unwrap()).unwrap());
        let received = b.qp.recv(b.pd.buffer(64).unwrap()).unwrap();
        let mut large = a.pd.buffer(1 << 20).unwrap();
        large.set(&pattern(1, 1 << 20)).unwrap();
        drop(a.qp.send(large).unwrap());
        let mut small = a.pd.buffer(64).unwrap();
        small.set(b"second").unwrap();
        a.qp.send(small).unwrap().wait().unwrap();
        assert_eq!(&*received.wait().unwrap().buffer, b"second");
    });
}

#[test]
fn a_waiter_of_a_destroyed_queue_pair_gets_an_error() {
    watched(|| {
        // If the thread already sleeps, it must be woken. Otherwise it must not begin to sleep.
        for sleeps in [true, false] {
            let Pair { a, b } = Pair::rc(V4);
            let received = b.qp.recv(b.pd.buffer(64).unwrap()).unwrap();
            let (tell, told) = std::sync::mpsc::channel();
            let waiting = std::thread::spawn(move || {
                tell.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
                received.wait().map(|_| ())
            });
            let stat = std::path::Path::new("/proc").join(told.recv().unwrap()).join("stat");
            // Nothing but the wait for the completion lets it sleep now.
            let state =
                || std::fs::read_to_string(&stat).unwrap().rsplit(") ").next().unwrap().chars().next();
            if sleeps {
                until("the thread sleeps", || state() == Some('S'));
            }
            drop((b, a));
            assert!(matches!(waiting.join().unwrap(), Err(Error::Gone)));
        }
    });
}

#[test]
fn objects_can_be_dropped_in_any_order_while_the_peer_sends() {
    watched(|| {
        for order in 0..6 {
            let Pair { a, b } = Pair::rc_with(V4, |qp| qp.timeout(8).retries(1));
            let region = b.open_region(1 << 20);
            let target = region.remote();
            let receives: Vec<_> =
                (0..8).map(|_| b.qp.recv(b.pd.buffer(1 << 16).unwrap()).unwrap()).collect();
            let from = a.open_region(1 << 20);
            for n in 0..8 {
                a.qp.write(n, &[from.sge(..).unwrap()], target).unwrap();
                a.qp.send_from(100 + n, &[from.sge(..1 << 16).unwrap()]).unwrap();
            }
            let support::Side { device, pd, cq, qp } = b;
            match order {
                0 => drop((region, receives, qp, cq, pd, device)),
                1 => drop((device, pd, cq, qp, receives, region)),
                2 => drop((qp, region, receives, pd, cq, device)),
                3 => drop((receives, cq, region, device, qp, pd)),
                4 => drop((pd, device, receives, qp, region, cq)),
                _ => drop((cq, qp, device, region, pd, receives)),
            }
            // Each ends, in whatever way; the first that failed takes the others along.
            let ends: Vec<_> = (0..16).map(|_| next(&a.cq).status).collect();
            let good = ends.iter().take_while(|s| **s == WcStatus::Success).count();
            assert!(ends[(good + 1).min(16)..].iter().all(|s| *s == WcStatus::WrFlushErr), "{ends:?}");
        }
    });
}

#[test]
fn a_timed_out_wait_loses_nothing() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let mut received = b.qp.recv(b.pd.buffer(64).unwrap()).unwrap();
        assert!(matches!(received.settle_timeout(Duration::from_millis(2)), Err(Error::TimedOut)));
        assert!(matches!(b.cq.wait_timeout(Duration::from_millis(2)), Err(Error::TimedOut)));
        assert!(received.try_settle().unwrap().is_none());
        let mut message = a.pd.buffer(64).unwrap();
        message.set(b"at last").unwrap();
        a.qp.send(message).unwrap().wait().unwrap();
        assert_eq!(&*received.settle_timeout(MAX_WAIT).unwrap().buffer, b"at last");
    });
}

#[test]
fn one_sided_operations_progress_while_the_target_sleeps() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let (from, to) = (a.open_region(4096), b.open_region(4096));
        // The target only polls its memory; it calls no verb.
        let watcher = {
            let to = to.clone();
            std::thread::spawn(move || {
                until("the last byte arrives", || to.load_u8(4095).unwrap() == 0xaa);
                to.to_vec()
            })
        };
        from.fill(0xaa);
        a.qp.write(1, &[from.sge(..).unwrap()], to.remote()).unwrap();
        a.success();
        assert!(watcher.join().unwrap().iter().all(|b| *b == 0xaa), "the last byte is written last");
    });
}

#[test]
fn a_sleeper_leaves_no_descriptor_behind() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let cq = support::device().create_cq(16).unwrap();
    let before = open();
    for _ in 0..300 {
        assert!(matches!(cq.wait_timeout(Duration::from_micros(60)), Err(Error::TimedOut)));
    }
    // Other tests of this process open descriptors, too.
    assert!(open() < before + 200, "{} descriptors, {before} before", open());
}
