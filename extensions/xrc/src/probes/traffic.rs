//! Traffic from an initiator through a target.

use verbs_api::probe::{Outcome, Rig};
use verbs_api::qp::QpState;
use verbs_api::{
    Access, MrOptions, PathOptions, WcStatus,
    completion::WcOpcode,
    probe::{ensure, ensure_eq},
    wr::{self, ReceiveRequest},
};

use super::{Mailbox, XrcConnection, anonymous, local};
use crate::remote_srqn;

// covers 4.03 4.04
pub(super) fn delivery(rig: &Rig) -> Outcome {
    let connection = XrcConnection::new(rig)?;
    let (first, second) = (
        Mailbox::new(rig, &connection.domain, &rig.far.pd)?,
        Mailbox::new(rig, &connection.domain, &rig.far.pd)?,
    );
    ensure!(
        first.srq.number() != second.srq.number() && first.srq.number() >> 24 == 0,
        "two queues have the numbers {:#x} and {:#x}",
        first.srq.number(),
        second.srq.number()
    );
    first.receives(2)?;
    second.receives(2)?;
    for (mailbox, other, bytes) in [(&second, &first, b"to two"), (&first, &second, b"to one")] {
        let message = wr::Send::new(bytes).with(remote_srqn(mailbox.srq.number()));
        rig.succeeds(&connection.initiator, message)?;
        let done = rig.take(&mailbox.cq, 1)?.remove(0);
        ensure_eq!(
            (done.status, done.opcode, done.byte_len),
            (WcStatus::Success, WcOpcode::Recv, 6),
            "the receive"
        );
        ensure_eq!(
            (done.qp_num, done.src_qp),
            (connection.target.qp_num(), connection.initiator.qp_num()),
            "the target and the initiator that the completion tells"
        );
        ensure_eq!(mailbox.bytes(&done)?, bytes.to_vec(), "the bytes");
        rig.nothing_on(&other.cq)?;
    }
    Ok(())
}

// covers 4.06
pub(super) fn protection(rig: &Rig) -> Outcome {
    let open = MrOptions::new(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ);
    let other_pd = rig.far.other_pd()?;
    for foreign in [false, true] {
        let connection = XrcConnection::new(rig)?;
        let (mine, others) = (
            Mailbox::new(rig, &connection.domain, &rig.far.pd)?,
            Mailbox::new(rig, &connection.domain, &other_pd)?,
        );
        let region = rig.far.region_with(&other_pd, 64, open)?;
        let write = |mailbox: &Mailbox| -> Result<_, verbs_api::probe::Evidence> {
            let source = rig.scratch.sge(0, 8)?;
            Ok(wr::Write::new(source, region.remote(0)).with(remote_srqn(mailbox.srq.number())))
        };
        connection.ends(rig, write(&others)?, WcStatus::Success)?;
        if foreign {
            connection.ends(rig, write(&mine)?, WcStatus::RemAccessErr)?;
        } else {
            let sink = rig.scratch.sge(8, 8)?;
            let read = wr::Read::new(sink, region.remote(0)).with(remote_srqn(mine.srq.number()));
            connection.ends(rig, read, WcStatus::RemAccessErr)?;
        }
        rig.settle();
        ensure_eq!(
            connection.target.query()?.state,
            QpState::Err,
            "the state of the target behind a refusal"
        );
    }
    Ok(())
}

// covers 4.06 2.07
pub(super) fn receive_memory(rig: &Rig) -> Outcome {
    let connection = XrcConnection::new(rig)?;
    let other_pd = rig.far.other_pd()?;
    let mailbox = Mailbox::new(rig, &connection.domain, &rig.far.pd)?;
    let elsewhere = rig.far.region_with(&other_pd, 64, local())?;
    let receive = ReceiveRequest::new(5, elsewhere.sge(0, 64)?);
    mailbox.srq.post_receive(receive)?;
    let message = wr::Send::new(&[1]).with(remote_srqn(mailbox.srq.number()));
    connection.ends(rig, message, WcStatus::RemOpErr)?;
    let done = rig.take(&mailbox.cq, 1)?.remove(0);
    ensure_eq!(
        (done.wr_id, done.status),
        (5, WcStatus::LocProtErr),
        "a receive into memory of another domain"
    );
    Ok(())
}

// covers 4.09
pub(super) fn foreign_queue(rig: &Rig) -> Outcome {
    let other = anonymous(rig, &rig.far)?;
    let foreign = Mailbox::new(rig, &other, &rig.far.pd)?;
    foreign.receives(1)?;
    let gone = Mailbox::new(rig, &other, &rig.far.pd)?.srq.number();
    for number in [foreign.srq.number(), gone, 0] {
        let connection = XrcConnection::new(rig)?;
        let message = wr::Send::new(&[1]).with(remote_srqn(number));
        connection.ends(rig, message, WcStatus::RemInvReqErr)?;
        rig.settle();
        ensure_eq!(
            connection.target.query()?.state,
            QpState::Err,
            "the state of a target that was asked for a queue it does not reach"
        );
        rig.nothing_on(&foreign.cq)?;
    }
    // Its receive is for another target.
    let connection = XrcConnection::made(rig, other)?;
    connection.connect(rig)?;
    let message = wr::Send::new(&[1]).with(remote_srqn(foreign.srq.number()));
    connection.ends(rig, message, WcStatus::Success)?;
    rig.take(&foreign.cq, 1)?;
    Ok(())
}

// A request behind one to a queue without receives may be for a queue that has some: it must not overtake.
// covers 4.10
pub(super) fn starved(rig: &Rig) -> Outcome {
    let domain = anonymous(rig, &rig.far)?;
    let (empty, full) = (
        Mailbox::new(rig, &domain, &rig.far.pd)?,
        Mailbox::new(rig, &domain, &rig.far.pd)?,
    );
    full.receives(2)?;
    let to = |mailbox: &Mailbox| remote_srqn(mailbox.srq.number());
    // Without RNR retries, so that waiting does not matter here.
    let connection = XrcConnection::made(rig, domain)?;
    connection.connect_with(rig, PathOptions::new().rnr_retry(0))?;
    connection
        .initiator
        .post_one(wr::Send::new(b"refused").with(to(&empty)).signaled(1))?;
    // The queue pair may be in ERR, and still accepts requests.
    connection
        .initiator
        .post_one(wr::Send::new(b"behind").with(to(&full)).signaled(2))?;
    // Requests behind a failed one are another rule.
    let done = rig.take(&connection.initiator.cq, 2)?;
    ensure_eq!(
        (done[0].wr_id, done[0].status),
        (1, WcStatus::RnrRetryExcErr),
        "the request for a queue without receives"
    );
    rig.nothing_on(&full.cq)?;
    rig.nothing_on(&empty.cq)?;
    // Other initiators of the domain are not blocked.
    let beside = XrcConnection::made(rig, connection.domain)?;
    beside.connect(rig)?;
    beside.ends(
        rig,
        wr::Send::new(b"beside").with(to(&full)),
        WcStatus::Success,
    )?;
    rig.take(&full.cq, 1)?;
    Ok(())
}

// covers 4.11
pub(super) fn order(rig: &Rig) -> Outcome {
    let connection = XrcConnection::new(rig)?;
    let mut mailboxes = Vec::new();
    for _ in 0..4 {
        let mailbox = Mailbox::new(rig, &connection.domain, &rig.far.pd)?;
        mailbox.receives(16)?;
        mailboxes.push(mailbox);
    }
    // Interleaved, each queue at its own pace.
    let turns = (0..64_u32).map(|turn| (turn * 7 % 16 / 4, turn));
    let mut sent = vec![Vec::new(); mailboxes.len()];
    for (mailbox, turn) in turns {
        let mailbox = mailbox as usize;
        if sent[mailbox].len() == 16 {
            continue;
        }
        sent[mailbox].push(turn);
        let number = mailboxes[mailbox].srq.number();
        let bytes = turn.to_ne_bytes();
        connection.initiator.post_one(
            wr::Send::new(&bytes)
                .with(remote_srqn(number))
                .signaled(u64::from(turn)),
        )?;
    }
    let total = sent.iter().map(Vec::len).sum();
    let done = rig.take(&connection.initiator.cq, total)?;
    ensure!(
        done.iter().all(|done| done.status.is_success()),
        "not all were sent"
    );
    for (mailbox, sent) in mailboxes.iter().zip(&sent) {
        let done = rig.take(&mailbox.cq, sent.len())?;
        for (done, turn) in done.iter().zip(sent) {
            ensure_eq!(
                mailbox.bytes(done)?,
                turn.to_ne_bytes().to_vec(),
                "the next message of a queue"
            );
        }
    }
    Ok(())
}

// covers 4.12
pub(super) fn operations(rig: &Rig) -> Outcome {
    let connection = XrcConnection::new(rig)?;
    let mailbox = Mailbox::new(rig, &connection.domain, &rig.far.pd)?;
    mailbox.receives(1)?;
    let number = remote_srqn(mailbox.srq.number());
    let all =
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    // Longer than a packet.
    let region = rig.far.region(8192, all)?;
    rig.scratch.fill(3)?;
    let (source, sink) = (rig.scratch.sge(0, 8000)?, rig.scratch.sge(16384, 8000)?);
    connection
        .initiator
        .post_one(wr::Write::new(source, region.remote(0)).with(number))?;
    connection.initiator.post_one(
        wr::Read::new(sink, region.remote(0))
            .with(number)
            .signaled(1),
    )?;
    let word = rig.scratch.sge(32768, 8)?;
    let add = wr::FetchAdd::new(word, region.remote(8184), 5);
    connection
        .initiator
        .post_one(add.with(number).fence().signaled(2))?;
    let swap = wr::CompareSwap::new(word, region.remote(8184), 5, 9);
    connection
        .initiator
        .post_one(swap.with(number).fence().signaled(3))?;
    let last = wr::WriteWithImmediate::new(b"tail", region.remote(8100), *b"last");
    connection
        .initiator
        .post_one(last.with(number).signaled(4))?;
    let done = rig.take(&connection.initiator.cq, 4)?;
    let ended: Vec<_> = done.iter().map(|done| (done.wr_id, done.status)).collect();
    ensure_eq!(
        ended,
        [1, 2, 3, 4].map(|id| (id, WcStatus::Success)),
        "the requests"
    );
    ensure_eq!(
        rig.scratch.bytes(16384, 8000)?,
        rig.scratch.bytes(0, 8000)?,
        "what was written and read"
    );
    ensure_eq!(region.word(8184)?, 9, "a word after two atomics");
    ensure_eq!(rig.scratch.word(32768)?, 5, "what the second one found");
    let done = rig.take(&mailbox.cq, 1)?.remove(0);
    ensure_eq!(
        (done.opcode, done.byte_len),
        (WcOpcode::RecvRdmaWithImm, 4),
        "the receive of a write with immediate data"
    );
    Ok(())
}

// covers 4.12
pub(super) fn keys(rig: &Rig) -> Outcome {
    let connection = XrcConnection::new(rig)?;
    let mailbox = Mailbox::new(rig, &connection.domain, &rig.far.pd)?;
    mailbox.receives(1)?;
    let number = remote_srqn(mailbox.srq.number());
    // The initiator's own key: registered, sent from, invalidated.
    let own = rig.near.fast(4096)?;
    own.fill(9)?;
    rig.succeeds(&connection.initiator, own.register(Access::LOCAL_WRITE))?;
    // The peer's key, registered by a queue pair of the peer.
    let pair = rig.rc()?;
    let theirs = rig.far.fast(4096)?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    rig.succeeds(&pair.far, theirs.register(rights))?;
    let write = wr::Write::new(own.sge(0, 64), theirs.remote(0)).with(number);
    connection.ends(rig, write, WcStatus::Success)?;
    ensure_eq!(theirs.bytes(0, 64)?, own.bytes(0, 64)?, "what was written");
    rig.succeeds(&connection.initiator, own.invalidate().fence())?;
    let message = wr::SendWithInvalidate::new(b"done", theirs.rkey()).with(number);
    connection.ends(rig, message, WcStatus::Success)?;
    let done = rig.take(&mailbox.cq, 1)?.remove(0);
    ensure_eq!(
        done.invalidated_rkey(),
        Some(theirs.rkey()),
        "the key that was invalidated"
    );
    Ok(())
}
