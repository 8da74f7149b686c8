//! The library as C programs see it.

mod kept;
mod symbols;
