//! `polyverbs rds`: exchanges messages between reliable datagram sockets (RDS), also with those of Linux.

mod info;
mod ping;
mod receive;
mod send;
mod stress;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use polyverbs_rds::{MAX_MESSAGE, RdsSocket};
use serde_json::{Value, json};

use super::network::{DeviceOptions, Host, addresses_of, first_that_answers, way_to};
use super::ping::apart;
use crate::output::parse_bytes;

/// Send and receive whole messages over reliable datagram sockets (RDS)
///
/// The peer may be Linux with its module rds_rdma, over RDMA devices. A local address answers pings, and acknowledges
/// messages, as long as a process has a socket at it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  polyverbs rds receive 127.0.0.2:4000 --device ib0 --to COPY
  polyverbs rds send FILE 127.0.0.2:4000 --device ib0
  polyverbs rds ping 127.0.0.2 --device ib0
  polyverbs rds stress 127.0.0.2 --listen --device ib0
Each has more: polyverbs rds COMMAND --help

Connections and counters belong to the process that has them: with --info each command shows its own at its end.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Ping(ping::Arguments),
    Receive(receive::Arguments),
    Send(send::Arguments),
    Stress(stress::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.command {
        Command::Ping(arguments) => ping::run(arguments),
        Command::Receive(arguments) => receive::run(arguments),
        Command::Send(arguments) => send::run(arguments),
        Command::Stress(arguments) => stress::run(arguments),
    }
}

/// The device of a socket, and how results are printed
#[derive(clap::Args)]
struct Common {
    #[command(flatten)]
    device: DeviceOptions,
    /// Show the connections and counters of this process at the end
    #[arg(long)]
    info: bool,
    /// Print a JSON object in each line
    #[arg(long)]
    json: bool,
}

impl Common {
    fn bind(&self, at: SocketAddr) -> anyhow::Result<RdsSocket> {
        anyhow::ensure!(
            !at.ip().is_unspecified(),
            "{} is not the address of one host",
            at.ip()
        );
        let device = self.device.at(at.ip())?;
        Ok(RdsSocket::bind_on(&device, at)?)
    }

    /// Returns the last lines of output: `figures` as JSON or `text`, with the connections and counters if they were asked
    /// for.
    fn end(&self, socket: &RdsSocket, mut figures: Value, text: &str) -> anyhow::Result<String> {
        if !self.json {
            let tables = self.info.then(|| info::tables(socket)).transpose()?;
            return Ok([text, &tables.unwrap_or_default()].concat());
        }
        if self.info {
            figures["info"] = info::to_json(socket)?;
        }
        Ok(figures.to_string())
    }
}

/// Returns the first address of this machine that a host names; `port` is the default port.
fn own(at: &Host, port: u16) -> anyhow::Result<SocketAddr> {
    Ok(addresses_of(&at.host, at.port.unwrap_or(port))?[0])
}

/// Returns the first address of a peer that answers, and the local address from which it is reached. If `from` is given,
/// only addresses of its family are tried.
fn peer(
    common: &Common,
    to: &Host,
    port: u16,
    from: Option<IpAddr>,
) -> anyhow::Result<(SocketAddr, SocketAddr)> {
    let from_towards = |to| from.map_or_else(|| source_towards(to), Ok);
    let answers = |to: SocketAddr| {
        let from = SocketAddr::new(from_towards(to)?, 0);
        let host = SocketAddr::new(to.ip(), ping::PORT);
        ping::ping(common, from, host, &[], PATIENCE)
    };
    let port = to.port.unwrap_or(port);
    let peer = first_that_answers((&to.host, port), from, |to| {
        matches!(answers(to), Ok(Some(_)))
    })?;
    Ok((peer, SocketAddr::new(from_towards(peer)?, 0)))
}

/// How long an address of a peer may take to answer before the next address is tried.
const PATIENCE: Duration = Duration::from_secs(1);

fn source_towards(to: SocketAddr) -> anyhow::Result<IpAddr> {
    // Others may have the usual one of the loopback interface, over another device.
    let way = apart(way_to(to)?, to.ip());
    Ok(match way.is_loopback() {
        true => apart(way, way),
        false => way,
    })
}

/// Parses the length of a message in bytes, which is at least `least`.
fn parse_message(text: &str, least: usize) -> Result<usize, String> {
    let bytes = parse_bytes(text)? as usize;
    match (least..=MAX_MESSAGE).contains(&bytes) {
        true => Ok(bytes),
        false => Err(format!("it is {least} to 1M")),
    }
}

/// Returns the fields that every JSON report of a socket has: device, transport and local address.
fn described(common: &Common, socket: &RdsSocket) -> Value {
    let transport = match socket.transport() {
        Some(polyverbs_rds::RdsTransport::Iwarp) => "iwarp",
        _ => "infiniband",
    };
    json!({ "device": common.device.device, "transport": transport, "from": socket.local_addr() })
}
