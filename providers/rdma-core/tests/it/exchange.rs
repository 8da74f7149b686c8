//! Behaviour that the probes of the matrix omit, over this workspace's C library: buffers that are lent, unsignaled requests,
//! notifications, futures.

use std::error::Error;
use std::sync::mpsc;
use std::thread;

use test_kit::waiting::PATIENCE;
use verbs_api::completion::{Notify, WcStatus};
use verbs_api::portable::RemoteAccess;
use verbs_api::qp::{QpAttributes, QpState};
use verbs_api::{
    Access, BufferPool, Completion, Context, Cq, Memory, Mr, Operations, Pd, Qp, QpOptions,
    connect_pair, wr,
};

use crate::common;

type Outcome = Result<(), Box<dyn Error>>;

/// Two connected queue pairs, each with a completion queue, and buffers.
struct Pair {
    context: Context,
    pd: Pd,
    near: Qp,
    near_cq: Cq,
    far: Qp,
    far_cq: Cq,
    pool: BufferPool,
}

/// The number of buffers in the pool.
const BUFFERS: u32 = 8;
/// The number of requests that a send queue holds.
const DEPTH: u32 = 4;

impl Pair {
    fn new() -> Result<Self, Box<dyn Error>> {
        let context = common::open("ib0@libibverbs");
        let pd = context.alloc_pd().wait()?;
        let (near_cq, far_cq) = (context.create_cq(64).wait()?, context.create_cq(64).wait()?);
        let near = pd
            .create_qp(QpOptions::rc(&near_cq).max_send_wr(DEPTH))
            .wait()?;
        let far = QpOptions::rc(&far_cq)
            .operations(Operations::BIND_MW | Operations::LOCAL_INV)
            .reserve_portable(1);
        let far = pd.create_qp(far).wait()?;
        connect_pair(&near, &far, Access::REMOTE_WRITE).wait()?;
        let pool = pd.register_buffers(BUFFERS, 64).wait()?;
        Ok(Self {
            context,
            pd,
            near,
            near_cq,
            far,
            far_cq,
            pool,
        })
    }

    fn buffer(&self, octet: u8) -> Result<verbs_api::Buffer, Box<dyn Error>> {
        let mut buffer = self.pool.take().ok_or("no buffer is left")?;
        buffer.fill(octet);
        Ok(buffer)
    }
}

fn next(cq: &Cq) -> Result<Completion, Box<dyn Error>> {
    let next = cq.next().wait_for(PATIENCE)?;
    Ok(next.ok_or("no completion")?.success()?)
}

fn ensure(holds: bool, what: &str) -> Outcome {
    if holds { Ok(()) } else { Err(what.into()) }
}

#[test]
fn unsignaled_buffers_return_with_the_next_completion() -> Outcome {
    let pair = &Pair::new()?;
    for _ in 0..3 {
        pair.far.post_receive(pair.buffer(0)?)?;
    }
    pair.near.post_one(wr::Send::new(pair.buffer(1)?))?;
    pair.near.post_one(wr::Send::new(pair.buffer(2)?))?;
    pair.near
        .post_one(wr::Send::new(pair.buffer(3)?).signaled(7))?;
    let mut done = next(&pair.near_cq)?;
    ensure(done.wr_id == 7, "the completion is of another request")?;
    let octets: Vec<_> = done.take_buffers().map(|buffer| buffer[0]).collect();
    ensure(
        octets == [3, 1, 2],
        "its buffer does not come first, or those before it are missing",
    )?;
    for octet in 1..=3 {
        let received = next(&pair.far_cq)?;
        ensure(received.buffer() == [octet; 64], "a message is another one")?;
    }
    ensure(
        pair.pool.available() == BUFFERS as usize,
        "a buffer did not come back",
    )
}

#[test]
fn a_polled_completion_makes_room_in_a_full_queue() -> Outcome {
    let pair = &Pair::new()?;
    let memory = Memory::zeroed(64)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = pair.pd.register(&memory, access).wait()?;
    let write = |id| wr::Write::new(b"inline".as_slice(), mr.remote(0)).signaled(id);
    for id in 0..u64::from(DEPTH) {
        pair.near.post_one(write(id))?;
    }
    let refused = pair.near.post_one(write(99)).map_err(|error| error.reason);
    let is_full = matches!(refused, Err(wr::PostReason::QueueFull { max: DEPTH }));
    ensure(is_full, "a request was taken for which there is no room")?;
    next(&pair.near_cq)?;
    pair.near.post_one(write(4))?;
    for id in 1..=u64::from(DEPTH) {
        ensure(
            next(&pair.near_cq)?.wr_id == id,
            "completions are out of order",
        )?;
    }
    Ok(())
}

#[test]
fn an_armed_queue_sends_one_notification() -> Outcome {
    let pair = &Pair::new()?;
    let (sender, notices) = mpsc::channel();
    pair.far_cq
        .on_completion(move |_| sender.send(()).unwrap_or_default());
    ensure(
        !pair.far_cq.arm(Notify::Next)?,
        "an empty queue has a completion",
    )?;
    for octet in 1..=2 {
        pair.far.post_receive(pair.buffer(0)?)?;
        pair.near
            .post_one(wr::Send::new(pair.buffer(octet)?).signaled(0))?;
        next(&pair.near_cq)?;
    }
    notices.recv_timeout(PATIENCE)?;
    ensure(
        pair.far_cq.arm(Notify::Next)?,
        "a queue with completions says that it has none",
    )?;
    let mut slots: [Completion; 4] = Default::default();
    ensure(
        pair.far_cq.poll(&mut slots)?.len() == 2,
        "a completion is missing",
    )
}

#[test]
fn a_request_can_be_awaited() -> Outcome {
    let pair = &Pair::new()?;
    let received = pair.far.receive(pair.buffer(0)?);
    let sent = pair.near.submit(wr::Send::new(pair.buffer(5)?).wr_id(1));
    ensure(
        sent.wait()?.wr_id == 1,
        "the completion is of another request",
    )?;
    ensure(
        received.wait()?.buffer() == [5; 64],
        "the message is another one",
    )
}

#[test]
fn a_reset_and_a_destroy_return_the_buffers() -> Outcome {
    let pair = &Pair::new()?;
    let all = BUFFERS as usize;
    for _ in 0..3 {
        pair.far.post_receive(pair.buffer(0)?)?;
    }
    ensure(
        pair.pool.available() == all - 3,
        "a posted buffer can be taken",
    )?;
    pair.far
        .modify(QpAttributes::new().qp_state(QpState::Reset))
        .wait()?;
    ensure(pair.pool.available() == all, "a reset has kept a buffer")?;
    let other = pair.pd.create_qp(QpOptions::rc(&pair.far_cq)).wait()?;
    let init = QpAttributes::new()
        .qp_state(QpState::Init)
        .pkey_index(0)
        .port_num(1)
        .qp_access_flags(Access::empty());
    other.modify(init).wait()?;
    other.post_receive(pair.buffer(0)?)?;
    other.destroy().wait()?;
    ensure(pair.pool.available() == all, "a destroy has kept a buffer")
}

#[test]
fn a_queue_pair_can_be_destroyed_during_posts_and_polls() -> Outcome {
    let pair = &Pair::new()?;
    let memory = Memory::zeroed(64)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = pair.pd.register(&memory, access).wait()?;
    thread::scope(|scope| {
        let (started, has_started) = mpsc::channel();
        let firing = scope.spawn(move || fire(pair, &mr, &started));
        has_started.recv_timeout(PATIENCE)?;
        pair.near.clone().destroy().wait()?;
        let refused = firing.join().map_err(|_| "the other thread has panicked")?;
        ensure(
            refused == wr::PostReason::InvalidHandle,
            "a post was refused for another reason than the end of the queue pair",
        )
    })?;
    // Only requests that had completed before still have completions.
    let mut slots: [Completion; 8] = Default::default();
    pair.near_cq.poll(&mut slots)?;
    ensure(
        pair.near_cq.poll(&mut slots)?.is_empty(),
        "something completes on a queue pair that is gone",
    )
}

#[test]
fn a_panicking_event_handler_blocks_no_object_and_no_event() -> Outcome {
    let pair = &Pair::new()?;
    let (sender, told) = mpsc::channel();
    pair.context.on_event(move |_| {
        sender.send(()).unwrap_or_default();
        panic!("a panic of the program's handler");
    });
    let drain = QpAttributes::new()
        .qp_state(QpState::Sqd)
        .en_sqd_async_notify(true);
    for qp in [&pair.near, &pair.far] {
        qp.modify(drain).wait()?;
        told.recv_timeout(PATIENCE)?;
        let gone = qp.clone().destroy().wait_for(PATIENCE)?;
        ensure(gone.is_some(), "a queue pair waits for its event")?;
    }
    Ok(())
}

/// Posts and polls until a post is refused for another reason than a full queue. Returns that reason.
fn fire(pair: &Pair, mr: &Mr, started: &mpsc::Sender<()>) -> wr::PostReason {
    loop {
        let write = wr::Write::new(b"inline".as_slice(), mr.remote(0)).signaled(0);
        match pair.near.post_one(write).map_err(|error| error.reason) {
            Ok(()) => started.send(()).unwrap_or_default(),
            Err(wr::PostReason::QueueFull { .. }) => {}
            Err(other) => return other,
        }
        let mut slots: [Completion; 2] = Default::default();
        if pair.near_cq.poll(&mut slots).is_err() {
            return wr::PostReason::DeviceRemoved;
        }
    }
}

// The device has no fast registration, so the operation is a bind of a window.
#[test]
fn a_portable_operation_opens_memory_to_a_peer_and_closes_it() -> Outcome {
    let pair = &Pair::new()?;
    let memory = Memory::zeroed(64)?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let access = RemoteAccess::prepare(&pair.pd, &memory, rights, false).wait()?;
    pair.far.post_portable(access.register().wr_id(3))?;
    ensure(
        next(&pair.far_cq)?.wr_id == 3,
        "the completion is of another request",
    )?;
    let write = || wr::Write::new(b"opened".as_slice(), access.remote()).signaled(4);
    pair.near.post_one(write())?;
    next(&pair.near_cq)?;
    ensure(
        memory.to_vec(0, 6)? == b"opened",
        "the write has not landed",
    )?;
    let invalidation = access.invalidation().ok_or("it cannot be closed")?;
    pair.far.post_one(invalidation.signaled(5))?;
    next(&pair.far_cq)?;
    pair.near.post_one(write())?;
    let refused = pair.near_cq.next().wait_for(PATIENCE)?;
    let status = refused.ok_or("no completion")?.status;
    ensure(
        status == WcStatus::RemAccessErr,
        "a peer wrote to memory that was closed",
    )?;
    Ok(access.revoke().wait()?)
}
