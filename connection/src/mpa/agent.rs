//! Connections of one device by MPA: a [`Negotiation`] on each stream, between a program's connectors and the device's streams.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use polyverbs_engine::time::Time;
use polyverbs_wire::iwarp::terminate::{MAX_LEN, TerminateCode};
use polyverbs_wire::iwarp::{self as wire, Framing, Opcode, Untagged, ddp};
use polyverbs_wire::layout::Header as _;
use verbs_api::provider::Mutex;
use verbs_api::provider::backend::{
    Backend, CmEvent, ConnectError, ListenSink, Offer, PingSink, PrivateDataLimits, Refusal, Sink,
    Token,
};
use verbs_api::provider::carrier::{
    ReadyForms, StreamAgreed, StreamClose, StreamEnd, StreamListener, StreamPort, StreamSink,
};
use verbs_api::qp::{Half, QpType};
use verbs_api::{
    QpEndpoint, VerbError,
    ids::{Gid, LinkAddress, Psn, Qpn},
};

use super::ping;
use super::{Depth, Depths, Failure, Negotiation, Output, StartOptions, StartReply, Started};
use crate::notice::Notice;

/// Connects queue pairs of one device on an IP network, as a backend that exchanges MPA requests and replies on the
/// device's streams.
pub struct Agent {
    port: Weak<dyn StreamPort>,
    state: Mutex<State>,
    me: Weak<Self>,
}

#[derive(Default)]
struct State {
    ends: BTreeMap<Token, Arc<End>>,
    made: u64,
}

impl Agent {
    /// Creates an agent that uses the streams of this port.
    pub fn new(port: &Arc<dyn StreamPort>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            port: Arc::downgrade(port),
            state: Mutex::default(),
            me: me.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn port(&self) -> Result<Arc<dyn StreamPort>, ConnectError> {
        let gone = || VerbError::DeviceRemoved.into();
        self.port.upgrade().ok_or_else(gone)
    }

    fn find(&self, token: Token) -> Option<Arc<End>> {
        self.lock().ends.get(&token).cloned()
    }

    fn remove(&self, token: Token) -> Option<Arc<End>> {
        self.lock().ends.remove(&token)
    }

    fn add(&self, peer: SocketAddr, state: EndState) -> Arc<End> {
        let mut own = self.lock();
        own.made += 1;
        let token = Token(own.made);
        let end = Arc::new_cyclic(|me| End {
            me: me.clone(),
            agent: self.me.clone(),
            port: self.port.clone(),
            token,
            peer,
            state: Mutex::new(state),
        });
        own.ends.insert(token, Arc::clone(&end));
        end
    }
}

/// One end of a connection, as the agent manages it.
struct End {
    me: Weak<Self>,
    agent: Weak<Agent>,
    port: Weak<dyn StreamPort>,
    token: Token,
    peer: SocketAddr,
    state: Mutex<EndState>,
}

struct EndState {
    phase: Phase,
    negotiation: Negotiation,
    stream: Option<Qpn>,
    is_connected: bool,
    sink: Option<Arc<dyn Sink>>,
    listener: Option<Arc<dyn ListenSink<Offer>>>,
    /// The address and offer for another attempt with MPA revision 1, in case the peer does not support revision 2.
    fallback: Option<(SocketAddr, Offer)>,
    /// The time until which the active side must have completed the connection; `None` if it is not awaited.
    complete_by: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The MPA request and reply are being exchanged.
    Negotiating,
    /// Both sides may send FPDUs, but the active side has not completed the connection.
    Agreed,
    /// The connection is established: the active side has completed it.
    Open,
    /// This side has closed the connection.
    Closing,
    /// The connection has ended.
    Over,
}

fn options_of(port: &dyn StreamPort, depths: Depths) -> StartOptions {
    let wishes = port.wishes();
    StartOptions {
        markers: wishes.markers,
        crc: wishes.crc,
        depths,
        most_ird: depths.ird,
        ..StartOptions::default()
    }
}

fn depths_of(offer: &Offer) -> Depths {
    Depths {
        ird: offer.inbound_reads.into(),
        ord: offer.outbound_reads.into(),
    }
}

// The port that the program chose, or 0.
fn source_port(offer: &Offer) -> u16 {
    offer.from.map_or(0, |from| from.port())
}

fn deliver(notice: Option<Notice>) {
    if let Some(notice) = notice {
        notice.deliver();
    }
}

fn as_time(now: Duration) -> Time {
    Time::default().after(now)
}

impl End {
    fn lock(&self) -> MutexGuard<'_, EndState> {
        self.state.lock()
    }

    fn offer(&self, stream: Qpn, depths: Option<(Depth, Depth)>, private_data: Vec<u8>) -> Offer {
        let reads = |depth| match depth {
            Depth::Reads(reads) => u8::try_from(reads).unwrap_or(u8::MAX),
            Depth::LeftToProgram => u8::MAX,
        };
        let (ird, ord) = depths.unwrap_or((Depth::LeftToProgram, Depth::LeftToProgram));
        Offer {
            from: Some(self.peer),
            endpoint: QpEndpoint {
                address: LinkAddress::Ip(self.peer.ip()),
                gid: Gid(match self.peer.ip() {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                    IpAddr::V6(ip) => ip.octets(),
                }),
                qp_num: stream,
                sq_psn: Psn::default(),
            },
            qp_type: QpType::Rc,
            half: Half::Both,
            takes_psn: None,
            inbound_reads: reads(ird),
            outbound_reads: reads(ord),
            path_mtu: None,
            traffic_class: None,
            retry_cnt: None,
            rnr_retry: None,
            flow_control: false,
            srq: false,
            private_data,
        }
    }

    // The connection has ended: `last` is its last event.
    fn finish(&self, state: &mut EndState, last: CmEvent) -> Option<Notice> {
        if state.phase == Phase::Over {
            return None;
        }
        state.phase = Phase::Over;
        match (state.sink.take(), state.listener.take()) {
            (Some(sink), _) => Some(Notice::Event(sink, last)),
            (None, Some(listener)) => Some(Notice::RequestWithdrawn(listener, self.token)),
            (None, None) => None,
        }
    }

    fn remove_from_agent(&self) {
        if let Some(agent) = self.agent.upgrade() {
            drop(agent.remove(self.token));
        }
    }

    fn begun_as(&self, stream: Qpn) {
        let mut state = self.lock();
        state.stream = Some(stream);
        let is_connected = state.is_connected;
        let due = state.negotiation.next_due();
        drop(state);
        if let (Some(port), Some(due)) = (self.port.upgrade(), due) {
            port.wake_at(stream, Duration::from_nanos(due.0));
        }
        if is_connected {
            self.connected();
        }
    }

    // The peer closed upon a request of revision 2: it may support only revision 1.
    fn fall_back(&self, state: &mut EndState) -> bool {
        let (Some((_, offer)), Some(port)) = (state.fallback.take(), self.port.upgrade()) else {
            return false;
        };
        let options = StartOptions {
            revision: 1,
            rtr: ReadyForms::empty(),
            ..options_of(&*port, depths_of(&offer))
        };
        let now = as_time(port.now());
        let Ok(negotiation) = Negotiation::initiator(now, options, &offer.private_data) else {
            return false;
        };
        state.negotiation = negotiation;
        state.stream = None;
        state.is_connected = false;
        true
    }

    fn on_output(&self, output: Output, state: &mut EndState) -> Option<Notice> {
        let stream = state.stream?;
        match output {
            Output::Pending => None,
            Output::Requested { private_data } if private_data == ping::PRIVATE_DATA => {
                // A ping: the program does not see it.
                let refused = state.negotiation.answer(StartReply::Reject, b"");
                let reply = state.negotiation.poll_bytes();
                if let (Some(port), true) = (self.port.upgrade(), refused.is_ok()) {
                    port.send(stream, &reply);
                    port.close(stream, StreamClose::Graceful);
                }
                state.phase = Phase::Over;
                None
            }
            Output::Requested { private_data } => {
                let offer = self.offer(stream, state.negotiation.asked(), private_data);
                let listener = state.listener.clone()?;
                Some(Notice::Request(listener, self.token, offer))
            }
            Output::Started {
                started,
                private_data,
            } => {
                let rest = state.negotiation.take_rest();
                let agreed = StreamAgreed {
                    crc: started.settings.crc,
                    sends_markers: started.settings.initiator_markers,
                    receives_markers: started.settings.responder_markers,
                    says: started.rtr.unwrap_or(ReadyForms::empty()),
                    awaits: ReadyForms::empty(),
                    is_held: false,
                };
                state.phase = Phase::Agreed;
                state.fallback = None;
                if let Some(port) = self.port.upgrade() {
                    port.agree(stream, agreed, b"", &rest);
                }
                let offer = self.offer(stream, started.peer, private_data);
                Some(Notice::Event(state.sink.clone()?, CmEvent::Accepted(offer)))
            }
            Output::Rejected { private_data } => {
                if let Some(port) = self.port.upgrade() {
                    port.close(stream, StreamClose::Graceful);
                }
                self.finish(
                    state,
                    CmEvent::Rejected(Refusal::ProgramOrBacklog, private_data),
                )
            }
        }
    }

    fn on_failure(&self, failure: &Failure, state: &mut EndState) -> Option<Notice> {
        if let (Some(stream), Some(port)) = (state.stream, self.port.upgrade()) {
            let how = match failure {
                Failure::Terminate(code) => {
                    port.send(stream, &terminate(*code));
                    StreamClose::Graceful
                }
                _ => StreamClose::Abrupt,
            };
            port.close(stream, how);
        }
        let last = match failure {
            Failure::TimedOut => CmEvent::TimedOut,
            _ => CmEvent::Aborted,
        };
        self.finish(state, last)
    }

    fn close(&self, how: StreamClose) {
        let stream = self.lock().stream;
        if let (Some(stream), Some(port)) = (stream, self.port.upgrade()) {
            port.close(stream, how);
        }
    }

    fn is_over(&self) -> bool {
        self.lock().phase == Phase::Over
    }
}

// A Terminate as an FPDU, for a peer whose offer cannot be met (RFC 6581 section 8).
fn terminate(code: TerminateCode) -> Vec<u8> {
    let header = Untagged::new(Opcode::TERMINATE, ddp::queue::TERMINATE, 1, 0, true);
    let mut room = [0; MAX_LEN];
    let terminate = wire::Terminate::new(code).encode(&mut room);
    let framing = Framing {
        markers: false,
        crc: true,
    };
    let mut bytes = [0; 64];
    let frame = wire::Direction::new(framing).frame(&[&header.to_view().0, terminate], &mut bytes);
    bytes[..frame.unwrap_or_default()].to_vec()
}

impl StreamSink for End {
    fn connected(&self) {
        let mut state = self.lock();
        state.is_connected = true;
        let Some(stream) = state.stream else { return };
        let bytes = state.negotiation.poll_bytes();
        drop(state);
        if let (Some(port), false) = (self.port.upgrade(), bytes.is_empty()) {
            port.send(stream, &bytes);
        }
    }

    fn octets(&self, bytes: &[u8]) {
        let mut state = self.lock();
        if state.phase != Phase::Negotiating {
            return;
        }
        let notice = match state.negotiation.handle_bytes(bytes) {
            Ok(output) => self.on_output(output, &mut state),
            Err(failure) => self.on_failure(&failure, &mut state),
        };
        drop(state);
        deliver(notice);
        if self.is_over() {
            self.remove_from_agent();
        }
    }

    fn has_asked(&self) -> bool {
        let state = self.lock();
        state.phase != Phase::Negotiating || state.negotiation.has_request()
    }

    fn begun(&self) {
        let mut state = self.lock();
        if state.phase != Phase::Agreed || state.complete_by.is_none() {
            return;
        }
        state.phase = Phase::Open;
        state.complete_by = None;
        let sink = state.sink.clone();
        drop(state);
        if let Some(sink) = sink {
            sink.event(CmEvent::Completed);
        }
    }

    fn ended(&self, end: StreamEnd) {
        let mut state = self.lock();
        let failure = state.negotiation.handle_close().err();
        let may_try = state.phase == Phase::Negotiating
            && state.is_connected
            && matches!(end, StreamEnd::Closed | StreamEnd::Reset)
            && failure.is_some_and(|failure| state.negotiation.may_fall_back(&failure));
        let again = state.fallback.as_ref();
        let again = again.map(|(to, offer)| (source_port(offer), *to));
        if may_try
            && let Some((from, to)) = again
            && self.fall_back(&mut state)
        {
            drop(state);
            let port = self.port.upgrade();
            let begun = port
                .zip(self.me.upgrade())
                .map(|(port, me)| port.connect(from, to, me));
            match begun {
                Some(Ok(stream)) => return self.begun_as(stream),
                _ => state = self.lock(),
            }
        }
        let last = match (state.phase, end) {
            (Phase::Negotiating, StreamEnd::Refused) => {
                CmEvent::Rejected(Refusal::NoListener, Vec::new())
            }
            (_, StreamEnd::TimedOut) if state.phase != Phase::Open => CmEvent::TimedOut,
            (_, StreamEnd::Unreachable(errno)) if state.phase != Phase::Open => {
                CmEvent::Failed(ConnectError::Unsent(errno))
            }
            (Phase::Negotiating | Phase::Agreed, _) => CmEvent::Aborted,
            (Phase::Closing, _) => CmEvent::DisconnectConfirmed,
            _ => CmEvent::Disconnected,
        };
        let notice = self.finish(&mut state, last);
        drop(state);
        deliver(notice);
        self.remove_from_agent();
    }

    fn due(&self) {
        let Some(port) = self.port.upgrade() else {
            return;
        };
        let now = port.now();
        let mut state = self.lock();
        let is_late = state.phase == Phase::Agreed && state.complete_by.is_some_and(|at| at <= now);
        let notice = match state.phase {
            Phase::Negotiating => match state.negotiation.handle_timeout(as_time(now)) {
                Ok(()) => return,
                Err(failure) => self.on_failure(&failure, &mut state),
            },
            Phase::Agreed if is_late => self.finish(&mut state, CmEvent::TimedOut),
            _ => return,
        };
        drop(state);
        deliver(notice);
        if is_late {
            self.close(StreamClose::Abrupt);
        }
        self.remove_from_agent();
    }
}

/// Receives the streams that peers connect to a listener.
struct ListenerSink {
    agent: Weak<Agent>,
    sink: Arc<dyn ListenSink<Offer>>,
}

impl StreamListener for ListenerSink {
    fn accepted(&self, stream: Qpn, from: SocketAddr) -> Option<Arc<dyn StreamSink>> {
        let agent = self.agent.upgrade()?;
        let port = agent.port.upgrade()?;
        let options = options_of(&*port, Depths { ird: 0, ord: 0 });
        let negotiation = Negotiation::responder(as_time(port.now()), options);
        let due = negotiation.next_due();
        let end = agent.add(
            from,
            EndState {
                phase: Phase::Negotiating,
                negotiation,
                stream: Some(stream),
                is_connected: true,
                sink: None,
                listener: Some(Arc::clone(&self.sink)),
                fallback: None,
                complete_by: None,
            },
        );
        if let Some(due) = due {
            port.wake_at(stream, Duration::from_nanos(due.0));
        }
        Some(end)
    }
}

impl Backend for Agent {
    fn private_data(&self) -> PrivateDataLimits {
        PrivateDataLimits::IWARP
    }

    fn listen(
        &self,
        at: SocketAddr,
        _: usize,
        sink: Arc<dyn ListenSink<Offer>>,
    ) -> Result<SocketAddr, ConnectError> {
        let sink = ListenerSink {
            agent: self.me.clone(),
            sink,
        };
        let listening = self.port()?.listen(at, Arc::new(sink));
        listening.map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => ConnectError::AddressInUse {
                address: at,
                holder: None,
            },
            _ => VerbError::os("listen", error).into(),
        })
    }

    fn unlisten(&self, at: SocketAddr) {
        if let Some(port) = self.port.upgrade() {
            port.unlisten(at);
        }
    }

    fn connect(
        &self,
        to: SocketAddr,
        offer: Offer,
        sink: Arc<dyn Sink>,
    ) -> Result<Token, ConnectError> {
        if offer.half != Half::Both {
            let what = "a connection that goes one way, over a stream";
            return Err(VerbError::UnsupportedHere(what.to_owned()).into());
        }
        let port = self.port()?;
        let from = source_port(&offer);
        let options = options_of(&*port, depths_of(&offer));
        let now = as_time(port.now());
        let negotiation = Negotiation::initiator(now, options, &offer.private_data)
            .map_err(|failure| failed_call(&failure))?;
        let end = self.add(
            to,
            EndState {
                phase: Phase::Negotiating,
                negotiation,
                stream: None,
                is_connected: false,
                sink: Some(sink),
                listener: None,
                fallback: Some((to, offer)),
                complete_by: None,
            },
        );
        match port.connect(from, to, Arc::clone(&end) as _) {
            Ok(stream) => end.begun_as(stream),
            Err(error) => {
                end.remove_from_agent();
                return Err(match error.kind() {
                    io::ErrorKind::AddrInUse => ConnectError::AddressInUse {
                        address: SocketAddr::new(port.address(), from),
                        holder: None,
                    },
                    _ => VerbError::os("connect", error).into(),
                });
            }
        }
        Ok(end.token)
    }

    fn accept(&self, token: Token, offer: Offer, sink: Arc<dyn Sink>) -> Result<(), ConnectError> {
        let end = self.find(token).ok_or(ConnectError::Aborted)?;
        let port = self.port()?;
        let mut state = end.lock();
        state.negotiation.set_depths(depths_of(&offer));
        let answered = state
            .negotiation
            .answer(StartReply::Accept, &offer.private_data);
        let started: Started = match (answered, state.stream) {
            (Ok(Some(started)), Some(_)) => started,
            (Err(failure), _) => return Err(failed_call(&failure)),
            _ => return Err(ConnectError::Aborted),
        };
        let reply = state.negotiation.poll_bytes();
        let rest = state.negotiation.take_rest();
        state.phase = Phase::Agreed;
        state.sink = Some(Arc::clone(&sink));
        state.listener = None;
        // Without a ready-to-receive indication the active side has nothing to complete with.
        let awaits = started.rtr.unwrap_or(ReadyForms::empty());
        if started.rtr.is_some() {
            state.complete_by = Some(port.now() + StartOptions::default().patience);
        } else {
            state.phase = Phase::Open;
        }
        let (stream, until) = (state.stream, state.complete_by);
        drop(state);
        let agreed = StreamAgreed {
            crc: started.settings.crc,
            sends_markers: started.settings.responder_markers,
            receives_markers: started.settings.initiator_markers,
            says: ReadyForms::empty(),
            awaits,
            is_held: started.rtr.is_some() || !port.wishes().speaks_first,
        };
        if let Some(stream) = stream {
            if let Some(until) = until {
                port.wake_at(stream, until);
            }
            port.agree(stream, agreed, &reply, &rest);
        }
        if until.is_none() {
            sink.event(CmEvent::Completed);
        }
        Ok(())
    }

    fn admits(&self, token: Token) -> bool {
        let stream = self.find(token).and_then(|end| end.lock().stream);
        let port = self.port.upgrade();
        port.zip(stream)
            .is_some_and(|(port, stream)| port.admits(stream))
    }

    fn complete(&self, token: Token) {
        if let Some(end) = self.find(token) {
            let mut state = end.lock();
            if state.phase == Phase::Agreed {
                state.phase = Phase::Open;
            }
        }
    }

    fn reject(&self, token: Token, _: Refusal, private_data: Vec<u8>) {
        let Some(end) = self.remove(token) else {
            return;
        };
        let mut state = end.lock();
        let answered = state
            .negotiation
            .answer(StartReply::Reject, &private_data)
            .is_ok();
        let reply = state.negotiation.poll_bytes();
        let stream = state.stream;
        state.phase = Phase::Over;
        state.sink = None;
        drop(state);
        let (Some(stream), Some(port)) = (stream, self.port.upgrade()) else {
            return;
        };
        if answered {
            port.send(stream, &reply);
            port.close(stream, StreamClose::Graceful);
        } else {
            port.close(stream, StreamClose::Abrupt);
        }
    }

    fn ping(&self, to: SocketAddr, sink: PingSink) -> Result<(), ConnectError> {
        ping::ping(&self.port()?, to, sink)
    }

    fn disconnect(&self, token: Token) {
        let Some(end) = self.find(token) else { return };
        let mut state = end.lock();
        if matches!(state.phase, Phase::Open | Phase::Agreed) {
            state.phase = Phase::Closing;
        }
        drop(state);
        end.close(StreamClose::Graceful);
    }

    fn forget(&self, token: Token) {
        let Some(end) = self.remove(token) else {
            return;
        };
        let mut state = end.lock();
        let was_open = matches!(state.phase, Phase::Open | Phase::Closing);
        state.phase = Phase::Over;
        state.sink = None;
        drop(state);
        end.close(match was_open {
            true => StreamClose::Graceful,
            false => StreamClose::Abrupt,
        });
    }
}

fn failed_call(failure: &Failure) -> ConnectError {
    match *failure {
        Failure::PrivateData { len, max } => ConnectError::PrivateData { len, max },
        _ => ConnectError::Aborted,
    }
}
