//! The limits of the machine that bound the figures.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::pair::Spin;

/// A limit: its name, and its time before and after the measurement, in nanoseconds.
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
    mut limit: impl FnMut() -> f64,
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(T, Yardstick)> {
    let before = limit();
    let result = work()?;
    Ok((
        result,
        Yardstick {
            name,
            before,
            after: limit(),
        },
    ))
}

/// One read-modify-write of an uncontended cache line.
pub(super) fn read_modify_write() -> f64 {
    const ROUNDS: u64 = 100_000;
    let word = AtomicU64::new(0);
    let mut blocks: Vec<_> = (0..9)
        .map(|_| {
            let begun = Instant::now();
            for _ in 0..ROUNDS {
                black_box(black_box(&word).fetch_add(1, Ordering::AcqRel));
            }
            begun.elapsed().as_nanos() as f64 / ROUNDS as f64
        })
        .collect();
    median(&mut blocks)
}

/// One copy of `size` bytes between two buffers that are used over and over.
pub(super) fn memcpy(size: usize) -> f64 {
    // At page boundaries, as registered memory is: elsewhere some processors copy much slower.
    let (mut source, mut target) = (vec![1u8; size + PAGE], vec![2u8; size + PAGE]);
    let source = page_aligned(&mut source, size);
    let target = page_aligned(&mut target, size);
    let rounds = ((64 << 20) / size.max(1)).clamp(1, 1_000_000);
    let mut blocks: Vec<_> = (0..9)
        .map(|_| {
            let begun = Instant::now();
            for _ in 0..rounds {
                black_box(&mut *target).copy_from_slice(black_box(&*source));
            }
            begun.elapsed().as_nanos() as f64 / rounds as f64
        })
        .collect();
    median(&mut blocks)
}

/// The median; of an even number of values, the upper one of the middle two.
pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

const PAGE: usize = 4096;

fn page_aligned(bytes: &mut [u8], size: usize) -> &mut [u8] {
    let skipped = bytes.as_ptr().align_offset(PAGE);
    &mut bytes[skipped..skipped + size]
}

/// A cache line that two threads hand to each other.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Line(AtomicU64);

/// Which of the two threads begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    First,
    Second,
}

impl Line {
    const BLOCKS: u64 = 21;
    const ROUNDS: u64 = 1000;

    /// How many rounds each block has beside a measurement of so many messages: on a busy machine each may take as long as one.
    pub(super) fn rounds(iterations: u64) -> u64 {
        (iterations / Self::BLOCKS).clamp(1, Self::ROUNDS)
    }

    /// Hands the line to and fro with another thread that does the same; returns the time of one crossing, the median of
    /// blocks.
    ///
    /// Returns early once `over` is set: the other thread has failed.
    pub(super) fn cross(&self, end: End, rounds: u64, over: &AtomicBool) -> f64 {
        let mut blocks = Vec::new();
        for block in 0..Self::BLOCKS {
            let begun = Instant::now();
            for round in block * rounds..(block + 1) * rounds {
                let (wait, hand) = match end {
                    End::First => (2 * round, 2 * round + 1),
                    End::Second => (2 * round + 1, 2 * round + 2),
                };
                let mut spin = Spin::default();
                while self.0.load(Ordering::Acquire) != wait {
                    if over.load(Ordering::Relaxed) {
                        return 0.0;
                    }
                    spin.once();
                }
                self.0.store(hand, Ordering::Release);
            }
            blocks.push(begun.elapsed().as_nanos() as f64 / (2 * rounds) as f64);
        }
        median(&mut blocks)
    }
}
