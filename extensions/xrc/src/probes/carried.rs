//! Probes of rules of other features, tried through an XRC initiator.

use verbs_api::probe::{Outcome, Rig};
use verbs_api::{Access, WcStatus, probe::ensure_eq, wr};

use super::{Mailbox, XrcConnection};
use crate::remote_srqn;

// covers 4.10
pub(super) fn waiting(rig: &Rig) -> Outcome {
    let connection = XrcConnection::new(rig)?;
    let (empty, full) = (
        Mailbox::new(rig, &connection.domain, &rig.far.pd)?,
        Mailbox::new(rig, &connection.domain, &rig.far.pd)?,
    );
    full.receives(2)?;
    let to = |mailbox: &Mailbox| remote_srqn(mailbox.srq.number());
    connection
        .initiator
        .post_one(wr::Send::new(b"waits").with(to(&empty)).signaled(1))?;
    connection
        .initiator
        .post_one(wr::Send::new(b"behind").with(to(&full)).signaled(2))?;
    rig.nothing_on(&full.cq)?;
    rig.nothing_on(&connection.initiator.cq)?;
    // Other initiators of the domain are not blocked.
    let beside = XrcConnection::made(rig, connection.domain)?;
    beside.connect(rig)?;
    beside.ends(
        rig,
        wr::Send::new(b"beside").with(to(&full)),
        WcStatus::Success,
    )?;
    rig.take(&full.cq, 1)?;
    empty.receives(1)?;
    let done = rig.take(&connection.initiator.cq, 2)?;
    let ended: Vec<_> = done.iter().map(|done| (done.wr_id, done.status)).collect();
    ensure_eq!(
        ended,
        [(1, WcStatus::Success), (2, WcStatus::Success)],
        "the request that waited and the one behind it"
    );
    rig.take(&empty.cq, 1)?;
    rig.take(&full.cq, 1)?;
    Ok(())
}

// covers 4.12
pub(super) fn immediates(rig: &Rig) -> Outcome {
    let connection = XrcConnection::new(rig)?;
    let mailbox = Mailbox::new(rig, &connection.domain, &rig.far.pd)?;
    mailbox.receives(2)?;
    let number = remote_srqn(mailbox.srq.number());
    let message = wr::SendWithImmediate::new(b"", *b"imm!").with(number);
    rig.succeeds(&connection.initiator, message)?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = rig.far.region(64, rights)?;
    let write = wr::WriteWithImmediate::new(b"tail", region.remote(0), *b"last").with(number);
    rig.succeeds(&connection.initiator, write)?;
    let done = rig.take(&mailbox.cq, 2)?;
    let immediates: Vec<_> = done.iter().map(|done| done.immediate()).collect();
    ensure_eq!(
        immediates,
        [Some(*b"imm!"), Some(*b"last")],
        "immediate data of a send and of a write"
    );
    Ok(())
}

// covers 4.12
pub(super) fn invalidated(rig: &Rig) -> Outcome {
    let connection = XrcConnection::new(rig)?;
    let mailbox = Mailbox::new(rig, &connection.domain, &rig.far.pd)?;
    mailbox.receives(1)?;
    let number = remote_srqn(mailbox.srq.number());
    let pair = rig.rc()?;
    let theirs = rig.far.fast(4096)?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    rig.succeeds(&pair.far, theirs.register(rights))?;
    let message = wr::SendWithInvalidate::new(b"done", theirs.rkey()).with(number);
    connection.ends(rig, message, WcStatus::Success)?;
    let write = wr::Write::new(rig.scratch.sge(0, 8)?, theirs.remote(0)).with(number);
    connection.ends(rig, write, WcStatus::RemAccessErr)
}
