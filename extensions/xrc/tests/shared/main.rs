//! Domains that the processes at one address share.

mod group;
mod node;
mod processes;
