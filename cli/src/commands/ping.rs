//! `polyverbs ping`: checks whether an RDMA device answers at an address.

use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use polyverbs::connection::{ConnectError, Connector};
use polyverbs::provider::Mutex;
use polyverbs::{Device, Requirements, Transport};
use serde_json::json;

use super::network::{DeviceOptions, Host, first_that_answers, parse_seconds, way_to};
use crate::interrupt::{self, Ending};
use crate::output::{AlreadyReported, say, seconds};

/// Find out whether an RDMA device answers at an address, and how soon
///
/// Over RoCE, asks the peer's connection manager for an unused service; it answers at once, whatever the port. Over iWARP,
/// sends a connection request that is always rejected to the port, by default to that of Polyverbs' own devices. No program
/// at the peer notices either.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  polyverbs ping 127.0.0.1 --device ib0
  polyverbs ping localhost:4420 --device iw0
  polyverbs ping 192.0.2.7 --device ib0 --count 10 --interval 0.2 --json")]
pub(crate) struct Arguments {
    /// The host to ping, by name or address, with a port if it is not the default
    #[arg(value_name = "HOST[:PORT]")]
    to: Host,
    #[command(flatten)]
    device: DeviceOptions,
    /// Local address, if not that of the route
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
    /// Print a JSON object in each line, the last one with all results
    #[arg(long)]
    json: bool,
}

/// The port of RoCEv2, and of Polyverbs' iWARP devices.
const PORT: u16 = 4791;

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let Host { host, port } = &arguments.to;
    let to = first_that_answers((host, port.unwrap_or(0)), arguments.from, |to| {
        let time = Pinger::new(arguments, to).and_then(|pinger| pinger.once(arguments.timeout));
        matches!(time, Ok(Some(_)))
    })?;
    Pinger::new(arguments, to)?.all(arguments)
}

/// Whether an RDMA device answers at `to` within a second.
pub(super) fn answers(device: &Device, to: SocketAddr) -> bool {
    let context = device.open(&Requirements::new());
    let ping = context.map_err(anyhow::Error::new).and_then(|context| {
        let connector = Connector::of(&context)?;
        Ok(ping(&connector, to, Duration::from_secs(1)))
    });
    matches!(ping, Ok(Some((_, Ok(())))))
}

type Answer = (Duration, Result<(), ConnectError>);

// The outcome and its time; `None` where there is none.
fn ping(connector: &Connector, to: SocketAddr, patience: Duration) -> Option<Answer> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let began = Instant::now();
    connector.ping(to).on_done(move |answer| {
        // If this fails the receiver is gone.
        let _ = sender.send((began.elapsed(), answer));
    });
    receiver.recv_timeout(patience).ok()
}

struct Pinger {
    connector: Connector,
    to: SocketAddr,
    from: IpAddr,
    transport: Transport,
}

impl Pinger {
    fn new(arguments: &Arguments, to: SocketAddr) -> anyhow::Result<Self> {
        let from = match arguments.from {
            Some(from) => from,
            None => apart(way_to(to)?, to.ip()),
        };
        // A local device would answer for the others.
        let is_own = from == to.ip();
        anyhow::ensure!(
            !is_own || is_held(to.ip()),
            "no RDMA device is at {}: no process there has port {PORT}",
            to.ip()
        );
        let device = arguments.device.at(from)?;
        Ok(Self {
            connector: Connector::of(&device.open(&Requirements::new())?)?,
            transport: device.attributes().transport,
            to,
            from,
        })
    }

    /// Pings the address once. Returns the time until the answer; `None` if none arrives within `timeout`.
    fn once(&self, timeout: Duration) -> anyhow::Result<Option<Duration>> {
        let ping = |patience| ping(&self.connector, self.to, patience);
        let mut answer = ping(timeout.min(SOON));
        for _ in 0..TAKE_OVER {
            let is_refused = matches!(answer, Some((_, Err(ConnectError::Refused { .. }))));
            if !is_refused || self.to.port() != 0 {
                break;
            }
            thread::sleep(SOON);
            answer = ping(timeout.min(SOON));
        }
        if answer.is_some() {
            return self.outcome(answer);
        }
        anyhow::ensure!(
            !self.is_refused(),
            "no RDMA device is at {}: its kernel refuses UDP port {PORT}",
            self.to.ip()
        );
        // The message may have been lost.
        let rest = timeout.saturating_sub(SOON);
        self.outcome(ping(rest))
    }

    fn outcome(&self, answer: Option<Answer>) -> anyhow::Result<Option<Duration>> {
        let port = match self.to.port() {
            0 => PORT,
            port => port,
        };
        let to = SocketAddr::new(self.to.ip(), port);
        match answer {
            Some((time, Ok(()))) => Ok(Some(time)),
            Some((_, Err(ConnectError::Refused { .. }))) if self.to.port() == 0 => {
                Err(anyhow::anyhow!(
                    "no iWARP device of Polyverbs is at {}: its kernel refuses TCP port {PORT}; another device answers at \
                 the port of a program that listens: add it",
                    self.to.ip()
                ))
            }
            Some((_, Err(ConnectError::Refused { .. }))) => Err(anyhow::anyhow!(
                "no program listens at {to}: the kernel there refuses it"
            )),
            Some((_, Err(ConnectError::NoDevice))) => {
                Err(anyhow::anyhow!("what listens at {to} is no RDMA device"))
            }
            Some((_, Err(ConnectError::TimedOut))) | None => Ok(None),
            Some((_, Err(error))) => Err(anyhow::anyhow!("{}: {error}", self.to.ip())),
        }
    }

    /// Whether the kernel of the pinged host reports that no process uses the port of RoCEv2.
    fn is_refused(&self) -> bool {
        let refused = || {
            let socket = UdpSocket::bind((self.from, 0))?;
            socket.connect((self.to.ip(), PORT))?;
            socket.set_read_timeout(Some(SOON))?;
            socket.send(&[])?;
            socket.recv(&mut [0])
        };
        self.transport == Transport::InfiniBand
            && refused().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    }

    fn all(&self, arguments: &Arguments) -> anyhow::Result<()> {
        let pings = Pings {
            address: self.to.ip(),
            count: arguments.count,
            interval: arguments.interval,
            timeout: arguments.timeout,
            json: arguments.json,
        };
        let tally = pings.ask(|| self.once(arguments.timeout))?;
        match arguments.json {
            true => say!("{}", tally.to_json(self.to.ip()))?,
            false => say!("{tally}")?,
        }
        tally.outcome()
    }
}

/// A series of pings: the address, their number and times, and how results are printed.
pub(super) struct Pings {
    pub(super) address: IpAddr,
    pub(super) count: u64,
    pub(super) interval: Duration,
    pub(super) timeout: Duration,
    pub(super) json: bool,
}

impl Pings {
    /// Calls `once` for each ping, which returns the time until the answer, and prints each result.
    pub(super) fn ask(
        &self,
        mut once: impl FnMut() -> anyhow::Result<Option<Duration>>,
    ) -> anyhow::Result<Tally> {
        let tally = Arc::new(Mutex::new(Tally::default()));
        let (shared, address) = (Arc::clone(&tally), self.address);
        interrupt::says(Ending::AtOnce, move || shared.lock().to_string());
        for number in 1..=self.count {
            if number > 1 {
                thread::sleep(self.interval);
            }
            tally.lock().sent += 1;
            let time = once()?;
            tally.lock().times.extend(time);
            let line = match time {
                _ if self.json => {
                    let seconds = time.map(|time| time.as_secs_f64());
                    json!({ "address": address, "number": number, "seconds": seconds }).to_string()
                }
                Some(time) => format!("{address} answers in {}", seconds(time)),
                None => format!("{address} does not answer within {}", seconds(self.timeout)),
            };
            say!("{line}")?;
        }
        let tally = tally.lock().clone();
        Ok(tally)
    }
}

/// The results of a series of pings.
#[derive(Clone, Default)]
pub(super) struct Tally {
    sent: u64,
    times: Vec<Duration>,
}

impl Tally {
    /// Returns an error if no ping was answered. The results have been printed before.
    pub(super) fn outcome(&self) -> anyhow::Result<()> {
        match self.times.is_empty() {
            true => Err(AlreadyReported.into()),
            false => Ok(()),
        }
    }

    /// Returns minimum, median and maximum of the answer times; `None` if no ping was answered.
    fn spread(&self) -> Option<[Duration; 3]> {
        let mut times = self.times.clone();
        times.sort_unstable();
        Some([*times.first()?, times[times.len() / 2], *times.last()?])
    }

    pub(super) fn to_json(&self, address: IpAddr) -> serde_json::Value {
        let spread = self
            .spread()
            .map(|spread| spread.map(|time| time.as_secs_f64()));
        let [min, median, max] = spread.map_or([None; 3], |spread| spread.map(Some));
        json!({
            "address": address,
            "asked": self.sent,
            "answered": self.times.len(),
            "min_seconds": min,
            "median_seconds": median,
            "max_seconds": max,
        })
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} asked, {} answered", self.sent, self.times.len())?;
        let Some(spread) = self.spread() else {
            return Ok(());
        };
        let [min, median, max] = spread.map(seconds);
        write!(f, ": min {min}, median {median}, max {max}")
    }
}

/// Returns a local address that differs from `to`: `from` if it does, or, for IPv4, another one in 127.0.0.0/8, which all
/// belong to this machine.
pub(super) fn apart(from: IpAddr, to: IpAddr) -> IpAddr {
    if from != to || !to.is_ipv4() {
        return from;
    }
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 128 | (high & 0x3f), middle, low).into()
}

/// Whether a process uses the port of RoCEv2 or of Polyverbs' iWARP devices at a local address.
pub(super) fn is_held(at: IpAddr) -> bool {
    let is_in_use = |error: std::io::Error| error.kind() == ErrorKind::AddrInUse;
    UdpSocket::bind((at, PORT)).is_err_and(is_in_use)
        || TcpListener::bind((at, PORT)).is_err_and(is_in_use)
}

/// How long the first ping waits for an answer: on a local network devices answer within this time.
const SOON: Duration = Duration::from_millis(50);
/// How often a refused ping is repeated, each time after [`SOON`]: if a process at the address has ended, another one takes
/// over its port within this time.
const TAKE_OVER: u32 = 10;
