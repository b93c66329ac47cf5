//! The modules of rsockets that need no NIC, with their unit tests. A test of the library itself would be linked with the
//! libibverbs of the system, so this program includes the modules.
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
