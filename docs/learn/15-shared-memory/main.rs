// Several processes share memory. Each fills its part of an array and adds to a counter; process 0 adds the array up.

use ferroce_dsm::{Error, Job, Placement, Settings};

const NUMBERS: usize = 4000;

fn main() -> Result<(), Error> {
    let job = Job::join(Settings::from_env()?)?;
    let (rank, size) = (job.rank() as usize, job.size() as usize);

    // The same memory in all processes, zeroed.
    let pages = Placement::Cyclic { block: 4096, first: 0 };
    let numbers = job.shared::<u64>(NUMBERS, &pages)?;
    let counter = job.shared::<u64>(1, &pages)?;
    job.barrier()?;

    // Every process writes its own part: no lock is needed.
    for index in (rank..NUMBERS).step_by(size) {
        numbers.set(index, index as u64 + 1);
    }

    // All processes write the counter: only with the lock.
    let guard = job.guard(0)?;
    counter.update(0, |count| count + 1);
    guard.unlock()?;

    // Behind the barrier, everybody sees what was written before it.
    job.barrier()?;
    if rank == 0 {
        let sum: u64 = (0..NUMBERS).map(|index| numbers.get(index)).sum();
        println!("{} processes wrote numbers with the sum {sum}", counter.get(0));
    }
    job.barrier()
}
