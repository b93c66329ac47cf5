//! Unpredictable random numbers, even while the process exits.
//!
//! Programs and their libraries use verbs in exit handlers, and the NIC itself closes its connections then. The thread-local generator is
//! already destroyed at that time: [`rand::rng`] would panic. So the NIC does not use it (clippy.toml).

use rand::distr::{Distribution, StandardUniform};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// A generator for several numbers, seeded by the system.
pub fn generator() -> StdRng {
    StdRng::from_os_rng()
}

/// One number.
pub fn number<T>() -> T
where
    StandardUniform: Distribution<T>,
{
    generator().random()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::mpsc::{Sender, channel};

    /// Requests a number when its thread ends.
    struct NumberAtExit(Cell<Option<Sender<u64>>>);

    impl Drop for NumberAtExit {
        fn drop(&mut self) {
            if let Some(tell) = self.0.take() {
                let _ = tell.send(number());
            }
        }
    }

    thread_local! {
        static AT_EXIT: NumberAtExit = const { NumberAtExit(Cell::new(None)) };
    }

    #[test]
    fn there_are_numbers_when_a_thread_has_no_generator_any_more() {
        let (tell, told) = channel();
        std::thread::spawn(move || {
            AT_EXIT.with(|at_exit| at_exit.0.set(Some(tell)));
            // Created later, so destroyed first.
            #[expect(clippy::disallowed_methods, reason = "this is what must not be asked")]
            let _ = rand::rng().random::<u64>();
        })
        .join()
        .expect("no panic");
        told.recv().expect("a number");
    }
}
