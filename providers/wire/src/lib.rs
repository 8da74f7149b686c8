//! RoCEv2 and iWARP on the wire: every header in two forms, the opcodes in one table for each protocol, the checksums.
//!
//! | module | holds |
//! | --- | --- |
//! | [`roce`] | packets of the InfiniBand transport, and their invariant CRC |
//! | [`mad`] | management datagrams; the messages of the connection manager |
//! | [`iwarp`] | MPA, DDP, RDMAP: what a TCP stream carries |
//! | [`net`] | the headers below: Ethernet, IP, UDP, TCP |
//! | [`layout`] | how a header is declared, read in place, and written |
//!
//! A *view* is the octets themselves, read in place; an *owned form* is a struct of plain numbers. Nothing here
//! allocates, and nothing panics whatever the octets are: what is not of the protocol is a `Reject`, which says why and
//! which code the protocol has for it. What only a queue pair can judge (sequence, rights, lengths against its path MTU)
//! is the drivers'.
//!
//! With the feature `serde` the owned forms can be written and read as JSON and the like; octets are hexadecimal digits.
#![forbid(unsafe_code)]

pub mod iwarp;
pub mod layout;
pub mod mad;
pub mod net;
pub mod roce;
