//! Requests of connectors on every network: one body for frames that are delivered within one process, for
//! InfiniBand's connection manager over UDP, and for MPA over TCP.

mod by_program;
mod connector;
mod datagrams;
mod ends;
mod flood;
mod phases;
