//! RoCEv2, iWARP and RDS on the wire: each header in two forms, one table of opcodes for each protocol, and the checksums.
//!
//! | module | holds |
//! | --- | --- |
//! | [`roce`] | packets of the InfiniBand transport, and their invariant CRC |
//! | [`mad`] | management datagrams: of subnets, of counters, and the messages of the connection manager |
//! | [`iwarp`] | MPA, DDP and RDMAP: the layers that iWARP puts on a TCP stream |
//! | [`rds`] | what RDS, a protocol over verbs, puts into SENDs and into the private data of connections |
//! | [`net`] | the headers below RoCEv2 and iWARP: Ethernet, IP, UDP, TCP |
//! | [`layout`] | how a header is declared, read in place, and written |
//!
//! A *view* is the bytes of a header, read in place; an *owned form* is a struct of plain numbers. This crate does not
//! allocate, and it does not panic on any input. For bytes that do not belong to the protocol it returns a `Reject`, which
//! states the reason and the protocol's error code for it. The drivers check the rules that need a QP: sequence, access
//! rights, and lengths against the path MTU.
//!
//! With the feature `serde` the owned forms can be written and read as JSON and similar formats; byte strings become hexadecimal
//! digits.
#![forbid(unsafe_code)]

pub mod iwarp;
pub mod layout;
pub mod mad;
pub mod net;
pub mod rds;
pub mod roce;
