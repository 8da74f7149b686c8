//! The streams of a device on an IP network: TCP connections, from their first byte until a queue pair has them.
//!
//! Every stream has a number, of a range that queue pairs do not use. What comes on it is told to its sink, which speaks
//! MPA: the crate that makes connections, or `rendezvous`. When both ends have agreed the stream
//! waits for the queue pair that names its number, or goes to the one that has named it already; from then on its frames
//! are the link's.
//!
//! All this runs on the watch thread and never blocks. No lock is held while a sink is called.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use polyverbs_engine::effects::Effects;
use polyverbs_engine::payload::Payload;
use polyverbs_engine::pin::pin;
use polyverbs_engine::time::Time;
use polyverbs_io::{
    Announcement, Attachment, Connection, Received, Source, StreamError, TcpLink, TcpListener,
    TcpOptions, TcpSocket, TcpTap, Way,
};
use polyverbs_wire::iwarp::Framing;
use verbs_api::ids::{LinkAddress, Qpn};
use verbs_api::provider::carrier::{
    ReadyForms, StreamAgreed, StreamClose, StreamEnd, StreamListener, StreamPort, StreamSink,
    StreamWishes,
};
use verbs_api::qp::QpState;

use crate::codec::{self, MpaCodec};
use crate::header::{Body, End, Message, Opcode, ReadRequest, Stream, queue};
use crate::peer::{self, Peer, is_ready};
use crate::{Cx, Device, QpRef, QpWeak};

/// The first number of a stream; queue pairs have lower ones.
pub const FIRST_STREAM: u32 = 0x80_0000;

const STREAM_NUMBERS: u32 = 0x7f_fff0;

/// What the maker of a connection is notified of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEvent {
    /// The peer's first frame has come.
    Begun,
    /// The queue pair has left it.
    Ended,
}

/// The streams of a device; see the [module](self).
pub struct Streams {
    link: Arc<TcpLink<MpaCodec>>,
    address: IpAddr,
    tcp: TcpOptions,
    wishes: StreamWishes,
    /// Most bytes of a frame's ULPDU.
    max_ulpdu: usize,
    /// Streams that no queue pair has yet, beyond which one that says nothing goes for each that comes.
    max_early: usize,
    tap: Option<Arc<dyn TcpTap>>,
    device: OnceLock<Weak<Device>>,
    state: Mutex<State>,
    me: Weak<Self>,
}

#[derive(Default)]
struct State {
    made: u32,
    inserted: u64,
    listeners_made: u64,
    early: HashMap<u32, Early>,
    listeners: HashMap<u64, Listening>,
    /// Streams that queue pairs have, by epoch.
    running: HashMap<u32, Running>,
    /// Epochs of those, by the stream's number.
    epochs: HashMap<u32, u32>,
}

struct Listening {
    listener: Arc<TcpListener>,
    sink: Arc<dyn StreamListener>,
}

struct Running {
    number: u32,
    qp: QpWeak,
    sink: Arc<dyn StreamSink>,
}

/// A stream that no queue pair has yet.
struct Early {
    connection: Connection,
    peer: IpAddr,
    /// Number of the stream, in the order of arrival.
    order: u64,
    way: Way,
    is_connected: bool,
    /// The peer's MPA request has arrived.
    has_asked: bool,
    sink: Option<Arc<dyn StreamSink>>,
    agreed: Option<StreamAgreed>,
    rest: Vec<u8>,
    /// Something has been sent.
    has_spoken: bool,
    announcement: Option<Announcement>,
    /// The queue pair that waits for it, and its epoch.
    claim: Option<(QpWeak, u32)>,
}

impl Early {
    fn new(connection: Connection, peer: IpAddr, way: Way) -> Self {
        Self {
            connection,
            peer,
            order: 0,
            way,
            is_connected: way == Way::In,
            has_asked: false,
            sink: None,
            agreed: None,
            rest: Vec::new(),
            has_spoken: false,
            announcement: None,
            claim: None,
        }
    }

    // Sends what goes before frames. What is lost with the connection is told as its end.
    fn send(&mut self, link: &TcpLink<MpaCodec>, bytes: &[u8]) {
        if !bytes.is_empty() && !std::mem::replace(&mut self.has_spoken, true) {
            self.announcement = link.announce(self.connection.socket());
        }
        // A request or a reply fits the buffer of a socket.
        let _ = self.connection.send(&[bytes.into()]);
    }

    fn is_silent(&self) -> bool {
        self.way == Way::In && !self.has_asked && self.agreed.is_none() && self.claim.is_none()
    }
}

impl Streams {
    pub(crate) fn new(
        link: Arc<TcpLink<MpaCodec>>,
        address: IpAddr,
        tcp: TcpOptions,
        wishes: StreamWishes,
        (max_ulpdu, max_early): (usize, usize),
        tap: Option<Arc<dyn TcpTap>>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            link,
            address,
            tcp,
            wishes,
            max_ulpdu,
            max_early,
            tap,
            device: OnceLock::new(),
            state: Mutex::default(),
            me: me.clone(),
        })
    }

    pub(crate) fn bind(&self, device: &Arc<Device>) {
        let _ = self.device.set(Arc::downgrade(device));
    }

    pub(crate) fn device(&self) -> Option<Arc<Device>> {
        self.device.get()?.upgrade()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, early: &Early, number: u32) -> io::Result<()> {
        let kind = if early.is_connected {
            Source::Rare
        } else {
            Source::Connecting
        };
        let socket = early.connection.socket();
        self.link.reactor().add(&**socket, number.into(), kind)
    }

    fn connection(&self, socket: TcpSocket, way: Way, peer: SocketAddr) -> Connection {
        Connection::new(match &self.tap {
            Some(tap) => socket.tapped(Arc::clone(tap), way, peer),
            None => socket,
        })
    }

    fn unwatch(&self, early: &Early) {
        // Either kind is taken out the same way; what is not watched any more is no mistake.
        let socket = early.connection.socket();
        let _ = self.link.reactor().remove(&**socket, Source::Rare);
    }

    /// A watched socket is readable, writable or broken.
    pub(crate) fn attend(&self, token: u64) {
        match u32::try_from(token) {
            Ok(number) => self.attend_stream(number),
            Err(_) => self.attend_listener(token),
        }
    }

    // ---- listeners

    fn attend_listener(&self, token: u64) {
        for _ in 0..ACCEPT_BATCH {
            // Under the lock: once `unlisten` has returned nobody else has the listener, and its port is free.
            let state = self.lock();
            let Some(listening) = state.listeners.get(&token) else {
                return;
            };
            let sink = Arc::clone(&listening.sink);
            let (socket, from) = match listening.listener.accept() {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return,
                Err(_) => {
                    let listener = Arc::clone(&listening.listener);
                    drop(state);
                    return self.pause(token, &listener);
                }
            };
            drop(state);
            let connection = self.connection(socket, Way::In, from);
            let early = Early::new(connection, from.ip(), Way::In);
            let mut state = self.lock();
            // Connections that stay silent must not keep others out.
            if state.early.len() >= self.max_early {
                let Some(silent) = state.longest_silent() else {
                    continue;
                };
                drop(state);
                self.end(silent, StreamEnd::Reset);
                state = self.lock();
            }
            let number = state.insert(early);
            drop(state);
            let taken = sink.accepted(Qpn::new(number), from);
            let mut state = self.lock();
            let Some(early) = state.early.get_mut(&number) else {
                continue;
            };
            let is_watched = taken.is_some() && self.watch(early, number).is_ok();
            early.sink = taken;
            if !is_watched && let Some(mut early) = state.early.remove(&number) {
                early.connection.abort();
            }
        }
    }

    // Most likely the process has no descriptor left: connections wait, and the listener is not polled in a loop meanwhile.
    fn pause(&self, token: u64, listener: &Arc<TcpListener>) {
        let watch = Arc::clone(self.link.reactor());
        let (Some(device), Ok(())) = (self.device(), watch.remove(&**listener, Source::Rare))
        else {
            return;
        };
        let weak = Arc::downgrade(listener);
        let resume = move |_| {
            if let Some(listener) = weak.upgrade() {
                // Where it cannot be watched, no more connections are accepted.
                let _ = watch.add(&*listener, token, Source::Rare);
            }
        };
        let timers = device.network().timers();
        timers.add(timers.now().after(ACCEPT_RETRY), Box::new(resume));
    }

    // ---- early streams

    fn attend_stream(&self, number: u32) {
        let mut buffer = [0; 4096];
        let mut state = self.lock();
        let Some(early) = state.early.get_mut(&number) else {
            return;
        };
        let Some(sink) = early.sink.clone() else {
            return;
        };
        if !early.is_connected {
            match early.connection.socket().connected() {
                Ok(false) => {}
                Ok(true) => {
                    self.unwatch(early);
                    early.is_connected = true;
                    let watched = self.watch(early, number);
                    drop(state);
                    sink.connected();
                    if watched.is_err() {
                        self.end(number, StreamEnd::Reset);
                    }
                }
                Err(error) => {
                    drop(state);
                    self.end(number, end_of(&error));
                }
            }
            return;
        }
        match early.connection.receive(&mut buffer) {
            Ok(Received::Nothing) => {}
            Ok(Received::Octets(octets)) if early.agreed.is_some() => {
                early.rest.extend_from_slice(&buffer[..octets]);
                if early.rest.len() >= MAX_REST {
                    self.unwatch(early);
                }
            }
            Ok(Received::Octets(octets)) => {
                drop(state);
                sink.octets(&buffer[..octets]);
                let has_asked = sink.has_asked();
                if let Some(early) = self.lock().early.get_mut(&number) {
                    early.has_asked = has_asked;
                }
            }
            Ok(Received::End) => {
                drop(state);
                self.end(number, StreamEnd::Closed);
            }
            Err(error) => {
                drop(state);
                self.end(number, end_of(&error));
            }
        }
    }

    // An early stream is over: notifies its sink, and fails the queue pair that waits for it.
    fn end(&self, number: u32, end: StreamEnd) {
        let Some(mut early) = self.take(number) else {
            return;
        };
        early.connection.abort();
        if let Some(sink) = early.sink.take() {
            sink.ended(end);
        }
        if let Some((qp, epoch)) = early.claim {
            give_up(&qp, epoch);
        }
    }

    fn take(&self, number: u32) -> Option<Early> {
        let early = self.lock().early.remove(&number)?;
        self.unwatch(&early);
        Some(early)
    }

    // ---- queue pairs

    /// A queue pair is ready to receive, and names its stream.
    pub(crate) fn claim(&self, qp: &QpRef, named: &Peer, cx: &mut Cx<'_>) {
        let number = named.end.qpn;
        let mut state = self.lock();
        let early = state.early.get_mut(&number);
        let early = early.filter(|early| {
            let is_free = early
                .claim
                .as_ref()
                .is_none_or(|(_, epoch)| *epoch == named.mine);
            is_free && LinkAddress::Ip(early.peer) == named.address
        });
        match early {
            Some(early) => {
                early.claim = Some((qp.downgrade(), named.mine));
                let is_agreed = early.agreed.is_some();
                drop(state);
                if is_agreed {
                    self.join_later(number, cx);
                }
            }
            // The stream is over already: handled as a refused connection.
            None => {
                drop(state);
                qp.enter_error(false);
                cx.effects.flush(qp.owner().clone());
            }
        }
    }

    fn join_later(&self, number: u32, cx: &mut Cx<'_>) {
        let streams = self.me.clone();
        cx.effects.later(move |effects| {
            if let Some(streams) = streams.upgrade() {
                streams.join(number, effects);
            }
        });
    }

    /// The queue pair no longer waits for its stream.
    pub(crate) fn disclaim(&self, peer: &Peer, effects: &mut Effects) {
        let number = peer.end.qpn;
        let mut state = self.lock();
        let claims = |early: &&mut Early| {
            let epoch = early.claim.as_ref().map(|(_, epoch)| *epoch);
            epoch == Some(peer.mine)
        };
        let Some(early) = state.early.get_mut(&number).filter(claims) else {
            return;
        };
        early.claim = None;
        drop(state);
        let streams = self.me.clone();
        effects.later(move |_| {
            if let Some(streams) = streams.upgrade() {
                streams.end(number, StreamEnd::Closed);
            }
        });
    }

    // Gives a stream that was agreed on to the queue pair that waits for it. Called with no lock held.
    fn join(&self, number: u32, effects: &mut Effects) {
        let complete = self.lock().take_complete(number);
        if let Some(early) = complete {
            self.hand_over(number, early, effects);
        }
    }

    fn hand_over(&self, number: u32, early: Early, effects: &mut Effects) {
        self.unwatch(&early);
        let (Some(agreed), Some((weak, epoch)), Some(sink)) =
            (early.agreed, early.claim, early.sink)
        else {
            return;
        };
        let running = Running {
            number,
            qp: weak.clone(),
            sink: Arc::clone(&sink),
        };
        self.lock().run(epoch, running);
        let joined = weak.upgrade().is_some_and(|qp| {
            let connection = (early.connection, early.announcement);
            let joined = self.attach(&qp, epoch, number, connection, agreed, early.rest);
            if joined {
                effects.resume(qp.owner().clone());
                if agreed.says.contains(ReadyForms::WRITE) {
                    repeat_rtr(&qp, epoch);
                }
            }
            joined
        });
        if !joined {
            self.lock().leave(epoch);
            give_up(&weak, epoch);
            sink.ended(StreamEnd::Closed);
        }
    }

    // Both halves are locked while the link takes the stream: nothing is delivered or sent before both know their peer.
    fn attach(
        &self,
        qp: &QpRef,
        epoch: u32,
        number: u32,
        (connection, announcement): (Connection, Option<Announcement>),
        agreed: StreamAgreed,
        received: Vec<u8>,
    ) -> bool {
        let pin = pin();
        let mut cx = Cx::new(&qp.device, &pin);
        let mut sending = qp.requester();
        let mut receiving = qp.responder();
        let waits = sending.driver.peer.filter(|peer| !peer.is_connected());
        let Some(mut peer) = waits.filter(|peer| peer.mine == epoch && is_ready(qp.state())) else {
            return false;
        };
        peer.end = End { qpn: number, epoch };
        let own = End { qpn: qp.qpn, epoch };
        let arriving = Stream {
            source: peer.end,
            destination: own,
        };
        let framing = |markers| Framing {
            markers,
            crc: agreed.crc,
        };
        let receives = framing(agreed.receives_markers);
        let attached = self.link.attach(Attachment {
            key: epoch.into(),
            connection,
            local: qp.device.address(),
            peer: peer.address,
            sender: codec::Sending::new(framing(agreed.sends_markers)).at_most(self.max_ulpdu),
            receiver: codec::Receiving::new(receives, arriving, agreed.awaits),
            received,
            is_held: agreed.is_held,
            announcement,
        });
        if attached.is_err() {
            return false;
        }
        (sending.driver.peer, receiving.driver.peer) = (Some(peer), Some(peer));
        qp.device.driver().ends.insert(epoch, qp);
        send_rtr(qp, &mut sending, &peer, agreed.says, &mut cx);
        true
    }

    /// A queue pair's stream has begun or ended: notifies its maker.
    pub(crate) fn note(&self, epoch: u32, news: StreamEvent, effects: &mut Effects) {
        let mut state = self.lock();
        let sink = match news {
            StreamEvent::Begun => state
                .running
                .get(&epoch)
                .map(|running| Arc::clone(&running.sink)),
            StreamEvent::Ended => state.leave(epoch).map(|running| running.sink),
        };
        drop(state);
        if let Some(sink) = sink {
            effects.later(move |_| match news {
                StreamEvent::Begun => sink.begun(),
                StreamEvent::Ended => sink.ended(StreamEnd::Closed),
            });
        }
    }

    /// Reserves a stream for a queue pair, which gets it when MPA's start-up is over.
    pub(crate) fn claim_for(&self, stream: Qpn, qp: QpWeak, epoch: u32) {
        if let Some(early) = self.lock().early.get_mut(&stream.value()) {
            early.claim = Some((qp, epoch));
        }
    }
}

// Fails a queue pair that waits for a stream which will not come.
pub(crate) fn give_up(qp: &QpWeak, epoch: u32) {
    let Some(qp) = qp.upgrade() else { return };
    let waits = {
        let half = qp.requester();
        let waits = half.driver.peer.is_some_and(|peer| !peer.is_connected());
        half.driver.epoch == epoch && waits && is_ready(qp.state())
    };
    if waits {
        let mut effects = Effects::default();
        qp.enter_error(false);
        effects.flush(qp.owner().clone());
        effects.run();
    }
}

// The ready-to-receive indication leaves before anything else. It counts as the first message of its queue.
fn send_rtr(qp: &QpRef, half: &mut crate::Sending, peer: &Peer, form: ReadyForms, cx: &mut Cx<'_>) {
    let message = if form.contains(ReadyForms::WRITE) {
        Message::rtr_write()
    } else if form.contains(ReadyForms::READ) {
        half.driver.count_message(queue::REQUEST);
        half.driver.awaits_ready = true;
        let body = Body::ReadRequest(ReadRequest::default());
        Message::untagged(1, Opcode::READ_REQUEST, body)
    } else if form.contains(ReadyForms::SEND) {
        half.driver.count_message(queue::SEND);
        Message::untagged(1, Opcode::send(false, false), Body::Data)
    } else {
        return;
    };
    peer::send_message(qp, peer, message, cx);
}

// A peer may miss an indication that comes early, until something else arrives: Linux's siw looks for it only after it has
// sent the reply. As a write without bytes it may be repeated, since it changes nothing.
fn repeat_rtr(qp: &QpRef, epoch: u32) {
    let weak = qp.downgrade();
    let timers = qp.device.network().timers();
    let again = move |_| {
        let Some(qp) = weak.upgrade() else { return };
        let pin = pin();
        let mut cx = Cx::new(&qp.device, &pin);
        let half = qp.requester();
        let peer = half.driver.peer.filter(|peer| peer.is_connected());
        if let Some(peer) = peer.filter(|peer| peer.mine == epoch)
            && qp.state() == QpState::Rts
        {
            // Where there is no room, something else is on its way.
            let _ = peer::offer(&qp, &peer, Message::rtr_write(), Payload::Empty, &mut cx);
        }
        drop(half);
        drop(pin);
        qp.device.network().progress();
    };
    timers.add(timers.now().after(RTR_REPEAT), Box::new(again));
}

impl State {
    /// A stream that was agreed on and that a queue pair waits for.
    fn take_complete(&mut self, number: u32) -> Option<Early> {
        let early = self.early.get(&number)?;
        let is_complete = early.agreed.is_some() && early.claim.is_some() && early.sink.is_some();
        is_complete.then(|| self.early.remove(&number)).flatten()
    }

    fn run(&mut self, epoch: u32, running: Running) {
        self.epochs.insert(running.number, epoch);
        self.running.insert(epoch, running);
    }

    fn leave(&mut self, epoch: u32) -> Option<Running> {
        let running = self.running.remove(&epoch)?;
        self.epochs.remove(&running.number);
        Some(running)
    }

    fn running_as(&self, number: u32) -> Option<(u32, &Running)> {
        let epoch = *self.epochs.get(&number)?;
        Some((epoch, self.running.get(&epoch)?))
    }

    /// The oldest silent stream of the address that most silent streams come from.
    fn longest_silent(&self) -> Option<u32> {
        let mut of_peers = HashMap::<IpAddr, (usize, u64, u32)>::new();
        for (&number, early) in self.early.iter().filter(|(_, early)| early.is_silent()) {
            let first = (0, early.order, number);
            let (count, order, oldest) = of_peers.entry(early.peer).or_insert(first);
            *count += 1;
            if early.order < *order {
                (*order, *oldest) = (early.order, number);
            }
        }
        let most = of_peers.into_values().max_by_key(|(count, ..)| *count);
        most.map(|(.., number)| number)
    }

    fn insert(&mut self, mut early: Early) -> u32 {
        self.inserted += 1;
        early.order = self.inserted;
        loop {
            let number = FIRST_STREAM + self.made % STREAM_NUMBERS;
            self.made = self.made.wrapping_add(1);
            if let Entry::Vacant(free) = self.early.entry(number) {
                free.insert(early);
                return number;
            }
        }
    }
}

impl StreamPort for Streams {
    fn address(&self) -> IpAddr {
        self.address
    }

    fn wishes(&self) -> StreamWishes {
        self.wishes
    }

    fn listen(&self, at: SocketAddr, sink: Arc<dyn StreamListener>) -> io::Result<SocketAddr> {
        let listener = Arc::new(TcpListener::listen(at, BACKLOG, &self.tcp)?);
        let local = listener.local();
        let mut state = self.lock();
        state.listeners_made += 1;
        let token = LISTENERS + state.listeners_made;
        let listening = Listening {
            listener: Arc::clone(&listener),
            sink,
        };
        state.listeners.insert(token, listening);
        self.link.reactor().add(&*listener, token, Source::Rare)?;
        Ok(local)
    }

    fn unlisten(&self, at: SocketAddr) {
        let mut state = self.lock();
        let found = state
            .listeners
            .iter()
            .find(|(_, listening)| listening.listener.local() == at)
            .map(|(token, _)| *token);
        let listening = found.and_then(|token| state.listeners.remove(&token));
        drop(state);
        if let Some(listening) = listening {
            let _ = self
                .link
                .reactor()
                .remove(&*listening.listener, Source::Rare);
        }
    }

    fn connect(&self, to: SocketAddr, sink: Arc<dyn StreamSink>) -> io::Result<Qpn> {
        let local = SocketAddr::new(self.address, 0);
        let socket = TcpSocket::connect(Some(local), to, &self.tcp)?;
        let connection = self.connection(socket, Way::Out, to);
        let mut early = Early::new(connection, to.ip(), Way::Out);
        early.sink = Some(sink);
        let mut state = self.lock();
        let number = state.insert(early);
        if let Some(early) = state.early.get(&number)
            && let Err(error) = self.watch(early, number)
        {
            state.early.remove(&number);
            return Err(error);
        }
        Ok(Qpn::new(number))
    }

    fn send(&self, stream: Qpn, octets: &[u8]) {
        let mut state = self.lock();
        if let Some(early) = state.early.get_mut(&stream.value()) {
            early.send(&self.link, octets);
        }
    }

    fn agree(&self, stream: Qpn, agreed: StreamAgreed, last: &[u8], rest: &[u8]) {
        let mut state = self.lock();
        let Some(early) = state.early.get_mut(&stream.value()) else {
            return;
        };
        // From here on, what arrives is frames.
        early.send(&self.link, last);
        early.agreed = Some(agreed);
        early.rest = rest.to_vec();
        // At once: the peer may have answered and closed already, and then the queue pair has to see that.
        let complete = state.take_complete(stream.value());
        drop(state);
        let mut effects = Effects::default();
        if let Some(early) = complete {
            self.hand_over(stream.value(), early, &mut effects);
        }
        effects.run();
        if let Some(device) = self.device() {
            device.network().progress();
        }
    }

    fn carries(&self, qp: Qpn) -> bool {
        let found = self.device().and_then(|device| device.qp(qp.value()));
        found.is_some_and(|qp| {
            qp.requester()
                .driver
                .peer
                .is_some_and(|peer| peer.is_connected())
        })
    }

    fn close(&self, stream: Qpn, how: StreamClose) {
        let number = stream.value();
        if let Some(mut early) = self.take(number) {
            match how {
                StreamClose::Graceful => _ = early.connection.finish(),
                StreamClose::Abrupt => early.connection.abort(),
            }
            if let Some((qp, epoch)) = early.claim {
                give_up(&qp, epoch);
            }
            return;
        }
        let state = self.lock();
        let found = state
            .running_as(number)
            .map(|(epoch, running)| (epoch, running.qp.clone()));
        drop(state);
        let Some((epoch, qp)) = found.and_then(|(epoch, qp)| Some((epoch, qp.upgrade()?))) else {
            return;
        };
        Cx::run(&qp.device, None, |cx| match how {
            StreamClose::Graceful => peer::close(&qp, epoch, cx),
            StreamClose::Abrupt => peer::give_up(&qp, epoch, cx),
        });
        qp.device.network().progress();
    }

    fn now(&self) -> Duration {
        let now = self.device().map(|device| device.network().timers().now());
        Duration::from_nanos(now.unwrap_or_default().0)
    }

    fn wake_at(&self, stream: Qpn, at: Duration) {
        let Some(device) = self.device() else { return };
        let number = stream.value();
        let streams = self.me.clone();
        let job = move |_| {
            let Some(streams) = streams.upgrade() else {
                return;
            };
            if let Some(sink) = streams.sink_of(number) {
                sink.due();
            }
        };
        let at = Time::default().after(at);
        device.network().timers().add(at, Box::new(job));
    }
}

impl Streams {
    fn sink_of(&self, number: u32) -> Option<Arc<dyn StreamSink>> {
        let state = self.lock();
        let early = state
            .early
            .get(&number)
            .and_then(|early| early.sink.clone());
        let running = || {
            let (_, running) = state.running_as(number)?;
            Some(Arc::clone(&running.sink))
        };
        early.or_else(running)
    }
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

fn end_of(error: &StreamError) -> StreamEnd {
    match error {
        StreamError::Refused => StreamEnd::Refused,
        StreamError::TimedOut => StreamEnd::TimedOut,
        StreamError::Unreachable(_) => StreamEnd::Unreachable,
        _ => StreamEnd::Reset,
    }
}

/// When an indication that a side is ready is repeated.
const RTR_REPEAT: Duration = Duration::from_millis(50);
/// Tokens of listeners: above those of streams.
const LISTENERS: u64 = 1 << 32;
/// Connections that one look at a listener takes.
const ACCEPT_BATCH: usize = 32;
/// Connections that wait in the kernel to be taken.
const BACKLOG: u32 = 1024;
/// After how long a listener is asked again that had nothing to give.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Bytes that may wait on a stream that no queue pair has yet.
const MAX_REST: usize = 1 << 16;
