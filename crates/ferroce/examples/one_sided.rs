//! One-sided operations: read and write the memory of a peer whose program does nothing.
//!
//!     cargo run --release --example one_sided

use ferroce::{Device, Outcome, RemoteRegion};
use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// Owns the memory, sends its description, and then waits for the end.
fn owner(mut socket: UnixStream) -> Result<(), Box<dyn Error + Send + Sync>> {
    let device = Device::open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    // The access rights of peers are set at registration.
    let shared = pd.region(4096).remote_read().remote_write().register()?;
    shared.write(0, b"please answer below")?;

    let qp = pd.rc(&cq).create()?;
    qp.connect_over(&mut socket)?;
    // Address, size and key: a connected peer with these 20 bytes can use the region.
    socket.write_all(&shared.remote().to_bytes())?;

    // This program calls no verb while the NIC executes the peer's operations.
    socket.read_exact(&mut [0])?;
    let mut answer = [0; 11];
    shared.read(2048, &mut answer)?;
    println!("the client wrote: {}", String::from_utf8_lossy(&answer));
    assert_eq!(&answer, b"I was here!");
    Ok(())
}

/// Reads the shared region, then writes into it.
fn client(mut socket: UnixStream) -> Result<(), Box<dyn Error + Send + Sync>> {
    let device = Device::open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let local = pd.region(4096).register()?;
    let qp = pd.rc(&cq).create()?;
    qp.connect_over(&mut socket)?;
    let mut bytes = [0; RemoteRegion::ENCODED_LEN];
    socket.read_exact(&mut bytes)?;
    let shared = RemoteRegion::from_bytes(&bytes)?;

    // READ: copies the first 19 bytes of the shared region into ours. The completion has the wr_id 1.
    qp.read(1, &[local.sge(0..19)?], shared.slice(0..19)?)?;
    cq.wait()?.ok()?;
    println!("the shared region contains: {}", String::from_utf8_lossy(&local.to_vec()[..19]));

    // WRITE: copies eleven bytes of our region into the shared one. After the completion they are there.
    local.write(100, b"I was here!")?;
    qp.write(2, &[local.sge(100..111)?], shared.slice(2048..2059)?)?;
    cq.wait()?.ok()?;

    // A wrong key: the peer's NIC refuses the operation, and the error contains the cause.
    let nowhere = RemoteRegion { rkey: ferroce::RKey(!shared.rkey.0), ..shared };
    qp.read(3, &[local.sge(0..8)?], nowhere)?;
    let refused = cq.wait()?.ok().expect_err("a wrong key must not work");
    println!("and with a wrong key: {refused}");

    socket.write_all(&[0])?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let (ours, theirs) = UnixStream::pair()?;
    let owner = std::thread::spawn(move || owner(theirs));
    client(ours)?;
    owner.join().expect("the owner panicked")
}
