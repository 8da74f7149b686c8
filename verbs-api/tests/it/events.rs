//! Asynchronous events, completion notices, and their acknowledgement.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use verbs_api::objects::ObjectKind;
use verbs_api::provider::Mutex;
use verbs_api::*;
use verbs_api::{
    completion::Notify,
    event::{EventSubject, EventType},
    provider::in_handler,
    qp::QpState,
    wr::{self, ReceiveRequest},
};

use crate::mock;

fn readable(fd: std::os::fd::BorrowedFd<'_>) -> bool {
    let mut fds = [rustix::event::PollFd::new(
        &fd,
        rustix::event::PollFlags::IN,
    )];
    let at_once = rustix::time::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut fds, Some(&at_once)).unwrap() == 1
}

// covers 5.23
#[test]
fn only_unaffiliated_events_go_to_every_context() {
    let (mock, device, first) = mock::open_with(mock::attributes("mock0"));
    let second = device.open(&Requirements::new()).unwrap();
    let (_, _, qp, _) = mock::pair(&first);
    let subject = EventSubject::Object(qp.id());
    mock.event(0, EventType::CommEst, subject);
    // An identity of one context is not valid in another.
    mock.event(1, EventType::CommEst, subject);
    mock.broadcast(EventType::PortErr, EventSubject::Port(1));
    let event = first.poll_event().unwrap();
    assert_eq!(
        (event.event_type(), event.subject()),
        (EventType::CommEst, subject)
    );
    assert_eq!(event.object().unwrap().kind, ObjectKind::Qp);
    assert_eq!(first.poll_event().unwrap().event_type(), EventType::PortErr);
    assert_eq!(
        second.poll_event().unwrap().subject(),
        EventSubject::Port(1)
    );
    assert!(first.poll_event().is_none() && second.poll_event().is_none());
}

// covers 5.23
#[test]
fn an_event_goes_to_one_waiter() {
    let (mock, context) = mock::open();
    let got = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while context.next_event().wait().unwrap().event_type() != EventType::GidChange {
                    got.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for _ in 0..100 {
            mock.event(0, EventType::PortActive, EventSubject::Port(2));
        }
        while got.load(Ordering::SeqCst) < 100 {
            thread::yield_now();
        }
        for _ in 0..4 {
            mock.event(0, EventType::GidChange, EventSubject::Port(2));
        }
    });
    assert_eq!(got.into_inner(), 100);
    assert!(context.poll_event().is_none());
}

// covers 5.11
#[test]
fn a_destroy_waits_for_acknowledgements_and_drops_the_rest() {
    let (mock, context) = mock::open();
    let (_, _, qp, other) = mock::pair(&context);
    let subject = EventSubject::Object(qp.id());
    mock.event(0, EventType::CommEst, subject);
    mock.event(0, EventType::SqDrained, subject);
    mock.event(0, EventType::CommEst, EventSubject::Object(other.id()));
    let fetched = context.poll_event().unwrap();
    let destroy = qp.destroy();
    assert!(!destroy.is_done());
    assert_eq!(mock.live("qp"), 1, "the device's part is gone already");
    drop(fetched);
    assert!(destroy.is_done());
    destroy.wait().unwrap();
    let next = context.poll_event().unwrap();
    assert_eq!(
        next.subject(),
        EventSubject::Object(other.id()),
        "the drained event is gone"
    );
    assert!(context.poll_event().is_none());
    mock.event(0, EventType::CommEst, subject);
    assert!(
        context.poll_event().is_none(),
        "nothing comes from a destroyed object"
    );
}

// covers 5.12
#[test]
fn a_handler_may_destroy_the_object_of_its_event() {
    let (mock, context) = mock::open();
    let (_, _, qp, _) = mock::pair(&context);
    let id = qp.id();
    let victim = Mutex::new(Some(qp));
    let order = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&order);
    context.on_event(move |event| {
        assert!(in_handler());
        if let Some(qp) = victim.lock().take() {
            let ended = Arc::clone(&seen);
            let destroy = qp.destroy();
            assert!(!destroy.is_done(), "the event is not acknowledged yet");
            destroy.on_done(move |result| {
                result.unwrap();
                ended.lock().push("destroyed");
            });
            seen.lock().push("handler ends");
        }
        drop(event);
    });
    mock.event(0, EventType::QpFatal, EventSubject::Object(id));
    assert_eq!(*order.lock(), ["handler ends", "destroyed"]);
    assert_eq!(mock.live("qp"), 0, "once");
}

// covers 5.26
#[test]
fn a_storm_of_events_is_bounded_and_never_loses_a_fatal_one() {
    let (mock, context) = mock::open();
    for _ in 0..100_000 {
        mock.event(0, EventType::PortErr, EventSubject::Port(1));
    }
    mock.event(0, EventType::DeviceFatal, EventSubject::Device);
    let mut seen = Vec::new();
    while let Some(event) = context.poll_event() {
        seen.push(event.event_type());
    }
    assert!(seen.len() <= 1000);
    assert_eq!(seen.last(), Some(&EventType::DeviceFatal));
    assert_eq!(context.lost_events(), 100_001 - seen.len() as u64);
}

#[test]
fn the_event_descriptor_is_readable_while_events_wait() {
    let (mock, context) = mock::open();
    mock.event(0, EventType::PortErr, EventSubject::Port(1));
    assert!(readable(context.event_fd().unwrap()));
    context.poll_event();
    assert!(!readable(context.event_fd().unwrap()));
    mock.event(0, EventType::PortErr, EventSubject::Port(1));
    assert!(readable(context.event_fd().unwrap()));
}

#[test]
fn an_event_of_the_wrong_kind_is_discarded() {
    let (mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    mock.event(0, EventType::CqErr, EventSubject::Object(pd.id()));
    mock.event(0, EventType::CqErr, EventSubject::Device);
    assert!(context.poll_event().is_none());
}

// covers 3.88
#[test]
fn a_queue_is_destroyed_when_its_notices_are_acknowledged() {
    let (_mock, context) = mock::open();
    let channel = context.create_completion_channel().unwrap();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context
        .create_cq(CqOptions::new(64).channel(&channel))
        .wait()
        .unwrap();
    let qp = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    assert!(!readable(channel.fd().unwrap()));
    assert!(!cq.arm(Notify::Next).unwrap());
    qp.post_receive(ReceiveRequest::new(1, ())).unwrap();
    assert!(readable(channel.fd().unwrap()));
    let notice = channel.next().wait().unwrap();
    assert_eq!(notice.cq().id(), cq.id());
    assert!(!readable(channel.fd().unwrap()) && channel.poll_event().is_none());
    qp.destroy().wait().unwrap();
    let destroy = cq.destroy();
    assert!(!destroy.is_done());
    drop(notice);
    destroy.wait().unwrap();
    channel.destroy().wait().unwrap();
}

// covers 3.87 7.80
#[test]
fn no_wake_up_is_lost_between_arming_and_polling() {
    let (_mock, context) = mock::open();
    let (_pd, cq, qp, _) = mock::pair(&context);
    let rounds = 100_000;
    thread::scope(|scope| {
        scope.spawn(|| {
            for wr_id in 0..rounds {
                qp.post_receive(ReceiveRequest::new(wr_id, ())).unwrap();
            }
        });
        for wr_id in 0..rounds {
            assert_eq!(cq.next().wait().unwrap().wr_id, wr_id);
        }
    });
}

#[test]
fn a_completion_handler_may_start_every_verb() {
    let (_mock, context) = mock::open();
    let (_pd, cq, qp, _) = mock::pair(&context);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let inner = Arc::clone(&seen);
    let poster = qp.clone();
    cq.on_completion(move |cq| {
        assert!(in_handler());
        let mut slots: [Completion; 4] = Default::default();
        loop {
            for done in cq.poll(&mut slots).unwrap() {
                inner.lock().push(done.wr_id);
                if done.wr_id < 1000 {
                    // The request completes within the post: the notification must not recurse.
                    cq.arm(Notify::Next).unwrap();
                    poster
                        .post_receive(ReceiveRequest::new(done.wr_id + 1, ()))
                        .unwrap();
                }
            }
            if !cq.arm(Notify::Next).unwrap() {
                break;
            }
        }
    });
    assert!(!cq.arm(Notify::Next).unwrap());
    qp.post_receive(ReceiveRequest::new(0, ())).unwrap();
    assert_eq!(*seen.lock(), (0..=1000).collect::<Vec<_>>());
}

#[test]
fn the_queue_descriptor_is_readable_from_notice_to_arming() {
    let (_mock, context) = mock::open();
    let (_pd, cq, qp, _) = mock::pair(&context);
    assert!(!readable(cq.fd().unwrap()));
    cq.arm(Notify::Next).unwrap();
    qp.post_receive(ReceiveRequest::new(0, ())).unwrap();
    assert!(readable(cq.fd().unwrap()));
    assert_eq!(cq.poll(&mut [Completion::default()]).unwrap().len(), 1);
    assert!(!cq.arm(Notify::Next).unwrap());
    assert!(!readable(cq.fd().unwrap()));
}

// covers 1.09
#[test]
fn queries_and_arming_report_the_refusal_of_a_device() {
    let (mock, context) = mock::open();
    let (pd, cq, a, _b) = mock::pair(&context);
    let srq = pd.create_srq(SrqOptions::new(8)).wait().unwrap();
    let refused = VerbError::Resources("test resources");
    mock.fail_next("query_qp");
    assert_eq!(a.query().unwrap_err(), refused);
    assert_eq!(a.query().unwrap().state, QpState::Rts);
    mock.fail_next("query_srq");
    assert_eq!(srq.query().unwrap_err(), refused);
    // The limit is compared with the size that the device reports.
    mock.fail_next("query_srq");
    assert_eq!(srq.arm_limit(1).wait().unwrap_err(), refused);
    mock.fail_next("arm");
    assert_eq!(cq.arm(Notify::Next).unwrap_err(), refused);
    assert!(!cq.arm(Notify::Next).unwrap());
}

// covers 6.25
#[test]
fn a_queue_is_made_with_a_vector_that_the_device_has() {
    let (mock, context) = mock::open();
    assert_eq!(context.limits().num_comp_vectors, 2);
    let made = context.create_cq(CqOptions::new(8).comp_vector(1)).wait();
    made.unwrap();
    context.create_cq(8).wait().unwrap();
    let refused = context.create_cq(CqOptions::new(8).comp_vector(2)).wait();
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("comp_vector"), "{message}");
    assert_eq!(*mock.comp_vectors.lock(), [1, 0]);
}

#[test]
fn a_provider_descriptor_is_readable_until_arming() {
    let (mock, context) = mock::open();
    mock.own_descriptors.store(true, Ordering::SeqCst);
    let (_pd, cq, a, _b) = mock::pair(&context);
    let is_readable = || readable(cq.fd().unwrap());
    assert!(!cq.arm(Notify::Next).unwrap());
    assert!(!is_readable());
    a.post_one(wr::Send::new(b"one").signaled(1)).unwrap();
    assert!(is_readable());
    cq.arm(Notify::Next).unwrap();
    assert!(!is_readable(), "arming has drained it");
}
