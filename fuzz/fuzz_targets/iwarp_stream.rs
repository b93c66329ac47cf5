#![no_main]

#[path = "../src/iwarp.rs"]
#[expect(dead_code, reason = "the other target uses the rest")]
mod iwarp;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| iwarp::stream(bytes));
