//! What the layering tests need to read Rust sources: see [`source`].

#![forbid(unsafe_code)]

pub mod source;
