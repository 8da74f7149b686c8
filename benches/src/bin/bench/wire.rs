//! The command `wire`: RoCEv2 over UDP or through shared memory, and iWARP over TCP, compared with bare sockets; and the
//! figures of libfabric and iperf3 if they are installed.

use anyhow::Result;
use polyverbs_benches::partner::Partner;
use polyverbs_benches::sample::{Samples, median};
use polyverbs_io::Offload;

use crate::part::{Measure, Part};
use crate::programs::{Column, fi_pingpong, iperf3};
use crate::raw::{OCTETS, TURNS};
use crate::report::Limit::{self, FigureAtLeast, RatioAtLeast, RatioAtMost};
use crate::report::{GBS, Row, US};
use crate::sockets::{Peer, SEGMENT, SUPER, TcpPair, UdpPair};
use crate::wired::WiredPair;

/// RoCEv2 over UDP and iWARP over TCP next to bare sockets, over loopback; libfabric and iperf3 if they are installed
#[derive(Clone, clap::Args)]
pub(crate) struct Arguments {
    /// How many undisturbed samples of each figure are taken
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
}

pub(crate) fn parts(arguments: &Arguments) -> Vec<Part> {
    Part::of_each(arguments, &FIGURES)
}

const FIGURES: [(&str, Measure<Arguments>); 13] = [
    ("roce-latency", |arguments| {
        let pair = WiredPair::roce(Offload::default())?;
        roce_latency("RoCE, 64 B, half round trip", arguments, pair)
    }),
    ("roce-stream-offload", |arguments| {
        let pair = WiredPair::roce(Offload::default())?;
        roce_stream("RoCE, 64 KiB writes, GSO and GRO", arguments, pair)
    }),
    ("roce-stream", |arguments| {
        let (bare, pair) = (UdpPair::new(Peer::Named)?, WiredPair::roce(Offload::NONE)?);
        compare(
            ("RoCE, 64 KiB writes, one by one", GBS, RatioAtLeast(0.7)),
            arguments,
            |partner| bare.stream(partner, [SEGMENT], OCTETS / 8),
            |partner| pair.write_stream(partner, OCTETS / 8),
        )
    }),
    ("roce-memory-latency", |arguments| {
        let name = "RoCE at one address, 64 B, half round trip";
        roce_latency(name, arguments, WiredPair::roce_by_memory()?)
    }),
    ("roce-memory-stream", |arguments| {
        let name = "RoCE at one address, 64 KiB writes";
        roce_stream(name, arguments, WiredPair::roce_by_memory()?)
    }),
    ("iwarp-latency", |arguments| {
        iwarp_latency("iWARP, 64 B, half round trip", arguments, false)
    }),
    ("iwarp-latency-crc", |arguments| {
        iwarp_latency("  the same, with CRC", arguments, true)
    }),
    ("iwarp-stream", |arguments| {
        iwarp_stream("iWARP, 64 KiB writes", arguments, false)
    }),
    ("iwarp-stream-crc", |arguments| {
        iwarp_stream("  the same, with CRC", arguments, true)
    }),
    ("libfabric-udp-latency", |arguments| {
        let theirs = fi_pingpong(["udp", "dgram"], "64", "50000", Column::Time);
        theirs.map_or(Ok(Vec::new()), |theirs| {
            let mut pair = WiredPair::roce(Offload::default())?;
            let partner = Partner::pinned();
            let runs = (0..arguments.rounds).map(|_| pair.half_round_trip(&partner, TURNS));
            let ours = median(runs.collect::<Result<Vec<_>>>()?) / 1e3;
            let row = Row::new("RoCE, 64 B, half round trip", ours, US);
            let row = row.beside("libfabric udp", theirs);
            Ok(vec![row.within(RatioAtMost(1.0))])
        })
    }),
    ("libfabric-tcp-latency", |_| {
        let measured = fi_pingpong(["tcp", "msg"], "64", "50000", Column::Time);
        let row = |value| Row::new("libfabric tcp, 64 B, half round trip", value, US);
        Ok(measured.map(row).into_iter().collect())
    }),
    ("libfabric-tcp-64k", |_| {
        let measured = fi_pingpong(["tcp", "msg"], "65536", "5000", Column::Rate);
        let name = "libfabric tcp, 64 KiB, there and back";
        let row = |value| Row::new(name, value / 1e3, GBS);
        Ok(measured.map(row).into_iter().collect())
    }),
    ("iperf3-tcp", |_| {
        let row = |value| Row::new("iperf3, TCP stream", value, GBS);
        Ok(iperf3().map(row).into_iter().collect())
    }),
];

fn roce_latency(name: &str, arguments: &Arguments, mut pair: WiredPair) -> Result<Vec<Row>> {
    let bare = UdpPair::new(Peer::Named)?;
    compare(
        (name, US, RatioAtMost(1.5)),
        arguments,
        |partner| Ok(bare.half_round_trip(partner, TURNS)? / 1e3),
        |partner| Ok(pair.half_round_trip(partner, TURNS)? / 1e3),
    )
}

fn roce_stream(name: &str, arguments: &Arguments, pair: WiredPair) -> Result<Vec<Row>> {
    let bare = UdpPair::new(Peer::Named)?.offload()?;
    compare(
        (name, GBS, FigureAtLeast(4.0)),
        arguments,
        |partner| bare.stream(partner, SUPER, OCTETS),
        |partner| pair.write_stream(partner, OCTETS),
    )
}

fn iwarp_latency(name: &str, arguments: &Arguments, crc: bool) -> Result<Vec<Row>> {
    let (bare, mut pair) = (TcpPair::new()?, WiredPair::iwarp(crc)?);
    compare(
        (name, US, RatioAtMost(1.3)),
        arguments,
        |partner| Ok(bare.half_round_trip(partner, TURNS)? / 1e3),
        |partner| Ok(pair.half_round_trip(partner, TURNS)? / 1e3),
    )
}

fn iwarp_stream(name: &str, arguments: &Arguments, crc: bool) -> Result<Vec<Row>> {
    let (bare, pair) = (TcpPair::new()?, WiredPair::iwarp(crc)?);
    compare(
        (name, GBS, RatioAtLeast(0.7)),
        arguments,
        |partner| bare.stream(partner, OCTETS),
        |partner| pair.write_stream(partner, OCTETS),
    )
}

/// Measures samples of the figure `ours` with the yardstick `bare`, and returns a row with this name, unit and limit.
/// The two threads that measure are pinned to a processor each; the threads of the devices exist already, and may run
/// on any processor.
fn compare(
    (name, unit, limit): (&str, &str, Limit),
    arguments: &Arguments,
    mut bare: impl FnMut(&Partner) -> Result<f64>,
    mut ours: impl FnMut(&Partner) -> Result<f64>,
) -> Result<Vec<Row>> {
    let partner = Partner::pinned();
    ours(&partner)?;
    bare(&partner)?;
    let samples = Samples::take_at(
        arguments.rounds.into(),
        || partner.pace(),
        || bare(&partner),
        || ours(&partner),
    )?;
    let row = Row::compared(name, &samples, unit, "bare sockets");
    Ok(vec![row.within(limit)])
}
