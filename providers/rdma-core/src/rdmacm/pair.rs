//! Connects queue pairs of an iWARP device that belong to one process and name each other by number.
//!
//! The wire has no such thing: a stream begins with a connection. If both queue pairs belong to this process, one is made between
//! them, over an address of the device. The one that comes second requests the connection, and the request names the first.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};

use verbs_api::VerbError;
use verbs_api::ids::{Gid, LinkAddress, Psn, Qpn};
use verbs_api::provider::backend::{
    Backend as _, CmEvent, ConnectError, ListenSink, Offer, Refusal, Sink, Token,
};
use verbs_api::provider::{Mutex, Reply};
use verbs_api::qp::{Half, QpEndpoint, QpType};

use super::Connections;
use super::states::Known;

/// The queue pairs of this process that connect to each other by number.
#[derive(Default)]
pub(super) struct Pairs {
    /// Queue pairs whose peer has not connected yet.
    waiting: HashMap<Names, End>,
    /// The connection of each queue pair, by number.
    tokens: HashMap<u32, Token>,
    /// The address at which this process listens for requests between its queue pairs.
    listener: Option<SocketAddr>,
}

/// The numbers of a queue pair and of the peer that it connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Names {
    pub(crate) own: u32,
    pub(crate) peer: u32,
}

impl Names {
    const fn turned(self) -> Self {
        Self {
            own: self.peer,
            peer: self.own,
        }
    }
}

/// How many reads an end executes, and how many it has outstanding, at one time; `None` for the default.
type Reads = (Option<u8>, Option<u8>);

/// One end of a connection that is not established yet.
struct End {
    reads: Reads,
    reply: Reply<()>,
}

impl Connections {
    /// Ends the connection of a queue pair that is being destroyed. Returns the state that was known of it.
    pub(crate) fn gone(&self, qp_num: u32) -> Option<Known> {
        let known = self.states.remove(qp_num);
        self.end_waiting(
            |names| names.own == qp_num || names.peer == qp_num,
            &not_here(),
        );
        self.forget(qp_num);
        known
    }

    /// Cancels the connection of a queue pair that is not established yet, with the error `why`; the peer may still be
    /// connected.
    pub(crate) fn call_off(&self, qp_num: u32, why: &VerbError) {
        self.end_waiting(|names| names.own == qp_num, why);
        self.forget(qp_num);
    }

    fn end_waiting(&self, is_over: impl Fn(&Names) -> bool, why: &VerbError) {
        let mut pairs = self.pairs.lock();
        let over: Vec<_> = pairs
            .waiting
            .extract_if(|names, _| is_over(names))
            .collect();
        drop(pairs);
        for (_, end) in over {
            end.reply.send(Err(why.clone()));
        }
    }

    fn forget(&self, qp_num: u32) {
        let token = self.pairs.lock().tokens.remove(&qp_num);
        if let (Some(token), Ok(manager)) = (token, self.manager()) {
            manager.forget(token);
        }
    }

    /// Connects a queue pair, which is in INIT, with its peer in this process. If the peer has not connected to it yet, it
    /// waits; otherwise it requests the connection from the waiting peer.
    pub(crate) fn meet(self: &Arc<Self>, names: Names, reads: Reads, reply: Reply<()>) {
        let end = End { reads, reply };
        self.forget(names.own);
        if names.own == names.peer || self.states.get(names.peer).is_none() {
            return end.reply.send(Err(not_here()));
        }
        let mut pairs = self.pairs.lock();
        if !pairs.waiting.contains_key(&names.turned()) {
            let replaced = pairs.waiting.insert(names, end);
            drop(pairs);
            return drop(replaced);
        }
        drop(pairs);
        let (sink, reads) = self.sink(names, end);
        match self.ask(names, reads, &sink) {
            Ok(token) => self.hold(names.own, token),
            Err(error) => sink.fail(&error),
        }
    }

    fn sink(self: &Arc<Self>, names: Names, end: End) -> (Arc<EndSink>, Reads) {
        let sink = EndSink {
            connections: Arc::downgrade(self),
            names,
            reply: Mutex::new(Some(end.reply)),
        };
        (Arc::new(sink), end.reads)
    }

    fn hold(&self, qp_num: u32, token: Token) {
        self.pairs.lock().tokens.insert(qp_num, token);
    }

    fn ask(
        self: &Arc<Self>,
        names: Names,
        reads: Reads,
        sink: &Arc<EndSink>,
    ) -> Result<Token, ConnectError> {
        let at = self.listener()?;
        let said = [names.peer, names.own].map(u32::to_be_bytes).concat();
        let sink = Arc::clone(sink) as Arc<dyn Sink>;
        self.manager()?
            .connect(at, offer(names.own, reads, said), sink)
    }

    /// Returns the address at which queue pairs of this process request connections from each other; listens there at the
    /// first call.
    fn listener(self: &Arc<Self>) -> Result<SocketAddr, ConnectError> {
        let mut pairs = self.pairs.lock();
        if let Some(at) = pairs.listener {
            return Ok(at);
        }
        let manager = self.manager()?;
        let known = manager.address(true).or_else(|| manager.address(false));
        let ip = known.ok_or_else(|| {
            let why = format!(
                "this machine has no address that librdmacm takes for {}",
                self.device
            );
            VerbError::UnsupportedHere(why)
        })?;
        let sink = Arc::new(Listener(Arc::downgrade(self)));
        let at = manager.listen(SocketAddr::new(ip, 0), 0, sink)?;
        pairs.listener = Some(at);
        Ok(at)
    }

    /// Returns the waiting end that a connection request names; `None` if the request is not from this process.
    fn awaited(&self, offer: &Offer) -> Option<(Names, End)> {
        let (own, said) = offer.private_data.split_first_chunk()?;
        let names = Names {
            own: u32::from_be_bytes(*own),
            peer: u32::from_be_bytes(*said.first_chunk()?),
        };
        let mut pairs = self.pairs.lock();
        if offer.from?.ip() != pairs.listener?.ip() {
            return None;
        }
        let end = pairs.waiting.remove(&names)?;
        Some((names, end))
    }
}

fn not_here() -> VerbError {
    let why =
        "over iWARP queue pairs name each other by number in one process only: use a Connector";
    VerbError::UnsupportedHere(why.to_owned())
}

fn offer(qp_num: u32, (served, outstanding): Reads, private_data: Vec<u8>) -> Offer {
    let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    Offer {
        from: None,
        endpoint: QpEndpoint {
            qp_num: Qpn::new(qp_num),
            sq_psn: Psn::default(),
            address: LinkAddress::Ip(nowhere),
            gid: Gid::default(),
        },
        qp_type: QpType::Rc,
        half: Half::Both,
        takes_psn: None,
        inbound_reads: served.unwrap_or(0),
        outbound_reads: outstanding.unwrap_or(0),
        path_mtu: None,
        traffic_class: None,
        retry_cnt: None,
        rnr_retry: None,
        flow_control: false,
        srq: false,
        private_data,
    }
}

/// Accepts connection requests between queue pairs of this process.
struct Listener(Weak<Connections>);

impl ListenSink<Offer> for Listener {
    fn asked(&self, token: Token, asked: Offer) {
        let Some(connections) = self.0.upgrade() else {
            return;
        };
        let Ok(manager) = connections.manager() else {
            return;
        };
        let Some((names, end)) = connections.awaited(&asked) else {
            return manager.reject(token, Refusal::NoListener, Vec::new());
        };
        let (sink, reads) = connections.sink(names, end);
        connections.hold(names.own, token);
        let agreed = offer(names.own, reads, Vec::new());
        if let Err(error) = manager.accept(token, agreed, Arc::clone(&sink) as _) {
            sink.fail(&error);
        }
    }

    fn withdrawn(&self, _: Token) {}
}

/// Handles the events of a connection for one end, and replies to the program when it is established.
struct EndSink {
    connections: Weak<Connections>,
    names: Names,
    reply: Mutex<Option<Reply<()>>>,
}

impl EndSink {
    fn answer(&self, outcome: Result<(), VerbError>) {
        let reply = self.reply.lock().take();
        if let Some(reply) = reply {
            reply.send(outcome);
        }
    }

    /// Replies to both ends that they cannot be connected.
    fn fail(&self, error: &ConnectError) {
        let error = match error {
            ConnectError::Verb(error) => error.clone(),
            other => VerbError::UnsupportedHere(format!("librdmacm: {other}")),
        };
        let connections = self.connections.upgrade();
        let other = connections.and_then(|connections| {
            connections
                .pairs
                .lock()
                .waiting
                .remove(&self.names.turned())
        });
        if let Some(other) = other {
            other.reply.send(Err(error.clone()));
        }
        self.answer(Err(error));
    }
}

impl Sink for EndSink {
    fn event(&self, event: CmEvent) {
        match event {
            CmEvent::Accepted(_) | CmEvent::Completed => self.answer(Ok(())),
            CmEvent::Failed(error) => self.fail(&error),
            CmEvent::TimedOut => self.fail(&ConnectError::TimedOut),
            CmEvent::Rejected(reason, private_data) => self.fail(&ConnectError::Refused {
                reason,
                private_data,
            }),
            _ => self.fail(&ConnectError::Aborted),
        }
    }
}
