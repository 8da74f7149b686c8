//! rdma-core's verbs in C over Polyverbs' safe objects.
//!
//! Each function implements a symbol, or a slot of a table that programs call through: it checks pointers, converts structures
//! to arguments, and returns an error number. The engine implements the devices, and `verbs-api` the rules of verbs. The crate
//! `polyverbs-c-libraries` maps symbols to functions.

pub mod ah;
pub mod builder;
pub mod cancel;
pub mod context;
pub mod cq;
pub mod descriptors;
pub mod device;
pub mod dm;
pub mod entry;
pub mod errno;
pub mod events;
pub mod interface;
pub mod kept;
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
#[cfg(target_arch = "x86_64")]
pub mod signals;
pub mod sinks;
pub mod srq;
pub mod trace;
pub mod xrc;

pub use polyverbs_abi as abi;
