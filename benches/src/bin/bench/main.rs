//! `bench`: measures Polyverbs, and next to each figure the primitive of this machine that bounds it.
//!
//! The exit status is 0 whether the limits are met or not, because a figure is information and never a test; it is 1 if a
//! figure cannot be measured.

mod bar;
mod control;
mod crowd;
mod idle;
mod load;
mod misses;
mod one_sided;
mod part;
mod programs;
mod raw;
mod rds;
mod report;
mod sends;
mod sockets;
mod wire;
mod wired;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use polyverbs_benches::allocations::Counting;

use part::measure;

// The times must be those of the program whose allocations are counted.
#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Measure Polyverbs, each figure next to the primitive of this machine that bounds it
#[derive(Parser)]
#[command(name = "bench", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
    /// Measure only the parts whose names begin with NAME; if there are none, the error lists all names
    #[arg(long, global = true, value_name = "NAME", default_value = "")]
    only: String,
    /// Print the figures as a JSON object instead of a table
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Bench {
    Bar(bar::Arguments),
    Idle(idle::Arguments),
    Load(load::Arguments),
    OneSided(one_sided::Arguments),
    Raw(raw::Arguments),
    Rds(rds::Arguments),
    Sends(sends::Arguments),
    Wire(wire::Arguments),
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let parts = match &arguments.bench {
        Bench::Bar(bar) => bar::parts(bar),
        Bench::Idle(idle) => idle::parts(idle),
        Bench::Load(load) => load::parts(load),
        Bench::OneSided(one_sided) => one_sided::parts(one_sided),
        Bench::Raw(raw) => raw::parts(raw),
        Bench::Rds(rds) => rds::parts(rds),
        Bench::Sends(sends) => sends::parts(sends),
        Bench::Wire(wire) => wire::parts(wire),
    };
    let report = measure(parts, &arguments.only)?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    if !report.apart {
        println!(
            "The two threads share a processor or move about: figures of two threads say nothing.\n"
        );
    }
    println!("{}", report.table());
    Ok(())
}
