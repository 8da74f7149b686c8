//! Interposes functions of the C library in programs that `polyverbs run` starts. [`paths`], [`answers`], [`lists`] and
//! [`walks`] show them the files of emulated devices, `live` those of a port in a fabric as they are now, [`sockets`] gives them
//! RDS sockets, and [`sanitizers`] makes programs work that are built with a sanitizer.
//!
//! This code neither allocates memory nor takes locks, so that it may be called wherever the interposed functions may.
// The C library's functions are looked up by name at run time.
#![allow(unsafe_code)]
// Each exported function interposes the C function of its name, and has its contract.
#![allow(clippy::missing_safety_doc)]

pub mod answers;
pub mod lists;
mod live;
mod next;
pub mod paths;
pub mod sanitizers;
pub mod sockets;
pub mod walks;
