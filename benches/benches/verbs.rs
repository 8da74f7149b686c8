//! Criterion benchmarks of a device's verbs: criterion keeps the figures of the last run and shows by how much they
//! changed. The program `bench bar` measures the same verbs and compares them with limits.
// The function that `criterion_group!` generates has no documentation.
#![allow(missing_docs)]

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use polyverbs::{Access, Memory, QpOptions, connect_pair};
use polyverbs_benches::loopback::Loopback;
use polyverbs_benches::partner::Partner;
use polyverbs_benches::ping_pong::{PingPong, SendPattern};
use polyverbs_benches::rig::Rig;

const DEVICES: [&str; 2] = ["ib0", "iw0"];
const REGISTERED: usize = 64 << 10;

fn one_sided(criterion: &mut Criterion) {
    for device in DEVICES {
        let rig = Rig::new(device).unwrap();
        for length in [8, 4 << 10, 1 << 20] {
            let mut loopback = Loopback::new(&rig, length).unwrap();
            let mut group = criterion.benchmark_group(format!("{device}, {length} bytes"));
            group.throughput(Throughput::Bytes(u64::from(length)));
            group.bench_function("memcpy", |bencher| bencher.iter(|| loopback.copy()));
            group.bench_function("write", |bencher| {
                bencher.iter(|| loopback.write().unwrap())
            });
            group.bench_function("read", |bencher| bencher.iter(|| loopback.read().unwrap()));
            group.finish();
        }
    }
}

fn half_round_trip(criterion: &mut Criterion) {
    let partner = Partner::start();
    for device in DEVICES {
        let rig = Rig::new(device).unwrap();
        let mut pair = PingPong::new([&rig, &rig], SendPattern::default()).unwrap();
        criterion.bench_function(&format!("{device}, half round trip of a send"), |bencher| {
            bencher.iter_custom(|count| {
                let each = pair.half_round_trip(&partner, count).unwrap();
                Duration::from_nanos((each * count as f64) as u64)
            });
        });
    }
}

fn control(criterion: &mut Criterion) {
    for device in DEVICES {
        let rig = Rig::new(device).unwrap();
        let memory = Memory::zeroed(REGISTERED).unwrap();
        criterion.bench_function(&format!("{device}, register and deregister"), |bencher| {
            bencher.iter(|| {
                let region = rig.pd.register(&memory, rig.remote()).wait().unwrap();
                region.deregister().wait().unwrap();
            });
        });
        let cq = rig.context.create_cq(16).wait().unwrap();
        let create = || rig.pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
        criterion.bench_function(&format!("{device}, create and connect two"), |bencher| {
            bencher.iter_with_large_drop(|| {
                let (near, far) = (create(), create());
                connect_pair(&near, &far, Access::empty()).wait().unwrap();
                (near, far)
            });
        });
    }
}

criterion_group!(benches, one_sided, half_round_trip, control);
criterion_main!(benches);
