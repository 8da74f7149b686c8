//! The receiving half: requests become operations on the engine, on the thread that brings them.

use polyverbs_engine::cq::Done;
use polyverbs_engine::device::Cx;
use polyverbs_engine::fault::Fault;
use polyverbs_engine::named_memory::ReceiveFault;
use polyverbs_engine::operation::{self, Aligned, Octets, TargetMemory};
use polyverbs_engine::payload::{Payload, Spans, scatter_at};
use polyverbs_engine::qp::{Qp, Responder};
use polyverbs_engine::receive_ring::Receive;
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
use crate::requester::peer_of;

/// The state of a responder.
#[derive(Debug, Default)]
pub struct Receiving {
    // The attributes that modifies have set.
    pub(crate) attributes: QpAttributes,
}

impl Receiving {
    pub(crate) fn access(&self) -> Access {
        self.attributes.qp_access_flags.unwrap_or_default()
    }

    // Requests are served one at a time, which any budget except 0 permits.
    pub(crate) fn has_read_budget(&self) -> bool {
        self.attributes.max_dest_rd_atomic.unwrap_or_default() > 0
    }

    fn permit(&self, needed: Access) -> Result<(), Refusal> {
        let needs_budget = needed.intersects(Access::REMOTE_READ | Access::REMOTE_ATOMIC);
        let is_in_budget = !needs_budget || self.has_read_budget();
        let is_permitted = self.access().contains(needed) && is_in_budget;
        is_permitted.then_some(()).ok_or(Refusal::INVALID)
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
        peer_of(&peer.attributes) == Some(self.from) && is_active
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
    /// The request fails with the first status. Unless the poster's own memory is at fault, the peer fails too: its receive
    /// with the second status, and its program gets the event.
    Failed(WcStatus, Option<(WcStatus, EventType)>),
}

impl Refusal {
    const INVALID: Self = Self::of_peer(
        WcStatus::RemInvReqErr,
        WcStatus::RemInvReqErr,
        EventType::QpReqErr,
    );

    const fn of_peer(sender: WcStatus, receiver: WcStatus, event: EventType) -> Self {
        Self::Failed(sender, Some((receiver, event)))
    }

    /// A fault of the poster's own memory.
    pub(crate) fn local(fault: Fault) -> Self {
        Self::Failed(fault.local_status(), None)
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
            _ => Self::of_peer(
                WcStatus::RemAccessErr,
                WcStatus::RemAccessErr,
                EventType::QpAccessErr,
            ),
        }
    }
}

impl From<ReceiveFault> for Refusal {
    fn from(fault: ReceiveFault) -> Self {
        let (sender, receiver) = match fault {
            ReceiveFault::Entry(fault) => (WcStatus::RemOpErr, fault.local_status()),
            ReceiveFault::TooLong => (WcStatus::RemInvReqErr, WcStatus::LocLenErr),
        };
        Self::of_peer(sender, receiver, EventType::QpReqErr)
    }
}

/// Executes a request at the peer.
pub(crate) fn respond<'p, D: Form>(
    asker: &Asker<'_, D>,
    peer: &Qp<D>,
    asked: &Asked<'_>,
    cx: &mut Cx<'p, D>,
) -> Result<Answer<'p>, Refusal> {
    at_peer(asker, peer, cx, |target| match asked.op {
        Op::Send(beside) => target.send(asked, beside),
        Op::Write(remote, imm) => target.write(asked, remote, imm),
        Op::Read(remote, _) => {
            let source = target.memory(remote, asked.length, Access::REMOTE_READ);
            source.map(Answer::Octets)
        }
        Op::CompareSwap(remote, compare, swap) => {
            target.atomic(remote, |now| (now == compare).then_some(swap))
        }
        Op::FetchAdd(remote, add) => target.atomic(remote, |now| Some(now.wrapping_add(add))),
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
    at_peer(asker, peer, cx, |target| {
        let emulation = peer.device.operation_numbered(extension, operation);
        let emulation = emulation.ok_or(Refusal::INVALID)?;
        let (users, access) = ((peer.pd, peer.qpn), target.half.driver.access());
        let (keys, pin) = (peer.device.keys(), target.cx.pin);
        let memory = TargetMemory::new(keys, pin, users, access, Aligned::Address);
        let mut answer = Octets::new();
        operation::respond(emulation, message, None, &memory, &mut answer)?;
        Ok(answer)
    })
}

fn at_peer<'p, D: Form, T>(
    asker: &Asker<'_, D>,
    peer: &Qp<D>,
    cx: &mut Cx<'p, D>,
    work: impl FnOnce(&mut Target<'_, 'p, D>) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let mut half = peer.responder();
    let mut target = Target {
        asker,
        qp: peer,
        half: &mut half,
        cx,
    };
    if !target.takes_requests() {
        return Err(Refusal::Absent);
    }
    peer.note_arrival(target.half, target.cx);
    let answer = work(&mut target);
    if let Err(Refusal::Failed(_, Some((receiver, event)))) = answer {
        target.fail(receiver, event);
    }
    answer
}

/// A queue pair that executes a request of its peer, with its responder locked.
struct Target<'t, 'p, D: Form> {
    asker: &'t Asker<'t, D>,
    qp: &'t Qp<D>,
    half: &'t mut Responder<D>,
    cx: &'t mut Cx<'p, D>,
}

impl<'p, D: Form> Target<'_, 'p, D> {
    fn takes_requests(&self) -> bool {
        let receives = matches!(
            self.qp.state(),
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        );
        let is_connected = self.asker.is_at_other_end_of(&self.half.driver);
        receives && is_connected && self.qp.device.is_port_active()
    }

    fn fail(&mut self, receiver: WcStatus, event: EventType) {
        self.qp.fail_responder(self.half, receiver, event, self.cx);
    }

    /// The memory that the request names, with these rights.
    fn memory(
        &self,
        remote: RemoteAddress,
        length: u64,
        access: Access,
    ) -> Result<Spans<'p>, Refusal> {
        self.half.driver.permit(access)?;
        let mut spans = Spans::new();
        // A request of no bytes names no memory.
        if length > 0 {
            let (pin, key) = (self.cx.pin, remote.rkey.value());
            let region = self.qp.peer_region(pin, key, remote.addr, length, access)?;
            region.for_each(|span| spans.push(span));
        }
        Ok(spans)
    }

    fn take_receive(&mut self) -> Result<Receive, Refusal> {
        let effects = &mut self.cx.effects;
        let receive = self.qp.take_receive(self.half, self.asker.qp, effects);
        let delay = self.half.driver.attributes.min_rnr_timer;
        receive.ok_or(Refusal::NoReceive(delay.unwrap_or_default()))
    }

    /// Completes a receive that took the whole request.
    fn complete(&mut self, receive: &Receive, asked: &Asked<'_>, done: Done) -> Answer<'p> {
        self.half.counters.receives += 1;
        let done = Done {
            byte_len: asked.payload.len() as u32,
            solicited: asked.flags.contains(SendFlags::SOLICITED),
            ..done
        };
        self.qp.complete_receive(receive, done, self.cx);
        Answer::Taken
    }

    fn send(&mut self, asked: &Asked<'_>, beside: SendExtra) -> Result<Answer<'p>, Refusal> {
        let receive = self.take_receive()?;
        if let Err(fault) = self.qp.fill_receive(&receive, 0, &asked.payload, self.cx) {
            self.half.current = Some(receive);
            return Err(fault.into());
        }
        let (flags, imm) = match beside {
            SendExtra::Nothing => (WcFlags::empty(), [0; 4]),
            SendExtra::Immediate(imm) => (WcFlags::WITH_IMM, imm),
            SendExtra::Invalidate(key) => {
                if self.invalidate(key).is_err() {
                    // The payload was placed: the receive fails, and the sender succeeds.
                    self.half.current = Some(receive);
                    self.fail(WcStatus::RemInvReqErr, EventType::QpReqErr);
                    return Ok(Answer::Taken);
                }
                (WcFlags::WITH_INV, key.to_be_bytes())
            }
        };
        let done = Done {
            opcode: WcOpcode::Recv,
            flags,
            imm,
            ..Done::default()
        };
        Ok(self.complete(&receive, asked, done))
    }

    fn invalidate(&self, key: u32) -> Result<(), Fault> {
        let management = self.qp.device.memory_management();
        let management = management.ok_or(Fault::CannotInvalidate)?;
        management.invalidate_remote(key, self.qp.pd, self.qp.qpn)
    }

    fn write(
        &mut self,
        asked: &Asked<'_>,
        remote: RemoteAddress,
        imm: Option<[u8; 4]>,
    ) -> Result<Answer<'p>, Refusal> {
        let length = asked.payload.len() as u64;
        let target = self.memory(remote, length, Access::REMOTE_WRITE)?;
        let receive = imm.map(|_| self.take_receive()).transpose()?;
        scatter_at(&target, 0, &asked.payload);
        let Some((imm, receive)) = imm.zip(receive) else {
            return Ok(Answer::Taken);
        };
        let done = Done {
            opcode: WcOpcode::RecvRdmaWithImm,
            flags: WcFlags::WITH_IMM,
            imm,
            ..Done::default()
        };
        Ok(self.complete(&receive, asked, done))
    }

    fn atomic(
        &self,
        remote: RemoteAddress,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Result<Answer<'p>, Refusal> {
        if !remote.addr.is_multiple_of(8) {
            return Err(Refusal::INVALID);
        }
        let word = self.memory(remote, 8, Access::REMOTE_ATOMIC)?;
        let original = word.first().and_then(|word| word.update_u64(change));
        original.map(Answer::Original).ok_or(Refusal::INVALID)
    }
}
