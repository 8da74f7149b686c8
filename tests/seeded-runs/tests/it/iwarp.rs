//! iWARP over a stream with faults.

use seeded_runs::for_each_seed;
use seeded_runs::stream::{End, run};

#[test]
fn a_slow_stream_changes_nothing() {
    for_each_seed("slow stream", |seed, rng| run(End::Never, seed, rng));
}

#[test]
fn a_reset_leaves_a_prefix_and_completes_the_rest_once() {
    for_each_seed("reset stream", |seed, rng| run(End::Reset, seed, rng));
}

#[test]
fn a_flipped_bit_ends_in_terminate() {
    for_each_seed("flipped bit", |seed, rng| run(End::Flip, seed, rng));
}
