//! Connections of one device by MPA: a [`Negotiation`] for each stream, between a program's connectors and the device's
//! streams.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use polyverbs_engine::time::Time;
use polyverbs_wire::iwarp::terminate::TerminateCode;
use polyverbs_wire::iwarp::{
    self as wire, Framing, Opcode, SegmentBuffer, SegmentHeader, Untagged, ddp,
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
use super::{Depth, Depths, Failure, Negotiation, Output, Rtr, StartOptions, StartReply, Started};
use verbs_api::provider::backend::ConnectError;
use verbs_api::provider::backend::{
    Backend, ListenSink, Offer, PingSink, PrivateDataLimits, Sink, Token, Told,
};

/// Connections of one device on an IP network, by MPA's requests and replies on its streams.
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
    /// Over these streams.
    pub fn new(port: &Arc<dyn StreamPort>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            port: Arc::downgrade(port),
            state: Mutex::default(),
            me: me.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn add(&self, peer: SocketAddr, course: Course) -> Arc<End> {
        let mut state = self.lock();
        state.made += 1;
        let token = Token(state.made);
        let end = Arc::new(End {
            agent: self.me.clone(),
            port: self.port.clone(),
            token,
            peer,
            state: Mutex::new(course),
        });
        state.ends.insert(token, Arc::clone(&end));
        end
    }
}

/// One end of a connection.
struct End {
    agent: Weak<Agent>,
    port: Weak<dyn StreamPort>,
    token: Token,
    peer: SocketAddr,
    state: Mutex<Course>,
}

struct Course {
    phase: Phase,
    negotiation: Negotiation,
    stream: Option<Qpn>,
    is_connected: bool,
    sink: Option<Arc<dyn Sink>>,
    listener: Option<Arc<dyn ListenSink<Offer>>>,
    /// What to begin anew with, where the peer has only revision 1.
    again: Option<(SocketAddr, Offer)>,
    /// When the peer must have completed.
    until: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Request and reply are exchanged.
    Starts,
    /// Frames may travel; the active side has not completed.
    Agreed,
    /// There is a connection.
    Open,
    /// This side has ended it.
    Closing,
    /// It is over.
    Over,
}

/// What is to be done with no lock held.
enum Step {
    Nothing,
    Tell(Arc<dyn Sink>, Told),
    Ask(Arc<dyn ListenSink<Offer>>, Offer),
    Withdraw(Arc<dyn ListenSink<Offer>>),
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

fn as_time(now: Duration) -> Time {
    Time::default().after(now)
}

fn forms(rtr: Rtr) -> ReadyForms {
    let mut forms = ReadyForms::empty();
    forms.set(ReadyForms::SEND, rtr.contains(Rtr::SEND));
    forms.set(ReadyForms::WRITE, rtr.contains(Rtr::WRITE));
    forms.set(ReadyForms::READ, rtr.contains(Rtr::READ));
    forms
}

impl End {
    fn lock(&self) -> MutexGuard<'_, Course> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
            retry_cnt: None,
            rnr_retry: None,
            private_data,
        }
    }

    fn do_step(&self, step: Step) {
        match step {
            Step::Nothing => {}
            Step::Tell(sink, told) => sink.told(told),
            Step::Ask(listener, offer) => listener.asked(self.token, offer),
            Step::Withdraw(listener) => listener.withdrawn(self.token),
        }
    }

    // It is over: whoever waits is told.
    fn finish(&self, course: &mut Course, told: Told) -> Step {
        if course.phase == Phase::Over {
            return Step::Nothing;
        }
        course.phase = Phase::Over;
        match (course.sink.take(), course.listener.take()) {
            (Some(sink), _) => Step::Tell(sink, told),
            (None, Some(listener)) => Step::Withdraw(listener),
            (None, None) => Step::Nothing,
        }
    }

    fn leave(&self) {
        if let Some(agent) = self.agent.upgrade() {
            drop(agent.remove(self.token));
        }
    }

    fn began(&self, stream: Qpn) {
        let mut course = self.lock();
        course.stream = Some(stream);
        let is_connected = course.is_connected;
        let due = course.negotiation.next_due();
        drop(course);
        if let (Some(port), Some(due)) = (self.port.upgrade(), due) {
            port.wake_at(stream, Duration::from_nanos(due.0));
        }
        if is_connected {
            self.connected();
        }
    }

    // The request of revision 2 made the peer close: it may have nothing but revision 1.
    fn begin_again(self: &Arc<Self>, course: &mut Course) -> bool {
        let (Some((_, offer)), Some(port)) = (course.again.take(), self.port.upgrade()) else {
            return false;
        };
        let options = StartOptions {
            revision: 1,
            rtr: Rtr::empty(),
            ..options_of(&*port, depths_of(&offer))
        };
        let now = as_time(port.now());
        let Ok(negotiation) = Negotiation::initiator(now, options, &offer.private_data) else {
            return false;
        };
        course.negotiation = negotiation;
        course.stream = None;
        course.is_connected = false;
        true
    }

    fn took(&self, output: Output, course: &mut Course) -> Step {
        let Some(stream) = course.stream else {
            return Step::Nothing;
        };
        match output {
            Output::Pending => Step::Nothing,
            Output::Requested { private_data } if private_data == ping::PRIVATE_DATA => {
                // Nothing is wanted of the program.
                let refused = course.negotiation.answer(StartReply::Reject, b"");
                let reply = course.negotiation.poll_octets();
                if let (Some(port), true) = (self.port.upgrade(), refused.is_ok()) {
                    port.send(stream, &reply);
                    port.close(stream, StreamClose::Graceful);
                }
                course.phase = Phase::Over;
                Step::Nothing
            }
            Output::Requested { private_data } => {
                let offer = self.offer(stream, course.negotiation.asked(), private_data);
                match course.listener.clone() {
                    Some(listener) => Step::Ask(listener, offer),
                    None => Step::Nothing,
                }
            }
            Output::Started {
                started,
                private_data,
            } => {
                let rest = course.negotiation.take_rest();
                let agreed = StreamAgreed {
                    crc: started.settings.crc,
                    sends_markers: started.settings.initiator_markers,
                    receives_markers: started.settings.responder_markers,
                    says: started.rtr.map_or(ReadyForms::empty(), forms),
                    awaits: ReadyForms::empty(),
                    is_held: false,
                };
                course.phase = Phase::Agreed;
                course.again = None;
                if let Some(port) = self.port.upgrade() {
                    port.agree(stream, agreed, b"", &rest);
                }
                let offer = self.offer(stream, started.peer, private_data);
                match course.sink.clone() {
                    Some(sink) => Step::Tell(sink, Told::Accepted(offer)),
                    None => Step::Nothing,
                }
            }
            Output::Rejected { private_data } => {
                if let Some(port) = self.port.upgrade() {
                    port.close(stream, StreamClose::Graceful);
                }
                self.finish(course, Told::Rejected(private_data))
            }
        }
    }

    fn failed(&self, failure: &Failure, course: &mut Course) -> Step {
        if let (Some(stream), Some(port)) = (course.stream, self.port.upgrade()) {
            let how = match failure {
                Failure::Terminate(code) => {
                    port.send(stream, &terminate(*code));
                    StreamClose::Graceful
                }
                _ => StreamClose::Abrupt,
            };
            port.close(stream, how);
        }
        let told = match failure {
            Failure::TimedOut => Told::TimedOut,
            _ => Told::Aborted,
        };
        self.finish(course, told)
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

// The last word to a peer whose offer cannot be met, as a frame (RFC 6581 section 8).
fn terminate(code: TerminateCode) -> Vec<u8> {
    let header = Untagged::new(Opcode::TERMINATE, ddp::queue::TERMINATE, 1, 0, true);
    let segment = SegmentBuffer::new(&SegmentHeader::Untagged(header))
        .with_terminate(&wire::Terminate::new(code));
    let framing = Framing {
        markers: false,
        crc: true,
    };
    let mut octets = [0; 64];
    let frame = wire::Sender::new(framing).frame(&[segment.as_octets()], &mut octets);
    octets[..frame.unwrap_or_default()].to_vec()
}

/// What the streams call.
struct Sunk(Arc<End>);

impl End {
    fn connected(&self) {
        let mut course = self.lock();
        course.is_connected = true;
        let Some(stream) = course.stream else { return };
        let octets = course.negotiation.poll_octets();
        drop(course);
        if let (Some(port), false) = (self.port.upgrade(), octets.is_empty()) {
            port.send(stream, &octets);
        }
    }
}

impl StreamSink for Sunk {
    fn connected(&self) {
        self.0.connected();
    }

    fn octets(&self, octets: &[u8]) {
        let mut course = self.0.lock();
        if course.phase != Phase::Starts {
            return;
        }
        let step = match course.negotiation.handle_octets(octets) {
            Ok(output) => self.0.took(output, &mut course),
            Err(failure) => self.0.failed(&failure, &mut course),
        };
        drop(course);
        self.0.do_step(step);
        if self.0.is_over() {
            self.0.leave();
        }
    }

    fn has_asked(&self) -> bool {
        let course = self.0.lock();
        course.phase != Phase::Starts || course.negotiation.has_request()
    }

    fn begun(&self) {
        let mut course = self.0.lock();
        if course.phase != Phase::Agreed || course.until.is_none() {
            return;
        }
        course.phase = Phase::Open;
        course.until = None;
        let sink = course.sink.clone();
        drop(course);
        if let Some(sink) = sink {
            sink.told(Told::Completed);
        }
    }

    fn ended(&self, end: StreamEnd) {
        let mut course = self.0.lock();
        let failure = course.negotiation.handle_close().err();
        let may_try = course.phase == Phase::Starts
            && course.is_connected
            && matches!(end, StreamEnd::Closed | StreamEnd::Reset)
            && failure.is_some_and(|failure| course.negotiation.may_fall_back(&failure));
        let to = course.again.as_ref().map(|(to, _)| *to);
        if may_try
            && let Some(to) = to
            && self.0.begin_again(&mut course)
        {
            drop(course);
            let begun = self
                .0
                .port
                .upgrade()
                .map(|port| port.connect(to, Arc::new(Self(Arc::clone(&self.0)))));
            match begun {
                Some(Ok(stream)) => return self.0.began(stream),
                _ => course = self.0.lock(),
            }
        }
        let told = match (course.phase, end) {
            (Phase::Starts, StreamEnd::Refused) => Told::Rejected(Vec::new()),
            (_, StreamEnd::TimedOut | StreamEnd::Unreachable) if course.phase != Phase::Open => {
                Told::TimedOut
            }
            (Phase::Starts | Phase::Agreed, _) => Told::Aborted,
            (Phase::Closing, _) => Told::DisconnectConfirmed,
            _ => Told::Disconnected,
        };
        let step = self.0.finish(&mut course, told);
        drop(course);
        self.0.do_step(step);
        self.0.leave();
    }

    fn due(&self) {
        let Some(port) = self.0.port.upgrade() else {
            return;
        };
        let now = port.now();
        let mut course = self.0.lock();
        let is_late = course.phase == Phase::Agreed && course.until.is_some_and(|at| at <= now);
        let step = match course.phase {
            Phase::Starts => match course.negotiation.handle_timeout(as_time(now)) {
                Ok(()) => return,
                Err(failure) => self.0.failed(&failure, &mut course),
            },
            Phase::Agreed if is_late => self.0.finish(&mut course, Told::TimedOut),
            _ => return,
        };
        drop(course);
        self.0.do_step(step);
        if is_late {
            self.0.close(StreamClose::Abrupt);
        }
        self.0.leave();
    }
}

/// Takes streams for a listener.
struct Ear {
    agent: Weak<Agent>,
    sink: Arc<dyn ListenSink<Offer>>,
}

impl StreamListener for Ear {
    fn accepted(&self, stream: Qpn, from: SocketAddr) -> Option<Arc<dyn StreamSink>> {
        let agent = self.agent.upgrade()?;
        let port = agent.port.upgrade()?;
        let options = options_of(&*port, Depths { ird: 0, ord: 0 });
        let negotiation = Negotiation::responder(as_time(port.now()), options);
        let due = negotiation.next_due();
        let end = agent.add(
            from,
            Course {
                phase: Phase::Starts,
                negotiation,
                stream: Some(stream),
                is_connected: true,
                sink: None,
                listener: Some(Arc::clone(&self.sink)),
                again: None,
                until: None,
            },
        );
        if let Some(due) = due {
            port.wake_at(stream, Duration::from_nanos(due.0));
        }
        Some(Arc::new(Sunk(end)))
    }
}

impl Backend for Agent {
    fn private_data(&self) -> PrivateDataLimits {
        PrivateDataLimits::IWARP
    }

    fn listen(
        &self,
        at: SocketAddr,
        sink: Arc<dyn ListenSink<Offer>>,
    ) -> Result<SocketAddr, ConnectError> {
        let ear = Ear {
            agent: self.me.clone(),
            sink,
        };
        let listening = self.port()?.listen(at, Arc::new(ear));
        listening.map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => ConnectError::AddressInUse(at),
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
        let options = options_of(&*port, depths_of(&offer));
        let now = as_time(port.now());
        let negotiation = Negotiation::initiator(now, options, &offer.private_data)
            .map_err(|failure| failed_call(&failure))?;
        let end = self.add(
            to,
            Course {
                phase: Phase::Starts,
                negotiation,
                stream: None,
                is_connected: false,
                sink: Some(sink),
                listener: None,
                again: Some((to, offer)),
                until: None,
            },
        );
        match port.connect(to, Arc::new(Sunk(Arc::clone(&end)))) {
            Ok(stream) => end.began(stream),
            Err(error) => {
                end.leave();
                return Err(VerbError::os("connect", error).into());
            }
        }
        Ok(end.token)
    }

    fn accept(&self, token: Token, offer: Offer, sink: Arc<dyn Sink>) -> Result<(), ConnectError> {
        let end = self.find(token).ok_or(ConnectError::Aborted)?;
        let port = self.port()?;
        let mut course = end.lock();
        course.negotiation.set_depths(depths_of(&offer));
        let answered = course
            .negotiation
            .answer(StartReply::Accept, &offer.private_data);
        let started: Started = match (answered, course.stream) {
            (Ok(Some(started)), Some(_)) => started,
            (Err(failure), _) => return Err(failed_call(&failure)),
            _ => return Err(ConnectError::Aborted),
        };
        let reply = course.negotiation.poll_octets();
        let rest = course.negotiation.take_rest();
        course.phase = Phase::Agreed;
        course.sink = Some(Arc::clone(&sink));
        course.listener = None;
        // Without an indication there is nothing that the active side would complete with.
        let awaits = started.rtr.map_or(ReadyForms::empty(), forms);
        if started.rtr.is_some() {
            course.until = Some(port.now() + StartOptions::default().patience);
        } else {
            course.phase = Phase::Open;
        }
        let (stream, until) = (course.stream, course.until);
        drop(course);
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
            sink.told(Told::Completed);
        }
        Ok(())
    }

    fn complete(&self, token: Token) {
        if let Some(end) = self.find(token) {
            let mut course = end.lock();
            if course.phase == Phase::Agreed {
                course.phase = Phase::Open;
            }
        }
    }

    fn reject(&self, token: Token, private_data: Vec<u8>) {
        let Some(end) = self.remove(token) else {
            return;
        };
        let mut course = end.lock();
        let answered = course
            .negotiation
            .answer(StartReply::Reject, &private_data)
            .is_ok();
        let reply = course.negotiation.poll_octets();
        let stream = course.stream;
        course.phase = Phase::Over;
        course.sink = None;
        drop(course);
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
        let mut course = end.lock();
        if matches!(course.phase, Phase::Open | Phase::Agreed) {
            course.phase = Phase::Closing;
        }
        drop(course);
        end.close(StreamClose::Graceful);
    }

    fn forget(&self, token: Token) {
        let Some(end) = self.remove(token) else {
            return;
        };
        let mut course = end.lock();
        let was_open = matches!(course.phase, Phase::Open | Phase::Closing);
        course.phase = Phase::Over;
        course.sink = None;
        drop(course);
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
