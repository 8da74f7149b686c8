//! The receiving half: requests become operations on the engine, on the thread of the requester.

use polyverbs_engine::cq::Done;
use polyverbs_engine::fault::Fault;
use polyverbs_engine::key_table::{Region, RemoteUse};
use polyverbs_engine::operation::{self, Aligned, Octets, TargetMemory};
use polyverbs_engine::payload::{Payload, Spans, scatter_at};
use polyverbs_engine::request::{Op, Request, SendExtra};
use verbs_api::qp::{QpAttributes, QpState};
use verbs_api::{
    Access, RemoteAddress, WcStatus,
    completion::{WcFlags, WcOpcode},
    event::EventType,
    ids::LinkAddress,
    wr::SendFlags,
};

use crate::{Cx, Qp, Responder};

/// The state of a responder.
#[derive(Debug, Default)]
pub struct Receiving {
    peer: Option<(LinkAddress, u32)>,
    access: Access,
    min_rnr_timer: u8,
    max_dest_rd_atomic: u8,
}

impl Receiving {
    pub(crate) fn set(&mut self, given: &QpAttributes, all: &QpAttributes) {
        let set = |to: &mut u8, from: Option<u8>| *to = from.unwrap_or(*to);
        set(&mut self.min_rnr_timer, given.min_rnr_timer);
        set(&mut self.max_dest_rd_atomic, given.max_dest_rd_atomic);
        self.access = given.qp_access_flags.unwrap_or(self.access);
        if let (Some(path), Some(number)) = (all.ah_attr, all.dest_qp_num) {
            self.peer = Some((path.address, number.value()));
        }
    }

    #[cfg(feature = "all")]
    pub(crate) fn peer(&self) -> Option<(LinkAddress, u32)> {
        self.peer
    }

    fn permit(&self, needed: Access) -> Result<(), Refusal> {
        match self.access.contains(needed) {
            true => Ok(()),
            false => Err(Refusal::INVALID),
        }
    }
}

/// A request and its payload.
pub(crate) struct Asked<'a> {
    pub(crate) request: &'a Request<'a>,
    pub(crate) payload: Payload<'a>,
}

/// The answer to a request.
pub(crate) enum Answer<'p> {
    Taken,
    Octets(Spans<'p>),
    Original(u64),
}

/// The reason why there is no answer.
#[derive(Clone, Copy)]
pub(crate) enum Refusal {
    /// The peer does not exist, or is in no state to take the request.
    Absent,
    /// The peer has no receive for the request; the value is the code of its RNR timer.
    NoReceive(u8),
    /// The status of the request, the status of its receive, and the event of the peer's program.
    With {
        sender: WcStatus,
        receiver: WcStatus,
        event: EventType,
    },
}

impl Refusal {
    const INVALID: Self = Self::With {
        sender: WcStatus::RemInvReqErr,
        receiver: WcStatus::RemInvReqErr,
        event: EventType::QpReqErr,
    };

    fn of_receive(sender: WcStatus, receiver: WcStatus) -> Self {
        let event = EventType::QpReqErr;
        Self::With {
            sender,
            receiver,
            event,
        }
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Misaligned
            | Fault::Operation
            | Fault::Length
            | Fault::NotPermitted
            | Fault::UnknownOperation => Self::INVALID,
            _ => Self::With {
                sender: WcStatus::RemAccessErr,
                receiver: WcStatus::RemAccessErr,
                event: EventType::QpAccessErr,
            },
        }
    }
}

// Whether the locked responder `peer` is connected to `qp`, and the port of `qp` is active.
pub(crate) fn is_at_other_end(qp: &Qp, peer: &Receiving) -> bool {
    peer.peer == Some((qp.device.address(), qp.qpn)) && qp.device.is_port_active()
}

fn takes(qp: &Qp, peer: &Qp, half: &Responder) -> bool {
    let receives = matches!(
        peer.state(),
        QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
    );
    receives && is_at_other_end(qp, &half.driver) && peer.device.is_port_active()
}

/// Executes a request at the peer.
pub(crate) fn respond<'p>(
    qp: &Qp,
    peer: &Qp,
    asked: &Asked<'_>,
    cx: &mut Cx<'p>,
) -> Result<Answer<'p>, Refusal> {
    with_peer(qp, peer, cx, |half, cx| match asked.request.op {
        Op::Send(beside) => send(qp, peer, half, asked, beside, cx),
        Op::Write(remote, imm) => write(qp, peer, half, asked, remote, imm, cx),
        Op::Read(remote, _) => read(peer, half, remote, asked.request.length, cx),
        Op::CompareSwap(remote, compare, swap) => {
            let change = |now| (now == compare).then_some(swap);
            atomic(peer, half, remote, change, cx)
        }
        Op::FetchAdd(remote, add) => {
            let change = |now: u64| Some(now.wrapping_add(add));
            atomic(peer, half, remote, change, cx)
        }
        _ => Err(Refusal::INVALID),
    })
}

/// Executes an operation of an extension at the peer.
pub(crate) fn extension(
    qp: &Qp,
    peer: &Qp,
    (extension, operation): (u32, u16),
    message: &[u8],
    cx: &mut Cx<'_>,
) -> Result<Octets, Refusal> {
    with_peer(qp, peer, cx, |half, cx| {
        let emulation = peer.device.operation_numbered(extension, operation);
        let emulation = emulation.ok_or(Refusal::INVALID)?;
        let (users, access) = ((half.pd, peer.qpn), half.driver.access);
        let keys = peer.device.keys();
        let memory = TargetMemory::new(keys, cx.pin, users, access, Aligned::Address);
        let mut answer = Octets::new();
        operation::respond(emulation, message, None, &memory, &mut answer)?;
        Ok(answer)
    })
}

fn with_peer<'p, T>(
    qp: &Qp,
    peer: &Qp,
    cx: &mut Cx<'p>,
    work: impl FnOnce(&mut Responder, &mut Cx<'p>) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let mut half = peer.responder();
    if !takes(qp, peer, &half) {
        return Err(Refusal::Absent);
    }
    peer.note_arrival(&mut half, cx);
    let answer = work(&mut half, cx);
    if let Err(Refusal::With {
        receiver, event, ..
    }) = answer
    {
        peer.fail_responder(&mut half, receiver, event, cx);
    }
    answer
}

fn check<'p>(
    peer: &Qp,
    half: &Responder,
    remote: RemoteAddress,
    length: u64,
    access: Access,
    cx: &Cx<'p>,
) -> Result<Region<'p>, Fault> {
    let user = RemoteUse {
        pd: half.pd,
        qpn: peer.qpn,
        access,
    };
    let keys = peer.device.keys();
    keys.check_remote(cx.pin, remote.rkey.value(), remote.addr, length, user)
}

fn take_receive(qp: &Qp, peer: &Qp, half: &mut Responder, cx: &mut Cx<'_>) -> Result<(), Refusal> {
    if half.current.is_none() {
        half.current = peer.take_receive(half, Some(qp), &mut cx.effects);
    }
    match half.current {
        Some(_) => Ok(()),
        None => Err(Refusal::NoReceive(half.driver.min_rnr_timer)),
    }
}

fn send<'p>(
    qp: &Qp,
    peer: &Qp,
    half: &mut Responder,
    asked: &Asked<'_>,
    beside: SendExtra,
    cx: &mut Cx<'p>,
) -> Result<Answer<'p>, Refusal> {
    take_receive(qp, peer, half, cx)?;
    let Some(receive) = half.current.take() else {
        return Err(Refusal::INVALID);
    };
    let mut spans = Spans::new();
    let length = asked.payload.len() as u64;
    if let Err(fault) = peer.gather_receive(&receive, length, cx, &mut spans) {
        half.current = Some(receive);
        let own = fault.local_status();
        return Err(Refusal::of_receive(WcStatus::RemOpErr, own));
    }
    let room: usize = spans.iter().map(|span| span.len()).sum();
    if asked.payload.len() > room {
        half.current = Some(receive);
        let long = WcStatus::LocLenErr;
        return Err(Refusal::of_receive(WcStatus::RemInvReqErr, long));
    }
    scatter_at(&spans, 0, &asked.payload);
    let (flags, imm) = match beside {
        SendExtra::Nothing => (WcFlags::empty(), [0; 4]),
        SendExtra::Immediate(imm) => (WcFlags::WITH_IMM, imm),
        SendExtra::Invalidate(key) => {
            if invalidate(peer, key).is_err() {
                // The payload was placed: the receive fails, and the sender succeeds.
                half.current = Some(receive);
                peer.fail_responder(half, WcStatus::RemInvReqErr, EventType::QpReqErr, cx);
                return Ok(Answer::Taken);
            }
            (WcFlags::WITH_INV, key.to_be_bytes())
        }
    };
    half.counters.receives += 1;
    let done = Done {
        opcode: WcOpcode::Recv,
        flags,
        imm,
        byte_len: asked.payload.len() as u32,
        solicited: asked.request.flags.contains(SendFlags::SOLICITED),
        ..Done::default()
    };
    peer.complete_receive(&receive, done, cx);
    Ok(Answer::Taken)
}

fn invalidate(peer: &Qp, key: u32) -> Result<(), Fault> {
    let management = peer.device.memory_management();
    let management = management.ok_or(Fault::CannotInvalidate)?;
    management.invalidate_remote(key, peer.pd, peer.qpn)
}

fn write<'p>(
    qp: &Qp,
    peer: &Qp,
    half: &mut Responder,
    asked: &Asked<'_>,
    remote: RemoteAddress,
    imm: Option<[u8; 4]>,
    cx: &mut Cx<'p>,
) -> Result<Answer<'p>, Refusal> {
    half.driver.permit(Access::REMOTE_WRITE)?;
    let length = asked.payload.len();
    let region = match length {
        // A write of no bytes names no memory.
        0 => None,
        _ => Some(check(
            peer,
            half,
            remote,
            length as u64,
            Access::REMOTE_WRITE,
            cx,
        )?),
    };
    if imm.is_some() {
        take_receive(qp, peer, half, cx)?;
    }
    if let Some(region) = region {
        let mut spans = Spans::new();
        region.for_each(|span| spans.push(span));
        scatter_at(&spans, 0, &asked.payload);
    }
    if let Some(imm) = imm
        && let Some(receive) = half.current.take()
    {
        half.counters.receives += 1;
        let done = Done {
            opcode: WcOpcode::RecvRdmaWithImm,
            flags: WcFlags::WITH_IMM,
            imm,
            byte_len: length as u32,
            solicited: asked.request.flags.contains(SendFlags::SOLICITED),
            ..Done::default()
        };
        peer.complete_receive(&receive, done, cx);
    }
    Ok(Answer::Taken)
}

fn read<'p>(
    peer: &Qp,
    half: &Responder,
    remote: RemoteAddress,
    length: u64,
    cx: &Cx<'p>,
) -> Result<Answer<'p>, Refusal> {
    half.driver.permit(Access::REMOTE_READ)?;
    has_budget(half)?;
    let mut spans = Spans::new();
    if length > 0 {
        let region = check(peer, half, remote, length, Access::REMOTE_READ, cx)?;
        region.for_each(|span| spans.push(span));
    }
    Ok(Answer::Octets(spans))
}

fn atomic<'p>(
    peer: &Qp,
    half: &Responder,
    remote: RemoteAddress,
    change: impl Fn(u64) -> Option<u64>,
    cx: &Cx<'p>,
) -> Result<Answer<'p>, Refusal> {
    if !remote.addr.is_multiple_of(8) {
        return Err(Refusal::INVALID);
    }
    half.driver.permit(Access::REMOTE_ATOMIC)?;
    has_budget(half)?;
    let word = check(peer, half, remote, 8, Access::REMOTE_ATOMIC, cx)?.first(8);
    let original = word.update_u64(change).ok_or(Refusal::INVALID)?;
    Ok(Answer::Original(original))
}

// Requests are served one at a time, which any budget except 0 permits.
fn has_budget(half: &Responder) -> Result<(), Refusal> {
    match half.driver.max_dest_rd_atomic {
        0 => Err(Refusal::INVALID),
        _ => Ok(()),
    }
}

#[cfg(feature = "all")]
mod express {
    use polyverbs_engine::express::Express;
    use verbs_api::Access;

    use super::{Receiving, is_at_other_end};
    use crate::{AcmeFabric, Qp, Responder, Sending};

    impl Express for AcmeFabric {
        const READ_SINK: Access = Access::LOCAL_WRITE;

        fn is_ready(qp: &Qp, _: &Sending, responder: &Responder) -> bool {
            responder.takes_express()
                && is_at_other_end(qp, &responder.driver)
                && responder.device.is_port_active()
        }

        fn permits(receiving: &Receiving) -> Access {
            receiving.access
        }

        fn has_read_budget(_: &Sending, receiving: &Receiving) -> bool {
            receiving.max_dest_rd_atomic > 0
        }
    }
}
