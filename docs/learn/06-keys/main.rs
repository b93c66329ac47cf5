// The server lets the client write 1024 bytes of its memory, and takes the right back.

use ferroce::{Access, Cq, Device, Error, MemoryWindow, Outcome, RcQp, Region, RemoteRegion, Type2};

/// WRITEs six bytes to the server, and prints the outcome.
fn write_to(client: &RcQp, cq: &Cq, from: &Region, to: RemoteRegion, what: &str) -> Result<(), Error> {
    client.write(1, &[from.sge(..6)?], to)?;
    println!("client: WRITE {what}: status {}", cq.wait()?.status as u32);
    Ok(())
}

fn main() -> Result<(), Error> {
    let device = Device::open()?;
    let pd = device.alloc_pd()?;
    let (client_cq, server_cq) = (device.create_cq(64)?, device.create_cq(64)?);
    let (client, server) = (pd.rc(&client_cq).create()?, pd.rc(&server_cq).create()?);
    client.connect(&server.endpoint()?)?;
    server.connect(&client.endpoint()?)?;
    let bytes = pd.region(4096).register()?;
    bytes.write(0, b"result")?;

    // The region itself grants nothing to peers, but windows can be bound to it.
    let page = pd.region(4096).bind_windows().register()?;
    page.fill(b'-');

    // A window: a key of its own for bytes 1024 to 2047, for writing only.
    let window: MemoryWindow<Type2> = pd.alloc_window()?;
    let opened = server.bind_window(1, &window, &page, 1024..2048, Access::REMOTE_WRITE)?;
    server_cq.wait()?.ok()?;
    write_to(&client, &client_cq, &bytes, opened, "through the window")?;
    println!("server: {}", String::from_utf8_lossy(&page.to_vec()[1024..1030]));

    // The key is revoked. The memory stays registered.
    server.invalidate_window(2, &window)?;
    server_cq.wait()?.ok()?;
    write_to(&client, &client_cq, &bytes, opened, "after the invalidation")
}
