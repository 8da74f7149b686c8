//! The verbs of rdma-core's C interface over Polyverbs' safe objects.
//!
//! Each function is what the symbol of the same meaning, or the slot of a table that programs call through, does: it looks
//! at pointers, turns structures into arguments, and answers an error number. What a device does is the engine's matter,
//! and the rules of verbs are those of `verbs-api`. Which symbol is which function stands in the crate `polyverbs-compat`.

pub mod absent;
pub mod ah;
pub mod builder;
pub mod context;
pub mod cq;
pub mod device;
pub mod dm;
pub mod errno;
pub mod events;
pub mod interface;
pub mod lock;
pub mod mr;
pub mod mw;
pub mod names;
pub mod object;
pub mod open;
pub mod pd;
pub mod post;
pub mod qp;
pub mod qp_ex;
pub mod query;
pub mod setup;
pub mod sinks;
pub mod srq;
pub mod trace;
pub mod xrc;

pub use polyverbs_abi as abi;
