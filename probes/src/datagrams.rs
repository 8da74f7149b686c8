//! Probes of unreliable datagrams and multicast groups.

use verbs_api::completion::WcFlags;
use verbs_api::ids::{Gid, Qpn};
use verbs_api::probe::{Evidence, Outcome, Region, Rig, Side, ensure, ensure_eq};
use verbs_api::qp::QpType;
use verbs_api::wr::{Send, SendWithImmediate, UdDestination};
use verbs_api::{Access, DestroyError, PathOptions, WcStatus};

use crate::filled;

const QKEY: u32 = 0x1111;

/// The bytes that precede the data of each datagram in its receive: the room for a GRH.
const ROUTING_HEADER: usize = 40;

/// A UD QP of the near or the far end, in the state RTS.
fn ready(rig: &Rig, near: bool) -> Result<Side, Evidence> {
    let end = if near { &rig.near } else { &rig.far };
    let side = end.side(QpType::Ud)?;
    rig.finish(side.activate(PathOptions::new().qkey(QKEY)))?;
    Ok(side)
}

/// The destination by which the near end sends datagrams to the QP of `far`, with this Q_Key.
fn towards(rig: &Rig, far: &Side, remote_qkey: u32) -> Result<UdDestination, Evidence> {
    let at = far.endpoint()?;
    let path = rig.near.context.path_to(1, at.address, at.gid)?;
    Ok(UdDestination {
        ah: rig.finish(rig.near.pd.create_ah(path))?,
        remote_qpn: at.qp_num,
        remote_qkey,
    })
}

/// A UD QP of the far end in the state RTS, with one posted receive of 256 bytes.
fn listener(rig: &Rig, desk: &Region, offset: usize) -> Result<Side, Evidence> {
    let side = ready(rig, false)?;
    side.receive(desk, offset, 256)?;
    Ok(side)
}

// covers 3.33
pub(crate) fn arrives(rig: &Rig) -> Outcome {
    let desk = rig.far.region(4096, Access::LOCAL_WRITE)?;
    filled(rig)?;
    let (near, far) = (ready(rig, true)?, listener(rig, &desk, 0)?);
    let to = towards(rig, &far, QKEY)?;
    rig.succeeds(
        &near,
        SendWithImmediate::new(rig.scratch.sge(0, 100)?, *b"side").to(&to),
    )?;
    let done = rig.take(&far.cq, 1)?.remove(0);
    ensure_eq!(
        (done.status, done.byte_len as usize, done.src_qp),
        (WcStatus::Success, ROUTING_HEADER + 100, near.qp_num()),
        "the receive"
    );
    ensure_eq!(
        (done.wc_flags.contains(WcFlags::GRH), done.immediate()),
        (true, Some(*b"side")),
        "what stands beside the message"
    );
    ensure_eq!(
        desk.bytes(ROUTING_HEADER, 100)?,
        rig.scratch.bytes(0, 100)?,
        "the message, behind 40 bytes of header"
    );
    Ok(())
}

// covers 3.55
pub(crate) fn wrong_qkey(rig: &Rig) -> Outcome {
    let desk = rig.far.region(4096, Access::LOCAL_WRITE)?;
    let (near, far) = (ready(rig, true)?, listener(rig, &desk, 0)?);
    let to = towards(rig, &far, QKEY + 1)?;
    rig.succeeds(&near, Send::new(rig.scratch.sge(0, 8)?).to(&to))?;
    rig.nothing_on(&far.cq)?;
    let to = towards(rig, &far, QKEY)?;
    rig.succeeds(&near, Send::new(rig.scratch.sge(0, 8)?).to(&to))?;
    rig.take(&far.cq, 1)?;
    Ok(())
}

// covers 3.55
pub(crate) fn no_room(rig: &Rig) -> Outcome {
    let desk = rig.far.region(4096, Access::LOCAL_WRITE)?;
    let (near, far) = (ready(rig, true)?, ready(rig, false)?);
    let to = towards(rig, &far, QKEY)?;
    // A datagram that finds no receive, or one that is too short, is lost without an error on either side.
    rig.succeeds(&near, Send::new(rig.scratch.sge(0, 8)?).to(&to))?;
    rig.nothing_on(&far.cq)?;
    far.receive(&desk, 0, ROUTING_HEADER as u32 + 100)?;
    rig.succeeds(&near, Send::new(rig.scratch.sge(0, 101)?).to(&to))?;
    rig.nothing_on(&far.cq)?;
    rig.succeeds(&near, Send::new(rig.scratch.sge(0, 100)?).to(&to))?;
    let done = rig.take(&far.cq, 1)?.remove(0);
    ensure_eq!(done.status, WcStatus::Success, "a datagram that fits");
    Ok(())
}

fn towards_group(rig: &Rig, group: Gid) -> Result<UdDestination, Evidence> {
    let at = rig.far.context.attributes().ports[0].address;
    let path = rig.near.context.path_to(1, at, group)?;
    Ok(UdDestination {
        ah: rig.finish(rig.near.pd.create_ah(path))?,
        remote_qpn: Qpn::MULTICAST,
        remote_qkey: QKEY,
    })
}

// covers 4.45
pub(crate) fn members(rig: &Rig) -> Outcome {
    let desk = rig.far.region(4096, Access::LOCAL_WRITE)?;
    filled(rig)?;
    let near = ready(rig, true)?;
    let (first, second) = (listener(rig, &desk, 0)?, listener(rig, &desk, 512)?);
    let (unready, stranger) = (ready(rig, false)?, listener(rig, &desk, 1024)?);
    for member in [&unready, &first, &second] {
        rig.finish(member.attach_multicast(rig.group(1)))?;
    }
    rig.finish(stranger.attach_multicast(rig.group(2)))?;
    let to = towards_group(rig, rig.group(1))?;
    rig.succeeds(&near, Send::new(rig.scratch.sge(0, 64)?).to(&to))?;
    for (member, offset) in [(&first, 0), (&second, 512)] {
        rig.take(&member.cq, 1)?;
        ensure_eq!(
            desk.bytes(offset + ROUTING_HEADER, 64)?,
            rig.scratch.bytes(0, 64)?,
            "a member's copy"
        );
    }
    rig.nothing_on(&unready.cq)?;
    rig.nothing_on(&stranger.cq)
}

// covers 4.44
pub(crate) fn attachments(rig: &Rig) -> Outcome {
    let side = ready(rig, false)?;
    let unicast = Gid([1; 16]);
    ensure!(
        rig.outcome(side.attach_multicast(unicast))?.is_err(),
        "a queue pair was attached to {unicast}, which is no group"
    );
    ensure!(
        rig.outcome(side.detach_multicast(rig.group(3)))?.is_err(),
        "a queue pair was detached from a group that it is not in"
    );
    rig.finish(side.attach_multicast(rig.group(3)))?;
    ensure!(
        rig.outcome(side.attach_multicast(rig.group(3)))?.is_err(),
        "a queue pair was attached twice to a group"
    );
    let Side { qp, cq } = side;
    match rig.outcome(qp.clone().destroy())? {
        Err(DestroyError::Busy { held_by, .. }) => {
            ensure_eq!(held_by.len(), 1, "what holds a queue pair in a group");
        }
        Err(error) => return Err(error.into()),
        Ok(()) => ensure!(
            false,
            "a queue pair was destroyed that is attached to a group"
        ),
    }
    rig.finish(qp.detach_multicast(rig.group(3)))?;
    ensure!(
        rig.outcome(qp.detach_multicast(rig.group(3)))?.is_err(),
        "a queue pair was detached twice from a group"
    );
    rig.finish_destroy(qp.destroy())?;
    drop(cq);
    Ok(())
}

// covers 4.44
pub(crate) fn datagrams_only(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    ensure!(
        rig.outcome(pair.far.attach_multicast(rig.group(4)))?
            .is_err(),
        "a connected queue pair was attached to a group"
    );
    let side = ready(rig, false)?;
    rig.finish(side.attach_multicast(rig.group(4)))?;
    rig.finish(side.detach_multicast(rig.group(4)))
}
