//! Connections over both transports, between friends and against hostile peers.

mod backend;
mod connector;
mod hostile;
mod managed;
mod networks;
mod over_tcp;
mod over_udp;
mod removal;
mod xrc;
