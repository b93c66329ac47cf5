// The client writes into the memory of the server and reads from it. Only the third request involves the server's program.

use ferroce::{Device, Error, Outcome, wr};

fn main() -> Result<(), Error> {
    let device = Device::open()?;
    let pd = device.alloc_pd()?;
    let (client_cq, server_cq) = (device.create_cq(64)?, device.create_cq(64)?);
    let (client, server) = (pd.rc(&client_cq).create()?, pd.rc(&server_cq).create()?);
    client.connect(&server.endpoint()?)?;
    server.connect(&client.endpoint()?)?;
    let ours = pd.region(4096).register()?;
    let theirs = pd.region(4096).remote_read().remote_write().register()?;
    let remote = theirs.remote().slice(..4)?;

    // WRITE: from the client's memory to the server's.
    ours.write(0, b"ping")?;
    client.write(1, &[ours.sge(..4)?], remote)?;
    client_cq.wait()?.ok()?;
    println!("client: WRITE: success");
    println!("in the server's memory: {}", String::from_utf8_lossy(&theirs.to_vec()[..4]));

    // READ: from the server's memory to the client's.
    theirs.write(0, b"pong")?;
    client.read(2, &[ours.sge(..4)?], remote)?;
    client_cq.wait()?.ok()?;
    println!("client: READ: success");
    println!("in the client's memory: {}", String::from_utf8_lossy(&ours.to_vec()[..4]));

    // WRITE with immediate data: takes a receive, so that the server's program is informed.
    server.post_recv(&[wr::recv(1, &[])])?;
    client.write_imm(3, &[ours.sge(..4)?], remote, 42)?;
    client_cq.wait()?.ok()?;
    println!("client: WRITE with immediate: success");
    let received = server_cq.wait()?.ok()?;
    println!("server: immediate data {}, {} bytes written", received.imm, received.byte_len);
    Ok(())
}
