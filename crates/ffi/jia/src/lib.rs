//! `libjia`: the C interface of include/jia.h, over `ferroce-dsm`.
//!
//! It only translates numbers and pointers. A refused call prints one sentence and ends the job, since most calls of this
//! interface have no result.
//!
//! | file | calls |
//! |---|---|
//! | `process` | `jia_init`, `jia_exit`, `jia_error`; the wrapper of every call |
//! | `memory` | `jia_alloc*`, `jia_free`, `jia_get`, `jia_put` |
//! | `order` | locks, barriers, flags, `jia_config`, self-scheduled loops |
//! | `messages` | `jia_send`, `jia_recv` |
//! | `tree` | `jia_bcast`, `jia_reduce` |
//! | `balance` | `jia_divtask`, `jia_loadcheck` |
//! | `clock` | `jia_clock`, `jia_current_time` |
//! | `record` | `jia_startstat`, `jia_stopstat`, and what `ferroce dsm run --stat` shows |

mod balance;
mod clock;
mod memory;
mod messages;
mod order;
mod process;
mod record;
mod tree;
