//! `AF_RDS` sockets for unmodified programs, which `polyverbs run` starts: `libpolyverbs_redirect.so` stands in front of the C
//! library's functions, and calls [`calls`] here for descriptors of such sockets.
//!
//! A program's descriptor is a file of the kernel's, which `poll`, `select` and `epoll` look at without us (`mirror`); behind it
//! is a [`polyverbs_rds::RdsSocket`] (`socket`), found by its number (`table`).
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
