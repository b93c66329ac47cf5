//! The parts of rsockets that need no NIC, with the unit tests that lie in them. A test of the library itself would be
//! linked with whatever libibverbs the system has, so they are taken into a program of their own.
#![allow(dead_code, unused_imports, reason = "what the rest of the library uses is not here")]

mod guard {
    pub(crate) fn set_errno(_: std::ffi::c_int) {}
}

#[path = "../src/rsocket"]
mod rsocket {
    mod address;
    mod errno;
    #[path = "datagram/header.rs"]
    mod header;
    mod option;
    mod settings;
    mod stream;
    mod table;
    mod vectors;
    mod wait;
    mod wire;
}
