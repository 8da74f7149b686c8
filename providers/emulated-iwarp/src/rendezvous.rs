//! How two queue pairs that name each other by number find each other over TCP, without a connection manager.
//!
//! Every device listens on its port. Of two queue pairs, the one with the lower address begins the stream, or on one device
//! the one with the lower number; MPA's request names both in its private data. The other device replies when its queue
//! pair is ready and names the first, and refuses if it has no queue pair of that number. Until then the initiator tries
//! again, for as long as programs may need to start.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use polyverbs_engine::effects::Effects;
use polyverbs_wire::iwarp::start::{
    self, Enhanced, Kind, LEFT_TO_PROGRAM, MAX_START_LEN, Settings, Start, StartHeader,
};
use verbs_api::ids::{LinkAddress, Qpn};
use verbs_api::provider::Mutex;
use verbs_api::provider::carrier::{
    ReadyForms, StreamAgreed, StreamClose, StreamEnd, StreamListener, StreamPort, StreamSink,
};

use crate::connection::FIRST_STREAM;
use crate::driver::QpStreams;
use crate::peer::Peer;
use crate::requester::fail_later;
use crate::sockets::Sockets;
use crate::streams::{Claim, Streams};
use crate::{Cx, QpRef};

/// The first bytes of an MPA request's private data, if the request names two queue pairs.
const MAGIC: &[u8; 8] = b"polyqpqp";

/// How long a queue pair waits for its peer to appear, and the time between two attempts to connect.
const PEER_TIMEOUT: Duration = Duration::from_secs(60);
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// How long a connected peer may take to send its MPA request or reply.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The most pairs in `left`; the oldest ones are forgotten.
const MAX_LEFT: usize = 64;

/// The queue pairs of this device that wait for a peer, and the peers that wait for one of them.
pub(crate) struct Rendezvous<S: Sockets> {
    /// The TCP streams of this device.
    streams: Arc<Streams<S>>,
    /// The address of this device, and the port on which all devices listen; port 0 if it does not listen.
    at: SocketAddr,
    state: Mutex<State>,
    me: Weak<Self>,
}

/// Two queue pairs: the address of the peer, the number of the peer's queue pair, and the number of this device's.
type PairKey = (IpAddr, u32, u32);

#[derive(Default)]
struct State {
    waiting: HashMap<PairKey, Waiting>,
    /// Peers that have requested a connection to a queue pair which does not wait for them yet. Each has one of the streams
    /// that no queue pair uses. The number of these is limited, and the oldest one is replaced.
    callers: HashMap<PairKey, Caller>,
    /// Pairs whose queue pair on this device left before the peer connected: a later connection for such a pair is refused.
    left: VecDeque<PairKey>,
}

/// A queue pair of this device that waits for its peer, and the stream that it has begun, if any.
struct Waiting {
    claim: Claim,
    until: Duration,
    stream: Option<Qpn>,
    is_connected: bool,
    /// The part of the peer's MPA reply that has arrived.
    arrived: Vec<u8>,
}

/// A peer that has requested a connection to a queue pair of this device, and the stream on which it did.
struct Caller {
    stream: Qpn,
    request: StartHeader,
}

impl<S: Sockets> Rendezvous<S> {
    /// Creates the rendezvous of a device with these streams, at this address.
    pub(crate) fn new(streams: Arc<Streams<S>>, at: SocketAddr) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            streams,
            at,
            state: Mutex::default(),
            me: me.clone(),
        })
    }

    /// Listens for the streams of peers that connect. If that fails, tries again until it succeeds; the result is that of
    /// the first attempt.
    pub(crate) fn listen(&self) -> io::Result<()> {
        let listener = Arc::new(RendezvousListener(self.me.clone()));
        let listening = self.streams.listen(self.at, listener);
        if listening.is_err() {
            self.later(|me| drop(me.listen()));
        }
        listening.map(drop)
    }

    // Runs `attempt` after the retry interval.
    fn later(&self, attempt: impl FnOnce(&Self) + Send + 'static) {
        let (me, device) = (self.me.clone(), self.streams.device());
        let Some(device) = device else { return };
        let timers = device.network().timers();
        let job = move |_| {
            if let Some(me) = me.upgrade() {
                attempt(&me);
            }
        };
        timers.add(timers.now().after(RETRY_INTERVAL), Box::new(job));
    }

    // Replies to a connection request that has been waiting for the queue pair. If there is none yet, the request is
    // answered when it arrives.
    fn answer(&self, pair: PairKey) {
        let mut state = self.state.lock();
        if !state.waiting.contains_key(&pair) {
            return;
        }
        let Some(caller) = state.callers.remove(&pair) else {
            return;
        };
        let Some(waiting) = state.waiting.remove(&pair) else {
            return;
        };
        drop(state);
        let wishes = self.wishes();
        let reply = StartHeader {
            crc: wishes.crc || caller.request.crc,
            ..wishes
        };
        let settings = Settings::of(&caller.request, &reply);
        self.streams.claim_for(caller.stream, waiting.claim);
        let agreed = StreamAgreed {
            crc: settings.crc,
            sends_markers: settings.responder_markers,
            receives_markers: settings.initiator_markers,
            says: ReadyForms::empty(),
            awaits: ReadyForms::WRITE,
            is_held: true,
        };
        let reply = encoded(Kind::Reply, reply, b"");
        self.streams.agree(caller.stream, agreed, &reply, b"");
    }

    fn asked(&self, pair: PairKey, caller: Caller) {
        let stream = caller.stream;
        let exists = self
            .streams
            .device()
            .is_some_and(|device| device.qp(pair.2).is_some());
        let mut state = self.state.lock();
        let left = state.left.iter().position(|left| *left == pair);
        let is_late = left
            .and_then(|at| state.left.remove(at))
            .is_some_and(|_| !state.waiting.contains_key(&pair));
        if !exists || is_late {
            drop(state);
            return reject(&self.streams, stream);
        }
        // A peer that connects again has lost its first stream.
        let before = state.callers.insert(pair, caller);
        drop(state);
        if let Some(before) = before {
            self.streams.close(before.stream, StreamClose::Abrupt);
        }
        self.answer(pair);
    }

    // Connects to the device of the other queue pair.
    fn call(&self, pair: PairKey, epoch: u32) {
        let to = SocketAddr::new(pair.0, self.at.port());
        let sink = InitiatorSink {
            rendezvous: self.me.clone(),
            pair,
            epoch,
        };
        let Ok(stream) = self.streams.connect(0, to, Arc::new(sink)) else {
            return self.again(pair, epoch);
        };
        let mut state = self.state.lock();
        let Some(waiting) = state.waiting_mut(pair, epoch) else {
            drop(state);
            return self.streams.close(stream, StreamClose::Abrupt);
        };
        waiting.stream = Some(stream);
        let is_connected = waiting.is_connected;
        drop(state);
        let due = self.streams.now() + HANDSHAKE_TIMEOUT;
        self.streams.wake_at(stream, due);
        if is_connected {
            self.request(stream, pair);
        }
    }

    // Sends MPA's request, which names both queue pairs.
    fn request(&self, stream: Qpn, (_, theirs, mine): PairKey) {
        let names = [&MAGIC[..], &theirs.to_be_bytes(), &mine.to_be_bytes()].concat();
        let request = encoded(Kind::Request, self.wishes(), &names);
        self.streams.send(stream, &request);
    }

    /// Returns how many requests of peers wait for a queue pair.
    pub(crate) fn callers(&self) -> usize {
        self.state.lock().callers.len()
    }

    // Forgets the request that came on a stream.
    fn forget(&self, stream: Qpn) {
        let callers = &mut self.state.lock().callers;
        callers.retain(|_, caller| caller.stream != stream);
    }

    // Returns the preferences of this device for a stream, in the form of MPA.
    fn wishes(&self) -> StartHeader {
        let wishes = self.streams.wishes();
        StartHeader {
            markers: wishes.markers,
            crc: wishes.crc,
            ..StartHeader::default()
        }
    }

    // Connects again after a short time, because the peer was not there, until the timeout.
    fn again(&self, pair: PairKey, epoch: u32) {
        let mut state = self.state.lock();
        let Some(waiting) = state.waiting_mut(pair, epoch) else {
            return;
        };
        if waiting.until <= self.streams.now() || waiting.claim.qp.upgrade().is_none() {
            let waiting = state.take(pair, epoch);
            drop(state);
            return waiting
                .into_iter()
                .for_each(|waiting| waiting.claim.give_up());
        }
        (waiting.stream, waiting.is_connected) = (None, false);
        waiting.arrived.clear();
        drop(state);
        self.later(move |me| me.call(pair, epoch));
    }
}

impl<S: Sockets> QpStreams for Rendezvous<S> {
    fn claim(&self, qp: &QpRef, named: &Peer, cx: &mut Cx<'_>) {
        if named.end.qpn >= FIRST_STREAM {
            return self.streams.claim(qp, named, cx);
        }
        let LinkAddress::Ip(theirs) = named.address else {
            return;
        };
        if self.at.port() == 0 {
            return fail_later(qp, cx);
        }
        let pair = (theirs, named.end.qpn, qp.qpn);
        let waiting = Waiting {
            claim: Claim::new(qp, named),
            until: self.streams.now() + PEER_TIMEOUT,
            stream: None,
            is_connected: false,
            arrived: Vec::new(),
        };
        self.state.lock().waiting.insert(pair, waiting);
        let begins = (self.streams.address(), qp.qpn) < (theirs, named.end.qpn);
        let (me, epoch) = (self.me.clone(), named.mine);
        cx.effects.later(move |_| {
            let Some(me) = me.upgrade() else { return };
            match begins {
                true => me.call(pair, epoch),
                false => me.answer(pair),
            }
        });
    }

    fn disclaim(&self, qpn: u32, peer: &Peer, effects: &mut Effects) {
        if peer.end.qpn >= FIRST_STREAM {
            return self.streams.disclaim(peer, effects);
        }
        let LinkAddress::Ip(theirs) = peer.address else {
            return;
        };
        let pair = (theirs, peer.end.qpn, qpn);
        let mut state = self.state.lock();
        let Some(waiting) = state.take(pair, peer.mine) else {
            return;
        };
        state.left.truncate(MAX_LEFT - 1);
        state.left.push_front(pair);
        drop(state);
        if let Some(stream) = waiting.stream {
            self.streams.close(stream, StreamClose::Abrupt);
        }
    }

    fn begun(&self, number: u32, effects: &mut Effects) {
        self.streams.begun(number, effects);
    }

    fn ended(&self, number: u32, effects: &mut Effects) {
        self.streams.ended(number, effects);
    }

    fn port(&self) -> Arc<dyn StreamPort> {
        Arc::clone(&self.streams) as Arc<dyn StreamPort>
    }
}

impl<S: Sockets> fmt::Debug for Rendezvous<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rendezvous")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

impl State {
    fn waiting_mut(&mut self, pair: PairKey, epoch: u32) -> Option<&mut Waiting> {
        let waiting = self.waiting.get_mut(&pair)?;
        (waiting.claim.epoch == epoch).then_some(waiting)
    }

    fn take(&mut self, pair: PairKey, epoch: u32) -> Option<Waiting> {
        self.waiting_mut(pair, epoch)?;
        self.waiting.remove(&pair)
    }
}

fn reject<S: Sockets>(streams: &Streams<S>, stream: Qpn) {
    let reply = StartHeader {
        reject: true,
        ..StartHeader::default()
    };
    streams.send(stream, &encoded(Kind::Reply, reply, b""));
    streams.close(stream, StreamClose::Graceful);
}

/// Receives the events of a stream that a queue pair of this device has begun.
struct InitiatorSink<S: Sockets> {
    rendezvous: Weak<Rendezvous<S>>,
    pair: PairKey,
    epoch: u32,
}

impl<S: Sockets> StreamSink for InitiatorSink<S> {
    fn connected(&self) {
        let Some(rendezvous) = self.rendezvous.upgrade() else {
            return;
        };
        let mut state = rendezvous.state.lock();
        let Some(waiting) = state.waiting_mut(self.pair, self.epoch) else {
            return;
        };
        waiting.is_connected = true;
        let stream = waiting.stream;
        drop(state);
        // If `connect` has not returned yet, the number of the stream is unknown here, and the caller of `connect` sends
        // the request.
        if let Some(stream) = stream {
            rendezvous.request(stream, self.pair);
        }
    }

    fn octets(&self, bytes: &[u8]) {
        let Some(rendezvous) = self.rendezvous.upgrade() else {
            return;
        };
        let streams = &rendezvous.streams;
        let mut state = rendezvous.state.lock();
        let Some(waiting) = state.waiting_mut(self.pair, self.epoch) else {
            return;
        };
        waiting.arrived.extend_from_slice(bytes);
        let agreed = match start::decode(&waiting.arrived) {
            Ok(None) => return,
            Ok(Some((reply, len))) if reply.kind == Kind::Reply && !reply.header.reject => {
                Some((Settings::of(&rendezvous.wishes(), &reply.header), len))
            }
            _ => None,
        };
        let Some(waiting) = state.take(self.pair, self.epoch) else {
            return;
        };
        drop(state);
        let Some(stream) = waiting.stream else { return };
        let Some((settings, len)) = agreed else {
            // The peer has no such queue pair.
            streams.close(stream, StreamClose::Abrupt);
            return waiting.claim.give_up();
        };
        streams.claim_for(stream, waiting.claim);
        let agreed = StreamAgreed {
            crc: settings.crc,
            sends_markers: settings.initiator_markers,
            receives_markers: settings.responder_markers,
            says: ReadyForms::WRITE,
            awaits: ReadyForms::empty(),
            is_held: false,
        };
        streams.agree(stream, agreed, b"", &waiting.arrived[len..]);
    }

    fn begun(&self) {}

    fn ended(&self, _: StreamEnd) {
        if let Some(rendezvous) = self.rendezvous.upgrade() {
            rendezvous.again(self.pair, self.epoch);
        }
    }

    fn due(&self) {
        let Some(rendezvous) = self.rendezvous.upgrade() else {
            return;
        };
        let mut state = rendezvous.state.lock();
        let waiting = state.waiting_mut(self.pair, self.epoch);
        // A connection without a reply stays, because the peer's program may not be ready yet.
        let late = waiting.filter(|waiting| !waiting.is_connected);
        let stream = late.and_then(|waiting| waiting.stream);
        drop(state);
        if let Some(stream) = stream {
            rendezvous.streams.close(stream, StreamClose::Abrupt);
            rendezvous.again(self.pair, self.epoch);
        }
    }
}

/// Receives the streams that peers connect to the device's port.
struct RendezvousListener<S: Sockets>(Weak<Rendezvous<S>>);

impl<S: Sockets> StreamListener for RendezvousListener<S> {
    fn accepted(&self, stream: Qpn, from: SocketAddr) -> Option<Arc<dyn StreamSink>> {
        let rendezvous = self.0.upgrade()?;
        let streams = &rendezvous.streams;
        streams.wake_at(stream, streams.now() + HANDSHAKE_TIMEOUT);
        Some(Arc::new(AcceptorSink {
            rendezvous: self.0.clone(),
            stream,
            from: from.ip(),
            arrived: Mutex::default(),
        }))
    }
}

/// Receives the events of a stream that a peer has begun, and stores the part of its MPA request that has arrived.
struct AcceptorSink<S: Sockets> {
    rendezvous: Weak<Rendezvous<S>>,
    stream: Qpn,
    from: IpAddr,
    arrived: Mutex<Vec<u8>>,
}

impl<S: Sockets> StreamSink for AcceptorSink<S> {
    fn connected(&self) {}

    fn octets(&self, bytes: &[u8]) {
        let Some(rendezvous) = self.rendezvous.upgrade() else {
            return;
        };
        let streams = &rendezvous.streams;
        let mut arrived = self.arrived.lock();
        arrived.extend_from_slice(bytes);
        let whole = match start::decode(&arrived) {
            Ok(None) => return,
            Ok(Some((request, len))) => (request.kind == Kind::Request && len == arrived.len())
                .then(|| (pair_of(&request, self.from), request.header)),
            Err(_) => None,
        };
        drop(arrived);
        match whole {
            Some((Some(pair), request)) => {
                let caller = Caller {
                    stream: self.stream,
                    request,
                };
                rendezvous.asked(pair, caller);
            }
            // The request names no queue pair: it probes whether a device answers, and gets a reply.
            Some((None, _)) => reject(streams, self.stream),
            // The bytes are not a request, or more data followed before the reply: the stream is closed.
            None => {
                rendezvous.forget(self.stream);
                streams.close(self.stream, StreamClose::Abrupt);
            }
        }
    }

    fn begun(&self) {}

    fn ended(&self, _: StreamEnd) {
        if let Some(rendezvous) = self.rendezvous.upgrade() {
            rendezvous.forget(self.stream);
        }
    }

    fn due(&self) {
        let Some(rendezvous) = self.rendezvous.upgrade() else {
            return;
        };
        let has_asked = matches!(start::decode(&self.arrived.lock()), Ok(Some(_)));
        if !has_asked {
            rendezvous.streams.close(self.stream, StreamClose::Abrupt);
        }
    }
}

fn pair_of(request: &Start<'_>, from: IpAddr) -> Option<PairKey> {
    let names = request.private_data.strip_prefix(MAGIC)?;
    let (mine, theirs) = names.split_first_chunk::<4>()?;
    let theirs: [u8; 4] = theirs.try_into().ok()?;
    Some((from, u32::from_be_bytes(theirs), u32::from_be_bytes(*mine)))
}

// Encodes MPA's request or reply with these flags. It leaves read depths to the programs and sets peer to peer, with a
// write as the ready-to-receive indication.
fn encoded(kind: Kind, flags: StartHeader, private_data: &[u8]) -> Vec<u8> {
    let enhanced = Enhanced {
        peer_to_peer: true,
        rtr_send: false,
        ird: LEFT_TO_PROGRAM,
        rtr_write: true,
        rtr_read: false,
        ord: LEFT_TO_PROGRAM,
    };
    let mut bytes = [0; MAX_START_LEN];
    let start = Start::new(kind, Some(enhanced), private_data);
    let len = start.and_then(|mut start| {
        let header = &mut start.header;
        (header.markers, header.crc, header.reject) = (flags.markers, flags.crc, flags.reject);
        start.encode(&mut bytes)
    });
    bytes[..len.unwrap_or_default()].to_vec()
}
