//! The command `raw`: the performance of bare sockets and bare shared memory on this machine. A device cannot exceed it if
//! its packets pass through them.

use anyhow::Result;
use polyverbs_benches::partner::Partner;
use polyverbs_benches::sample::Samples;

use crate::part::{Measure, Part};
use crate::report::{GBS, Row, US};
use crate::sockets::{Peer, Ring, SEGMENT, SUPER, TcpPair, UdpPair, WRITE};

/// Bare sockets over loopback, with half round trips of 64 bytes and streams; a stream between two threads through memory
#[derive(Clone, clap::Args)]
pub(crate) struct Arguments {
    /// How many undisturbed samples of each figure are taken
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
}

pub(crate) fn parts(arguments: &Arguments) -> Vec<Part> {
    Part::of_each(arguments, &FIGURES)
}

/// The number of round trips whose mean time is one sample.
pub(crate) const TURNS: u64 = 2_000;
/// The number of bytes whose transfer is one sample.
pub(crate) const OCTETS: u64 = 128 << 20;

const FIGURES: [(&str, Measure<Arguments>); 8] = [
    ("udp-latency", |arguments| {
        let pair = UdpPair::new(Peer::Named)?;
        latency("UDP, 64 B, half round trip", arguments, |partner| {
            pair.half_round_trip(partner, TURNS)
        })
    }),
    ("udp-connected-latency", |arguments| {
        let pair = UdpPair::new(Peer::Connected)?;
        latency("  the same, sockets connected", arguments, |partner| {
            pair.half_round_trip(partner, TURNS)
        })
    }),
    ("tcp-latency", |arguments| {
        let pair = TcpPair::new()?;
        latency("TCP, 64 B, half round trip", arguments, |partner| {
            pair.half_round_trip(partner, TURNS)
        })
    }),
    ("udp-stream-offload", |arguments| {
        let pair = UdpPair::new(Peer::Named)?.offload()?;
        let name = "UDP stream, 4,156 B datagrams, GSO and GRO";
        stream(name, arguments, |partner| {
            pair.stream(partner, SUPER, OCTETS)
        })
    }),
    ("udp-stream-offload-writes", |arguments| {
        let pair = UdpPair::new(Peer::Named)?.offload()?;
        let name = "  the same, in two calls for each 64 KiB, as a write leaves";
        stream(name, arguments, |partner| {
            pair.stream(partner, WRITE, OCTETS)
        })
    }),
    ("udp-stream", |arguments| {
        let pair = UdpPair::new(Peer::Named)?;
        let name = "UDP stream, 4,156 B datagrams, one by one";
        stream(name, arguments, |partner| {
            pair.stream(partner, [SEGMENT], OCTETS / 8)
        })
    }),
    ("tcp-stream", |arguments| {
        let pair = TcpPair::new()?;
        stream("TCP stream, 64 KiB writes", arguments, |partner| {
            pair.stream(partner, OCTETS)
        })
    }),
    ("memory-stream", |arguments| {
        let ring = Ring::new();
        let name = "Memory, 64 KiB copied in by one and out by the other";
        stream(name, arguments, |partner| ring.stream(partner, OCTETS))
    }),
];

/// Measures samples of `figure`, which returns a time in nanoseconds, and returns a row in microseconds.
fn latency(
    name: &str,
    arguments: &Arguments,
    mut figure: impl FnMut(&Partner) -> Result<f64>,
) -> Result<Vec<Row>> {
    sampled(name, US, arguments, |partner| Ok(figure(partner)? / 1e3))
}

/// Measures samples of `figure`, which returns a rate in bytes per nanosecond, and returns a row in GB/s, which is the same
/// unit.
fn stream(
    name: &str,
    arguments: &Arguments,
    figure: impl FnMut(&Partner) -> Result<f64>,
) -> Result<Vec<Row>> {
    sampled(name, GBS, arguments, figure)
}

fn sampled(
    name: &str,
    unit: &str,
    arguments: &Arguments,
    mut figure: impl FnMut(&Partner) -> Result<f64>,
) -> Result<Vec<Row>> {
    let partner = Partner::pinned();
    figure(&partner)?;
    let samples = Samples::take_at(
        arguments.rounds.into(),
        || partner.pace(),
        || Ok(1.0),
        || figure(&partner),
    )?;
    Ok(vec![Row::sampled(name, &samples, unit)])
}
