//! Matrix multiply: each process computes a band of rows of the product.
//!
//!     ferroce dsm run -n 4 target/release/examples/mm [N]
//!
//! Without the launcher it is a job of one process. The product is checked with a random vector, which costs little.

use ferroce_dsm::{Error, Job, Placement, Settings};
use std::time::Instant;

/// Small whole numbers: sums of them are exact, whatever the order.
fn element(row: usize, column: usize) -> f64 {
    ((row * 7 + column * 13) % 11) as f64 - 5.0
}

/// `vector` times a matrix of `n` columns.
fn multiply(vector: &[f64], matrix: &[f64], n: usize) -> Vec<f64> {
    let mut product = vec![0.0; n];
    for (factor, row) in vector.iter().zip(matrix.chunks(n)) {
        for (sum, value) in product.iter_mut().zip(row) {
            *sum += factor * value;
        }
    }
    product
}

fn main() -> Result<(), Error> {
    let n = std::env::args().nth(1).map_or(512, |word| word.parse::<usize>().expect("a number"));
    let job = Job::join(Settings::from_env()?)?;
    let (rank, size) = (job.rank() as usize, job.size() as usize);
    let rows = n.div_ceil(size);
    let own = (rank * rows).min(n)..((rank + 1) * rows).min(n);
    let banded = Placement::Cyclic { block: rows * n * 8, first: 0 };
    let [a, b, c] = [(); 3].map(|()| job.shared::<f64>(n * n, &banded));
    let (a, b, c) = (a?, b?, c?);
    for row in own.clone() {
        let line: Vec<f64> = (0..n).map(|column| element(row, column)).collect();
        a.write(row * n, &line)?;
        b.write(row * n, &line)?;
    }
    job.barrier()?;
    let start = Instant::now();
    // SAFETY: nobody writes `a` and `b` after the barrier.
    let (left, right) = unsafe { (a.slice(own.start * n..own.end * n), b.slice(0..n * n)) };
    // SAFETY: the rows of the product belong to one process each.
    let product = unsafe { c.slice_mut(own.start * n..own.end * n) };
    for (row, out) in left.chunks(n).zip(product.chunks_mut(n)) {
        out.copy_from_slice(&multiply(row, right, n));
    }
    job.barrier()?;
    let seconds = start.elapsed().as_secs_f64();
    if rank == 0 {
        let vector: Vec<f64> = (0..n).map(|at| ((at * 5) % 7) as f64 - 3.0).collect();
        let mut all = vec![0.0; n * n];
        c.read(0, &mut all)?;
        // v(AB) and (vA)B are the same, and only one of them needs the product.
        let expected = multiply(&multiply(&vector, a_all(&a, n)?.as_slice(), n), right, n);
        assert!(multiply(&vector, &all, n) == expected, "the product is wrong");
        println!("mm: {n} x {n}, {size} processes: {seconds:.6} s ok");
    }
    job.barrier()?;
    job.leave()
}

fn a_all(a: &ferroce_dsm::Shared<[f64]>, n: usize) -> Result<Vec<f64>, Error> {
    let mut all = vec![0.0; n * n];
    a.read(0, &mut all)?;
    Ok(all)
}
