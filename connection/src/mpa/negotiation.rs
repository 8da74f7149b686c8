//! One stream's start, as a state machine of either side.

use std::time::Duration;

use polyverbs_engine::time::Time;
use polyverbs_wire::iwarp::start::{
    self, Enhanced, Kind, MAX_START_LEN, Settings, Start, StartHeader,
};
use polyverbs_wire::iwarp::terminate::TerminateCode;
use thiserror::Error;
use verbs_api::provider::carrier::ReadyForms;

use super::depth::{Depth, Depths};

/// The initiator cannot serve what the responder starts (RFC 6581 section 9.1).
const INSUFFICIENT_IRD: TerminateCode = TerminateCode::new(2, 0, 6);
/// No form of the ready-to-receive indication that both have (RFC 6581 section 9.2).
const NO_MATCHING_RTR: TerminateCode = TerminateCode::new(2, 0, 7);

/// What a side wants of a stream.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct StartOptions {
    /// Highest revision: 1 or 2.
    pub revision: u8,
    /// Markers in what this side receives.
    pub markers: bool,
    /// Checksums, in both directions.
    pub crc: bool,
    /// What this side serves and has outstanding.
    pub depths: Depths,
    /// Most reads that this side can serve, where the peer wants more.
    pub most_ird: u16,
    /// Forms of the ready-to-receive indication that it has. An initiator with none sends first; a responder with none
    /// takes a send.
    pub rtr: ReadyForms,
    /// How long the peer may take for its part.
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

/// What a stream came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// 1 or 2.
    pub revision: u8,
    /// Checksums and markers.
    pub settings: Settings,
    /// What this side serves and has outstanding.
    pub depths: Depths,
    /// What the peer said of itself, IRD and ORD; with revision 2.
    pub peer: Option<(Depth, Depth)>,
    /// The ready-to-receive indication. The initiator sends it before any other FPDU; the responder waits for it.
    /// More than one at the responder: the
    /// initiator chooses. `None`: the responder waits for the initiator's first FPDU.
    pub rtr: Option<ReadyForms>,
}

/// What a responder answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartReply {
    /// There is a stream.
    Accept,
    /// There is none; the connection stays open until somebody closes it.
    Reject,
}

/// Why there is no stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Failure {
    /// What came is no request or reply: close without an answer.
    #[error("the peer does not speak MPA: {0}")]
    Malformed(#[from] start::Reject),
    /// Two initiators, or two responders: close.
    #[error("both sides are of the same role")]
    SameRole,
    /// A revision that was not asked for.
    #[error("the peer answers with revision {0}")]
    Revision(u8),
    /// A reply is enhanced if and only if the request was (RFC 6581 section 7).
    #[error("the reply has another form than the request")]
    Form,
    /// The peer took too long.
    #[error("the peer took too long")]
    TimedOut,
    /// The peer closed the connection. To a request of revision 2 that may mean that it has revision 1 only.
    #[error("the peer closed the connection")]
    Closed,
    /// A Terminate with this code goes out, then the connection is closed.
    #[error("the peer's offer cannot be met: {0:?}")]
    Terminate(TerminateCode),
    /// The call does not fit: nothing was changed.
    #[error("not now")]
    State,
    /// Too much private data: nothing was changed.
    #[error("{len} octets of private data, where there may be {max}")]
    PrivateData {
        /// What was given.
        len: usize,
        /// What fits.
        max: usize,
    },
}

/// What came of input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// More has to come.
    Pending,
    /// A request has come: answer it with [`Negotiation::answer`].
    Requested {
        /// The program's.
        private_data: Vec<u8>,
    },
    /// There is a stream.
    Started {
        /// What it came to.
        started: Started,
        /// The program's.
        private_data: Vec<u8>,
    },
    /// The peer does not want a stream.
    Rejected {
        /// The program's.
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

/// The start of one stream, from the one side or the other.
///
/// *In*: [`handle_octets`](Self::handle_octets), [`handle_close`](Self::handle_close),
/// [`handle_timeout`](Self::handle_timeout). *Out*: what these answer, [`poll_octets`](Self::poll_octets),
/// [`next_due`](Self::next_due). After [`Output::Started`] the octets left over are FPDUs.
#[derive(Debug)]
pub struct Negotiation {
    options: StartOptions,
    state: State,
    arrived: Vec<u8>,
    leaving: Vec<u8>,
    due: Option<Time>,
}

impl Negotiation {
    /// The side that asks: the request is what leaves first.
    ///
    /// # Errors
    /// Too much private data.
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

    /// The side that is asked.
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
        let mut octets = [0; MAX_START_LEN];
        if let Some(len) = start.encode(&mut octets) {
            self.leaving.extend_from_slice(&octets[..len]);
        }
    }

    /// Octets that are to leave, once.
    pub fn poll_octets(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.leaving)
    }

    /// When to call [`handle_timeout`](Self::handle_timeout).
    pub const fn next_due(&self) -> Option<Time> {
        self.due
    }

    /// Octets that came behind the request or reply.
    pub fn take_rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.arrived)
    }

    /// Octets have come, in whatever pieces.
    ///
    /// While the program has not answered a request, nothing may come: the initiator waits for the reply
    /// (RFC 5044 section 7.1.2). Octets beyond that are kept up to the length of a request.
    ///
    /// # Errors
    /// There will be no stream.
    pub fn handle_octets(&mut self, octets: &[u8]) -> Result<Output, Failure> {
        let most = match self.state {
            State::AwaitsReply { .. } => MAX_KEPT,
            _ => MAX_START_LEN,
        };
        if self.arrived.len() + octets.len() > most {
            self.end();
            return Err(start::Reject::PrivateDataLength.into());
        }
        self.arrived.extend_from_slice(octets);
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

    /// The stream has ended.
    ///
    /// # Errors
    /// Always, unless all was over.
    pub fn handle_close(&mut self) -> Result<(), Failure> {
        let was_over = self.state == State::Over;
        self.end();
        if was_over {
            Ok(())
        } else {
            Err(Failure::Closed)
        }
    }

    /// Whether to connect anew with revision 1: a peer that closed upon revision 2 may have nothing else.
    pub const fn may_fall_back(&self, failure: &Failure) -> bool {
        matches!(failure, Failure::Closed) && self.options.revision >= 2
    }

    /// Time has passed.
    ///
    /// # Errors
    /// The peer took too long.
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

    /// Whether the peer's request is there, as a whole.
    pub const fn has_request(&self) -> bool {
        matches!(self.state, State::AwaitsAnswer { .. })
    }

    /// What the peer that asks said of itself, IRD and ORD; with revision 2, until it is answered.
    pub fn asked(&self) -> Option<(Depth, Depth)> {
        match self.state {
            State::AwaitsAnswer { enhanced, .. } => {
                enhanced.map(|asked| (Depth::of(asked.ird), Depth::of(asked.ord)))
            }
            _ => None,
        }
    }

    /// What this side serves and has outstanding, before it answers.
    pub const fn set_depths(&mut self, depths: Depths) {
        self.options.depths = depths;
        self.options.most_ird = depths.ird;
    }

    /// Answers a request. `None` where it was refused.
    ///
    /// # Errors
    /// No request has come, or too much private data; nothing was changed.
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
        // The reply is of the lower revision, and enhanced if and only if the request is.
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
        // At least one form is named (RFC 6581 section 9.2), even where none matches: a send every device takes.
        let own = if self.options.rtr.is_empty() {
            ReadyForms::SEND
        } else {
            self.options.rtr
        };
        let common = rtr_of(asked) & own;
        let rtr = asked.peer_to_peer.then_some(common);
        let can_be_read = asked.peer_to_peer && common.contains(ReadyForms::READ);
        let (depths, (ird, ord)) = self
            .options
            .depths
            .answer(asked.ird, asked.ord, can_be_read);
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

/// What may wait behind a request or reply: a socket's worth of FPDUs.
const MAX_KEPT: usize = MAX_START_LEN + (1 << 16);

/// Which of the forms that both have: a write needs nothing at the other side, a read needs room, a send a receive.
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
