//! The measurements.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use indicatif::ProgressBar;
use polyverbs::{Batch, Completion, Device, Operations, wr};

use super::Test;
use super::figures::{Each, Figures, in_blocks, one_by_one, rounded};
use super::pair::{Side, connected};
use super::player::Player;
use super::yardstick::{self, End, Line, Yardstick, around};

/// A measurement to be taken.
pub(super) struct Job<'d> {
    pub(super) device: &'d Device,
    pub(super) test: Test,
    pub(super) size: u32,
    pub(super) iterations: u64,
}

/// Writes per doorbell.
const BATCH: usize = 32;
/// Writes in flight while bytes are counted.
const IN_FLIGHT: usize = 16;

pub(super) fn run(job: &Job<'_>) -> anyhow::Result<Figures> {
    let (one, other) = connected(job.device, job.size)?;
    let (from, to) = (one.region.sge(0, job.size)?, other.region.remote(0));
    let total = match job.test {
        Test::Bandwidth | Test::MessageRate => job.iterations,
        _ => 2 * job.iterations,
    };
    let bar = super::bar(total);
    let figures = match job.test {
        Test::SendLatency => send_latency(job, &one, &other, &bar),
        Test::WriteLatency => latency(job, &one, &bar, || {
            one.post(wr::Write::new(from, to).signaled(0))
        }),
        Test::ReadLatency => latency(job, &one, &bar, || {
            one.post(wr::Read::new(from, to).signaled(0))
        }),
        Test::AtomicLatency => {
            if !one.does(Operations::ATOMIC_FETCH_AND_ADD) {
                anyhow::bail!("{} has no atomic operations", job.device.name());
            }
            latency(job, &one, &bar, || {
                one.post(wr::FetchAdd::new(from, to, 1).signaled(0))
            })
        }
        Test::Bandwidth => bandwidth(job, &one, &other, &bar),
        Test::MessageRate => message_rate(job, &one, &other, &bar),
        Test::ReadBandwidth | Test::SendBandwidth => Err(anyhow::anyhow!(
            "{} is measured between processes: name an address",
            job.test.name()
        )),
    };
    bar.finish_and_clear();
    figures
}

// One thread posts and polls; the other side contributes only memory.
fn latency(
    job: &Job<'_>,
    side: &Side,
    bar: &ProgressBar,
    post: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<Figures> {
    let mut slots: [Completion; 4] = Default::default();
    let mut once = || {
        post()?;
        side.spin(&mut slots, 1)
    };
    for _ in 0..job.iterations / 10 {
        once()?;
    }
    let measure = || {
        let median = in_blocks(job.iterations, bar, &mut once)?;
        Ok((median, one_by_one(job.iterations, 1, bar, &mut once)?))
    };
    let name = "an uncontended read-modify-write";
    let beside_atomic = || around(name, yardstick::read_modify_write, measure);
    let (((median, each), atomic), copy) = if job.size >= 4096 {
        let memcpy = || yardstick::memcpy(job.size as usize);
        let (measured, copy) = around("a memcpy of as many bytes", memcpy, beside_atomic)?;
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

fn bandwidth(
    job: &Job<'_>,
    one: &Side,
    other: &Side,
    bar: &ProgressBar,
) -> anyhow::Result<Figures> {
    let size = job.size as usize;
    writes(
        job,
        one,
        other,
        bar,
        IN_FLIGHT,
        "a memcpy of as many bytes",
        || yardstick::memcpy(size),
    )
}

fn message_rate(
    job: &Job<'_>,
    one: &Side,
    other: &Side,
    bar: &ProgressBar,
) -> anyhow::Result<Figures> {
    let name = "an uncontended read-modify-write";
    writes(
        job,
        one,
        other,
        bar,
        BATCH,
        name,
        yardstick::read_modify_write,
    )
}

// Batches of writes, the last of each signaled.
fn writes(
    job: &Job<'_>,
    one: &Side,
    other: &Side,
    bar: &ProgressBar,
    count: usize,
    name: &'static str,
    limit: impl FnMut() -> f64,
) -> anyhow::Result<Figures> {
    let (from, to) = (one.region.sge(0, job.size)?, other.region.remote(0));
    let mut slots: [Completion; 4] = Default::default();
    let mut batch = Batch::with_capacity(count);
    let mut once = || {
        for _ in 1..count {
            batch.push(wr::Write::new(from, to));
        }
        batch.push(wr::Write::new(from, to).signaled(0));
        one.qp.post(&mut batch)?;
        one.spin(&mut slots, 1)
    };
    once()?;
    let batches = job.iterations.div_ceil(count as u64);
    bar.set_length(batches);
    let (median, yardstick) = around(name, limit, || in_blocks(batches, bar, &mut once))?;
    let iterations = rounded(batches) * count as u64;
    Ok(Figures {
        median: median / count as f64,
        iterations,
        each: None,
        yardsticks: vec![yardstick],
    })
}

/// Two threads that send a message to and fro.
fn send_latency(
    job: &Job<'_>,
    one: &Side,
    other: &Side,
    bar: &ProgressBar,
) -> anyhow::Result<Figures> {
    let lines = [Line::default(), Line::default()];
    let over = AtomicBool::new(false);
    let rounds = Line::rounds(job.iterations);
    // A thread that fails hangs up, so that the other does not spin for ever.
    let guard = |result: anyhow::Result<(f64, f64)>| {
        if result.is_err() {
            over.store(true, Ordering::Relaxed);
            one.hang_up();
            other.hang_up();
        }
        result
    };
    for _ in 0..4 {
        one.receive(job.size)?;
        other.receive(job.size)?;
    }
    let mut near = Player::new(one, job.size);
    let mut far = Player::new(other, job.size);
    let warm_up = job.iterations / 10;
    let answers = warm_up + rounded(job.iterations) + job.iterations;
    let mut measured = None;
    let (near_result, far_result) = thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let mut answer = || far.answer(|slots| other.next(slots));
            let work = || (0..answers).try_for_each(|_| answer());
            guard(between(&lines, End::Second, rounds, &over, work))
        });
        let work = || {
            let mut ask = || near.ask(|slots| one.next(slots));
            (0..warm_up).try_for_each(|_| ask())?;
            let median = in_blocks(job.iterations, bar, &mut ask)? / 2.0;
            measured = Some((median, one_by_one(job.iterations, 2, bar, ask)?));
            Ok(())
        };
        let near = guard(between(&lines, End::First, rounds, &over, work));
        (near, echo.join())
    });
    let Ok(far_result) = far_result else {
        anyhow::bail!("the answering thread panicked")
    };
    let (before, after) = near_result?;
    far_result?;
    let Some((median, each)): Option<(f64, Each)> = measured else {
        anyhow::bail!("nothing was measured");
    };
    let name = "a cache line crossing between the threads";
    let yardsticks = vec![Yardstick {
        name,
        before,
        after,
    }];
    Ok(Figures {
        median,
        iterations: job.iterations,
        each: Some(each),
        yardsticks,
    })
}

// Measures the handover of a cache line before and after the work, on the same thread.
fn between(
    lines: &[Line; 2],
    end: End,
    rounds: u64,
    over: &AtomicBool,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<(f64, f64)> {
    let before = lines[0].cross(end, rounds, over);
    work()?;
    Ok((before, lines[1].cross(end, rounds, over)))
}
