//! Masked atomics on the wire, and by several threads.

mod concurrency;
mod wire;
