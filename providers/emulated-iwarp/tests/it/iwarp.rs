//! Two emulated iWARP devices in virtual time, joined directly or by a stream.

mod capabilities;
mod connection;
mod direct;
mod faults;
mod lab;
mod stream;
mod terminates;
