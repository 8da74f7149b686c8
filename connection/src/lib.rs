//! Connections between queue pairs: one face over InfiniBand's connection manager and iWARP's MPA.
//!
//! [`ib`] and [`mpa`] have the two protocols as state machines without clock or socket. `docs/connection.md` tells what
//! belongs where.
#![forbid(unsafe_code)]

pub mod ib;
pub mod mpa;
