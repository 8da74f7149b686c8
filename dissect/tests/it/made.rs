//! Packets made here: every kind of link, streams in any order, and everything that may be wrong.

mod fragments;
mod links;
pub(crate) mod maker;
mod property;
mod rds;
mod streams;
