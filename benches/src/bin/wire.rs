//! Puts RoCEv2 over UDP or through shared memory, and iWARP over TCP, beside bare sockets, and beside other programs where
//! they are installed: one table.

use std::env::Args;
use std::iter::Skip;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::{self, sleep};
use std::time::Duration;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use polyverbs_benches::Outcome;
use polyverbs_benches::command;
use polyverbs_benches::partner::Partner;
use polyverbs_benches::raw::{Peer, SEGMENT, SUPER, TcpPair, UdpPair};
use polyverbs_benches::sample::median;
use polyverbs_benches::wired::WiredPair;
use polyverbs_links::wire::Offload;
use serde_json::{Value, json};

const USAGE: &str = "\
Measures RoCEv2 over UDP and iWARP over TCP beside bare sockets, over loopback, and beside libfabric and iperf3 where they
are installed.

usage: wire [--rounds N] [--only NAME] [--json]

  --rounds N   samples of each figure, 9 unless given
  --only NAME  figures whose name begins so: roce, iwarp, iwarp-stream, libfabric, ...
  --json       for programs
";

/// Round trips of a sample.
const TURNS: u64 = 2_000;
/// Octets of a sample.
const OCTETS: u64 = 128 << 20;

const US: &str = "us";
const GBS: &str = "GB/s";

struct Options {
    rounds: usize,
    only: String,
    json: bool,
}

/// What a device does, beside what bare sockets do.
struct Figure {
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    bar: Option<Bar>,
    /// On a thread of its own, which is kept on one processor when the devices have been made.
    measure: fn(usize) -> Outcome<Pair>,
}

/// What a figure is to reach.
#[derive(Clone, Copy)]
enum Bar {
    /// The ratio to the limit.
    AtMost(f64),
    AtLeast(f64),
    /// The figure itself.
    Absolute(f64),
}

/// The limit and the figure.
struct Pair {
    limit: f64,
    ours: f64,
}

const FIGURES: [Figure; 9] = [
    Figure {
        name: "roce-latency",
        title: "RoCE, 64 B, half round trip",
        unit: US,
        bar: Some(Bar::AtMost(1.5)),
        measure: |rounds| roce_latency(rounds, || WiredPair::roce(Offload::default())),
    },
    Figure {
        name: "roce-stream-offload",
        title: "RoCE, 64 KiB writes, GSO and GRO",
        unit: GBS,
        bar: Some(Bar::Absolute(4.0)),
        measure: |rounds| roce_stream(rounds, || WiredPair::roce(Offload::default())),
    },
    Figure {
        name: "roce-stream",
        title: "RoCE, 64 KiB writes, one by one",
        unit: GBS,
        bar: Some(Bar::AtLeast(0.7)),
        measure: |rounds| {
            let (bare, pair) = (UdpPair::new(Peer::Named)?, WiredPair::roce(Offload::NONE)?);
            let partner = Partner::start();
            beside(
                rounds,
                || bare.stream(&partner, SEGMENT, OCTETS / 8),
                || pair.write_stream(&partner, OCTETS / 8),
            )
        },
    },
    Figure {
        name: "roce-memory-latency",
        title: "RoCE at one address, 64 B, half round trip",
        unit: US,
        bar: Some(Bar::AtMost(1.5)),
        measure: |rounds| roce_latency(rounds, WiredPair::roce_by_memory),
    },
    Figure {
        name: "roce-memory-stream",
        title: "RoCE at one address, 64 KiB writes",
        unit: GBS,
        bar: Some(Bar::Absolute(4.0)),
        measure: |rounds| roce_stream(rounds, WiredPair::roce_by_memory),
    },
    Figure {
        name: "iwarp-latency",
        title: "iWARP, 64 B, half round trip",
        unit: US,
        bar: Some(Bar::AtMost(1.3)),
        measure: |rounds| iwarp_latency(rounds, false),
    },
    Figure {
        name: "iwarp-latency-crc",
        title: "  the same, with CRC",
        unit: US,
        bar: Some(Bar::AtMost(1.3)),
        measure: |rounds| iwarp_latency(rounds, true),
    },
    Figure {
        name: "iwarp-stream",
        title: "iWARP, 64 KiB writes",
        unit: GBS,
        bar: Some(Bar::AtLeast(0.7)),
        measure: |rounds| iwarp_stream(rounds, false),
    },
    Figure {
        name: "iwarp-stream-crc",
        title: "  the same, with CRC",
        unit: GBS,
        bar: Some(Bar::AtLeast(0.7)),
        measure: |rounds| iwarp_stream(rounds, true),
    },
];

fn roce_latency(rounds: usize, pair: impl FnOnce() -> Outcome<WiredPair>) -> Outcome<Pair> {
    let (bare, mut pair) = (UdpPair::new(Peer::Named)?, pair()?);
    let partner = Partner::start();
    latency(
        rounds,
        || bare.half_round_trip(&partner, TURNS),
        || Ok(pair.half_round_trip(&partner, TURNS)),
    )
}

fn roce_stream(rounds: usize, pair: impl FnOnce() -> Outcome<WiredPair>) -> Outcome<Pair> {
    let (bare, pair) = (UdpPair::new(Peer::Named)?.offload()?, pair()?);
    let partner = Partner::start();
    beside(
        rounds,
        || bare.stream(&partner, SUPER, OCTETS),
        || pair.write_stream(&partner, OCTETS),
    )
}

fn iwarp_latency(rounds: usize, crc: bool) -> Outcome<Pair> {
    let (bare, mut pair) = (TcpPair::new()?, WiredPair::iwarp(crc)?);
    let partner = Partner::start();
    latency(
        rounds,
        || bare.half_round_trip(&partner, TURNS),
        || Ok(pair.half_round_trip(&partner, TURNS)),
    )
}

fn iwarp_stream(rounds: usize, crc: bool) -> Outcome<Pair> {
    let (bare, pair) = (TcpPair::new()?, WiredPair::iwarp(crc)?);
    let partner = Partner::start();
    beside(
        rounds,
        || bare.stream(&partner, OCTETS),
        || pair.write_stream(&partner, OCTETS),
    )
}

fn main() -> ExitCode {
    command::run("wire", USAGE, options, measure)
}

fn options(mut arguments: Skip<Args>) -> Result<Option<Options>, String> {
    let mut options = Options {
        rounds: 9,
        only: String::new(),
        json: false,
    };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--rounds" => {
                let text = value()?;
                let rounds = text.parse().ok().filter(|&rounds| rounds > 0);
                options.rounds = rounds.ok_or(format!("{text} is no number above 0"))?;
            }
            "--only" => options.only = value()?,
            "--json" => options.json = true,
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown argument {other}")),
        }
    }
    Ok(Some(options))
}

/// Two figures that are taken in turn, so that they see the same machine: the medians of both.
fn beside(
    rounds: usize,
    mut limit: impl FnMut() -> Outcome<f64>,
    mut ours: impl FnMut() -> Outcome<f64>,
) -> Outcome<Pair> {
    limit()?;
    ours()?;
    let mut taken = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        taken.push((limit()?, ours()?));
    }
    Ok(Pair {
        limit: median(taken.iter().map(|(limit, _)| *limit)),
        ours: median(taken.iter().map(|(_, ours)| *ours)),
    })
}

/// The same in microseconds, of figures in nanoseconds.
fn latency(
    rounds: usize,
    limit: impl FnMut() -> Outcome<f64>,
    ours: impl FnMut() -> Outcome<f64>,
) -> Outcome<Pair> {
    let Pair { limit, ours } = beside(rounds, limit, ours)?;
    Ok(Pair {
        limit: limit / 1e3,
        ours: ours / 1e3,
    })
}

fn measure(options: &Options) -> Outcome<()> {
    let others: Vec<_> = OTHERS
        .iter()
        .filter(|other| other.name.starts_with(&options.only))
        .map(|other| (other, (other.measure)()))
        .collect();
    let mut measured = Vec::new();
    for figure in &FIGURES {
        if figure.name.starts_with(&options.only) {
            measured.push((figure, apart(figure, options.rounds)?));
        }
    }
    if options.json {
        let rows = measured.iter().map(|(figure, pair)| row(figure, pair));
        let others = others.iter().map(|(other, figure)| {
            json!({ "name": other.name, "title": other.title, "value": figure, "unit": other.unit })
        });
        println!(
            "{:#}",
            json!({ "rows": rows.collect::<Vec<_>>(), "others": others.collect::<Vec<_>>() })
        );
    } else {
        println!("{}", table(&measured, &others));
    }
    Ok(())
}

fn row(figure: &Figure, pair: &Pair) -> Value {
    json!({
        "name": figure.name,
        "title": figure.title.trim_start(),
        "unit": figure.unit,
        "limit": pair.limit,
        "value": pair.ours,
        "ratio": pair.ours / pair.limit,
        "bar": figure.bar.map(|bar| bar.text(figure.unit)),
        "met": figure.bar.map(|bar| bar.is_met(pair)),
    })
}

impl Bar {
    fn is_met(self, pair: &Pair) -> bool {
        match self {
            Self::AtMost(ratio) => pair.ours <= pair.limit * ratio,
            Self::AtLeast(ratio) => pair.ours >= pair.limit * ratio,
            Self::Absolute(figure) => pair.ours >= figure,
        }
    }

    fn text(self, unit: &str) -> String {
        match self {
            Self::AtMost(ratio) => format!("<= {ratio}"),
            Self::AtLeast(ratio) => format!(">= {ratio}"),
            Self::Absolute(figure) => format!(">= {figure} {unit}"),
        }
    }
}

fn table(measured: &[(&Figure, Pair)], others: &[(&Other, Option<f64>)]) -> Table {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header(["figure", "limit", "measured", "ratio", "bar", "verdict"]);
    for (figure, pair) in measured {
        let shown = |value: f64| format!("{value:.2} {}", figure.unit);
        let verdict = match figure.bar.map(|bar| bar.is_met(pair)) {
            Some(true) => "met",
            Some(false) => "missed",
            None => "",
        };
        table.add_row([
            figure.title.to_owned(),
            shown(pair.limit),
            shown(pair.ours),
            format!("{:.2}", pair.ours / pair.limit),
            figure
                .bar
                .map(|bar| bar.text(figure.unit))
                .unwrap_or_default(),
            verdict.to_owned(),
        ]);
    }
    for (other, value) in others {
        let shown = value.map(|value| format!("{value:.2} {}", other.unit));
        table.add_row([
            other.title.to_owned(),
            String::new(),
            shown.unwrap_or_else(|| "not installed".to_owned()),
        ]);
    }
    for column in 1..4 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn apart(figure: &Figure, rounds: usize) -> Outcome<Pair> {
    thread::scope(|scope| {
        let measuring =
            scope.spawn(|| (figure.measure)(rounds).map_err(|problem| problem.to_string()));
        let measured = measuring.join().map_err(|_| "a measurement panicked")?;
        Ok(measured.map_err(|problem| format!("{}: {problem}", figure.title.trim_start()))?)
    })
}

/// A program that is put beside the devices.
struct Other {
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    /// `None` where it is not installed, or does not do it.
    measure: fn() -> Option<f64>,
}

const OTHERS: [Other; 4] = [
    Other {
        name: "libfabric-udp-latency",
        title: "libfabric udp, 64 B, half round trip",
        unit: US,
        measure: || ping_pong("udp", "dgram", "64", TIME),
    },
    Other {
        name: "libfabric-tcp-latency",
        title: "libfabric tcp, 64 B, half round trip",
        unit: US,
        measure: || ping_pong("tcp", "msg", "64", TIME),
    },
    Other {
        name: "libfabric-tcp-64k",
        title: "libfabric tcp, 64 KiB, there and back",
        unit: GBS,
        measure: || Some(ping_pong("tcp", "msg", "65536", RATE)? / 1e3),
    },
    Other {
        name: "iperf3-tcp",
        title: "iperf3, TCP stream",
        unit: GBS,
        measure: || {
            let said = with_server("iperf3", &["-s", "-1"], &["-J", "-t", "3", "-c"])?;
            let said: Value = serde_json::from_str(&said).ok()?;
            let bits = said["end"]["sum_received"]["bits_per_second"].as_f64()?;
            Some(bits / 8e9)
        },
    },
];

/// Columns of what `fi_pingpong` prints, from the right: MB/s, and microseconds of half a round trip.
const RATE: usize = 2;
const TIME: usize = 1;

fn ping_pong(provider: &str, kind: &str, size: &str, column: usize) -> Option<f64> {
    let arguments = ["-p", provider, "-e", kind, "-S", size, "-I", "5000"];
    let said = with_server("fi_pingpong", &arguments, &arguments)?;
    let line = said.lines().last()?;
    line.split_whitespace().rev().nth(column)?.parse().ok()
}

/// What a program prints that talks to another run of itself; `None` where there is no such program.
fn with_server(program: &str, server: &[&str], client: &[&str]) -> Option<String> {
    // A message that is lost would keep them waiting for good.
    let bounded = || {
        let mut command = Command::new("timeout");
        command.args(["10", program]);
        command
    };
    // Is it there at all?
    Command::new(program).arg("-h").output().ok()?;
    let mut server = bounded()
        .args(server)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    sleep(Duration::from_millis(500));
    let output = bounded().args(client).arg("127.0.0.1").output().ok();
    end(&mut server);
    Some(String::from_utf8_lossy(&output?.stdout).into_owned())
}

fn end(child: &mut Child) {
    // It ended by itself, or is ended.
    let _ = child.kill();
    let _ = child.wait();
}
