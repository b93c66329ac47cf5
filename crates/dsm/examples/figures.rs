//! What the pieces of shared memory cost between two processes, beside bare RDMA operations on the same link.
//!
//!     cargo run --release -p ferroce-dsm --example figures -- rdma
//!
//! Over a link between two network namespaces: an address of the first, and how to start a program in the second.
//!
//!     ip netns exec one target/release/examples/figures rdma 10.9.0.1 ip netns exec two

use ferroce::{Device, Endpoint, Outcome, RcQp, RemoteRegion};
use ferroce_dsm::{Job, PAGE, Placement, Rendezvous, Settings, Tuning};
use std::error::Error;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ROUNDS: u32 = 2000;
const PAGES: usize = 2000;

fn main() -> Result<()> {
    if std::env::var("FERROCE_DSM_RANK").is_ok() {
        return measure();
    }
    let mut arguments = std::env::args().skip(1);
    let transport = arguments.next().unwrap_or("rdma".into());
    let rendezvous = match arguments.next() {
        Some(address) => Rendezvous::bind_at(2, SocketAddr::new(address.parse()?, 0))?,
        None => Rendezvous::bind(2)?,
    };
    let elsewhere: Vec<String> = arguments.collect();
    let mut children = Vec::new();
    for rank in 0..2 {
        let program = std::env::current_exe()?;
        let mut command = match elsewhere.split_first().filter(|_| rank == 1) {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.envs(rendezvous.environment(rank)).env("FERROCE_DSM_TRANSPORT", &transport);
        children.push(command.spawn()?);
    }
    rendezvous.run();
    for mut child in children {
        child.wait()?;
    }
    Ok(())
}

/// Microseconds per round, of the best of many short runs: what else the machine does is not the question.
fn timed(rounds: u32, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    const RUN: u32 = 20;
    let mut best = f64::MAX;
    for _ in 0..rounds / RUN {
        let start = Instant::now();
        for _ in 0..RUN {
            work()?;
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e6 / f64::from(RUN));
    }
    Ok(best)
}

fn show(job: &Job, what: &str, us: f64) {
    if job.rank() == 0 {
        println!("{:9} {what:44} {us:9.2} us", job.transport().name());
    }
}

fn measure() -> Result<()> {
    let job = Job::join(Settings::from_env()?)?;
    bare(&job)?;
    for _ in 0..100 {
        job.barrier()?;
    }
    let us = timed(ROUNDS, || Ok(job.barrier()?))?;
    show(&job, "empty barrier", us);
    locks(&job)?;
    pages(&job)?;
    if job.rank() == 0 {
        println!("{:?}", job.statistics());
    }
    Ok(job.leave()?)
}

fn locks(job: &Job) -> Result<()> {
    let counter = job.shared::<u64>(1, &Placement::On(1))?;
    if job.rank() == 0 {
        let us = timed(ROUNDS, || {
            job.lock(1)?;
            Ok(job.unlock(1)?)
        })?;
        show(job, "lock and unlock, remote, nobody else", us);
    }
    job.barrier()?;
    let us = timed(ROUNDS, || {
        let _guard = job.guard(1)?;
        counter.update(0, |count| count + 1);
        Ok(())
    })?;
    job.barrier()?;
    assert_eq!(counter.get(0), 2 * u64::from(ROUNDS));
    show(job, "counter under one lock, both", us);
    Ok(())
}

fn pages(job: &Job) -> Result<()> {
    job.configure(Tuning::HomeMigration, false);
    let words = PAGE / 8;
    let array = job.shared::<u64>(PAGES * words, &Placement::On(1))?;
    if job.rank() == 1 {
        (0..PAGES * words).for_each(|at| array.set(at, at as u64));
    }
    job.barrier()?;
    if job.rank() == 0 {
        // A walk that is no walk: no page is the neighbour of the one before.
        let mut step = 0;
        let us = timed(PAGES as u32, || {
            let page = step * 7 % PAGES;
            step += 1;
            assert_eq!(array.get(page * words), (page * words) as u64);
            Ok(())
        })?;
        show(job, "read fault and fetch of a page", us);
    }
    job.barrier()?;
    if job.rank() == 1 {
        (0..PAGES).for_each(|page| array.update(page * words, |word| word + 1));
    }
    job.barrier()?;
    if job.rank() == 0 {
        let mut page = 0;
        let us = timed(PAGES as u32, || {
            assert_eq!(array.get(page * words), (page * words) as u64 + 1);
            page += 1;
            Ok(())
        })?;
        show(job, "the same in order, with prefetch", us);
        let start = Instant::now();
        (0..PAGES).for_each(|page| array.set(page * words + 3, 7));
        show(job, "write fault with twin", start.elapsed().as_secs_f64() * 1e6 / PAGES as f64);
    }
    let start = Instant::now();
    job.barrier()?;
    show(job, "diff of a page, at a barrier", start.elapsed().as_secs_f64() * 1e6 / PAGES as f64);
    assert_eq!(array.get(3), 7);
    Ok(())
}

/// Bare operations on queue pairs of our own.
fn bare(job: &Job) -> Result<()> {
    let device = Device::open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
    let region = pd.region(1 << 16).remote_read().remote_write().remote_atomic().register()?;
    let qp = pd.rc(&cq).create()?;
    let peer = 1 - job.rank();
    job.send(peer, 0, &qp.endpoint()?.to_bytes())?;
    job.send(peer, 1, &region.remote().to_bytes())?;
    let (mut endpoint, mut remote) = ([0; Endpoint::ENCODED_LEN], [0; RemoteRegion::ENCODED_LEN]);
    job.recv(Some(peer), Some(0), &mut endpoint)?;
    job.recv(Some(peer), Some(1), &mut remote)?;
    qp.connect(&Endpoint::from_bytes(&endpoint)?)?;
    job.wait_all()?;
    if job.rank() == 0 {
        let remote = RemoteRegion::from_bytes(&remote)?;
        operations(job, &qp, &region, remote)?;
    }
    Ok(job.wait_all()?)
}

fn operations(job: &Job, qp: &RcQp, region: &ferroce::Region, remote: RemoteRegion) -> Result<()> {
    let us = timed(ROUNDS, || {
        qp.read(1, &[region.sge(0..4096)?], remote.slice(0..4096)?)?;
        qp.send_cq().wait()?.ok()?;
        Ok(())
    })?;
    show(job, "bare READ of 4096 bytes", us);
    let us = timed(ROUNDS, || {
        qp.fetch_add(1, region.sge(0..8)?, remote.slice(0..8)?, 1)?;
        qp.send_cq().wait()?.ok()?;
        Ok(())
    })?;
    show(job, "bare FETCH_ADD", us);
    Ok(())
}
