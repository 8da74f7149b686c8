//! Control verbs: started, waited for, awaited, dropped, and started in handlers.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use verbs_api::provider::Mutex;
use verbs_api::*;
use verbs_api::{
    event::EventType,
    wr::{self, PostReason},
};

use crate::mock;

// covers 5.01
#[test]
fn a_thousand_started_creates_complete_once_each() {
    let (mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(64).wait().unwrap();
    mock.delay();
    let done = Arc::new(AtomicU32::new(0));
    let made = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..1000 {
        let (done, made) = (Arc::clone(&done), Arc::clone(&made));
        pd.create_qp(QpOptions::rc(&cq)).on_done(move |qp| {
            done.fetch_add(1, Ordering::SeqCst);
            made.lock().push(qp.unwrap());
        });
    }
    assert_eq!((mock.waiting(), done.load(Ordering::SeqCst)), (1000, 0));
    mock.run_all();
    assert_eq!((done.load(Ordering::SeqCst), mock.live("qp")), (1000, 1000));
}

// covers 5.01
#[test]
fn a_verb_that_fails_at_once_does_not_complete_later() {
    let (mock, context) = mock::open();
    mock.delay();
    let refused = context.create_cq(0);
    assert!(refused.is_done());
    assert_eq!(mock.waiting(), 0);
    assert_eq!(
        refused.wait().unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}

// covers 5.02 5.03 8.03
#[test]
fn every_verb_can_be_started_in_a_handler_and_none_waited_for() {
    let (_mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(64).wait().unwrap();
    let (started, completer) = Started::<()>::pending();
    let memory = Memory::zeroed(4096).unwrap();
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&outcomes);
    started.on_done(move |_| {
        let note = |seen: &Arc<Mutex<Vec<bool>>>| {
            let seen = Arc::clone(seen);
            move |done: bool| seen.lock().push(done)
        };
        assert_eq!(
            context.alloc_pd().wait().unwrap_err(),
            VerbError::WouldDeadlock
        );
        assert_eq!(cq.next().wait().unwrap_err(), VerbError::WouldDeadlock);
        assert_eq!(
            context.next_event().wait().unwrap_err(),
            VerbError::WouldDeadlock
        );
        let done = note(&seen);
        context.alloc_pd().on_done(move |pd| done(pd.is_ok()));
        let done = note(&seen);
        context.create_cq(8).on_done(move |cq| done(cq.is_ok()));
        let done = note(&seen);
        pd.register(&memory, Access::LOCAL_WRITE)
            .on_done(move |mr| done(mr.is_ok()));
        let done = note(&seen);
        pd.register_buffers(4, 64)
            .on_done(move |pool| done(pool.is_ok()));
        let done = note(&seen);
        pd.alloc_key(8).on_done(move |key| done(key.is_ok()));
        let done = note(&seen);
        pd.create_srq(SrqOptions::new(8))
            .on_done(move |srq| done(srq.is_ok()));
        let done = note(&seen);
        pd.create_qp(QpOptions::rc(&cq)).on_done(move |qp| {
            let qp = qp.unwrap();
            let inner = done;
            qp.modify(qp::QpAttributes::new().qp_state(qp::QpState::Reset))
                .on_done(move |modified| {
                    assert!(modified.is_ok());
                    qp.destroy()
                        .on_done(move |destroyed| inner(destroyed.is_ok()));
                });
        });
    });
    completer.complete(Ok(()));
    assert_eq!(*outcomes.lock(), [true; 7]);
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    pin!(future).poll(&mut TaskContext::from_waker(Waker::noop()))
}

#[test]
fn a_verb_goes_on_where_the_time_to_wait_has_passed() {
    let (mock, context) = mock::open();
    mock.delay();
    let mut pd = context.alloc_pd();
    assert!(pd.wait_for(Duration::ZERO).unwrap().is_none());
    mock.run_all();
    let pd = pd.wait_for(Duration::ZERO).unwrap();
    assert_eq!((pd.is_some(), mock.live("pd")), (true, 1));
}

#[test]
fn a_verb_can_be_awaited() {
    let (mock, context) = mock::open();
    mock.delay();
    let mut pd = context.alloc_pd();
    assert!(poll_once(&mut pd).is_pending());
    mock.run_all();
    let Poll::Ready(Ok(pd)) = poll_once(&mut pd) else {
        panic!("completed")
    };
    assert_eq!(mock.live("pd"), 1);
    drop(pd);
    mock.run_all();
    assert_eq!(mock.live("pd"), 0);
}

// covers 5.22
#[test]
fn dropping_a_started_verb_neither_cancels_nor_leaks() {
    let (mock, context) = mock::open();
    mock.delay();
    let before = context.alloc_pd();
    drop(before);
    assert_eq!(mock.waiting(), 1);
    mock.run(); // the domain is made after its verb was dropped
    assert_eq!((mock.live("pd"), mock.waiting()), (1, 1));
    mock.run();
    let after = context.alloc_pd();
    mock.run();
    drop(after);
    mock.run();
    assert_eq!(mock.live("pd"), 0);
    context.close().wait().unwrap();
    assert_eq!(mock.closed.load(Ordering::SeqCst), 1);
}

// covers 5.15
#[test]
fn removal_ends_outstanding_verbs_and_refuses_later_ones() {
    let (mock, context) = mock::open();
    let (pd, cq, a, b) = mock::pair(&context);
    let id = a.id();
    mock.delay();
    let create = pd.create_qp(QpOptions::rc(&cq));
    let modify = a.modify(qp::QpAttributes::new().qp_state(qp::QpState::Err));
    let destroy = b.destroy();
    mock.remove();
    assert_eq!(create.wait().unwrap_err(), VerbError::DeviceRemoved);
    assert_eq!(modify.wait().unwrap_err(), VerbError::DeviceRemoved);
    destroy.wait().unwrap();
    assert_eq!(
        context.alloc_pd().wait().unwrap_err(),
        VerbError::DeviceRemoved
    );
    assert_eq!(
        pd.alloc_key(4).wait().unwrap_err(),
        VerbError::DeviceRemoved
    );
    assert_eq!(a.query().unwrap_err(), VerbError::DeviceRemoved);
    assert_eq!(context.query_port(1).unwrap_err(), VerbError::DeviceRemoved);
    assert_eq!(
        a.post_one(wr::Send::new(())).unwrap_err().reason,
        PostReason::DeviceRemoved
    );
    assert_eq!(
        cq.poll(&mut [Completion::default()]).unwrap_err(),
        VerbError::DeviceRemoved
    );
    assert_eq!(cq.next().wait().unwrap_err(), VerbError::DeviceRemoved);
    assert!(context.find_qp(id).is_none());
    assert_eq!(
        context.poll_event().unwrap().event_type(),
        EventType::DeviceRemoved
    );
    assert_eq!(
        context.next_event().wait().unwrap_err(),
        VerbError::DeviceRemoved
    );
    mock.run_all();
    a.destroy().wait().unwrap();
    cq.destroy().wait().unwrap();
    pd.destroy().wait().unwrap();
    mock.run_all();
    assert_eq!(
        (mock.live("qp"), mock.live("cq"), mock.live("pd")),
        (0, 0, 0)
    );
}

// covers 5.15
#[test]
fn the_removal_is_the_last_event_for_concurrent_waiters_too() {
    let (mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    mock.delay();
    let (told, asked) = mpsc::channel();
    let other = context.clone();
    pd.alloc_key(4).on_done(move |_| {
        let mut next = pin!(other.next_event());
        let looked = next
            .as_mut()
            .poll(&mut TaskContext::from_waker(Waker::noop()));
        told.send(looked.is_pending()).unwrap();
    });
    mock.remove();
    assert!(
        asked.recv().unwrap(),
        "the removal's event was still to come"
    );
    let event = context.next_event().wait().unwrap();
    assert_eq!(event.event_type(), EventType::DeviceRemoved);
    let over = context.next_event().wait().unwrap_err();
    assert_eq!(over, VerbError::DeviceRemoved);
}

// covers 5.15
#[test]
fn removal_wakes_a_thread_that_waits_for_a_completion() {
    let (mock, context) = mock::open();
    let cq = context.create_cq(8).wait().unwrap();
    let waiter = std::thread::spawn(move || cq.next().wait().unwrap_err());
    while !waiter.is_finished() {
        mock.remove();
        std::thread::yield_now();
    }
    assert_eq!(waiter.join().unwrap(), VerbError::DeviceRemoved);
}
