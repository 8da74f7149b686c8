//! Tests of the fabric, without any process but that of the test.

mod members;
mod rig;
mod subnet;
mod switches;
mod topology;
