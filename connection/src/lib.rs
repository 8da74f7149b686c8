//! Connections between queue pairs: one face over InfiniBand's connection manager and iWARP's MPA.
//!
//! [`ib`] has the protocol of InfiniBand as a state machine without clock or socket. `docs/connection.md` tells what
//! belongs where.
#![forbid(unsafe_code)]

pub mod ib;
