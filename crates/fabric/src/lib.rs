//! Simulates fabrics of RDMA hosts and switches, with the congestion control that ferroce's queue pairs run.
//!
//! A [`Scenario`](scenario::Scenario) names a topology, a workload and one or more controllers. [`World`](world::World)
//! runs it under virtual time, and [`report`] condenses what happened. Everything is deterministic: the same scenario
//! and seed give the same [hash](world::World::hash) on every machine.

#![forbid(unsafe_code)]

pub mod events;
pub mod packet;
pub mod report;
pub mod rng;
pub mod scenario;
mod seq_set;
pub mod switch;
pub mod topology;
pub mod workload;
pub mod world;
