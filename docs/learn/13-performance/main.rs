// The same 16-byte WRITEs in several ways.

use ferroce::{Cq, Device, Error, Outcome, Payload, RcQp, RemoteRegion, SendFlags, SendWr, Sge, wr};
use std::time::Instant;

const ROUNDS: usize = 200;
const BATCH: usize = 32;
const LENGTH: u64 = 16;

/// Posts BATCH requests, `linked` of them with each call. Every `signalled`-th makes a completion. Returns ns per request.
fn measure(
    client: &RcQp,
    cq: &Cq,
    (from, to): (Payload<'_>, RemoteRegion),
    (linked, signalled): (usize, usize),
) -> Result<f64, Error> {
    let inline = if matches!(from, Payload::Inline(_)) { SendFlags::INLINE } else { SendFlags::empty() };
    let request = |n: usize| {
        let signal = if n.is_multiple_of(signalled) { SendFlags::SIGNALED } else { SendFlags::empty() };
        SendWr { flags: inline | signal, payload: from, ..wr::write(n as u64, &[], to) }
    };
    let wrs: Vec<SendWr<'_>> = (1..=BATCH).map(request).collect();
    let start = Instant::now();
    for _ in 0..ROUNDS {
        for part in wrs.chunks(linked) {
            client.post_send(part)?;
        }
        for _ in 0..BATCH / signalled {
            cq.wait()?.ok()?;
        }
    }
    Ok(start.elapsed().as_nanos() as f64 / (ROUNDS * BATCH) as f64)
}

/// One request at a time: post, wait, post.
fn one_by_one(client: &RcQp, cq: &Cq, from: &[Sge], to: RemoteRegion) -> Result<f64, Error> {
    let start = Instant::now();
    for n in 0..ROUNDS {
        client.post_send(&[SendWr { flags: SendFlags::SIGNALED, ..wr::write(n as u64, from, to) }])?;
        cq.wait()?.ok()?;
    }
    Ok(start.elapsed().as_nanos() as f64 / ROUNDS as f64)
}

fn main() -> Result<(), Error> {
    let device = Device::open()?;
    let pd = device.alloc_pd()?;
    let (cq, server_cq) = (device.create_cq(64)?, device.create_cq(64)?);
    let (client, server) = (pd.rc(&cq).signal_all(false).create()?, pd.rc(&server_cq).create()?);
    client.connect(&server.endpoint()?)?;
    server.connect(&client.endpoint()?)?;
    let (ours, theirs) = (pd.region(4096).register()?, pd.region(4096).remote_write().register()?);
    let sges = [ours.sge(..LENGTH)?];
    let to = theirs.remote().slice(..LENGTH)?;
    let way = |from, how| measure(&client, &cq, (from, to), how);

    way(Payload::Sges(&sges), (1, 1))?; // warms the caches
    let base = one_by_one(&client, &cq, &sges, to)?;
    println!("one by one:                  {base:.0} ns per WRITE");
    println!("32 outstanding:              {:.2} of it", way(Payload::Sges(&sges), (1, 1))? / base);
    println!("and one doorbell for all:    {:.2}", way(Payload::Sges(&sges), (BATCH, 1))? / base);
    println!("and only the last signalled: {:.2}", way(Payload::Sges(&sges), (BATCH, BATCH))? / base);
    println!(
        "and inline:                  {:.2}",
        way(Payload::Inline(&[0; LENGTH as usize]), (BATCH, BATCH))? / base
    );
    Ok(())
}
