//! The library as C programs see it.

mod forks;
mod kept;
mod program;
mod symbols;
