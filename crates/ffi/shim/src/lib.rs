//! Shows programs the device's files where no mount namespace can: a preloaded library that changes file names.
//!
//! Below /sys/class/infiniband and /dev/infiniband there is nothing on a machine without RDMA, and nobody but root could
//! put something there. So the functions of libc that take a file name are wrapped: a name below one of these folders
//! is looked up in the folder that `FERROCE_SHIM` names. Every other name goes through untouched, and so do programs that
//! make system calls without libc.
//!
//! What must hold: nothing here allocates, locks or panics, since all of it may run in a signal handler or between fork
//! and exec; and `errno` is what the wrapped function left there.
//!
//! | file | what lives there |
//! |---|---|
//! | `rename` | which names are changed, and to what |
//! | `next` | the functions that are wrapped, as the loader finds them behind us |
//! | `wrap` | the wrappers |
//! | `resolve` | those whose answer is a name itself |

mod next;
mod rename;
mod resolve;
mod wrap;
