//! The receiving half: requests become operations on the engine, on the thread that brings them.

use polyverbs_engine::cq::Done;
use polyverbs_engine::device::Cx;
use polyverbs_engine::fault::Fault;
use polyverbs_engine::key_table::{Region, RemoteUse};
use polyverbs_engine::operation::{self, Aligned, Octets, TargetMemory};
use polyverbs_engine::payload::{Payload, Spans, scatter_at};
use polyverbs_engine::qp::{Qp, Responder};
use polyverbs_engine::request::{Op, SendExtra};
use verbs_api::qp::{QpAttributes, QpState};
use verbs_api::{
    Access, RemoteAddress, WcStatus,
    completion::{WcFlags, WcOpcode},
    event::EventType,
    ids::LinkAddress,
    wr::SendFlags,
};

use crate::Form;

/// The state of a responder.
#[derive(Debug, Default)]
pub struct Receiving {
    peer: Option<(LinkAddress, u32)>,
    pub(crate) access: Access,
    min_rnr_timer: u8,
    pub(crate) max_dest_rd_atomic: u8,
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

    pub(crate) const fn peer(&self) -> Option<(LinkAddress, u32)> {
        self.peer
    }

    fn permit(&self, needed: Access) -> Result<(), Refusal> {
        match self.access.contains(needed) {
            true => Ok(()),
            false => Err(Refusal::INVALID),
        }
    }
}

/// The queue pair that asks.
pub(crate) struct Asker<'a, D: Form> {
    /// Its device's address, and its number.
    pub(crate) from: (LinkAddress, u32),
    /// The queue pair itself, which a request may keep waiting; `None` for a request that came in a frame.
    pub(crate) qp: Option<&'a Qp<D>>,
}

impl<'a, D: Form> Asker<'a, D> {
    pub(crate) fn on(qp: &'a Qp<D>) -> Self {
        Self {
            from: (qp.device.address(), qp.qpn),
            qp: Some(qp),
        }
    }

    /// Whether the locked responder is connected to it, and its port is active.
    pub(crate) fn is_at_other_end_of(&self, peer: &Receiving) -> bool {
        let is_active = self.qp.is_none_or(|qp| qp.device.is_port_active());
        peer.peer == Some(self.from) && is_active
    }
}

/// A request and its payload.
pub(crate) struct Asked<'a> {
    pub(crate) op: Op,
    pub(crate) flags: SendFlags,
    pub(crate) length: u64,
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

fn takes<D: Form>(asker: &Asker<'_, D>, peer: &Qp<D>, half: &Responder<D>) -> bool {
    let receives = matches!(
        peer.state(),
        QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
    );
    receives && asker.is_at_other_end_of(&half.driver) && peer.device.is_port_active()
}

/// Executes a request at the peer.
pub(crate) fn respond<'p, D: Form>(
    asker: &Asker<'_, D>,
    peer: &Qp<D>,
    asked: &Asked<'_>,
    cx: &mut Cx<'p, D>,
) -> Result<Answer<'p>, Refusal> {
    with_peer(asker, peer, cx, |half, cx| match asked.op {
        Op::Send(beside) => send(asker, peer, half, asked, beside, cx),
        Op::Write(remote, imm) => write(asker, peer, half, asked, remote, imm, cx),
        Op::Read(remote, _) => read(peer, half, remote, asked.length, cx),
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
pub(crate) fn extension<D: Form>(
    asker: &Asker<'_, D>,
    peer: &Qp<D>,
    (extension, operation): (u32, u16),
    message: &[u8],
    cx: &mut Cx<'_, D>,
) -> Result<Octets, Refusal> {
    with_peer(asker, peer, cx, |half, cx| {
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

fn with_peer<'p, D: Form, T>(
    asker: &Asker<'_, D>,
    peer: &Qp<D>,
    cx: &mut Cx<'p, D>,
    work: impl FnOnce(&mut Responder<D>, &mut Cx<'p, D>) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let mut half = peer.responder();
    if !takes(asker, peer, &half) {
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

fn check<'p, D: Form>(
    peer: &Qp<D>,
    half: &Responder<D>,
    remote: RemoteAddress,
    length: u64,
    access: Access,
    cx: &Cx<'p, D>,
) -> Result<Region<'p>, Fault> {
    let user = RemoteUse {
        pd: half.pd,
        qpn: peer.qpn,
        access,
    };
    let keys = peer.device.keys();
    keys.check_remote(cx.pin, remote.rkey.value(), remote.addr, length, user)
}

fn take_receive<D: Form>(
    asker: &Asker<'_, D>,
    peer: &Qp<D>,
    half: &mut Responder<D>,
    cx: &mut Cx<'_, D>,
) -> Result<(), Refusal> {
    if half.current.is_none() {
        half.current = peer.take_receive(half, asker.qp, &mut cx.effects);
    }
    match half.current {
        Some(_) => Ok(()),
        None => Err(Refusal::NoReceive(half.driver.min_rnr_timer)),
    }
}

fn send<'p, D: Form>(
    asker: &Asker<'_, D>,
    peer: &Qp<D>,
    half: &mut Responder<D>,
    asked: &Asked<'_>,
    beside: SendExtra,
    cx: &mut Cx<'p, D>,
) -> Result<Answer<'p>, Refusal> {
    take_receive(asker, peer, half, cx)?;
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
        solicited: asked.flags.contains(SendFlags::SOLICITED),
        ..Done::default()
    };
    peer.complete_receive(&receive, done, cx);
    Ok(Answer::Taken)
}

fn invalidate<D: Form>(peer: &Qp<D>, key: u32) -> Result<(), Fault> {
    let management = peer.device.memory_management();
    let management = management.ok_or(Fault::CannotInvalidate)?;
    management.invalidate_remote(key, peer.pd, peer.qpn)
}

fn write<'p, D: Form>(
    asker: &Asker<'_, D>,
    peer: &Qp<D>,
    half: &mut Responder<D>,
    asked: &Asked<'_>,
    remote: RemoteAddress,
    imm: Option<[u8; 4]>,
    cx: &mut Cx<'p, D>,
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
        take_receive(asker, peer, half, cx)?;
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
            solicited: asked.flags.contains(SendFlags::SOLICITED),
            ..Done::default()
        };
        peer.complete_receive(&receive, done, cx);
    }
    Ok(Answer::Taken)
}

fn read<'p, D: Form>(
    peer: &Qp<D>,
    half: &Responder<D>,
    remote: RemoteAddress,
    length: u64,
    cx: &Cx<'p, D>,
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

fn atomic<'p, D: Form>(
    peer: &Qp<D>,
    half: &Responder<D>,
    remote: RemoteAddress,
    change: impl Fn(u64) -> Option<u64>,
    cx: &Cx<'p, D>,
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
fn has_budget<D: Form>(half: &Responder<D>) -> Result<(), Refusal> {
    match half.driver.max_dest_rd_atomic {
        0 => Err(Refusal::INVALID),
        _ => Ok(()),
    }
}
