//! The receiving half: request frames become operations on the engine, and answers.
//!
//! The steps are those of IBTA 9.7.4: sequence number, opcode sequence, permission, resources, execution, completion,
//! answer.

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
use crate::pacing::{CROWDED_FOR, READ_AT_ONCE, READ_EVERY};
use crate::relay::{self, Relay, Repeats};
use crate::{Cx, Qp, QpRef, Receiving, answer, extension, frame};

/// The length of the longest message in bytes.
const LONGEST: u32 = 1 << 31;
/// The number of recent datagrams with which a new one is compared, to detect duplicates.
const RECENT: usize = 64;

/// The transport's state of a responder: the fields that each request uses, and the rest.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Responder {
    /// A unique number that changes with every modify. A requester that has stored it knows that the queue pair was not
    /// modified since.
    pub epoch: u64,
    /// The packet sequence number of the next request.
    pub expected: Psn,
    /// The rights that the queue pair grants to its peer.
    pub access: Access,
    pub(crate) nak_sent: bool,
    /// log2 of the path MTU in bytes.
    pub mtu_shift: u8,
    inbound: Inbound,
    /// State that is used only by requests that wait or come over a link.
    pub rest: Box<ResponderRest>,
}

/// The state of a responder that is used only by requests that wait or come over a link.
#[derive(Debug, Default)]
pub struct ResponderRest {
    /// The number of the peer's queue pair.
    pub peer_qpn: u32,
    /// The link address of the peer's port; `None` before the program has set the path.
    pub peer_address: Option<LinkAddress>,
    /// The traffic class and hop limit of frames to the peer.
    pub ip: IpFields,
    /// The timer code that RNR NAKs of this queue pair carry.
    pub min_rnr_timer: u8,
    /// How many reads and atomics of the peer may wait to be served.
    pub max_dest_rd_atomic: u8,
    /// The Q_Key that datagrams to this queue pair must carry.
    pub qkey: u32,
    /// The message sequence number: how many messages were completed; modulo 2^24 on the wire.
    pub msn: u32,
    /// The acknowledge of everything up to this PSN is kept back until no further frame arrives; `None` if nothing is kept
    /// back.
    pub(crate) owed: Option<Psn>,
    /// Whether the peer waits for the acknowledge that is kept back.
    pub(crate) is_awaited: bool,
    /// Whether the queue pair is on the network's list of those that send an acknowledge later.
    pub(crate) is_noted: bool,
    /// Before this time no further congestion notification (CNP) is sent to the peer.
    pub notified_until: Time,
    // For XRC: the shared receive queue of the current message.
    srqn: u32,
    /// For XRC: the state of requests that other processes execute, if there was one.
    pub(crate) relay: Option<Box<Relay>>,
    framed: Option<Box<Framed>>,
}

impl ResponderRest {
    // Allocates the state with the first frame that needs it.
    fn framed(&mut self) -> &mut Framed {
        self.framed.get_or_insert_default()
    }

    // Returns the first request that waits to be served.
    fn next_waiting(&self) -> Option<Header> {
        self.framed.as_ref()?.waiting.front().copied()
    }

    /// Notes a datagram that came over a link. Returns `false` for a duplicate of a recent one.
    pub(crate) fn is_new(&mut self, datagram: &Frame<'_, Header>) -> bool {
        self.framed().recent.is_new(datagram)
    }
}

impl Responder {
    // Returns whether no message has arrived only in part.
    #[inline]
    fn is_between(&self) -> bool {
        matches!(self.inbound, Inbound::None)
    }

    /// Notes that the message which is arriving has failed.
    pub(crate) fn inbound_ends(&mut self) {
        self.inbound = Inbound::None;
    }

    /// Returns whether no message is incomplete, no NAK is outstanding, and `psn` is the expected packet sequence number.
    #[inline]
    pub fn is_between_messages(&self, psn: Psn) -> bool {
        self.expected == psn && matches!(self.inbound, Inbound::None) && !self.nak_sent
    }
}

/// The message of which frames are arriving.
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
    /// Another process executes the message, which has arrived only in part.
    Elsewhere,
    /// A part of an unreliable message is missing, so the rest of it is dropped.
    Broken,
}

/// State that only a link needs: reads and atomics that wait to be served, those that were served, and recent datagrams.
#[derive(Debug, Default)]
struct Framed {
    waiting: VecDeque<Header>,
    /// How many bytes of the answer to the first waiting request have been sent.
    left: usize,
    /// Whether a timer goes on with the waiting requests.
    is_paced: bool,
    served: VecDeque<Served>,
    recent: Recent,
}

impl Framed {
    // Drops the requests that wait to be served.
    fn clear(&mut self) {
        self.waiting.clear();
        self.left = 0;
    }
}

/// Recent datagrams: a duplicate of one of them is not delivered.
#[derive(Debug, Default)]
struct Recent(VecDeque<(LinkAddress, Header, u64)>);

impl Recent {
    /// Notes a datagram. Returns `false` for a duplicate of a recent one: one with the same sender, header and contents.
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

/// A read, an atomic or another request with an answer that was served, in case the peer repeats it.
#[derive(Clone, Debug)]
struct Served {
    psn: Psn,
    packets: u32,
    body: Body,
    original: u64,
    // The answer of an extension's operation.
    answer: Octets,
}

/// A request frame that has arrived. `direct` is the requester's queue pair if it waits for the answer on this thread.
pub(crate) struct Incoming<'a> {
    qp: &'a Qp,
    header: &'a Header,
    payload: &'a Payload<'a>,
    direct: Option<&'a Qp>,
    /// Whether a read or atomic is served at once, and nothing is noted for duplicates of the request.
    at_once: bool,
}

impl<'a> Incoming<'a> {
    /// A request that a stand-in executes at once.
    pub(crate) const fn at_once(qp: &'a Qp, header: &'a Header, payload: &'a Payload<'a>) -> Self {
        Self {
            qp,
            header,
            payload,
            direct: None,
            at_once: true,
        }
    }

    /// Executes a request whose order and queue were checked. `left` is the number of bytes from the place of a read to the
    /// end of what the initiator reads.
    pub(crate) fn execute<'p>(
        &self,
        half: &mut Receiving,
        left: u32,
        cx: &mut Cx<'p>,
    ) -> Result<Answer<'p>, Refusal> {
        match self.header.body {
            Body::Send(..) | Body::Write(..) => self.message(half, cx),
            Body::ExtensionRequest(extension, operation) => {
                self.extension_request(half, (extension, operation), cx)
            }
            Body::ReadRequest(remote, _) => {
                let answer = self.read_or_atomic(half, cx)?;
                // The whole range is checked with the first piece.
                check_total(left)?;
                read_region(self.qp, remote, left, cx)?;
                Ok(answer)
            }
            _ => self.read_or_atomic(half, cx),
        }
    }

    // Returns the PSN after those of a frame of `length` bytes.
    fn psn_behind(&self, half: &Receiving, length: u64) -> Psn {
        self.header.psn.plus(packets(length, half.driver.mtu_shift))
    }

    // Notes that the request was carried out and has taken the PSNs of `length` bytes. Returns its acknowledge, if one is
    // requested.
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

    // Handles a frame of a send or a write.
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
            // The message does not fit the receive, or an entry of the receive is invalid: the receive fails.
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
                    // The data have been delivered: the receive fails, and the sender gets no NAK (IBTA 9.9.6, class J).
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
            // The data of earlier frames stay where they were placed; only this frame is requested again.
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
        // The needed right, and the bytes of the answer as far as they take sequence numbers.
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
        // More outstanding requests than the peer was granted are invalid (IBTA 9.7.4.1.4).
        let rest = &half.driver.rest;
        let waiting = rest.framed.as_ref().map_or(0, |all| all.waiting.len());
        if waiting >= usize::from(rest.max_dest_rd_atomic) {
            return Err(Refusal::INVALID);
        }
        if self.at_once || self.direct.is_some() {
            let (answer, _) = serve(self.qp, self.header.body, cx)?;
            self.arrived(half, length.into());
            return Ok(answer);
        }
        // The request is served after the frames that arrived with it were handled, and before any later request is carried
        // out.
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
        if !self.at_once && self.direct.is_none() {
            note(half, self.header, 0, answer.clone());
        }
        self.arrived(half, 0);
        Ok(Answer::Extension(answer))
    }

    // Handles a UC frame: one that does not fit drops the rest of its message. A receive that was begun waits for the next
    // message, but one of a shared queue fails (IBTA 9.8.3.2).
    fn unreliable(&self, half: &mut Receiving, cx: &mut Cx<'_>) {
        // This is a duplicate, or others have overtaken it: its message was delivered or abandoned.
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
            // The receive itself is faulty, so every later message would fail, too.
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

/// Handles a request frame, and returns the answer to it. `direct` is the requester's queue pair if it waits for the answer
/// on this thread.
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
        at_once: false,
    };
    if qp.qp_type == QpType::Uc {
        incoming.unreliable(half, cx);
        return Answer::None;
    }
    if qp.carries_srqn && relay::keep(qp, half, header, payload) {
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
    let is_elsewhere = qp.carries_srqn && relay::elsewhere(qp, header).is_some();
    let addressed = match qp.carries_srqn {
        true if is_elsewhere => address_elsewhere(half, header),
        true => address(qp, half, header),
        false => Ok(()),
    };
    let answered = match header.body {
        _ if addressed.is_err() => addressed.map(|()| Answer::None),
        // The request is executed after earlier ones, and answered later.
        _ if is_elsewhere && !serve_waiting(qp, half, cx) => Ok(Answer::None),
        _ if is_elsewhere => Ok(relay::begin(qp, half, header, payload, Repeats::No)),
        Body::Send(..) | Body::Write(..) => incoming.message(half, cx),
        Body::ExtensionRequest(extension, operation) => {
            incoming.extension_request(half, (extension, operation), cx)
        }
        _ => incoming.read_or_atomic(half, cx),
    };
    match answered {
        Ok(Answer::Rnr(code, psn)) => {
            // Later frames are out of order, and the requester knows that: they cause no further NAK (IBTA 9.7.5.2.8).
            half.driver.nak_sent = direct.is_none();
            Answer::Rnr(code, psn)
        }
        Ok(answer) => answer,
        // Earlier requests are answered before the refusal.
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
    relay::end(qp, half);
    Answer::Nak(refusal.nak, header.psn)
}

// One NAK reports where to continue; further ones would only repeat it (IBTA 9.7.5.1.2).
#[cold]
fn out_of_order<'p>(half: &mut Receiving) -> Answer<'p> {
    half.counters.dropped += 1;
    if std::mem::replace(&mut half.driver.nak_sent, true) {
        return Answer::None;
    }
    Answer::Nak(Nak::SEQUENCE_ERROR, half.driver.expected)
}

// Handles a duplicate. Sends and writes are acknowledged again without being carried out; a read is served again within its
// original range; an atomic is answered from the stored value (IBTA 9.7.5.1.1).
#[cold]
fn duplicate<'p>(qp: &Qp, half: &mut Receiving, header: &Header, cx: &mut Cx<'p>) -> Answer<'p> {
    half.counters.duplicates += 1;
    // An acknowledge of a duplicate must not overtake a pending answer.
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
            if qp.carries_srqn && relay::elsewhere(qp, header).is_some() {
                return relay::begin(qp, half, header, &Payload::Empty, Repeats::Yes);
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

// For XRC, selects the shared receive queue that the request names: the request is carried out in its domain and takes its
// receive there. A queue that this target may not use makes the request invalid; all frames of a message name the same
// queue.
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

// Checks that another process may be asked to execute the request. That process checks everything else.
fn address_elsewhere(half: &mut Receiving, header: &Header) -> Result<(), Refusal> {
    let number = header.xrc.unwrap_or(0);
    let continues = match header.body {
        Body::Send(..) | Body::Write(..) => number == half.driver.rest.srqn,
        _ => false,
    };
    if !half.driver.is_between() && !continues {
        return Err(Refusal::INVALID);
    }
    if header.body.is_read_or_atomic() && half.driver.rest.max_dest_rd_atomic == 0 {
        return Err(Refusal::INVALID);
    }
    half.driver.rest.srqn = number;
    Ok(())
}

/// Notes that another process has executed the request of a packet with a payload of `length` bytes. Returns its
/// acknowledge, if one is requested.
pub(crate) fn arrived_elsewhere<'p>(
    qp: &Qp,
    half: &mut Receiving,
    header: &Header,
    length: usize,
) -> Answer<'p> {
    let payload = Payload::Empty;
    let incoming = Incoming {
        qp,
        header,
        payload: &payload,
        direct: None,
        at_once: false,
    };
    let ends = match header.body {
        Body::Send(position, _) => {
            half.counters.receives += u64::from(position.ends());
            position.ends()
        }
        Body::Write(position, _, _, immediate) => {
            half.counters.receives += u64::from(position.ends() && immediate.is_some());
            position.ends()
        }
        _ => true,
    };
    half.driver.inbound = match ends {
        true => Inbound::None,
        false => Inbound::Elsewhere,
    };
    let length = match header.body {
        Body::Send(..) | Body::Write(..) => length as u64,
        Body::ReadRequest(_, length) => length.into(),
        _ => 0,
    };
    incoming.arrived(half, length)
}

// Returns the sender's queue pair, which a completion of a shared receive queue of XRC names.
fn sender(qp: &Qp, half: &Receiving) -> Option<u32> {
    qp.carries_srqn.then_some(half.driver.rest.peer_qpn)
}

// Checks the length of a message (IBTA 9.7.4.1.6): a longer one might take more sequence numbers than there are.
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

/// Serves the waiting reads and atomics in order, and sends their answers. Returns `false` if the queue pair has failed or
/// refuses one of them.
pub fn serve_waiting(qp: &Qp, half: &mut Receiving, cx: &mut Cx<'_>) -> bool {
    serve_some(qp, half, u32::MAX, cx) != Progress::Refused
}

/// How many of the waiting requests a call has served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    All,
    /// Only a part of the answer to the first request has been sent.
    Some,
    Refused,
}

/// Serves the waiting requests. Of the answer to a read, at most `frames` packets are sent at once.
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

/// Returns whether the waiting requests go on later: the answer to a long read is sent in parts, or frames wait for room.
fn is_paced(half: &Receiving) -> bool {
    let framed = half.driver.rest.framed.as_ref();
    framed.is_some_and(|framed| framed.is_paced)
}

// Serves the waiting reads and atomics of a queue pair.
fn serve_queue_pair(qp: &QpRef, now: Time) {
    if !is_paced(&qp.responder()) {
        serve_next(qp, now);
    }
}

fn serve_next(qp: &QpRef, now: Time) {
    let wait = Cx::run(&qp.device, Some(now), |cx| {
        let half = &mut *qp.responder();
        let rest = &half.driver.rest;
        let has_ended = matches!(qp.state(), QpState::Reset | QpState::Init | QpState::Err);
        let has_waiting = !has_ended && rest.next_waiting().is_some();
        let is_crowded = has_waiting && frame::is_crowded(qp, rest.peer_address, rest.peer_qpn);
        let wait = match is_crowded {
            true => Some(CROWDED_FOR),
            // The rest of a long response leaves later, so that other queue pairs are served meanwhile.
            false => {
                let progress = serve_some(qp, half, READ_AT_ONCE, cx);
                (progress == Progress::Some).then_some(READ_EVERY)
            }
        };
        if let Some(framed) = &mut half.driver.rest.framed {
            framed.is_paced = wait.is_some();
        }
        wait
    });
    if let Some(wait) = wait {
        let me = qp.clone();
        let go_on = move |now| serve_next(&me, now);
        let timers = qp.device.network().timers();
        timers.add(now.after(wait), Box::new(go_on));
    }
}

/// Stores an answer for a duplicate of the request.
pub(crate) fn note(half: &mut Receiving, header: &Header, original: u64, answer: Octets) {
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
