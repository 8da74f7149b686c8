//! Exchanges data between one of our devices and one of the kernel's, and prints the exercises.
//!
//! The other side is `peer.c`, which executes with libibverbs the commands that it receives over TCP, or
//! `ibv_rc_pingpong`. The scripts next to this crate run both in a guest.
#![forbid(unsafe_code)]

mod ends;
mod exercises;
mod ours;
mod pingpong;
mod report;
mod stage;
mod theirs;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use crate::ours::Host;
use crate::report::Row;
use crate::stage::Place;

#[derive(Parser)]
#[command(about = "Exchanges data with a device of the kernel")]
struct Arguments {
    /// Our device: `ib0` or `iw0`.
    #[arg(long)]
    device: String,
    /// The address of our device.
    #[arg(long)]
    at: IpAddr,
    /// The name of the kernel's device in the table.
    #[arg(long, default_value = "")]
    peer: String,
    /// Lines of the table are appended to this file.
    #[arg(long)]
    table: Option<PathBuf>,
    /// The packets that our device sends and receives are captured in this file (pcapng).
    #[arg(long)]
    capture: Option<PathBuf>,
    #[command(subcommand)]
    with: With,
}

#[derive(Subcommand)]
enum With {
    /// Exercises `peer`, which executes our commands: every operation in both directions, and every end of connections.
    Peer {
        /// The address at which `peer` listens.
        control: SocketAddr,
        /// Bytes of the largest message.
        #[arg(long, default_value_t = 1 << 20)]
        largest: usize,
    },
    /// Connects to a waiting `ibv_rc_pingpong`.
    ConnectPingpong {
        /// The address at which `ibv_rc_pingpong` listens.
        at: SocketAddr,
        #[command(flatten)]
        size: Size,
    },
    /// Waits for an `ibv_rc_pingpong` that connects.
    ListenPingpong {
        /// The address at which we listen.
        at: SocketAddr,
        #[command(flatten)]
        size: Size,
    },
    /// Connects, and waits to be killed.
    #[command(hide = true)]
    Victim {
        /// The address of the peer.
        to: SocketAddr,
    },
}

#[derive(clap::Args, Clone, Copy)]
struct Size {
    /// Bytes of a message.
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
    let host = Host::new(
        &arguments.device,
        arguments.at,
        arguments.capture.as_deref(),
    )?;
    let rows = match arguments.with {
        With::Peer { control, largest } => {
            let mut place = Place::new(control, largest);
            let mut rows = exercises::all(&host, &mut place);
            rows.extend(ends::all(&host, &mut place));
            rows
        }
        With::ConnectPingpong { at, size } => vec![pingpong::connect(&host, at, size)],
        With::ListenPingpong { at, size } => vec![pingpong::listen(&host, at, size)],
        With::Victim { to } => {
            ends::victim(&host, to)?;
            Vec::new()
        }
    };
    host.finish()?;
    if let Some(path) = &arguments.table {
        let lines: String = rows.iter().map(|row| row.line(&arguments.peer)).collect();
        append(path, &lines).with_context(|| path.display().to_string())?;
    }
    Ok(rows.iter().all(Row::is_fine))
}

fn append(path: &std::path::Path, lines: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(path)?;
    file.write_all(lines.as_bytes())
}
