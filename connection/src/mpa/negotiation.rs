//! MPA connection setup on one stream, as a state machine for either side.

use std::time::Duration;

use polyverbs_engine::time::Time;
use polyverbs_wire::iwarp::start::{
    self, Enhanced, Kind, MAX_START_LEN, Settings, Start, StartHeader,
};
use polyverbs_wire::iwarp::terminate::TerminateCode;
use thiserror::Error;
use verbs_api::provider::carrier::ReadyForms;

use super::depth::{Depth, Depths};

/// The code of the Terminate message if the initiator cannot execute as many reads as the responder will start (RFC 6581
/// section 9.1).
const INSUFFICIENT_IRD: TerminateCode = TerminateCode::new(2, 0, 6);
/// The code of the Terminate message if the two sides have no form of the ready-to-receive indication in common (RFC 6581
/// section 9.2).
const NO_MATCHING_RTR: TerminateCode = TerminateCode::new(2, 0, 7);

/// What one side of a stream offers in the MPA negotiation.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct StartOptions {
    /// The highest MPA revision that this side supports: 1 or 2.
    pub revision: u8,
    /// Whether the FPDUs that this side receives shall have markers.
    pub markers: bool,
    /// Whether the FPDUs of both directions shall have a CRC.
    pub crc: bool,
    /// This side's read limits (IRD and ORD).
    pub depths: Depths,
    /// How many reads this side can execute at one time if the peer wants more than `depths` says.
    pub most_ird: u16,
    /// The forms of the ready-to-receive indication that this side supports. An initiator that supports none sends its
    /// first FPDU without an indication; a responder that supports none accepts a send.
    pub rtr: ReadyForms,
    /// How long the peer may take to send its MPA request or reply.
    pub patience: Duration,
}

impl Default for StartOptions {
    fn default() -> Self {
        Self {
            revision: 2,
            markers: false,
            crc: true,
            depths: Depths { ird: 16, ord: 16 },
            most_ird: 128,
            rtr: ReadyForms::all(),
            patience: Duration::from_secs(10),
        }
    }
}

/// The settings that both sides of a stream have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// The MPA revision that both sides use: 1 or 2.
    pub revision: u8,
    /// Whether FPDUs have a CRC and markers.
    pub settings: Settings,
    /// This side's read limits (IRD and ORD).
    pub depths: Depths,
    /// The peer's IRD and ORD; `None` with revision 1.
    pub peer: Option<(Depth, Depth)>,
    /// The forms of the ready-to-receive indication, which the initiator sends before any other FPDU and for which the
    /// responder waits. If the responder accepts more than one form, the initiator chooses. `None`: the responder waits for
    /// the initiator's first FPDU.
    pub rtr: Option<ReadyForms>,
}

/// The answer of the MPA responder to the initiator's MPA request, which its MPA reply carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartReply {
    /// The responder accepts the stream, and FPDUs follow the reply.
    Accept,
    /// The responder rejects the stream; the TCP connection stays open until either side closes it.
    Reject,
}

/// Why the MPA negotiation failed, and what the caller has to do then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Failure {
    /// The peer sent neither a request nor a reply: close the stream without an answer.
    #[error("the peer does not speak MPA: {0}")]
    Malformed(#[from] start::Reject),
    /// Both sides are initiators, or both are responders: close the stream.
    #[error("both sides are initiators, or both are responders")]
    SameRole,
    /// The peer's reply has an MPA revision that this side has not requested.
    #[error("the peer answers with revision {0}, which was not requested")]
    Revision(u8),
    /// The peer's reply is enhanced although this side's request was not, or the reverse (RFC 6581 section 7).
    #[error("only one of request and reply is enhanced")]
    Form,
    /// The peer took too long to send its request or reply.
    #[error("the peer sent no request or reply in time")]
    TimedOut,
    /// The peer closed the stream. After a request of revision 2 that may mean that it supports only revision 1.
    #[error("the peer closed the connection")]
    Closed,
    /// This side has to send a Terminate message with this code, and then close the stream.
    #[error("the peer's offer cannot be met: {0:?}")]
    Terminate(TerminateCode),
    /// The call is not allowed in the present state of the negotiation, and has changed nothing.
    #[error("not allowed in this state of the negotiation")]
    State,
    /// The private data of this side is too long; the call has changed nothing.
    #[error("{len} bytes of private data, where there may be {max}")]
    PrivateData {
        /// The number of bytes of private data given.
        len: usize,
        /// The largest number of bytes of private data that fit.
        max: usize,
    },
}

/// The result of handling bytes that were received from the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// More bytes of the peer's request or reply are needed.
    Pending,
    /// The peer's request was received completely: answer it with [`Negotiation::answer`].
    Requested {
        /// The private data of the peer's program.
        private_data: Vec<u8>,
    },
    /// The negotiation is finished, and FPDUs follow.
    Started {
        /// The settings that both sides of a stream have agreed on.
        started: Started,
        /// The private data of the peer's program.
        private_data: Vec<u8>,
    },
    /// The peer has rejected the stream.
    Rejected {
        /// The private data of the peer's program.
        private_data: Vec<u8>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    AwaitsReply {
        request: StartHeader,
    },
    AwaitsRequest,
    AwaitsAnswer {
        header: StartHeader,
        enhanced: Option<Enhanced>,
    },
    Over,
}

/// The MPA negotiation on one stream, for either side, as a state machine.
///
/// *In*: [`handle_bytes`](Self::handle_bytes), [`handle_close`](Self::handle_close), [`handle_timeout`](Self::handle_timeout).
/// *Out*: their results, [`poll_bytes`](Self::poll_bytes), [`next_due`](Self::next_due). The bytes left over after
/// [`Output::Started`] are FPDUs.
#[derive(Debug)]
pub struct Negotiation {
    options: StartOptions,
    state: State,
    arrived: Vec<u8>,
    leaving: Vec<u8>,
    due: Option<Time>,
}

impl Negotiation {
    /// Creates the negotiation of an initiator, which sends its request first.
    ///
    /// # Errors
    /// The private data is too long.
    pub fn initiator(
        now: Time,
        options: StartOptions,
        private_data: &[u8],
    ) -> Result<Self, Failure> {
        let enhanced = (options.revision >= 2).then(|| {
            let (ird, ord) = options.depths.fields();
            enhanced(options.rtr, !options.rtr.is_empty(), ird, ord)
        });
        let mut start = frame(Kind::Request, enhanced, private_data)?;
        start.header.markers = options.markers;
        start.header.crc = options.crc;
        let mut this = Self::new(
            now,
            options,
            State::AwaitsReply {
                request: start.header,
            },
        );
        this.push(&start);
        Ok(this)
    }

    /// Creates the negotiation of a responder, which waits for the initiator's request.
    pub fn responder(now: Time, options: StartOptions) -> Self {
        Self::new(now, options, State::AwaitsRequest)
    }

    fn new(now: Time, options: StartOptions, state: State) -> Self {
        Self {
            due: Some(now.after(options.patience)),
            options,
            state,
            arrived: Vec::new(),
            leaving: Vec::new(),
        }
    }

    fn push(&mut self, start: &Start<'_>) {
        let mut bytes = [0; MAX_START_LEN];
        if let Some(len) = start.encode(&mut bytes) {
            self.leaving.extend_from_slice(&bytes[..len]);
        }
    }

    /// Returns the bytes that the caller has to send to the peer, each only once.
    pub fn poll_bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.leaving)
    }

    /// Returns when the caller has to call [`handle_timeout`](Self::handle_timeout); `None` if no timer runs.
    pub const fn next_due(&self) -> Option<Time> {
        self.due
    }

    /// Takes the bytes that were received after the request or reply: the beginning of the peer's frames.
    pub fn take_rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.arrived)
    }

    /// Handles received bytes, which may contain parts of messages.
    ///
    /// Until the program has answered a request, the initiator sends no further bytes, because it waits for the reply (RFC
    /// 5044 section 7.1.2). Further bytes are kept up to the length of a request.
    ///
    /// # Errors
    /// The negotiation failed.
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> Result<Output, Failure> {
        let most = match self.state {
            State::AwaitsReply { .. } => MAX_KEPT,
            _ => MAX_START_LEN,
        };
        if self.arrived.len() + bytes.len() > most {
            self.end();
            return Err(start::Reject::PrivateDataLength.into());
        }
        self.arrived.extend_from_slice(bytes);
        let outcome = match self.state {
            State::AwaitsRequest => self.on_request(),
            State::AwaitsReply { request } => self.on_reply(&request),
            State::AwaitsAnswer { .. } | State::Over => Ok(Output::Pending),
        };
        if outcome.is_err() {
            self.end();
        }
        outcome
    }

    /// Handles that the peer has closed the stream.
    ///
    /// # Errors
    /// Always, unless the negotiation is over.
    pub fn handle_close(&mut self) -> Result<(), Failure> {
        let was_over = self.state == State::Over;
        self.end();
        if was_over {
            Ok(())
        } else {
            Err(Failure::Closed)
        }
    }

    /// Whether another attempt with revision 1 is worthwhile: a peer that closed the stream after a request of revision 2
    /// may support no other.
    pub const fn may_fall_back(&self, failure: &Failure) -> bool {
        matches!(failure, Failure::Closed) && self.options.revision >= 2
    }

    /// Handles the timer if it has expired at the time `now`.
    ///
    /// # Errors
    /// The peer took too long to send its request or reply.
    pub fn handle_timeout(&mut self, now: Time) -> Result<(), Failure> {
        if self.due.is_some_and(|due| due <= now) {
            self.end();
            return Err(Failure::TimedOut);
        }
        Ok(())
    }

    fn end(&mut self) {
        self.state = State::Over;
        self.due = None;
    }

    fn on_request(&mut self) -> Result<Output, Failure> {
        let Some((start, len)) = start::decode(&self.arrived)? else {
            return Ok(Output::Pending);
        };
        if start.kind != Kind::Request {
            return Err(Failure::SameRole);
        }
        if start.header.revision == 0 {
            return Err(Failure::Revision(0));
        }
        let private_data = start.private_data.to_vec();
        let (header, enhanced) = (start.header, start.enhanced);
        self.state = State::AwaitsAnswer { header, enhanced };
        self.due = None;
        self.arrived.drain(..len);
        Ok(Output::Requested { private_data })
    }

    /// Whether the peer's MPA request was received completely.
    pub const fn has_request(&self) -> bool {
        matches!(self.state, State::AwaitsAnswer { .. })
    }

    /// Returns IRD and ORD of the peer's request; `None` with revision 1, and after the request was answered.
    pub fn asked(&self) -> Option<(Depth, Depth)> {
        match self.state {
            State::AwaitsAnswer { enhanced, .. } => {
                enhanced.map(|asked| (Depth::of(asked.ird), Depth::of(asked.ord)))
            }
            _ => None,
        }
    }

    /// Sets this side's read limits, before it answers a request; they are the most that it can do.
    pub const fn set_depths(&mut self, depths: Depths) {
        self.options.depths = depths;
        self.options.most_ird = depths.ird;
    }

    /// Answers the peer's MPA request, as the responder. Returns the settings that both sides have agreed on; `None` if
    /// `reply` rejects the request.
    ///
    /// # Errors
    /// There is no request to answer, or the private data is too long; nothing was changed.
    pub fn answer(
        &mut self,
        reply: StartReply,
        private_data: &[u8],
    ) -> Result<Option<Started>, Failure> {
        let State::AwaitsAnswer {
            header,
            enhanced: asked,
        } = self.state
        else {
            return Err(Failure::State);
        };
        // The reply has the lower of both revisions, and is enhanced if and only if the request is.
        let revision = header.revision.min(self.options.revision).clamp(1, 2);
        let asked = asked.filter(|_| revision >= 2);
        let (depths, enhanced, rtr) = match asked {
            Some(asked) => {
                let (depths, enhanced, rtr) = self.meet(&asked);
                (depths, Some(enhanced), rtr)
            }
            None => (self.options.depths, None, None),
        };
        let mut start = frame(Kind::Reply, enhanced, private_data)?;
        start.header.revision = revision;
        start.header.markers = self.options.markers;
        start.header.crc = self.options.crc || header.crc;
        start.header.reject = reply == StartReply::Reject;
        self.push(&start);
        self.end();
        Ok((reply == StartReply::Accept).then(|| Started {
            revision,
            settings: Settings::of(&header, &start.header),
            depths,
            peer: asked.map(|asked| (Depth::of(asked.ird), Depth::of(asked.ord))),
            rtr,
        }))
    }

    fn meet(&self, asked: &Enhanced) -> (Depths, Enhanced, Option<ReadyForms>) {
        // A reply names at least one form (RFC 6581 section 9.2), even if none matches: every device accepts a send.
        let own = if self.options.rtr.is_empty() {
            ReadyForms::SEND
        } else {
            self.options.rtr
        };
        let common = rtr_of(asked) & own;
        let rtr = asked.peer_to_peer.then_some(common);
        let can_be_read = asked.peer_to_peer && common.contains(ReadyForms::READ);
        let options = &self.options;
        let (depths, (ird, ord)) =
            options
                .depths
                .answer(options.most_ird, asked.ird, asked.ord, can_be_read);
        let named = if common.is_empty() { own } else { common };
        let reply = enhanced(named, asked.peer_to_peer, ird, ord);
        (depths, reply, rtr)
    }

    fn on_reply(&mut self, request: &StartHeader) -> Result<Output, Failure> {
        let Some((start, len)) = start::decode(&self.arrived)? else {
            return Ok(Output::Pending);
        };
        if start.kind != Kind::Reply {
            return Err(Failure::SameRole);
        }
        let (header, reply) = (start.header, start.enhanced);
        if header.revision == 0 || header.revision > request.revision {
            return Err(Failure::Revision(header.revision));
        }
        let private_data = start.private_data.to_vec();
        self.arrived.drain(..len);
        if header.reject {
            self.end();
            return Ok(Output::Rejected { private_data });
        }
        if header.revision >= 2 && reply.is_some() != request.enhanced {
            return Err(Failure::Form);
        }
        let started = self.settle(request, &header, reply)?;
        self.end();
        Ok(Output::Started {
            started,
            private_data,
        })
    }

    fn settle(
        &self,
        request: &StartHeader,
        header: &StartHeader,
        reply: Option<Enhanced>,
    ) -> Result<Started, Failure> {
        let mut started = Started {
            revision: header.revision,
            settings: Settings::of(request, header),
            depths: self.options.depths,
            peer: None,
            rtr: None,
        };
        let Some(reply) = reply else {
            return Ok(started);
        };
        started.peer = Some((Depth::of(reply.ird), Depth::of(reply.ord)));
        let settled = self
            .options
            .depths
            .settle(self.options.most_ird, reply.ird, reply.ord);
        started.depths = settled.ok_or(Failure::Terminate(INSUFFICIENT_IRD))?;
        if !self.options.rtr.is_empty() {
            let common = rtr_of(&reply) & self.options.rtr;
            started.rtr = Some(chosen(common).ok_or(Failure::Terminate(NO_MATCHING_RTR))?);
        }
        Ok(started)
    }
}

/// How many bytes a waiting initiator keeps: the reply, and as many bytes of FPDUs after it as a socket buffers.
const MAX_KEPT: usize = MAX_START_LEN + (1 << 16);

/// Returns the form of the ready-to-receive indication to use, of those that both sides support. A write is preferred,
/// because it needs nothing of the peer; then a read, which needs IRD; then a send, which needs a posted receive.
fn chosen(common: ReadyForms) -> Option<ReadyForms> {
    let order = [ReadyForms::WRITE, ReadyForms::READ, ReadyForms::SEND];
    order.into_iter().find(|form| common.contains(*form))
}

fn rtr_of(enhanced: &Enhanced) -> ReadyForms {
    let mut rtr = ReadyForms::empty();
    if enhanced.peer_to_peer {
        rtr.set(ReadyForms::SEND, enhanced.rtr_send);
        rtr.set(ReadyForms::WRITE, enhanced.rtr_write);
        rtr.set(ReadyForms::READ, enhanced.rtr_read);
    }
    rtr
}

fn enhanced(rtr: ReadyForms, peer_to_peer: bool, ird: u16, ord: u16) -> Enhanced {
    Enhanced {
        peer_to_peer,
        rtr_send: peer_to_peer && rtr.contains(ReadyForms::SEND),
        ird,
        rtr_write: peer_to_peer && rtr.contains(ReadyForms::WRITE),
        rtr_read: peer_to_peer && rtr.contains(ReadyForms::READ),
        ord,
    }
}

fn frame(
    kind: Kind,
    enhanced: Option<Enhanced>,
    private_data: &[u8],
) -> Result<Start<'_>, Failure> {
    let taken = if enhanced.is_some() { 4 } else { 0 };
    Start::new(kind, enhanced, private_data).ok_or(Failure::PrivateData {
        len: private_data.len(),
        max: start::MAX_PRIVATE_DATA - taken,
    })
}
