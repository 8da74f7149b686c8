//! The library as C programs see it.

mod forks;
mod kept;
mod moments;
mod program;
mod symbols;
