//! Domains, and which attributes initiators and targets have.

use std::os::fd::AsFd;

use verbs_api::probe::{Evidence, Outcome, Rig};
use verbs_api::qp::{QpAttributes, QpState};
use verbs_api::{
    DestroyError, ErrorKind, WcStatus,
    event::EventType,
    ids::Qpn,
    probe::{ensure, ensure_eq},
    wr::{self, PostReason, ReceiveRequest},
};

use super::{Mailbox, XrcConnection, anonymous};
use crate::{INITIATOR, OpenXrcd, TARGET, Xrc, remote_srqn};

// A pipe is a file that exists as long as one of its ends is open; both ends are the same file.
// covers 4.01
pub(super) fn files(rig: &Rig) -> Outcome {
    let xrc = rig.far.context.extension::<Xrc>()?;
    let no_pipe = |error: std::io::Error| Evidence::not_here(error.to_string());
    let (reader, writer) = std::io::pipe().map_err(no_pipe)?;
    let there = OpenXrcd::of(reader.as_fd());
    ensure!(
        rig.outcome(xrc.open(there))?.is_err(),
        "a domain was opened that did not exist"
    );
    let first = rig.finish(xrc.open(there.create()))?;
    ensure!(
        rig.outcome(xrc.open(there.create().exclusive()))?.is_err(),
        "a domain was created that was there"
    );
    let again = rig.finish(xrc.open(there.create()))?;
    let other = rig.finish(xrc.open(OpenXrcd::of(writer.as_fd())))?;
    let target = rig.finish(first.create_target())?;
    for (opened, how) in [
        (&again, "once more"),
        (&other, "through another descriptor"),
    ] {
        ensure!(
            rig.outcome(opened.open_target(target.qp_num()))?.is_ok(),
            "the domain opened {how} lacks the target"
        );
    }
    let apart = anonymous(rig, &rig.far)?;
    ensure!(
        rig.outcome(apart.open_target(target.qp_num()))?.is_err(),
        "a domain of no file is that of a file"
    );
    rig.finish_destroy(target.destroy())?;
    for domain in [first, again, other] {
        domain.close()?;
    }
    ensure!(
        rig.outcome(xrc.open(there))?.is_err(),
        "a domain is there that everybody has closed"
    );
    rig.finish(xrc.open(there.create().exclusive()))?.close()?;
    Ok(())
}

// covers 4.02
pub(super) fn busy(rig: &Rig) -> Outcome {
    let xrc = rig.far.context.extension::<Xrc>()?;
    let no_pipe = |error: std::io::Error| Evidence::not_here(error.to_string());
    let (reader, _writer) = std::io::pipe().map_err(no_pipe)?;
    let how = OpenXrcd::of(reader.as_fd()).create();
    let (first, second) = (rig.finish(xrc.open(how))?, rig.finish(xrc.open(how))?);
    let mailbox = Mailbox::new(rig, &first, &rig.far.pd)?;
    first.close()?;
    let target = rig.finish(second.create_target())?;
    let second = match second.close() {
        Err(DestroyError::Busy { object, held_by }) if held_by.len() == 2 => object,
        other => {
            let found = format!("a domain with a queue and a target: {other:?}");
            return Err(Evidence::wrong(found));
        }
    };
    ensure!(
        rig.outcome(second.open_target(target.qp_num()))?.is_ok(),
        "a domain that was busy lacks its target"
    );
    rig.finish_destroy(target.destroy())?;
    let second = match second.close() {
        Err(DestroyError::Busy { object, .. }) => object,
        other => {
            let found = format!("a domain with a queue: {other:?}");
            return Err(Evidence::wrong(found));
        }
    };
    rig.finish_destroy(mailbox.srq.destroy())?;
    second.close()?;
    Ok(())
}

// covers 4.05
pub(super) fn initiator(rig: &Rig) -> Outcome {
    let connection = XrcConnection::new(rig)?;
    let side = &connection.initiator;
    ensure_eq!(side.variant(), Some(&INITIATOR), "the queue pair's variant");
    ensure_eq!(side.cap().max_recv_wr, 0, "receives that it has room for");
    let refused = side.post_receive(ReceiveRequest::new(1, rig.scratch.sge(0, 8)?));
    ensure!(
        refused.is_err_and(|refused| refused.reason == PostReason::NoReceives),
        "an initiator takes a receive"
    );
    let Err(refused) = side.post_one(wr::Send::new(&[1])) else {
        return Err(Evidence::wrong("a request that names no queue is posted"));
    };
    ensure_eq!(refused.kind(), ErrorKind::InvalidArgument, "the refusal");
    // It is for initiators alone.
    let pair = rig.rc()?;
    let refused = pair.near.post_one(wr::Send::new(&[1]).with(remote_srqn(1)));
    ensure!(
        refused.is_err(),
        "an ordinary queue pair posts a request that names a queue"
    );
    Ok(())
}

// covers 4.06
pub(super) fn target(rig: &Rig) -> Outcome {
    let connection = XrcConnection::new(rig)?;
    let target = &connection.target;
    ensure_eq!(target.variant(), Some(&TARGET), "the queue pair's variant");
    let cap = target.cap();
    ensure_eq!(
        (cap.max_send_wr, cap.max_recv_wr),
        (0, 0),
        "requests that it has room for"
    );
    ensure!(
        target.post_one(wr::Send::new(&[1])).is_err(),
        "a target sends"
    );
    let named = wr::Send::new(&[1]).with(remote_srqn(1));
    ensure!(target.post_one(named).is_err(), "a target sends to a queue");
    let landing = rig.far.region(8, verbs_api::Access::LOCAL_WRITE)?;
    let refused = target.post_receive(ReceiveRequest::new(1, landing.sge(0, 8)?));
    ensure!(refused.is_err(), "a target takes a receive");
    Ok(())
}

// covers 4.07
pub(super) fn handles(rig: &Rig) -> Outcome {
    let connection = XrcConnection::new(rig)?;
    let mailbox = Mailbox::new(rig, &connection.domain, &rig.far.pd)?;
    mailbox.receives(2)?;
    let number = connection.target.qp_num();
    ensure!(
        rig.outcome(connection.domain.open_target(Qpn::new(number.value() ^ 1)))?
            .is_err(),
        "a target is opened that is not there"
    );
    let ordinary = rig.far.side(verbs_api::qp::QpType::Rc)?;
    ensure!(
        rig.outcome(connection.domain.open_target(ordinary.qp_num()))?
            .is_err(),
        "an ordinary queue pair is opened as a target"
    );
    let second = rig.finish(connection.domain.open_target(number))?;
    ensure_eq!(second.qp_num(), number, "the number of a second handle");
    rig.finish_destroy(connection.target.destroy())?;
    let message = wr::Send::new(&[7]).with(remote_srqn(mailbox.srq.number()));
    rig.succeeds(&connection.initiator, message)?;
    rig.take(&mailbox.cq, 1)?;
    ensure_eq!(
        second.query()?.state,
        QpState::Rts,
        "the state of a target of which one handle is gone"
    );
    rig.finish_destroy(second.destroy())?;
    ensure!(
        rig.outcome(connection.domain.open_target(number))?.is_err(),
        "a target is there of which every handle is gone"
    );
    Ok(())
}

// covers 4.07 4.15
pub(super) fn events(rig: &Rig) -> Outcome {
    let connection = XrcConnection::new(rig)?;
    let second = rig.finish(connection.domain.open_target(connection.target.qp_num()))?;
    rig.far.events();
    rig.finish(second.modify(QpAttributes::new().qp_state(QpState::Err)))?;
    rig.settle();
    let events = rig.far.events();
    ensure_eq!(
        events,
        [EventType::QpLastWqeReached; 2],
        "what both handles are told of a target in error"
    );
    ensure_eq!(
        connection.target.query()?.state,
        QpState::Err,
        "the state as the other handle sees it"
    );
    // An initiator has no shared receive queue to report.
    rig.near.events();
    rig.finish(
        connection
            .initiator
            .modify(QpAttributes::new().qp_state(QpState::Err)),
    )?;
    rig.settle();
    ensure_eq!(rig.near.events(), [], "events of an initiator in error");
    Ok(())
}

// covers 4.16 3.01 3.03 3.04
pub(super) fn transitions(rig: &Rig) -> Outcome {
    let connection = XrcConnection::new(rig)?;
    let mailbox = Mailbox::new(rig, &connection.domain, &rig.far.pd)?;
    mailbox.receives(1)?;
    // Connecting sets the required attributes; the others must be refused.
    let wrong = |what: &str| Evidence::wrong(format!("{what} was taken"));
    let timer = QpAttributes::new().min_rnr_timer(1);
    if rig.outcome(connection.initiator.modify(timer))?.is_ok() {
        return Err(wrong("the delay of a responder, by an initiator"));
    }
    rig.finish(connection.target.modify(timer))?;
    let fresh = rig.finish(connection.domain.create_target())?;
    let here = connection.initiator.endpoint()?;
    let ready = QpAttributes::new()
        .qp_state(QpState::Init)
        .pkey_index(0)
        .port_num(1)
        .qp_access_flags(verbs_api::Access::empty());
    rig.finish(fresh.modify(ready))?;
    let path = rig.near.context.path_to(1, here.address, here.gid)?;
    let without_reads = QpAttributes::new()
        .qp_state(QpState::Rtr)
        .ah_attr(path)
        .path_mtu(verbs_api::capability::Mtu::Mtu1024)
        .dest_qp_num(here.qp_num)
        .rq_psn(here.sq_psn);
    if rig.outcome(fresh.modify(without_reads))?.is_ok() {
        return Err(wrong("RTR without what a responder needs, by a target"));
    }
    rig.finish(fresh.modify(without_reads.max_dest_rd_atomic(1).min_rnr_timer(1)))?;
    let sending = QpAttributes::new()
        .qp_state(QpState::Rts)
        .sq_psn(here.sq_psn)
        .timeout(14);
    if rig
        .outcome(fresh.modify(sending.retry_cnt(7).rnr_retry(7).max_rd_atomic(1)))?
        .is_ok()
    {
        return Err(wrong("the retries of a requester, by a target"));
    }
    rig.finish(fresh.modify(sending))?;
    let other = super::initiator(&rig.near)?;
    rig.finish(other.modify(ready))?;
    if rig
        .outcome(other.modify(without_reads.max_dest_rd_atomic(1).min_rnr_timer(1)))?
        .is_ok()
    {
        return Err(wrong("what a responder needs, by an initiator"));
    }
    rig.finish(other.modify(without_reads))?;
    if rig.outcome(other.modify(sending))?.is_ok() {
        return Err(wrong("RTS without what a requester needs, by an initiator"));
    }
    rig.finish(other.modify(sending.retry_cnt(7).rnr_retry(7).max_rd_atomic(1)))?;
    // The connection is unchanged.
    let message = wr::Send::new(&[1]).with(remote_srqn(mailbox.srq.number()));
    connection.ends(rig, message, WcStatus::Success)?;
    Ok(())
}
