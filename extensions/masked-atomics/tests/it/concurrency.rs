//! Many threads add to one word: every sum is exact, and no carry crosses a field.

use std::thread;

use emulated_ib as _;
use emulated_iwarp as _;
use masked_atomics::{MaskedAtomics, MaskedFeatures, MaskedFetchAdd};
use verbs_api::*;

const FIELDS: u64 = 0x8000_8000_8000_8000;
const QUEUE_PAIRS: u64 = 8;

fn rounds() -> u64 {
    match std::env::var_os("POLYVERBS_MEMORY_CHECK") {
        Some(_) => 500,
        None => 100_000,
    }
}

// The number that this queue pair adds each time; no field of it is zero.
fn addend(number: u64) -> u64 {
    (0..4).fold(0, |word, field| {
        let small = (number * 7919 + field * 104_729 + 1) & 0xffff;
        word | small << (16 * field)
    })
}

fn add_in(context: &Context, pd: &Pd, masked: &MaskedAtomics, target: RemoteAddress, number: u64) {
    let cq = context.create_cq(64).wait().unwrap();
    let qp = pd
        .create_qp(QpOptions::rc(&cq).operations(masked).max_send_wr(32))
        .wait()
        .unwrap();
    let peer = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    connect_pair(&qp, &peer, Access::REMOTE_ATOMIC)
        .wait()
        .unwrap();
    let memory = Memory::zeroed(8).unwrap();
    let sink = pd.register(&memory, Access::LOCAL_WRITE).wait().unwrap();
    let add = MaskedFetchAdd::new(target, addend(number)).fields(FIELDS);
    let mut slots: [Completion; 32] = Default::default();
    let (mut posted, mut done) = (0, 0);
    while done < rounds() {
        while posted < rounds() && posted - done < 16 {
            let request = add.request(sink.sge(0, 8).unwrap()).signaled(posted);
            qp.post_one(request).unwrap();
            posted += 1;
        }
        for completion in cq.poll(&mut slots).unwrap().iter() {
            assert_eq!(completion.status, WcStatus::Success);
            done += 1;
        }
    }
}

fn sums_are_exact(transport: Transport) {
    let wanted = Requirements::new()
        .transport(transport)
        .needs(MaskedFeatures::MASKED_64);
    let context = open(wanted).unwrap();
    let pd = context.alloc_pd().wait().unwrap();
    let masked = context.extension::<MaskedAtomics>().unwrap();
    let memory = Memory::zeroed(8).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    let mr = pd.register(&memory, access).wait().unwrap();
    let target = mr.remote(0);
    thread::scope(|scope| {
        for number in 0..QUEUE_PAIRS {
            let (context, pd, masked) = (&context, &pd, &masked);
            scope.spawn(move || add_in(context, pd, masked, target, number));
        }
    });
    let found = memory.load_u64(0).unwrap();
    for field in 0..4 {
        let each = (0..QUEUE_PAIRS).map(|number| addend(number) >> (16 * field) & 0xffff);
        let sum = each.sum::<u64>() * rounds();
        assert_eq!(
            found >> (16 * field) & 0xffff,
            sum & 0xffff,
            "field {field}"
        );
    }
}

// covers 4.31
#[test]
fn eight_threads_on_infiniband() {
    sums_are_exact(Transport::InfiniBand);
}

// covers 4.31
#[test]
fn eight_threads_on_iwarp() {
    sums_are_exact(Transport::Iwarp);
}
