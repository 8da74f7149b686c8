//! Software verbs: the part that every emulated device shares.
//!
//! It is sans-IO: no clock, no socket, no thread. Programs reach it through the provider contract of `verbs-api`
//! ([`context`]); a transport implements the [`driver`] contract; a [`network`] connects devices, over a [`link`] or
//! directly; the owner of the network calls `handle_timeout` when a job is due.
//!
//! Read [`qp`] first (posting, completing, flushing), then [`key_table`] (the one access check).
#![deny(unsafe_code)]

mod array;
pub mod claims;
pub mod commands;
pub mod completion_ring;
pub mod context;
pub mod cq;
pub mod device;
mod directory;
pub mod effects;
pub mod emulation;
pub mod express;
pub mod fault;
pub mod key_table;
pub mod link;
mod loans;
pub mod lock;
pub mod log;
pub mod management;
pub mod named_memory;
pub mod network;
pub mod operation;
pub mod payload;
pub mod pin;
pub mod pool;
pub mod qp;
pub mod qpn;
mod quota;
pub mod receive_ring;
pub mod request;
pub mod rules;
pub mod slab;
mod slots;
pub mod srq;
pub mod sync;
pub mod time;
pub mod timers;
pub mod trace;

pub use device::driver;
