//! The engine under the smallest driver, and its table of keys.

mod driver;
mod keys;
