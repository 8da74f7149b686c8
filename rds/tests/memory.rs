//! Memory that cannot be allocated is an error, and does not end the process. The allocator of this test fails, so the test has
//! a process of its own.
// The trait `GlobalAlloc` is unsafe to implement.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::SocketAddr;
use std::panic;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use polyverbs_rds::{RdsError, RdsSocket, RdsTransport};
use test_kit::waiting::until;

/// The size in bytes from which an allocation is large. The standard library ends the process where a small one fails.
const LARGE: usize = 64 << 10;

/// The system's allocator, except that one large allocation fails. The number counts down to 0 at that allocation.
struct Failing(AtomicUsize);

#[global_allocator]
static ALLOCATOR: Failing = Failing(AtomicUsize::new(0));

impl Failing {
    /// Makes the large allocation with this number fail, counted from 1.
    fn fail_at(&self, number: usize) {
        self.0.store(number, SeqCst);
    }

    fn has_failed(&self) -> bool {
        self.0.load(SeqCst) == 0
    }

    fn allocate(&self, bytes: usize, allocate: impl FnOnce() -> *mut u8) -> *mut u8 {
        let count_down = |left: usize| left.checked_sub(1);
        match bytes >= LARGE && self.0.fetch_update(SeqCst, SeqCst, count_down) == Ok(1) {
            true => ptr::null_mut(),
            false => allocate(),
        }
    }
}

// SAFETY: every call is forwarded to the system's allocator, or returns null, which means that there is no memory.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        self.allocate(layout.size(), || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        self.allocate(layout.size(), || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        self.allocate(size, || unsafe { System.realloc(start, layout, size) })
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }
}

/// Sends a message from one host to another. Does not wait for it once an allocation has failed.
fn exchange(transport: RdsTransport) -> Result<(), RdsError> {
    let socket = |host| -> Result<_, RdsError> {
        let socket = RdsSocket::new();
        socket.set_transport(transport)?;
        socket.bind_to(SocketAddr::from(([127, 0, 56, host], 0)))?;
        Ok(socket)
    };
    let (near, far) = (socket(1)?, socket(2)?);
    far.set_nonblocking(true);
    near.send_to(b"message", far.local_addr().expect("a bound socket"))?;
    until(|| ALLOCATOR.has_failed() || far.recv_from(&mut [0; 7]).is_ok());
    Ok(())
}

#[test]
fn each_large_allocation_of_an_exchange_may_fail() {
    static HAS_PANICKED: AtomicBool = AtomicBool::new(false);
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        HAS_PANICKED.store(true, SeqCst);
        report(panic);
    }));
    for transport in [RdsTransport::InfiniBand, RdsTransport::Iwarp] {
        for number in 1.. {
            ALLOCATOR.fail_at(number);
            let outcome = exchange(transport);
            let has_failed = ALLOCATOR.has_failed();
            ALLOCATOR.fail_at(0);
            assert!(!HAS_PANICKED.load(SeqCst), "a thread has panicked");
            if !has_failed {
                outcome.expect("no allocation has failed");
                assert!(number > 1, "no allocation is large");
                break;
            }
        }
    }
}
