//! `AF_RDS` sockets for unmodified programs, which `polyverbs run` starts: `libpolyverbs_redirect.so` replaces functions of the C
//! library, and calls [`calls`] for the descriptors of such sockets.
//!
//! A program's descriptor is a file of the kernel, so that `poll`, `select` and `epoll` work without this library (`mirror`). The
//! table finds the [`polyverbs_rds::RdsSocket`] (`socket`) of a descriptor by its number (`table`).
#![deny(unsafe_code)]

pub mod calls;
mod control;
mod devices;
mod mirror;
mod operations;
mod options;
mod signals;
mod socket;
mod table;
