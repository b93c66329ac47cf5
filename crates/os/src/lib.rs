//! The interface to Linux, except for packets. Nothing here is about RDMA.
//!
//! | module | question |
//! |---|---|
//! | [`clock`] | the time, in nanoseconds |
//! | [`descriptors`] | how many descriptors the process may have |
//! | [`mod@env`] | variables of the environment, unless the program is setuid |
//! | [`epoll`], [`eventfd`], [`timerfd`], [`wait_set`] | descriptors to watch and to sleep on |
//! | [`fork`] | whether this process is a forked child |
//! | [`interfaces`], [`watch`] | the network interfaces and their addresses; a notification when they change |
//! | [`library`] | functions of a library that may be missing |
//! | [`lock`] | locks that never allocate |
//! | [`log`] | `FERROCE_LOG` |
//! | [`memory`] | the length of a page, and how much memory may be locked; prefetching |
//! | [`random`] | random numbers, at process exit too |
//! | [`signal`] | signal handlers that call the program's handler for signals that are not theirs |
//! | [`sync`] | atomics and locks of code that is model-checked |
//! | [`thread`] | threads that no signal of the program reaches; short time slices |

pub mod clock;
pub mod descriptors;
pub mod env;
pub mod epoll;
pub mod eventfd;
pub mod fork;
pub mod interfaces;
pub mod library;
pub mod lock;
pub mod log;
pub mod memory;
pub mod random;
pub mod signal;
pub mod sync;
pub mod thread;
pub mod timerfd;
pub mod wait_set;
pub mod watch;
