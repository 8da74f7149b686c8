//! Ping: checks whether a peer that speaks MPA answers at an address.
//!
//! The request is made to be rejected. Its private data mark it as a ping, so that our own devices reject it themselves; and it
//! demands markers, so that Linux's siw rejects it. Any reply counts as an answer.

use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use polyverbs_wire::iwarp::start::{self, Kind, MAX_START_LEN, Start};
use verbs_api::provider::Mutex;
use verbs_api::provider::carrier::{StreamClose, StreamEnd, StreamPort, StreamSink};
use verbs_api::{VerbError, ids::Qpn};

use verbs_api::provider::backend::{ConnectError, PingSink, Refusal};

/// The private data of a ping's MPA request.
pub(super) const PRIVATE_DATA: &[u8] = b"polyverbs ping";
/// How long the peer may take to answer: one and a half times TCP's first retransmission timeout.
const PATIENCE: Duration = Duration::from_millis(1500);
/// The TCP port at which devices of Polyverbs listen for queue pairs that are connected without a connection manager.
const OWN_PORT: u16 = 4791;

/// Sends an MPA request to `to`, and reports to the sink whether an RDMA device answers.
pub(super) fn ping(
    port: &Arc<dyn StreamPort>,
    to: SocketAddr,
    sink: PingSink,
) -> Result<(), ConnectError> {
    let number = if to.port() == 0 { OWN_PORT } else { to.port() };
    let to = SocketAddr::new(to.ip(), number);
    let pinging = Arc::new(Pinging {
        port: Arc::downgrade(port),
        state: Mutex::new(State {
            stream: None,
            is_connected: false,
            arrived: Vec::new(),
            sink: Some(sink),
        }),
    });
    let begun = port.connect(0, to, Arc::clone(&pinging) as Arc<dyn StreamSink>);
    let stream = begun.map_err(|error| VerbError::os("connect", error))?;
    port.wake_at(stream, port.now() + PATIENCE);
    let mut state = pinging.lock();
    state.stream = Some(stream);
    let is_connected = state.is_connected;
    drop(state);
    if is_connected {
        port.send(stream, &request());
    }
    Ok(())
}

fn request() -> Vec<u8> {
    let mut bytes = [0; MAX_START_LEN];
    let length = Start::new(Kind::Request, None, PRIVATE_DATA).and_then(|mut start| {
        start.header.markers = true;
        start.header.crc = true;
        start.encode(&mut bytes)
    });
    bytes[..length.unwrap_or_default()].to_vec()
}

struct Pinging {
    port: Weak<dyn StreamPort>,
    state: Mutex<State>,
}

struct State {
    stream: Option<Qpn>,
    is_connected: bool,
    arrived: Vec<u8>,
    sink: Option<PingSink>,
}

impl Pinging {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn end(&self, mut state: MutexGuard<'_, State>, outcome: Result<(), ConnectError>) {
        let (sink, stream) = (state.sink.take(), state.stream.take());
        drop(state);
        if let (Some(port), Some(stream)) = (self.port.upgrade(), stream) {
            port.close(stream, StreamClose::Abrupt);
        }
        if let Some(sink) = sink {
            sink(outcome);
        }
    }
}

impl StreamSink for Pinging {
    fn connected(&self) {
        let mut state = self.lock();
        state.is_connected = true;
        let stream = state.stream;
        drop(state);
        if let (Some(port), Some(stream)) = (self.port.upgrade(), stream) {
            port.send(stream, &request());
        }
    }

    fn octets(&self, bytes: &[u8]) {
        let mut state = self.lock();
        state.arrived.extend_from_slice(bytes);
        let outcome = match start::decode(&state.arrived) {
            Ok(None) => return,
            Ok(Some((reply, _))) if reply.kind == Kind::Reply => Ok(()),
            _ => Err(ConnectError::NoDevice),
        };
        self.end(state, outcome);
    }

    fn begun(&self) {}

    fn ended(&self, end: StreamEnd) {
        let mut state = self.lock();
        // There is no stream left to close.
        state.stream = None;
        let error = match end {
            _ if state.is_connected => ConnectError::NoDevice,
            StreamEnd::Refused => ConnectError::Refused {
                reason: Refusal::NoListener,
                private_data: Vec::new(),
            },
            StreamEnd::Closed | StreamEnd::Reset => ConnectError::NoDevice,
            StreamEnd::TimedOut => ConnectError::TimedOut,
            StreamEnd::Unreachable(errno) => ConnectError::Unsent(errno),
        };
        self.end(state, Err(error));
    }

    fn due(&self) {
        let state = self.lock();
        let error = match state.is_connected {
            true => ConnectError::NoDevice,
            false => ConnectError::TimedOut,
        };
        self.end(state, Err(error));
    }
}
