//! Peers that mean harm: to InfiniBand's connection manager, and to MPA over TCP.
mod amplification;
mod cm;
mod forged;
#[allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "../managed/mod.rs"]
mod managed;
mod mpa;
mod segments;
