//! One connection, many receivers: an extended reliable connection (XRC).
//!
//! With reliable connections, a process needs one queue pair for each thread of the peer that receives on its own. An XRC
//! initiator reaches every shared receive queue of the peer's XRC domain through a single connection.
//!
//!     cargo run --release --example xrc

use ferroce::{Device, Error, XrcDomain, XrcSrq};

const WORKERS: u8 = 4;

/// A worker: a shared receive queue and a completion queue of its own.
fn worker(device: &Device, domain: &XrcDomain) -> Result<XrcSrq, Error> {
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let queue = domain.srq(&pd, &cq, 16, 1)?;
    queue.recv(pd.buffer(64)?)?;
    Ok(queue)
}

fn main() -> Result<(), Error> {
    let device = Device::open()?;
    let domain = device.alloc_xrc_domain()?;
    let workers = (0..WORKERS).map(|_| worker(&device, &domain)).collect::<Result<Vec<_>, _>>()?;

    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let (initiator, target) = (pd.xrc(&cq).create()?, domain.target().create()?);
    initiator.connect(&target.endpoint()?)?;
    target.connect(&initiator.endpoint()?)?;

    for (n, worker) in (0..).zip(&workers) {
        let mut message = pd.buffer(64)?;
        message.set(&[n; 8])?;
        initiator.send(message, worker.number())?.wait()?;
    }
    for (n, worker) in (0..).zip(&workers) {
        let received = worker.cq().wait_shared()?.ok()?;
        assert_eq!(*received.buffer, [n; 8]);
        println!("worker {n}: {} bytes for shared receive queue {}", received.buffer.len(), worker.number());
    }
    Ok(())
}
