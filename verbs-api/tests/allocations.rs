//! Posting, polling and arming allocate nothing.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context as TaskContext, Poll, Waker};

use verbs_api::*;
use verbs_api::{
    completion::Notify,
    wr::{self, ReceiveRequest},
};

#[path = "it/mock/mod.rs"]
mod mock;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is forwarded to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// The first two rounds may allocate room.
fn allocates_nothing_in_the_long_run(mut round: impl FnMut()) {
    round();
    round();
    let before = COUNT.get();
    for _ in 0..30_000 {
        round();
    }
    assert_eq!(COUNT.get() - before, 0);
}

// covers 5.04
#[test]
fn a_million_posts_allocate_nothing() {
    let (mock, context) = mock::open();
    let (pd, cq, qp, _) = mock::pair(&context);
    mock.record.store(false, Ordering::SeqCst);
    let pool = pd.register_buffers(4, 64).wait().unwrap();
    let sge = mock::sge(0, 8, 1);
    let mut batch = Batch::with_capacity(32);
    let mut slots: [Completion; 64] = std::array::from_fn(|_| Completion::default());
    let round = || {
        for _ in 0..16 {
            batch.push(wr::Send::new(sge));
            batch.push(wr::Write::new(sge, RemoteAddress::default()).signaled(1));
        }
        qp.post(&mut batch).unwrap();
        qp.post_one(wr::Send::new(sge).signaled(2)).unwrap();
        qp.post_one(wr::Send::new(pool.take().unwrap()).signaled(3))
            .unwrap();
        qp.post_receive(ReceiveRequest::new(4, sge)).unwrap();
        cq.arm(Notify::Next).unwrap();
        assert_eq!(cq.poll(&mut slots).unwrap().len(), 19);
    };
    allocates_nothing_in_the_long_run(round);
}

fn completed(future: &mut completion::Submitted) -> Completion {
    let mut cx = TaskContext::from_waker(Waker::noop());
    let Poll::Ready(done) = Pin::new(future).poll(&mut cx) else {
        panic!("the mock completes at once");
    };
    done.unwrap()
}

// covers 5.04 5.30
#[test]
fn futures_of_requests_allocate_nothing_in_the_long_run() {
    let (mock, context) = mock::open();
    let (pd, cq, qp, _) = mock::pair(&context);
    mock.record.store(false, Ordering::SeqCst);
    let pool = pd.register_buffers(4, 64).wait().unwrap();
    let sge = mock::sge(0, 8, 1);
    let mut slots: [Completion; 4] = Default::default();
    let round = || {
        let mut sent = qp.submit(wr::Send::new(sge).wr_id(1));
        let mut received = qp.receive(pool.take().unwrap());
        drop(qp.submit(wr::Send::new(pool.take().unwrap())));
        qp.post_one(wr::Send::new(sge).signaled(2)).unwrap();
        assert_eq!(completed(&mut received).take_buffers().count(), 1);
        assert_eq!(completed(&mut sent).wr_id, 1);
        cq.arm(Notify::Next).unwrap();
        assert_eq!(cq.poll(&mut slots).unwrap().len(), 1);
    };
    allocates_nothing_in_the_long_run(round);
}
