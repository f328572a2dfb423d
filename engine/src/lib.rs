//! EventMQ: a job execution and messaging system that speaks eMQP/1.0 over ZeroMQ.
//!
//! The crate is built in layers; a module imports only from layers below its own (the table in
//! `docs/architecture.md`, checked by a test). The lower layers are sans-IO: they take bytes,
//! events and a [`Now`](ids::Now), and return actions. Sockets, clocks, threads and randomness
//! live in `io`, `runtime` and `server`.
#![doc(test(attr(deny(warnings))))]

pub mod ids;
pub mod limits;
pub mod log_limit;
pub mod metrics;

pub mod addr;
pub mod frames;
pub mod json;
pub mod link;
pub mod snapshot;

pub mod emqp;
pub mod zmtp;

pub mod dial;
pub mod job;

#[cfg(feature = "broker")]
pub mod broker;
pub mod ring;

pub mod admin_api;
pub mod io;

pub mod runtime;
pub mod settings;

pub mod daemon;

#[cfg(feature = "broker")]
pub mod server;

#[cfg(feature = "pubsub")]
pub mod pubsub;

#[cfg(feature = "client")]
pub mod client;

#[cfg(feature = "cli")]
pub mod cli;

#[cfg(feature = "jobmanager")]
pub mod jobmanager;
#[cfg(feature = "scheduler")]
pub mod scheduler;
