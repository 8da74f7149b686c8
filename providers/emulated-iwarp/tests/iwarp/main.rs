//! Two emulated iWARP devices, joined directly or by a stream, in virtual time.

mod capabilities;
mod connection;
mod direct;
mod lab;
mod stream;
