//! Tests of the driver in virtual time and over TCP.

mod iwarp;
mod tcp;
