//! Writes of 4 KiB, 64 KiB and 1 MiB, next to plain copies of the same bytes.
// What `criterion_group!` makes has no documentation.
#![allow(missing_docs)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use polyverbs_benches::loopback::Loopback;
use polyverbs_benches::rig::Rig;

fn writes(criterion: &mut Criterion) {
    let rig = Rig::of_environment().unwrap();
    for length in [4 << 10, 64 << 10, 1 << 20] {
        let mut loopback = Loopback::new(&rig, length).unwrap();
        let mut group = criterion.benchmark_group(format!("{} KiB", length >> 10));
        group.throughput(Throughput::Bytes(u64::from(length)));
        group.bench_function("yardstick: memcpy", |bencher| {
            bencher.iter(|| loopback.copy())
        });
        group.bench_function("write", |bencher| bencher.iter(|| loopback.write()));
        group.bench_function("read", |bencher| bencher.iter(|| loopback.read()));
        group.finish();
    }
}

criterion_group!(benches, writes);
criterion_main!(benches);
