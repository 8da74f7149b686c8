//! The protocol in virtual time: hosts are joined by links that keep the order, delay fragments, and may end between any two of
//! them.

mod connections;
mod flow;
mod hostile;
mod linux;
mod lossy;
mod messages;
mod net;

mod operations;
mod processes;
mod runs;
