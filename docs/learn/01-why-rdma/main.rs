// The same bytes twice: requested over a TCP connection, and read from the memory of a server whose program does nothing.

use ferroce::{Device, Outcome};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

const ROUNDS: u32 = 2000;
const LENGTH: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open()?;
    let pd = device.alloc_pd()?;
    let (client_cq, server_cq) = (device.create_cq(64)?, device.create_cq(64)?);
    let (client, server) = (pd.rc(&client_cq).create()?, pd.rc(&server_cq).create()?);
    client.connect(&server.endpoint()?)?;
    server.connect(&client.endpoint()?)?;
    let (ours, theirs) = (pd.region(4096).register()?, pd.region(4096).remote_read().register()?);
    theirs.write(0, b"hello from the server")?;

    // The client asks, the server's program answers: four system calls, and the kernel copies each byte twice.
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut asking = TcpStream::connect(listener.local_addr()?)?;
    let mut answering = listener.accept()?.0;
    let message = theirs.to_vec();
    let (mut question, mut answer) = ([0], [0; LENGTH]);
    let start = Instant::now();
    for _ in 0..ROUNDS {
        asking.write_all(b"?")?;
        answering.read_exact(&mut question)?;
        answering.write_all(&message[..LENGTH])?;
        asking.read_exact(&mut answer)?;
    }
    let tcp = start.elapsed() / ROUNDS;

    // The client names a place in the server's memory; the server's NIC answers.
    let start = Instant::now();
    for _ in 0..ROUNDS {
        client.read(1, &[ours.sge(..LENGTH as u64)?], theirs.remote().slice(..LENGTH as u64)?)?;
        client_cq.wait()?.ok()?;
    }
    let rdma = start.elapsed() / ROUNDS;

    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    println!("TCP:  {}", text(&answer));
    println!("READ: {}", text(&ours.to_vec()));
    let (tcp, rdma) = (tcp.as_nanos() as f64, rdma.as_nanos() as f64);
    println!("a request over TCP takes {tcp} ns, a READ {rdma} ns: {:.1} times as long", tcp / rdma);
    Ok(())
}
