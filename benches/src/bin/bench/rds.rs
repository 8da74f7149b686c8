//! Half a round trip of 8 bytes between the RDS sockets of two processes.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use polyverbs_benches::sample::median;
use polyverbs_rds::RdsSocket;

use crate::part::Part;
use crate::report::{Row, US};

/// The port of the process that answers.
const PORT: u16 = 4000;
const ROUNDS: u64 = 100_000;
/// How long the first answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// RDS sockets of two processes: one answers at its address, the other asks it 100,000 times
#[derive(Clone, clap::Args)]
pub(crate) struct Arguments {
    /// The address of this process
    #[arg(value_name = "ADDRESS")]
    at: IpAddr,
    /// The address of the process that answers, which may be the same; without one, this process answers until it is killed
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
