//! Requests whose completions are awaited: each future gets its own, and the program's polls get the others.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use futures_core::Stream;
use proptest::prelude::*;
use verbs_api::*;
use verbs_api::{
    completion::{Notify, SubmitError, Submitted},
    event::{EventSubject, EventType},
    provider::handler_scope,
    qp::{QpAttributes, QpState},
    wr::{self, PostReason, ReceiveRequest},
};

use crate::mock;

/// Counts how often a task was woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

struct Task {
    wakes: Arc<Wakes>,
    waker: Waker,
}

impl Task {
    fn new() -> Self {
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        Self { wakes, waker }
    }

    fn poll<F: Future + Unpin>(&self, future: &mut F) -> Poll<F::Output> {
        Pin::new(future).poll(&mut TaskContext::from_waker(&self.waker))
    }

    fn next<S: Stream + Unpin>(&self, stream: &mut S) -> Poll<Option<S::Item>> {
        Pin::new(stream).poll_next(&mut TaskContext::from_waker(&self.waker))
    }

    fn woken(&self) -> usize {
        self.wakes.0.swap(0, Ordering::SeqCst)
    }
}

fn send(wr_id: u64) -> wr::Send<'static> {
    wr::Send::new(mock::sge(0, 8, 1)).wr_id(wr_id)
}

fn poll_one(cq: &Cq) -> Option<u64> {
    let mut slot = [Completion::default()];
    cq.poll(&mut slot).unwrap().first().map(|done| done.wr_id)
}

// covers 5.30
#[test]
fn a_submitted_request_answers_with_its_own_wr_id() {
    let (_mock, context) = mock::open();
    let (pd, cq, qp, _) = mock::pair(&context);
    assert_eq!(qp.submit(send(7)).wait().unwrap().wr_id, 7);
    let pool = pd.register_buffers(1, 64).wait().unwrap();
    let mut received = qp.receive(pool.take().unwrap()).wait().unwrap();
    assert_eq!(received.take_buffers().count(), 1);
    assert_eq!(pool.available(), 1);
    assert_eq!(poll_one(&cq), None);
}

// covers 5.30
#[test]
fn a_hundred_futures_of_one_queue_are_woken_one_by_one() {
    let (mock, context) = mock::open();
    let (_pd, _cq, qp, _) = mock::pair(&context);
    mock.hold();
    let mut tasks: Vec<_> = (0..100)
        .map(|wr_id| (Task::new(), qp.submit(send(wr_id))))
        .collect();
    for (task, future) in &mut tasks {
        assert!(task.poll(future).is_pending());
    }
    // The middle one completes first.
    let mut left: Vec<u64> = (0..100).collect();
    while !left.is_empty() {
        let at = left.len() / 2;
        let wr_id = left.remove(at);
        mock.complete(at, WcStatus::Success);
        let woken: Vec<_> = tasks.iter().map(|(task, _)| task.woken()).collect();
        assert_eq!(woken.iter().sum::<usize>(), 1);
        assert_eq!(woken[wr_id as usize], 1);
        let (task, future) = &mut tasks[wr_id as usize];
        let Poll::Ready(done) = task.poll(future) else {
            panic!("{wr_id} was woken and is not ready");
        };
        assert_eq!(done.unwrap().wr_id, wr_id);
    }
}

// covers 5.30
#[test]
fn the_task_that_polled_last_is_woken() {
    let (mock, context) = mock::open();
    let (_pd, _cq, qp, _) = mock::pair(&context);
    mock.hold();
    let (first, last, mut future) = (Task::new(), Task::new(), qp.submit(send(1)));
    assert!(first.poll(&mut future).is_pending() && last.poll(&mut future).is_pending());
    mock.complete(0, WcStatus::Success);
    assert_eq!((first.woken(), last.woken()), (0, 1));
}

// covers 5.30
#[test]
fn a_completion_during_arming_is_seen() {
    let (mock, context) = mock::open();
    let (_pd, _cq, qp, _) = mock::pair(&context);
    mock.hold();
    let (task, mut future) = (Task::new(), qp.submit(send(1)));
    let _other = qp.submit(send(2));
    assert!(task.poll(&mut future).is_pending());
    mock.complete_late();
    // After its notification the queue is armed again.
    mock.complete(1, WcStatus::Success);
    assert_eq!((mock.held(), task.woken()), (0, 1));
}

// covers 5.30
#[test]
fn threads_that_wait_on_one_queue_each_get_their_own() {
    let (mock, context) = mock::open();
    let (_pd, cq, qp, _) = mock::pair(&context);
    mock.hold();
    let is_over = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..4 {
            let (qp, is_over) = (&qp, &is_over);
            scope.spawn(move || {
                for round in 0..200 {
                    let wr_id = thread * 1000 + round;
                    assert_eq!(qp.submit(send(wr_id)).wait().unwrap().wr_id, wr_id);
                }
                is_over.fetch_add(1, Ordering::SeqCst);
            });
        }
        // Another thread polls meanwhile: it gets no completion, and none is lost.
        scope.spawn(|| {
            while is_over.load(Ordering::SeqCst) < 4 {
                assert_eq!(poll_one(&cq), None);
            }
        });
        while is_over.load(Ordering::SeqCst) < 4 {
            match mock.held() {
                0 => thread::yield_now(),
                held => mock.complete(held - 1, WcStatus::Success),
            }
        }
    });
}

// covers 5.31
#[test]
fn a_dropped_future_frees_its_buffers_at_completion() {
    let (mock, context) = mock::open();
    let (pd, cq, qp, _) = mock::pair(&context);
    let pool = pd.register_buffers(2, 64).wait().unwrap();
    // From here on no future or handler waits for a notification of the queue.
    qp.submit(send(0)).wait().unwrap();
    qp.post_one(send(1).signaled(1)).unwrap();
    assert_eq!(poll_one(&cq), Some(1));
    mock.hold();
    let unpolled = || drop(qp.receive(pool.take().unwrap()));
    unpolled();
    mock.complete(0, WcStatus::Success);
    assert_eq!(pool.available(), 2);
    // One future was polled, and the other was not.
    let mut polled = qp.submit(wr::Send::new(pool.take().unwrap()));
    assert!(Task::new().poll(&mut polled).is_pending());
    drop(polled);
    unpolled();
    assert_eq!((pool.available(), mock.held()), (0, 2));
    mock.complete(0, WcStatus::Success);
    assert_eq!(pool.available(), 1);
    mock.complete(0, WcStatus::WrFlushErr);
    assert_eq!(pool.available(), 2);
    assert_eq!(poll_one(&cq), None);
}

// covers 5.30
#[test]
fn plain_completions_come_in_order_and_wake_their_waiter() {
    let (mock, context) = mock::open();
    let (_pd, cq, qp, _) = mock::pair(&context);
    mock.hold();
    let (routed, plain) = (Task::new(), Task::new());
    let mut future = qp.submit(send(1));
    assert!(routed.poll(&mut future).is_pending());
    let mut next = cq.next();
    assert!(plain.poll(&mut next).is_pending());
    for wr_id in [10, 11, 12] {
        qp.post_one(send(wr_id).signaled(wr_id)).unwrap();
    }
    plain.woken();
    mock.complete(1, WcStatus::Success);
    assert_eq!((routed.woken(), plain.woken()), (0, 1));
    mock.complete(1, WcStatus::Success);
    mock.complete(1, WcStatus::Success);
    // There is one notification for each arming.
    assert_eq!((routed.woken(), plain.woken()), (0, 0));
    assert_eq!(poll_one(&cq), Some(10));
    assert!(matches!(plain.poll(&mut next), Poll::Ready(Ok(done)) if done.wr_id == 11));
    mock.complete(0, WcStatus::Success);
    assert_eq!(routed.woken(), 1);
    assert!(cq.arm(Notify::Next).unwrap());
    assert_eq!((poll_one(&cq), poll_one(&cq)), (Some(12), None));
    assert!(matches!(routed.poll(&mut future), Poll::Ready(Ok(done)) if done.wr_id == 1));
    assert!(!cq.arm(Notify::Solicited).unwrap());
}

#[test]
fn a_handler_gets_one_notice_per_arm_next_to_futures() {
    let (mock, context) = mock::open();
    let (_pd, cq, qp, _) = mock::pair(&context);
    qp.submit(send(0)).wait().unwrap();
    let got = Arc::new(verbs_api::provider::Mutex::new(Vec::new()));
    let seen = Arc::clone(&got);
    cq.on_completion(move |cq| {
        loop {
            seen.lock().extend(poll_one(cq));
            if !cq.arm(Notify::Next).unwrap() {
                break;
            }
        }
    });
    cq.arm(Notify::Next).unwrap();
    mock.hold();
    let mut future = qp.submit(send(1));
    for wr_id in 2..5 {
        qp.post_one(send(wr_id).signaled(wr_id)).unwrap();
    }
    for _ in 0..4 {
        mock.complete(mock.held() - 1, WcStatus::Success);
    }
    assert_eq!(*got.lock(), [4, 3, 2]);
    assert!(Task::new().poll(&mut future).is_ready());
}

#[test]
fn a_handler_that_panics_holds_up_no_future() {
    let (_mock, context) = mock::open();
    let (_pd, cq, qp, _) = mock::pair(&context);
    qp.submit(send(0)).wait().unwrap();
    qp.post_one(send(1).signaled(1)).unwrap();
    assert_eq!(poll_one(&cq), Some(1));
    // No task waits: the completion is found by the next poll, which is that of arming.
    qp.post_one(send(2).signaled(2)).unwrap();
    cq.on_completion(|_| panic!("a fault of the program's"));
    let arm = AssertUnwindSafe(|| cq.arm(Notify::Next));
    assert!(catch_unwind(arm).is_err());
    assert!(Task::new().poll(&mut qp.submit(send(3))).is_ready());
}

// covers 5.32
#[test]
fn a_failed_request_is_an_error_with_its_id_and_status() {
    let (mock, context) = mock::open();
    let (_pd, _cq, qp, _) = mock::pair(&context);
    mock.hold();
    let future = qp.submit(send(7));
    mock.complete(0, WcStatus::RemAccessErr);
    let Err(SubmitError::Failed(error)) = future.wait() else {
        panic!("a failure");
    };
    assert_eq!((error.wr_id, error.status), (7, WcStatus::RemAccessErr));
    let text = format!("request 7 (Send) of queue pair {}", error.qp_num);
    assert!(error.to_string().starts_with(&text), "{error}");
    assert!(error.to_string().contains("remote access error"), "{error}");
}

// covers 5.32
#[test]
fn a_refused_request_fails_its_future_and_keeps_nothing() {
    let (mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(16).wait().unwrap();
    let qp = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    let pool = pd.register_buffers(1, 64).wait().unwrap();
    let refused = qp.submit(wr::Send::new(pool.take().unwrap())).wait();
    let reason = PostReason::InvalidState(QpState::Reset);
    assert_eq!(
        refused.unwrap_err(),
        SubmitError::Refused(reason.into()),
        "in the state of a new queue pair"
    );
    assert_eq!((pool.available(), mock.posted.lock().len()), (1, 0));
}

// covers 5.32
#[test]
fn an_overrun_ends_every_future_and_wakes_it() {
    let (mock, context) = mock::open();
    let (_pd, cq, qp, _) = mock::pair(&context);
    mock.hold();
    let mut tasks: Vec<_> = (0..3)
        .map(|wr_id| (Task::new(), qp.submit(send(wr_id))))
        .collect();
    for (task, future) in &mut tasks {
        assert!(task.poll(future).is_pending());
    }
    mock.overrun();
    for (task, future) in &mut tasks {
        assert_eq!(task.woken(), 1);
        let overran = SubmitError::Verb(VerbError::CqOverrun);
        assert!(matches!(task.poll(future), Poll::Ready(Err(error)) if error == overran));
    }
    assert_eq!(cq.poll(&mut []).unwrap_err(), VerbError::CqOverrun);
}

// covers 5.32
#[test]
fn unpolled_completions_overrun_a_queue_with_futures_too() {
    let (_mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(4).wait().unwrap();
    let qp = || pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    let (a, b) = (qp(), qp());
    connect_pair(&a, &b, Access::empty()).wait().unwrap();
    a.submit(send(0)).wait().unwrap();
    for wr_id in 1..=4 {
        a.post_one(send(wr_id).signaled(wr_id)).unwrap();
    }
    assert_eq!(a.submit(send(5)).wait().unwrap().wr_id, 5);
    a.post_one(send(6).signaled(6)).unwrap();
    // The request has completed, after the one that was lost.
    assert_eq!(a.submit(send(7)).wait().unwrap().wr_id, 7);
    let polled: Vec<_> = (0..4).map(|_| poll_one(&cq).unwrap()).collect();
    assert_eq!(polled, [1, 2, 3, 4]);
    assert_eq!(cq.poll(&mut []).unwrap_err(), VerbError::CqOverrun);
}

// covers 5.32
#[test]
fn a_removed_device_ends_every_future_and_wakes_it() {
    let (mock, context) = mock::open();
    let (_pd, _cq, qp, _) = mock::pair(&context);
    mock.hold();
    let (task, mut done, mut lost) = (Task::new(), qp.submit(send(1)), qp.submit(send(2)));
    assert!(task.poll(&mut done).is_pending() && task.poll(&mut lost).is_pending());
    mock.complete(0, WcStatus::Success);
    task.woken();
    mock.remove();
    assert_eq!(task.woken(), 1);
    let removed = SubmitError::Verb(VerbError::DeviceRemoved);
    assert!(matches!(task.poll(&mut lost), Poll::Ready(Err(error)) if error == removed));
    // Completions that had arrived can still be fetched.
    assert!(matches!(task.poll(&mut done), Poll::Ready(Ok(done)) if done.wr_id == 1));
    let refused = SubmitError::Refused(PostReason::DeviceRemoved.into());
    assert_eq!(qp.submit(send(3)).wait().unwrap_err(), refused);
}

// covers 5.32
#[test]
fn a_reset_or_destroy_of_a_queue_pair_ends_its_futures_alone() {
    let (mock, context) = mock::open();
    let (_pd, cq, a, b) = mock::pair(&context);
    mock.hold();
    let canceled = SubmitError::Verb(VerbError::Canceled);
    let end = |task: &Task, future: &mut Submitted| {
        assert_eq!(task.woken(), 1);
        assert!(matches!(task.poll(future), Poll::Ready(Err(error)) if error == canceled));
    };
    let (of_a, of_b) = (Task::new(), Task::new());
    let (mut sent, mut received) = (a.submit(send(1)), b.submit(send(2)));
    assert!(of_a.poll(&mut sent).is_pending() && of_b.poll(&mut received).is_pending());
    a.modify(QpAttributes::new().qp_state(QpState::Reset))
        .wait()
        .unwrap();
    end(&of_a, &mut sent);
    assert_eq!(of_b.woken(), 0);
    b.clone().destroy().wait().unwrap();
    end(&of_b, &mut received);
    // A late completion belongs to no future, even if its slot has another request.
    let mut again = a.receive(ReceiveRequest::new(3, mock::sge(0, 8, 1)));
    mock.complete(0, WcStatus::Success);
    assert!(of_a.poll(&mut again).is_pending());
    assert_eq!(poll_one(&cq), None);
    drop((again, a));
    assert_eq!(mock.live("qp"), 0);
}

#[test]
fn a_queue_pair_lives_until_its_futures_have_ended() {
    let (mock, context) = mock::open();
    let (_pd, _cq, a, b) = mock::pair(&context);
    drop(b);
    mock.hold();
    let future = a.submit(send(1));
    drop(a);
    assert_eq!(mock.live("qp"), 1);
    mock.complete(0, WcStatus::Success);
    assert_eq!(future.wait().unwrap().wr_id, 1);
    assert_eq!(mock.live("qp"), 0);
}

#[test]
fn a_wait_with_a_limit_may_be_repeated() {
    let (mock, context) = mock::open();
    let (_pd, cq, qp, _) = mock::pair(&context);
    mock.hold();
    let mut future = qp.submit(send(1));
    assert!(future.wait_for(Duration::from_millis(1)).unwrap().is_none());
    mock.complete(0, WcStatus::Success);
    let done = future.wait_for(Duration::ZERO).unwrap();
    assert_eq!(done.map(|done| done.wr_id), Some(1));
    let deadlock = handler_scope(|| qp.submit(send(2)).wait()).unwrap_err();
    assert_eq!(deadlock, SubmitError::Verb(VerbError::WouldDeadlock));
    let at_once = Duration::ZERO;
    assert!(cq.next().wait_for(at_once).unwrap().is_none());
    assert!(context.next_event().wait_for(at_once).unwrap().is_none());
    let channel = context.create_completion_channel().unwrap();
    assert!(channel.next().wait_for(at_once).unwrap().is_none());
    let mut slots = [Completion::default()];
    assert!(
        cq.next_batch(&mut slots)
            .wait_for(at_once)
            .unwrap()
            .is_none()
    );
}

// covers 5.33
#[test]
fn a_batch_has_all_pending_completions_and_at_least_one() {
    let (mock, context) = mock::open();
    let (_pd, cq, qp, _) = mock::pair(&context);
    let mut slots: [Completion; 4] = Default::default();
    for wr_id in 0..6 {
        qp.post_one(send(wr_id).signaled(wr_id)).unwrap();
    }
    let ids = |batch: &[Completion]| batch.iter().map(|done| done.wr_id).collect::<Vec<_>>();
    assert_eq!(ids(cq.next_batch(&mut slots).wait().unwrap()), [0, 1, 2, 3]);
    assert_eq!(ids(cq.next_batch(&mut slots).wait().unwrap()), [4, 5]);
    mock.hold();
    qp.post_one(send(6).signaled(6)).unwrap();
    let task = Task::new();
    let mut batch = cq.next_batch(&mut slots);
    assert!(task.poll(&mut batch).is_pending());
    mock.complete(0, WcStatus::Success);
    assert_eq!(task.woken(), 1);
    assert!(matches!(task.poll(&mut batch), Poll::Ready(Ok(batch)) if ids(batch) == [6]));
    let refused = cq.next_batch(&mut []).wait().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
}

// covers 5.33
#[test]
fn completions_and_events_are_streams_that_end_with_the_device() {
    let (mock, context) = mock::open();
    let (_pd, cq, qp, _) = mock::pair(&context);
    let task = Task::new();
    let (mut completions, mut events) = (pin!(cq.completions()), pin!(context.events()));
    assert!(task.next(&mut completions).is_pending() && task.next(&mut events).is_pending());
    qp.post_one(send(1).signaled(1)).unwrap();
    assert_eq!(task.woken(), 1);
    let next = task.next(&mut completions);
    assert!(matches!(next, Poll::Ready(Some(Ok(done))) if done.wr_id == 1));
    assert!(task.next(&mut completions).is_pending());
    mock.event(0, EventType::PortErr, EventSubject::Port(1));
    assert_eq!(task.woken(), 1);
    let next = task.next(&mut events);
    assert!(matches!(next, Poll::Ready(Some(event)) if event.event_type() == EventType::PortErr));
    mock.remove();
    let next = task.next(&mut completions);
    assert!(matches!(
        next,
        Poll::Ready(Some(Err(VerbError::DeviceRemoved)))
    ));
    assert!(matches!(task.next(&mut completions), Poll::Ready(None)));
    assert!(matches!(task.next(&mut events), Poll::Ready(Some(_))));
    assert!(matches!(task.next(&mut events), Poll::Ready(None)));
}

#[test]
fn a_waiter_learns_that_its_queue_was_destroyed() {
    let (_mock, context) = mock::open();
    let cq = context.create_cq(16).wait().unwrap();
    let waiting = cq.clone();
    let (task, mut next) = (Task::new(), waiting.next());
    assert!(task.poll(&mut next).is_pending());
    cq.destroy().wait().unwrap();
    assert_eq!(task.woken(), 1);
    let Poll::Ready(Err(error)) = task.poll(&mut next) else {
        panic!("an error");
    };
    assert_eq!(error.kind(), ErrorKind::InvalidHandle);
}

/// A step of a program, or of the device.
#[derive(Clone, Copy, Debug)]
enum Step {
    Post,
    Submit,
    // The index of an existing future.
    Poll(usize),
    Cancel(usize),
    PollQueue,
    Arm,
    // The index of a request that has not completed.
    Complete(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => Just(Step::Post),
        3 => Just(Step::Submit),
        3 => any::<usize>().prop_map(Step::Poll),
        1 => any::<usize>().prop_map(Step::Cancel),
        2 => Just(Step::PollQueue),
        1 => Just(Step::Arm),
        4 => any::<usize>().prop_map(Step::Complete),
    ];
    proptest::collection::vec(step, 0..200)
}

proptest! {
    // covers 5.30
    #[test]
    fn each_completion_reaches_its_future_or_one_poll(steps in steps()) {
        let (mock, context) = mock::open();
        let (_pd, cq, qp, _) = mock::pair(&context);
        mock.hold();
        let mut wr_id = 0;
        // The requests that the device holds, the completions that the program's polls must return, and the futures with whether
        // they have completed.
        let mut held: Vec<(u64, bool)> = Vec::new();
        let mut plain = std::collections::VecDeque::new();
        let mut futures: Vec<(u64, Task, Submitted)> = Vec::new();
        let mut completed = Vec::new();
        for step in steps {
            match step {
                Step::Post => {
                    qp.post_one(send(0).signaled(wr_id)).unwrap();
                    held.push((wr_id, false));
                    wr_id += 1;
                }
                Step::Submit => {
                    let mut future = (wr_id, Task::new(), qp.submit(send(wr_id)));
                    prop_assert!(future.1.poll(&mut future.2).is_pending());
                    futures.push(future);
                    held.push((wr_id, true));
                    wr_id += 1;
                }
                Step::Poll(at) if !futures.is_empty() => {
                    let at = at % futures.len();
                    let (id, task, future) = &mut futures[at];
                    match task.poll(future) {
                        Poll::Ready(done) => {
                            prop_assert_eq!(done.unwrap().wr_id, *id);
                            prop_assert!(completed.contains(id));
                            drop(futures.swap_remove(at));
                        }
                        Poll::Pending => prop_assert!(!completed.contains(id)),
                    }
                }
                Step::Cancel(at) if !futures.is_empty() => {
                    drop(futures.swap_remove(at % futures.len()));
                }
                Step::PollQueue => prop_assert_eq!(poll_one(&cq), plain.pop_front()),
                Step::Arm => prop_assert_eq!(cq.arm(Notify::Next).unwrap(), !plain.is_empty()),
                Step::Complete(at) if !held.is_empty() => {
                    let at = at % held.len();
                    let (id, is_routed) = held.remove(at);
                    mock.complete(at, WcStatus::Success);
                    if is_routed {
                        completed.push(id);
                        let of = futures.iter().find(|(of, ..)| *of == id);
                        prop_assert!(of.is_none_or(|(_, task, _)| task.woken() == 1));
                    } else {
                        plain.push_back(id);
                    }
                }
                _ => {}
            }
        }
        while let Some(id) = plain.pop_front() {
            prop_assert_eq!(poll_one(&cq), Some(id));
        }
        prop_assert_eq!(poll_one(&cq), None);
        for (id, task, mut future) in futures {
            prop_assert_eq!(task.poll(&mut future).is_ready(), completed.contains(&id));
        }
    }
}
