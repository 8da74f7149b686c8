//! Results of a measurement, and the loop that takes it.

use std::hint::black_box;
use std::time::Instant;

use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use polyverbs_benches::sample::{median, nanoseconds, timed};

/// Operations that are timed together.
const BLOCK: u64 = 1000;

/// The result of a measurement. Times are in nanoseconds.
pub(super) struct Figures {
    /// Time of one operation: the median of blocks without a clock in them.
    pub(super) median: f64,
    /// Number of operations measured.
    pub(super) iterations: u64,
    /// Each operation by itself, including the clock; `None` where only the total means something.
    pub(super) each: Option<Each>,
    /// The limits, measured in the same run.
    pub(super) yardsticks: Vec<Yardstick>,
}

/// A limit of the machine: its name, and its time before and after the measurement, in nanoseconds.
pub(super) struct Yardstick {
    pub(super) name: &'static str,
    pub(super) before: f64,
    pub(super) after: f64,
}

impl Yardstick {
    pub(super) fn mean(&self) -> f64 {
        f64::midpoint(self.before, self.after)
    }
}

/// Measures a limit before and after `work`.
pub(super) fn around<T>(
    name: &'static str,
    limit: impl Fn() -> f64,
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(T, Yardstick)> {
    let before = limit();
    let result = work()?;
    let after = limit();
    Ok((
        result,
        Yardstick {
            name,
            before,
            after,
        },
    ))
}

/// The median of nine readings.
pub(super) fn middle(mut reading: impl FnMut() -> f64) -> f64 {
    median((0..9).map(|_| reading()))
}

/// Operations timed one by one.
pub(super) struct Each {
    /// Picoseconds: half a round trip may take less than two ticks of the clock.
    pub(super) histogram: Histogram<u64>,
    /// What reading the clock adds to each.
    pub(super) clock: f64,
}

/// Runs `once` in blocks; returns the median time of one.
pub(super) fn in_blocks(
    iterations: u64,
    bar: &ProgressBar,
    mut once: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let block = BLOCK.min(iterations.div_ceil(8));
    let mut blocks = Vec::new();
    let mut done = 0;
    while done < iterations {
        blocks.push(timed(block, &mut once)?);
        done += block;
        bar.inc(block);
    }
    Ok(median(blocks))
}

/// How often [`in_blocks`] runs its argument.
pub(super) fn rounded(iterations: u64) -> u64 {
    let block = BLOCK.min(iterations.div_ceil(8));
    iterations.div_ceil(block) * block
}

/// Runs `once` and times each run by itself; a run counts as `parts` operations.
pub(super) fn one_by_one(
    iterations: u64,
    parts: u64,
    bar: &ProgressBar,
    mut once: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Each> {
    // Up to a minute, to three digits.
    let mut histogram = Histogram::new_with_bounds(1, 60_000_000_000_000, 3)?;
    let clock = nanoseconds(BLOCK, || {
        black_box(Instant::now());
    });
    let mut before = Instant::now();
    for done in 1..=iterations {
        once()?;
        let now = Instant::now();
        histogram.saturating_record((now - before).as_nanos() as u64 * 1000 / parts);
        before = now;
        if done % BLOCK == 0 {
            bar.inc(BLOCK);
            before = Instant::now();
        }
    }
    Ok(Each {
        histogram,
        clock: clock / parts as f64,
    })
}
