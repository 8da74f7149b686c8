//! In steady state, no request allocates, from the post to the poll of its completion.

use polyverbs_benches::allocations::{Counting, count, per_request};
use polyverbs_benches::rig::Rig;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const TURNS: u32 = 10_000;

// covers 5.04 6.27
#[test]
fn a_request_posted_and_polled_allocates_nothing() {
    for device in ["ib0", "iw0"] {
        let counts = per_request(&Rig::new(device).unwrap(), TURNS).unwrap();
        assert!(counts.len() >= 10);
        for (request, allocations) in counts {
            assert_eq!(allocations, 0, "{device}: {request}");
        }
    }
}

#[test]
fn the_allocator_counts() {
    let before = count();
    let mut list = vec![1];
    list.reserve_exact(100);
    drop(vec![0_u8; 100]);
    assert_eq!(count() - before, 3, "{list:?}");
}
