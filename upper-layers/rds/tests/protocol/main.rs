//! The protocol in virtual time: hosts that are joined by links which keep order, are slow, and end between any two fragments.

mod connections;
mod flow;
mod hostile;
mod messages;
mod net;

mod operations;
mod processes;
mod runs;
