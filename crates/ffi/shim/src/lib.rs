//! A preloaded library that provides the device's files without a mount namespace, by changing file names.
//!
//! A machine without RDMA has nothing below /sys/class/infiniband and /dev/infiniband, and only root could add files
//! there. So this library wraps the functions of libc that take a file name: a name below one of these folders is redirected
//! to the folder in `FERROCE_SHIM`. All other names are unchanged. The library does not affect programs that make system
//! calls without libc.
//!
//! Invariants: no function here allocates, locks or panics, since it may run in a signal handler or between fork and
//! exec. `errno` is that of the wrapped function. The exception is the first call of each wrapper: it looks up the wrapped function with
//! `dlsym`, which takes the loader's lock. A signal handler that interrupts the loader must not make that first call.
//!
//! | file | content |
//! |---|---|
//! | `rename` | which names are changed, and to what |
//! | `next` | the lookup of the wrapped functions |
//! | `wrap` | the wrappers |
//! | `resolve` | the wrappers of functions that return a name |

mod next;
mod rename;
mod resolve;
mod wrap;
