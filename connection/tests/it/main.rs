//! Connections over both transports, between honest peers and against hostile ones.

mod backend;
mod hostile;
mod managed;
mod networks;
mod over_tcp;
mod over_udp;
mod rig;
mod xrc;
