//! In steady state no request allocates, from the post to the poll of its completion.

use polyverbs_benches::allocations::{Counting, count, per_request};
use polyverbs_benches::rig::Rig;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const TURNS: u32 = 10_000;

/// Here one completion hands several buffers back, in a list that is made for it.
const SEVERAL_BUFFERS: &str = "unsignaled sends of private buffers";

// covers 5.04 6.27
#[test]
fn a_request_posted_and_polled_allocates_nothing() {
    for device in ["ib0", "iw0"] {
        let counts = per_request(&Rig::new(device).unwrap(), TURNS).unwrap();
        assert!(counts.len() >= 10);
        for (request, allocations) in counts {
            let allowed = if request == SEVERAL_BUFFERS {
                TURNS.into()
            } else {
                0
            };
            assert!(allocations <= allowed, "{device}: {request}: {allocations}");
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
