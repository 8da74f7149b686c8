//! Samples: a figure, and its yardstick immediately before and after it.

use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

/// Nanoseconds for each of `turns` runs of `work`.
#[inline]
pub fn nanoseconds(turns: u64, mut work: impl FnMut()) -> f64 {
    let Ok(each) = timed(turns, || {
        work();
        Ok::<_, Infallible>(())
    });
    each
}

/// Nanoseconds for each of `turns` runs of `work`.
///
/// # Errors
/// `work` failed.
#[inline]
pub fn timed<E>(turns: u64, mut work: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let began = Instant::now();
    for _ in 0..turns {
        work()?;
    }
    Ok(began.elapsed().as_nanos() as f64 / turns as f64)
}

/// The median; of an even number of values, the upper one of the middle two. 0 if there are no values.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// A figure between two readings of its yardstick, and the slower of two readings of the pace.
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

    // Whether this thread had its processor for itself, and the machine was in the same state before and after. The
    // figure itself does not influence the decision.
    fn is_steady(&self, best: f64) -> bool {
        let [least, most] = [self.before.min(self.after), self.before.max(self.after)];
        most <= STEADY * least && self.pace <= AT_PACE * best
    }
}

/// The largest ratio of the two readings of a sample that counts.
const STEADY: f64 = 1.25;

/// The largest ratio of the pace of a sample that counts to the best pace.
const AT_PACE: f64 = 1.15;

/// The best pace that this process has seen, as the bits of a positive float: their order is that of the numbers.
static BEST_PACE: AtomicU64 = AtomicU64::new(f64::INFINITY.to_bits());

/// The current pace of this thread, in nanoseconds per step of work that keeps the processor busy. Where another
/// thread shares the core, the speed halves; a read-modify-write hardly shows that, because it mostly waits.
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

/// Measures the pace for a second, once, so that the first samples have a best pace with which they are compared.
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

/// Samples of one figure with one yardstick.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    samples: Vec<Sample>,
    best: f64,
}

impl Samples {
    /// Takes `rounds` samples: the yardstick, the figure, the yardstick.
    ///
    /// # Errors
    /// The yardstick or the figure could not be measured.
    pub fn take(
        rounds: usize,
        yardstick: impl FnMut() -> Result<f64>,
        figure: impl FnMut() -> Result<f64>,
    ) -> Result<Self> {
        Self::take_at(rounds, pace, yardstick, figure)
    }

    /// Takes samples with the pace of all participating threads: that of the slowest.
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

    /// The median of the figures.
    pub fn figure(&self) -> f64 {
        median(self.counted().map(|sample| sample.figure))
    }

    /// The median of the yardsticks.
    pub fn yardstick(&self) -> f64 {
        median(self.counted().map(|sample| sample.yardstick()))
    }

    /// The median of the ratios of figure to yardstick, each computed within its own sample.
    pub fn ratio(&self) -> f64 {
        median(
            self.counted()
                .map(|sample| sample.figure / sample.yardstick()),
        )
    }

    /// The number of samples that count, and the number of samples taken.
    pub fn counts(&self) -> (usize, usize) {
        (self.counted().count(), self.samples.len())
    }

    // The samples that a steady machine gave; all samples if those are too few for a median.
    fn counted(&self) -> impl Iterator<Item = &Sample> {
        let is_steady = |sample: &&Sample| sample.is_steady(self.best);
        let steady = self.samples.iter().filter(is_steady).count();
        let all = steady < MIDDLE.min(self.samples.len());
        self.samples
            .iter()
            .filter(move |sample| all || is_steady(sample))
    }
}

/// The largest ratio of the samples taken to the samples that are to count.
const PATIENCE: usize = 8;

/// The fewest samples that have a meaningful median.
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
