//! Extended reliable connections over this workspace's C library: behaviour that the probes omit.

use std::error::Error;
use std::fs::File;
use std::os::fd::AsFd as _;

use test_kit::waiting::PATIENCE;
use verbs_api::completion::WcStatus;
use verbs_api::event::{EventSubject, EventType};
use verbs_api::qp::{QpAttributes, QpState};
use verbs_api::{
    Access, BufferPool, Completion, Context, Cq, DestroyError, ErrorKind, PathOptions, Pd, Qp,
    QpOptions, SrqOptions, VerbError, connect_pair, wr,
};
use xrc::{OpenXrcd, Xrc, XrcSrq, Xrcd, remote_srqn};

use crate::common;

type Outcome = Result<(), Box<dyn Error>>;

/// An open device with the objects that most tests need.
struct Program {
    context: Context,
    xrc: Xrc,
    pd: Pd,
    cq: Cq,
    pool: BufferPool,
}

impl Program {
    fn new() -> Result<Self, Box<dyn Error>> {
        let context = common::open("ib0@libibverbs");
        let (pd, cq) = (context.alloc_pd().wait()?, context.create_cq(64).wait()?);
        Ok(Self {
            xrc: context.extension()?,
            pool: pd.register_buffers(8, 64).wait()?,
            context,
            pd,
            cq,
        })
    }

    fn domain(&self, file: &File) -> Result<Xrcd, VerbError> {
        self.xrc.open(OpenXrcd::of(file.as_fd()).create()).wait()
    }

    /// A queue of a domain with one posted receive.
    fn queue(&self, domain: &Xrcd) -> Result<XrcSrq, Box<dyn Error>> {
        let srq = domain
            .create_srq(&self.pd, SrqOptions::new(4), &self.cq)
            .wait()?;
        srq.post_receive(self.pool.take().ok_or("no buffer")?)?;
        Ok(srq)
    }

    /// An initiator that is connected to a target.
    fn initiator(&self, target: &Qp) -> Result<Qp, VerbError> {
        let initiator = QpOptions::rc(&self.cq).with(&self.xrc);
        let initiator = self.pd.create_qp(initiator).wait()?;
        let (here, there) = (initiator.endpoint()?, target.endpoint()?);
        target.connect(&here, PathOptions::new()).wait()?;
        initiator.connect(&there, PathOptions::new()).wait()?;
        Ok(initiator)
    }

    fn next(&self) -> Result<Completion, Box<dyn Error>> {
        self.cq
            .next()
            .wait_for(PATIENCE)?
            .ok_or("no completion".into())
    }

    /// The payload of the next completion, which belongs to a receive.
    fn received(&self) -> Result<Vec<u8>, Box<dyn Error>> {
        let done = self.next()?.success()?;
        Ok(done.buffer().to_vec())
    }
}

fn send(initiator: &Qp, to: &XrcSrq, bytes: &[u8]) -> Outcome {
    initiator.post_one(wr::Send::new(bytes).with(remote_srqn(to.number())))?;
    Ok(())
}

// covers 4.03 4.11
#[test]
fn queues_on_one_cq_get_their_own_receives_back() -> Outcome {
    let (near, far) = (Program::new()?, Program::new()?);
    let domain = far.xrc.open(OpenXrcd::anonymous()).wait()?;
    let (first, second) = (far.queue(&domain)?, far.queue(&domain)?);
    // An ordinary queue pair completes there too.
    let ordinary = far.pd.create_qp(QpOptions::rc(&far.cq)).wait()?;
    let peer = near.pd.create_qp(QpOptions::rc(&near.cq)).wait()?;
    connect_pair(&peer, &ordinary, Access::empty()).wait()?;
    ordinary.post_receive(far.pool.take().ok_or("no buffer")?)?;
    let target = domain.create_target().wait()?;
    let initiator = near.initiator(&target)?;
    send(&initiator, &second, b"second")?;
    peer.post_one(wr::Send::new(b"ordinary"))?;
    send(&initiator, &first, b"first")?;
    for expected in [&b"second"[..], b"ordinary", b"first"] {
        assert_eq!(far.received()?, expected);
    }
    Ok(())
}

// covers 4.01 4.07
#[test]
fn a_target_delivers_to_all_contexts_with_its_domain() -> Outcome {
    let file = tempfile::tempfile()?;
    let (near, maker, other) = (Program::new()?, Program::new()?, Program::new()?);
    let (made, opened) = (maker.domain(&file)?, other.domain(&file)?);
    let queue = other.queue(&opened)?;
    let target = made.create_target().wait()?;
    let initiator = near.initiator(&target)?;
    send(&initiator, &queue, b"through another's")?;
    assert_eq!(other.received()?, b"through another's");
    // Each context gets the event of the target for its own handle.
    let handle = opened.open_target(target.qp_num()).wait()?;
    handle
        .modify(QpAttributes::new().qp_state(QpState::Err))
        .wait()?;
    for (program, qp) in [(&maker, &target), (&other, &handle)] {
        let event = program.context.next_event().wait_for(PATIENCE)?;
        let event = event.ok_or("no event")?;
        assert_eq!(event.event_type(), EventType::QpLastWqeReached);
        assert_eq!(event.subject(), EventSubject::Object(qp.id()));
    }
    Ok(())
}

// covers 4.03
#[test]
fn a_destroyed_queue_returns_its_buffers() -> Outcome {
    let (near, far) = (Program::new()?, Program::new()?);
    let domain = far.xrc.open(OpenXrcd::anonymous()).wait()?;
    let queue = far.queue(&domain)?;
    queue.post_receive(far.pool.take().ok_or("no buffer")?)?;
    let target = domain.create_target().wait()?;
    let initiator = near.initiator(&target)?;
    initiator.post_one(
        wr::Send::new(b"before")
            .with(remote_srqn(queue.number()))
            .signaled(1),
    )?;
    assert_eq!(near.next()?.status, WcStatus::Success);
    queue.destroy().wait()?;
    assert_eq!(
        far.pool.available(),
        7,
        "one buffer is in a completion that was not polled"
    );
    assert_eq!(far.received()?, b"before");
    assert_eq!(far.pool.available(), 8);
    Ok(())
}

// covers 4.03
#[test]
fn a_queue_of_another_open_device_than_its_domain_is_refused() -> Outcome {
    let (one, other) = (Program::new()?, Program::new()?);
    let domain = one.xrc.open(OpenXrcd::anonymous()).wait()?;
    let refused = domain.create_srq(&other.pd, SrqOptions::new(4), &other.cq);
    let refused = refused.wait().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    assert!(refused.to_string().contains("xrcd"), "{refused}");
    Ok(())
}

fn is_there(program: &Program, file: &File) -> bool {
    let opened = program.xrc.open(OpenXrcd::of(file.as_fd())).wait();
    match opened {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            false
        }
    }
}

// covers 4.02
#[test]
fn a_domain_exists_until_its_last_object_is_gone() -> Outcome {
    let file = tempfile::tempfile()?;
    let program = Program::new()?;
    let (first, second) = (program.domain(&file)?, program.domain(&file)?);
    let queue = program.queue(&first)?;
    let target = second.create_target().wait()?;
    // The queue was made in this opening, and still belongs to the domain.
    first.close()?;
    let Err(DestroyError::Busy { object, held_by }) = second.close() else {
        return Err("a domain with a queue and a target was closed".into());
    };
    let held_by: Vec<_> = held_by.iter().map(|holder| holder.id).collect();
    assert_eq!(held_by, [queue.id(), target.id()]);
    drop(object);
    queue.destroy().wait()?;
    assert!(is_there(&program, &file));
    target.destroy().wait()?;
    assert!(!is_there(&program, &file));
    Ok(())
}
