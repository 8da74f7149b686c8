//! The library as C programs see it.

mod absent;
mod cards;
mod fails;
mod forks;
mod hostile;
mod kept;
mod looks;
mod moments;
mod program;
mod symbols;
mod umad;
mod unopened;
