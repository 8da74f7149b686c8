//! Half a round trip of 8 bytes between the RDS sockets of two processes, the median of all, in microseconds.
//!
//! `rds AT` answers at this address; `rds AT PEER` sends 100,000 requests from address AT to the one that answers at PEER, which
//! may be the same.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use polyverbs_benches::Outcome;
use polyverbs_rds::RdsSocket;

/// The port of the process that answers.
const PORT: u16 = 4000;

const ROUNDS: usize = 100_000;

/// How long the first answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let addresses: Result<Vec<IpAddr>, _> = arguments.iter().map(|text| text.parse()).collect();
    let outcome = match addresses.as_deref() {
        Ok([at]) => answer(*at),
        Ok([at, peer]) => ask(*at, *peer),
        _ => {
            eprintln!("usage: rds AT [PEER] (IP addresses)");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rds: {error}");
            ExitCode::FAILURE
        }
    }
}

fn answer(at: IpAddr) -> Outcome<()> {
    let socket = RdsSocket::bind(SocketAddr::new(at, PORT))?;
    let mut room = [0; 8];
    loop {
        if let Some(from) = socket.recv_from(&mut room)?.from {
            socket.send_to(&room, from)?;
        }
    }
}

fn ask(at: IpAddr, peer: IpAddr) -> Outcome<()> {
    let socket = RdsSocket::bind(SocketAddr::new(at, 0))?;
    socket.set_read_timeout(Some(PATIENCE));
    let to = SocketAddr::new(peer, PORT);
    let mut room = [0; 8];
    let mut took = Vec::with_capacity(ROUNDS);
    for number in 0..ROUNDS as u64 {
        let began = Instant::now();
        socket.send_to(&number.to_ne_bytes(), to)?;
        socket.recv_from(&mut room)?;
        took.push(began.elapsed());
        if room != number.to_ne_bytes() {
            return Err(format!("{room:?} came for number {number}").into());
        }
    }
    took.sort_unstable();
    println!("{:.3}", took[ROUNDS / 2].as_secs_f64() * 1e6 / 2.0);
    Ok(())
}
