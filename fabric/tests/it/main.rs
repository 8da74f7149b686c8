//! Tests of the fabric.

mod members;
mod process;
mod rig;
mod subnet;
mod switches;
mod topology;
