//! The counters of a device, while programs create and destroy queue pairs.

use std::thread;

use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::*;

fn writes(context: &Context) -> u64 {
    let counters = context.counters();
    let writes = counters.iter().find(|(name, _)| *name == "writes");
    writes.unwrap().1
}

#[test]
fn a_device_counts_the_requests_of_a_queue_pair_that_is_being_destroyed() {
    let device = emulated::device("ib0", &EmulatedOptions::default()).unwrap();
    let context = device.open(&Requirements::new()).unwrap();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(64).wait().unwrap();
    let (mut slots, rounds): ([Completion; 8], _) = (Default::default(), 1..=100);
    for round in rounds {
        let qp = || pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
        let (near, far) = (qp(), qp());
        connect_pair(&near, &far, Access::REMOTE_WRITE)
            .wait()
            .unwrap();
        let write = wr::Write::new((), RemoteAddress::default());
        near.post_one(write.signaled(round)).unwrap();
        while cq.poll(&mut slots).unwrap().is_empty() {}
        thread::scope(|scope| {
            let destroyed = scope.spawn(|| near.destroy().wait().unwrap());
            while !destroyed.is_finished() {
                assert_eq!(writes(&context), round);
            }
        });
        assert_eq!(writes(&context), round);
    }
}
