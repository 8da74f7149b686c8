//! Requests whose completions are awaited: a task polls again only after it was woken.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll, Wake, Waker};

use crate::{cases, steered_cases};
use conformance::{ANY_DEVICE, Evidence, Outcome, Rig};
use verbs_api::{
    Access, Completion, QpOptions, RKey, RemoteAddress, VerbError, WcStatus,
    completion::{SubmitError, Submitted},
    qp::{QpAttributes, QpState},
    wr::{self, ReceiveRequest},
};

cases! {
    futures_of_both_ends_and_polls_each_get_their_own: ANY_DEVICE;
    dropped_futures_give_their_buffers_back: ANY_DEVICE;
    a_failure_reaches_its_future_and_flushes_the_others: ANY_DEVICE;
    an_overrun_reaches_every_future: ANY_DEVICE;
    a_reset_reaches_every_future: ANY_DEVICE;
}

steered_cases! {
    a_removal_reaches_every_future: ANY_DEVICE;
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

// Runs a future as an executor does: it polls the future again only after it was woken.
fn run<F: Future + Unpin>(rig: &Rig, mut future: F) -> Result<F::Output, Evidence> {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    loop {
        let polled = Pin::new(&mut future).poll(&mut TaskContext::from_waker(&waker));
        if let Poll::Ready(output) = polled {
            return Ok(output);
        }
        rig.until("the wake-up of a task", || {
            woken.0.swap(false, Ordering::SeqCst)
        })?;
    }
}

fn success(rig: &Rig, future: Submitted) -> Result<Completion, Evidence> {
    let done = run(rig, future)?;
    Ok(done.unwrap_or_else(|error| panic!("{error}")))
}

fn rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
}

// covers 5.30
fn futures_of_both_ends_and_polls_each_get_their_own(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let desk = rig.far.region(4096, rights())?;
    let mut received = Vec::new();
    let mut sent = Vec::new();
    for number in 0..16_u32 {
        let room = desk.sge(number as usize * 64, 64)?;
        received.push(
            pair.far
                .qp
                .receive(ReceiveRequest::new(number.into(), room)),
        );
    }
    for number in 0..16_u32 {
        let message = wr::Send::new(rig.scratch.sge(0, number + 1)?);
        sent.push(pair.near.qp.submit(message.wr_id(number.into())));
        let write = wr::Write::new(rig.scratch.sge(0, 8)?, desk.remote(2048));
        let plain = write.signaled(100 + u64::from(number));
        pair.near.post_one(plain).expect("posted");
    }
    // The last future is awaited first.
    for (number, future) in received.into_iter().enumerate().rev() {
        let done = success(rig, future)?;
        assert_eq!(
            (done.wr_id, done.byte_len),
            (number as u64, number as u32 + 1)
        );
    }
    for (number, future) in sent.into_iter().enumerate().rev() {
        assert_eq!(success(rig, future)?.wr_id, number as u64);
    }
    for number in 0..16 {
        let done = run(rig, pair.near.cq.next())?.expect("a queue that works");
        assert_eq!(done.wr_id, 100 + number);
    }
    Ok(())
}

// covers 5.31
fn dropped_futures_give_their_buffers_back(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let pool = rig.finish(rig.far.pd.register_buffers(2, 64))?;
    let mut futures = (0..2).map(|_| {
        let buffer = pool.take().expect("a buffer");
        pair.far.qp.receive(buffer)
    });
    drop(futures.next());
    let second = futures.next().expect("two");
    for number in 1..=2 {
        let message = wr::Send::new(rig.scratch.sge(0, number)?);
        success(rig, pair.near.qp.submit(message))?;
    }
    let mut done = success(rig, second)?;
    assert_eq!((done.buffer().len(), pool.available()), (2, 1));
    done.take_buffers().for_each(drop);
    assert_eq!(pool.available(), 2);
    Ok(())
}

// covers 5.32
fn a_failure_reaches_its_future_and_flushes_the_others(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let received = pair
        .near
        .qp
        .receive(ReceiveRequest::new(7, rig.scratch.sge(0, 8)?));
    let nowhere = RemoteAddress::new(0, RKey::new(0xdead_be00));
    let read = wr::Read::new(rig.scratch.sge(0, 8)?, nowhere).wr_id(3);
    let Err(SubmitError::Failed(error)) = run(rig, pair.near.qp.submit(read))? else {
        panic!("a read of nothing fails");
    };
    assert_eq!((error.wr_id, error.qp_num), (3, pair.near.qp.qp_num()));
    assert_eq!(error.status, WcStatus::RemAccessErr);
    let Err(SubmitError::Failed(error)) = run(rig, received)? else {
        panic!("a receive is flushed");
    };
    assert_eq!((error.wr_id, error.status), (7, WcStatus::WrFlushErr));
    Ok(())
}

// covers 5.32
fn an_overrun_reaches_every_future(rig: &Rig) -> Outcome {
    let small = rig.finish(rig.near.context.create_cq(1))?;
    let qp = rig.finish(rig.near.pd.create_qp(QpOptions::rc(&small).max_recv_wr(64)))?;
    let init = QpAttributes::new().qp_state(QpState::Init).pkey_index(0);
    let init = init.port_num(1).qp_access_flags(Access::empty());
    rig.finish(qp.modify(init))?;
    let room = rig.scratch.sge(0, 8)?;
    let futures: Vec<_> = (0..small.cqe() + 8)
        .map(|_| qp.receive(ReceiveRequest::new(0, room)))
        .collect();
    // All requests are flushed at once.
    rig.finish(qp.modify(QpAttributes::new().qp_state(QpState::Err)))?;
    let mut overran = 0;
    for future in futures {
        match run(rig, future)? {
            Err(SubmitError::Verb(VerbError::CqOverrun)) => overran += 1,
            Err(SubmitError::Failed(error)) => assert_eq!(error.status, WcStatus::WrFlushErr),
            other => panic!("{other:?}"),
        }
    }
    assert_ne!(overran, 0);
    Ok(())
}

// covers 5.32
fn a_removal_reaches_every_future(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let room = rig.scratch.sge(0, 8)?;
    let receive = |wr_id| ReceiveRequest::new(wr_id, room);
    let (first, second) = (
        pair.near.qp.receive(receive(1)),
        pair.near.qp.receive(receive(2)),
    );
    rig.near.steer().remove();
    for future in [first, second] {
        match run(rig, future)? {
            Err(SubmitError::Failed(error)) => assert_eq!(error.status, WcStatus::WrFlushErr),
            Err(SubmitError::Verb(error)) => assert_eq!(error, VerbError::DeviceRemoved),
            other => panic!("{other:?}"),
        }
    }
    Ok(())
}

// covers 5.32
fn a_reset_reaches_every_future(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let room = rig.scratch.sge(0, 8)?;
    let receive = |wr_id| ReceiveRequest::new(wr_id, room);
    let (first, second) = (
        pair.near.qp.receive(receive(1)),
        pair.near.qp.receive(receive(2)),
    );
    drop(first);
    rig.finish(
        pair.near
            .qp
            .modify(QpAttributes::new().qp_state(QpState::Reset)),
    )?;
    let canceled = SubmitError::Verb(VerbError::Canceled);
    assert_eq!(run(rig, second)?.expect_err("a reset"), canceled);
    Ok(())
}
