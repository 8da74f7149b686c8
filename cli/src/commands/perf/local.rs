//! Measurements whose two ends are in this process.

use std::cell::RefCell;

use indicatif::ProgressBar;
use polyverbs_benches::loopback::{BATCH, Loopback};
use polyverbs_benches::partner::Partner;
use polyverbs_benches::ping_pong::{PingPong, SendPattern};
use polyverbs_benches::rig::Rig;
use polyverbs_benches::sample::nanoseconds;
use polyverbs_benches::side::Side;
use polyverbs_benches::yardstick;

use super::figures::{Figures, around, in_blocks, middle, one_by_one, rounded};
use super::{Job, Test};

/// Writes in flight while bytes are counted.
const IN_FLIGHT: usize = 16;

pub(super) fn measure(job: &Job<'_>) -> anyhow::Result<Figures> {
    let rig = Rig::open(job.device)?;
    let total = match job.test {
        Test::Bandwidth | Test::MessageRate => job.iterations,
        _ => 2 * job.iterations,
    };
    let bar = super::bar(total);
    let figures = match job.test {
        Test::SendLatency => send_latency(job, &rig, &bar),
        Test::WriteLatency => latency(job, &rig, &bar, Loopback::write),
        Test::ReadLatency => latency(job, &rig, &bar, Loopback::read),
        Test::AtomicLatency => job
            .needs_atomics(&rig)
            .and_then(|()| latency(job, &rig, &bar, Loopback::fetch_add)),
        Test::Bandwidth => writes(job, &rig, &bar, IN_FLIGHT, MEMCPY, memcpy),
        Test::MessageRate => writes(job, &rig, &bar, BATCH, ATOMIC, |_| read_modify_write()),
        Test::ReadBandwidth | Test::SendBandwidth => Err(anyhow::anyhow!(
            "{} is measured between processes: name an address",
            job.test.name()
        )),
    };
    bar.finish_and_clear();
    figures
}

const ATOMIC: &str = "an uncontended read-modify-write";
const MEMCPY: &str = "a memcpy of as many bytes";

fn read_modify_write() -> f64 {
    middle(|| yardstick::read_modify_write(100_000))
}

fn memcpy(loopback: &RefCell<Loopback>) -> f64 {
    let mut loopback = loopback.borrow_mut();
    let rounds = (64 << 20) / u64::from(loopback.length());
    let rounds = rounds.clamp(1, 1_000_000);
    middle(|| nanoseconds(rounds, || loopback.copy()))
}

// One thread posts and polls; the other side contributes only memory.
fn latency(
    job: &Job<'_>,
    rig: &Rig,
    bar: &ProgressBar,
    request: fn(&mut Loopback) -> anyhow::Result<()>,
) -> anyhow::Result<Figures> {
    let loopback = RefCell::new(Loopback::new(rig, job.size)?);
    let mut once = || request(&mut loopback.borrow_mut());
    (0..job.iterations / 10).try_for_each(|_| once())?;
    let measure = || {
        let median = in_blocks(job.iterations, bar, &mut once)?;
        Ok((median, one_by_one(job.iterations, 1, bar, &mut once)?))
    };
    let beside_atomic = || around(ATOMIC, read_modify_write, measure);
    let (((median, each), atomic), copy) = if job.size >= 4096 {
        let (measured, copy) = around(MEMCPY, || memcpy(&loopback), beside_atomic)?;
        (measured, Some(copy))
    } else {
        (beside_atomic()?, None)
    };
    let yardsticks = [Some(atomic), copy].into_iter().flatten().collect();
    Ok(Figures {
        median,
        iterations: job.iterations,
        each: Some(each),
        yardsticks,
    })
}

// Batches of so many writes, the last of each signaled.
fn writes(
    job: &Job<'_>,
    rig: &Rig,
    bar: &ProgressBar,
    count: usize,
    name: &'static str,
    limit: fn(&RefCell<Loopback>) -> f64,
) -> anyhow::Result<Figures> {
    let loopback = RefCell::new(Loopback::new(rig, job.size)?);
    let once = || loopback.borrow_mut().write_batch(count);
    once()?;
    let batches = job.iterations.div_ceil(count as u64);
    bar.set_length(batches);
    let measure = || in_blocks(batches, bar, once);
    let (median, yardstick) = around(name, || limit(&loopback), measure)?;
    Ok(Figures {
        median: median / count as f64,
        iterations: rounded(batches) * count as u64,
        each: None,
        yardsticks: vec![yardstick],
    })
}

// Two threads send a message to and fro.
fn send_latency(job: &Job<'_>, rig: &Rig, bar: &ProgressBar) -> anyhow::Result<Figures> {
    let pattern = SendPattern {
        size: job.size,
        inline: true,
        ..SendPattern::default()
    };
    let mut pair = PingPong::new([rig, rig], pattern)?;
    let partner = Partner::start();
    pair.half_round_trip(&partner, (job.iterations / 10).max(1))?;
    // On a busy machine each crossing may take as long as a message.
    let crossings = (job.iterations / 20).clamp(1, 2000);
    let name = "a cache line crossing between the threads";
    let crossing = || middle(|| yardstick::line_crossing(&partner, crossings));
    let ((median, each), yardstick) = around(name, crossing, || {
        let median = pair.play(&partner, rounded(job.iterations), |near| {
            in_blocks(job.iterations, bar, || near.ask(Side::next))
        })?;
        let each = pair.play(&partner, job.iterations, |near| {
            one_by_one(job.iterations, 2, bar, || near.ask(Side::next))
        })?;
        Ok((median / 2.0, each))
    })?;
    Ok(Figures {
        median,
        iterations: job.iterations,
        each: Some(each),
        yardsticks: vec![yardstick],
    })
}
