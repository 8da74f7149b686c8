//! Packets that the tests make: every kind of link, streams in any order, and every fault.

mod fragments;
mod links;
pub(crate) mod maker;
mod property;
mod rds;
mod streams;
