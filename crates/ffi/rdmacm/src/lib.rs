//! `librdmacm.so.1`: how programs of the C world make connections, translated to ferroce's NIC and nothing else.
//!
//! All state of the NIC lives in libibverbs.so.1. What this library needs of it that is no verb comes through the table
//! of `ferroce_bridge`.
//!
//! | room | what lives there |
//! |---|---|
//! | `abi` | the structures and numbers of <rdma/rdma_cma.h>, their layout asserted |
//! | `exports` | the names that programs link with |
//! | `guard` | what every call goes through: panics and refusals become numbers |
//! | `verbs` | libibverbs.so.1, as this library calls it |
//! | `rsocket` | sockets over connections |

#![allow(dead_code, reason = "the skeleton: who uses it comes next")]

mod abi;
mod exports;
mod guard;
mod rsocket;
mod verbs;
