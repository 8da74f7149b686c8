//! `polyverbs rds ping`: checks whether a host with RDS answers at an address.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use polyverbs_rds::{RdsError, RdsSocket, Wait};

use super::super::network::{Host, parse_seconds};
use super::super::ping::Pings;
use super::{Common, parse_message, peer};
use crate::output::say;

/// Find out whether a host of RDS answers at an address, and how soon
///
/// Sends messages to port 0, which the host itself answers, without data, rather than a program. The time of the first
/// answer includes making the connection.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  polyverbs rds ping 127.0.0.2 --device ib0
  polyverbs rds ping 192.0.2.7 --device ib0 --from 192.0.2.1 --count 10 --interval 0.2 --json")]
pub(super) struct Arguments {
    /// The host to ping, by name or address
    #[arg(value_name = "HOST")]
    to: Host,
    #[command(flatten)]
    common: Common,
    /// Local address to ping from; by default that of the route
    #[arg(long, value_name = "ADDRESS")]
    from: Option<IpAddr>,
    /// How many pings to send
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Seconds between two pings
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    interval: Duration,
    /// Seconds that an answer may take
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_seconds)]
    timeout: Duration,
    /// Bytes of each message
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = |text: &str| parse_message(text, 0))]
    size: usize,
}

/// The RDS port at which a host itself answers, rather than a socket of a program.
pub(super) const PORT: u16 = 0;

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let common = &arguments.common;
    anyhow::ensure!(
        arguments.to.port.is_none(),
        "a ping goes to a host, not to a port"
    );
    let (to, from) = peer(common, &arguments.to, PORT, arguments.from)?;
    // Keeps the connection, while each ping has a socket of its own: a late answer is to no other.
    let host = common.bind(from)?;
    let pings = Pings {
        address: to.ip(),
        count: arguments.count,
        interval: arguments.interval,
        timeout: arguments.timeout,
        json: common.json,
    };
    let message = vec![0; arguments.size];
    let tally = pings.ask(|| ping(common, from, to, &message, arguments.timeout))?;
    let end = common.end(&host, tally.to_json(to.ip()), &tally.to_string())?;
    say!("{end}")?;
    tally.outcome()
}

/// Pings an address once. Returns the time until the answer; `None` if none arrives in time.
pub(super) fn ping(
    common: &Common,
    from: SocketAddr,
    to: SocketAddr,
    message: &[u8],
    timeout: Duration,
) -> anyhow::Result<Option<Duration>> {
    let socket: RdsSocket = common.bind(from)?;
    socket.set_options(|options| options.send_buffer = options.send_buffer.max(message.len()));
    let began = Instant::now();
    let deadline = began + timeout;
    socket.set_write_timeout(Some(timeout));
    socket.send_to(message, to)?;
    loop {
        match socket.recv_msg(&mut [], Wait::Until(deadline), false) {
            Ok(received) if received.from == Some(to) => return Ok(Some(began.elapsed())),
            // Another's message to this port.
            Ok(_) => {}
            Err(RdsError::TimedOut) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}
