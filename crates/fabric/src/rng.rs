//! Random numbers with a fixed sequence on every machine: PCG-XSH-RR 64/32 (O'Neill 2014).
//!
//! Each purpose and instance (host, port, switch) has its own stream, so a new flow does not change the numbers of others.

use ferroce_proto::cc::ln;

/// What a stream is for. The number of the instance (host, port, switch) is added to it.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    /// Arrivals of flows, by workload.
    Arrivals = 1,
    /// Sizes of flows.
    Sizes = 2,
    /// Who sends to whom.
    Pairs = 3,
    /// ECN marking, by port.
    Marking = 4,
    /// Hash seeds, by switch.
    Hashing = 5,
    /// Loss on links, by port.
    Loss = 6,
}

/// A generator.
#[derive(Clone, Copy, Debug)]
pub struct Pcg32 {
    state: u64,
    increment: u64,
}

const MULTIPLIER: u64 = 6364136223846793005;

impl Pcg32 {
    /// The generator with this seed and stream, as the reference implementation starts it.
    pub fn new(seed: u64, stream: u64) -> Pcg32 {
        let mut rng = Pcg32 { state: 0, increment: (stream << 1) | 1 };
        rng.next_u32();
        rng.state = rng.state.wrapping_add(seed);
        rng.next_u32();
        rng
    }

    /// The stream of a purpose and an instance.
    pub fn stream(seed: u64, purpose: Purpose, instance: u64) -> Pcg32 {
        Pcg32::new(mix(seed), (purpose as u64) << 40 | instance)
    }

    /// The next 32 bits.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        let old = self.state;
        self.state = old.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
        let shifted = (((old >> 18) ^ old) >> 27) as u32;
        shifted.rotate_right((old >> 59) as u32)
    }

    /// A whole number below `bound`; zero if the bound is zero.
    pub fn below(&mut self, bound: u32) -> u32 {
        // The product's upper half is biased by at most bound / 2^32, below 1e-5 for any topology.
        ((u64::from(self.next_u32()) * u64::from(bound)) >> 32) as u32
    }

    /// A number in (0, 1].
    pub fn unit(&mut self) -> f64 {
        let bits = u64::from(self.next_u32()) << 21 ^ u64::from(self.next_u32() >> 11);
        (bits + 1) as f64 / (1u64 << 53) as f64
    }

    /// A number with exponential distribution.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * ln(self.unit())
    }
}

/// Spreads the bits of a number (the finaliser of SplitMix64).
#[inline]
pub fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_the_reference_implementation() {
        let mut rng = Pcg32::new(42, 54);
        let expected = [0xa15c02b7, 0x7b47f409, 0xba1d3330, 0x83d2f293, 0xbfa4784b, 0xcbed606e];
        assert_eq!(expected.map(|_| rng.next_u32()), expected);
    }

    #[test]
    fn exponential_numbers_have_their_mean() {
        let mut rng = Pcg32::stream(1, Purpose::Arrivals, 0);
        let sum: f64 = (0..100_000).map(|_| rng.exponential(3.0)).sum();
        assert!((sum / 1e5 - 3.0).abs() < 0.03, "{sum}");
        assert!((0..1000).all(|_| rng.below(7) < 7));
    }
}
