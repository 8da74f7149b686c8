//! Exchanges data between a device of ours and one of the kernel, and prints what was exercised.
//!
//! The other side is `peer.c`, which does with libibverbs what it is told over TCP, or `ibv_rc_pingpong`. See the scripts
//! beside this crate: they run both in a guest.
#![forbid(unsafe_code)]

mod exercises;
mod ours;
mod pingpong;
mod theirs;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

use crate::exercises::Row;
use crate::ours::Host;

#[derive(Parser)]
#[command(about = "Exchanges data with a device of the kernel")]
struct Arguments {
    /// The address of our device.
    #[arg(long)]
    device: IpAddr,
    /// The table is appended to this file.
    #[arg(long)]
    table: Option<PathBuf>,
    /// What our device sends and receives is captured in this file (pcapng).
    #[arg(long)]
    capture: Option<PathBuf>,
    #[command(subcommand)]
    with: With,
}

#[derive(Subcommand)]
enum With {
    /// `peer`, which does what it is told: every operation in both directions.
    Peer {
        /// Where it listens.
        at: SocketAddr,
    },
    /// `ibv_rc_pingpong`, waiting for us.
    ConnectPingpong {
        /// Where it listens.
        at: SocketAddr,
        #[command(flatten)]
        size: Size,
    },
    /// `ibv_rc_pingpong`, that comes to us.
    ListenPingpong {
        /// Where we listen.
        at: SocketAddr,
        #[command(flatten)]
        size: Size,
    },
}

#[derive(clap::Args, Clone, Copy)]
struct Size {
    /// Octets of a message.
    #[arg(long, default_value_t = 4096)]
    octets: usize,
    /// Messages in each direction.
    #[arg(long, default_value_t = 1000)]
    count: usize,
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} times {} B", self.count, self.octets)
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("peers: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let host = Host::new(arguments.device, arguments.capture.as_deref())?;
    let rows = match arguments.with {
        With::Peer { at } => exercises::all(&host, at),
        With::ConnectPingpong { at, size } => vec![pingpong::connect(&host, at, size)],
        With::ListenPingpong { at, size } => vec![pingpong::listen(&host, at, size)],
    };
    host.finish()?;
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header(["operation", "direction", "what", "outcome"]);
    for row in &rows {
        table.add_row(row.cells());
    }
    println!("{table}");
    if let Some(path) = &arguments.table {
        let lines: String = rows.iter().map(Row::line).collect();
        append(path, &lines).with_context(|| path.display().to_string())?;
    }
    Ok(rows.iter().all(|row| row.outcome.is_ok()))
}

fn append(path: &std::path::Path, lines: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(path)?;
    file.write_all(lines.as_bytes())
}
