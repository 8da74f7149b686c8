//! Peers that mean harm: to InfiniBand's connection manager, and to MPA over TCP.

mod amplification;
mod cm;
mod forged;
mod mpa;
mod segments;
