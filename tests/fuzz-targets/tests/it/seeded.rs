//! Seeded runs: pairs of devices in virtual time, under faults and generated requests, against models.
//!
//! Each test runs the seeds from 1 to 100, or as many as fit into `POLYVERBS_SEEDED_SECONDS`. A run that fails prints its seed;
//! `POLYVERBS_SEED` runs that seed alone.

mod endpoint;
mod objects;
mod reliable;
mod stream;
mod unreliable;

use std::fmt::Debug;
use std::str::FromStr;
use std::time::{Duration, Instant};

// `bmme` is linked because the runs register and invalidate by work requests.
use bmme as _;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use verbs_api::qp::QpType;

use stream::End;

/// Seeds of a test, unless the environment says for how many seconds it runs.
const SEEDS: u64 = 100;

#[test]
fn reliable_connections_lose_double_and_reorder_nothing() {
    for_each_seed("reliable", reliable::run);
}

#[test]
fn unreliable_connections_never_duplicate_or_falsify() {
    for_each_seed("unreliable", |seed, rng| {
        unreliable::run(QpType::Uc, seed, rng)
    });
}

#[test]
fn datagrams_are_never_duplicated_or_falsified() {
    for_each_seed("datagram", |seed, rng| {
        unreliable::run(QpType::Ud, seed, rng)
    });
}

#[test]
fn keys_and_windows_open_what_the_model_says() {
    for_each_seed("objects", objects::run);
}

#[test]
fn a_slow_stream_changes_nothing() {
    for_each_seed("slow stream", |seed, rng| {
        stream::run(End::Never, seed, rng)
    });
}

#[test]
fn a_reset_leaves_a_prefix_and_completes_the_rest_once() {
    for_each_seed("reset stream", |seed, rng| {
        stream::run(End::Reset, seed, rng)
    });
}

#[test]
fn a_flipped_bit_ends_in_terminate() {
    for_each_seed("flipped bit", |seed, rng| stream::run(End::Flip, seed, rng));
}

/// Runs `run` with one seed after the other. A seed with which it panics is printed.
fn for_each_seed(name: &str, mut run: impl FnMut(u64, &mut SmallRng)) {
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
