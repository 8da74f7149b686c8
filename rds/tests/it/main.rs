//! Sockets over devices with a wire: in one process, and in several at one address.

mod acknowledged;
mod child;
mod ends;
mod processes;
mod sockets;
