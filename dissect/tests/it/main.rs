//! Captures of others, and captures that the tests make.

mod captures;
mod files;
mod made;
mod tshark;
