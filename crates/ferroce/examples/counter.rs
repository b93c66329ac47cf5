//! Atomics as a counter: several clients draw numbers from one counter, and each number is drawn once.
//!
//!     cargo run --release --example counter

use ferroce::{Device, Error, Outcome, RemoteRegion};
use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;

const CLIENTS: usize = 4;
const DRAWS: usize = 500;

/// Draws numbers from the counter in the server's memory.
fn client(mut socket: UnixStream, counter: RemoteRegion) -> Result<Vec<u64>, Error> {
    let device = Device::open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let drawn_number = pd.region(8).register()?;
    let qp = pd.rc(&cq).create()?;
    qp.connect_over(&mut socket)?;
    let mut drawn = Vec::new();
    for n in 0..DRAWS {
        // The addition is atomic in the server's memory. The old value arrives in our region.
        qp.fetch_add(n as u64, drawn_number.sge(..)?, counter, 1)?;
        cq.wait()?.ok()?;
        drawn.push(drawn_number.load_u64(0)?);
    }
    Ok(drawn)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let counter = pd.region(8).remote_atomic().register()?;

    let mut queue_pairs = Vec::new();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let (mut ours, theirs) = UnixStream::pair()?;
        let remote = counter.remote();
        clients.push(std::thread::spawn(move || client(theirs, remote)));
        let qp = pd.rc(&cq).create()?;
        qp.connect_over(&mut ours)?;
        // The client needs the queue pair of the server, so it stays alive.
        queue_pairs.push(qp);
    }
    // The server may draw too: its atomics and those of its peers are atomic with respect to each other.
    let mut drawn: BTreeSet<u64> = (0..DRAWS).map(|_| counter.fetch_add(0, 1)).collect::<Result<_, _>>()?;
    for client in clients {
        drawn.extend(client.join().expect("a client panicked")?);
    }

    let total = (CLIENTS + 1) * DRAWS;
    assert_eq!(counter.load_u64(0)?, total as u64);
    assert_eq!(drawn.len(), total, "a number was drawn twice");
    println!("{} clients and the server drew {total} different numbers", queue_pairs.len());
    Ok(())
}
