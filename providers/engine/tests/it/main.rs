//! The engine with the smallest driver, and its key table.

mod driver;
mod keys;
