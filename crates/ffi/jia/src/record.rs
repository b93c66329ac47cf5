//! The section of a program that `ferroce dsm run --stat` counts.

use crate::clock;
use crate::process::run;
use std::ffi::c_uint;

fn since_start_us() -> c_uint {
    // Wraps after 71 minutes, the range of the type.
    clock::start().elapsed().as_micros() as c_uint
}

/// Starts the counted section.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_startstat() -> c_uint {
    run("jia_startstat", |job| {
        job.begin_statistics();
        Ok(since_start_us())
    })
}

/// Ends the counted section.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_stopstat() -> c_uint {
    run("jia_stopstat", |job| {
        job.end_statistics();
        Ok(since_start_us())
    })
}
