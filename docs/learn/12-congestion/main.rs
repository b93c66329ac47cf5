// 1 MiB in sixteen WRITEs that are all posted at once. How fast they leave is up to the congestion window.

use ferroce::{Device, Error, Mtu, Outcome, SendFlags, SendWr, wr};
use std::time::Instant;

const WRITES: usize = 16;
const LENGTH: usize = 65536;

fn main() -> Result<(), Error> {
    let device = Device::open()?;
    let pd = device.alloc_pd()?;
    let (client_cq, server_cq) = (device.create_cq(64)?, device.create_cq(64)?);
    let client = pd.rc(&client_cq).signal_all(false).mtu(Mtu::B1024).create()?;
    let server = pd.rc(&server_cq).mtu(Mtu::B1024).create()?;
    client.connect(&server.endpoint()?)?;
    server.connect(&client.endpoint()?)?;
    let source = pd.region(LENGTH).register()?;
    let target = pd.region(LENGTH).remote_write().register()?;
    source.fill(7);

    let start = Instant::now();
    for n in 1..=WRITES {
        let flags = if n == WRITES { SendFlags::SIGNALED } else { SendFlags::empty() };
        let bytes = [source.sge(..)?];
        client.post_send(&[SendWr { flags, ..wr::write(n as u64, &bytes, target.remote()) }])?;
    }
    client_cq.wait()?.ok()?;
    let elapsed = start.elapsed().as_secs_f64() * 1e3;
    println!("client: 1 MiB: success");
    println!("{elapsed:.1} ms, {:.0} Mbit/s", (WRITES * LENGTH * 8) as f64 / elapsed / 1e3);
    Ok(())
}
