//! The streams of a device on an IP network: TCP connections, from their first byte until a queue pair has them.
//!
//! Every stream has a number from a range that queue pairs do not use. Its sink, which speaks MPA, gets the bytes that
//! arrive: the sink is in the crate that makes connections, or in `rendezvous`. When both ends have agreed, the stream
//! waits for the queue pair that names its number, or goes to the one that has named it already; from then on the link has
//! its frames.
//!
//! Everything here runs on the reactor thread and never blocks. No lock is held while a sink is called.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use polyverbs_engine::effects::Effects;
use polyverbs_engine::payload::Payload;
use polyverbs_engine::pin::pin;
use polyverbs_engine::time::Time;
use polyverbs_io::{
    Announcement, Attachment, Received, StreamError, TcpLinkOptions, TcpTap, Way, most_descriptors,
};
use polyverbs_wire::iwarp::Framing;
use verbs_api::ids::{LinkAddress, Qpn};
use verbs_api::provider::carrier::{
    ReadyForms, StreamAgreed, StreamClose, StreamEnd, StreamListener, StreamPort, StreamSink,
    StreamWishes,
};
use verbs_api::provider::{Mutex, errno_of};
use verbs_api::qp::QpState;

use crate::codec;
use crate::connection::FIRST_STREAM;
use crate::header::{Body, End, Message, Opcode, ReadRequest, Stream, queue};
use crate::peer::{self, Peer, begin_close, is_ready};
use crate::requester::fail_later;
use crate::silent::SilentStreams;
use crate::sockets::{Sockets, StreamSocket as _};
use crate::{Cx, Device, QpRef, QpWeak};

/// Options of an iWARP device on an IP network.
#[derive(Clone)]
#[non_exhaustive]
pub struct WireOptions {
    /// The address of the device, and the port on which queue pairs that name each other by number find each other; port 0
    /// if only a connection manager makes connections.
    pub address: SocketAddr,
    /// Options of the device's TCP streams, such as the backlog and the injected faults.
    pub link: TcpLinkOptions,
    /// Whether this device wants checksums in the frames of both directions. A peer that wants them gets them in any case.
    pub crc: bool,
    /// Whether this device wants markers in the frames that it receives.
    pub markers: bool,
    /// Whether this device, when a peer has requested a connection, sends frames before the peer has sent one: see
    /// [`StreamWishes::speaks_first`].
    pub speaks_first: bool,
    /// The most bytes of a DDP segment, even if the path carries more.
    pub max_segment: usize,
    /// The most streams that no queue pair uses yet. The default is 4,096, or half of the process's descriptors if that is
    /// less. One more stream replaces one whose peer has been silent for longest.
    pub max_early: usize,
    /// Gets a copy of the bytes that pass through the sockets; `None` for no copy.
    pub tap: Option<Arc<dyn TcpTap>>,
}

impl WireOptions {
    /// Creates the options for a device at this address and port, with checksums and without markers.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            link: TcpLinkOptions::default(),
            crc: true,
            markers: false,
            speaks_first: false,
            max_segment: u16::MAX.into(),
            max_early: MOST_EARLY.min(most_descriptors() / 2),
            tap: None,
        }
    }
}

const STREAM_NUMBERS: u32 = 0x7f_fff0;

/// The streams of a device; see the [module](self).
pub(crate) struct Streams<S: Sockets> {
    sockets: S,
    options: WireOptions,
    device: OnceLock<Weak<Device>>,
    state: Mutex<State<S>>,
    me: Weak<Self>,
}

struct State<S: Sockets> {
    numbered: u32,
    inserted: u64,
    listeners_made: u64,
    early: HashMap<u32, Early<S>>,
    /// Those streams in `early` whose peer has been silent so far.
    silent: SilentStreams,
    listeners: HashMap<u64, Listening<S>>,
    /// Streams that queue pairs use, each with the sink that is notified of its end.
    running: HashMap<u32, (Claim, Arc<dyn StreamSink>)>,
}

impl<S: Sockets> Default for State<S> {
    fn default() -> Self {
        Self {
            numbered: 0,
            inserted: 0,
            listeners_made: 0,
            early: HashMap::new(),
            silent: SilentStreams::default(),
            listeners: HashMap::new(),
            running: HashMap::new(),
        }
    }
}

struct Listening<S: Sockets> {
    listener: Arc<S::Listener>,
    at: SocketAddr,
    sink: Arc<dyn StreamListener>,
}

/// A queue pair that waits for a stream or uses it, in the connection with this epoch.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) qp: QpWeak,
    pub(crate) epoch: u32,
}

impl Claim {
    /// Describes a queue pair that has named its peer, and so waits for a stream.
    pub(crate) fn new(qp: &QpRef, named: &Peer) -> Self {
        Self {
            qp: qp.downgrade(),
            epoch: named.mine,
        }
    }

    /// Fails the queue pair if it still waits for its stream, which will not come.
    pub(crate) fn give_up(&self) {
        let Some(qp) = self.qp.upgrade() else { return };
        let half = qp.requester();
        let waits = half.driver.peer.is_some_and(|peer| !peer.is_connected());
        let waits = waits && half.driver.epoch == self.epoch && is_ready(qp.state());
        drop(half);
        if waits {
            let mut effects = Effects::default();
            qp.enter_error(false);
            effects.flush(qp.owner().clone());
            effects.run();
        }
    }
}

/// A stream that no queue pair uses yet.
struct Early<S: Sockets> {
    socket: Arc<S::Socket>,
    peer: IpAddr,
    sink: Arc<dyn StreamSink>,
    is_connected: bool,
    /// Whether the peer has begun the stream and has not sent its whole MPA request.
    is_silent: bool,
    /// The position of the stream in the order of arrival.
    order: u64,
    agreed: Option<StreamAgreed>,
    rest: Vec<u8>,
    /// Bytes that the link sends before any frame, when it gets the stream.
    last: Vec<u8>,
    /// Whether any byte was sent on the stream.
    has_spoken: bool,
    announcement: Option<Announcement>,
    claim: Option<Claim>,
}

impl<S: Sockets> Early<S> {
    // Sends bytes that come before frames. If the connection loses them, the sink is notified of the stream's end.
    fn send(&mut self, sockets: &S, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.announce(sockets);
            self.socket.send_first(bytes);
        }
    }

    // To be called before the first byte is sent.
    fn announce(&mut self, sockets: &S) {
        if !std::mem::replace(&mut self.has_spoken, true) {
            self.announcement = sockets.announce(&self.socket);
        }
    }
}

impl<S: Sockets> Streams<S> {
    pub(crate) fn new(sockets: S, options: WireOptions) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            sockets,
            options,
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

    /// Returns how many streams no queue pair uses yet.
    pub(crate) fn early(&self) -> usize {
        self.lock().early.len()
    }

    fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock()
    }

    fn watch(&self, early: &Early<S>, number: u32) -> io::Result<()> {
        let is_connecting = !early.is_connected;
        self.sockets
            .watch(&early.socket, number.into(), is_connecting)
    }

    /// Handles a socket that is readable, writable or broken. `token` is the number of its stream or listener.
    pub(crate) fn attend(&self, token: u64) {
        match u32::try_from(token) {
            Ok(number) => self.attend_stream(number),
            Err(_) => self.attend_listener(token),
        }
    }

    // ---- listeners

    fn attend_listener(&self, token: u64) {
        for _ in 0..ACCEPT_BATCH {
            // The lock is held, so that after the return of `unlisten` no other thread has the listener and its port is
            // free.
            let mut state = self.lock();
            let Some(listening) = state.listeners.get(&token) else {
                return;
            };
            let sink = Arc::clone(&listening.sink);
            let (socket, from) = match self.sockets.accept(&listening.listener) {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return,
                Err(_) => {
                    // Most likely the process has no descriptor left.
                    let listener = Arc::clone(&listening.listener);
                    let silent = state.silent.longest();
                    drop(state);
                    match silent {
                        Some(silent) => self.end(silent, StreamEnd::Reset),
                        None => return self.pause(token, &listener),
                    }
                    continue;
                }
            };
            // Silent connections must not keep others out.
            let is_full = state.early.len() >= self.options.max_early;
            let silent = is_full.then(|| state.silent.longest());
            let number = state.next_number();
            drop(state);
            match silent {
                Some(Some(silent)) => self.end(silent, StreamEnd::Reset),
                Some(None) => continue,
                None => {}
            }
            let Some(sink) = sink.accepted(Qpn::new(number), from) else {
                socket.abort();
                continue;
            };
            // A socket that cannot be watched is refused too.
            let _ = self.insert(number, socket, (from.ip(), Way::In), sink);
        }
    }

    // Stops watching the listener for a while, so that it is not polled in a loop while connections wait.
    fn pause(&self, token: u64, listener: &Arc<S::Listener>) {
        let (Some(device), Ok(())) = (self.device(), self.sockets.unwatch_listener(listener))
        else {
            return;
        };
        let (me, weak) = (self.me.clone(), Arc::downgrade(listener));
        let resume = move |_| {
            if let (Some(me), Some(listener)) = (me.upgrade(), weak.upgrade()) {
                // If the listener cannot be watched, no further connections are accepted.
                let _ = me.sockets.watch_listener(&listener, token);
            }
        };
        let timers = device.network().timers();
        timers.add(timers.now().after(ACCEPT_RETRY), Box::new(resume));
    }

    // ---- early streams

    fn insert(
        &self,
        number: u32,
        socket: S::Socket,
        (peer, way): (IpAddr, Way),
        sink: Arc<dyn StreamSink>,
    ) -> io::Result<()> {
        let mut state = self.lock();
        state.inserted += 1;
        let early = Early {
            socket: Arc::new(socket),
            peer,
            sink,
            is_connected: way == Way::In,
            is_silent: way == Way::In,
            order: state.inserted,
            agreed: None,
            rest: Vec::new(),
            last: Vec::new(),
            has_spoken: false,
            announcement: None,
            claim: None,
        };
        let watched = self.watch(&early, number);
        match watched {
            Ok(()) => {
                if early.is_silent {
                    state.silent.insert(peer, early.order, number);
                }
                state.early.insert(number, early);
            }
            Err(_) => early.socket.abort(),
        }
        watched
    }

    fn attend_stream(&self, number: u32) {
        if let Some(end) = self.advance(number) {
            self.end(number, end);
        }
    }

    // Handles the bytes that have arrived on a stream. Returns how the stream has ended; `None` if it continues.
    fn advance(&self, number: u32) -> Option<StreamEnd> {
        let mut buffer = [0; 4096];
        let mut state = self.lock();
        let early = state.early.get_mut(&number)?;
        let sink = Arc::clone(&early.sink);
        if !early.is_connected {
            match early.socket.connected() {
                Ok(false) => return None,
                Ok(true) => {}
                Err(error) => return Some(end_of(&error)),
            }
            self.sockets.unwatch(&early.socket);
            early.is_connected = true;
            let watched = self.watch(early, number);
            drop(state);
            sink.connected();
            return watched.err().map(|_| StreamEnd::Reset);
        }
        let bytes = match early.socket.receive(&mut buffer) {
            Ok(Received::Nothing) => return None,
            Ok(Received::Bytes(bytes)) => &buffer[..bytes],
            Ok(Received::End) => return Some(StreamEnd::Closed),
            Err(error) => return Some(end_of(&error)),
        };
        if early.agreed.is_some() {
            early.rest.extend_from_slice(bytes);
            if early.rest.len() >= MAX_REST {
                self.sockets.unwatch(&early.socket);
            }
            return None;
        }
        drop(state);
        sink.octets(bytes);
        if sink.has_asked() {
            self.lock().not_silent(number);
        }
        None
    }

    // Ends an early stream: notifies its sink, and fails the queue pair that waits for it.
    fn end(&self, number: u32, end: StreamEnd) {
        let Some(early) = self.take(number) else {
            return;
        };
        early.socket.abort();
        early.sink.ended(end);
        if let Some(claim) = early.claim {
            claim.give_up();
        }
    }

    fn take(&self, number: u32) -> Option<Early<S>> {
        let early = self.lock().remove(number)?;
        self.sockets.unwatch(&early.socket);
        Some(early)
    }

    // ---- queue pairs

    /// Reserves the stream whose number `named` has for this queue pair, which is ready to receive. If the stream has
    /// ended, the queue pair fails.
    pub(crate) fn claim(&self, qp: &QpRef, named: &Peer, cx: &mut Cx<'_>) {
        let number = named.end.qpn;
        let mut state = self.lock();
        let early = state.early.get_mut(&number);
        let early = early.filter(|early| {
            let is_free = early.claim.as_ref();
            let is_free = is_free.is_none_or(|claim| claim.epoch == named.mine);
            is_free && LinkAddress::Ip(early.peer) == named.address
        });
        let Some(early) = early else {
            // The stream has ended already: the connection counts as refused.
            drop(state);
            return fail_later(qp, cx);
        };
        early.claim = Some(Claim::new(qp, named));
        state.not_silent(number);
        let streams = self.me.clone();
        cx.effects.later(move |effects| {
            if let Some(streams) = streams.upgrade() {
                streams.join(streams.lock(), number, effects);
            }
        });
    }

    /// Reserves a stream for a queue pair, which gets it when MPA's start-up is complete.
    pub(crate) fn claim_for(&self, stream: Qpn, claim: Claim) {
        let mut state = self.lock();
        state.not_silent(stream.value());
        if let Some(early) = state.early.get_mut(&stream.value()) {
            early.claim = Some(claim);
        }
    }

    /// Cancels the reservation of a stream for a queue pair that no longer waits for it, and closes the stream.
    pub(crate) fn disclaim(&self, peer: &Peer, effects: &mut Effects) {
        let number = peer.end.qpn;
        let mut state = self.lock();
        let early = state.early.get_mut(&number);
        let claim = early.map(|early| &mut early.claim);
        let is_its = |claim: &mut Claim| claim.epoch == peer.mine;
        if claim.and_then(|claim| claim.take_if(is_its)).is_none() {
            return;
        }
        let streams = self.me.clone();
        effects.later(move |_| {
            if let Some(streams) = streams.upgrade() {
                streams.end(number, StreamEnd::Closed);
            }
        });
    }

    // Gives an agreed stream to the queue pair that waits for it. The caller holds no other lock.
    fn join(&self, mut state: MutexGuard<'_, State<S>>, number: u32, effects: &mut Effects) {
        let early = state.early.get(&number);
        let complete = early.and_then(|early| early.agreed.zip(early.claim.clone()));
        let Some((agreed, claim)) = complete else {
            return;
        };
        let Some(early) = state.remove(number) else {
            return;
        };
        let sink = Arc::clone(&early.sink);
        let running = (claim.clone(), Arc::clone(&sink));
        state.running.insert(number, running);
        drop(state);
        self.sockets.unwatch(&early.socket);
        let qp = claim.qp.upgrade();
        let Some(qp) = qp.filter(|qp| self.attach(qp, claim.epoch, number, early, agreed)) else {
            self.lock().running.remove(&number);
            claim.give_up();
            return sink.ended(StreamEnd::Closed);
        };
        effects.resume(qp.owner().clone());
        if agreed.says.contains(ReadyForms::WRITE) {
            repeat_rtr(&qp, claim.epoch);
        }
    }

    // Both halves are locked while the link takes the stream, so that no frame is delivered or sent before both know their
    // peer.
    fn attach(
        &self,
        qp: &QpRef,
        epoch: u32,
        number: u32,
        early: Early<S>,
        agreed: StreamAgreed,
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
        let (sends, receives) = (agreed.sends_markers, agreed.receives_markers);
        // The link may report the end of the stream before `attach` returns.
        qp.device.driver().ends.insert(epoch, qp);
        let attached = self.sockets.attach(Attachment {
            key: epoch.into(),
            socket: early.socket,
            local: qp.device.address(),
            peer: peer.address,
            sender: codec::Sending::new(framing(sends), self.options.max_segment),
            receiver: codec::Receiving::new(framing(receives), arriving, agreed.awaits),
            received: early.rest,
            last: early.last,
            is_held: agreed.is_held,
            announcement: early.announcement,
        });
        if attached.is_err() {
            qp.device.driver().ends.remove(epoch);
            return false;
        }
        (sending.driver.peer, receiving.driver.peer) = (Some(peer), Some(peer));
        send_rtr(qp, &mut sending, &peer, agreed.says, &mut cx);
        true
    }

    /// Notifies the sink of the stream with this number, which a queue pair uses, that the first frame has arrived.
    pub(crate) fn begun(&self, number: u32, effects: &mut Effects) {
        if let Some((_, sink)) = self.lock().running.get(&number).cloned() {
            effects.later(move |_| sink.begun());
        }
    }

    /// Notifies the sink of the stream with this number that its queue pair has left it.
    pub(crate) fn ended(&self, number: u32, effects: &mut Effects) {
        if let Some((_, sink)) = self.lock().running.remove(&number) {
            effects.later(move |_| sink.ended(StreamEnd::Closed));
        }
    }
}

// Sends the ready-to-receive indication before any other message. It counts as the first message of its queue.
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

// Repeats the ready-to-receive indication once. A peer may miss an early one until something else arrives: Linux's siw
// checks for it only after it has sent the reply. In the form of a write without payload it may be repeated, because it
// changes nothing.
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
            // If there is no room, another message is on its way.
            let _ = peer::offer(&qp, &peer, Message::rtr_write(), Payload::Empty, &mut cx);
        }
        drop(half);
        drop(pin);
        qp.device.network().progress();
    };
    timers.add(timers.now().after(RTR_REPEAT), Box::new(again));
}

impl<S: Sockets> State<S> {
    /// Notes that the peer of this stream no longer counts as silent: a queue pair waits for the stream, or the program is
    /// asked to accept it.
    fn not_silent(&mut self, number: u32) {
        if let Some(early) = self.early.get_mut(&number)
            && std::mem::take(&mut early.is_silent)
        {
            self.silent.remove(early.peer, early.order);
        }
    }

    fn remove(&mut self, number: u32) -> Option<Early<S>> {
        self.not_silent(number);
        self.early.remove(&number)
    }

    fn next_number(&mut self) -> u32 {
        loop {
            let number = FIRST_STREAM + self.numbered % STREAM_NUMBERS;
            self.numbered = self.numbered.wrapping_add(1);
            if !self.early.contains_key(&number) && !self.running.contains_key(&number) {
                return number;
            }
        }
    }
}

impl<S: Sockets> StreamPort for Streams<S> {
    fn address(&self) -> IpAddr {
        self.options.address.ip()
    }

    fn wishes(&self) -> StreamWishes {
        StreamWishes {
            crc: self.options.crc,
            markers: self.options.markers,
            speaks_first: self.options.speaks_first,
        }
    }

    fn listen(&self, at: SocketAddr, sink: Arc<dyn StreamListener>) -> io::Result<SocketAddr> {
        let (listener, at) = self.sockets.listen(at)?;
        let mut state = self.lock();
        state.listeners_made += 1;
        let token = LISTENERS + state.listeners_made;
        self.sockets.watch_listener(&listener, token)?;
        let listener = Arc::new(listener);
        let listening = Listening { listener, at, sink };
        state.listeners.insert(token, listening);
        Ok(at)
    }

    fn unlisten(&self, at: SocketAddr) {
        let is_it = |_: &u64, listening: &mut Listening<S>| listening.at == at;
        let listening = self.lock().listeners.extract_if(is_it).next();
        if let Some((_, Listening { listener, .. })) = listening {
            let _ = self.sockets.unwatch_listener(&listener);
        }
    }

    fn connect(&self, from: u16, to: SocketAddr, sink: Arc<dyn StreamSink>) -> io::Result<Qpn> {
        let local = SocketAddr::new(self.address(), from);
        let socket = self.sockets.connect(local, to)?;
        let number = self.lock().next_number();
        self.insert(number, socket, (to.ip(), Way::Out), sink)?;
        Ok(Qpn::new(number))
    }

    fn admits(&self, stream: Qpn) -> bool {
        let state = self.lock();
        let early = state.early.get(&stream.value());
        early.is_some_and(|early| self.sockets.admits(&early.socket))
    }

    fn send(&self, stream: Qpn, bytes: &[u8]) {
        let mut state = self.lock();
        if let Some(early) = state.early.get_mut(&stream.value()) {
            early.send(&self.sockets, bytes);
        }
    }

    fn agree(&self, stream: Qpn, agreed: StreamAgreed, last: &[u8], rest: &[u8]) {
        let mut state = self.lock();
        state.not_silent(stream.value());
        let Some(early) = state.early.get_mut(&stream.value()) else {
            return;
        };
        // All further bytes are frames. The peer continues when it has `last`, and its next frames must find the stream
        // attached.
        if !last.is_empty() {
            early.announce(&self.sockets);
            early.last = last.to_vec();
        }
        early.agreed = Some(agreed);
        early.rest = rest.to_vec();
        // The queue pair gets the stream at once: the peer may have answered and closed already, which the queue pair has
        // to see.
        let mut effects = Effects::default();
        self.join(state, stream.value(), &mut effects);
        effects.run();
        if let Some(device) = self.device() {
            device.network().progress();
        }
    }

    fn carries(&self, qp: Qpn) -> bool {
        let found = self.device().and_then(|device| device.qp(qp.value()));
        let peer = found.and_then(|qp| qp.requester().driver.peer);
        peer.is_some_and(|peer| peer.is_connected())
    }

    fn close(&self, stream: Qpn, how: StreamClose) {
        let number = stream.value();
        if let Some(early) = self.take(number) {
            match how {
                StreamClose::Graceful => early.socket.finish(),
                StreamClose::Abrupt => early.socket.abort(),
            }
            if let Some(claim) = early.claim {
                claim.give_up();
            }
            return;
        }
        let Some((claim, _)) = self.lock().running.get(&number).cloned() else {
            return;
        };
        let Some(qp) = claim.qp.upgrade() else { return };
        Cx::run(&qp.device, None, |cx| {
            let mut half = qp.requester();
            if half.driver.epoch != claim.epoch || !is_ready(qp.state()) {
                return;
            }
            match how {
                StreamClose::Graceful => begin_close(&qp, &mut half, cx),
                StreamClose::Abrupt => fail_later(&qp, cx),
            }
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
            if let Some(sink) = streams
                .upgrade()
                .and_then(|streams| streams.sink_of(number))
            {
                sink.due();
            }
        };
        let at = Time::default().after(at);
        device.network().timers().add(at, Box::new(job));
    }
}

impl<S: Sockets> Streams<S> {
    fn sink_of(&self, number: u32) -> Option<Arc<dyn StreamSink>> {
        let state = self.lock();
        let early = state.early.get(&number).map(|early| &early.sink);
        let running = || state.running.get(&number).map(|(_, sink)| sink);
        early.or_else(running).cloned()
    }
}

impl<S: Sockets> fmt::Debug for Streams<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams")
            .field("address", &self.options.address)
            .finish_non_exhaustive()
    }
}

fn end_of(error: &StreamError) -> StreamEnd {
    match error {
        StreamError::Refused => StreamEnd::Refused,
        StreamError::TimedOut => StreamEnd::TimedOut,
        StreamError::Unreachable(error) => StreamEnd::Unreachable(errno_of(error)),
        _ => StreamEnd::Reset,
    }
}

/// The default for the most streams that no queue pair uses yet.
const MOST_EARLY: usize = 4096;
/// The time after which a ready-to-receive indication is repeated.
const RTR_REPEAT: Duration = Duration::from_millis(50);
/// The first reactor token of listeners, above those of streams.
const LISTENERS: u64 = 1 << 32;
/// The most connections that are accepted each time a listener is readable.
const ACCEPT_BATCH: usize = 32;
/// The time after which a listener is watched again that was paused for lack of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// The most received bytes that may wait on a stream that no queue pair uses yet.
const MAX_REST: usize = 1 << 16;
