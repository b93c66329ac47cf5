//! One-sided operations: read and write the memory of a peer whose program does nothing.
//!
//!     cargo run --release --example one_sided

use ferroce::{Device, Outcome, RemoteRegion};
use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// Owns the memory, says where it is, and then only waits for the end.
fn owner(mut socket: UnixStream) -> Result<(), Box<dyn Error + Send + Sync>> {
    let device = Device::open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    // What a peer may do with a region is said when it is registered.
    let board = pd.region(4096).remote_read().remote_write().register()?;
    board.write(0, b"please answer below")?;

    let qp = pd.rc(&cq).create()?;
    qp.connect_over(&mut socket)?;
    // Address, length and key: who has these 20 bytes and a connection can use the region.
    socket.write_all(&board.remote().to_bytes())?;

    // No verb is called while the visitor works; the NIC does everything.
    socket.read_exact(&mut [0])?;
    let mut answer = [0; 11];
    board.read(2048, &mut answer)?;
    println!("the visitor wrote: {}", String::from_utf8_lossy(&answer));
    assert_eq!(&answer, b"I was here!");
    Ok(())
}

/// Reads the board, then writes on it.
fn visitor(mut socket: UnixStream) -> Result<(), Box<dyn Error + Send + Sync>> {
    let device = Device::open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let desk = pd.region(4096).register()?;
    let qp = pd.rc(&cq).create()?;
    qp.connect_over(&mut socket)?;
    let mut bytes = [0; RemoteRegion::ENCODED_LEN];
    socket.read_exact(&mut bytes)?;
    let board = RemoteRegion::from_bytes(&bytes)?;

    // READ: the first 19 bytes of the board come to our desk. The number 1 comes back with the completion.
    qp.read(1, &[desk.sge(0..19)?], board.slice(0..19)?)?;
    cq.wait()?.ok()?;
    println!("the board says: {}", String::from_utf8_lossy(&desk.to_vec()[..19]));

    // WRITE: eleven bytes of our desk go to the board. When this completes, they are there.
    desk.write(100, b"I was here!")?;
    qp.write(2, &[desk.sge(100..111)?], board.slice(2048..2059)?)?;
    cq.wait()?.ok()?;

    // A key that does not open anything: the peer's NIC refuses, and the error says why.
    let nowhere = RemoteRegion { rkey: ferroce::RKey(!board.rkey.0), ..board };
    qp.read(3, &[desk.sge(0..8)?], nowhere)?;
    let refused = cq.wait()?.ok().expect_err("a wrong key must not work");
    println!("and with a wrong key: {refused}");

    socket.write_all(&[0])?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let (ours, theirs) = UnixStream::pair()?;
    let owner = std::thread::spawn(move || owner(theirs));
    visitor(ours)?;
    owner.join().expect("the owner panicked")
}
