//! Hostile peers of InfiniBand's connection manager, and of MPA over TCP.

mod amplification;
mod cm;
mod forged;
mod mpa;
mod segments;
