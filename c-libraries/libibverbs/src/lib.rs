//! rdma-core's verbs for C programs, over the safe objects of `verbs-api`.
//!
//! Each function implements an exported symbol, or a slot of an operation table that programs call through: it checks
//! pointers, converts structures to arguments, and returns an error number. The emulated devices do the work, and
//! `verbs-api` checks the rules of verbs. The crate `polyverbs-c-libraries` maps symbols to functions.

pub mod ah;
pub mod buf;
pub mod builder;
pub mod cancel;
pub mod context;
pub mod counter;
pub mod cq;
pub mod descriptors;
pub mod device;
pub mod dm;
pub mod dmah;
pub mod entry;
pub mod errno;
pub mod events;
pub mod faults;
pub mod interface;
pub mod kept;
pub mod mr;
pub mod mw;
pub mod names;
pub mod object;
pub mod odp;
pub mod open;
pub mod pd;
pub mod post;
pub mod qp;
pub mod qp_ex;
pub mod query;
pub mod setup;
#[cfg(target_arch = "x86_64")]
pub mod signals;
pub mod sinks;
pub mod srq;
pub mod trace;
pub mod xrc;

pub use polyverbs_abi as abi;
