//! In steady state, no request through the C library allocates on this side of it. The test has a binary of its own, because all
//! queues of a process share the table that finds buffers again.

use polyverbs::Registry;
use polyverbs_benches::allocations::{Counting, per_request};
use polyverbs_benches::rig::Rig;
use rdma_core_provider::LibIbverbs;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const TURNS: u32 = 2000;

// covers 5.04
#[test]
fn a_request_through_the_c_library_allocates_nothing() {
    let mut registry = Registry::new();
    let provider = LibIbverbs::in_file(test_kit::libraries::built());
    registry.add_provider(provider).unwrap();
    let rig = Rig::open(registry.device("ib0@libibverbs").unwrap()).unwrap();
    let counts = per_request(&rig, TURNS).unwrap();
    assert!(counts.len() >= 10);
    for (request, allocations) in counts {
        assert_eq!(allocations, 0, "{request}");
    }
}
