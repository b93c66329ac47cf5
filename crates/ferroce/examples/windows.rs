//! Access for one request only: a memory window of type 2.
//!
//! The server opens a part of its region to a client, and the client closes it with its last message. The region and its key
//! stay private. Registering and deregistering memory for each request would cost far more.
//!
//!     cargo run --release --example windows

use ferroce::{Access, Device, Error, MemoryWindow, Outcome, Type2, WcStatus};

fn main() -> Result<(), Error> {
    let device = Device::open()?;
    let pd = device.alloc_pd()?;
    let (server_cq, client_cq) = (device.create_cq(16)?, device.create_cq(16)?);
    let (server, client) = (pd.rc(&server_cq).create()?, pd.rc(&client_cq).create()?);
    server.connect(&client.endpoint()?)?;
    client.connect(&server.endpoint()?)?;

    let results = pd.region(4096).bind_windows().register()?;
    let window: MemoryWindow<Type2> = pd.alloc_window()?;
    let opened = server.bind_window(1, &window, &results, 1024..2048, Access::REMOTE_WRITE)?;
    server_cq.wait()?.ok()?;

    // The client writes its result. Its last message invalidates the key.
    let done = server.recv(pd.buffer(16)?)?;
    let mut result = pd.buffer(16)?;
    result.set(b"the result")?;
    let result = client.write_from(result, opened)?.wait()?.buffer;
    client.send_with_inv(result, opened.rkey)?.wait()?;
    done.wait()?;
    assert_eq!(&results.to_vec()[1024..1034], b"the result");

    let refused = client.write_from(pd.buffer(16)?, opened)?.settle()?;
    assert_eq!(refused.completion.status, WcStatus::RemAccessErr);
    println!("written through the window; refused after it was invalidated");
    Ok(())
}
