// Two clients draw numbers from a counter in the server's memory, and one takes a lock.

use ferroce::{Cq, Device, Error, Outcome, Pd, RcQp, Region, RemoteRegion};

/// A queue pair to the server, and room for the old value.
struct Client {
    qp: RcQp,
    cq: Cq,
    old: Region,
    server: RcQp,
}

impl Client {
    fn connect(pd: &Pd) -> Result<Client, Error> {
        let cq = pd.device().create_cq(64)?;
        let (qp, server) = (pd.rc(&cq).create()?, pd.rc(&cq).create()?);
        qp.connect(&server.endpoint()?)?;
        server.connect(&qp.endpoint()?)?;
        Ok(Client { qp, cq, old: pd.region(8).register()?, server })
    }

    fn fetch_add(&self, at: RemoteRegion, add: u64) -> Result<u64, Error> {
        self.qp.fetch_add(1, self.old.sge(..)?, at, add)?;
        self.cq.wait()?.ok()?;
        self.old.load_u64(0)
    }

    fn compare_swap(&self, at: RemoteRegion, expected: u64, value: u64) -> Result<u64, Error> {
        self.qp.compare_swap(1, self.old.sge(..)?, at, expected, value)?;
        self.cq.wait()?.ok()?;
        self.old.load_u64(0)
    }
}

fn main() -> Result<(), Error> {
    // Each client has its own queue pair to the server. The counter is at offset 0, the lock at offset 8.
    let device = Device::open()?;
    let pd = device.alloc_pd()?;
    let memory = pd.region(16).remote_atomic().register()?;
    let (counter, lock) = (memory.remote().slice(..8)?, memory.remote().slice(8..)?);
    let (alice, bob) = (Client::connect(&pd)?, Client::connect(&pd)?);
    assert_ne!(alice.server.qpn(), bob.server.qpn());

    for _ in 0..2 {
        println!("alice draws {}", alice.fetch_add(counter, 1)?);
        println!("bob draws {}", bob.fetch_add(counter, 1)?);
    }

    // The lock: 0 is free. The swap happens only if the old value is the expected one.
    let yes_or_no = |old| if old == 0 { "yes" } else { "no" };
    println!("alice takes the lock: {}", yes_or_no(alice.compare_swap(lock, 0, 1)?));
    println!("bob takes the lock: {}", yes_or_no(bob.compare_swap(lock, 0, 2)?));
    alice.compare_swap(lock, 1, 0)?;
    println!("bob takes the lock: {}", yes_or_no(bob.compare_swap(lock, 0, 2)?));
    Ok(())
}
