//! Heat in a plate, by Jacobi's method: each process has a band of rows and reads the rows next to it.
//!
//!     ferroce dsm run -n 4 target/release/examples/jacobi [ROWS COLUMNS STEPS]
//!
//! Without the launcher it is a job of one process. The sum over the plate is checked against one process' own.

use ferroce_dsm::{Error, Job, Placement, Settings, Shared};
use std::ops::Range;
use std::time::Instant;

struct Plate {
    rows: usize,
    columns: usize,
}

impl Plate {
    /// The left edge is hot.
    fn start(&self, row: usize, out: &mut [f64]) {
        out.fill(0.0);
        out[0] = 100.0 + row as f64;
    }

    /// One row from itself and its neighbours.
    fn relax(&self, above: &[f64], row: &[f64], below: &[f64], out: &mut [f64]) {
        out[0] = row[0];
        out[self.columns - 1] = row[self.columns - 1];
        for at in 1..self.columns - 1 {
            out[at] = 0.25 * (above[at] + below[at] + row[at - 1] + row[at + 1]);
        }
    }

    /// Bytes of a band, so that each is at home where it is computed.
    fn band(&self, size: usize) -> usize {
        self.rows.div_ceil(size) * self.columns * 8
    }

    /// # Panics
    /// If the plate is not the one that one process alone computes.
    fn check(&self, steps: usize, plate: &Shared<[f64]>) -> Result<(), Error> {
        let (mut now, mut next) = (vec![0.0; self.rows * self.columns], vec![0.0; self.rows * self.columns]);
        for (row, out) in now.chunks_mut(self.columns).enumerate() {
            self.start(row, out);
        }
        next.copy_from_slice(&now);
        for _ in 0..steps {
            for row in 1..self.rows - 1 {
                let line = |row: usize| &now[row * self.columns..(row + 1) * self.columns];
                self.relax(
                    line(row - 1),
                    line(row),
                    line(row + 1),
                    &mut next[row * self.columns..(row + 1) * self.columns],
                );
            }
            std::mem::swap(&mut now, &mut next);
        }
        let mut all = vec![0.0; self.rows * self.columns];
        plate.read(0, &mut all)?;
        assert!(all == now, "the plate is not the one that one process computes");
        Ok(())
    }
}

/// One step for a band of rows.
fn step(plate: &Plate, from: &Shared<[f64]>, to: &Shared<[f64]>, rows: Range<usize>) {
    let columns = plate.columns;
    // SAFETY: between two barriers `from` is only read, and the rows of `to` are written by one process.
    let line = |row: usize| unsafe { from.slice(row * columns..(row + 1) * columns) };
    for row in rows {
        // SAFETY: as above.
        let out = unsafe { to.slice_mut(row * columns..(row + 1) * columns) };
        plate.relax(line(row - 1), line(row), line(row + 1), out);
    }
}

fn main() -> Result<(), Error> {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<usize>().expect("a number"));
    let plate = Plate { rows: numbers.next().unwrap_or(1024), columns: numbers.next().unwrap_or(1024) };
    let steps = numbers.next().unwrap_or(50);
    let job = Job::join(Settings::from_env()?)?;
    let (rank, size) = (job.rank() as usize, job.size() as usize);
    let placement = Placement::Cyclic { block: plate.band(size), first: 0 };
    let mut from = job.shared::<f64>(plate.rows * plate.columns, &placement)?;
    let mut to = job.shared::<f64>(plate.rows * plate.columns, &placement)?;
    let band = plate.rows.div_ceil(size);
    let own = (rank * band).min(plate.rows)..((rank + 1) * band).min(plate.rows);
    let mut line = vec![0.0; plate.columns];
    for row in own.clone() {
        plate.start(row, &mut line);
        from.write(row * plate.columns, &line)?;
        to.write(row * plate.columns, &line)?;
    }
    job.barrier()?;
    let inner = own.start.max(1)..own.end.min(plate.rows - 1);
    let start = Instant::now();
    for _ in 0..steps {
        step(&plate, &from, &to, inner.clone());
        job.barrier()?;
        std::mem::swap(&mut from, &mut to);
    }
    let seconds = start.elapsed().as_secs_f64();
    if rank == 0 {
        plate.check(steps, &from)?;
        println!(
            "jacobi: {} x {}, {steps} steps, {size} processes: {seconds:.6} s ok",
            plate.rows, plate.columns
        );
    }
    job.barrier()?;
    job.leave()
}
