//! Futures without a runtime of a particular kind: a reactor of the test's own, and `async-io`.

mod support;

use ferroce::{AsyncCq, ConnectionEvent, Connector, EventKind, Listener, Pd, RcQp, Reactor, Readable};
use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;
use support::{V4, join, watched};

/// The smallest executor: one future per thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// The smallest reactor: a thread per wait.
#[derive(Clone, Copy)]
struct Threads;
struct Watched(Arc<OwnedFd>);

impl Reactor for Threads {
    type Watched = Watched;
    fn watch(&self, fd: OwnedFd) -> io::Result<Watched> {
        Ok(Watched(Arc::new(fd)))
    }
}

impl Readable for Watched {
    async fn readable(&self) -> io::Result<()> {
        let is_readable = |fd: &OwnedFd, timeout: Duration| {
            let timeout = timeout.try_into().unwrap();
            poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)).is_ok_and(|ready| ready > 0)
        };
        std::future::poll_fn(|cx| {
            if is_readable(&self.0, Duration::ZERO) {
                return Poll::Ready(Ok(()));
            }
            let (fd, waker) = (self.0.clone(), cx.waker().clone());
            std::thread::spawn(move || {
                is_readable(&fd, Duration::from_secs(1));
                waker.wake();
            });
            Poll::Pending
        })
        .await
    }
}

async fn echo<R: Reactor>(pd: Pd, qp: RcQp, cq: Arc<AsyncCq<R>>, rounds: u32) {
    for _ in 0..rounds {
        let received = cq.wait(qp.recv(pd.buffer(8).unwrap()).unwrap()).await.unwrap();
        cq.wait(qp.send(received.buffer).unwrap()).await.unwrap();
    }
}

/// Two threads wait on one completion queue, each for its own operations.
fn tasks_share_one_queue<R: Reactor>(reactor: R) {
    const ROUNDS: u32 = 50;
    let device = support::device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let (a, b) = (pd.rc(&cq).create().unwrap(), pd.rc(&cq).create().unwrap());
    join(&a, &b);
    let shared = Arc::new(AsyncCq::new(&cq, &reactor).unwrap());
    let server = echo(pd.clone(), b, shared.clone(), ROUNDS);
    let server = std::thread::spawn(move || block_on(server));
    block_on(async {
        for n in 0..ROUNDS {
            let reply = a.recv(pd.buffer(8).unwrap()).unwrap();
            let mut message = pd.buffer(8).unwrap();
            message.set(&n.to_be_bytes()).unwrap();
            shared.wait(a.send(message).unwrap()).await.unwrap();
            assert_eq!(*shared.wait(reply).await.unwrap().buffer, n.to_be_bytes());
        }
    });
    server.join().unwrap();
}

/// Connection requests, their answers, the end of a connection, and an event of the device.
fn everything_else_can_be_awaited<R: Reactor + Copy>(reactor: R) {
    let (here, there) = (support::device(), support::device());
    let qp = |device: &ferroce::Device| {
        let cq = device.create_cq(16).unwrap();
        device.alloc_pd().unwrap().rc(&cq).create().unwrap()
    };
    let (a, b) = (qp(&here), qp(&there));
    let listener = Listener::bind(&there, (V4, 0).into()).unwrap();
    let to = listener.local_addr();
    let server = std::thread::spawn(move || {
        block_on(async {
            let request = listener.accept_async(&reactor).await.unwrap();
            let connection = request.accept_async(&b, b"", &reactor).await.unwrap();
            assert_eq!(connection.event_async(&reactor).await.unwrap(), ConnectionEvent::Disconnected);
        });
    });
    block_on(async {
        let connection = Connector::new(&here, to).connect_async(&a, &reactor).await.unwrap();
        connection.disconnect().unwrap();
        assert_eq!(connection.event_async(&reactor).await.unwrap(), ConnectionEvent::Disconnected);
    });
    server.join().unwrap();
    let (pd, cq) = (here.alloc_pd().unwrap(), here.create_cq(4).unwrap());
    let srq = pd.srq(4, 1).unwrap();
    let (client, server) = (pd.rc(&cq).create().unwrap(), pd.rc(&cq).srq(&srq).create().unwrap());
    join(&client, &server);
    srq.post_recv(&[ferroce::wr::recv(1, &[])]).unwrap();
    srq.arm_limit(1).unwrap();
    client.send_from(1, &[]).unwrap();
    support::success(&cq);
    let limit_reached =
        async { while here.event_async(&reactor).await.unwrap().kind != EventKind::SrqLimitReached {} };
    block_on(limit_reached);
}

#[test]
fn a_reactor_of_the_program_works() {
    watched(|| tasks_share_one_queue(Threads));
    watched(|| everything_else_can_be_awaited(Threads));
}

#[cfg(feature = "async-io")]
#[test]
fn async_io_works() {
    watched(|| tasks_share_one_queue(ferroce::AsyncIo));
    watched(|| everything_else_can_be_awaited(ferroce::AsyncIo));
}
