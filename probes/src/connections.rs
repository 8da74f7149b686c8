//! Probes of the connected services, RC and UC, and of messages over them.

use verbs_api::completion::WcOpcode;
use verbs_api::event::EventType;
use verbs_api::probe::{Evidence, Outcome, Pair, Region, Rig, ensure, ensure_eq};
use verbs_api::qp::{QpState, QpType};
use verbs_api::wr::{
    Batch, Data, Read, ReceiveRequest, Send, SendWithImmediate, Write, WriteWithImmediate,
};
use verbs_api::{Access, PathOptions, RKey, RemoteAddress, WcStatus};

use crate::{filled, fresh, statuses};

/// The access that most probes grant to peers.
const OPEN: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE);

/// A memory region of the far end, for its receives and for access by the peer.
fn desk(rig: &Rig, length: usize) -> Result<Region, Evidence> {
    rig.far.region(length, OPEN)
}

// covers 3.27 3.72
pub(crate) fn rc_order(rig: &Rig) -> Outcome {
    let (pair, desk) = (rig.rc()?, desk(rig, 4096)?);
    filled(rig)?;
    for id in 0..16 {
        pair.far.receive(&desk, id * 64, 64)?;
    }
    let mut batch = Batch::new();
    for id in 0..16 {
        batch.push(Send::new(rig.scratch.sge(id * 16, 16)?).signaled(id as u64));
    }
    pair.near.post(&mut batch)?;
    let sent = rig.take(&pair.near.cq, 16)?;
    let received = rig.take(&pair.far.cq, 16)?;
    ensure_eq!(
        statuses(&sent),
        (0..16)
            .map(|id| (id, WcStatus::Success))
            .collect::<Vec<_>>(),
        "how sixteen sends ended"
    );
    for (id, done) in received.iter().enumerate() {
        ensure_eq!(
            (done.wr_id, done.status, done.byte_len),
            (id as u64 * 64, WcStatus::Success, 16),
            "receive {id}"
        );
        ensure_eq!(
            desk.bytes(id * 64, 16)?,
            rig.scratch.bytes(id * 16, 16)?,
            "what message {id} carried"
        );
    }
    rig.nothing_on(&pair.far.cq)
}

// covers 2.09 3.29
pub(crate) fn rc_flush(rig: &Rig) -> Outcome {
    let (pair, desk) = (rig.rc()?, desk(rig, 64)?);
    pair.near.receive(&rig.scratch, 0, 64)?;
    let no_key = rig.near.dead_sge()?;
    let mut batch = Batch::new();
    batch.push(Write::new(no_key, desk.remote(0)).wr_id(1));
    batch.push(Write::new(rig.scratch.sge(0, 8)?, desk.remote(0)).wr_id(2));
    pair.near.post(&mut batch)?;
    let mut done = statuses(&rig.take(&pair.near.cq, 3)?);
    done.sort_by_key(|(id, _)| *id);
    let flushed = WcStatus::WrFlushErr;
    ensure_eq!(
        done,
        [(0, flushed), (1, WcStatus::LocProtErr), (2, flushed)],
        "how a write with no key, what follows it and a receive ended"
    );
    ensure_eq!(pair.near.state()?, QpState::Err, "the queue pair's state");
    Ok(())
}

// covers 3.61
pub(crate) fn rc_peer_gone(rig: &Rig) -> Outcome {
    let options = PathOptions::new().timeout(10).retry_cnt(7);
    let (near, far) = (rig.near.side(QpType::Rc)?, rig.far.side(QpType::Rc)?);
    let Pair { near, far } = rig.connected_with(near, far, options)?;
    rig.finish_destroy(far.qp.destroy())?;
    if !rig.acknowledges() {
        return rig.until("the end of the connection", || {
            matches!(near.state(), Ok(QpState::Err))
        });
    }
    let status = rig.run(&near, Send::new(rig.scratch.sge(0, 8)?))?;
    ensure_eq!(
        status,
        WcStatus::RetryExcErr,
        "a send with seven retries to a queue pair that is gone"
    );
    Ok(())
}

// covers 3.34
pub(crate) fn rc_large(rig: &Rig) -> Outcome {
    whole_message(rig, rig.rc()?)
}

/// Sends and writes a message of more than three packets, one byte longer than a multiple of any MTU, and checks that it
/// arrives whole.
fn whole_message(rig: &Rig, pair: Pair) -> Outcome {
    let length = 3 * 4096 + 1;
    let desk = desk(rig, 1 << 15)?;
    filled(rig)?;
    pair.far.receive(&desk, 0, 1 << 14)?;
    rig.succeeds(&pair.near, Send::new(rig.scratch.sge(5, length)?))?;
    let done = rig.take(&pair.far.cq, 1)?.remove(0);
    ensure_eq!(
        (done.status, done.byte_len),
        (WcStatus::Success, length),
        "the receive"
    );
    ensure_eq!(
        desk.bytes(0, length as usize)?,
        rig.scratch.bytes(5, length as usize)?,
        "what a message of {length} bytes carried"
    );
    let remote = desk.remote(1 << 14);
    rig.succeeds(&pair.near, Write::new(rig.scratch.sge(7, length)?, remote))?;
    rig.until("the end of a write", || {
        desk.bytes(1 << 14, length as usize).ok() == rig.scratch.bytes(7, length as usize).ok()
    })
}

// covers 3.20
pub(crate) fn uc(rig: &Rig) -> Outcome {
    whole_message(rig, rig.uc()?)
}

// covers 3.20
pub(crate) fn uc_is_no_rc(rig: &Rig) -> Outcome {
    let (pair, desk) = (rig.uc()?, desk(rig, 64)?);
    let read = Read::new(rig.scratch.sge(0, 8)?, desk.remote(0));
    ensure!(
        pair.near.post_one(read).is_err(),
        "a queue pair of unreliable connections takes a read"
    );
    // A message that finds no receive is lost without an error on either side.
    rig.succeeds(&pair.near, Send::new(rig.scratch.sge(0, 8)?))?;
    rig.nothing_on(&pair.far.cq)?;
    ensure_eq!(
        pair.far.state()?,
        QpState::Rts,
        "the far queue pair's state"
    );
    Ok(())
}

// covers 3.34
pub(crate) fn send_scattered(rig: &Rig) -> Outcome {
    let limits = rig.attributes().limits;
    let entries = limits.max_send_sge.min(limits.max_recv_sge).min(4) as usize;
    let (pair, desk) = (rig.rc()?, desk(rig, 4096)?);
    filled(rig)?;
    let mut from = Vec::new();
    let mut into = Vec::new();
    for entry in 0..entries {
        from.push(rig.scratch.sge(entry * 100, 24)?);
        into.push(desk.sge(entry * 200, 32)?);
    }
    let receive = ReceiveRequest::new(7, Data::Sges(&into));
    pair.far.post_receive(receive)?;
    rig.succeeds(&pair.near, Send::new(Data::Sges(&from)))?;
    let done = rig.take(&pair.far.cq, 1)?.remove(0);
    ensure_eq!(
        (done.wr_id, done.opcode, done.byte_len as usize),
        (7, WcOpcode::Recv, entries * 24),
        "the receive"
    );
    let mut sent = Vec::new();
    let mut received = Vec::new();
    for entry in 0..entries {
        sent.extend(rig.scratch.bytes(entry * 100, 24)?);
        received.extend(desk.bytes(entry * 200, 32)?);
    }
    received.truncate(sent.len());
    ensure_eq!(received, sent, "what was gathered and scattered");
    Ok(())
}

// covers 3.50
pub(crate) fn send_too_long(rig: &Rig) -> Outcome {
    let (pair, desk) = (rig.rc()?, desk(rig, 128)?);
    pair.far.receive(&desk, 0, 16)?;
    filled(rig)?;
    let found = rig.verdict(&pair, Send::new(rig.scratch.sge(0, 17)?))?;
    ensure_eq!(
        found,
        WcStatus::RemInvReqErr,
        "17 bytes into a receive of 16"
    );
    let done = rig.take(&pair.far.cq, 1)?.remove(0);
    ensure_eq!(done.status, WcStatus::LocLenErr, "that receive");
    ensure_eq!(desk.bytes(16, 112)?, vec![0; 112], "what lies behind it");
    Ok(())
}

// covers 3.35
pub(crate) fn send_immediate(rig: &Rig) -> Outcome {
    let (pair, desk) = (rig.rc()?, desk(rig, 64)?);
    filled(rig)?;
    pair.far.receive(&desk, 0, 64)?;
    rig.succeeds(
        &pair.near,
        SendWithImmediate::new(rig.scratch.sge(0, 8)?, *b"side"),
    )?;
    let done = rig.take(&pair.far.cq, 1)?.remove(0);
    ensure_eq!(
        (done.opcode, done.immediate(), done.byte_len),
        (WcOpcode::Recv, Some(*b"side"), 8),
        "the receive"
    );
    ensure_eq!(desk.bytes(0, 8)?, rig.scratch.bytes(0, 8)?, "the message");
    Ok(())
}

// covers 3.20
pub(crate) fn write_lands(rig: &Rig) -> Outcome {
    let (pair, desk) = (rig.rc()?, desk(rig, 4096)?);
    filled(rig)?;
    rig.succeeds(
        &pair.near,
        Write::new(rig.scratch.sge(0, 100)?, desk.remote(1000)),
    )?;
    rig.until("a write", || {
        desk.bytes(1000, 100).ok() == rig.scratch.bytes(0, 100).ok()
    })?;
    ensure_eq!(
        desk.bytes(0, 1000)?,
        vec![0; 1000],
        "what lies before a write"
    );
    ensure_eq!(desk.bytes(1100, 900)?, vec![0; 900], "what lies behind it");
    rig.nothing_on(&pair.far.cq)
}

// covers 2.08
pub(crate) fn write_nothing(rig: &Rig) -> Outcome {
    let nowhere = RemoteAddress::new(0xdead, RKey::new(0xdead_beef));
    let pair = rig.rc()?;
    ensure!(
        rig.is_granted(&pair, Write::new((), nowhere))?,
        "a write of no bytes was refused for its key"
    );
    Ok(())
}

// covers 3.45
pub(crate) fn write_queue_pair(rig: &Rig) -> Outcome {
    let desk = desk(rig, 64)?;
    let read_only = fresh(rig, Access::REMOTE_READ)?;
    let found = rig.verdict(
        &read_only,
        Write::new(rig.scratch.sge(0, 8)?, desk.remote(0)),
    )?;
    ensure!(
        found != WcStatus::Success,
        "a queue pair that lets peers read only was written through"
    );
    ensure_eq!(desk.bytes(0, 8)?, [0; 8], "the memory");
    Ok(())
}

// covers 3.35
pub(crate) fn write_immediate(rig: &Rig) -> Outcome {
    let (pair, desk) = (rig.rc()?, desk(rig, 128)?);
    filled(rig)?;
    pair.far.receive(&desk, 64, 64)?;
    let write = WriteWithImmediate::new(rig.scratch.sge(0, 8)?, desk.remote(0), *b"tell");
    rig.succeeds(&pair.near, write)?;
    let done = rig.take(&pair.far.cq, 1)?.remove(0);
    ensure_eq!(
        (done.opcode, done.immediate()),
        (WcOpcode::RecvRdmaWithImm, Some(*b"tell")),
        "the receive"
    );
    ensure_eq!(
        desk.bytes(0, 8)?,
        rig.scratch.bytes(0, 8)?,
        "the memory, once told"
    );
    Ok(())
}

// covers 3.20
pub(crate) fn read(rig: &Rig) -> Outcome {
    let (pair, desk) = (rig.rc()?, desk(rig, 1 << 14)?);
    desk.fill(0x77)?;
    let length = 2 * 4096 + 3;
    rig.succeeds(
        &pair.near,
        Read::new(rig.scratch.sge(64, length)?, desk.remote(11)),
    )?;
    ensure_eq!(
        rig.scratch.bytes(64, length as usize)?,
        desk.bytes(11, length as usize)?,
        "what was read"
    );
    ensure_eq!(
        rig.scratch.bytes(64 + length as usize, 64)?,
        vec![0; 64],
        "what lies behind the sink"
    );
    Ok(())
}

// covers 3.45
pub(crate) fn read_queue_pair(rig: &Rig) -> Outcome {
    let desk = desk(rig, 64)?;
    desk.fill(9)?;
    let write_only = fresh(rig, Access::REMOTE_WRITE)?;
    let found = rig.verdict(
        &write_only,
        Read::new(rig.scratch.sge(0, 8)?, desk.remote(0)),
    )?;
    ensure!(
        found != WcStatus::Success,
        "a queue pair that lets peers write only was read through"
    );
    ensure_eq!(rig.scratch.bytes(0, 8)?, [0; 8], "the sink");
    Ok(())
}

// covers 3.72
pub(crate) fn read_sees_writes(rig: &Rig) -> Outcome {
    let (pair, desk) = (rig.rc()?, desk(rig, 64)?);
    filled(rig)?;
    let mut batch = Batch::new();
    batch.push(Write::new(rig.scratch.sge(0, 8)?, desk.remote(0)));
    batch.push(Read::new(rig.scratch.sge(1024, 8)?, desk.remote(0)).signaled(2));
    pair.near.post(&mut batch)?;
    let done = rig.take(&pair.near.cq, 1)?.remove(0);
    ensure_eq!(
        (done.wr_id, done.status),
        (2, WcStatus::Success),
        "the read"
    );
    ensure_eq!(
        rig.scratch.bytes(1024, 8)?,
        rig.scratch.bytes(0, 8)?,
        "a read behind a write of the same bytes"
    );
    Ok(())
}

// covers 2.60
pub(crate) fn local_sink(rig: &Rig) -> Outcome {
    let (pair, desk) = (rig.rc()?, desk(rig, 64)?);
    desk.fill(3)?;
    let sink = rig.near.region(64, Access::LOCAL_WRITE)?;
    rig.succeeds(&pair.near, Read::new(sink.sge(0, 64)?, desk.remote(0)))?;
    ensure_eq!(sink.bytes(0, 64)?, desk.bytes(0, 64)?, "what was read");
    Ok(())
}

// A device without the feature has to fail the read before it sends a request to the peer.
// covers 2.60
pub(crate) fn local_sink_refused(rig: &Rig) -> Outcome {
    let (pair, desk) = (rig.rc()?, desk(rig, 64)?);
    desk.fill(3)?;
    let sink = rig.near.region(64, Access::LOCAL_WRITE)?;
    let read = Read::new(sink.sge(0, 64)?, desk.remote(0));
    rig.fails(&pair.near, read, &[WcStatus::LocProtErr])?;
    ensure_eq!(sink.bytes(0, 64)?, [0; 64], "the sink");
    let refused = rig.far.events().contains(&EventType::QpAccessErr);
    ensure!(!refused, "the peer was asked for bytes that have no place");
    Ok(())
}

// covers 2.12
pub(crate) fn inline(rig: &Rig) -> Outcome {
    let (pair, desk) = (rig.rc()?, desk(rig, 256)?);
    let most = pair.near.cap().max_inline_data as usize;
    if most == 0 {
        return Err(Evidence::not_here(
            "the queue pair has no room for inline bytes",
        ));
    }
    let mut bytes = vec![0x5a; most.min(64)];
    let mut batch = Batch::new();
    batch.push(Write::new(Data::Inline(&bytes), desk.remote(0)).signaled(1));
    pair.near.post(&mut batch)?;
    drop(batch);
    bytes.fill(0xff);
    let done = rig.take(&pair.near.cq, 1)?.remove(0);
    ensure_eq!(done.status, WcStatus::Success, "an inline write");
    let expected = vec![0x5a; bytes.len()];
    rig.until(
        "a write of the bytes as they were when it was posted",
        || {
            desk.bytes(0, expected.len())
                .is_ok_and(|found| found == expected)
        },
    )
}

// covers 2.12
pub(crate) fn inline_too_long(rig: &Rig) -> Outcome {
    let (pair, desk) = (rig.rc()?, desk(rig, 64)?);
    let bytes = vec![1; pair.near.cap().max_inline_data as usize + 1];
    let refused = pair
        .near
        .post_one(Write::new(Data::Inline(&bytes), desk.remote(0)));
    ensure!(refused.is_err(), "{} inline bytes were taken", bytes.len());
    rig.nothing_on(&pair.near.cq)?;
    ensure!(
        rig.can_write(&pair, desk.remote(0))?,
        "a refused request has harmed the queue pair"
    );
    Ok(())
}

// covers 3.51
pub(crate) fn rnr(rig: &Rig) -> Outcome {
    let (pair, desk) = (rig.rc()?, desk(rig, 64)?);
    filled(rig)?;
    pair.near
        .post_one(Send::new(rig.scratch.sge(0, 8)?).signaled(1))?;
    rig.settle();
    ensure_eq!(
        pair.near.state()?,
        QpState::Rts,
        "the sender's state while its message waits"
    );
    pair.far.receive(&desk, 0, 64)?;
    let sent = rig.take(&pair.near.cq, 1)?.remove(0);
    ensure_eq!(sent.status, WcStatus::Success, "a send that had to wait");
    let done = rig.take(&pair.far.cq, 1)?.remove(0);
    ensure_eq!(done.status, WcStatus::Success, "the receive it waited for");
    ensure_eq!(desk.bytes(0, 8)?, rig.scratch.bytes(0, 8)?, "the message");
    Ok(())
}

// On a device without the feature, a message that finds no receive has to end the connection.
// covers 3.51
pub(crate) fn no_rnr(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    filled(rig)?;
    pair.near
        .post_one(Send::new(rig.scratch.sge(0, 8)?).signaled(1))?;
    rig.until("the end of the connection", || {
        matches!(
            (pair.near.state(), pair.far.state()),
            (Ok(QpState::Err), Ok(QpState::Err))
        )
    })?;
    rig.take(&pair.near.cq, 1)?;
    rig.nothing_on(&pair.far.cq)
}
