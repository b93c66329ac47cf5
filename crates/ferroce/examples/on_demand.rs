//! On-demand paging: a region much larger than its used part.
//!
//! Registration brings no page in. The NIC brings a page in when a peer accesses it; a prefetch does so earlier.
//!
//!     cargo run --release --example on_demand

use ferroce::{Device, Error, Outcome, Prefetch};

const LEN: usize = 1 << 30;

fn main() -> Result<(), Error> {
    let device = Device::open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let qp = pd.rc(&cq).create()?;
    qp.connect(&qp.endpoint()?)?; // a loopback connection

    let table = pd.region(LEN).remote_write().on_demand().register()?;
    let source = pd.region(4096).register()?;
    source.fill(1);
    for (n, at) in (0..).zip((0..LEN as u64).step_by(LEN / 8)) {
        table.prefetch(at..at + 4096, Prefetch::Write)?;
        qp.write(n, &[source.sge(..)?], table.remote().slice(at..)?)?;
        cq.wait()?.ok()?;
        assert_eq!(table.load_u8(at as usize)?, 1);
    }
    println!("a region of {LEN} bytes, 8 pages of it in use");
    Ok(())
}
