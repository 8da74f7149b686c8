//! Samples of a figure, each with a reading of its yardstick immediately before and one immediately after it.

use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

/// Runs `work` `turns` times and returns the mean time of a run in nanoseconds.
#[inline]
pub fn nanoseconds(turns: u64, mut work: impl FnMut()) -> f64 {
    let Ok(each) = timed(turns, || {
        work();
        Ok::<_, Infallible>(())
    });
    each
}

/// Runs `work`, which may fail, `turns` times and returns the mean time of a run in nanoseconds.
///
/// # Errors
/// The first error of `work`, which is not run again after that.
#[inline]
pub fn timed<E>(turns: u64, mut work: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let began = Instant::now();
    for _ in 0..turns {
        work()?;
    }
    Ok(began.elapsed().as_nanos() as f64 / turns as f64)
}

/// Returns the median of the values; of an even number of values, the larger one of the middle two. Returns 0 if there are
/// none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// One measurement of a figure: readings of the yardstick `before` and `after` the measurement, and the `pace`, which
/// is the slower of the paces before and after.
#[derive(Clone, Copy, Debug)]
struct Sample {
    before: f64,
    figure: f64,
    after: f64,
    pace: f64,
}

impl Sample {
    fn yardstick(&self) -> f64 {
        (self.before + self.after) / 2.0
    }

    // Whether the sample counts: the measuring thread had its processor for itself, and the yardstick took the same time
    // before the figure and after it. The figure itself does not influence the decision.
    fn is_steady(&self, best: f64) -> bool {
        let [least, most] = [self.before.min(self.after), self.before.max(self.after)];
        most <= STEADY * least && self.pace <= AT_PACE * best
    }
}

/// A sample counts only if the larger of its two yardstick readings is at most this many times the smaller.
const STEADY: f64 = 1.25;

/// A sample counts only if its pace, in nanoseconds per step, is at most this many times the best pace of the process.
const AT_PACE: f64 = 1.15;

/// The best (smallest) pace that this process has measured, in nanoseconds per step. The pace is stored as the bits of
/// an `f64`: the bits of positive numbers have the order of the numbers, so that `fetch_min` works.
static BEST_PACE: AtomicU64 = AtomicU64::new(f64::INFINITY.to_bits());

/// Measures the current pace of the calling thread: the nanoseconds that it takes for a step of arithmetic which keeps the
/// processor core busy. The time doubles while another hardware thread uses the same core; the time of a read-modify-write
/// hardly shows that, because such an instruction mostly waits.
pub fn pace() -> f64 {
    let mut chains = black_box([1_u64, 2, 3, 5, 7, 11]);
    let step = || {
        for chain in &mut chains {
            *chain = (*chain ^ 0x9e37_79b9)
                .rotate_left(7)
                .wrapping_add(*chain >> 3);
        }
    };
    let reading = nanoseconds(300, step);
    black_box(chains);
    BEST_PACE.fetch_min(reading.to_bits(), Ordering::Relaxed);
    reading
}

/// Measures the pace repeatedly for a second, in the first call of the process only, so that there is a best pace with
/// which the first samples are compared.
fn find_best_pace() {
    static FOUND: Once = Once::new();
    FOUND.call_once(|| {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(1) {
            pace();
        }
    });
}

fn best_pace() -> f64 {
    f64::from_bits(BEST_PACE.load(Ordering::Relaxed))
}

/// Samples of one figure, all with the same yardstick.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    samples: Vec<Sample>,
    best: f64,
}

impl Samples {
    /// Takes samples until `rounds` of them count; gives up after eight times as many. For each sample it calls
    /// `yardstick`, then `figure`, then `yardstick` again. A sample does not count if another program disturbed it: the
    /// calling thread's pace was slow, or the two readings of the yardstick differ by more than a quarter.
    ///
    /// # Errors
    /// The first error of `yardstick` or `figure`.
    pub fn take(
        rounds: usize,
        yardstick: impl FnMut() -> Result<f64>,
        figure: impl FnMut() -> Result<f64>,
    ) -> Result<Self> {
        Self::take_at(rounds, pace, yardstick, figure)
    }

    /// Takes samples as [`take`](Self::take) does, but calls `pace` for the pace, in nanoseconds per step. For a figure
    /// of several threads, `pace` returns the pace of the slowest thread.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn take_at(
        rounds: usize,
        pace: impl FnMut() -> f64,
        yardstick: impl FnMut() -> Result<f64>,
        figure: impl FnMut() -> Result<f64>,
    ) -> Result<Self> {
        find_best_pace();
        let samples = paced(rounds, best_pace, pace, yardstick, figure)?;
        Ok(Self {
            samples,
            best: best_pace(),
        })
    }

    /// Returns the median of the figures, over the samples that count.
    pub fn figure(&self) -> f64 {
        median(self.counted().map(|sample| sample.figure))
    }

    /// Returns the median of the yardstick, over the samples that count; in each sample it is the mean of the two readings.
    pub fn yardstick(&self) -> f64 {
        median(self.counted().map(|sample| sample.yardstick()))
    }

    /// Returns the median, over the samples that count, of the sample's ratio of figure to yardstick.
    pub fn ratio(&self) -> f64 {
        median(
            self.counted()
                .map(|sample| sample.figure / sample.yardstick()),
        )
    }

    /// Returns the number of samples that count, then the number of samples taken. If fewer than seven samples are
    /// undisturbed, all samples count.
    pub fn counts(&self) -> (usize, usize) {
        (self.counted().count(), self.samples.len())
    }

    // The undisturbed samples; all samples if the undisturbed ones are too few for a median.
    fn counted(&self) -> impl Iterator<Item = &Sample> {
        let is_steady = |sample: &&Sample| sample.is_steady(self.best);
        let steady = self.samples.iter().filter(is_steady).count();
        let all = steady < MIDDLE.min(self.samples.len());
        self.samples
            .iter()
            .filter(move |sample| all || is_steady(sample))
    }
}

/// [`Samples::take`] takes at most this many times as many samples as are to count.
const PATIENCE: usize = 8;

/// If fewer samples than this are undisturbed, their median means little, and all samples count.
const MIDDLE: usize = 7;

fn paced(
    rounds: usize,
    best: impl Fn() -> f64,
    mut pace: impl FnMut() -> f64,
    mut yardstick: impl FnMut() -> Result<f64>,
    mut figure: impl FnMut() -> Result<f64>,
) -> Result<Vec<Sample>> {
    let mut sample = || {
        let [pace_before, before] = [pace(), yardstick()?];
        let figure = figure()?;
        let [after, pace_after] = [yardstick()?, pace()];
        anyhow::Ok(Sample {
            before,
            figure,
            after,
            pace: pace_before.max(pace_after),
        })
    };
    let mut samples = Vec::new();
    let mut counted = 0;
    while counted < rounds && samples.len() < PATIENCE * rounds {
        let sample = sample()?;
        counted += usize::from(sample.is_steady(best()));
        samples.push(sample);
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_not_moved_by_an_outlier() {
        assert_eq!(median([3.0, 1.0, 1000.0, 2.0, 4.0]), 3.0);
        assert_eq!(median([]), 0.0);
    }

    fn samples(paces: &[f64], yardsticks: &[f64], figures: &[f64]) -> Samples {
        let [mut paces, mut yardsticks, mut figures] =
            [paces, yardsticks, figures].map(|list| list.iter().cycle());
        let pace = || *paces.next().unwrap();
        let yardstick = || Ok(*yardsticks.next().unwrap());
        let figure = || Ok(*figures.next().unwrap());
        let samples = paced(8, || 1.0, pace, yardstick, figure).unwrap();
        Samples { samples, best: 1.0 }
    }

    #[test]
    fn samples_of_an_unsteady_machine_do_not_count() {
        let samples = samples(&[1.0], &[10.0, 10.0, 10.0, 30.0], &[100.0, 900.0]);
        assert_eq!(samples.counts(), (8, 15));
        assert_eq!(
            (samples.figure(), samples.yardstick(), samples.ratio()),
            (100.0, 10.0, 10.0)
        );
    }

    #[test]
    fn samples_of_a_shared_processor_do_not_count() {
        let samples = samples(&[1.0, 1.1, 1.0, 1.4], &[10.0], &[100.0, 200.0]);
        assert_eq!(samples.counts(), (8, 15));
        assert_eq!(samples.figure(), 100.0);
    }

    #[test]
    fn all_samples_count_if_none_is_steady() {
        let samples = samples(&[2.0], &[1.0, 9.0], &[10.0]);
        assert_eq!(samples.counts(), (64, 64));
        assert_eq!(samples.ratio(), 2.0);
    }
}
