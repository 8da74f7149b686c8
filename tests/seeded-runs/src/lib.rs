//! Seeded runs: pairs of devices in virtual time, under faults and generated requests, against models.
//!
//! Each test runs seed after seed, from 1 on, for `POLYVERBS_SEEDED_SECONDS` (2 unless set). A run that fails prints its
//! seed; `POLYVERBS_SEED` runs that one alone.

pub mod endpoint;
pub mod objects;
pub mod reliable;
pub mod stream;
pub mod unreliable;

use std::time::{Duration, Instant};

// Linked: the runs register and invalidate by work requests.
use bmme as _;
use rand::SeedableRng;
use rand::rngs::SmallRng;

/// Runs `run` with one seed after the other until the time is up.
///
/// # Panics
/// As `run` does, having printed the seed.
pub fn for_each_seed(name: &str, mut run: impl FnMut(u64, &mut SmallRng)) {
    let one = std::env::var("POLYVERBS_SEED")
        .ok()
        .map(|seed| seed.parse().expect("POLYVERBS_SEED is a number"));
    let seconds = std::env::var("POLYVERBS_SEEDED_SECONDS").map_or(2.0, |text| {
        text.parse()
            .expect("POLYVERBS_SEEDED_SECONDS is a number of seconds")
    });
    let (began, time) = (Instant::now(), Duration::from_secs_f64(seconds));
    let mut seed = one.unwrap_or(1);
    loop {
        let shown = Shown { name, seed };
        run(seed, &mut SmallRng::seed_from_u64(seed));
        drop(shown);
        if one.is_some() || began.elapsed() >= time {
            break;
        }
        seed += 1;
    }
    println!("{name}: seeds up to {seed} in {:?}", began.elapsed());
}

/// Prints the seed if the run panics.
struct Shown<'n> {
    name: &'n str,
    seed: u64,
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "{} failed: run it again with POLYVERBS_SEED={}",
                self.name, self.seed
            );
        }
    }
}
