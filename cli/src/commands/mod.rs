//! One module for each subcommand.

pub(crate) mod capture;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod copy;
pub(crate) mod devices;
pub(crate) mod dissect;
pub(crate) mod fabric;
pub(crate) mod install;
pub(crate) mod matrix;
pub(crate) mod network;
pub(crate) mod perf;
pub(crate) mod ping;
pub(crate) mod plan;
pub(crate) mod profile;
pub(crate) mod put;
pub(crate) mod rds;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod tour;
