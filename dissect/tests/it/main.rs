//! Captures of other programs and drivers, and captures that the tests make.

mod captures;
mod files;
mod made;
mod tshark;
