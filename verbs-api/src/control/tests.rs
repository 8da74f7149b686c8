use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use test_kit::waiting::{WatchedThread, until};

use super::*;
use crate::error::ErrorKind;

struct Counted(Arc<AtomicU32>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_waiting_thread_gets_the_result() {
    let (started, completer) = Started::<u32>::pending();
    let waiter = WatchedThread::current();
    let other = thread::spawn(move || {
        until(|| waiter.is_blocked());
        completer.complete(Ok(3))
    });
    assert_eq!(started.wait(), Ok(3));
    assert!(other.join().unwrap());
}

#[test]
fn a_wait_that_timed_out_can_be_repeated() {
    let (mut started, completer) = Started::<u32>::pending();
    assert_eq!(started.wait_for(Duration::ZERO), Ok(None));
    assert_eq!(started.wait_for(Duration::from_micros(1)), Ok(None));
    let other = thread::spawn(move || completer.complete(Ok(3)));
    assert_eq!(started.wait_for(Duration::MAX), Ok(Some(3)));
    assert!(other.join().unwrap());

    let (mut failing, completer) = Started::<u32>::pending();
    assert_eq!(failing.wait_for(Duration::ZERO), Ok(None));
    completer.complete(Err(VerbError::DeviceRemoved));
    assert_eq!(failing.wait(), Err(VerbError::DeviceRemoved));
}

#[test]
fn an_outcome_is_returned_once() {
    let (pending, completer) = Started::<u32>::pending();
    completer.complete(Ok(3));
    for mut started in [pending, Started::ready(Ok(3))] {
        assert_eq!(started.wait_for(Duration::ZERO), Ok(Some(3)));
        let again = started.wait_for(Duration::ZERO).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::InvalidArgument);
    }
}

// covers 5.01
#[test]
fn the_first_outcome_counts() {
    let (started, completer) = Started::<u32>::pending();
    assert!(completer.complete(Ok(1)));
    assert!(!completer.complete(Ok(2)));
    assert_eq!(started.wait(), Ok(1));
}

// covers 5.16
#[test]
fn an_error_never_becomes_a_success() {
    let (started, completer) = Started::<u32>::pending();
    completer.complete(Err(VerbError::DeviceRemoved));
    completer.complete(Ok(2));
    assert_eq!(started.wait(), Err(VerbError::DeviceRemoved));
}

// covers 5.03 8.03
#[test]
fn waiting_in_a_handler_is_an_error_even_when_ready() {
    handler_scope(|| {
        assert_eq!(
            Started::<u32>::ready(Ok(1)).wait(),
            Err(VerbError::WouldDeadlock)
        );
        let (mut started, _completer) = Started::<u32>::pending();
        assert_eq!(
            started.wait_for(Duration::ZERO),
            Err(VerbError::WouldDeadlock)
        );
        assert_eq!(started.wait(), Err(VerbError::WouldDeadlock));
    });
}

// covers 5.22
#[test]
fn dropping_before_or_after_completion_drops_the_result_once() {
    for before in [true, false] {
        let drops = Arc::new(AtomicU32::new(0));
        let (started, completer) = Started::<Counted>::pending();
        if before {
            drop(started);
            completer.complete(Ok(Counted(Arc::clone(&drops))));
        } else {
            completer.complete(Ok(Counted(Arc::clone(&drops))));
            drop(started);
        }
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    }
}

// covers 5.22
#[test]
fn a_drop_that_races_a_completion_leaks_nothing() {
    let drops = Arc::new(AtomicU32::new(0));
    for _ in 0..2000 {
        let (started, completer) = Started::<Counted>::pending();
        let result = Counted(Arc::clone(&drops));
        thread::scope(|scope| {
            scope.spawn(move || completer.complete(Ok(result)));
            scope.spawn(move || drop(started));
        });
    }
    assert_eq!(drops.load(Ordering::SeqCst), 2000);
}

#[test]
fn a_handler_runs_once_whenever_it_is_given() {
    let calls = Arc::new(AtomicU32::new(0));
    let count = |calls: &Arc<AtomicU32>| {
        let calls = Arc::clone(calls);
        move |result: Result<u32, VerbError>| {
            assert!(in_handler());
            calls.fetch_add(result.unwrap(), Ordering::SeqCst);
        }
    };
    let (early, completer) = Started::pending();
    early.on_done(count(&calls));
    completer.complete(Ok(1));
    let (late, completer) = Started::pending();
    completer.complete(Ok(10));
    late.on_done(count(&calls));
    Started::ready(Ok(100)).on_done(count(&calls));
    assert_eq!(calls.load(Ordering::SeqCst), 111);
}

// covers 5.22
#[test]
fn a_result_that_nobody_takes_can_be_handed_back() {
    let back = Arc::new(AtomicU32::new(0));
    let begin = || {
        let back = Arc::clone(&back);
        Started::<u32>::pending_or(move |result| {
            back.fetch_add(result.unwrap(), Ordering::SeqCst);
        })
    };
    let (dropped_first, completer) = begin();
    assert!(completer.is_wanted());
    drop(dropped_first);
    assert!(!completer.is_wanted());
    completer.complete(Ok(1));
    let (dropped_last, completer) = begin();
    completer.complete(Ok(10));
    drop(dropped_last);
    let (taken, completer) = begin();
    completer.complete(Ok(100));
    assert_eq!(taken.wait(), Ok(100));
    let (handled, completer) = begin();
    handled.on_done(|_| {});
    completer.complete(Ok(1000));
    assert_eq!(back.load(Ordering::SeqCst), 11);
}
