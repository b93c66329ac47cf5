// Of three SENDs only the last makes a completion. The server sleeps until there are completions.

use ferroce::{Device, Error, Outcome, SendFlags, SendWr, wr};
use std::time::Duration;

fn main() -> Result<(), Error> {
    let device = Device::open()?;
    let pd = device.alloc_pd()?;
    // Each completion queue has a channel of its own.
    let (client_cq, server_cq) = (device.create_cq(64)?, device.create_cq(16)?);
    let client = pd.rc(&client_cq).signal_all(false).create()?;
    let server = pd.rc(&server_cq).create()?;
    client.connect(&server.endpoint()?)?;
    server.connect(&client.endpoint()?)?;
    let (bytes, room) = (pd.region(4096).register()?, pd.region(4096).register()?);
    for n in 1..=3 {
        server.post_recv(&[wr::recv(n, &[room.sge(..64)?])])?;
    }

    // Armed: the next completion makes the channel readable, once.
    server_cq.arm(false)?;

    for n in 1..=3 {
        let flags = if n == 3 { SendFlags::SIGNALED } else { SendFlags::empty() };
        client.post_send(&[SendWr { flags, ..wr::send(n, &[bytes.sge(..5)?]) }])?;
    }
    let sent = client_cq.wait()?.ok()?;
    println!("client: one completion for three SENDs: wr_id {}", sent.wr_id);

    let mut received = 0;
    while received < 3 {
        server_cq.sleep(Duration::from_secs(10))?;
        // Arm first, then poll until the queue is empty.
        server_cq.arm(false)?;
        while let Some(completion) = server_cq.try_next()? {
            println!("server: RECV wr_id {}: success", completion.ok()?.wr_id);
            received += 1;
        }
    }
    Ok(())
}
