//! The same-host fabric: what two processes of one user do without a wire.

// Nothing registers memory with it yet.
#[allow(dead_code)]
mod adopt;
mod maps;
mod standstill;
