//! The cost of 1, 1,000 and 100,000 connected queue pairs.
// What `criterion_group!` makes has no documentation.
#![allow(missing_docs)]

use criterion::{Criterion, criterion_group, criterion_main};
use polyverbs_benches::crowd::{Choice, Crowd, SLOTS};
use polyverbs_benches::rig::Rig;

fn write_among_many(criterion: &mut Criterion) {
    for pairs in [1, 1_000, 100_000] {
        let rig = Rig::of_environment().unwrap();
        let mut crowd = Crowd::new(&rig, pairs).unwrap();
        // One pair occupies less than the allocator requests from the system at a time.
        if let Some(octets) = crowd.occupied().filter(|_| pairs > 1) {
            let each = octets / pairs as u64;
            println!(
                "{pairs} pairs with {SLOTS} send and {SLOTS} receive slots: {each} octets each, used"
            );
        }
        let mut group = criterion.benchmark_group(format!("write 8 B among {pairs} pairs"));
        for (name, choice) in [
            ("always the same", Choice::Hot),
            ("each in turn", Choice::RoundRobin),
            ("in random order", Choice::Random),
        ] {
            group.bench_function(name, |bencher| bencher.iter(|| crowd.write(choice)));
        }
        group.finish();
    }
}

criterion_group!(benches, write_among_many);
criterion_main!(benches);
