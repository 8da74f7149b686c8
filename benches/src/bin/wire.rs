//! Puts RoCEv2 over UDP beside bare sockets, and beside other programs where they are installed: one table.

use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Duration;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use polyverbs_benches::Outcome;
use polyverbs_benches::partner::Partner;
use polyverbs_benches::raw::{Peer, SEGMENT, SUPER, TcpPair, UdpPair};
use polyverbs_benches::roce::RocePair;
use polyverbs_benches::sample::median;
use polyverbs_links::wire::Offload;

const USAGE: &str = "\
Measures RoCEv2 over UDP beside bare sockets, over loopback, and beside libfabric and iperf3 where they are installed.

usage: wire [--rounds N]

  --rounds N   samples of each figure, 9 unless given
";

/// Round trips of a sample.
const TURNS: u64 = 2_000;
/// Octets of a sample.
const OCTETS: u64 = 128 << 20;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let rounds = match &arguments[..] {
        [] => Some(9),
        [option, number] if option == "--rounds" => number.parse().ok().filter(|&n| n > 0),
        _ => None,
    };
    let Some(rounds) = rounds else {
        print!("{USAGE}");
        return ExitCode::from(2);
    };
    match measure(rounds) {
        Ok(table) => {
            println!("{table}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("wire: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Two figures that are taken in turn, so that they see the same machine: the medians of both.
fn beside(
    rounds: usize,
    mut limit: impl FnMut() -> Outcome<f64>,
    mut ours: impl FnMut() -> Outcome<f64>,
) -> Outcome<(f64, f64)> {
    limit()?;
    ours()?;
    let mut taken = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        taken.push((limit()?, ours()?));
    }
    let limit = median(taken.iter().map(|(limit, _)| *limit));
    Ok((limit, median(taken.iter().map(|(_, ours)| *ours))))
}

fn measure(rounds: usize) -> Outcome<Table> {
    // Before this thread is pinned: those of the devices are not.
    let roce = RocePair::new(Offload::default())?;
    let plain = RocePair::new(Offload::NONE)?;
    let partner = Partner::start();
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header(["figure", "limit", "ours", "ratio", "bar"]);
    let mut row = |figure: &str, unit: &str, (limit, ours): (f64, f64), bar: &str| {
        let figures = [limit, ours].map(|figure| format!("{figure:.2} {unit}"));
        let [limit_cell, ours_cell] = figures;
        let ratio = format!("{:.2}", ours / limit);
        table.add_row([figure, &limit_cell, &ours_cell, &ratio, bar]);
    };
    let udp = UdpPair::new(Peer::Named)?;
    let figures = beside(
        rounds,
        || Ok(udp.half_round_trip(&partner, TURNS)? / 1e3),
        || Ok(roce.half_round_trip(&partner, TURNS)? / 1e3),
    )?;
    row("64 B, half round trip", "us", figures, "at most 1.5");
    let cut = UdpPair::new(Peer::Named)?.offload()?;
    let figures = beside(
        rounds,
        || cut.stream(&partner, SUPER, OCTETS),
        || roce.write_stream(&partner, OCTETS),
    )?;
    row("64 KiB writes, GSO and GRO", "GB/s", figures, "4 GB/s");
    drop(roce);
    let figures = beside(
        rounds,
        || udp.stream(&partner, SEGMENT, OCTETS / 8),
        || plain.write_stream(&partner, OCTETS / 8),
    )?;
    row("64 KiB writes, one by one", "GB/s", figures, "at least 0.7");
    let tcp = TcpPair::new()?;
    let stream = median([0; 3].map(|_| tcp.stream(&partner, OCTETS).unwrap_or_default()));
    drop(partner);
    for (name, figure) in others() {
        table.add_row([
            name.to_owned(),
            String::new(),
            figure,
            String::new(),
            String::new(),
        ]);
    }
    table.add_row(["bare TCP stream".to_owned(), format!("{stream:.2} GB/s")]);
    for column in 1..4 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    Ok(table)
}

/// What other programs say, or that they are not installed.
fn others() -> Vec<(&'static str, String)> {
    let pingpong = |provider: &str, kind: &str, size: &str| {
        let arguments = ["-p", provider, "-e", kind, "-S", size, "-I", "5000"];
        let said = with_server("fi_pingpong", &arguments, &arguments, "127.0.0.1");
        said.map(|said| said.lines().last().unwrap_or_default().trim().to_owned())
    };
    let iperf = with_server("iperf3", &["-s", "-1"], &["-t", "3", "-c"], "127.0.0.1");
    let receiver = |said: String| {
        let line = said.lines().find(|line| line.contains("receiver"));
        line.unwrap_or_default().trim().to_owned()
    };
    let shown = |said: Option<String>| said.unwrap_or_else(|| "not installed".to_owned());
    vec![
        ("libfabric udp, 64 B", shown(pingpong("udp", "dgram", "64"))),
        ("libfabric tcp, 64 B", shown(pingpong("tcp", "msg", "64"))),
        (
            "libfabric tcp, 64 KiB",
            shown(pingpong("tcp", "msg", "65536")),
        ),
        ("iperf3, TCP", shown(iperf.map(receiver))),
    ]
}

/// What a program prints that talks to another run of itself; `None` where there is no such program.
fn with_server(program: &str, server: &[&str], client: &[&str], at: &str) -> Option<String> {
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
    let output = bounded().args(client).arg(at).output().ok();
    end(&mut server);
    Some(String::from_utf8_lossy(&output?.stdout).into_owned())
}

fn end(child: &mut Child) {
    // It ended by itself, or is ended.
    let _ = child.kill();
    let _ = child.wait();
}
