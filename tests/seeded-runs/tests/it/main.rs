//! Seeded fault runs of both drivers.

mod infiniband;
mod iwarp;
