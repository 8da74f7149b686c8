//! How two queue pairs that name each other by number find each other over TCP, with no connection manager.
//!
//! Every device listens on its port. Of two queue pairs the one with the lower address, or on one device the lower
//! number, begins the stream; MPA's request names both in its private data. The other device answers when its queue pair
//! is ready and names the first, and refuses where it has none of that number. Until then whoever begins tries again,
//! for as long as programs may need to start.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use polyverbs_engine::effects::Effects;
use polyverbs_wire::iwarp::start::{
    self, Enhanced, Kind, LEFT_TO_PROGRAM, MAX_START_LEN, Settings, Start, StartHeader,
};
use verbs_api::ids::{LinkAddress, Qpn};
use verbs_api::provider::carrier::{
    ReadyForms, StreamAgreed, StreamClose, StreamEnd, StreamListener, StreamPort, StreamSink,
};

use crate::peer::Peer;
use crate::streams::{FIRST_STREAM, Streams, give_up};
use crate::{Cx, QpRef, QpWeak};

/// What private data begins with.
const MAGIC: &[u8; 8] = b"polyqpqp";

/// How long a queue pair waits for the other, and between two attempts.
const PEER_TIMEOUT: Duration = Duration::from_secs(60);
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// How long a peer that has connected may take for its request or reply.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Most connection requests that wait for a queue pair of this device.
const MAX_CALLERS: usize = 1024;
/// Most queue pairs remembered as having left.
const MAX_LEFT: usize = 64;

/// The queue pairs of this device that wait for a peer, and the peers that wait for one of them.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    /// The streams of this device.
    pub(crate) streams: Arc<Streams>,
    port: u16,
    state: Mutex<State>,
    me: Weak<Self>,
}

/// The peer's address and number, and the own number.
type PairKey = (IpAddr, u32, u32);

#[derive(Debug, Default)]
struct State {
    waiting: HashMap<PairKey, Waiting>,
    callers: HashMap<PairKey, Caller>,
    /// Pairs whose local queue pair left before the peer connected: such a connection is refused.
    left: VecDeque<PairKey>,
}

/// A queue pair of this device that waits.
#[derive(Debug)]
struct Waiting {
    qp: QpWeak,
    epoch: u32,
    stream: Option<Qpn>,
    until: Duration,
}

/// A queue pair of another device that has asked.
#[derive(Debug)]
struct Caller {
    stream: Qpn,
    request: StartHeader,
}

impl Rendezvous {
    /// By these streams, over this port, which all devices have; 0 for none.
    pub(crate) fn new(streams: Arc<Streams>, port: u16) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            streams,
            port,
            state: Mutex::default(),
            me: me.clone(),
        })
    }

    /// Accepts the streams of peers that connect.
    pub(crate) fn listener(&self) -> Arc<dyn StreamListener> {
        Arc::new(RendezvousListener(self.me.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A queue pair is ready, and names another, or its stream.
    pub(crate) fn claim(&self, qp: &QpRef, named: &Peer, cx: &mut Cx<'_>) {
        if named.end.qpn >= FIRST_STREAM {
            return self.streams.claim(qp, named, cx);
        }
        let LinkAddress::Ip(theirs) = named.address else {
            return;
        };
        if self.port == 0 {
            qp.enter_error(false);
            return cx.effects.flush(qp.owner().clone());
        }
        let pair = (theirs, named.end.qpn, qp.qpn);
        let mut state = self.lock();
        if state
            .waiting
            .get(&pair)
            .is_some_and(|waiting| waiting.epoch == named.mine)
        {
            return;
        }
        let waiting = Waiting {
            qp: qp.downgrade(),
            epoch: named.mine,
            stream: None,
            until: self.streams.now() + PEER_TIMEOUT,
        };
        state.waiting.insert(pair, waiting);
        drop(state);
        let begins = (self.streams.address(), qp.qpn) < (theirs, named.end.qpn);
        let me = self.me.clone();
        cx.effects.later(move |_| {
            let Some(me) = me.upgrade() else { return };
            match begins {
                true => me.call(pair),
                false => me.answer(pair),
            }
        });
    }

    /// It does not wait any more.
    pub(crate) fn disclaim(&self, peer: &Peer, effects: &mut Effects) {
        if peer.end.qpn >= FIRST_STREAM {
            return self.streams.disclaim(peer, effects);
        }
        let LinkAddress::Ip(theirs) = peer.address else {
            return;
        };
        let mut state = self.lock();
        let is_its = |pair: &PairKey, waiting: &Waiting| {
            (pair.0, pair.1, waiting.epoch) == (theirs, peer.end.qpn, peer.mine)
        };
        let pair = state
            .waiting
            .iter()
            .find(|(pair, waiting)| is_its(pair, waiting))
            .map(|(pair, _)| *pair);
        let stream = pair.and_then(|pair| state.waiting.remove(&pair)?.stream);
        if let Some(pair) = pair {
            state.left.truncate(MAX_LEFT - 1);
            state.left.push_front(pair);
        }
        drop(state);
        if let Some(stream) = stream {
            self.streams.close(stream, StreamClose::Abrupt);
        }
    }

    // Replies to a connection request that has been waiting; otherwise that will come.
    fn answer(&self, pair: PairKey) {
        let mut state = self.lock();
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
        let wishes = self.streams.wishes();
        let mut reply = frame(Kind::Reply, b"");
        reply.header.markers = wishes.markers;
        reply.header.crc = wishes.crc || caller.request.crc;
        let settings = Settings::of(&caller.request, &reply.header);
        self.streams
            .claim_for(caller.stream, waiting.qp, waiting.epoch);
        let agreed = StreamAgreed {
            crc: settings.crc,
            sends_markers: settings.responder_markers,
            receives_markers: settings.initiator_markers,
            says: ReadyForms::empty(),
            awaits: ReadyForms::WRITE,
            is_held: true,
        };
        self.streams
            .agree(caller.stream, agreed, &encoded(&reply), b"");
    }

    fn asked(&self, pair: PairKey, caller: Caller) {
        let stream = caller.stream;
        let exists = self
            .streams
            .device()
            .is_some_and(|device| device.qp(pair.2).is_some());
        let mut state = self.lock();
        let left = state.left.iter().position(|left| *left == pair);
        let is_late = left
            .and_then(|at| state.left.remove(at))
            .is_some_and(|_| !state.waiting.contains_key(&pair));
        if !exists || is_late || state.callers.len() >= MAX_CALLERS {
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

    // Connects to the other queue pair's device.
    fn call(&self, pair: PairKey) {
        let to = SocketAddr::new(pair.0, self.port);
        let sink = Arc::new(InitiatorSink {
            rendezvous: self.me.clone(),
            pair,
            state: Mutex::default(),
        });
        let begun = self
            .streams
            .connect(to, Arc::clone(&sink) as Arc<dyn StreamSink>);
        let mut state = self.lock();
        let waiting = state.waiting.get_mut(&pair);
        match (begun, waiting) {
            (Ok(stream), Some(waiting)) => {
                waiting.stream = Some(stream);
                drop(state);
                let mut calling = sink.lock();
                calling.stream = Some(stream);
                let is_connected = calling.is_connected;
                drop(calling);
                self.streams
                    .wake_at(stream, self.streams.now() + HANDSHAKE_TIMEOUT);
                if is_connected {
                    sink.connected();
                }
            }
            (Ok(stream), None) => {
                drop(state);
                self.streams.close(stream, StreamClose::Abrupt);
            }
            (Err(_), _) => {
                drop(state);
                self.again(pair);
            }
        }
    }

    // The peer was not there: connects again in a moment, until the timeout.
    fn again(&self, pair: PairKey) {
        let mut state = self.lock();
        let Some(waiting) = state.waiting.get_mut(&pair) else {
            return;
        };
        waiting.stream = None;
        if waiting.until <= self.streams.now() || waiting.qp.upgrade().is_none() {
            drop(state);
            return self.refused(pair);
        }
        drop(state);
        let Some(device) = self.streams.device() else {
            return;
        };
        let me = self.me.clone();
        let timers = device.network().timers();
        let job = move |_| {
            if let Some(me) = me.upgrade() {
                me.call(pair);
            }
        };
        timers.add(timers.now().after(RETRY_INTERVAL), Box::new(job));
    }

    // The peer has no such queue pair.
    fn refused(&self, pair: PairKey) {
        let waiting = self.lock().waiting.remove(&pair);
        if let Some(waiting) = waiting {
            give_up(&waiting.qp, waiting.epoch);
        }
    }
}

fn reject(streams: &Streams, stream: Qpn) {
    let mut reply = frame(Kind::Reply, b"");
    reply.header.reject = true;
    streams.send(stream, &encoded(&reply));
    streams.close(stream, StreamClose::Graceful);
}

/// The side that connects.
struct InitiatorSink {
    rendezvous: Weak<Rendezvous>,
    pair: PairKey,
    state: Mutex<InitiatorState>,
}

#[derive(Default)]
struct InitiatorState {
    stream: Option<Qpn>,
    is_connected: bool,
    request: StartHeader,
    arrived: Vec<u8>,
    is_over: bool,
}

impl InitiatorSink {
    fn lock(&self) -> MutexGuard<'_, InitiatorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamSink for InitiatorSink {
    fn connected(&self) {
        let Some(rendezvous) = self.rendezvous.upgrade() else {
            return;
        };
        let streams = &rendezvous.streams;
        let mut state = self.lock();
        state.is_connected = true;
        let Some(stream) = state
            .stream
            .filter(|_| state.request == StartHeader::default())
        else {
            return;
        };
        let (_, theirs, mine) = self.pair;
        let names = [&MAGIC[..], &theirs.to_be_bytes(), &mine.to_be_bytes()].concat();
        let wishes = streams.wishes();
        let mut request = frame(Kind::Request, &names);
        request.header.markers = wishes.markers;
        request.header.crc = wishes.crc;
        state.request = request.header;
        drop(state);
        streams.send(stream, &encoded(&request));
    }

    fn octets(&self, octets: &[u8]) {
        let Some(rendezvous) = self.rendezvous.upgrade() else {
            return;
        };
        let streams = &rendezvous.streams;
        let mut state = self.lock();
        let Some(stream) = state.stream.filter(|_| !state.is_over) else {
            return;
        };
        state.arrived.extend_from_slice(octets);
        let arrived = state.arrived.clone();
        let (reply, len) = match start::decode(&arrived) {
            Ok(None) => return,
            Ok(Some((reply, len))) if reply.kind == Kind::Reply => (reply, len),
            _ => {
                state.is_over = true;
                drop(state);
                streams.close(stream, StreamClose::Abrupt);
                return rendezvous.refused(self.pair);
            }
        };
        state.is_over = true;
        let settings = Settings::of(&state.request, &reply.header);
        drop(state);
        if reply.header.reject {
            streams.close(stream, StreamClose::Abrupt);
            return rendezvous.refused(self.pair);
        }
        let waiting = rendezvous.lock().waiting.remove(&self.pair);
        let Some(waiting) = waiting else {
            return streams.close(stream, StreamClose::Abrupt);
        };
        streams.claim_for(stream, waiting.qp, waiting.epoch);
        let agreed = StreamAgreed {
            crc: settings.crc,
            sends_markers: settings.initiator_markers,
            receives_markers: settings.responder_markers,
            says: ReadyForms::WRITE,
            awaits: ReadyForms::empty(),
            is_held: false,
        };
        streams.agree(stream, agreed, b"", &arrived[len..]);
    }

    fn begun(&self) {}

    fn ended(&self, _: StreamEnd) {
        if let Some(rendezvous) = self.rendezvous.upgrade() {
            rendezvous.again(self.pair);
        }
    }

    fn due(&self) {
        let state = self.lock();
        // A connection without a reply stays: the peer's program may not be ready yet.
        let (stream, waits) = (state.stream, !state.is_over && !state.is_connected);
        drop(state);
        if let (Some(stream), true, Some(rendezvous)) = (stream, waits, self.rendezvous.upgrade()) {
            rendezvous.streams.close(stream, StreamClose::Abrupt);
            rendezvous.again(self.pair);
        }
    }
}

/// The listening side.
struct RendezvousListener(Weak<Rendezvous>);

impl StreamListener for RendezvousListener {
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

/// A stream that a peer opened: what has arrived of its request, until that is whole.
struct AcceptorSink {
    rendezvous: Weak<Rendezvous>,
    stream: Qpn,
    from: IpAddr,
    arrived: Mutex<Option<Vec<u8>>>,
}

impl StreamSink for AcceptorSink {
    fn connected(&self) {}

    fn octets(&self, octets: &[u8]) {
        let Some(rendezvous) = self.rendezvous.upgrade() else {
            return;
        };
        let streams = &rendezvous.streams;
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let all = arrived.get_or_insert_default();
        all.extend_from_slice(octets);
        let whole = match start::decode(all) {
            Ok(None) => return,
            Ok(Some((request, len))) => (request.kind == Kind::Request && len == all.len())
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
            // It names no queue pair: a probe of whether a device answers. It gets a reply.
            Some((None, _)) => reject(streams, self.stream),
            // No request, or more data before the reply: closed.
            None => streams.close(self.stream, StreamClose::Abrupt),
        }
    }

    fn begun(&self) {}

    fn ended(&self, _: StreamEnd) {
        if let Some(rendezvous) = self.rendezvous.upgrade() {
            let mut state = rendezvous.lock();
            state
                .callers
                .retain(|_, caller| caller.stream != self.stream);
        }
    }

    fn due(&self) {
        let Some(rendezvous) = self.rendezvous.upgrade() else {
            return;
        };
        let streams = &rendezvous.streams;
        let arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let has_asked = arrived
            .as_ref()
            .is_some_and(|arrived| matches!(start::decode(arrived), Ok(Some(_))));
        drop(arrived);
        if !has_asked {
            streams.close(self.stream, StreamClose::Abrupt);
        }
    }
}

fn pair_of(request: &Start<'_>, from: IpAddr) -> Option<PairKey> {
    let names = request.private_data.strip_prefix(MAGIC)?;
    let (mine, theirs) = names.split_first_chunk::<4>()?;
    let theirs: [u8; 4] = theirs.try_into().ok()?;
    Some((from, u32::from_be_bytes(theirs), u32::from_be_bytes(*mine)))
}

// Read depths are left to the programs; peer to peer, with a write as ready-to-receive indication.
fn frame(kind: Kind, private_data: &[u8]) -> Start<'_> {
    let enhanced = Enhanced {
        peer_to_peer: true,
        rtr_send: false,
        ird: LEFT_TO_PROGRAM,
        rtr_write: true,
        rtr_read: false,
        ord: LEFT_TO_PROGRAM,
    };
    let blank = || Start {
        kind,
        header: StartHeader::default(),
        enhanced: None,
        private_data: b"",
    };
    Start::new(kind, Some(enhanced), private_data).unwrap_or_else(blank)
}

fn encoded(start: &Start<'_>) -> Vec<u8> {
    let mut octets = [0; MAX_START_LEN];
    let len = start.encode(&mut octets).unwrap_or_default();
    octets[..len].to_vec()
}
