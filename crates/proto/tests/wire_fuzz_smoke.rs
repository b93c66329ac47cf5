//! The fuzz targets over a fixed number of random and mutated inputs: no coverage guides them, but they run in every
//! test run. `FERROCE_SEED` replays one.

#[path = "../../../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "it is the library of the fuzz crate")]
mod targets;

use std::panic::{self, AssertUnwindSafe};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fs};

const INPUTS: usize = 100_000;
const GOLDEN_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/golden.hex");

/// SplitMix64: a stream of numbers that a seed repeats.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

fn seed() -> u64 {
    let seed = match env::var("FERROCE_SEED") {
        Ok(text) => text.parse().expect("FERROCE_SEED is a number"),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64,
    };
    println!("\nFERROCE_SEED={seed}");
    seed
}

/// Golden packets from their BTH on; the IP versions do not matter here.
fn golden_packets() -> Vec<Vec<u8>> {
    let text = fs::read_to_string(GOLDEN_FILE).expect("the golden file is there");
    let frames = text.lines().filter_map(|line| line.strip_prefix("v4_")?.split_once(' '));
    let unhex = |hex: &str| {
        let digit = |c: u8| (c as char).to_digit(16).expect("hexadecimal") as u8;
        hex.as_bytes().chunks_exact(2).map(|c| digit(c[0]) << 4 | digit(c[1])).collect::<Vec<u8>>()
    };
    let packets: Vec<_> = frames.map(|(_, frame)| unhex(&frame[2 * 42..frame.len() - 8])).collect();
    assert!(packets.len() > 60, "golden packets");
    packets
}

fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..random.below(4) {
        let at = random.below(bytes.len().max(1));
        match random.below(5) {
            0 => bytes.truncate(at),
            1 => {
                let len = random.below(9);
                bytes.extend(random.bytes(len));
            }
            2 if !bytes.is_empty() => bytes[at] = random.next() as u8,
            3 if bytes.len() > 12 => bytes[random.below(12)] = random.next() as u8,
            _ if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            _ => {}
        }
    }
}

fn run(target: fn(&[u8]), prefix_len: usize) {
    let seed = seed();
    let mut random = Random(seed);
    let golden = golden_packets();
    for round in 0..INPUTS {
        let mut input = random.bytes(prefix_len);
        if round % 2 == 0 {
            let len = random.below(96);
            input.extend(random.bytes(len));
        } else {
            let mut packet = golden[random.below(golden.len())].clone();
            mutate(&mut random, &mut packet);
            input.extend(packet);
        }
        if let Err(reason) = panic::catch_unwind(AssertUnwindSafe(|| target(&input))) {
            println!("FERROCE_SEED={seed}, input {round}: {input:02x?}");
            panic::resume_unwind(reason);
        }
    }
}

#[test]
fn packets() {
    run(targets::packet, 0);
}

#[test]
fn invariant_checksums() {
    run(targets::icrc_of, 12);
}

/// Bytes that begin like messages, so that the parser does not refuse all of them by the header.
#[test]
fn management_datagrams() {
    let mut random = Random(seed());
    for _ in 0..INPUTS {
        let len = 250 + random.below(12);
        let mut input = random.bytes(len);
        input[..4].copy_from_slice(&[1, 7, 2, 3]);
        input[16..18].copy_from_slice(&[0, 0x10 + random.below(12) as u8]);
        mutate(&mut random, &mut input);
        targets::mad(&input);
    }
}

/// Random sequences of choices.
fn run_sequences(target: fn(&[u8]), inputs: usize, max_len: usize) {
    let seed = seed();
    let mut random = Random(seed);
    for round in 0..inputs {
        let len = random.below(max_len);
        let input = random.bytes(len);
        if let Err(reason) = panic::catch_unwind(AssertUnwindSafe(|| target(&input))) {
            println!("FERROCE_SEED={seed}, input {round}: {input:02x?}");
            panic::resume_unwind(reason);
        }
    }
}

#[test]
fn sequences_of_connection_management() {
    run_sequences(targets::cm, INPUTS / 5, 800);
}

#[test]
fn sequences_of_a_queue_pair() {
    run_sequences(targets::qp, INPUTS / 20, 500);
}
