//! Latencies of small requests, next to the primitives that bound them.
// What `criterion_group!` makes has no documentation.
#![allow(missing_docs)]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use polyverbs_benches::loopback::{BATCH, Loopback};
use polyverbs_benches::partner::Partner;
use polyverbs_benches::ping_pong::{PingPong, SendPattern};
use polyverbs_benches::rig::Rig;
use polyverbs_benches::yardstick;

/// The whole time of `count` pieces of this many nanoseconds each.
fn total(nanoseconds: f64, count: u64) -> Duration {
    Duration::from_nanos((nanoseconds * count as f64) as u64)
}

fn two_threads(criterion: &mut Criterion) {
    let partner = Partner::start();
    let rig = Rig::of_environment().unwrap();
    let plain = SendPattern::default();
    let mut group = criterion.benchmark_group("half round trip");
    group.bench_function("yardstick: cache line", |bencher| {
        bencher.iter_custom(|count| total(yardstick::line_crossing(&partner, count), count));
    });
    for (name, pattern) in [
        ("send 64 B", plain),
        (
            "send 64 B, each signaled",
            SendPattern {
                signaled_every: 1,
                ..plain
            },
        ),
        (
            "send 64 B, message read",
            SendPattern {
                read: true,
                ..plain
            },
        ),
    ] {
        let mut pair = PingPong::new(&rig, pattern).unwrap();
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|count| total(pair.half_round_trip(&partner, count), count));
        });
    }
    group.finish();
}

fn one_thread(criterion: &mut Criterion) {
    let rig = Rig::of_environment().unwrap();
    let mut word = Loopback::new(&rig, 8).unwrap();
    let mut group = criterion.benchmark_group("posted and polled");
    group.bench_function("yardstick: read-modify-write", |bencher| {
        bencher.iter_custom(|count| total(black_box(yardstick::read_modify_write(count)), count));
    });
    group.bench_function("yardstick: fetch_add", |bencher| {
        bencher.iter_custom(|count| total(black_box(yardstick::fetch_add(count)), count));
    });
    group.bench_function("write 8 B", |bencher| bencher.iter(|| word.write()));
    group.bench_function("read 8 B", |bencher| bencher.iter(|| word.read()));
    if rig.has_atomics() {
        group.bench_function("compare-and-swap that swaps", |bencher| {
            bencher.iter(|| word.compare_swap_taken())
        });
        group.bench_function("compare-and-swap that does not", |bencher| {
            bencher.iter(|| word.compare_swap())
        });
    }
    group.finish();
}

fn batches(criterion: &mut Criterion) {
    let rig = Rig::of_environment().unwrap();
    let mut line = Loopback::new(&rig, 64).unwrap();
    let mut group = criterion.benchmark_group("message rate");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("32 writes of 64 B per doorbell", |bencher| {
        bencher.iter(|| line.write_batch())
    });
    group.finish();
}

criterion_group!(benches, two_threads, one_thread, batches);
criterion_main!(benches);
