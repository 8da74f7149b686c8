//! InfiniBand over a link with faults.

use seeded_runs::{for_each_seed, objects, reliable, unreliable};
use verbs_api::qp::QpType;

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
