//! Measures the figures for which the fast path has limits, and prints each next to its yardstick and its limit.
//!
//! The exit status is 0 whether the limits are met or not: a time is information, never a test.

use std::cell::RefCell;
use std::env::Args;
use std::iter::Skip;
use std::process::ExitCode;
use std::time::Duration;

use polyverbs_benches::Outcome;
use polyverbs_benches::allocations::{Counting, per_request};
use polyverbs_benches::command;
use polyverbs_benches::crowd::{Choice, Crowd, SLOTS};
use polyverbs_benches::loopback::{BATCH, Loopback};
use polyverbs_benches::partner::Partner;
use polyverbs_benches::ping_pong::{PingPong, SendPattern};
use polyverbs_benches::report::{Limit, Quantity, Row, table};
use polyverbs_benches::rig::{Rig, device_of_environment};
use polyverbs_benches::sample::{Samples, find_best_pace, median, nanoseconds, pace};
use polyverbs_benches::yardstick::{self, Misses};
use serde_json::json;

// The figures and the count of allocations must be of the same program.
#[global_allocator]
static ALLOCATOR: Counting = Counting;

const USAGE: &str = "\
Measures the fast path beside the limits of this machine.

usage: bar [--device NAME] [--pairs N] [--rounds N] [--only PART] [--json]

  --device NAME  the device, ib0 unless given here or by POLYVERBS_BENCH_DEVICE
  --pairs N      connected queue pairs in the measurements of many, 100000 unless given
  --rounds N     samples of each figure that count, 51 unless given
  --only PART    one part of it: send, requests, extensions, bandwidth, allocations or pairs
  --json         for programs

example: bar --device ib0 --json > bar.json
";

struct Options {
    device: String,
    pairs: usize,
    rounds: usize,
    only: Option<Part>,
    json: bool,
}

type Part = (&'static str, fn(&Options, &Partner) -> Outcome<Vec<Row>>);

const PARTS: [Part; 6] = [
    ("send", sends),
    ("requests", requests),
    ("extensions", extensions),
    ("bandwidth", bandwidths),
    ("allocations", allocations),
    ("pairs", crowd),
];

fn main() -> ExitCode {
    command::run("bar", USAGE, options, measure)
}

fn options(mut arguments: Skip<Args>) -> Result<Option<Options>, String> {
    let mut options = Options {
        device: device_of_environment(),
        pairs: 100_000,
        rounds: 51,
        only: None,
        json: false,
    };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--device" => options.device = value()?,
            "--pairs" => options.pairs = command::count(&value()?)?,
            "--rounds" => options.rounds = command::count(&value()?)?,
            "--only" => {
                let wanted = value()?;
                let part = PARTS.into_iter().find(|(name, _)| *name == wanted);
                options.only = Some(part.ok_or(format!("there is no part {wanted}"))?);
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
    let machine = Machine::of(&partner);
    let rounds = options.rounds;
    let mut rows = Vec::new();
    for (name, part) in PARTS {
        if options.only.is_none_or(|(only, _)| only == name) {
            rows.extend(part(options, &partner)?);
        }
    }
    let after = Machine::of(&partner);
    if options.json {
        let rows: Vec<_> = rows.iter().map(Row::json).collect();
        let document = json!({
            "device": options.device,
            "apart": partner.is_apart(),
            "machine": [machine.json(), after.json()],
            "rows": rows,
        });
        println!("{document:#}");
        return Ok(());
    }
    println!(
        "device {}, {rounds} samples of each figure, medians\n",
        options.device
    );
    if !partner.is_apart() {
        println!(
            "The two threads share a processor or move about: figures of two threads say nothing.\n"
        );
    }
    println!(
        "before: {}\nafter:  {}\n\n{}",
        machine.text(),
        after.text(),
        table(&rows)
    );
    Ok(())
}

/// The yardsticks of the machine at this moment, in nanoseconds.
struct Machine {
    line: f64,
    rmw: f64,
    fetch_add: f64,
    pace: f64,
}

impl Machine {
    fn of(partner: &Partner) -> Self {
        let several = |reading: &dyn Fn() -> f64| median((0..15).map(|_| reading()));
        Self {
            line: several(&|| line(partner)),
            rmw: several(&rmw),
            fetch_add: several(&|| yardstick::fetch_add(10_000)),
            pace: several(&pace),
        }
    }

    fn text(&self) -> String {
        let Self {
            line,
            rmw,
            fetch_add,
            pace,
        } = self;
        format!(
            "line crossing {line:.1} ns, read-modify-write {rmw:.2} ns, bare fetch_add {fetch_add:.2} ns, \
             pace {pace:.2} ns"
        )
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "line_crossing_ns": self.line,
            "read_modify_write_ns": self.rmw,
            "fetch_add_ns": self.fetch_add,
            "pace_ns": self.pace,
        })
    }
}

fn line(partner: &Partner) -> f64 {
    yardstick::line_crossing(partner, 1_000)
}

fn rmw() -> f64 {
    yardstick::read_modify_write(10_000)
}

/// Half round trips: the bar is a sum of two yardsticks.
fn sends(options: &Options, partner: &Partner) -> Outcome<Vec<Row>> {
    let plain = SendPattern::default();
    let patterns = [
        ("send 64 B, half round trip", plain, Limit::AtMost(1.0)),
        (
            "  the same, every send signaled",
            SendPattern {
                signaled_every: 1,
                ..plain
            },
            Limit::None,
        ),
        (
            "  the same, the message is read",
            SendPattern {
                read: true,
                ..plain
            },
            Limit::None,
        ),
    ];
    let mut rows = Vec::new();
    for (name, pattern, limit) in patterns {
        let rig = Rig::new(&options.device)?;
        let mut pair = PingPong::new(&rig, pattern)?;
        pair.half_round_trip(partner, 10_000);
        let readings = RefCell::new(Vec::new());
        let sum = || {
            let (line, rmw) = (line(partner), rmw());
            readings.borrow_mut().push((line, rmw));
            1.3 * line + 20.0 * rmw
        };
        let figure = || pair.half_round_trip(partner, 2_000);
        let samples = Samples::take_at(options.rounds, || partner.pace(), sum, figure);
        let readings = readings.into_inner();
        let line = median(readings.iter().map(|reading| reading.0));
        let rmw = median(readings.iter().map(|reading| reading.1));
        let formula = format!("1.3 lines of {line:.1} ns + 20 RMW of {rmw:.2} ns =");
        rows.push(timed(name, &samples, &formula, limit));
    }
    Ok(rows)
}

/// Requests that one thread posts and polls, compared with read-modify-writes.
fn requests(options: &Options, _: &Partner) -> Outcome<Vec<Row>> {
    let rig = Rig::new(&options.device)?;
    let rounds = options.rounds;
    let mut rows = Vec::new();
    let mut word = Loopback::new(&rig, 8)?;
    let mut several = |name: &str, limit, work: fn(&mut Loopback)| {
        nanoseconds(10_000, || work(&mut word));
        let samples = Samples::take(rounds, rmw, || nanoseconds(5_000, || work(&mut word)));
        rows.push(timed(name, &samples, RMW, limit));
    };
    several(
        "write 8 B, posted and polled",
        Limit::AtMost(14.0),
        Loopback::write,
    );
    several("read 8 B, posted and polled", Limit::None, Loopback::read);
    if rig.has_atomics() {
        several(
            "compare and swap, posted and polled",
            Limit::None,
            Loopback::compare_swap_taken,
        );
    }
    let mut line = Loopback::new(&rig, 64)?;
    let each = |line: &mut Loopback| nanoseconds(200, || line.write_batch()) / BATCH as f64;
    each(&mut line);
    let samples = Samples::take(rounds, rmw, || each(&mut line));
    let rate = 1e3 / samples.figure();
    let name = format!("write 64 B, {BATCH} per doorbell ({rate:.1} M/s)");
    rows.push(timed(&name, &samples, RMW, Limit::AtMost(8.0)));
    Ok(rows)
}

/// Requests that use no extension, on a device and queue pairs that have all extensions, compared with the same requests where
/// there is none.
fn extensions(options: &Options, _: &Partner) -> Outcome<Vec<Row>> {
    let (full, bare) = (
        Rig::new(&options.device)?,
        Rig::without_extensions(&options.device)?,
    );
    let mut rows = Vec::new();
    let mut compare = |name: &str, length, turns, work: fn(&mut Loopback)| -> Outcome<()> {
        let mut with = Loopback::extended(&full, length)?;
        let mut without = Loopback::new(&bare, length)?;
        nanoseconds(2 * turns, || work(&mut with));
        nanoseconds(2 * turns, || work(&mut without));
        let samples = Samples::take(
            options.rounds,
            || nanoseconds(turns, || work(&mut without)),
            || nanoseconds(turns, || work(&mut with)),
        );
        let name = format!("{name}, with every extension there");
        rows.push(timed(&name, &samples, "without any", Limit::AtMost(1.03)));
        Ok(())
    };
    compare("write 8 B", 8, 5_000, Loopback::write)?;
    compare("read 8 B", 8, 5_000, Loopback::read)?;
    compare("32 writes of 64 B", 64, 200, Loopback::write_batch)?;
    Ok(rows)
}

const RMW: &str = "RMW";

fn timed(name: &str, samples: &Samples, yardstick: &str, limit: Limit) -> Row {
    Row {
        name: name.to_owned(),
        figure: Quantity(samples.figure(), "ns"),
        yardstick: (yardstick.to_owned(), Quantity(samples.yardstick(), "ns")),
        ratio: samples.ratio(),
        limit,
        samples: samples.counts(),
    }
}

fn bandwidths(options: &Options, _: &Partner) -> Outcome<Vec<Row>> {
    let lengths = [
        (4 << 10, Limit::None),
        (64 << 10, Limit::AtLeast(0.9)),
        (1 << 20, Limit::AtLeast(0.95)),
    ];
    lengths
        .into_iter()
        .map(|(length, limit)| bandwidth(options, length, limit))
        .collect()
}

/// Writes of one length, compared with plain copies of the same bytes.
fn bandwidth(options: &Options, length: u32, limit: Limit) -> Outcome<Row> {
    let rig = Rig::new(&options.device)?;
    let loopback = RefCell::new(Loopback::new(&rig, length)?);
    let turns = u64::from((64 << 20) / length).min(2_000);
    let copies = || nanoseconds(turns, || loopback.borrow_mut().copy());
    let writes = || nanoseconds(turns, || loopback.borrow_mut().write());
    copies();
    writes();
    let samples = Samples::take(options.rounds, copies, writes);
    let per_second = |nanoseconds: f64| Quantity(f64::from(length) / nanoseconds, "GB/s");
    Ok(Row {
        name: format!("write {} KiB", length >> 10),
        figure: per_second(samples.figure()),
        yardstick: ("memcpy".to_owned(), per_second(samples.yardstick())),
        ratio: 1.0 / samples.ratio(),
        limit,
        samples: samples.counts(),
    })
}

/// The largest number of allocations among all kinds of requests.
fn allocations(options: &Options, _: &Partner) -> Outcome<Vec<Row>> {
    const TURNS: u32 = 10_000;
    let counts = per_request(&Rig::new(&options.device)?, TURNS)?;
    let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(0);
    let kinds = counts.len();
    let per_request = most as f64 / f64::from(TURNS);
    Ok(vec![Row {
        name: format!("allocations per request, worst of {kinds} kinds"),
        figure: Quantity(per_request, ""),
        yardstick: ("none".to_owned(), Quantity(0.0, "")),
        ratio: per_request,
        limit: Limit::AtMost(0.0),
        samples: (kinds, kinds),
    }])
}

/// Many connected pairs: the memory that they occupy, and the cost of a write on one of them.
fn crowd(options: &Options, _: &Partner) -> Outcome<Vec<Row>> {
    let lone_rig = Rig::new(&options.device)?;
    let lone = RefCell::new(Crowd::new(&lone_rig, 1)?);
    let rig = Rig::new(&options.device)?;
    let mut many = Crowd::new(&rig, options.pairs)?;
    let pairs = many.pairs();
    let mut rows = occupied(&many);
    let mut misses = Misses::new(100_000);
    misses.miss(100_000);
    for (name, choice, limit) in [
        ("always the same one", Choice::Hot, 1.1),
        ("each in turn", Choice::RoundRobin, 1.3),
        ("in random order", Choice::Random, 8.0),
    ] {
        let alone = || nanoseconds(5_000, || lone.borrow_mut().write(Choice::Hot));
        nanoseconds(2 * pairs as u64, || many.write(choice));
        let samples = Samples::take(options.rounds, alone, || {
            nanoseconds(5_000, || many.write(choice))
        });
        let name = format!("write 8 B among {pairs} pairs, {name}");
        rows.push(timed(&name, &samples, "lone pair", Limit::AtMost(limit)));
    }
    let alone = || nanoseconds(5_000, || lone.borrow_mut().write(Choice::Hot));
    let samples = Samples::take(options.rounds, alone, || misses.miss(5_000));
    let name = "  for comparison: one load that misses every cache";
    rows.push(timed(name, &samples, "lone pair", Limit::None));
    Ok(rows)
}

fn occupied(crowd: &Crowd) -> Vec<Row> {
    const MIB: f64 = (1 << 20) as f64;
    const GIB: f64 = (1 << 30) as f64;
    let pairs = crowd.pairs();
    // The limit is for 100,000 pairs.
    let share = GIB * pairs as f64 / 100_000.0;
    let row = |what: &str, octets: u64, limit| Row {
        name: format!(
            "{pairs} pairs, {SLOTS} + {SLOTS} slots, {what} ({} B each)",
            octets / pairs as u64
        ),
        figure: Quantity(octets as f64 / MIB, "MiB"),
        yardstick: ("the bar's share".to_owned(), Quantity(share / MIB, "MiB")),
        ratio: octets as f64 / share,
        limit,
        samples: (1, 1),
    };
    let unused = crowd
        .occupied_unused()
        .map(|octets| row("connected", octets, Limit::None));
    let used = crowd
        .occupied()
        .map(|octets| row("all used", octets, Limit::AtMost(1.0)));
    unused.into_iter().chain(used).collect()
}
