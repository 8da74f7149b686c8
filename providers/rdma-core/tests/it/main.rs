//! Tests of the provider over the C libraries of this workspace.

mod bindings;
mod common;
mod connections;
mod exchange;
mod extended_reliable;
mod over_our_library;
