// Creates one object of each kind that a program needs, and destroys them.

use ferroce::{Device, Error};

fn main() -> Result<(), Error> {
    // The device, opened: a context.
    let devices = Device::list()?;
    let device = devices[0].open()?;
    println!("context: device {}", devices[0].name());

    // The protection domain: what may be used together.
    let pd = device.alloc_pd()?;

    // The memory region: 4096 bytes that the device may access. LOCAL_WRITE is the default.
    let region = pd.region(4096).remote_read().register()?;
    let (lkey, rkey) = (region.lkey().0, region.rkey().0);
    println!("memory region: {} bytes, lkey {lkey:#x}, rkey {rkey:#x}", region.len());

    // The completion queue: where finished work is reported.
    let cq = device.create_cq(16)?;
    println!("completion queue: {}", if cq.depth() >= 16 { "at least 16 entries" } else { "too small" });

    // The queue pair: where work is posted.
    let qp = pd.rc(&cq).depth(16, 16).sges(1, 1).create()?;
    println!("queue pair: number {}", qp.qpn());

    // Each object keeps alive what it needs, so any order is right.
    drop((pd, cq, device));
    drop((region, qp));
    println!("all destroyed");
    Ok(())
}
