//! The receiving half: request frames become operations on the engine, and answers.
//!
//! The steps of IBTA 9.7.4: sequence number, opcode sequence, permission, resources, execution, completion, answer.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use polyverbs_engine::cq::Done;
use polyverbs_engine::fault::Fault;
use polyverbs_engine::link::Frame;
use polyverbs_engine::named_memory::ReceiveFault;
use polyverbs_engine::operation::Octets;
use polyverbs_engine::payload::{Payload, Spans};
use polyverbs_engine::rules::{self, Rule};
use polyverbs_engine::time::Time;
use verbs_api::qp::{QpState, QpType};
use verbs_api::{
    Access, RemoteAddress, WcStatus,
    completion::{WcFlags, WcOpcode},
    event::EventType,
    ids::{LinkAddress, Psn},
};

use crate::answer::{Answer, Refusal};
use crate::header::{Body, Header, IpFields, Nak, Position, SendExtra, packets};
use crate::operations::{check_served, place, read_region, serve, word, write_region};
use crate::pacing::{READ_AT_ONCE, READ_EVERY};
use crate::{Cx, Qp, QpRef, Receiving, answer, extension};

/// Bytes of the longest message.
const LONGEST: u32 = 1 << 31;
/// How many recent datagrams a second copy is compared with.
const RECENT: usize = 64;

/// What a responder keeps: what each request touches, and the rest.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Responder {
    /// Unique: changes with every modify. A peer that has seen it knows that the connection is still the same.
    pub epoch: u64,
    /// The sequence number of the next request.
    pub expected: Psn,
    /// What the peer may do.
    pub access: Access,
    nak_sent: bool,
    /// log2 of the path MTU.
    pub mtu_shift: u8,
    inbound: Inbound,
    /// What a request touches that waits or travels.
    pub rest: Box<ResponderRest>,
}

/// What a responder keeps for requests that wait or travel.
#[derive(Debug, Default)]
pub struct ResponderRest {
    /// The queue pair that is connected.
    pub peer_qpn: u32,
    /// Its port.
    pub peer_address: Option<LinkAddress>,
    /// How frames are carried to it.
    pub ip: IpFields,
    /// Timer code of RNR NAKs.
    pub min_rnr_timer: u8,
    /// Reads and atomics that may wait to be served.
    pub max_dest_rd_atomic: u8,
    /// The Q_Key that datagrams must carry.
    pub qkey: u32,
    /// Messages completed; modulo 2^24 on the wire.
    pub msn: u32,
    /// An acknowledge up to this sequence number waits until nothing more arrives.
    pub(crate) owed: Option<Psn>,
    /// Its peer waits for that.
    pub(crate) is_awaited: bool,
    /// The network settles it.
    pub(crate) is_noted: bool,
    /// Until then the peer is not told again that what it sends meets congestion.
    pub notified_until: Time,
    // The shared receive queue that the message under way is for, of XRC.
    srqn: u32,
    framed: Option<Box<Framed>>,
}

impl ResponderRest {
    // Takes memory from the first frame that has to be noted on.
    fn framed(&mut self) -> &mut Framed {
        self.framed.get_or_insert_default()
    }

    // The first request that waits to be served.
    fn next_waiting(&self) -> Option<Header> {
        self.framed.as_ref()?.waiting.front().copied()
    }

    /// Notes a datagram of a link. `false` where it came before.
    pub(crate) fn is_new(&mut self, datagram: &Frame<'_, Header>) -> bool {
        self.framed().recent.is_new(datagram)
    }
}

impl Responder {
    // Whether no message is half arrived.
    #[inline]
    fn is_between(&self) -> bool {
        matches!(self.inbound, Inbound::None)
    }

    /// Whether nothing is under way and `psn` is expected next.
    #[inline]
    pub fn is_between_messages(&self, psn: Psn) -> bool {
        self.expected == psn && matches!(self.inbound, Inbound::None) && !self.nak_sent
    }
}

/// The message that is arriving.
#[derive(Clone, Copy, Debug, Default)]
enum Inbound {
    #[default]
    None,
    Send {
        received: u64,
    },
    Write {
        remote: RemoteAddress,
        total: u32,
        received: u32,
    },
    /// An unreliable message of which a part is missing.
    Broken,
}

/// What only a link needs: reads and atomics that wait to be served, and those that were; datagrams that came last.
#[derive(Debug, Default)]
struct Framed {
    waiting: VecDeque<Header>,
    /// Bytes of the first one's answer that have left.
    left: usize,
    served: VecDeque<Served>,
    recent: Recent,
}

impl Framed {
    // Nothing that waits is served any more.
    fn clear(&mut self) {
        self.waiting.clear();
        self.left = 0;
    }
}

/// Datagrams that came last: a second copy of one of them is not delivered.
#[derive(Debug, Default)]
struct Recent(VecDeque<(LinkAddress, Header, u64)>);

impl Recent {
    /// Notes a datagram. `false` where it came before: the same number, and the same in everything else.
    fn is_new(&mut self, frame: &Frame<'_, Header>) -> bool {
        let mut hasher = DefaultHasher::new();
        frame.payload.to_vec().hash(&mut hasher);
        let datagram = (frame.from, frame.header, hasher.finish());
        if self.0.contains(&datagram) {
            return false;
        }
        if self.0.len() == RECENT {
            self.0.pop_front();
        }
        self.0.push_back(datagram);
        true
    }
}

/// A read or atomic that may be asked for again.
#[derive(Clone, Debug)]
struct Served {
    psn: Psn,
    packets: u32,
    body: Body,
    original: u64,
    // Of an extension's operation.
    answer: Octets,
}

/// A request frame. `direct` is the requester where it waits for the answer on this thread.
struct Incoming<'a> {
    qp: &'a Qp,
    header: &'a Header,
    payload: &'a Payload<'a>,
    direct: Option<&'a Qp>,
}

impl Incoming<'_> {
    // The number behind those that so many bytes take.
    fn psn_behind(&self, half: &Receiving, length: u64) -> Psn {
        self.header.psn.plus(packets(length, half.driver.mtu_shift))
    }

    // It was carried out, and has taken the numbers of so many bytes: its acknowledge, where one is wanted.
    fn arrived<'p>(&self, half: &mut Receiving, length: u64) -> Answer<'p> {
        let ends = match self.header.body {
            Body::Send(position, _) | Body::Write(position, ..) => position.ends(),
            _ => true,
        };
        half.driver.rest.msn = half.driver.rest.msn.wrapping_add(ends.into());
        half.driver.expected = self.psn_behind(half, length);
        if self.header.ack_req || self.direct.is_some() {
            Answer::Ack(half.driver.expected.minus(1))
        } else {
            Answer::None
        }
    }

    fn check_length(&self, half: &Receiving, position: Position) -> Result<(), Refusal> {
        let mtu_shift = half.driver.mtu_shift;
        match self.header.fits(position, self.payload.len(), mtu_shift) {
            true => Ok(()),
            false => Err(Refusal::INVALID),
        }
    }

    // A frame of a send or a write.
    #[inline]
    fn message<'p>(&self, half: &mut Receiving, cx: &mut Cx<'p>) -> Result<Answer<'p>, Refusal> {
        match self.header.body {
            Body::Send(..) => self.send(half, cx),
            _ => self.write(half, cx),
        }
    }

    #[inline]
    fn send<'p>(&self, half: &mut Receiving, cx: &mut Cx<'p>) -> Result<Answer<'p>, Refusal> {
        let Body::Send(position, extra) = self.header.body else {
            return Err(Refusal::INVALID);
        };
        let received = match (half.driver.inbound, position.begins()) {
            (Inbound::None, true) => 0,
            (Inbound::Send { received }, false) => received,
            _ => return Err(Refusal::INVALID),
        };
        self.check_length(half, position)?;
        if position.begins() && half.current.is_none() {
            half.current = self.qp.take_receive(half, self.direct, &mut cx.effects);
        }
        let Some(receive) = half.current.take() else {
            return Ok(Answer::Rnr(half.driver.rest.min_rnr_timer, self.header.psn));
        };
        let length = self.payload.len() as u64;
        if let Err(fault) = self.qp.fill_receive(&receive, received, self.payload, cx) {
            // What was sent does not fit the receive, or that is no good: it ends so.
            half.current = Some(receive);
            let (nak, receive) = match fault {
                ReceiveFault::Entry(fault) => (Nak::REMOTE_OPERATION, fault.local_status()),
                ReceiveFault::TooLong => (Nak::INVALID_REQUEST, WcStatus::LocLenErr),
            };
            return Err(Refusal { nak, receive });
        }
        let answer = self.arrived(half, length);
        if !position.ends() {
            half.current = Some(receive);
            half.driver.inbound = Inbound::Send {
                received: received + length,
            };
            return Ok(answer);
        }
        half.driver.inbound = Inbound::None;
        let (flags, imm) = match extra {
            SendExtra::Nothing => (WcFlags::empty(), [0; 4]),
            SendExtra::Immediate(_) if rules::is_broken(Rule::SendImmediate) => {
                (WcFlags::WITH_IMM, [0; 4])
            }
            SendExtra::Immediate(imm) => (WcFlags::WITH_IMM, imm),
            SendExtra::Invalidate(key) => {
                if invalidate(self.qp, key).is_err() {
                    // The data has been delivered: the receive fails, the sender is not told (IBTA 9.9.6, class J).
                    half.current = Some(receive);
                    self.qp
                        .fail_responder(half, WcStatus::RemInvReqErr, EventType::QpReqErr, cx);
                    return Ok(answer);
                }
                (WcFlags::WITH_INV, key.to_be_bytes())
            }
        };
        half.counters.receives += 1;
        let byte_len = (received + length) as u32;
        let solicited = self.header.solicited;
        let done = Done {
            opcode: WcOpcode::Recv,
            flags,
            imm,
            byte_len,
            solicited,
            src_qp: sender(self.qp, half),
            ..Done::default()
        };
        self.qp.complete_receive(&receive, done, cx);
        Ok(answer)
    }

    #[inline]
    fn write<'p>(&self, half: &mut Receiving, cx: &mut Cx<'p>) -> Result<Answer<'p>, Refusal> {
        let Body::Write(position, remote, total, imm) = self.header.body else {
            return Err(Refusal::INVALID);
        };
        let (remote, total, received) = match (half.driver.inbound, position.begins()) {
            (Inbound::None, true) => (remote, total, 0),
            (
                Inbound::Write {
                    remote,
                    total,
                    received,
                },
                false,
            ) => (remote, total, received),
            _ => return Err(Refusal::INVALID),
        };
        if !rules::is_broken(Rule::QueuePairWrite) {
            permit(half, Access::REMOTE_WRITE)?;
        }
        self.check_length(half, position)?;
        check_total(total)?;
        let length = self.payload.len() as u32;
        let reached = received.saturating_add(length);
        if reached > total || (position.ends() && reached != total) {
            return Err(Refusal::INVALID);
        }
        if position.begins() && total != length && total > 0 {
            // The whole range is checked with the first frame.
            write_region(self.qp, remote, total, cx)?;
        }
        let target = match length {
            0 => None,
            _ => Some(write_region(
                self.qp,
                remote.plus(u64::from(received)),
                length,
                cx,
            )?),
        };
        if imm.is_some() && position.ends() {
            // The data of earlier frames stays where it was placed; only this frame is asked for again.
            if half.current.is_none() {
                half.current = self.qp.take_receive(half, self.direct, &mut cx.effects);
            }
            if half.current.is_none() {
                return Ok(Answer::Rnr(half.driver.rest.min_rnr_timer, self.header.psn));
            }
        }
        if let Some(target) = target {
            place(target, self.payload);
        }
        let answer = self.arrived(half, length.into());
        if !position.ends() {
            half.driver.inbound = Inbound::Write {
                remote,
                total,
                received: reached,
            };
            return Ok(answer);
        }
        half.driver.inbound = Inbound::None;
        if let Some(imm) = imm
            && let Some(receive) = half.current.take()
        {
            half.counters.receives += 1;
            let is_lost = rules::is_broken(Rule::WriteImmediate);
            let imm = if is_lost { [0; 4] } else { imm };
            let done = Done {
                opcode: WcOpcode::RecvRdmaWithImm,
                flags: WcFlags::WITH_IMM,
                imm,
                byte_len: total,
                solicited: self.header.solicited,
                src_qp: sender(self.qp, half),
                ..Done::default()
            };
            self.qp.complete_receive(&receive, done, cx);
        }
        Ok(answer)
    }

    fn read_or_atomic<'p>(
        &self,
        half: &mut Receiving,
        cx: &mut Cx<'p>,
    ) -> Result<Answer<'p>, Refusal> {
        if !matches!(half.driver.inbound, Inbound::None) {
            return Err(Refusal::INVALID);
        }
        if let Body::AtomicWrite(remote) = self.header.body {
            permit(half, Access::REMOTE_WRITE)?;
            if self.payload.len() != 8 {
                return Err(Refusal::INVALID);
            }
            let is_cut = rules::is_broken(Rule::AtomicWriteAligned);
            let addr = remote.addr & if is_cut { !7 } else { u64::MAX };
            word(
                self.qp,
                RemoteAddress { addr, ..remote },
                Access::REMOTE_WRITE,
                cx,
            )?
            .store_u64(self.payload.word())
            .ok_or(Refusal::INVALID)?;
            return Ok(self.arrived(half, 8));
        }
        // What it needs, and how many bytes its answer has, as far as they take numbers.
        let (needed, length) = match self.header.body {
            Body::ReadRequest(_, length) => (Access::REMOTE_READ, length),
            Body::CompareSwap(remote, ..) | Body::FetchAdd(remote, _)
                if remote.addr.is_multiple_of(8) =>
            {
                (Access::REMOTE_ATOMIC, 0)
            }
            Body::Flush(_, _, placement, _) => (placement, 0),
            _ => return Err(Refusal::INVALID),
        };
        if needed != Access::REMOTE_READ || !rules::is_broken(Rule::QueuePairRead) {
            permit(half, needed)?;
        }
        check_total(length)?;
        if !self.payload.is_empty() {
            return Err(Refusal::INVALID);
        }
        // What the peer has outstanding beyond what it was told it may have is invalid (IBTA 9.7.4.1.4).
        let rest = &half.driver.rest;
        let waiting = rest.framed.as_ref().map_or(0, |all| all.waiting.len());
        if waiting >= usize::from(rest.max_dest_rd_atomic) {
            return Err(Refusal::INVALID);
        }
        if self.direct.is_some() {
            let (answer, _) = serve(self.qp, self.header.body, cx)?;
            self.arrived(half, length.into());
            return Ok(answer);
        }
        // Served when what has arrived with it has been looked at, and before anything later is carried out.
        check_served(self.qp, self.header.body, cx)?;
        self.arrived(half, length.into());
        half.driver.rest.framed().waiting.push_back(*self.header);
        if let Some(me) = self.qp.shared() {
            self.qp
                .device
                .network()
                .serve_later(Box::new(move |now| serve_queue_pair(&me, now)));
        }
        Ok(Answer::Later)
    }

    #[cold]
    fn extension_request<'p>(
        &self,
        half: &mut Receiving,
        numbers: (u32, u16),
        cx: &Cx<'p>,
    ) -> Result<Answer<'p>, Refusal> {
        if !half.driver.is_between() {
            return Err(Refusal::INVALID);
        }
        let answer = extension::carry_out(self.qp, half.driver.access, numbers, self.payload, cx)?;
        if self.direct.is_none() {
            note(half, self.header, 0, answer.clone());
        }
        self.arrived(half, 0);
        Ok(Answer::Extension(answer))
    }

    // UC: a frame that does not fit drops the rest of its message; a receive that was begun waits for the next one, except
    // one of a shared queue, which fails (IBTA 9.8.3.2).
    fn unreliable(&self, half: &mut Receiving, cx: &mut Cx<'_>) {
        // A second copy, or one that others have overtaken: its message was delivered or given up.
        if self.header.psn.distance_from(half.driver.expected) < 0 {
            return half.counters.duplicates += 1;
        }
        let in_order = self.header.psn == half.driver.expected;
        let begins = match self.header.body {
            Body::Send(position, SendExtra::Nothing | SendExtra::Immediate(_))
            | Body::Write(position, ..) => position.begins(),
            _ => return half.counters.dropped += 1,
        };
        if !in_order || (begins && !matches!(half.driver.inbound, Inbound::None)) {
            abandon(self.qp, half, cx);
            half.driver.inbound = if begins {
                Inbound::None
            } else {
                Inbound::Broken
            };
            half.driver.expected = self.header.psn;
        }
        if matches!(half.driver.inbound, Inbound::Broken) {
            half.counters.dropped += 1;
            if !begins {
                half.driver.expected = self.psn_behind(half, self.payload.len() as u64);
                return;
            }
            half.driver.inbound = Inbound::None;
        }
        self.qp.note_arrival(half, cx);
        let result = self.message(half, cx);
        if let Err(Refusal {
            nak: Nak::REMOTE_OPERATION,
            receive,
        }) = result
        {
            // The receiver's own fault: no later message would fare better.
            return self
                .qp
                .fail_responder(half, receive, EventType::QpFatal, cx);
        }
        if !matches!(result, Ok(Answer::None | Answer::Ack(_))) {
            if rules::is_broken(Rule::UnreliableLoss) {
                return self
                    .qp
                    .fail_responder(half, WcStatus::RemOpErr, EventType::QpFatal, cx);
            }
            half.counters.dropped += 1;
            abandon(self.qp, half, cx);
            half.driver.inbound = Inbound::Broken;
            half.driver.expected = self.psn_behind(half, self.payload.len() as u64);
        }
    }
}

/// Takes a request frame. `direct` is the requester where it waits for the answer on this thread.
#[inline]
pub fn respond<'p>(
    qp: &Qp,
    half: &mut Receiving,
    header: &Header,
    payload: &Payload<'_>,
    direct: Option<&Qp>,
    cx: &mut Cx<'p>,
) -> Answer<'p> {
    if !matches!(
        qp.state(),
        QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
    ) {
        half.counters.dropped += 1;
        return Answer::None;
    }
    let incoming = Incoming {
        qp,
        header,
        payload,
        direct,
    };
    if qp.qp_type == QpType::Uc {
        incoming.unreliable(half, cx);
        return Answer::None;
    }
    match header.psn.distance_from(half.driver.expected) {
        0 => {}
        1.. => return out_of_order(half),
        _ => return duplicate(qp, half, header, cx),
    }
    half.driver.nak_sent = false;
    qp.note_arrival(half, cx);
    if !header.body.is_read_or_atomic() && !serve_waiting(qp, half, cx) {
        return Answer::None;
    }
    let addressed = match qp.carries_srqn {
        true => address(qp, half, header),
        false => Ok(()),
    };
    let answered = match header.body {
        _ if addressed.is_err() => addressed.map(|()| Answer::None),
        Body::Send(..) | Body::Write(..) => incoming.message(half, cx),
        Body::ExtensionRequest(extension, operation) => {
            incoming.extension_request(half, (extension, operation), cx)
        }
        _ => incoming.read_or_atomic(half, cx),
    };
    match answered {
        Ok(Answer::Rnr(code, psn)) => {
            // What follows is out of order, and the requester knows: no further NAK (IBTA 9.7.5.2.8).
            half.driver.nak_sent = direct.is_none();
            Answer::Rnr(code, psn)
        }
        Ok(answer) => answer,
        // What was asked for before is answered before.
        Err(_) if !serve_waiting(qp, half, cx) => Answer::None,
        Err(refusal) => refuse(qp, half, header, refusal, cx),
    }
}

#[cold]
fn refuse<'p>(
    qp: &Qp,
    half: &mut Receiving,
    header: &Header,
    refusal: Refusal,
    cx: &mut Cx<'p>,
) -> Answer<'p> {
    let event = match refusal.nak {
        Nak::REMOTE_ACCESS => EventType::QpAccessErr,
        _ => EventType::QpReqErr,
    };
    half.driver.inbound = Inbound::None;
    qp.fail_responder(half, refusal.receive, event, cx);
    Answer::Nak(refusal.nak, header.psn)
}

// One NAK tells where to go back to; more would only repeat it (IBTA 9.7.5.1.2).
#[cold]
fn out_of_order<'p>(half: &mut Receiving) -> Answer<'p> {
    half.counters.dropped += 1;
    if std::mem::replace(&mut half.driver.nak_sent, true) {
        return Answer::None;
    }
    Answer::Nak(Nak::SEQUENCE_ERROR, half.driver.expected)
}

// Sends and writes are acknowledged again and not carried out again; a read is served again within what it asked for;
// an atomic is answered from what was noted (IBTA 9.7.5.1.1).
#[cold]
fn duplicate<'p>(qp: &Qp, half: &mut Receiving, header: &Header, cx: &mut Cx<'p>) -> Answer<'p> {
    half.counters.duplicates += 1;
    // What is acknowledged again is not to pass an answer that is still due.
    if !serve_waiting(qp, half, cx) {
        return Answer::None;
    }
    let framed = half.driver.rest.framed.iter();
    let served = framed.flat_map(|framed| &framed.served).find(|served| {
        let offset = header.psn.distance_from(served.psn);
        offset >= 0 && (offset as u32) < served.packets
    });
    match (header.body, served) {
        (Body::Send(..) | Body::Write(..) | Body::AtomicWrite(_), _) => {
            Answer::Ack(half.driver.expected.minus(1))
        }
        (
            Body::ReadRequest(remote, length),
            Some(&Served {
                body: Body::ReadRequest(first, whole),
                ..
            }),
        ) => {
            let offset = remote.addr.wrapping_sub(first.addr);
            let within =
                offset <= u64::from(whole) && u64::from(length) <= u64::from(whole) - offset;
            if remote.rkey != first.rkey || !within {
                return Answer::None;
            }
            let region = match address(qp, half, header) {
                Ok(()) => read_region(qp, remote, length, cx).map_err(Refusal::from),
                Err(refusal) => Err(refusal),
            };
            match region {
                Ok(spans) => Answer::Read(spans),
                Err(refusal) => refuse(qp, half, header, refusal, cx),
            }
        }
        (Body::CompareSwap(..) | Body::FetchAdd(..), Some(served)) if served.psn == header.psn => {
            Answer::Atomic(served.original)
        }
        (Body::Flush(..), Some(served)) if served.psn == header.psn => Answer::Read(Spans::new()),
        (Body::ExtensionRequest(..), Some(served)) if served.psn == header.psn => {
            Answer::Extension(served.answer.clone())
        }
        _ => Answer::None,
    }
}

// Of XRC: the request is carried out in the domain of the shared receive queue that it names, and takes its receive
// there. One that this target is not to reach is no valid request; all frames of a message name the same.
#[inline(never)]
fn address(qp: &Qp, half: &mut Receiving, header: &Header) -> Result<(), Refusal> {
    let Some(number) = header.xrc else {
        return Ok(());
    };
    if !half.driver.is_between() && number != half.driver.rest.srqn {
        return Err(Refusal::INVALID);
    }
    let extensions = qp.extensions().ok_or(Refusal::INVALID)?;
    let target = extensions.target(number).ok_or(Refusal::INVALID)?;
    half.driver.rest.srqn = number;
    extensions.take_receives_from(Some(target));
    Ok(())
}

// A completion of a shared receive queue of XRC tells whose message it was.
fn sender(qp: &Qp, half: &Receiving) -> Option<u32> {
    qp.carries_srqn.then_some(half.driver.rest.peer_qpn)
}

// No message is longer (IBTA 9.7.4.1.6); one that were could take more numbers than there are.
fn check_total(length: u32) -> Result<(), Refusal> {
    if length <= LONGEST {
        Ok(())
    } else {
        Err(Refusal::INVALID)
    }
}

fn permit(half: &Receiving, needed: Access) -> Result<(), Refusal> {
    if half.driver.access.contains(needed) {
        Ok(())
    } else {
        Err(Refusal::INVALID)
    }
}

#[inline(never)]
fn invalidate(qp: &Qp, key: u32) -> Result<(), Fault> {
    let management = qp
        .device
        .memory_management()
        .ok_or(Fault::CannotInvalidate)?;
    management.invalidate_remote(key, qp.remote_pd(), qp.qpn)
}

/// Serves the reads and atomics that wait, in order. `false` where one of them was refused.
pub fn serve_waiting(qp: &Qp, half: &mut Receiving, cx: &mut Cx<'_>) -> bool {
    serve_some(qp, half, u32::MAX, cx) != Progress::Refused
}

/// How far the serving of what waits has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    All,
    /// Of the first one's answer not all has left.
    Some,
    Refused,
}

/// The same; of the answer to a read so many frames leave.
fn serve_some(qp: &Qp, half: &mut Receiving, frames: u32, cx: &mut Cx<'_>) -> Progress {
    if half.driver.rest.next_waiting().is_none() {
        return Progress::All;
    }
    if matches!(qp.state(), QpState::Reset | QpState::Init | QpState::Err) {
        half.driver.rest.framed().clear();
        return Progress::Refused;
    }
    while let Some(header) = half.driver.rest.next_waiting() {
        let addressed = address(qp, half, &header);
        match addressed.and_then(|()| serve(qp, header.body, cx)) {
            Ok((answer, original)) => {
                let begun = std::mem::take(&mut half.driver.rest.framed().left);
                if begun == 0 {
                    note(half, &header, original, Octets::new());
                }
                if let Answer::Read(spans) = &answer {
                    let whole = Payload::of_spans(spans);
                    let left = answer::read_response(qp, half, &header, &whole, begun, frames, cx);
                    if left < whole.len() {
                        half.driver.rest.framed().left = left;
                        return Progress::Some;
                    }
                } else {
                    answer::send(qp, half, &header, answer, cx);
                }
                half.driver.rest.framed().waiting.pop_front();
            }
            Err(refusal) => {
                half.driver.rest.framed().clear();
                let answer = refuse(qp, half, &header, refusal, cx);
                answer::send(qp, half, &header, answer, cx);
                return Progress::Refused;
            }
        }
    }
    Progress::All
}

/// Whether an answer is under way, whose next frames have their time.
fn is_paced(half: &Receiving) -> bool {
    let framed = half.driver.rest.framed.as_ref();
    framed.is_some_and(|framed| framed.left > 0)
}

// Serves the reads and atomics of a queue pair that wait.
fn serve_queue_pair(qp: &QpRef, now: Time) {
    if !is_paced(&qp.responder()) {
        serve_next(qp, now);
    }
}

fn serve_next(qp: &QpRef, now: Time) {
    let progress = Cx::run(&qp.device, Some(now), |cx| {
        serve_some(qp, &mut qp.responder(), READ_AT_ONCE, cx)
    });
    // The rest of a long response leaves later, so that other queue pairs are served meanwhile.
    if progress == Progress::Some {
        let me = qp.clone();
        let go_on = move |now| serve_next(&me, now);
        let timers = qp.device.network().timers();
        timers.add(now.after(READ_EVERY), Box::new(go_on));
    }
}

// Notes what was answered, for a request that comes again.
fn note(half: &mut Receiving, header: &Header, original: u64, answer: Octets) {
    let length = match header.body {
        Body::ReadRequest(_, length) => length,
        _ => 0,
    };
    let most = usize::from(half.driver.rest.max_dest_rd_atomic).max(1);
    let served = &mut half.driver.rest.framed().served;
    if served.len() >= most {
        served.pop_front();
    }
    served.push_back(Served {
        psn: header.psn,
        packets: packets(length.into(), half.driver.mtu_shift),
        body: header.body,
        original,
        answer,
    });
}

fn abandon(qp: &Qp, half: &mut Receiving, cx: &mut Cx<'_>) {
    if qp.has_srq()
        && let Some(receive) = half.current.take()
    {
        let done = Done {
            status: WcStatus::LocLenErr,
            opcode: WcOpcode::Recv,
            ..Done::default()
        };
        qp.complete_receive(&receive, done, cx);
    }
}
