//! The command `rds`: the time of half a round trip of 8 bytes between the RDS sockets of two processes.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use polyverbs_benches::sample::median;
use polyverbs_rds::RdsSocket;

use crate::part::Part;
use crate::report::{Row, US};

/// The RDS port to which the process that answers binds its socket.
const PORT: u16 = 4000;
const ROUNDS: u64 = 100_000;
/// How long the asking process waits for each answer before it fails.
const PATIENCE: Duration = Duration::from_secs(10);

/// RDS sockets of two processes: one sends back each message that arrives at its address, the other measures 100,000
/// round trips
#[derive(Clone, clap::Args)]
pub(crate) struct Arguments {
    /// The local address to which this process binds its RDS socket
    #[arg(value_name = "ADDRESS")]
    at: IpAddr,
    /// The address of the process that answers, which may equal ADDRESS; if it is omitted, this process answers until it is
    /// killed
    peer: Option<IpAddr>,
}

pub(crate) fn parts(arguments: &Arguments) -> Vec<Part> {
    let Arguments { at, peer } = *arguments;
    let part = Part::new("rds", move || {
        peer.map_or_else(|| answer(at), |peer| ask(at, peer))
    });
    vec![part]
}

fn answer(at: IpAddr) -> Result<Vec<Row>> {
    let socket = RdsSocket::bind(SocketAddr::new(at, PORT))?;
    let mut room = [0; 8];
    loop {
        if let Some(from) = socket.recv_from(&mut room)?.from {
            socket.send_to(&room, from)?;
        }
    }
}

fn ask(at: IpAddr, peer: IpAddr) -> Result<Vec<Row>> {
    let socket = RdsSocket::bind(SocketAddr::new(at, 0))?;
    socket.set_read_timeout(Some(PATIENCE));
    let to = SocketAddr::new(peer, PORT);
    let mut room = [0; 8];
    let mut took = Vec::with_capacity(ROUNDS as usize);
    for number in 0..ROUNDS {
        let began = Instant::now();
        socket.send_to(&number.to_ne_bytes(), to)?;
        socket.recv_from(&mut room)?;
        took.push(began.elapsed().as_secs_f64() * 1e6 / 2.0);
        ensure!(
            room == number.to_ne_bytes(),
            "{room:?} came for number {number}"
        );
    }
    Ok(vec![Row::new(
        "RDS, 8 B, half round trip",
        median(took),
        US,
    )])
}
