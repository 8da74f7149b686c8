//! Masked atomics on the wire, and of several threads.

mod concurrency;
mod wire;
