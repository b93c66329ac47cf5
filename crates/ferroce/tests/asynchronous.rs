//! Completions as futures of a tokio runtime.

mod support;

use ferroce::{AsyncCq, Pd, Pending, RcQp, Tokio, WcStatus, wr};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use support::{Pair, V4, join, watched};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_io().build().unwrap()
}

async fn play(pd: Pd, qp: RcQp, cq: Arc<AsyncCq<Tokio>>, begins: bool, mut next: Pending) {
    for n in 0..200u64 {
        let mut ball = pd.buffer(8).unwrap();
        ball.set(&n.to_ne_bytes()).unwrap();
        if begins {
            cq.wait(qp.send(ball).unwrap()).await.unwrap();
            assert_eq!(*cq.wait(next).await.unwrap().buffer, n.to_ne_bytes());
        } else {
            assert_eq!(*cq.wait(next).await.unwrap().buffer, n.to_ne_bytes());
        }
        next = qp.recv(pd.buffer(8).unwrap()).unwrap();
        if !begins {
            let mut ball = pd.buffer(8).unwrap();
            ball.set(&n.to_ne_bytes()).unwrap();
            cq.wait(qp.send(ball).unwrap()).await.unwrap();
        }
    }
}

#[test]
fn many_tasks_share_one_queue() {
    watched(|| {
        let device = support::device();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(1024).unwrap());
        runtime().block_on(async {
            let shared = Arc::new(AsyncCq::new(&cq, &Tokio).unwrap());
            let mut tasks = Vec::new();
            for _ in 0..8 {
                let (a, b) = (pd.rc(&cq).create().unwrap(), pd.rc(&cq).create().unwrap());
                join(&a, &b);
                for (qp, begins) in [(a, true), (b, false)] {
                    let first = qp.recv(pd.buffer(8).unwrap()).unwrap();
                    tasks.push(tokio::spawn(play(pd.clone(), qp, shared.clone(), begins, first)));
                }
            }
            for task in tasks {
                task.await.unwrap();
            }
        });
    });
}

#[test]
fn two_runtimes_and_a_thread_share_one_queue() {
    watched(|| {
        let device = support::device();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(1024).unwrap());
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (a, b) = (pd.rc(&cq).create().unwrap(), pd.rc(&cq).create().unwrap());
                join(&a, &b);
                let (pd, cq) = (pd.clone(), cq.clone());
                std::thread::spawn(move || {
                    runtime().block_on(async {
                        let shared = Arc::new(AsyncCq::new(&cq, &Tokio).unwrap());
                        let first =
                            [a.recv(pd.buffer(8).unwrap()).unwrap(), b.recv(pd.buffer(8).unwrap()).unwrap()];
                        let [for_a, for_b] = first;
                        let echo = tokio::spawn(play(pd.clone(), b, shared.clone(), false, for_b));
                        play(pd, a, shared, true, for_a).await;
                        echo.await.unwrap();
                    });
                })
            })
            .collect();
        let (a, b) = (pd.rc(&cq).create().unwrap(), pd.rc(&cq).create().unwrap());
        join(&a, &b);
        for _ in 0..200 {
            let received = b.recv(pd.buffer(8).unwrap()).unwrap();
            a.send(pd.buffer(8).unwrap()).unwrap().wait().unwrap();
            received.wait().unwrap();
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_dropped_future_loses_nothing() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        runtime().block_on(async {
            let cq = AsyncCq::new(&b.cq, &Tokio).unwrap();
            let mut received = b.qp.recv(b.pd.buffer(64).unwrap()).unwrap();
            b.qp.post_recv(&[wr::recv(5, &[])]).unwrap();
            // Each is polled once, found not ready, and dropped.
            {
                let mut waiting = pin!(cq.settle(&mut received));
                assert!(poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await);
            }
            {
                let mut waiting = pin!(cq.completion());
                assert!(poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await);
            }
            let mut message = a.pd.buffer(64).unwrap();
            message.set(b"still here").unwrap();
            drop(a.qp.send(message).unwrap());
            a.qp.send_from(1, &[]).unwrap();
            assert_eq!(cq.completion().await.unwrap().wr_id, 5, "found behind the owned one");
            assert_eq!(&*cq.settle(&mut received).await.unwrap().buffer, b"still here");
        });
    });
}

#[test]
fn failures_and_shared_receives_arrive_too() {
    watched(|| {
        let device = support::device();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
        let srq = pd.srq(4, 1).unwrap();
        let (server, client) = (pd.rc(&cq).srq(&srq).create().unwrap(), pd.rc(&cq).create().unwrap());
        join(&server, &client);
        srq.recv(pd.buffer(16).unwrap()).unwrap();
        runtime().block_on(async {
            let cq = AsyncCq::new(&cq, &Tokio).unwrap();
            let sent = client.send(pd.buffer(16).unwrap()).unwrap();
            assert_eq!(cq.shared().await.unwrap().buffer.len(), 16);
            cq.wait(sent).await.unwrap();
            client.close().unwrap();
            let mut flushed = client.send(pd.buffer(16).unwrap()).unwrap();
            assert_eq!(cq.settle(&mut flushed).await.unwrap().completion.status, WcStatus::WrFlushErr);
        });
    });
}
