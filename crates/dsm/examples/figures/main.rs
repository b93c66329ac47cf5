//! What the pieces of shared memory cost between two processes, next to bare RDMA operations on the same link.
//!
//!     cargo run --release -p ferroce-dsm --example figures -- rdma
//!
//! With a number behind the transport, that many processes measure only their barrier, direct and over a tree. Over a link
//! between two network namespaces: an address of the first, and how to start a program, the last one, in the second. With `auto` and
//! three processes, the two in the first namespace measure the effect of sharing pages.
//!
//!     ip netns exec one target/release/examples/figures rdma 10.9.0.1 ip netns exec two

mod switches;

use ferroce::{Completion, Device, Endpoint, Outcome, RcQp, Region, RemoteRegion};
use ferroce_dsm::{Job, PAGE, Placement, Rendezvous, Settings, Shared, Tuning};
use std::error::Error;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    if std::env::var("FERROCE_DSM_RANK").is_ok() {
        return measure();
    }
    let mut arguments = std::env::args().skip(1);
    let transport = arguments.next().unwrap_or("rdma".into());
    let mut address = arguments.next();
    let size = match address.as_ref().and_then(|word| word.parse().ok()) {
        Some(size) => {
            address = arguments.next();
            size
        }
        None => 2,
    };
    let rendezvous = match &address {
        Some(address) => Rendezvous::bind_at(size, SocketAddr::new(address.parse()?, 0))?,
        None => Rendezvous::bind(size)?,
    };
    let elsewhere: Vec<String> = arguments.collect();
    let mut children = Vec::new();
    for rank in 0..size {
        let program = std::env::current_exe()?;
        let mut command = match elsewhere.split_first().filter(|_| rank == size - 1) {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            None => Command::new(program),
        };
        let transport = if transport == "auto" { "" } else { &transport };
        command.envs(rendezvous.environment(rank)).env("FERROCE_DSM_TRANSPORT", transport);
        if let Some(address) = address.as_ref().filter(|_| rank == 0) {
            // The bare operations must use the same link.
            command.env("FERROCE_ADDR", address);
        }
        children.push(command.spawn()?);
    }
    rendezvous.run();
    for mut child in children {
        let status = child.wait()?;
        if !status.success() {
            return Err(format!("a process ended with {status}").into());
        }
    }
    Ok(())
}

/// What is measured alternates in rounds, so that disturbances of the machine affect all of it.
const ROUNDS: usize = 21;
/// Operations of one round.
const RUN: usize = 40;

/// Figures by name, in the order in which they were first measured.
#[derive(Default)]
struct Figures(Vec<(&'static str, Vec<f64>)>);

impl Figures {
    /// Runs `work` `times` times, and records the microseconds of one run.
    fn time(&mut self, what: &'static str, times: usize, mut work: impl FnMut() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        for _ in 0..times {
            work()?;
        }
        let us = start.elapsed().as_secs_f64() * 1e6 / times as f64;
        match self.0.iter_mut().find(|(name, _)| *name == what) {
            Some((_, all)) => all.push(us),
            None => self.0.push((what, vec![us])),
        }
        Ok(())
    }

    fn show(mut self, job: &Job) {
        if job.rank() == 0 {
            for (what, all) in &mut self.0 {
                all.sort_by(f64::total_cmp);
                println!("{:9} {what:50} {:9.3} us", job.transport().name(), all[all.len() / 2]);
            }
        }
    }
}

fn measure() -> Result<()> {
    let job = Job::join(Settings::from_env()?)?;
    let mut figures = Figures::default();
    if job.size() != 2 {
        match job.size() {
            3 => switches::colocated(&job, &mut figures)?,
            _ => switches::tree(&job, &mut figures)?,
        }
        figures.show(&job);
        return Ok(job.leave()?);
    }
    let bare = Bare::open(&job)?;
    let fetched = Pages::new(&job, ROUNDS * RUN)?;
    for _ in 0..100 {
        job.barrier()?;
    }
    for round in 0..ROUNDS {
        if job.rank() == 0 {
            figures.time("bare READ of 4096 bytes", RUN, || bare.read())?;
            fetched.fetch(&mut figures, round)?;
            figures.time("bare FETCH_ADD", RUN, || bare.fetch_add())?;
            figures.time("lock and unlock, remote, uncontended", RUN, || {
                job.lock(1)?;
                Ok(job.unlock(1)?)
            })?;
        }
        job.barrier()?;
    }
    // Without other work in between, like programs/mpi/barrier.c, which it is compared with.
    for _ in 0..101 {
        figures.time("empty barrier", 20, || Ok(job.barrier()?))?;
    }
    counter(&job, &mut figures)?;
    pages(&job, &mut figures)?;
    switches::measure(&job, &mut figures)?;
    figures.show(&job);
    Ok(job.leave()?)
}

fn counter(job: &Job, figures: &mut Figures) -> Result<()> {
    let counter = job.shared::<u64>(1, &Placement::On(1))?;
    job.barrier()?;
    for _ in 0..ROUNDS {
        figures.time("counter under one lock, both", RUN, || {
            let _guard = job.guard(1)?;
            counter.update(0, |count| count + 1);
            Ok(())
        })?;
    }
    job.barrier()?;
    assert_eq!(counter.get(0), 2 * (ROUNDS * RUN) as u64);
    Ok(())
}

/// Pages at home at process 1, each with a word that holds its number.
struct Pages {
    array: Shared<[u64]>,
    count: usize,
}

/// Words of a page.
const WORDS: usize = PAGE / 8;

impl Pages {
    fn new(job: &Job, count: usize) -> Result<Self> {
        let array = job.shared::<u64>(count * WORDS, &Placement::On(1))?;
        if job.rank() == 1 {
            (0..count).for_each(|page| array.set(page * WORDS, page as u64));
        }
        job.barrier()?;
        Ok(Self { array, count })
    }

    /// Visits pages so that no page is adjacent to the one before.
    fn fetch(&self, figures: &mut Figures, round: usize) -> Result<()> {
        let mut step = round * RUN;
        figures.time("read fault and fetch of a page", RUN, || {
            // Coprime with the number of pages, so that each comes once.
            let page = step * 11 % self.count;
            step += 1;
            assert_eq!(self.array.get(page * WORDS), page as u64);
            Ok(())
        })
    }
}

/// Process 1 writes, process 0 walks and writes, over and over.
fn pages(job: &Job, figures: &mut Figures) -> Result<()> {
    const PAGES: usize = 200;
    job.configure(Tuning::HomeMigration, false);
    let pages = Pages::new(job, PAGES)?;
    for round in 0..ROUNDS as u64 {
        if job.rank() == 1 {
            (0..PAGES).for_each(|page| pages.array.set(page * WORDS, round));
        }
        job.barrier()?;
        if job.rank() == 0 {
            let mut page = 0;
            figures.time("a page in order, with prefetch", PAGES, || {
                assert_eq!(pages.array.get(page * WORDS), round);
                page += 1;
                Ok(())
            })?;
            let mut page = 0;
            figures.time("write fault with twin", PAGES, || {
                pages.array.set(page * WORDS + 3, round);
                page += 1;
                Ok(())
            })?;
        }
        let mut barrier = || Ok(job.barrier()?);
        figures.time("200 changed pages sent home, at a barrier", 1, &mut barrier)?;
        assert_eq!(pages.array.get(3), round);
    }
    Ok(())
}

/// Operations on a queue pair of our own.
struct Bare {
    qp: RcQp,
    region: Region,
    remote: RemoteRegion,
}

impl Bare {
    fn open(job: &Job) -> Result<Self> {
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
        Ok(Self { qp, region, remote: RemoteRegion::from_bytes(&remote)? })
    }

    fn read(&self) -> Result<()> {
        self.qp.read(1, &[self.region.sge(0..4096)?], self.remote.slice(0..4096)?)?;
        self.done()
    }

    fn fetch_add(&self) -> Result<()> {
        self.qp.fetch_add(1, self.region.sge(0..8)?, self.remote.slice(0..8)?, 1)?;
        self.done()
    }

    /// Polls, as the fastest programs do.
    fn done(&self) -> Result<()> {
        let mut done = [Completion::default()];
        while self.qp.send_cq().poll(&mut done)? == 0 {}
        done[0].ok()?;
        Ok(())
    }
}
