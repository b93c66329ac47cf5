//! A server with many clients and one pool of receives: a shared receive queue.
//!
//! With one receive queue per client, each client would need as many receives as it may have messages in flight, and most would
//! be idle. Here all clients share one pool.
//!
//!     cargo run --release --example srq_server

use ferroce::{Device, Error, Qpn, RcQp};
use std::collections::HashMap;
use std::os::unix::net::UnixStream;

const CLIENTS: usize = 16;
const MESSAGES: u32 = 50;
const POOL: usize = 32;

/// Sends numbers and checks that each reply is the double.
fn client(mut socket: UnixStream) -> Result<(), Error> {
    let device = Device::open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let qp = pd.rc(&cq).depth(4, 4).create()?;
    let mut reply = qp.recv(pd.buffer(4)?)?;
    qp.connect_over(&mut socket)?;
    let mut request = pd.buffer(4)?;
    for n in 0..MESSAGES {
        request.set(&n.to_be_bytes())?;
        request = qp.send(request)?.wait()?.buffer;
        let got = reply.wait()?.buffer;
        assert_eq!(*got, (2 * n).to_be_bytes());
        reply = qp.recv(got)?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open()?;
    let pd = device.alloc_pd()?;
    let (send_cq, recv_cq) = (device.create_cq(512)?, device.create_cq(512)?);
    let pool = pd.srq(POOL as u32, 1)?;
    for _ in 0..POOL {
        pool.recv(pd.buffer(64)?)?;
    }

    let mut queue_pairs: HashMap<Qpn, RcQp> = HashMap::new();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let (mut ours, theirs) = UnixStream::pair()?;
        clients.push(std::thread::spawn(move || client(theirs)));
        let qp = pd.rc(&send_cq).recv_cq(&recv_cq).srq(&pool).depth(8, 0).create()?;
        qp.connect_over(&mut ours)?;
        queue_pairs.insert(qp.qpn(), qp);
    }

    for _ in 0..CLIENTS * MESSAGES as usize {
        // The completion contains the queue pair that received the message.
        let request = recv_cq.wait_shared()?.ok()?;
        let n = u32::from_be_bytes((&*request.buffer).try_into()?);
        let mut reply = pd.buffer(4)?;
        reply.set(&(2 * n).to_be_bytes())?;
        // The program does not wait for this send. Its buffer is freed when it completes.
        drop(queue_pairs[&request.completion.qpn].send(reply)?);
        pool.recv(request.buffer)?;
        // Polling takes the completions of the replies off their queue. Otherwise it would overflow.
        send_cq.try_next()?;
    }
    for client in clients {
        client.join().expect("a client panicked")?;
    }
    println!("{CLIENTS} clients, {} messages, {POOL} receives", CLIENTS * MESSAGES as usize);
    Ok(())
}
