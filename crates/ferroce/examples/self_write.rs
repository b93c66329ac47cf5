//! WRITEs of 8 bytes from one queue pair to another of the same process, one after the other: nanoseconds from the post to
//! the completion, on average. `cargo xtask bench boundary` compares it with the same program in C.
//!
//!     cargo run --release --example self_write -- 100000

use ferroce::{Completion, Device, Outcome, RemoteRegion};
use std::error::Error;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let count: u32 = std::env::args().nth(1).map_or(Ok(100_000), |count| count.parse())?;
    let device = Device::open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(256)?);
    let memory = pd.region(8192).remote_read().remote_write().register()?;
    let (from, to) = (pd.rc(&cq).create()?, pd.rc(&cq).create()?);
    from.connect(&to.endpoint()?)?;
    to.connect(&from.endpoint()?)?;

    let target: RemoteRegion = memory.remote().slice(4096..4104)?;
    let mut completions = [Completion::default(); 1];
    let mut write = || -> Result<(), Box<dyn Error>> {
        from.write(0, &[memory.sge(0..8)?], target)?;
        while cq.poll(&mut completions)? == 0 {}
        completions[0].ok()?;
        Ok(())
    };
    for _ in 0..1000 {
        write()?;
    }
    let start = Instant::now();
    for _ in 0..count {
        write()?;
    }
    println!("{:.1}", start.elapsed().as_nanos() as f64 / f64::from(count));
    Ok(())
}
