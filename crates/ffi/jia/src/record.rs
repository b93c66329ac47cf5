//! The part of a program that `ferroce dsm run --stat` counts.

use crate::clock;
use crate::process::run;
use std::ffi::c_uint;

fn since_start_us() -> c_uint {
    // Wraps after an hour and a bit, as a C program's number of this kind does.
    clock::start().elapsed().as_micros() as c_uint
}

/// The part that counts begins.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_startstat() -> c_uint {
    run("jia_startstat", |job| {
        job.begin_statistics();
        Ok(since_start_us())
    })
}

/// The part that counts ends.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_stopstat() -> c_uint {
    run("jia_stopstat", |job| {
        job.end_statistics();
        Ok(since_start_us())
    })
}
