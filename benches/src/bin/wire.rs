//! Compares RoCEv2 over UDP or through shared memory, and iWARP over TCP, with bare sockets, and with other programs where
//! they are installed, in one table.

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
use polyverbs_benches::yardstick::line_crossing;
use polyverbs_io::Offload;
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
/// Bytes of a sample.
const OCTETS: u64 = 128 << 20;
/// Round trips of a cache line.
const CROSSINGS: u64 = 20_000;

const US: &str = "us";
const GBS: &str = "GB/s";

struct Options {
    rounds: usize,
    only: String,
    json: bool,
}

/// A figure of a device, compared with bare sockets.
struct Figure {
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    bar: Option<Bar>,
    /// Runs on a thread of its own, which is pinned to one processor after the devices have been made.
    measure: fn(usize) -> Outcome<Pair>,
}

/// The value that a figure is to reach.
#[derive(Clone, Copy)]
enum Bar {
    /// The ratio of the figure to the limit.
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

/// A measured value, and how long a cache line took between the two processors before and after, in nanoseconds: between
/// distant processors streams are several times slower.
struct Measured<F: 'static, V> {
    figure: &'static F,
    value: V,
    crossings: [f64; 2],
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
                || bare.stream(&partner, [SEGMENT], OCTETS / 8),
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
            "--rounds" => options.rounds = command::count(&value()?)?,
            "--only" => options.only = value()?,
            "--json" => options.json = true,
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown argument {other}")),
        }
    }
    Ok(Some(options))
}

/// The medians of two figures that are measured in turn, so that both see the machine in the same state.
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

/// The medians of [`beside`] in microseconds, of figures in nanoseconds.
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
    let is_wanted = |name: &str| name.starts_with(&options.only);
    let mut others = Vec::new();
    for other in OTHERS.iter().filter(|other| is_wanted(other.name)) {
        others.push(Measured::take(other, || Ok((other.measure)()))?);
    }
    let mut rows = Vec::new();
    for figure in FIGURES.iter().filter(|figure| is_wanted(figure.name)) {
        let measure = || apart(|| (figure.measure)(options.rounds));
        let row = Measured::take(figure, measure);
        rows.push(row.map_err(|problem| format!("{}: {problem}", figure.title.trim_start()))?);
    }
    if options.json {
        println!(
            "{:#}",
            json!({
                "rows": rows.iter().map(Row::json).collect::<Vec<_>>(),
                "others": others.iter().map(OtherRow::json).collect::<Vec<_>>(),
            })
        );
    } else {
        println!("{}", table(&rows, &others));
    }
    Ok(())
}

type Row = Measured<Figure, Pair>;
type OtherRow = Measured<Other, Option<f64>>;

impl<F, V> Measured<F, V> {
    fn take(figure: &'static F, measure: impl FnOnce() -> Outcome<V>) -> Outcome<Self> {
        let crossing = || apart(|| Ok(line_crossing(&Partner::start(), CROSSINGS)));
        let (before, value, after) = (crossing()?, measure()?, crossing()?);
        Ok(Self {
            figure,
            value,
            crossings: [before, after],
        })
    }

    fn crossings(&self) -> String {
        let [before, after] = self.crossings;
        format!("{before:.0}, {after:.0} ns")
    }
}

impl Row {
    fn json(&self) -> Value {
        let (figure, pair) = (self.figure, &self.value);
        json!({
            "name": figure.name,
            "title": figure.title.trim_start(),
            "unit": figure.unit,
            "limit": pair.limit,
            "value": pair.ours,
            "ratio": pair.ours / pair.limit,
            "bar": figure.bar.map(|bar| bar.text(figure.unit)),
            "met": figure.bar.map(|bar| bar.is_met(pair)),
            "crossings_ns": self.crossings,
        })
    }

    fn cells(&self) -> [String; 7] {
        let (figure, pair) = (self.figure, &self.value);
        let shown = |value: f64| format!("{value:.2} {}", figure.unit);
        let bar = figure.bar.map(|bar| bar.text(figure.unit));
        let verdict = figure.bar.map(|bar| verdict(bar.is_met(pair)));
        [
            figure.title.to_owned(),
            shown(pair.limit),
            shown(pair.ours),
            format!("{:.2}", pair.ours / pair.limit),
            bar.unwrap_or_default(),
            verdict.unwrap_or_default().to_owned(),
            self.crossings(),
        ]
    }
}

impl OtherRow {
    fn json(&self) -> Value {
        let other = self.figure;
        json!({
            "name": other.name,
            "title": other.title,
            "unit": other.unit,
            "value": self.value,
            "crossings_ns": self.crossings,
        })
    }

    fn cells(&self, rows: &[Row]) -> [String; 7] {
        let other = self.figure;
        let shown = self.value.map(|value| format!("{value:.2} {}", other.unit));
        let ours = rows
            .iter()
            .find(|row| Some(row.figure.name) == other.no_slower)
            .map(|row| row.value.ours);
        let [ratio, bar, verdict] = match (ours, self.value) {
            (Some(ours), Some(value)) => [
                &format!("{:.2}", ours / value),
                "ours <= 1",
                verdict(ours <= value),
            ]
            .map(str::to_owned),
            _ => Default::default(),
        };
        [
            other.title.to_owned(),
            String::new(),
            shown.unwrap_or_else(|| "not installed".to_owned()),
            ratio,
            bar,
            verdict,
            self.crossings(),
        ]
    }
}

const fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "missed" }
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

fn table(rows: &[Row], others: &[OtherRow]) -> Table {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header([
        "figure", "limit", "measured", "ratio", "bar", "verdict", "crossing",
    ]);
    table.add_rows(rows.iter().map(Row::cells));
    table.add_rows(others.iter().map(|other| other.cells(rows)));
    for column in 1..4 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Measures on a thread of its own: a thread that has had a partner stays pinned to one processor, and so do all threads
/// that it starts afterwards.
fn apart<T: Send>(measure: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
    thread::scope(|scope| {
        let measuring = scope.spawn(|| measure().map_err(|problem| problem.to_string()));
        let measured = measuring.join().map_err(|_| "a measurement panicked")?;
        Ok(measured?)
    })
}

/// A program with which the devices are compared.
struct Other {
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    /// The figure of a device that is to take no longer.
    no_slower: Option<&'static str>,
    /// Returns `None` where the program is not installed, or cannot run the measurement.
    measure: fn() -> Option<f64>,
}

const OTHERS: [Other; 4] = [
    Other {
        name: "libfabric-udp-latency",
        title: "libfabric udp, 64 B, half round trip",
        unit: US,
        no_slower: Some("roce-latency"),
        measure: || ping_pong(["udp", "dgram"], "64", "50000", TIME),
    },
    Other {
        name: "libfabric-tcp-latency",
        title: "libfabric tcp, 64 B, half round trip",
        unit: US,
        no_slower: None,
        measure: || ping_pong(["tcp", "msg"], "64", "50000", TIME),
    },
    Other {
        name: "libfabric-tcp-64k",
        title: "libfabric tcp, 64 KiB, there and back",
        unit: GBS,
        no_slower: None,
        measure: || Some(ping_pong(["tcp", "msg"], "65536", "5000", RATE)? / 1e3),
    },
    Other {
        name: "iperf3-tcp",
        title: "iperf3, TCP stream",
        unit: GBS,
        no_slower: None,
        measure: || {
            let said = with_server("iperf3", &["-s", "-1"], &["-J", "-t", "3", "-c"])?;
            let said: Value = serde_json::from_str(&said).ok()?;
            let bits = said["end"]["sum_received"]["bits_per_second"].as_f64()?;
            Some(bits / 8e9)
        },
    },
];

/// Columns of the output of `fi_pingpong`, from the right: MB/s, and microseconds of half a round trip.
const RATE: usize = 2;
const TIME: usize = 1;

/// The median of three runs, each so long that its start has no influence.
fn ping_pong(of: [&str; 2], size: &str, turns: &str, column: usize) -> Option<f64> {
    let [provider, kind] = of;
    let arguments = ["-p", provider, "-e", kind, "-S", size, "-I", turns];
    let run = || {
        let said = with_server("fi_pingpong", &arguments, &arguments)?;
        let line = said.lines().last()?;
        line.split_whitespace()
            .rev()
            .nth(column)?
            .parse::<f64>()
            .ok()
    };
    let runs: Vec<_> = (0..3).map_while(|_| run()).collect();
    (runs.len() == 3).then(|| median(runs))
}

/// The output of a program that talks to another run of itself; `None` where there is no such program.
fn with_server(program: &str, server: &[&str], client: &[&str]) -> Option<String> {
    // A lost message would keep both waiting for ever.
    let bounded = || {
        let mut command = Command::new("timeout");
        command.args(["10", program]);
        command
    };
    // This fails where the program is not installed.
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
    // The server has ended by itself, or is killed now.
    let _ = child.kill();
    let _ = child.wait();
}
