//! Two emulated iWARP devices, joined directly or by a stream, in virtual time.

mod capabilities;
mod connection;
mod direct;
mod faults;
mod lab;
mod stream;
mod terminates;
