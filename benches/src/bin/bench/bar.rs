//! The command `bar`: the figures of posting and polling, for which there are limits, and those of operations that a
//! program does once per object.

use std::cell::RefCell;

use anyhow::Result;
use polyverbs_benches::allocations::per_request;
use polyverbs_benches::cpu;
use polyverbs_benches::loopback::{BATCH, Loopback};
use polyverbs_benches::partner::Partner;
use polyverbs_benches::ping_pong::{PingPong, SendPattern};
use polyverbs_benches::rig::Rig;
use polyverbs_benches::sample::{Samples, median, nanoseconds, pace, timed};
use polyverbs_benches::yardstick;

use crate::control;
use crate::crowd::{Choice, Crowd, SLOTS};
use crate::misses::Misses;
use crate::part::{Measure, Part};
use crate::report::Limit::{self, FigureAtMost, RatioAtLeast, RatioAtMost};
use crate::report::{GBS, NS, Row};

/// Posting and polling on one device in one process, where a figure may have a limit
#[derive(Clone, clap::Args)]
pub(crate) struct Arguments {
    /// The kind of emulated device, or the registered device, that is measured
    #[arg(long, value_name = "NAME", default_value = "ib0")]
    pub(crate) device: String,
    /// How many undisturbed samples of each figure are taken
    #[arg(long, value_name = "N", default_value_t = 51, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// How many connected pairs of QPs there are in the part `pairs`, which measures a write among many
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
}

impl Arguments {
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.into()
    }
}

pub(crate) fn parts(arguments: &Arguments) -> Vec<Part> {
    let parts: [(_, Measure<_>); 8] = [
        ("machine", machine),
        ("send", sends),
        ("requests", requests),
        ("extensions", extensions),
        ("bandwidth", bandwidths),
        ("allocations", allocations),
        ("pairs", crowd),
        ("control", control::measure),
    ];
    Part::of_each(arguments, &parts)
}

/// The name by which rows show the yardstick [`rmw`], an uncontended atomic read-modify-write.
pub(crate) const RMW: &str = "RMW";

pub(crate) fn rmw() -> f64 {
    yardstick::read_modify_write(10_000)
}

/// Measures the part `machine`: the yardsticks that need one thread, so that a reader knows the machine's state during this
/// run.
fn machine(arguments: &Arguments) -> Result<Vec<Row>> {
    cpu::pin();
    let row = |name: &str, reading: fn() -> f64| {
        let samples = Samples::take(arguments.rounds(), || Ok(rmw()), || Ok(reading()))?;
        anyhow::Ok(Row::compared(name, &samples, NS, RMW))
    };
    Ok(vec![
        row("read-modify-write", rmw)?,
        row("bare fetch_add", || yardstick::fetch_add(10_000))?,
        row("pace", pace)?,
    ])
}

/// Measures the part `send`: half of a round trip of a message between two threads, compared with the sum of 1.3 crossings
/// of a cache line and 20 read-modify-writes.
fn sends(arguments: &Arguments) -> Result<Vec<Row>> {
    let plain = SendPattern::default();
    let signaled = SendPattern {
        signaled_every: 1,
        ..plain
    };
    let read = SendPattern {
        read: true,
        ..plain
    };
    let patterns = [
        ("send 64 B, half round trip", plain, Some(RatioAtMost(1.0))),
        ("  the same, every send signaled", signaled, None),
        ("  the same, the message is read", read, None),
    ];
    let partner = Partner::pinned();
    let mut rows = Vec::new();
    for (name, pattern, limit) in patterns {
        let rig = Rig::new(&arguments.device)?;
        let mut pair = PingPong::new([&rig, &rig], pattern)?;
        pair.half_round_trip(&partner, 10_000)?;
        let mut readings = Vec::new();
        let sum = || {
            let (line, rmw) = (yardstick::line_crossing(&partner, 1_000), rmw());
            readings.push((line, rmw));
            Ok(1.3 * line + 20.0 * rmw)
        };
        let figure = || pair.half_round_trip(&partner, 2_000);
        let samples = Samples::take_at(arguments.rounds(), || partner.pace(), sum, figure)?;
        let line = median(readings.iter().map(|reading| reading.0));
        let rmw = median(readings.iter().map(|reading| reading.1));
        let formula = format!("1.3 lines of {line:.1} ns + 20 RMW of {rmw:.2} ns =");
        rows.push(Row::compared(name, &samples, NS, formula).within(limit));
    }
    Ok(rows)
}

/// Measures the part `requests`: a write, a read, a compare-and-swap and a batch of writes, which one thread posts and
/// polls, each compared with a read-modify-write.
fn requests(arguments: &Arguments) -> Result<Vec<Row>> {
    cpu::pin();
    let rig = Rig::new(&arguments.device)?;
    let mut rows = Vec::new();
    let mut word = Loopback::new(&rig, 8)?;
    let mut add = |name: &str, limit: Option<Limit>, work: fn(&mut Loopback) -> Result<()>| {
        timed(10_000, || work(&mut word))?;
        let figure = || timed(5_000, || work(&mut word));
        let samples = Samples::take(arguments.rounds(), || Ok(rmw()), figure)?;
        rows.push(Row::compared(name, &samples, NS, RMW).within(limit));
        anyhow::Ok(())
    };
    let limit = Some(RatioAtMost(14.0));
    add("write 8 B, posted and polled", limit, Loopback::write)?;
    add("read 8 B, posted and polled", None, Loopback::read)?;
    if rig.has_atomics() {
        let name = "compare and swap, posted and polled";
        add(name, None, |word| word.compare_swap(true))?;
        let name = "compare and swap that does not swap";
        add(name, None, |word| word.compare_swap(false))?;
    }
    let mut line = Loopback::new(&rig, 64)?;
    let mut each = || anyhow::Ok(timed(200, || line.write_batch(BATCH))? / BATCH as f64);
    each()?;
    let samples = Samples::take(arguments.rounds(), || Ok(rmw()), each)?;
    let rate = 1e3 / samples.figure();
    let name = format!("write 64 B, {BATCH} per doorbell ({rate:.1} M/s)");
    rows.push(Row::compared(name, &samples, NS, RMW).within(RatioAtMost(8.0)));
    Ok(rows)
}

/// Measures the part `extensions`: writes and reads on a device and QPs that have all extensions, compared with the same
/// requests on a device without any. The requests use no extension, so its presence should cost nothing.
fn extensions(arguments: &Arguments) -> Result<Vec<Row>> {
    cpu::pin();
    let full = Rig::new(&arguments.device)?;
    let bare = Rig::without_extensions(&arguments.device)?;
    let compare = |name: &str, length, turns, work: fn(&mut Loopback) -> Result<()>| {
        let mut with = Loopback::extended(&full, length)?;
        let mut without = Loopback::new(&bare, length)?;
        timed(2 * turns, || work(&mut with))?;
        timed(2 * turns, || work(&mut without))?;
        let samples = Samples::take(
            arguments.rounds(),
            || timed(turns, || work(&mut without)),
            || timed(turns, || work(&mut with)),
        )?;
        let name = format!("{name}, with every extension there");
        anyhow::Ok(Row::compared(name, &samples, NS, "without any").within(RatioAtMost(1.03)))
    };
    let batch = |line: &mut Loopback| line.write_batch(BATCH);
    Ok(vec![
        compare("write 8 B", 8, 5_000, Loopback::write)?,
        compare("read 8 B", 8, 5_000, Loopback::read)?,
        compare("32 writes of 64 B", 64, 200, batch)?,
    ])
}

/// Measures the part `bandwidth`: RDMA writes and reads of 4 KiB, 64 KiB and 1 MiB, each compared with a `memcpy` of as
/// many bytes.
fn bandwidths(arguments: &Arguments) -> Result<Vec<Row>> {
    cpu::pin();
    let rig = Rig::new(&arguments.device)?;
    let mut rows = Vec::new();
    for (length, limit) in [
        (4 << 10, None),
        (64 << 10, Some(RatioAtLeast(0.9))),
        (1 << 20, Some(RatioAtLeast(0.95))),
    ] {
        let loopback = RefCell::new(Loopback::new(&rig, length)?);
        let turns = u64::from((64 << 20) / length).min(2_000);
        let rate = |nanoseconds: f64| f64::from(length) / nanoseconds;
        let mut add = |name: &str, limit: Option<Limit>, work: fn(&mut Loopback) -> Result<()>| {
            let copies = || nanoseconds(turns, || loopback.borrow_mut().copy());
            let requests = || timed(turns, || work(&mut loopback.borrow_mut()));
            copies();
            requests()?;
            let copies = || Ok(rate(copies()));
            let requests = || Ok(rate(requests()?));
            let samples = Samples::take(arguments.rounds(), copies, requests)?;
            let name = format!("{name} {} KiB", length >> 10);
            rows.push(Row::compared(name, &samples, GBS, "memcpy").within(limit));
            anyhow::Ok(())
        };
        add("write", limit, Loopback::write)?;
        add("read", None, Loopback::read)?;
    }
    Ok(rows)
}

/// Measures the part `allocations`: the number of heap allocations per request, of that kind of request which makes the
/// most.
fn allocations(arguments: &Arguments) -> Result<Vec<Row>> {
    const TURNS: u32 = 10_000;
    let counts = per_request(&Rig::new(&arguments.device)?, TURNS)?;
    let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(0);
    let kinds = counts.len();
    let name = format!("allocations per request, worst of {kinds} kinds");
    let row = Row::new(name, most as f64 / f64::from(TURNS), "");
    Ok(vec![row.within(FigureAtMost(0.0))])
}

/// Measures the part `pairs`: the memory that many connected pairs of QPs occupy, and the time of a write on one of them,
/// compared with that of a write on the only pair of a device.
fn crowd(arguments: &Arguments) -> Result<Vec<Row>> {
    cpu::pin();
    let lone_rig = Rig::new(&arguments.device)?;
    let mut lone = Crowd::new(&lone_rig, 1)?;
    let mut alone = || timed(5_000, || lone.write(Choice::Hot));
    let rig = Rig::new(&arguments.device)?;
    let mut many = Crowd::new(&rig, arguments.pairs as usize)?;
    let pairs = many.pairs();
    let mut rows = occupied(&many);
    for (name, choice, limit) in [
        ("always the same one", Choice::Hot, 1.1),
        ("each in turn", Choice::RoundRobin, 1.3),
        ("in random order", Choice::Random, 8.0),
    ] {
        timed(2 * pairs as u64, || many.write(choice))?;
        let figure = || timed(5_000, || many.write(choice));
        let samples = Samples::take(arguments.rounds(), &mut alone, figure)?;
        let name = format!("write 8 B among {pairs} pairs, {name}");
        rows.push(Row::compared(name, &samples, NS, "lone pair").within(RatioAtMost(limit)));
    }
    let mut misses = Misses::new(100_000);
    misses.miss(100_000);
    let samples = Samples::take(arguments.rounds(), alone, || Ok(misses.miss(5_000)))?;
    let name = "  for comparison: one load that misses every cache";
    rows.push(Row::compared(name, &samples, NS, "lone pair"));
    Ok(rows)
}

fn occupied(crowd: &Crowd) -> Vec<Row> {
    const MIB: f64 = (1 << 20) as f64;
    let pairs = crowd.pairs();
    let row = |what: &str, octets: u64| {
        let each = octets / pairs as u64;
        let name = format!("{pairs} pairs, {SLOTS} + {SLOTS} slots, {what} ({each} B each)");
        Row::new(name, octets as f64 / MIB, "MiB")
    };
    // The limit is for 100,000 pairs.
    let limit = FigureAtMost(1024.0 * pairs as f64 / 100_000.0);
    let unused = crowd
        .occupied_unused()
        .map(|octets| row("connected", octets));
    let used = crowd
        .occupied()
        .map(|octets| row("all used", octets).within(limit));
    unused.into_iter().chain(used).collect()
}
