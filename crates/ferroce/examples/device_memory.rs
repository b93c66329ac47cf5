//! A counter in the memory of the NIC: device memory.
//!
//! On hardware, atomics on device memory do not cross the bus to the host. The program reads the counter by copy.
//!
//!     cargo run --release --example device_memory

use ferroce::{Access, Device, Error, Outcome};

fn main() -> Result<(), Error> {
    let device = Device::open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let qp = pd.rc(&cq).create()?;
    qp.connect(&qp.endpoint()?)?; // a loopback connection

    let memory = device.alloc_device_memory(64, 64)?;
    let counter = memory.register(&pd, ..8, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
    let old = pd.region(8).register()?;
    for n in 0..10 {
        qp.fetch_add(n, old.sge(..)?, counter.remote(), 1)?;
        cq.wait()?.ok()?;
        assert_eq!(old.load_u64(0)?, n);
    }
    let mut bytes = [0; 8];
    memory.read(0, &mut bytes)?;
    println!("the counter in device memory is {}", u64::from_ne_bytes(bytes));
    assert_eq!(u64::from_ne_bytes(bytes), 10);
    Ok(())
}
