//! Seeded runs: pairs of devices in virtual time, under faults and generated requests, against models.
//!
//! Each test runs the seeds from 1 to 100, or as many as fit into `POLYVERBS_SEEDED_SECONDS`. A run that fails prints its seed;
//! `POLYVERBS_SEED` runs that seed alone.

pub mod endpoint;
pub mod objects;
pub mod reliable;
pub mod stream;
pub mod unreliable;

use std::fmt::Debug;
use std::str::FromStr;
use std::time::{Duration, Instant};

// `bmme` is linked because the runs register and invalidate by work requests.
use bmme as _;
use rand::SeedableRng;
use rand::rngs::SmallRng;

/// Seeds of a test, unless the environment says for how many seconds it runs.
const SEEDS: u64 = 100;

/// Runs `run` with one seed after the other.
///
/// # Panics
/// As `run` does, having printed the seed.
pub fn for_each_seed(name: &str, mut run: impl FnMut(u64, &mut SmallRng)) {
    let mut run = |seed| {
        let shown = Shown { name, seed };
        run(seed, &mut SmallRng::seed_from_u64(seed));
        drop(shown);
    };
    if let Some(seed) = number("POLYVERBS_SEED") {
        run(seed);
    } else if let Some(seconds) = number("POLYVERBS_SEEDED_SECONDS") {
        let (began, time) = (Instant::now(), Duration::from_secs_f64(seconds));
        let in_time = (1..).take_while(|seed| *seed == 1 || began.elapsed() < time);
        let seeds = in_time.inspect(|seed| run(*seed)).count();
        println!("{name}: seeds up to {seeds} in {:?}", began.elapsed());
    } else {
        (1..=SEEDS).for_each(run);
    }
}

fn number<N: FromStr<Err: Debug>>(variable: &str) -> Option<N> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|error| panic!("{variable} is not a number: {error:?}")))
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
