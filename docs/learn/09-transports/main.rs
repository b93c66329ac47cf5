// The same message over four transports.

use ferroce::{Buffer, Device, Error, Pd};

fn hello(pd: &Pd) -> Result<Buffer, Error> {
    let mut message = pd.buffer(64)?;
    message.set(b"hello")?;
    Ok(message)
}

fn show(name: &str, bytes: &str, message: &[u8]) {
    println!("{name}: SEND: success");
    println!("{name}: received {bytes}: {}", String::from_utf8_lossy(message));
}

fn main() -> Result<(), Error> {
    let device = Device::open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);

    // RC: two queue pairs that know each other.
    let (client, server) = (pd.rc(&cq).create()?, pd.rc(&cq).create()?);
    client.connect(&server.endpoint()?)?;
    server.connect(&client.endpoint()?)?;
    let received = server.recv(pd.buffer(64)?)?;
    client.send(hello(&pd)?)?.wait()?;
    show("RC", "5 bytes", &received.wait()?.buffer);

    // UC: the same calls, another type. READs and atomics do not exist on it.
    let (client, server) = (pd.uc(&cq).create()?, pd.uc(&cq).create()?);
    client.connect(&server.endpoint()?)?;
    server.connect(&client.endpoint()?)?;
    let received = server.recv(pd.buffer(64)?)?;
    client.send(hello(&pd)?)?.wait()?;
    show("UC", "5 bytes", &received.wait()?.buffer);

    // UD: each request names its destination. A buffer has room for the GRH besides its capacity.
    let (client, server) = (pd.ud(&cq).create()?, pd.ud(&cq).create()?);
    let to = pd.address_handle(&server.endpoint()?, 0)?;
    let received = server.recv(pd.buffer(64)?)?;
    client.send(hello(&pd)?, &to)?.wait()?;
    let received = received.wait()?;
    let bytes = format!("{} bytes, 40 of them for the GRH", received.completion.byte_len);
    show("UD", &bytes, &received.buffer);

    // XRC: each request names a shared receive queue of the peer's domain.
    let domain = device.alloc_xrc_domain()?;
    let queue = domain.srq(&pd, &device.create_cq(16)?, 4, 1)?;
    let (initiator, target) = (pd.xrc(&cq).create()?, domain.target().create()?);
    initiator.connect(&target.endpoint()?)?;
    target.connect(&initiator.endpoint()?)?;
    queue.recv(pd.buffer(64)?)?;
    initiator.send(hello(&pd)?, queue.number())?.wait()?;
    show("XRC", "5 bytes", &queue.cq().wait_shared()?.ok()?.buffer);
    Ok(())
}
