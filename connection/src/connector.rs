//! Connecting, accepting and disconnecting: each call runs in several phases.
//!
//! A connection does not own its queue pair, nor the queue pair its connection. A call remembers the queue pair's identity, and
//! each phase looks the queue pair up again. No thread waits: a phase begins in the completion handler of the one before.

mod accept;
mod active;
mod connection;
mod offer;
mod options;
mod passive;
mod request;
mod side;
mod target;
mod withdrawal;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use polyverbs_engine::log_event;
use verbs_api::provider::Completer;
use verbs_api::provider::backend::{
    Backend, CmEvent, ConnectError, ListenSink, Offer, PrivateDataLimits,
};
use verbs_api::provider::carrier::Carrier;
use verbs_api::{Context, Qp, Started, VerbError};

use crate::backlog::{Backlog, QueuedRequest, RemovalWatch};
use crate::ib;
use crate::in_process::InProcess;
use crate::mpa;
use crate::port_space::PortSpace;

pub use active::Accepted;
pub use connection::{Connection, flush};
pub(crate) use offer::fits;
pub use options::{ConnectionOptions, ReadLimits};
pub use passive::{Incoming, Listener};
pub(crate) use request::Request;
pub use withdrawal::Withdrawal;

use offer::{asking, limits_of, numbered, offer, refusal, with_path_mtu};
use passive::{IncomingQueue, Unanswered};
use request::begin;
use side::{Padding, Side, Sides};
use target::Target;

/// Makes connections between queue pairs, and listens for them, over the transport of one device.
///
/// ```
/// use polyverbs::connection::{ConnectionOptions, Connector};
/// # use polyverbs::{QpOptions, Requirements, emulated};
/// # let device = emulated::device("ib0", &Default::default())?.open(&Requirements::new())?;
/// # let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(16).wait()?);
/// # let near = pd.create_qp(QpOptions::rc(&cq)).wait()?;
/// # let far = pd.create_qp(QpOptions::rc(&cq)).wait()?;
/// let connector = Connector::of(&device)?;
/// let listener = connector.listen("192.0.2.1:7471".parse()?, 8)?;
///
/// // One side connects, the other accepts. In one process both have to begin before either waits.
/// let connecting = connector.connect(&near, listener.address(), ConnectionOptions::new());
/// let incoming = listener.next().wait()?;
/// let accepting = incoming.accept(&far, ConnectionOptions::new());
/// let (near_end, far_end) = (connecting.wait()?, accepting.wait()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Connector {
    backend: Arc<dyn Backend>,
    context: Context,
    padding: Padding,
    sides: Sides,
}

/// Completes [`Connector::end_all`] when the last clone of the `Arc` around it is dropped.
struct AllEnded(Completer<(), ConnectError>);

impl Drop for AllEnded {
    fn drop(&mut self) {
        self.0.complete(Ok(()));
    }
}

impl Connector {
    /// Creates the connector of a device: over InfiniBand's connection manager or MPA on an IP network, or over the backend
    /// of its provider. A device that reaches only itself has a network of its own, on which a program may listen at any
    /// address.
    ///
    /// # Errors
    /// The device supports no connections, or only in a way that this crate does not know.
    pub fn of(context: &Context) -> Result<Self, ConnectError> {
        Self::in_port_space(context, PortSpace::default())
    }

    /// Creates a connector as [`of`](Self::of) does, whose services are in this port space.
    ///
    /// # Errors
    /// Those of [`of`](Self::of).
    pub fn in_port_space(context: &Context, space: PortSpace) -> Result<Self, ConnectError> {
        let backend: Arc<dyn Backend> = match context.carrier() {
            Some(Carrier::Datagrams(port)) => ib::Agent::of(&port, space)?,
            Some(Carrier::Streams(port)) => mpa::Agent::new(&port),
            Some(Carrier::Backend(backend)) => backend,
            Some(Carrier::InProcess) => InProcess::of(context.device_id()),
            _ => return Err(VerbError::UnsupportedVerb("connect").into()),
        };
        Ok(Self::new(context, backend))
    }

    /// Creates a connector for queue pairs of this device, over this backend.
    pub fn new(context: &Context, backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            context: context.clone(),
            padding: Padding::Padded,
            sides: Sides::default(),
        }
    }

    /// Returns how many bytes of private data each message of a connection has room for: `connect`, `accept` and `reject`
    /// refuse more, with [`ConnectError::PrivateData`]. The sizes of [`PrivateDataLimits::INFINIBAND`] for these three are
    /// possible on every transport.
    pub fn max_private_data(&self) -> PrivateDataLimits {
        self.backend.private_data()
    }

    /// Delivers the peer's private data as the transport does: padded with zeros on InfiniBand, of exact length on iWARP.
    /// By default it is padded on both, so that no program relies on a length that only one transport keeps.
    pub const fn with_private_data_as_sent(mut self) -> Self {
        self.padding = Padding::AsSent;
        self
    }

    pub(crate) fn watch<T: QueuedRequest>(&self, waiting: &Arc<Backlog<T>>) -> RemovalWatch {
        RemovalWatch::new(&self.context, waiting)
    }

    pub(crate) fn begin<T: Send + 'static>(&self) -> (Started<T, ConnectError>, Arc<Request<T>>) {
        begin(&self.context)
    }

    pub(crate) const fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Listens for connection requests at an address; for port 0 a port is assigned. When `backlog` requests are pending,
    /// further ones are refused with [`Refusal::BacklogFull`](crate::Refusal::BacklogFull). A backlog of 0 is as large as
    /// the connection manager allows: over InfiniBand 65,536 requests, half of them from one address.
    ///
    /// # Errors
    /// The address is in use.
    pub fn listen(&self, at: SocketAddr, backlog: usize) -> Result<Listener, ConnectError> {
        let queue = Arc::new(IncomingQueue {
            connector: self.clone(),
            waiting: Backlog::new(backlog),
            unanswered: Unanswered::default(),
        });
        let at = self.backend.listen(
            at,
            backlog,
            Arc::clone(&queue) as Arc<dyn ListenSink<Offer>>,
        )?;
        let _removal = self.watch(&queue.waiting);
        Ok(Listener {
            queue,
            at,
            _removal,
        })
    }

    /// Connects a queue pair: [requests](Self::request) a connection, and completes it when the peer has accepted. After a
    /// refusal the queue pair can be used again. If the future is dropped before the peer has accepted, the connection is
    /// aborted.
    ///
    /// ```
    /// # use polyverbs::connection::{ConnectionOptions, Connector};
    /// # use polyverbs::{QpOptions, Requirements, emulated};
    /// # let device = emulated::device("ib0", &Default::default())?.open(&Requirements::new())?;
    /// # let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(16).wait()?);
    /// # let qp = pd.create_qp(QpOptions::rc(&cq)).wait()?;
    /// # let far = pd.create_qp(QpOptions::rc(&cq)).wait()?;
    /// # let connector = Connector::of(&device)?;
    /// # let listener = connector.listen("192.0.2.1:7471".parse()?, 1)?;
    /// # let to = listener.address();
    /// # let (sender, ends) = std::sync::mpsc::channel();
    /// # listener.next().on_done(move |incoming| {
    /// #     let options = ConnectionOptions::new().private_data(b"welcome");
    /// #     let accepting = incoming.unwrap().accept(&far, options);
    /// #     accepting.on_done(move |end| sender.send(end).unwrap());
    /// # });
    /// let connection = connector.connect(&qp, to, ConnectionOptions::new()).wait()?; // or `.await?`
    /// assert!(connection.private_data().starts_with(b"welcome")); // zeros may follow
    /// connection.disconnect().wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect(
        &self,
        qp: &Qp,
        to: SocketAddr,
        options: ConnectionOptions,
    ) -> Started<Connection, ConnectError> {
        let (started, completer) = Started::pending();
        self.request(qp, to, options)
            .on_done(move |accepted| match accepted {
                Ok(accepted) if completer.is_wanted() => {
                    accepted.complete().on_done(move |connection| {
                        completer.complete(connection);
                    });
                }
                Ok(_) => {}
                Err(error) => {
                    completer.complete(Err(error));
                }
            });
        started
    }

    /// Requests a connection, which is the first of the two steps of [`connect`](Self::connect). Completes when the peer
    /// has accepted; the program then checks the answer, and calls [`Accepted::complete`] or [`Accepted::reject`]. The
    /// queue pair is not modified before that.
    ///
    /// Fails with [`ArgumentReason::AnotherDevice`](verbs_api::ArgumentReason::AnotherDevice) if the queue pair is not of
    /// the connector's device.
    pub fn request(
        &self,
        qp: &Qp,
        to: SocketAddr,
        options: ConnectionOptions,
    ) -> Started<Accepted, ConnectError> {
        match self.begin_request(qp, to, options) {
            Ok((started, _)) => started,
            Err(error) => Started::ready(Err(error)),
        }
    }

    /// Requests a connection like [`request`](Self::request), and returns what withdraws the request.
    ///
    /// # Errors
    /// An argument is wrong, and nothing was sent.
    pub fn begin_request(
        &self,
        qp: &Qp,
        to: SocketAddr,
        options: ConnectionOptions,
    ) -> Result<(Started<Accepted, ConnectError>, Withdrawal), ConnectError> {
        let room = self.backend.private_data().connect;
        let offer = asking(offer(&self.context, qp, &options, room)?)?;
        let (started, request) = self.begin();
        let failed = Arc::clone(&request);
        let reads = limits_of(&offer);
        let path_options = with_path_mtu(options.path, &offer);
        let brings_up = options.takes_psn.is_none();
        let as_peer_asks = options.as_peer_asks;
        let own_psn = offer.endpoint.sq_psn;
        let target = Target::new(qp);
        let side = Side::new(self);
        let of = Arc::clone(&side);
        let withdrawal = Withdrawal::new(&side, &request);
        side.lock().early = Some(VecDeque::new());
        side.wait_for(Box::new(move |event| {
            let Some(event) = request.or_cancel(event) else {
                return;
            };
            let outcome = match event {
                CmEvent::Accepted(peer) => {
                    let (endpoint, options) = numbered(path_options, own_psn, &peer);
                    let peer = Offer { endpoint, ..peer };
                    // The retry count and the traffic class are the requester's choice.
                    let options = match peer.rnr_retry {
                        Some(count) if as_peer_asks => options.rnr_retry(count),
                        _ => options,
                    };
                    let mut accepted = Accepted::new(of, target, options, reads, peer);
                    accepted.brings_up = brings_up;
                    Ok(accepted)
                }
                other => Err(refusal(other)),
            };
            request.end(outcome);
        }));
        let ask = move |ready: Result<(), VerbError>| {
            log_event!(
                DEBUG,
                "asks for a connection",
                to = to,
                qp = offer.endpoint.qp_num
            );
            let ready = ready.map_err(ConnectError::in_queue_pair);
            let asked = ready.and_then(|()| side.backend.connect(to, offer, side.clone()));
            match asked {
                Ok(token) => side.begun(token),
                Err(error) => {
                    let waiter = side.lock().waiter.take();
                    drop(waiter);
                    failed.end(Err(error));
                }
            }
        };
        match self.backend.needs_init() && brings_up {
            true => qp.init(path_options).on_done(ask),
            false => ask(Ok(())),
        }
        Ok((started, withdrawal))
    }
}

impl Connector {
    /// Ends all established connections that this connector, its clones and their listeners have made, and completes when
    /// the peers have confirmed that: the end of a server, for instance. The queue pairs are not modified, as by
    /// [`Connection::end`]. Requests that are not answered yet or wait in a backlog are not ended: drop the listeners
    /// first.
    ///
    /// ```
    /// use polyverbs::connection::{ConnectionOptions, Connector};
    /// # use polyverbs::{QpOptions, Requirements, emulated};
    /// # let device = emulated::device("ib0", &Default::default())?.open(&Requirements::new())?;
    /// # let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(16).wait()?);
    /// # let near = pd.create_qp(QpOptions::rc(&cq)).wait()?;
    /// # let far = pd.create_qp(QpOptions::rc(&cq)).wait()?;
    /// # let connector = Connector::of(&device)?;
    /// # let listener = connector.listen("192.0.2.1:7471".parse()?, 1)?;
    /// # let connecting = connector.connect(&near, listener.address(), ConnectionOptions::new());
    /// # let accepting = listener.next().wait()?.accept(&far, ConnectionOptions::new());
    /// # let (near_end, far_end) = (connecting.wait()?, accepting.wait()?);
    /// drop(listener);
    /// connector.end_all().wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn end_all(&self) -> Started<(), ConnectError> {
        let (started, completer) = Started::pending();
        let all = Arc::new(AllEnded(completer));
        let sides = self.sides.all().into_iter();
        for side in sides.filter(|side| side.lock().is_established) {
            let last = Arc::clone(&all);
            // However a call ends, the connection has ended too.
            side.end(&self.context).on_done(move |_| drop(last));
        }
        started
    }

    /// Gives up all connections and requests that this connector, its clones and their listeners have made, and waits for no
    /// peer. Each peer is sent the message that ends its connection or request; calls that wait for its answer end with
    /// [`VerbError::Canceled`]. The queue pairs are not modified.
    ///
    /// A program that closes a device calls this after [`end_all`](Self::end_all): a call that a peer does not answer keeps
    /// the device open for seconds, until the call times out.
    pub fn abandon_all(&self) {
        self.sides.all().iter().for_each(|side| side.withdraw());
    }
}

opaque!(Connector);
