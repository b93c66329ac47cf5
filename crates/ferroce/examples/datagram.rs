//! Datagrams: one queue pair sends to many, without connections and without guarantees.
//!
//!     cargo run --release --example datagram

use ferroce::{Device, Endpoint, Error};
use std::sync::mpsc;
use std::time::Duration;

const CLIENTS: usize = 3;

/// Sends a request to the server, and sends it again if no reply arrives.
fn client(number: usize, server: Endpoint) -> Result<(), Error> {
    let device = Device::open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let qp = pd.ud(&cq).create()?;
    // An address handle is the resolved address of a datagram queue pair.
    let server = pd.address_handle(&server, 0)?;
    let mut answer = qp.recv(pd.buffer(256)?)?;
    let mut question = pd.buffer(256)?;
    question.set(format!("this is client {number}").as_bytes())?;
    loop {
        question = qp.send(question, &server)?.wait()?.buffer;
        // Datagrams may get lost. The program retries, not the NIC.
        match answer.settle_timeout(Duration::from_millis(200)) {
            Ok(done) => {
                println!("client {number} was answered: {}", String::from_utf8_lossy(&done.ok()?.buffer));
                return Ok(());
            }
            Err(Error::TimedOut) => println!("client {number} asks again"),
            Err(error) => return Err(error),
        }
    }
}

/// Replies until it is stopped. Each datagram contains the address of its sender.
fn serve(endpoint: mpsc::Sender<Endpoint>, stop: mpsc::Receiver<()>) -> Result<(), Error> {
    let device = Device::open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
    let qp = pd.ud(&cq).create()?;
    let ours = qp.endpoint()?;
    endpoint.send(ours).expect("main waits for it");

    let mut question = qp.recv(pd.buffer(256)?)?;
    while stop.try_recv() == Err(mpsc::TryRecvError::Empty) {
        let done = match question.settle_timeout(Duration::from_millis(20)) {
            Ok(done) => done.ok()?,
            Err(Error::TimedOut) => continue,
            Err(error) => return Err(error),
        };
        let from = done.source().expect("a datagram has a source");
        let sender = Endpoint::datagram(from, done.completion.src_qpn, ours.qkey);
        let mut answer = pd.buffer(256)?;
        answer
            .set(format!("hello {from}, I received: {}", String::from_utf8_lossy(&done.buffer)).as_bytes())?;
        question = qp.recv(done.buffer)?;
        qp.send(answer, &pd.address_handle(&sender, 0)?)?.wait()?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (endpoint, server_endpoint) = mpsc::channel();
    let (stop, stopped) = mpsc::channel();
    let server = std::thread::spawn(move || serve(endpoint, stopped));
    let endpoint = server_endpoint.recv()?;
    println!("the server is {endpoint}");
    let clients: Vec<_> = (0..CLIENTS).map(|n| std::thread::spawn(move || client(n, endpoint))).collect();
    for client in clients {
        client.join().expect("a client panicked")?;
    }
    drop(stop);
    server.join().expect("the server panicked")?;
    Ok(())
}
