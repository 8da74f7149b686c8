//! A backend for connections within one process: the sender's thread delivers the messages.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard, Weak};

use verbs_api::objects::DeviceId;
use verbs_api::provider::backend::{
    Answer, AnswerSink, Backend, CmEvent, ConnectError, ListenSink, Offer, PrivateDataLimits,
    Question, Refusal, Sink, Token,
};
use verbs_api::provider::{Mutex, PerProcess};
use verbs_api::qp::Half;

use crate::notice::Notice;
use crate::panics::FirstPanic;

/// The lowest port that is assigned to a listener without a port of its own.
const FIRST_PORT: u16 = 49152;

type Networks = Vec<(DeviceId, Weak<InProcess>)>;

// A child of a fork makes its own: its parent's threads may hold the lock of one.
static NETWORKS: PerProcess<Mutex<Networks>> = PerProcess::new(Mutex::default);

/// A backend that connects queue pairs of this process over a network of its own.
///
/// While [paused](Self::pause) it keeps messages until [`deliver`](Self::deliver), so that tests can act in between.
#[derive(Default)]
pub struct InProcess {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    listeners: BTreeMap<SocketAddr, Arc<dyn ListenSink<Offer>>>,
    services: BTreeMap<SocketAddr, Arc<dyn ListenSink<Question>>>,
    questions: BTreeMap<Token, Arc<dyn AnswerSink>>,
    ends: BTreeMap<Token, End>,
    queue: VecDeque<Message>,
    next: u64,
    is_paused: bool,
    is_delivering: bool,
}

struct End {
    peer: Token,
    sink: Option<Arc<dyn Sink>>,
    /// The listener that a request was sent to, until the program has answered it.
    listener: Option<Arc<dyn ListenSink<Offer>>>,
    is_open: bool,
    /// Whether the queue pair is an XRC target, which outlives the connection and which other initiators may use.
    is_shared: bool,
}

enum Message {
    Request(SocketAddr, Token, Offer),
    Event(Token, CmEvent),
    Question(SocketAddr, Token, Question),
    Answer(Token, Result<Answer, ConnectError>),
}

impl InProcess {
    /// Creates a network without listeners.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Returns the network of a device that reaches only itself, which all contexts of the device share.
    pub(crate) fn of(device: DeviceId) -> Arc<Self> {
        let mut known = NETWORKS.lock();
        known.retain(|(device, network)| !device.is_gone() && network.strong_count() > 0);
        let found = known.iter().find(|(of, _)| *of == device);
        if let Some(network) = found.and_then(|(_, network)| network.upgrade()) {
            return network;
        }
        let network = Self::new();
        known.push((device, Arc::downgrade(&network)));
        network
    }

    /// Keeps messages from now on, instead of delivering them.
    pub fn pause(&self) {
        self.lock().is_paused = true;
    }

    /// Delivers the messages that were kept, and keeps none from now on.
    pub fn deliver(&self) {
        self.lock().is_paused = false;
        self.run();
    }

    /// Loses all kept messages: every side that waits for an answer times out.
    pub fn expire(&self) {
        let mut state = self.lock();
        state.queue.clear();
        let waiting: Vec<_> = state.ends.iter().filter(|(_, end)| !end.is_open).collect();
        let timeouts: Vec<_> = waiting
            .into_iter()
            .map(|(token, _)| Message::Event(*token, CmEvent::TimedOut))
            .collect();
        state.queue.extend(timeouts);
        let questions = std::mem::take(&mut state.questions);
        drop(state);
        for sink in questions.into_values() {
            sink.answered(Err(ConnectError::TimedOut));
        }
        self.run();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn post(&self, message: Message) {
        self.lock().queue.push_back(message);
        self.run();
    }

    fn tell_peer(&self, token: Token, event: CmEvent) {
        let peer = self.lock().ends.get(&token).map(|end| end.peer);
        if let Some(peer) = peer {
            self.post(Message::Event(peer, event));
        }
    }

    /// Delivers all messages in order, also those that sinks send meanwhile. Only one thread at a time does this. If a sink
    /// panics, the panic resumes when everything has been delivered.
    fn run(&self) {
        let mut state = self.lock();
        if state.is_delivering {
            return;
        }
        state.is_delivering = true;
        let mut panicked = FirstPanic::default();
        while !state.is_paused
            && let Some(message) = state.queue.pop_front()
        {
            let notice = state.notice(message);
            drop(state);
            if let Some(notice) = notice {
                panicked.catch(|| notice.deliver());
            }
            state = self.lock();
        }
        state.is_delivering = false;
        drop(state);
        panicked.resume();
    }
}

impl State {
    fn notice(&mut self, message: Message) -> Option<Notice> {
        match message {
            Message::Request(to, token, offer) => match self.listeners.get(&to) {
                Some(sink) => {
                    let sink = Arc::clone(sink);
                    if let Some(end) = self.ends.get_mut(&token) {
                        end.listener = Some(Arc::clone(&sink));
                    }
                    Some(Notice::Request(sink, token, offer))
                }
                None => {
                    let asker = self.ends.get(&token).map(|end| end.peer);
                    let refusal = |asker| {
                        Message::Event(asker, CmEvent::Rejected(Refusal::NoListener, Vec::new()))
                    };
                    self.queue.extend(asker.map(refusal));
                    None
                }
            },
            Message::Event(token, event) => self.event_notice(token, event),
            Message::Question(to, token, question) => match self.services.get(&to) {
                Some(sink) => Some(Notice::Question(Arc::clone(sink), token, question)),
                None => self.answer_notice(token, Err(refused(Refusal::NoListener, Vec::new()))),
            },
            Message::Answer(token, answer) => self.answer_notice(token, answer),
        }
    }

    fn answer_notice(
        &mut self,
        token: Token,
        answer: Result<Answer, ConnectError>,
    ) -> Option<Notice> {
        let sink = self.questions.remove(&token)?;
        Some(Notice::Answer(sink, answer))
    }

    fn event_notice(&mut self, token: Token, event: CmEvent) -> Option<Notice> {
        let end = self.ends.get_mut(&token)?;
        match event {
            CmEvent::Accepted(_) | CmEvent::Completed => end.is_open |= event == CmEvent::Completed,
            CmEvent::Disconnected => {
                let peer = end.peer;
                self.queue
                    .push_back(Message::Event(peer, CmEvent::DisconnectConfirmed));
            }
            _ => {}
        }
        let is_over = !matches!(event, CmEvent::Accepted(_) | CmEvent::Completed);
        let sink = self.ends.get(&token).and_then(|end| end.sink.clone());
        let gone = is_over.then(|| self.ends.remove(&token)).flatten();
        match (sink, gone.and_then(|end| end.listener)) {
            (Some(sink), _) => Some(Notice::Event(sink, event)),
            (None, Some(listener)) => Some(Notice::RequestWithdrawn(listener, token)),
            (None, None) => None,
        }
    }
}

impl Backend for InProcess {
    fn private_data(&self) -> PrivateDataLimits {
        PrivateDataLimits::INFINIBAND
    }

    fn listen(
        &self,
        at: SocketAddr,
        _: usize,
        sink: Arc<dyn ListenSink<Offer>>,
    ) -> Result<SocketAddr, ConnectError> {
        listen_in(&mut self.lock().listeners, at, sink)
    }

    fn unlisten(&self, at: SocketAddr) {
        let sink = self.lock().listeners.remove(&at);
        drop(sink);
    }

    fn connect(
        &self,
        to: SocketAddr,
        offer: Offer,
        sink: Arc<dyn Sink>,
    ) -> Result<Token, ConnectError> {
        let mut state = self.lock();
        let (near, far) = (Token(state.next), Token(state.next + 1));
        state.next += 2;
        let end = |peer, sink| End {
            peer,
            sink,
            listener: None,
            is_open: false,
            is_shared: false,
        };
        state.ends.insert(near, end(far, Some(sink)));
        state.ends.insert(far, end(near, None));
        drop(state);
        self.post(Message::Request(to, far, offer));
        Ok(near)
    }

    fn accept(&self, token: Token, offer: Offer, sink: Arc<dyn Sink>) -> Result<(), ConnectError> {
        let mut state = self.lock();
        let end = state.ends.get_mut(&token).ok_or(ConnectError::Aborted)?;
        end.sink = Some(sink);
        end.is_shared = offer.half == Half::Responder;
        let listener = end.listener.take();
        drop(state);
        drop(listener);
        self.tell_peer(token, CmEvent::Accepted(offer));
        Ok(())
    }

    fn complete(&self, token: Token) {
        if let Some(end) = self.lock().ends.get_mut(&token) {
            end.is_open = true;
        }
        self.tell_peer(token, CmEvent::Completed);
    }

    fn reject(&self, token: Token, why: Refusal, private_data: Vec<u8>) {
        self.tell_peer(token, CmEvent::Rejected(why, private_data));
        let end = self.lock().ends.remove(&token);
        drop(end);
    }

    fn disconnect(&self, token: Token) {
        let state = self.lock();
        let peer = state.ends.get(&token).map(|end| end.peer);
        let is_known = peer.is_some_and(|peer| state.ends.contains_key(&peer));
        drop(state);
        match is_known {
            true => self.tell_peer(token, CmEvent::Disconnected),
            // The peer is gone and cannot confirm it.
            false => self.post(Message::Event(token, CmEvent::DisconnectConfirmed)),
        }
    }

    fn forget(&self, token: Token) {
        let end = self.lock().ends.remove(&token);
        if let Some(end) = end {
            let last = match end.is_open {
                true if end.is_shared => return,
                true => CmEvent::Disconnected,
                false => CmEvent::Aborted,
            };
            self.post(Message::Event(end.peer, last));
        }
    }

    fn listen_datagrams(
        &self,
        at: SocketAddr,
        _: usize,
        sink: Arc<dyn ListenSink<Question>>,
    ) -> Result<SocketAddr, ConnectError> {
        listen_in(&mut self.lock().services, at, sink)
    }

    fn unlisten_datagrams(&self, at: SocketAddr) {
        let sink = self.lock().services.remove(&at);
        drop(sink);
    }

    fn resolve(
        &self,
        to: SocketAddr,
        private_data: Vec<u8>,
        sink: Arc<dyn AnswerSink>,
    ) -> Result<(), ConnectError> {
        let mut state = self.lock();
        let token = Token(state.next);
        state.next += 1;
        state.questions.insert(token, sink);
        drop(state);
        let question = Question {
            from: None,
            source: None,
            private_data,
        };
        self.post(Message::Question(to, token, question));
        Ok(())
    }

    fn answer(&self, token: Token, answer: Answer) -> Result<(), ConnectError> {
        self.post(Message::Answer(token, Ok(answer)));
        Ok(())
    }

    fn refuse(&self, token: Token, why: Refusal, private_data: Vec<u8>) {
        self.post(Message::Answer(token, Err(refused(why, private_data))));
    }
}

const fn refused(reason: Refusal, private_data: Vec<u8>) -> ConnectError {
    ConnectError::Refused {
        reason,
        private_data,
    }
}

/// Returns the error for an address at which another listener of this network, so of this process, listens.
fn in_use(address: SocketAddr) -> ConnectError {
    let holder = Some("this process".to_owned());
    ConnectError::AddressInUse { address, holder }
}

/// Adds a listener at an address; for port 0, at the first free port. Returns the address.
fn listen_in<T: ?Sized>(
    listeners: &mut BTreeMap<SocketAddr, Arc<T>>,
    mut at: SocketAddr,
    sink: Arc<T>,
) -> Result<SocketAddr, ConnectError> {
    if at.port() == 0 {
        let ports = (FIRST_PORT..=u16::MAX).map(|port| SocketAddr::new(at.ip(), port));
        let free = { ports }.find(|at| !listeners.contains_key(at));
        at = free.ok_or_else(|| in_use(at))?;
    }
    if listeners.contains_key(&at) {
        return Err(in_use(at));
    }
    listeners.insert(at, sink);
    Ok(at)
}
