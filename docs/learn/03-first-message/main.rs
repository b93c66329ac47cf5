// One message from a client to a server, over a reliable connection.

use ferroce::{Device, Error, Outcome, SendFlags, SendWr, wr};

fn main() -> Result<(), Error> {
    let device = Device::open()?;
    let pd = device.alloc_pd()?;
    let (client_cq, server_cq) = (device.create_cq(64)?, device.create_cq(64)?);
    let (client, server) = (pd.rc(&client_cq).create()?, pd.rc(&server_cq).create()?);
    client.connect(&server.endpoint()?)?;
    server.connect(&client.endpoint()?)?;

    // The server posts a receive: the buffer for one message.
    let room = pd.region(4096).register()?;
    server.post_recv(&[wr::recv(1, &[room.sge(..64)?])])?;

    // The client posts a send: the bytes of the message.
    let bytes = pd.region(4096).register()?;
    bytes.write(0, b"hello")?;
    client.post_send(&[SendWr { flags: SendFlags::SIGNALED, ..wr::send(2, &[bytes.sge(..5)?]) }])?;

    // Each end gets a completion.
    client_cq.wait()?.ok()?;
    println!("client: SEND: success");
    let received = server_cq.wait()?.ok()?;
    println!("server: RECV: success");
    let mut text = vec![0; received.byte_len as usize];
    room.read(0, &mut text)?;
    println!("server: wr_id {}, {} bytes: {}", received.wr_id, text.len(), String::from_utf8_lossy(&text));
    Ok(())
}
