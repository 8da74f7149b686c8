//! Measures the performance of bare sockets and bare memory on this machine: the limits with which a device on a wire is
//! compared.

use std::env::Args;
use std::iter::Skip;
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use polyverbs_benches::Outcome;
use polyverbs_benches::command;
use polyverbs_benches::partner::Partner;
use polyverbs_benches::raw::{Peer, Ring, SEGMENT, SUPER, TcpPair, UdpPair, WRITE};
use polyverbs_benches::sample::{Samples, find_best_pace};
use serde_json::{Value, json};

const USAGE: &str = "\
Measures bare sockets over loopback, half round trips of 64 octets and streams, and a stream by memory of two threads.

usage: raw [--rounds N] [--only NAME] [--json]

  --rounds N   samples of each figure that count, 15 unless given
  --only NAME  figures whose name begins so: udp, tcp, udp-stream, ...
  --json       for programs

example: raw --json > raw.json
";

struct Options {
    rounds: usize,
    only: String,
    json: bool,
}

/// A figure: its name in JSON, its title in the table, its unit, and the function that measures it.
struct Figure {
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    measure: fn(&Partner, usize) -> Outcome<Samples>,
}

const FIGURES: [Figure; 8] = [
    Figure {
        name: "udp-latency",
        title: "UDP, 64 B, half round trip, spinning",
        unit: "us",
        measure: |partner, rounds| {
            let pair = UdpPair::new(Peer::Named)?;
            latency(partner, rounds, |turns| {
                pair.half_round_trip(partner, turns)
            })
        },
    },
    Figure {
        name: "udp-connected-latency",
        title: "  the same, sockets connected",
        unit: "us",
        measure: |partner, rounds| {
            let pair = UdpPair::new(Peer::Connected)?;
            latency(partner, rounds, |turns| {
                pair.half_round_trip(partner, turns)
            })
        },
    },
    Figure {
        name: "tcp-latency",
        title: "TCP, 64 B, half round trip, spinning",
        unit: "us",
        measure: |partner, rounds| {
            let pair = TcpPair::new()?;
            latency(partner, rounds, |turns| {
                pair.half_round_trip(partner, turns)
            })
        },
    },
    Figure {
        name: "udp-stream-offload",
        title: "UDP stream, 4,156 B datagrams, GSO and GRO",
        unit: "GB/s",
        measure: |partner, rounds| offloaded(partner, rounds, SUPER),
    },
    Figure {
        name: "udp-stream-offload-writes",
        title: "  the same, in two calls for each 64 KiB, as a write leaves",
        unit: "GB/s",
        measure: |partner, rounds| offloaded(partner, rounds, WRITE),
    },
    Figure {
        name: "udp-stream",
        title: "UDP stream, 4,156 B datagrams, one by one",
        unit: "GB/s",
        measure: |partner, rounds| {
            let pair = UdpPair::new(Peer::Named)?;
            bandwidth(partner, rounds, |octets| {
                pair.stream(partner, [SEGMENT], octets / 8)
            })
        },
    },
    Figure {
        name: "tcp-stream",
        title: "TCP stream, 64 KiB writes",
        unit: "GB/s",
        measure: |partner, rounds| {
            let pair = TcpPair::new()?;
            bandwidth(partner, rounds, |octets| pair.stream(partner, octets))
        },
    },
    Figure {
        name: "memory-stream",
        title: "Memory, 64 KiB copied in by one and out by the other",
        unit: "GB/s",
        measure: |partner, rounds| {
            let ring = Ring::new();
            bandwidth(partner, rounds, |octets| ring.stream(partner, octets))
        },
    },
];

/// Round trips of a sample.
const TURNS: u64 = 2_000;
/// Bytes of a sample.
const OCTETS: u64 = 128 << 20;

fn main() -> ExitCode {
    command::run("raw", USAGE, options, measure)
}

fn options(mut arguments: Skip<Args>) -> Result<Option<Options>, String> {
    let mut options = Options {
        rounds: 15,
        only: String::new(),
        json: false,
    };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--rounds" => options.rounds = command::count(&value()?)?,
            "--only" => {
                let name = value()?;
                if !FIGURES.iter().any(|figure| figure.name.starts_with(&name)) {
                    return Err(format!("there is no figure {name}"));
                }
                options.only = name;
            }
            "--json" => options.json = true,
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown argument {other}")),
        }
    }
    Ok(Some(options))
}

fn measure(options: &Options) -> Outcome<()> {
    let partner = Partner::start();
    find_best_pace(Duration::from_secs(1));
    let mut measured = Vec::new();
    for figure in &FIGURES {
        if figure.name.starts_with(&options.only) {
            measured.push((figure, (figure.measure)(&partner, options.rounds)?));
        }
    }
    if options.json {
        let rows = measured
            .iter()
            .map(|(figure, samples)| row(figure, samples));
        println!(
            "{:#}",
            json!({ "apart": partner.is_apart(), "rows": rows.collect::<Vec<_>>() })
        );
        return Ok(());
    }
    if !partner.is_apart() {
        println!("The two threads share a processor or move about: the figures say nothing.\n");
    }
    println!("{}", table(&measured));
    Ok(())
}

/// Half a round trip, in microseconds.
fn latency(
    partner: &Partner,
    rounds: usize,
    mut half_round_trip: impl FnMut(u64) -> Outcome<f64>,
) -> Outcome<Samples> {
    samples(partner, rounds, || Ok(half_round_trip(TURNS)? / 1e3))
}

/// Bytes per nanosecond, which are GB/s.
fn bandwidth(
    partner: &Partner,
    rounds: usize,
    mut stream: impl FnMut(u64) -> Outcome<f64>,
) -> Outcome<Samples> {
    samples(partner, rounds, || stream(OCTETS))
}

/// The bandwidth of a UDP stream with GSO and GRO.
fn offloaded<const CALLS: usize>(
    partner: &Partner,
    rounds: usize,
    calls: [usize; CALLS],
) -> Outcome<Samples> {
    let pair = UdpPair::new(Peer::Named)?.offload()?;
    bandwidth(partner, rounds, |octets| {
        pair.stream(partner, calls, octets)
    })
}

/// Samples of an undisturbed machine; the first failure, if any.
fn samples(
    partner: &Partner,
    rounds: usize,
    mut figure: impl FnMut() -> Outcome<f64>,
) -> Outcome<Samples> {
    figure()?;
    let mut failed = None;
    let samples = Samples::take_at(
        rounds,
        || partner.pace(),
        || 1.0,
        || match figure() {
            Ok(figure) => figure,
            Err(error) => {
                failed.get_or_insert(error);
                f64::NAN
            }
        },
    );
    failed.map_or(Ok(samples), Err)
}

fn row(figure: &Figure, samples: &Samples) -> Value {
    let (counted, taken) = samples.counts();
    json!({
        "name": figure.name,
        "title": figure.title.trim_start(),
        "value": samples.figure(),
        "unit": figure.unit,
        "samples": { "counted": counted, "taken": taken },
    })
}

fn table(measured: &[(&Figure, Samples)]) -> String {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header(["figure", "median", "samples"]);
    for (figure, samples) in measured {
        let (counted, taken) = samples.counts();
        table.add_row([
            figure.title.to_owned(),
            format!("{:.2} {}", samples.figure(), figure.unit),
            format!("{counted}/{taken}"),
        ]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}
