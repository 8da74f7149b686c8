//! The passive side: listeners, and the requests that they receive.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use polyverbs_engine::log_event;
use verbs_api::provider::Mutex;
use verbs_api::provider::backend::{
    CmEvent, ConnectError, ListenSink, Offer, PrivateDataLimits, Refusal, Sink as _, Token,
};
use verbs_api::qp::{Half, QpAttributes, QpType};
use verbs_api::{
    ArgumentReason, Context, PathOptions, Qp, Started, Transport, VerbError, ids::Qpn,
};

use crate::backlog::{Backlog, QueuedRequest, RemovalWatch};

use super::Connector;
use super::accept::{Accept, AcceptProgress};
use super::connection::Connection;
use super::offer::{
    agreed, as_asked, clamped, copied, fits, limits_of, meets, numbered, offer, with_path_mtu,
    with_reads,
};
use super::options::{ConnectionOptions, ReadLimits};
use super::request::begin;
use super::side::{Side, reject, watch};
use super::target::Target;
use super::withdrawal::Withdrawal;

/// Listens for connection requests at an address. Dropping it ends that, and refuses the pending requests.
///
/// ```
/// use polyverbs::connection::{ConnectionOptions, Connector};
/// # use polyverbs::{QpOptions, Requirements, emulated};
/// # let device = emulated::device("ib0", &Default::default())?.open(&Requirements::new())?;
/// # let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(16).wait()?);
/// # let near = pd.create_qp(QpOptions::rc(&cq)).wait()?;
/// # let far = pd.create_qp(QpOptions::rc(&cq)).wait()?;
/// # let connector = Connector::of(&device)?;
/// let listener = connector.listen("192.0.2.1:7471".parse()?, 8)?;
/// # let (sender, ends) = std::sync::mpsc::channel();
/// # let options = ConnectionOptions::new().private_data(b"chat");
/// # let connecting = connector.connect(&near, listener.address(), options);
/// # connecting.on_done(move |end| sender.send(end).unwrap());
/// let incoming = listener.next().wait()?;
/// if incoming.private_data().starts_with(b"chat") {
///     let connection = incoming.accept(&far, ConnectionOptions::new()).wait()?;
/// #     ends.recv()??;
/// } else {
///     incoming.reject(b"nothing else here")?;
/// #     unreachable!("the peer asks for that");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Listener {
    pub(super) queue: Arc<IncomingQueue>,
    pub(super) at: SocketAddr,
    pub(super) _removal: RemovalWatch,
}

pub(super) struct IncomingQueue {
    pub(super) connector: Connector,
    pub(super) waiting: Arc<Backlog<Incoming>>,
    pub(super) unanswered: Unanswered,
}

/// The sides of requests that a program has not answered, whether it has taken them or not.
pub(super) type Unanswered = Arc<Mutex<BTreeMap<Token, Weak<Side>>>>;

impl Listener {
    /// Returns the address at which it listens.
    pub const fn address(&self) -> SocketAddr {
        self.at
    }

    /// Returns a future of the next connection request. If it is dropped, the request stays in the backlog. Fails with
    /// [`VerbError::DeviceRemoved`] when the connector's device was removed.
    pub fn next(&self) -> Started<Incoming, ConnectError> {
        self.queue.waiting.next()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.queue.connector.backend.unlisten(self.at);
        self.queue.waiting.close();
    }
}

impl ListenSink<Offer> for IncomingQueue {
    fn asked(&self, token: Token, mut offer: Offer) {
        log_event!(
            DEBUG,
            "is asked for a connection",
            end = token.0,
            from = format_args!("{:?}", offer.from),
            peer_qp = offer.endpoint.qp_num,
        );
        let length = PrivateDataLimits::INFINIBAND.connect;
        self.connector.padding.pad(&mut offer.private_data, length);
        let side = Side::new(&self.connector);
        side.set_token(token);
        let unanswered = Arc::clone(&self.unanswered);
        unanswered.lock().insert(token, Arc::downgrade(&side));
        self.waiting.push(Incoming {
            side: Some(side),
            context: self.connector.context.clone(),
            peer: offer,
            others: Arc::downgrade(&self.waiting),
            unanswered,
        });
    }

    fn withdrawn(&self, token: Token) {
        let side = self.unanswered.lock().remove(&token);
        self.waiting.withdraw(token);
        if let Some(side) = side.and_then(|side| side.upgrade()) {
            side.event(CmEvent::Aborted);
        }
    }
}

impl QueuedRequest for Incoming {
    fn token(&self) -> Option<Token> {
        self.side.as_ref().and_then(|side| side.token().ok())
    }

    fn refuse(mut self, why: Refusal) {
        if let Some(side) = self.take_side() {
            let _ = reject(&side, why, b"");
        }
    }
}

/// An incoming connection request. Dropping it refuses it.
pub struct Incoming {
    side: Option<Arc<Side>>,
    /// The device of the listener.
    context: Context,
    peer: Offer,
    /// The backlog of the listener.
    others: Weak<Backlog<Self>>,
    unanswered: Unanswered,
}

impl Incoming {
    /// Returns the private data of the peer's request, padded with zeros to at least 56 bytes.
    pub fn private_data(&self) -> &[u8] {
        &self.peer.private_data
    }

    /// Copies the private data of the peer's request, and returns its length.
    ///
    /// # Errors
    /// [`ConnectError::PrivateData`] if the buffer is too short; it is filled nevertheless.
    pub fn copy_private_data(&self, into: &mut [u8]) -> Result<usize, ConnectError> {
        copied(&self.peer.private_data, into)
    }

    /// Returns the peer's address; `None` where the network does not report it.
    pub const fn from(&self) -> Option<SocketAddr> {
        self.peer.from
    }

    /// Whether the device admits the user of the requesting process at its address. Meaningful only if [`from`](Self::from)
    /// is the device's own address: over TCP every user of the machine can connect from that address.
    pub fn is_admitted(&self) -> bool {
        let side = self.side.as_ref();
        side.is_some_and(|side| side.token().is_ok_and(|token| side.backend.admits(token)))
    }

    /// Returns the number of the peer's queue pair.
    pub const fn remote_qpn(&self) -> Qpn {
        self.peer.endpoint.qp_num
    }

    /// Returns the attributes for INIT, RTR and RTS, for a program that modifies the queue pair itself before it accepts
    /// with these options.
    ///
    /// # Errors
    /// The device was removed.
    pub fn steps(&self, options: &ConnectionOptions) -> Result<[QpAttributes; 3], ConnectError> {
        let own = clamped(options.reads, &self.context, QpType::Rc, Half::Both);
        let reads = agreed(own, &self.peer);
        let path = with_path_mtu(with_reads(self.path(options), reads), &self.peer);
        let own_psn = options.takes_psn.unwrap_or_default();
        let (endpoint, options) = numbered(path, own_psn, &self.peer);
        let side = self.side.as_ref().ok_or(ConnectError::NotConnected)?;
        side.steps(options.reliable_steps(&self.context, &endpoint)?)
    }

    // How the queue pair is brought up: by the options, and by what the peer asks for.
    fn path(&self, options: &ConnectionOptions) -> PathOptions {
        match options.as_peer_asks {
            true => as_asked(options.path, &self.peer),
            false => options.path,
        }
    }

    /// Returns the read limits that the peer offers, from this side's point of view: this side may have as many reads
    /// outstanding as the peer executes at one time.
    pub const fn offered_reads(&self) -> ReadLimits {
        ReadLimits {
            inbound: self.peer.outbound_reads,
            outbound: self.peer.inbound_reads,
        }
    }

    /// Returns the peer's retry count; `None` where the transport does not convey it.
    pub const fn offered_retry_cnt(&self) -> Option<u8> {
        self.peer.retry_cnt
    }

    /// Returns the RNR retry count that the peer asks this side to use; `None` where the transport does not convey it.
    pub const fn offered_rnr_retry(&self) -> Option<u8> {
        self.peer.rnr_retry
    }

    /// Returns whether the peer asks for end-to-end flow control; `false` where the transport does not convey it.
    pub const fn offered_flow_control(&self) -> bool {
        self.peer.flow_control
    }

    /// Returns whether the peer's queue pair has a shared receive queue; `false` where the transport does not convey it.
    pub const fn offered_srq(&self) -> bool {
        self.peer.srq
    }

    /// Completes when the peer has withdrawn the request, which can no longer be accepted then. It does not complete once the
    /// program has answered.
    pub fn withdrawn(&self) -> Started<(), ConnectError> {
        let Some(side) = &self.side else {
            return Started::ready(Err(ConnectError::NotConnected));
        };
        let mut state = side.lock();
        let ended = state.ended.clone();
        watch(ended, &mut state.watchers)
    }

    /// Takes the side for the program's answer, after which a withdrawal is an event of that answer.
    fn take_side(&mut self) -> Option<Arc<Side>> {
        let side = self.side.take()?;
        let mut state = side.lock();
        let (token, watchers) = (state.token, std::mem::take(&mut state.watchers));
        drop(state);
        drop(watchers);
        if let Some(token) = token {
            self.unanswered.lock().remove(&token);
        }
        Some(side)
    }

    /// Refuses the connection request, and sends this private data to the peer.
    ///
    /// # Errors
    /// The private data is too long: the request is refused without it.
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), ConnectError> {
        let Some(side) = self.take_side() else {
            return Err(ConnectError::NotConnected);
        };
        if let Err(error) = fits(private_data, side.backend.private_data().reject) {
            let _ = reject(&side, Refusal::Program, b"");
            return Err(error);
        }
        reject(&side, Refusal::Program, private_data)
    }

    /// Accepts the connection request: brings the queue pair to RTS and sends the reply. Completes when the peer has
    /// completed the connection.
    ///
    /// If this fails, reset the queue pair before it is used again.
    pub fn accept(self, qp: &Qp, options: ConnectionOptions) -> Started<Connection, ConnectError> {
        match self.begin_accept(qp, options) {
            Ok((started, _)) => started,
            Err(error) => Started::ready(Err(error)),
        }
    }

    /// Accepts the connection request like [`accept`](Self::accept), and returns what withdraws the answer. A program that
    /// destroys the queue pair of a peer which has not completed the connection withdraws the answer too: otherwise the
    /// connection manager waits for that peer, which may not exist.
    ///
    /// # Errors
    /// An argument is wrong, and the request is refused.
    pub fn begin_accept(
        mut self,
        qp: &Qp,
        options: ConnectionOptions,
    ) -> Result<(Started<Connection, ConnectError>, Withdrawal), ConnectError> {
        let side = self.take_side().ok_or(ConnectError::NotConnected)?;
        let own = self.answer(&side, qp, &options).inspect_err(|_| {
            let _ = reject(&side, Refusal::Program, b"");
        })?;
        let reads = agreed(limits_of(&own), &self.peer);
        let own = Offer {
            inbound_reads: reads.inbound,
            outbound_reads: reads.outbound,
            ..own
        };
        let (started, request) = begin(&self.context);
        let withdrawal = Withdrawal::new(&side, &request);
        let target = Target::new(qp);
        let accept = Accept {
            side,
            target,
            private_data: std::mem::take(&mut self.peer.private_data).into(),
            request,
            progress: Arc::new(Mutex::new(AcceptProgress::default())),
            brings_up: options.takes_psn.is_none(),
        };
        // A stream needs both sides: the queue pair comes up while the peer's does.
        let is_stream = self.context.attributes().transport == Transport::Iwarp;
        let options = with_path_mtu(with_reads(self.path(&options), reads), &self.peer);
        let (endpoint, options) = numbered(options, own.endpoint.sq_psn, &self.peer);
        accept.begin(&endpoint, options, own, is_stream);
        Ok((started, withdrawal))
    }

    /// What this side offers if it accepts; an error if it cannot meet what the peer asks for.
    fn answer(
        &self,
        side: &Side,
        qp: &Qp,
        options: &ConnectionOptions,
    ) -> Result<Offer, ConnectError> {
        let room = side.backend.private_data().accept;
        let own = offer(&self.context, qp, options, room)?;
        meets(&own, &self.peer)?;
        match (own.path_mtu, self.peer.path_mtu) {
            (Some(own), Some(peer)) if own < peer => {
                let reason = ArgumentReason::OutOfRange {
                    given: own.octets().into(),
                    least: peer.octets().into(),
                    most: u64::MAX,
                };
                Err(VerbError::argument("path_mtu", reason).into())
            }
            _ => Ok(own),
        }
    }
}

impl Incoming {
    /// Accepts the connection request like [`begin_accept`](Self::begin_accept), and calls `then` with the outcome. When the
    /// peer has completed the connection, it may send another connection request at once: the listener holds that request back
    /// until `then` is registered, so that the program sees both in order.
    ///
    /// # Errors
    /// The accept has failed before `then` was registered; `then` is not called.
    pub fn accept_then(
        self,
        qp: &Qp,
        options: ConnectionOptions,
        then: impl FnOnce(Result<Connection, ConnectError>) + Send + 'static,
    ) -> Result<Withdrawal, ConnectError> {
        let _held = self.others.upgrade().map(|others| others.hold());
        let (accepted, withdrawal) = self.begin_accept(qp, options)?;
        if accepted.is_done() {
            then(Ok(accepted.wait()?));
        } else {
            accepted.on_done(then);
        }
        Ok(withdrawal)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(side) = self.take_side() {
            let _ = reject(&side, Refusal::Program, b"");
        }
    }
}

opaque!(Incoming, Listener);
