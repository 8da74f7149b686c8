//! The facade and its examples.

mod appearance;
mod connecting;
mod counters;
mod glob_import;
mod key_value;
mod limits;
mod logging;
mod many_connections;
mod programs;
mod registry_numbers;
mod rping;
mod streams;
mod strict_signaling;
mod submitted;
mod tshark;
mod unguessable;
mod virtual_time;
mod watching;
