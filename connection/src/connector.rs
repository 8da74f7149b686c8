//! Connecting, accepting and disconnecting: each call runs in several phases.
//!
//! A connection does not own its queue pair, nor the queue pair its connection. A call remembers the queue pair's identity, and
//! each phase looks the queue pair up again. No thread waits: a phase begins in the completion handler of the one before.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use polyverbs_engine::log_event;
use verbs_api::objects::{DeviceId, ObjectId, ObjectKind};
use verbs_api::provider::backend::{
    Backend, BringUp, CmEvent, ConnectError, ListenSink, Offer, PrivateDataLimits, Refusal, Sink,
    Token,
};
use verbs_api::provider::carrier::Carrier;
use verbs_api::qp::{Half, QpAttributes, QpState, QpType};
use verbs_api::{
    ArgumentReason, ConnectOptions, Context, Qp, QpEndpoint, Started, Transport, VerbError,
    capability::Mtu,
    ids::{Psn, Qpn},
    provider::{Completer, Outcome},
};

use crate::backlog::{Backlog, QueuedRequest, RemovalWatch};
use crate::ib;
use crate::in_process::InProcess;
use crate::mpa;

/// How many RDMA Reads and atomics one side has at one time, from its own point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimits {
    /// Incoming ones that it serves (responder resources, IRD).
    pub inbound: u8,
    /// Outgoing ones that are outstanding (initiator depth, ORD).
    pub outbound: u8,
}

/// Options of one side of a connection.
///
/// ```
/// use polyverbs::{Access, ConnectOptions, connection::ConnectionOptions};
/// let options = ConnectionOptions::new()
///     .qp(ConnectOptions::new().access(Access::REMOTE_WRITE).rnr_retry(3))
///     .reads(4, 4)
///     .private_data(b"chat");
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ConnectionOptions {
    qp: ConnectOptions,
    reads: ReadLimits,
    private_data: Vec<u8>,
    source_port: u16,
    /// Set where the program modifies the queue pair itself.
    takes_psn: Option<Psn>,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        let reads = ReadLimits {
            inbound: 16,
            outbound: 16,
        };
        Self {
            qp: ConnectOptions::new(),
            reads,
            private_data: Vec::new(),
            source_port: 0,
            takes_psn: None,
        }
    }
}

impl ConnectionOptions {
    /// 16 reads each way, no private data, no access for the peer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Attributes of the queue pair, such as the [access](ConnectOptions::access) that the peer has.
    pub fn qp(mut self, qp: ConnectOptions) -> Self {
        self.qp = qp;
        self
    }

    /// Most reads each way; reduced to what the device has and the peer offers.
    pub fn reads(mut self, inbound: u8, outbound: u8) -> Self {
        self.reads = ReadLimits { inbound, outbound };
        self
    }

    /// Private data for the peer, of at most [`Connector::max_private_data`].
    pub fn private_data(mut self, private_data: &[u8]) -> Self {
        self.private_data = private_data.to_vec();
        self
    }

    /// Source port of the active side, which its peer sees; by default one is assigned.
    pub const fn source_port(mut self, port: u16) -> Self {
        self.source_port = port;
        self
    }

    /// The program modifies the queue pair itself, by [`Accepted::steps`] or [`Incoming::steps`], before it completes or accepts.
    /// `psn` is the PSN at which the peer is to begin (within one process, at which this side begins), as in the steps. Not on
    /// iWARP.
    pub const fn brought_up_by_program(mut self, psn: Psn) -> Self {
        self.takes_psn = Some(psn);
        self
    }
}

/// Makes connections over one transport.
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
/// // One side connects, the other accepts, the first completes. In one process both have to begin before either waits.
/// let asked = connector.connect(&device, &near, listener.address(), ConnectionOptions::new());
/// let incoming = listener.next().wait()?;
/// let agreed = incoming.accept(&device, &far, ConnectionOptions::new());
/// let near_end = asked.wait()?.complete().wait()?;
/// let far_end = agreed.wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Connector {
    backend: Arc<dyn Backend>,
    /// The device that the connector was made for, if any.
    context: Option<Context>,
    padding: Padding,
    established: Established,
}

/// The connections of a connector and its clones that exist.
#[derive(Clone, Default)]
struct Established(Arc<Mutex<Vec<Weak<Side>>>>);

impl Established {
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Side>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, side: &Arc<Side>) {
        let mut sides = self.lock();
        // Those that were dropped make room, each time that the list would grow.
        if sides.len() == sides.capacity() {
            sides.retain(|side| side.strong_count() > 0);
        }
        sides.push(Arc::downgrade(side));
    }

    fn all(&self) -> Vec<Arc<Side>> {
        self.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

/// Completes when the last clone of its reference is dropped.
struct AllEnded(Completer<(), ConnectError>);

impl Drop for AllEnded {
    fn drop(&mut self) {
        self.0.complete(Ok(()));
    }
}

/// Whether received private data are padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Padding {
    /// With zeros, to the length of InfiniBand's messages.
    Padded,
    /// As the transport delivers them.
    AsSent,
}

impl Padding {
    fn pad(self, private_data: &mut Vec<u8>, length: usize) {
        if self == Self::Padded && private_data.len() < length {
            private_data.resize(length, 0);
        }
    }
}

impl Connector {
    /// For a device: over InfiniBand's connection manager or MPA on an IP network, or over whatever its provider has. A device
    /// that reaches only itself has a network of its own, on which a program may listen at any address.
    ///
    /// # Errors
    /// The device supports no connections, or none that this crate knows.
    pub fn of(context: &Context) -> Result<Self, ConnectError> {
        let backend: Arc<dyn Backend> = match context.carrier() {
            Some(Carrier::Datagrams(port)) => ib::Agent::of(&port)?,
            Some(Carrier::Streams(port)) => mpa::Agent::new(&port),
            Some(Carrier::Backend(backend)) => backend,
            Some(Carrier::InProcess) => InProcess::of(context.device_id()),
            _ => return Err(VerbError::UnsupportedVerb("connect").into()),
        };
        Ok(Self {
            context: Some(context.clone()),
            ..Self::new(backend)
        })
    }

    /// Over this backend.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            context: None,
            padding: Padding::Padded,
            established: Established::default(),
        }
    }

    /// How many bytes of private data each message of a connection has room for: `connect`, `accept` and `reject` refuse more,
    /// with [`ConnectError::PrivateData`]. What [`PrivateDataLimits::INFINIBAND`] allows for these three fits on every transport.
    pub fn max_private_data(&self) -> PrivateDataLimits {
        self.backend.private_data()
    }

    /// Delivers the peer's private data as the transport does: padded with zeros on InfiniBand, of exact length on iWARP. By
    /// default they are padded on both, so that no program relies on a length that only one transport keeps.
    pub const fn with_private_data_as_sent(mut self) -> Self {
        self.padding = Padding::AsSent;
        self
    }

    pub(crate) fn watch<T: QueuedRequest>(&self, waiting: &Arc<Backlog<T>>) -> RemovalWatch {
        RemovalWatch::new(self.context.as_ref(), waiting)
    }

    fn device(&self) -> Option<DeviceId> {
        self.context.as_ref().map(Context::device_id)
    }

    pub(crate) const fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Listens at an address; for port 0 one is assigned. Once `backlog` requests wait, further ones are refused with
    /// [`Refusal::BacklogFull`]; 0 for as many as the connection manager has room for, over InfiniBand 65,536, half of them from
    /// one address.
    ///
    /// # Errors
    /// The address is in use.
    pub fn listen(&self, at: SocketAddr, backlog: usize) -> Result<Listener, ConnectError> {
        let queue = Arc::new(IncomingQueue {
            backend: Arc::clone(&self.backend),
            device: self.device(),
            padding: self.padding,
            established: self.established.clone(),
            waiting: Backlog::new(backlog),
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

    /// Requests a connection. Completes when the peer has accepted. The queue pair is not modified before
    /// [`Accepted::complete`]: after a refusal it can be used again.
    ///
    /// Fails with [`ArgumentReason::AnotherDevice`] where `context` is none of the connector's device, or `qp` is not of `context`.
    pub fn connect(
        &self,
        context: &Context,
        qp: &Qp,
        to: SocketAddr,
        options: ConnectionOptions,
    ) -> Started<Accepted, ConnectError> {
        let room = self.backend.private_data().connect;
        let offer = of_device(self.device().as_ref(), context)
            .and_then(|()| offer(context, qp, &options, room));
        let offer = match offer.and_then(asking) {
            Ok(offer) => offer,
            Err(error) => return Started::ready(Err(error)),
        };
        let (started, request) = begin(context);
        let failed = Arc::clone(&request);
        let reads = limits_of(&offer);
        let qp_options = with_path_mtu(options.qp, &offer);
        let brings_up = options.takes_psn.is_none();
        let own_psn = offer.endpoint.sq_psn;
        let target = Target::new(context, qp);
        let side = Side::new(&self.backend, self.padding, &self.established);
        let of = Arc::clone(&side);
        side.lock().early = Some(VecDeque::new());
        side.wait_for(Box::new(move |event| {
            let Some(event) = request.or_cancel(event) else {
                return;
            };
            let outcome = match event {
                CmEvent::Accepted(peer) => {
                    let (endpoint, options) = numbered(qp_options, own_psn, &peer);
                    let peer = Offer { endpoint, ..peer };
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
            true => qp.init(qp_options).on_done(ask),
            false => ask(Ok(())),
        }
        started
    }
}

impl Connector {
    /// Ends all established connections that this connector, its clones and their listeners have made, and completes when the
    /// peers have confirmed that: the end of a server, for instance. The queue pairs are not modified, as by
    /// [`Connection::end`]. Requests that are under way or wait in a backlog are not ended: drop the listeners first.
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
    /// # let asked = connector.connect(&device, &near, listener.address(), ConnectionOptions::new());
    /// # let agreed = listener.next().wait()?.accept(&device, &far, ConnectionOptions::new());
    /// # let near_end = asked.wait()?.complete().wait()?;
    /// # let far_end = agreed.wait()?;
    /// drop(listener);
    /// connector.end_all(&device).wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn end_all(&self, context: &Context) -> Started<(), ConnectError> {
        let (started, completer) = Started::pending();
        let all = Arc::new(AllEnded(completer));
        for side in self.established.all() {
            let last = Arc::clone(&all);
            // However a call ends, the connection has ended too.
            side.end(context).on_done(move |_| drop(last));
        }
        started
    }
}

// A connector uses the network of its own device.
fn of_device(own: Option<&DeviceId>, context: &Context) -> Result<(), ConnectError> {
    match own {
        Some(own) if *own != context.device_id() => {
            Err(VerbError::argument("context", ArgumentReason::AnotherDevice).into())
        }
        _ => Ok(()),
    }
}

fn offer(
    context: &Context,
    qp: &Qp,
    options: &ConnectionOptions,
    max: usize,
) -> Result<Offer, ConnectError> {
    fits(&options.private_data, max)?;
    if qp.open_device() != *context {
        return Err(VerbError::argument("qp", ArgumentReason::AnotherDevice).into());
    }
    let mut endpoint = qp.endpoint()?;
    match options.takes_psn {
        Some(_) if context.attributes().transport == Transport::Iwarp => {
            let what = "a queue pair that the program brings up, over a stream";
            return Err(VerbError::UnsupportedHere(what.to_owned()).into());
        }
        Some(psn) => endpoint.sq_psn = psn,
        // INIT is allowed: receives may have been posted there.
        None if !matches!(qp.query()?.state, QpState::Reset | QpState::Init) => {
            return Err(ConnectError::Connected);
        }
        None => {}
    }
    let half = qp.half();
    let qp_type = qp.qp_type();
    let reads = clamped(options.reads, context, qp_type, half);
    let is_reliable = qp_type == QpType::Rc;
    Ok(Offer {
        from: (options.source_port != 0)
            .then(|| SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), options.source_port)),
        endpoint,
        qp_type,
        half,
        takes_psn: None,
        inbound_reads: reads.inbound,
        outbound_reads: reads.outbound,
        path_mtu: path_mtu(context, &options.qp)?,
        retry_cnt: is_reliable.then(|| options.qp.chosen_retry_cnt()),
        rnr_retry: is_reliable.then(|| options.qp.chosen_rnr_retry()),
        private_data: options.private_data.clone(),
    })
}

fn clamped(reads: ReadLimits, context: &Context, qp_type: QpType, half: Half) -> ReadLimits {
    let limits = context.limits();
    // Unreliable connections have no reads.
    let is_reliable = qp_type == QpType::Rc;
    let clamp = |wanted: u8, limit: u32, other: Half| match is_reliable && half != other {
        true => u32::from(wanted).min(limit) as u8,
        false => 0,
    };
    ReadLimits {
        inbound: clamp(reads.inbound, limits.max_qp_rd_atom, Half::Requester),
        outbound: clamp(reads.outbound, limits.max_qp_init_rd_atom, Half::Responder),
    }
}

// A queue pair that is only a responder (an XRC target) cannot be the active side.
fn asking(offer: Offer) -> Result<Offer, ConnectError> {
    match offer.half {
        Half::Responder => {
            Err(VerbError::argument("qp", "a responder only, which cannot connect").into())
        }
        Half::Both | Half::Requester => Ok(offer),
    }
}

// A requester connects to a responder (XRC), and each service to its own.
fn meets(own: &Offer, peer: &Offer) -> Result<(), ConnectError> {
    if own.qp_type != peer.qp_type {
        let why = ArgumentReason::PeerService(peer.qp_type);
        return Err(VerbError::argument("qp", why).into());
    }
    let why = match (peer.half, own.half) {
        (Half::Requester, Half::Responder) | (Half::Both, Half::Both) => return Ok(()),
        (Half::Requester, _) => "the peer wants a queue pair that is only a responder",
        _ => "the peer wants a queue pair that sends as well",
    };
    Err(VerbError::argument("qp", why).into())
}

// iWARP has no path MTU.
fn path_mtu(context: &Context, options: &ConnectOptions) -> Result<Option<Mtu>, ConnectError> {
    if context.attributes().transport == Transport::Iwarp {
        return Ok(None);
    }
    let active = context.query_port(options.chosen_port())?.active_mtu;
    let chosen = options.chosen_path_mtu();
    Ok(Some(chosen.map_or(active, |mtu| mtu.min(active))))
}

fn with_path_mtu(options: ConnectOptions, offer: &Offer) -> ConnectOptions {
    offer.path_mtu.map_or(options, |mtu| options.path_mtu(mtu))
}

/// The PSNs with which the queue pair is brought up. On some backends each side names the PSN that it expects, on others the
/// one that it sends.
fn numbered(options: ConnectOptions, own_psn: Psn, peer: &Offer) -> (QpEndpoint, ConnectOptions) {
    let Some(psn) = peer.takes_psn else {
        return (peer.endpoint, options.sq_psn(own_psn));
    };
    let endpoint = QpEndpoint {
        sq_psn: own_psn,
        ..peer.endpoint
    };
    (endpoint, options.sq_psn(psn))
}

pub(crate) fn fits(private_data: &[u8], max: usize) -> Result<(), ConnectError> {
    let len = private_data.len();
    if len > max {
        return Err(ConnectError::PrivateData { len, max });
    }
    Ok(())
}

fn copied(private_data: &[u8], into: &mut [u8]) -> Result<usize, ConnectError> {
    let len = private_data.len().min(into.len());
    into[..len].copy_from_slice(&private_data[..len]);
    fits(private_data, into.len())?;
    Ok(len)
}

fn limits_of(offer: &Offer) -> ReadLimits {
    ReadLimits {
        inbound: offer.inbound_reads,
        outbound: offer.outbound_reads,
    }
}

/// The limits that both sides agree on: neither starts more reads than the other serves.
fn agreed(own: ReadLimits, peer: &Offer) -> ReadLimits {
    ReadLimits {
        inbound: own.inbound.min(peer.outbound_reads),
        outbound: own.outbound.min(peer.inbound_reads),
    }
}

fn refusal(event: CmEvent) -> ConnectError {
    match event {
        CmEvent::Rejected(reason, private_data) => ConnectError::Refused {
            reason,
            private_data,
        },
        CmEvent::TimedOut => ConnectError::TimedOut,
        CmEvent::Failed(error) => error,
        _ => ConnectError::Aborted,
    }
}

/// The identity of a queue pair.
#[derive(Clone)]
struct Target {
    context: Context,
    id: ObjectId,
}

impl Target {
    fn new(context: &Context, qp: &Qp) -> Self {
        Self {
            context: context.clone(),
            id: qp.id(),
        }
    }

    /// The queue pair, if it still exists.
    fn find(&self) -> Result<Qp, ConnectError> {
        let gone = || VerbError::InvalidHandle(ObjectKind::Qp);
        let found = self.context.find_qp(self.id).ok_or_else(gone);
        found.map_err(ConnectError::in_queue_pair)
    }

    /// Brings the queue pair to RTS, or leaves that to the backend.
    fn bring_up(
        &self,
        side: &Side,
        peer: &QpEndpoint,
        options: ConnectOptions,
    ) -> Result<Started<()>, ConnectError> {
        let qp = self.find()?;
        qp.keep_receives();
        let planned = qp
            .connect_steps(peer, options)
            .map_err(ConnectError::in_queue_pair)?;
        Ok(match side.backend.bring_up(side.token()?, planned)? {
            BringUp::Steps(steps) => qp.modify_in_turn(*steps),
            BringUp::ByBackend => Started::ready(Ok(())),
        })
    }

    /// Closes gracefully a stream between queue pairs of one process, which no carrier closes.
    fn close(&self) -> Option<Started<()>> {
        let attributes = self.context.attributes();
        let is_in_process = matches!(self.context.carrier(), Some(Carrier::InProcess));
        if attributes.transport != Transport::Iwarp || !is_in_process {
            return None;
        }
        let qp = self.find().ok()?;
        let is_ready = qp.query().ok()?.state == QpState::Rts;
        is_ready.then(|| qp.modify(QpAttributes::new().qp_state(QpState::Sqd)))
    }

    /// Flushes the queue pair if it still exists, and does not wait for it.
    fn flush_unasked(&self) {
        if let Ok(flushed) = self.flush() {
            flushed.on_done(|_| {});
        }
    }

    fn flush(&self) -> Result<Started<()>, ConnectError> {
        let qp = self.find()?;
        let state = qp.query().map_err(ConnectError::in_queue_pair)?.state;
        if state == QpState::Reset {
            // Nothing is outstanding there.
            return Ok(Started::ready(Ok(())));
        }
        Ok(qp.modify(QpAttributes::new().qp_state(QpState::Err)))
    }
}

/// A call under way. Its first outcome counts; the removal of the device is one.
pub(crate) struct Request<T> {
    completer: Completer<T, ConnectError>,
    pending: Mutex<Option<Pending>>,
}

/// What a call keeps as long as it is under way.
struct Pending {
    guard: Outcome<()>,
    context: Context,
}

pub(crate) fn begin<T: Send + 'static>(
    context: &Context,
) -> (Started<T, ConnectError>, Arc<Request<T>>) {
    let (started, completer) = Started::pending();
    let (guarded, guard) = context.begin::<()>();
    let removed = completer.clone();
    guarded.on_done(move |outcome| {
        if let Err(error) = outcome {
            removed.complete(Err(error.into()));
        }
    });
    let pending = Pending {
        guard,
        context: context.clone(),
    };
    let request = Request {
        completer,
        pending: Mutex::new(Some(pending)),
    };
    (started, Arc::new(request))
}

impl<T: Send + 'static> Request<T> {
    pub(crate) fn end(&self, outcome: Result<T, ConnectError>) {
        let pending = self
            .pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let outcome = match &pending {
            // The failures that the removal of a device causes may be reported before the removal.
            Some(pending) if outcome.is_err() && is_removed(&pending.context) => {
                Err(VerbError::DeviceRemoved.into())
            }
            _ => outcome,
        };
        self.completer.complete(outcome);
        if let Some(pending) = pending {
            pending.guard.complete(Ok(()));
        }
    }

    /// The event; without one the call was replaced by another, and ends as canceled.
    fn or_cancel(&self, event: Option<CmEvent>) -> Option<CmEvent> {
        if event.is_none() {
            self.end(Err(VerbError::Canceled.into()));
        }
        event
    }
}

fn is_removed(context: &Context) -> bool {
    context.query_port(1) == Err(VerbError::DeviceRemoved)
}

// The event without what it carries.
fn summary(event: &CmEvent) -> String {
    match event {
        CmEvent::Accepted(_) => "Accepted".to_owned(),
        CmEvent::Rejected(reason, _) => format!("Rejected({reason:?})"),
        other => format!("{other:?}"),
    }
}

type Waiter = Box<dyn FnOnce(Option<CmEvent>) + Send>;

/// One end of a connection.
struct Side {
    backend: Arc<dyn Backend>,
    padding: Padding,
    established: Established,
    state: Mutex<SideState>,
}

#[derive(Default)]
struct SideState {
    token: Option<Token>,
    /// Events from before the token is known.
    early: Option<VecDeque<CmEvent>>,
    waiter: Option<Waiter>,
    watchers: Vec<Completer<(), ConnectError>>,
    is_over: bool,
    /// Those that wait for the end of TIMEWAIT.
    timewait_watchers: Vec<Completer<(), ConnectError>>,
    timewait_is_over: bool,
}

impl Side {
    fn new(backend: &Arc<dyn Backend>, padding: Padding, established: &Established) -> Arc<Self> {
        Arc::new(Self {
            backend: Arc::clone(backend),
            padding,
            established: established.clone(),
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, SideState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_token(&self, token: Token) {
        self.lock().token = Some(token);
    }

    /// The backend has begun to connect, and may have reported events already: handles them now.
    fn begun(&self, token: Token) {
        self.set_token(token);
        loop {
            let mut state = self.lock();
            let Some(event) = state.early.as_mut().and_then(VecDeque::pop_front) else {
                state.early = None;
                return;
            };
            drop(state);
            self.handle(event);
        }
    }

    fn token(&self) -> Result<Token, ConnectError> {
        self.lock().token.ok_or(ConnectError::NotConnected)
    }

    /// The steps of a program that modifies its queue pair itself.
    fn steps(&self, planned: [QpAttributes; 3]) -> Result<[QpAttributes; 3], ConnectError> {
        match self.backend.bring_up(self.token()?, planned)? {
            BringUp::Steps(steps) => Ok(*steps),
            BringUp::ByBackend => {
                let what = "a queue pair that the program brings up, where the device does it";
                Err(VerbError::UnsupportedHere(what.to_owned()).into())
            }
        }
    }

    fn wait_for(&self, waiter: Waiter) {
        self.lock().waiter = Some(waiter);
    }

    fn is_over(&self) -> bool {
        self.lock().is_over
    }

    fn forget(&self) {
        let token = self.lock().token.take();
        if let Some(token) = token {
            log_event!(DEBUG, "gives a connection up", end = token.0);
            self.backend.forget(token);
        }
    }
}

impl Sink for Side {
    fn event(&self, event: CmEvent) {
        if let Some(early) = &mut self.lock().early {
            early.push_back(event);
            return;
        }
        self.handle(event);
    }
}

impl Side {
    fn handle(&self, mut event: CmEvent) {
        log_event!(
            DEBUG,
            "a connection has an event",
            end = self.end_number(),
            event = summary(&event),
        );
        let limits = PrivateDataLimits::INFINIBAND;
        match &mut event {
            CmEvent::Accepted(peer) => self.padding.pad(&mut peer.private_data, limits.accept),
            // Where nobody listens there are no private data.
            CmEvent::Rejected(_, said) if !said.is_empty() => self.padding.pad(said, limits.reject),
            _ => {}
        }
        let is_last = event == CmEvent::TimewaitExit;
        let is_end = !matches!(event, CmEvent::Accepted(_) | CmEvent::Completed) && !is_last;
        let mut state = self.lock();
        state.is_over |= is_end;
        state.timewait_is_over |= is_last || is_end && !self.backend.has_timewait();
        let mut watchers = Vec::new();
        if state.is_over {
            watchers.append(&mut state.watchers);
        }
        if state.timewait_is_over {
            watchers.append(&mut state.timewait_watchers);
        }
        let waiter = (!is_last).then(|| state.waiter.take()).flatten();
        drop(state);
        for watcher in watchers {
            watcher.complete(Ok(()));
        }
        if let Some(waiter) = waiter {
            waiter(Some(event));
        }
    }
}

impl Side {
    // What a log names it by: 0 before it has a token.
    fn end_number(&self) -> u64 {
        self.lock().token.map_or(0, |token| token.0)
    }

    // Ends the connection, or waits for the call that does.
    fn end(&self, context: &Context) -> Started<(), ConnectError> {
        let mut state = self.lock();
        if state.waiter.is_some() {
            return watch(state.is_over, &mut state.watchers);
        }
        drop(state);
        self.tell_peer(context, |request| request.end(Ok(())))
    }

    fn tell_peer(
        &self,
        context: &Context,
        then: impl FnOnce(Arc<Request<()>>) + Send + 'static,
    ) -> Started<(), ConnectError> {
        let (started, request) = begin(context);
        let after: Waiter = Box::new(move |event| {
            if request.or_cancel(event).is_some() {
                then(request);
            }
        });
        let mut state = self.lock();
        let token = state.token;
        if state.is_over || token.is_none() {
            drop(state);
            after(Some(CmEvent::DisconnectConfirmed));
            return started;
        }
        let replaced = state.waiter.replace(after);
        drop(state);
        if let Some(replaced) = replaced {
            replaced(None);
        }
        if let Some(token) = token {
            log_event!(DEBUG, "disconnects", end = token.0);
            self.backend.disconnect(token);
        }
        started
    }
}

/// A connection that the peer has accepted, and that the active side still has to complete. Dropping it aborts the connection.
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
/// let asked = connector.connect(&device, &near, listener.address(), ConnectionOptions::new());
/// # let answer = ConnectionOptions::new().private_data(b"welcome");
/// # let agreed = listener.next().wait()?.accept(&device, &far, answer);
/// let accepted = asked.wait()?;
/// assert!(accepted.private_data().starts_with(b"welcome")); // zeros may be behind it
/// let connection = accepted.complete().wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Accepted {
    side: Option<Arc<Side>>,
    target: Target,
    options: ConnectOptions,
    reads: ReadLimits,
    peer: Offer,
    brings_up: bool,
}

impl Accepted {
    fn new(
        side: Arc<Side>,
        target: Target,
        options: ConnectOptions,
        own: ReadLimits,
        peer: Offer,
    ) -> Self {
        let reads = agreed(own, &peer);
        Self {
            side: Some(side),
            target,
            options: with_reads(options, reads),
            reads,
            peer,
            brings_up: true,
        }
    }

    /// The attributes with which a program that does so itself modifies the queue pair to INIT, RTR and RTS.
    ///
    /// # Errors
    /// The device was removed.
    pub fn steps(&self) -> Result<[QpAttributes; 3], ConnectError> {
        let side = self.side.as_ref().ok_or(ConnectError::NotConnected)?;
        let context = &self.target.context;
        let planned = self.options.reliable_steps(context, &self.peer.endpoint)?;
        side.steps(planned)
    }

    /// The peer's queue pair.
    pub const fn remote_qpn(&self) -> Qpn {
        self.peer.endpoint.qp_num
    }

    /// The peer's private data, padded with zeros to at least 196 bytes.
    pub fn private_data(&self) -> &[u8] {
        &self.peer.private_data
    }

    /// Copies the peer's private data, and returns their length.
    ///
    /// # Errors
    /// [`ConnectError::PrivateData`] where the buffer is too short; it is filled all the same.
    pub fn copy_private_data(&self, into: &mut [u8]) -> Result<usize, ConnectError> {
        copied(&self.peer.private_data, into)
    }

    /// The agreed read limits, from this side's point of view.
    pub const fn reads(&self) -> ReadLimits {
        self.reads
    }

    /// The RNR retry count that the peer asks for; `None` where the transport does not carry it.
    pub const fn offered_rnr_retry(&self) -> Option<u8> {
        self.peer.rnr_retry
    }

    /// Brings the queue pair to RTS, then tells the peer. If the peer has given up meanwhile, this fails with
    /// [`ConnectError::Aborted`], and the queue pair is either untouched or flushed.
    pub fn complete(mut self) -> Started<Connection, ConnectError> {
        let Some(side) = self.side.take() else {
            return Started::ready(Err(ConnectError::NotConnected));
        };
        if side.is_over() {
            side.forget();
            return Started::ready(Err(ConnectError::Aborted));
        }
        if !self.brings_up {
            let done = side.token().map(|token| side.backend.complete(token));
            return Started::ready(settle(side, done));
        }
        let (started, request) = begin(&self.target.context);
        let target = self.target.clone();
        match self
            .target
            .bring_up(&side, &self.peer.endpoint, self.options)
        {
            Ok(up) => up.on_done(move |up| {
                // Checked first: if the peer is gone the queue pair may be in ERR already, and fail to come up for that.
                let done = if side.is_over() {
                    target.flush_unasked();
                    Err(ConnectError::Aborted)
                } else {
                    let up = up.map_err(ConnectError::in_queue_pair);
                    up.and_then(|()| {
                        side.backend.complete(side.token()?);
                        Ok(())
                    })
                };
                request.end(settle(side, done));
            }),
            Err(error) => {
                side.forget();
                request.end(Err(error));
            }
        }
        started
    }

    /// Rejects the connection after all: the peer's accept fails.
    ///
    /// # Errors
    /// Too much private data: the connection is aborted without them.
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), ConnectError> {
        let Some(side) = self.side.take() else {
            return Err(ConnectError::NotConnected);
        };
        reject(&side, Refusal::Program, private_data)
    }
}

fn reject(side: &Side, why: Refusal, private_data: &[u8]) -> Result<(), ConnectError> {
    if let Err(error) = fits(private_data, side.backend.private_data().reject) {
        side.forget();
        return Err(error);
    }
    let token = side.lock().token.take().ok_or(ConnectError::NotConnected)?;
    log_event!(
        DEBUG,
        "refuses a connection",
        end = token.0,
        reason = format_args!("{why:?}"),
    );
    side.backend.reject(token, why, private_data.to_vec());
    Ok(())
}

fn with_reads(options: ConnectOptions, reads: ReadLimits) -> ConnectOptions {
    options
        .max_rd_atomic(reads.outbound)
        .max_dest_rd_atomic(reads.inbound)
}

/// The connection on success; otherwise tells the peer that there is none.
fn settle(side: Arc<Side>, outcome: Result<(), ConnectError>) -> Result<Connection, ConnectError> {
    match outcome {
        Ok(()) => {
            side.established.add(&side);
            Ok(Connection { side })
        }
        Err(error) => {
            side.forget();
            Err(error)
        }
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        if let Some(side) = self.side.take() {
            side.forget();
        }
    }
}

/// Listens for connection requests. Dropping it stops that, and refuses the requests that wait.
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
/// # connector.connect(&device, &near, listener.address(), options).on_done(move |accepted| {
/// #     accepted.unwrap().complete().on_done(move |end| sender.send(end).unwrap());
/// # });
/// let incoming = listener.next().wait()?;
/// if incoming.private_data().starts_with(b"chat") {
///     let connection = incoming.accept(&device, &far, ConnectionOptions::new()).wait()?;
/// #     ends.recv()??;
/// } else {
///     incoming.reject(b"nothing else here")?;
/// #     unreachable!("the peer asks for that");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Listener {
    queue: Arc<IncomingQueue>,
    at: SocketAddr,
    _removal: RemovalWatch,
}

struct IncomingQueue {
    backend: Arc<dyn Backend>,
    device: Option<DeviceId>,
    padding: Padding,
    established: Established,
    waiting: Arc<Backlog<Incoming>>,
}

impl Listener {
    /// The address at which it listens.
    pub const fn address(&self) -> SocketAddr {
        self.at
    }

    /// The next request. If the result is dropped unclaimed the request stays in the queue. Fails with
    /// [`VerbError::DeviceRemoved`] when the connector's device was removed.
    pub fn next(&self) -> Started<Incoming, ConnectError> {
        self.queue.waiting.next()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.queue.backend.unlisten(self.at);
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
        self.padding.pad(&mut offer.private_data, length);
        let side = Side::new(&self.backend, self.padding, &self.established);
        side.set_token(token);
        self.waiting.push(Incoming {
            side: Some(side),
            device: self.device.clone(),
            peer: offer,
            others: Arc::downgrade(&self.waiting),
        });
    }

    fn withdrawn(&self, token: Token) {
        self.waiting.withdraw(token);
    }
}

impl QueuedRequest for Incoming {
    fn token(&self) -> Option<Token> {
        self.side.as_ref().and_then(|side| side.token().ok())
    }

    fn refuse(mut self, why: Refusal) {
        if let Some(side) = self.side.take() {
            let _ = reject(&side, why, b"");
        }
    }
}

/// An incoming connection request. Dropping it refuses it.
pub struct Incoming {
    side: Option<Arc<Side>>,
    /// The device of its listener, where that is known.
    device: Option<DeviceId>,
    peer: Offer,
    /// The backlog of its listener.
    others: Weak<Backlog<Self>>,
}

impl Incoming {
    /// The peer's private data, padded with zeros to at least 56 bytes.
    pub fn private_data(&self) -> &[u8] {
        &self.peer.private_data
    }

    /// Copies the peer's private data, and returns their length.
    ///
    /// # Errors
    /// [`ConnectError::PrivateData`] where the buffer is too short; it is filled all the same.
    pub fn copy_private_data(&self, into: &mut [u8]) -> Result<usize, ConnectError> {
        copied(&self.peer.private_data, into)
    }

    /// The peer's address, where the network reports it.
    pub const fn from(&self) -> Option<SocketAddr> {
        self.peer.from
    }

    /// Whether the device admits the user of the requesting process at its address. Meaningful only if [`from`](Self::from) is the
    /// device's own address: over TCP any user of the machine can connect from that address.
    pub fn is_admitted(&self) -> bool {
        let side = self.side.as_ref();
        side.is_some_and(|side| side.token().is_ok_and(|token| side.backend.admits(token)))
    }

    /// The peer's queue pair.
    pub const fn remote_qpn(&self) -> Qpn {
        self.peer.endpoint.qp_num
    }

    /// The attributes with which a program that does so itself modifies a queue pair to INIT, RTR and RTS, for the options with
    /// which it is going to accept.
    ///
    /// # Errors
    /// The device was removed.
    pub fn steps(
        &self,
        context: &Context,
        options: &ConnectionOptions,
    ) -> Result<[QpAttributes; 3], ConnectError> {
        let own = clamped(options.reads, context, QpType::Rc, Half::Both);
        let reads = agreed(own, &self.peer);
        let with_reads = with_path_mtu(with_reads(options.qp, reads), &self.peer);
        let own_psn = options.takes_psn.unwrap_or_default();
        let (endpoint, options) = numbered(with_reads, own_psn, &self.peer);
        let side = self.side.as_ref().ok_or(ConnectError::NotConnected)?;
        side.steps(options.reliable_steps(context, &endpoint)?)
    }

    /// The peer's read limits, from this side's point of view: this side may start the reads that the peer serves.
    pub const fn offered_reads(&self) -> ReadLimits {
        ReadLimits {
            inbound: self.peer.outbound_reads,
            outbound: self.peer.inbound_reads,
        }
    }

    /// The peer's retry count; `None` where the transport does not carry it.
    pub const fn offered_retry_cnt(&self) -> Option<u8> {
        self.peer.retry_cnt
    }

    /// The RNR retry count that the peer asks for; `None` where the transport does not carry it.
    pub const fn offered_rnr_retry(&self) -> Option<u8> {
        self.peer.rnr_retry
    }

    /// Refuses the request.
    ///
    /// # Errors
    /// Too much private data: the request is refused without them.
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), ConnectError> {
        let Some(side) = self.side.take() else {
            return Err(ConnectError::NotConnected);
        };
        if let Err(error) = fits(private_data, side.backend.private_data().reject) {
            let _ = reject(&side, Refusal::Program, b"");
            return Err(error);
        }
        reject(&side, Refusal::Program, private_data)
    }

    /// Brings the queue pair to RTS and accepts. Completes when the peer has completed.
    ///
    /// If this fails, reset the queue pair before it is used again.
    pub fn accept(
        mut self,
        context: &Context,
        qp: &Qp,
        options: ConnectionOptions,
    ) -> Started<Connection, ConnectError> {
        let Some(side) = self.side.take() else {
            return Started::ready(Err(ConnectError::NotConnected));
        };
        let room = side.backend.private_data().accept;
        let own = of_device(self.device.as_ref(), context)
            .and_then(|()| offer(context, qp, &options, room));
        let own = own.and_then(|own| {
            meets(&own, &self.peer)?;
            Ok(own)
        });
        let own = match own {
            Ok(own) => own,
            Err(error) => {
                let _ = reject(&side, Refusal::Program, b"");
                return Started::ready(Err(error));
            }
        };
        if let (Some(own), Some(peer)) = (own.path_mtu, self.peer.path_mtu)
            && own < peer
        {
            let _ = reject(&side, Refusal::Program, b"");
            let reason = ArgumentReason::OutOfRange {
                given: own.octets().into(),
                least: peer.octets().into(),
                most: u64::MAX,
            };
            let error = VerbError::argument("path_mtu", reason);
            return Started::ready(Err(error.into()));
        }
        let reads = agreed(limits_of(&own), &self.peer);
        let own = Offer {
            inbound_reads: reads.inbound,
            outbound_reads: reads.outbound,
            ..own
        };
        let (started, request) = begin(context);
        let target = Target::new(context, qp);
        let accept = Accept {
            side,
            target,
            request,
            progress: Arc::new(Mutex::new(AcceptProgress::default())),
            brings_up: options.takes_psn.is_none(),
        };
        // A stream needs both sides: the queue pair comes up while the peer's does.
        let is_stream = context.attributes().transport == Transport::Iwarp;
        let options = with_path_mtu(with_reads(options.qp, reads), &self.peer);
        let (endpoint, options) = numbered(options, own.endpoint.sq_psn, &self.peer);
        accept.begin(&endpoint, options, own, is_stream);
        started
    }
}

impl Incoming {
    /// Accepts, and calls `then` when the peer has completed. A peer that has completed may request another connection at once:
    /// the listener holds that request back until `then` is in place, so that the program sees both in order.
    ///
    /// # Errors
    /// The accept has failed already; `then` is not called.
    pub fn accept_then(
        self,
        context: &Context,
        qp: &Qp,
        options: ConnectionOptions,
        then: impl FnOnce(Result<Connection, ConnectError>) + Send + 'static,
    ) -> Result<(), ConnectError> {
        let _held = self.others.upgrade().map(|others| others.hold());
        let accepted = self.accept(context, qp, options);
        if accepted.is_done() {
            then(Ok(accepted.wait()?));
        } else {
            accepted.on_done(then);
        }
        Ok(())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(side) = self.side.take() {
            let _ = reject(&side, Refusal::Program, b"");
        }
    }
}

/// Which of the two things that an accept waits for have happened: the queue pair is up, the peer has completed.
#[derive(Default)]
struct AcceptProgress {
    queue_pair: bool,
    peer: bool,
}

#[derive(Clone)]
struct Accept {
    side: Arc<Side>,
    target: Target,
    request: Arc<Request<Connection>>,
    progress: Arc<Mutex<AcceptProgress>>,
    brings_up: bool,
}

impl Accept {
    fn begin(self, peer: &QpEndpoint, options: ConnectOptions, own: Offer, is_stream: bool) {
        if !self.brings_up {
            self.reached(|progress| progress.queue_pair = true);
            return self.send(own);
        }
        if self.side.backend.needs_init() {
            return match self.target.find() {
                Ok(qp) => {
                    let initialised = qp.init(options);
                    initialised.on_done(move |done| self.send_when(done, own));
                }
                Err(error) => self.fail(error),
            };
        }
        let up = match self.target.bring_up(&self.side, peer, options) {
            Ok(up) => up,
            Err(error) => return self.fail(error),
        };
        if is_stream {
            let this = self.clone();
            self.send(own);
            up.on_done(move |up| match up {
                Ok(()) => this.reached(|progress| progress.queue_pair = true),
                Err(error) => this.fail(ConnectError::in_queue_pair(error)),
            });
            return;
        }
        up.on_done(move |up| self.send_when(up, own));
    }

    /// Sends the answer once the queue pair is up.
    fn send_when(&self, done: Result<(), VerbError>, own: Offer) {
        match done {
            Ok(()) => {
                self.reached(|progress| progress.queue_pair = true);
                self.send(own);
            }
            Err(error) => self.fail(ConnectError::in_queue_pair(error)),
        }
    }

    fn send(&self, own: Offer) {
        let this = self.clone();
        self.side.wait_for(Box::new(move |event| {
            let Some(event) = this.request.or_cancel(event) else {
                return;
            };
            match event {
                // A peer that disconnects has completed before, even if that message was lost.
                CmEvent::Completed | CmEvent::Disconnected => {
                    this.reached(|progress| progress.peer = true)
                }
                other => this.end_queue_pair(refusal(other)),
            }
        }));
        let token = self.side.token();
        let sink = Arc::clone(&self.side) as Arc<dyn Sink>;
        if let Err(error) = token.and_then(|token| self.side.backend.accept(token, own, sink)) {
            let waiter = self.side.lock().waiter.take();
            drop(waiter);
            self.end_queue_pair(error);
        }
    }

    fn reached(&self, update: impl FnOnce(&mut AcceptProgress)) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        update(&mut progress);
        let is_done = progress.queue_pair && progress.peer;
        drop(progress);
        if !is_done {
            return;
        }
        // The queue pair may have been destroyed meanwhile.
        let found = self.target.find().map(|_| ());
        self.request.end(settle(Arc::clone(&self.side), found));
    }

    fn fail(&self, error: ConnectError) {
        let _ = reject(&self.side, Refusal::Program, b"");
        self.request.end(Err(error));
    }

    /// The accept has failed, and the queue pair is up already.
    fn end_queue_pair(&self, error: ConnectError) {
        if self.brings_up {
            self.target.flush_unasked();
        }
        self.request.end(Err(error));
    }
}

// Completes with the other `watchers`, or at once if it `has_been`.
fn watch(
    has_been: bool,
    watchers: &mut Vec<Completer<(), ConnectError>>,
) -> Started<(), ConnectError> {
    if has_been {
        return Started::ready(Ok(()));
    }
    let (started, completer) = Started::pending();
    watchers.push(completer);
    started
}

/// An established connection. Dropping it disconnects; the queue pair is not modified.
///
/// ```
/// # use polyverbs::connection::{ConnectionOptions, Connector};
/// # use polyverbs::{QpOptions, Requirements, emulated};
/// # let device = emulated::device("ib0", &Default::default())?.open(&Requirements::new())?;
/// # let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(16).wait()?);
/// # let near = pd.create_qp(QpOptions::rc(&cq)).wait()?;
/// # let far = pd.create_qp(QpOptions::rc(&cq)).wait()?;
/// # let connector = Connector::of(&device)?;
/// # let listener = connector.listen("192.0.2.1:7471".parse()?, 1)?;
/// # let asked = connector.connect(&device, &near, listener.address(), ConnectionOptions::new());
/// # let agreed = listener.next().wait()?.accept(&device, &far, ConnectionOptions::new());
/// # let near_end = asked.wait()?.complete().wait()?;
/// # let far_end = agreed.wait()?;
/// let ended = near_end.disconnected(); // by either side
/// far_end.disconnect(&device, &far).wait()?;
/// ended.wait()?;
/// near_end.disconnect(&device, &near).wait()?; // disconnected already: flushes the queue pair
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Connection {
    side: Arc<Side>,
}

impl Connection {
    /// Completes when either side has ended the connection. The queue pair is not modified: its requests stay outstanding until
    /// [`disconnect`](Self::disconnect) or [`flush`].
    pub fn disconnected(&self) -> Started<(), ConnectError> {
        let mut state = self.side.lock();
        let is_over = state.is_over;
        watch(is_over, &mut state.watchers)
    }

    /// Completes when TIMEWAIT is over: the connection has ended, and InfiniBand's connection manager may use its communication
    /// IDs again. On other transports that is the end of the connection.
    pub fn timewait_exit(&self) -> Started<(), ConnectError> {
        let mut state = self.side.lock();
        let timewait_is_over = state.timewait_is_over;
        watch(timewait_is_over, &mut state.timewait_watchers)
    }

    /// Ends the connection, and flushes the queue pair when the peer has confirmed that.
    ///
    /// # Errors
    /// [`ConnectError::Phase`] where the queue pair no longer exists: the connection has ended all the same.
    pub fn disconnect(&self, context: &Context, qp: &Qp) -> Started<(), ConnectError> {
        let target = Target::new(context, qp);
        self.side
            .tell_peer(context, move |request| match target.close() {
                // A failure shows in the flush that follows.
                Some(closed) => closed.on_done(move |_| flush_phase(&target, request)),
                None => flush_phase(&target, request),
            })
    }

    /// Ends the connection, and completes when the peer has confirmed that. The queue pair is not modified.
    pub fn end(&self, context: &Context) -> Started<(), ConnectError> {
        self.side.tell_peer(context, |request| request.end(Ok(())))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A disconnect under way goes on by itself.
        if self.side.lock().waiter.is_none() {
            self.side.forget();
        }
    }
}

fn flush_phase(target: &Target, request: Arc<Request<()>>) {
    match target.flush() {
        Ok(flushed) => flushed.on_done(move |flushed| {
            request.end(flushed.map_err(ConnectError::in_queue_pair));
        }),
        Err(error) => request.end(Err(error)),
    }
}

/// Flushes a queue pair: all outstanding requests complete, in order. The connection is not ended.
///
/// ```
/// use polyverbs::{WcStatus, connection::flush, wr::ReceiveRequest};
/// # use polyverbs::connection::{ConnectionOptions, Connector};
/// # use polyverbs::{QpOptions, Requirements, emulated};
/// # let device = emulated::device("ib0", &Default::default())?.open(&Requirements::new())?;
/// # let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(16).wait()?);
/// # let near = pd.create_qp(QpOptions::rc(&cq)).wait()?;
/// # let far = pd.create_qp(QpOptions::rc(&cq)).wait()?;
/// # let connector = Connector::of(&device)?;
/// # let listener = connector.listen("192.0.2.1:7471".parse()?, 1)?;
/// # let asked = connector.connect(&device, &near, listener.address(), ConnectionOptions::new());
/// # let agreed = listener.next().wait()?.accept(&device, &far, ConnectionOptions::new());
/// # let near_end = asked.wait()?.complete().wait()?;
/// # let far_end = agreed.wait()?;
/// near.post_receive(ReceiveRequest::new(7, ()))?;
/// flush(&device, &near).wait()?;
/// assert_eq!(cq.next().wait()?.status, WcStatus::WrFlushErr);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn flush(context: &Context, qp: &Qp) -> Started<(), ConnectError> {
    let (started, request) = begin(context);
    flush_phase(&Target::new(context, qp), request);
    started
}

opaque!(Accepted, Connection, Connector, Incoming, Listener);
