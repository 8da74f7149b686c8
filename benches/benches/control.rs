//! Operations that a program does once per object: registering memory, fast-registering it, creating and connecting queue pairs.
// What `criterion_group!` makes has no documentation.
#![allow(missing_docs)]

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use polyverbs::{
    Access, Completion, Features, Memory, Operations, PageList, QpOptions, connect_pair, wr,
};
use polyverbs_benches::Outcome;
use polyverbs_benches::rig::{REMOTE, Rig};

const LENGTH: usize = 64 << 10;

fn registration(criterion: &mut Criterion) {
    let rig = Rig::of_environment().unwrap();
    let memory = Memory::zeroed(LENGTH).unwrap();
    let mut group = criterion.benchmark_group("registration of 64 KiB");
    group.bench_function("register and deregister", |bencher| {
        bencher.iter(|| {
            let region = rig.pd.register(&memory, REMOTE).wait().unwrap();
            region.deregister().wait().unwrap();
        });
    });
    if rig.context.features().contains(Features::BMME) {
        let mut cycle = fast_registration(&rig, &memory).unwrap();
        group.bench_function("fast-register and invalidate", |bencher| {
            bencher.iter(&mut cycle)
        });
    }
    group.finish();
}

/// Registers the memory with one key and invalidates the key, both posted and polled.
fn fast_registration(rig: &Rig, memory: &Memory) -> Outcome<impl FnMut() + use<>> {
    let cq = rig.context.create_cq(16).wait()?;
    let operations = Operations::FAST_REGISTER | Operations::LOCAL_INV;
    let options = || QpOptions::rc(&cq).operations(operations);
    let near = rig.pd.create_qp(options()).wait()?;
    let far = rig.pd.create_qp(options()).wait()?;
    connect_pair(&near, &far, Access::empty()).wait()?;
    let pages = PageList::map(&[memory.into()], 4096, (LENGTH / 4096) as u32)?.list;
    let key = rig.pd.alloc_key((LENGTH / 4096) as u32).wait()?;
    let mut completions: [Completion; 2] = Default::default();
    Ok(move || {
        let _peer = &far;
        key.advance();
        near.post_one(
            wr::FastRegister::new(key.rkey(), &pages)
                .access(REMOTE)
                .signaled(1),
        )
        .unwrap();
        near.post_one(wr::LocalInvalidate::new(key.rkey()).signaled(2))
            .unwrap();
        let done = cq.poll(&mut completions).unwrap();
        assert!(done.len() == 2 && done.iter().all(|done| done.status.is_success()));
    })
}

fn queue_pairs(criterion: &mut Criterion) {
    let rig = Rig::of_environment().unwrap();
    let cq = rig.context.create_cq(16).wait().unwrap();
    let options = || QpOptions::rc(&cq).max_send_wr(16).max_recv_wr(16);
    let create = || rig.pd.create_qp(options()).wait().unwrap();
    let mut group = criterion.benchmark_group("queue pairs");
    group.bench_function("create", |bencher| bencher.iter_with_large_drop(create));
    group.bench_function("create and destroy", |bencher| {
        bencher.iter(|| create().destroy().wait().unwrap());
    });
    group.bench_function("connect two", |bencher| {
        let connect = |(near, far)| {
            connect_pair(&near, &far, Access::empty()).wait().unwrap();
            black_box((near, far))
        };
        bencher.iter_batched(|| (create(), create()), connect, BatchSize::SmallInput);
    });
    group.finish();
}

criterion_group!(benches, registration, queue_pairs);
criterion_main!(benches);
