//! Connections and datagram services of a device, made by librdmacm.

use std::collections::HashMap;
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};

use polyverbs_abi::rdmacm::event;
use verbs_api::VerbError;
use verbs_api::capability::{Mtu, Transport};
use verbs_api::ids::{Gid, LinkAddress, Psn, Qpn};
use verbs_api::provider::Mutex;
use verbs_api::provider::backend::{
    Answer, AnswerSink, Backend, BringUp, CmEvent, ConnectError, ListenSink, Offer, PingSink,
    PrivateDataLimits, Question, Refusal, Sink, Token, ping_by_question,
};
use verbs_api::qp::{AddressVector, Half, QpAttributes, QpEndpoint, QpState, QpType};

use super::calls::{Channel, Event, Id, Key, Said, Service, Terms};
use super::library::Cm;
use super::states::States;
use crate::interface;
use crate::watch::{Watch, Watched};

/// The Q_Key that librdmacm gives every datagram service of an IP address.
const QKEY: u32 = 0x0123_4567;

/// The longest private data that librdmacm accepts on iWARP.
const IWARP_PRIVATE_DATA: PrivateDataLimits = PrivateDataLimits {
    connect: u8::MAX as usize,
    accept: u8::MAX as usize,
    reject: u8::MAX as usize,
    resolve: 0,
    answer: 0,
};

/// The backend that connects the queue pairs of a device.
pub(crate) struct Manager {
    /// Name of the device in the library.
    device: String,
    transport: Transport,
    channel: Arc<Channel>,
    table: Mutex<Table>,
    states: Arc<States>,
    watch: Mutex<Option<Watch>>,
}

/// The identifiers (`rdma_cm_id`) of librdmacm and what each is used for.
#[derive(Default)]
struct Table {
    ends: HashMap<Token, End>,
    tokens: HashMap<Key, Token>,
    listeners: HashMap<(Service, SocketAddr), Token>,
    next: u64,
}

struct End {
    id: Arc<Id>,
    role: Role,
}

#[derive(Clone)]
enum Role {
    Listener(Arc<dyn ListenSink<Offer>>),
    /// A connection request of a peer that the program has not answered yet.
    Asked(Arc<dyn ListenSink<Offer>>),
    /// Address and route of the peer are being resolved, for a connection that the program has requested.
    Resolving(SocketAddr, Box<Offer>, Arc<dyn Sink>),
    /// A connection of the queue pair with this number.
    Connection(Stage, u32, Arc<dyn Sink>),
    DatagramListener(Arc<dyn ListenSink<Question>>),
    Questioned(Arc<dyn ListenSink<Question>>),
    /// A datagram service whose address is being resolved, or whose peer was asked.
    Question(SocketAddr, Vec<u8>, Arc<dyn AnswerSink>),
}

/// How far a connection has come, at this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// This end has sent the connection request.
    Asking,
    /// The peer has replied to the request.
    Answered,
    /// This end has accepted the peer's request.
    Agreed,
    Open,
    /// This end has begun to disconnect.
    Ending,
}

impl End {
    fn parts(&self) -> (Arc<Id>, Role) {
        (Arc::clone(&self.id), self.role.clone())
    }
}

impl Table {
    fn insert(&mut self, id: Arc<Id>, role: Role) -> Token {
        let token = Token(self.next);
        self.next += 1;
        self.tokens.insert(id.key(), token);
        self.ends.insert(token, End { id, role });
        token
    }

    fn remove(&mut self, token: Token) -> Option<End> {
        let end = self.ends.remove(&token)?;
        self.tokens.remove(&end.id.key());
        Some(end)
    }

    fn find(&self, key: Key) -> Option<(Token, Arc<Id>, Role)> {
        let token = *self.tokens.get(&key)?;
        let (id, role) = self.ends.get(&token)?.parts();
        Some((token, id, role))
    }
}

impl Manager {
    /// Starts the backend of the device with this name.
    ///
    /// # Errors
    /// The kernel has no connection manager for user space, or the process has no further descriptors or threads.
    pub(crate) fn start(
        cm: Cm,
        device: String,
        transport: Transport,
        states: Arc<States>,
    ) -> Result<Arc<Self>, VerbError> {
        let channel = Channel::open(cm)?;
        let manager = Arc::new(Self {
            device,
            transport,
            channel: Arc::clone(&channel),
            table: Mutex::default(),
            states,
            watch: Mutex::new(None),
        });
        let events = Arc::new(Events(Arc::downgrade(&manager)));
        *manager.watch.lock() = Some(Watch::level(channel.fd(), events)?);
        Ok(manager)
    }

    fn stop(&self) {
        let watch = self.watch.lock().take();
        if let Some(watch) = watch {
            watch.stop(self.channel.fd());
        }
    }

    fn is_iwarp(&self) -> bool {
        self.transport == Transport::Iwarp
    }

    fn handle(&self, event: Event) {
        if event.kind == event::CONNECT_REQUEST {
            return self.asked(event);
        }
        let found = self.table.lock().find(event.of);
        let Some((token, id, role)) = found else {
            return;
        };
        match role {
            Role::Listener(_) | Role::DatagramListener(_) => {}
            // Each event of an unanswered request means its end.
            Role::Asked(sink) => {
                self.remove(token);
                sink.withdrawn(token);
            }
            Role::Questioned(sink) => {
                self.remove(token);
                sink.withdrawn(token);
            }
            Role::Resolving(to, offer, sink) => {
                self.resolving(token, &id, to, *offer, sink, &event)
            }
            Role::Connection(stage, qp_num, sink) => {
                self.connection(token, &id, (stage, qp_num), &*sink, event);
            }
            Role::Question(to, private_data, sink) => {
                self.question(token, &id, to, &private_data, &*sink, event);
            }
        }
    }

    fn asked(&self, event: Event) {
        // Dropping the identifier refuses the request.
        let Some(id) = event.asks else { return };
        if id.device().as_ref() != Some(&self.device) {
            return;
        }
        let id = Arc::new(id);
        let mut table = self.table.lock();
        let Some((_, _, listener)) = table.find(event.of) else {
            return;
        };
        let peer = id.peer();
        match listener {
            Role::Listener(sink) => {
                let Some(offer) = offer(&event.said, event.private_data, peer) else {
                    return;
                };
                let token = table.insert(id, Role::Asked(Arc::clone(&sink)));
                drop(table);
                sink.asked(token, offer);
            }
            Role::DatagramListener(sink) => {
                let token = table.insert(id, Role::Questioned(Arc::clone(&sink)));
                drop(table);
                let question = Question {
                    from: peer.map(|peer| LinkAddress::Ip(peer.ip())),
                    source: peer,
                    private_data: event.private_data,
                };
                sink.asked(token, question);
            }
            _ => {}
        }
    }

    fn resolving(
        &self,
        token: Token,
        id: &Id,
        to: SocketAddr,
        offer: Offer,
        sink: Arc<dyn Sink>,
        event: &Event,
    ) {
        let gone_on = match event.kind {
            event::ADDR_RESOLVED => self.found(id, to),
            event::ROUTE_RESOLVED => {
                let qp_num = offer.endpoint.qp_num.value();
                let asking = Role::Connection(Stage::Asking, qp_num, Arc::clone(&sink));
                self.set_role(token, asking);
                id.connect(&terms(&offer)).map_err(ConnectError::from)
            }
            _ => Err(unresolved(event, to)),
        };
        if let Err(error) = gone_on {
            self.remove(token);
            sink.event(unconnected(error, to));
        }
    }

    /// Checks that a resolved address belongs to this device, and resolves the route to it.
    fn found(&self, id: &Id, to: SocketAddr) -> Result<(), ConnectError> {
        self.check_device(id, to)?;
        Ok(id.resolve_route()?)
    }

    fn check_device(&self, id: &Id, at: SocketAddr) -> Result<(), ConnectError> {
        let why = match id.device() {
            Some(device) if device == self.device => return Ok(()),
            Some(other) => format!("{at} is reached from {other}, and not from {}", self.device),
            None => format!("{at} is no address of a device"),
        };
        Err(VerbError::UnsupportedHere(why).into())
    }

    fn connection(
        &self,
        token: Token,
        id: &Id,
        (stage, qp_num): (Stage, u32),
        sink: &dyn Sink,
        event: Event,
    ) {
        let to = id.peer();
        let Some(told) = self.told(stage, event, to) else {
            return;
        };
        if self.is_iwarp() {
            match told {
                CmEvent::Accepted(_) | CmEvent::Completed => self.states.begin(qp_num),
                _ => self.states.end(qp_num),
            }
        }
        match &told {
            CmEvent::Accepted(_) => self.set_stage(token, Stage::Answered),
            CmEvent::Completed => self.set_stage(token, Stage::Open),
            CmEvent::Disconnected | CmEvent::DisconnectConfirmed if self.has_timewait() => {
                // The other end waits for an answer; if it has gone, the call fails without harm.
                let _ = id.disconnect();
            }
            CmEvent::TimedOut if stage == Stage::Ending && self.has_timewait() => {}
            _ => {
                self.remove(token);
            }
        }
        sink.event(told);
    }

    /// Converts an event of librdmacm about a connection; `None` if this end need not know of it.
    fn told(&self, stage: Stage, event: Event, peer: Option<SocketAddr>) -> Option<CmEvent> {
        const TIMED_OUT: c_int = -libc::ETIMEDOUT;
        Some(match (event.kind, event.status) {
            (event::CONNECT_RESPONSE | event::ESTABLISHED, 0) if stage == Stage::Asking => {
                CmEvent::Accepted(offer(&event.said, event.private_data, peer)?)
            }
            (event::ESTABLISHED, 0) if stage == Stage::Agreed => CmEvent::Completed,
            (event::REJECTED, _) if self.is_iwarp() => {
                CmEvent::Rejected(Refusal::ProgramOrBacklog, event.private_data)
            }
            (event::REJECTED, reason) => match Refusal::of_reject_reason(reason as u16) {
                Refusal::Program => CmEvent::Rejected(Refusal::Program, event.private_data),
                // The private data of other refusals does not come from the program.
                other => CmEvent::Rejected(other, Vec::new()),
            },
            (event::UNREACHABLE, _) | (event::CONNECT_ERROR | event::DISCONNECTED, TIMED_OUT) => {
                CmEvent::TimedOut
            }
            (event::DISCONNECTED, _) if stage == Stage::Ending => CmEvent::DisconnectConfirmed,
            (event::DISCONNECTED, _) => CmEvent::Disconnected,
            (event::TIMEWAIT_EXIT, _) if self.has_timewait() => CmEvent::TimewaitExit,
            (event::DEVICE_REMOVAL, _) if matches!(stage, Stage::Open | Stage::Ending) => {
                CmEvent::Disconnected
            }
            (event::CONNECT_ERROR | event::DEVICE_REMOVAL, _) => CmEvent::Aborted,
            _ => return None,
        })
    }

    fn question(
        &self,
        token: Token,
        id: &Id,
        to: SocketAddr,
        private_data: &[u8],
        sink: &dyn AnswerSink,
        event: Event,
    ) {
        let ask = Terms::of_datagrams(0, private_data);
        let gone_on = match event.kind {
            event::ADDR_RESOLVED => self.found(id, to).map(|()| None),
            event::ROUTE_RESOLVED => id.connect(&ask).map(|()| None).map_err(ConnectError::from),
            event::ESTABLISHED => answer(event).map(Some),
            event::ADDR_ERROR | event::ROUTE_ERROR => Err(unresolved(&event, to)),
            event::UNREACHABLE if event.status == -libc::ETIMEDOUT => Err(ConnectError::TimedOut),
            // librdmacm returns the status of a SIDR_REP.
            _ => Err(ConnectError::Refused {
                reason: Refusal::of_sidr_status(event.status as u8),
                private_data: event.private_data,
            }),
        };
        if let Some(outcome) = gone_on.transpose() {
            self.remove(token);
            sink.answered(outcome);
        }
    }

    fn set_role(&self, token: Token, role: Role) {
        let mut table = self.table.lock();
        let replaced = table
            .ends
            .get_mut(&token)
            .map(|end| std::mem::replace(&mut end.role, role));
        drop(table);
        drop(replaced);
    }

    fn set_stage(&self, token: Token, to: Stage) {
        if let Some(Role::Connection(stage, ..)) = self
            .table
            .lock()
            .ends
            .get_mut(&token)
            .map(|end| &mut end.role)
        {
            *stage = to;
        }
    }

    fn id(&self, token: Token) -> Option<Arc<Id>> {
        let table = self.table.lock();
        table.ends.get(&token).map(|end| Arc::clone(&end.id))
    }

    /// Removes an identifier from the table. It is destroyed with its last handle.
    fn remove(&self, token: Token) -> Option<End> {
        self.table.lock().remove(token)
    }

    /// Creates an identifier and binds it to an address of the device.
    fn bound(&self, service: Service, at: SocketAddr) -> Result<Id, ConnectError> {
        let id = Id::create(&self.channel, service)?;
        id.bind(at).map_err(|error| in_use(error, at))?;
        self.check_device(&id, at)?;
        Ok(id)
    }

    /// Whether librdmacm binds this address to this device.
    fn is_own(&self, ip: IpAddr) -> bool {
        let at = SocketAddr::new(ip, 0);
        self.bound(Service::Connections, at).is_ok()
    }

    /// Returns an IPv4 or IPv6 address of the device; `None` if it has none.
    pub(super) fn address(&self, is_ipv4: bool) -> Option<IpAddr> {
        let mut known = interface::addresses().into_iter();
        known.find(|&ip| ip.is_ipv4() == is_ipv4 && self.is_own(ip))
    }

    fn listen_with(
        &self,
        service: Service,
        mut at: SocketAddr,
        role: Role,
    ) -> Result<SocketAddr, ConnectError> {
        if at.ip().is_unspecified() {
            let own = self.address(at.is_ipv4());
            at.set_ip(own.ok_or(ConnectError::Unreachable(at))?);
        }
        let id = Arc::new(self.bound(service, at)?);
        let at = id.local().unwrap_or(at);
        let mut table = self.table.lock();
        let token = table.insert(Arc::clone(&id), role);
        table.listeners.insert((service, at), token);
        drop(table);
        id.listen().map_err(|error| {
            self.unlisten_with(service, at);
            in_use(error, at)
        })?;
        Ok(at)
    }

    fn unlisten_with(&self, service: Service, at: SocketAddr) {
        let mut table = self.table.lock();
        let token = table.listeners.remove(&(service, at));
        let end = token.and_then(|token| table.remove(token));
        drop(table);
        drop(end);
    }

    /// Starts to resolve the address of a peer, from this local port unless it is 0.
    fn resolve_with(
        &self,
        service: Service,
        to: SocketAddr,
        port: u16,
        role: Role,
    ) -> Result<Token, ConnectError> {
        let id = Arc::new(Id::create(&self.channel, service)?);
        let from = self.source_towards(to.ip());
        let from = from.ok_or(ConnectError::Unreachable(to))?;
        let token = self.table.lock().insert(Arc::clone(&id), role);
        let begun = id.resolve_addr(SocketAddr::new(from, port), to);
        begun.map_err(|error| {
            self.remove(token);
            match in_use(error, SocketAddr::new(from, port)) {
                ConnectError::Verb(VerbError::Os { errno, .. }) if is_unreachable(errno) => {
                    ConnectError::Unreachable(to)
                }
                error => error,
            }
        })?;
        Ok(token)
    }

    /// Returns the source address for a destination: the destination itself if it is this device's, else the kernel's
    /// choice if that is this device's, else any address of the device.
    fn source_towards(&self, to: IpAddr) -> Option<IpAddr> {
        let routed = || interface::source_of(to);
        Some(to)
            .filter(|&ip| self.is_own(ip))
            .or_else(|| routed().filter(|&ip| self.is_own(ip)))
            .or_else(|| self.address(to.is_ipv4()))
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Reads the events of a [`Manager`] as long as it exists.
struct Events(Weak<Manager>);

impl Watched for Events {
    fn is_ready(&self) {
        let Some(manager) = self.0.upgrade() else {
            return;
        };
        match manager.channel.next() {
            Ok(Some(event)) => manager.handle(event),
            Ok(None) => {}
            // An unusable descriptor would be reported as ready forever.
            Err(_) => manager.stop(),
        }
    }
}

fn in_use(error: VerbError, at: SocketAddr) -> ConnectError {
    match error {
        VerbError::Os {
            errno: libc::EADDRINUSE,
            ..
        } => ConnectError::AddressInUse {
            address: at,
            holder: None,
        },
        VerbError::Os {
            errno: libc::EADDRNOTAVAIL | libc::ENODEV,
            ..
        } => VerbError::UnsupportedHere(format!("{at} is no address of a device")).into(),
        error => error.into(),
    }
}

const fn is_unreachable(errno: c_int) -> bool {
    matches!(
        errno,
        libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EADDRNOTAVAIL
    )
}

/// Returns the event for a connection request that was not sent: some drivers connect the stream before the call returns,
/// so that its error says why.
fn unconnected(error: ConnectError, to: SocketAddr) -> CmEvent {
    let ConnectError::Verb(VerbError::Os { errno, .. }) = error else {
        return CmEvent::Failed(error);
    };
    match errno {
        libc::ECONNREFUSED => CmEvent::Rejected(Refusal::NoListener, Vec::new()),
        libc::ETIMEDOUT => CmEvent::TimedOut,
        errno if is_unreachable(errno) => CmEvent::Failed(ConnectError::Unreachable(to)),
        _ => CmEvent::Failed(error),
    }
}

/// Whether the error number means that the requesting peer has given up.
const fn is_over(errno: c_int) -> bool {
    matches!(
        errno,
        libc::ECONNREFUSED | libc::ECONNRESET | libc::ECONNABORTED | libc::ENOTCONN
    )
}

fn unresolved(event: &Event, to: SocketAddr) -> ConnectError {
    match event.status {
        status if status == -libc::ETIMEDOUT => ConnectError::TimedOut,
        _ => ConnectError::Unreachable(to),
    }
}

fn terms(offer: &Offer) -> Terms<'_> {
    Terms {
        qp_num: offer.endpoint.qp_num.value(),
        responder_resources: offer.inbound_reads,
        initiator_depth: offer.outbound_reads,
        retry_count: offer.retry_cnt.unwrap_or(7),
        rnr_retry_count: offer.rnr_retry.unwrap_or(7),
        flow_control: offer.flow_control,
        srq: offer.srq,
        private_data: &offer.private_data,
    }
}

/// Converts a peer's connection parameters to an offer. Responder resources and initiator depth, which an event reports
/// from this end's point of view, are swapped to the peer's.
fn offer(said: &Said, private_data: Vec<u8>, peer: Option<SocketAddr>) -> Option<Offer> {
    let &Said::Connection {
        qp_num,
        responder_resources,
        initiator_depth,
        retry_count,
        rnr_retry_count,
        flow_control,
        srq,
    } = said
    else {
        return None;
    };
    let ip = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip());
    Some(Offer {
        from: peer,
        endpoint: QpEndpoint {
            qp_num: Qpn::new(qp_num),
            // librdmacm gives the PSN together with the attributes for the queue pair.
            sq_psn: Psn::default(),
            address: LinkAddress::Ip(ip),
            gid: Gid::from(ip),
        },
        qp_type: QpType::Rc,
        half: Half::Both,
        takes_psn: None,
        inbound_reads: initiator_depth,
        outbound_reads: responder_resources,
        path_mtu: None,
        traffic_class: None,
        retry_cnt: Some(retry_count),
        rnr_retry: Some(rnr_retry_count),
        flow_control,
        srq,
        private_data,
    })
}

fn answer(event: Event) -> Result<Answer, ConnectError> {
    let Said::Datagrams { path, qp_num, qkey } = event.said else {
        return Err(ConnectError::NoDevice);
    };
    let AddressVector { address, dgid, .. } = AddressVector::from(&path);
    Ok(Answer {
        address,
        gid: dgid,
        qp_num: Qpn::new(qp_num),
        qkey,
        private_data: event.private_data,
    })
}

/// Refuses connections other than reliable ones with a requester and responder at each end, because librdmacm makes no
/// others here.
fn check_service(offer: &Offer) -> Result<(), ConnectError> {
    match (offer.qp_type, offer.half) {
        (QpType::Rc, Half::Both) => Ok(()),
        _ => {
            let why = "librdmacm connects reliable queue pairs of both directions only";
            Err(VerbError::UnsupportedHere(why.to_owned()).into())
        }
    }
}

impl Backend for Manager {
    fn private_data(&self) -> PrivateDataLimits {
        match self.is_iwarp() {
            true => IWARP_PRIVATE_DATA,
            false => PrivateDataLimits::INFINIBAND,
        }
    }

    fn needs_init(&self) -> bool {
        self.is_iwarp()
    }

    fn has_timewait(&self) -> bool {
        !self.is_iwarp()
    }

    fn listen(
        &self,
        at: SocketAddr,
        _: usize,
        sink: Arc<dyn ListenSink<Offer>>,
    ) -> Result<SocketAddr, ConnectError> {
        self.listen_with(Service::Connections, at, Role::Listener(sink))
    }

    fn unlisten(&self, at: SocketAddr) {
        self.unlisten_with(Service::Connections, at);
    }

    fn connect(
        &self,
        to: SocketAddr,
        offer: Offer,
        sink: Arc<dyn Sink>,
    ) -> Result<Token, ConnectError> {
        check_service(&offer)?;
        let port = offer.from.map_or(0, |from| from.port());
        let role = Role::Resolving(to, Box::new(offer), sink);
        self.resolve_with(Service::Connections, to, port, role)
    }

    fn accept(&self, token: Token, offer: Offer, sink: Arc<dyn Sink>) -> Result<(), ConnectError> {
        let id = self.id(token).ok_or(ConnectError::Aborted)?;
        // The event may arrive before the call returns.
        let qp_num = offer.endpoint.qp_num.value();
        self.set_role(token, Role::Connection(Stage::Agreed, qp_num, sink));
        id.accept(&terms(&offer)).map_err(|error| {
            self.remove(token);
            match error {
                VerbError::Os { errno, .. } if is_over(errno) => ConnectError::Aborted,
                error => error.into(),
            }
        })
    }

    fn bring_up(&self, token: Token, planned: [QpAttributes; 3]) -> Result<BringUp, ConnectError> {
        if self.is_iwarp() {
            return Ok(BringUp::ByBackend);
        }
        let id = self.id(token).ok_or(ConnectError::NotConnected)?;
        let [init, rtr, rts] = planned;
        let at_init = id.qp_attr(QpState::Init)?;
        let at_rtr = id.qp_attr(QpState::Rtr)?;
        let at_rts = id.qp_attr(QpState::Rts)?;
        let init = init
            .pkey_index(at_init.pkey_index)
            .port_num(at_init.port_num);
        let path_mtu = u8::try_from(at_rtr.path_mtu).ok().and_then(Mtu::from_code);
        let rtr = rtr
            .ah_attr(AddressVector::from(&at_rtr.ah_attr))
            .path_mtu(path_mtu.ok_or(VerbError::Internal("librdmacm knows no path MTU"))?)
            .dest_qp_num(Qpn::new(at_rtr.dest_qp_num))
            .rq_psn(Psn::new(at_rtr.rq_psn));
        let rts = rts.sq_psn(Psn::new(at_rts.sq_psn)).timeout(at_rts.timeout);
        Ok(BringUp::Steps(Box::new([init, rtr, rts])))
    }

    fn complete(&self, token: Token) {
        let Some(id) = self.id(token) else { return };
        self.set_stage(token, Stage::Open);
        // Over iWARP no further message follows.
        if self.is_iwarp() || id.establish().is_ok() {
            return;
        }
        if let Some(End {
            role: Role::Connection(.., sink),
            ..
        }) = self.remove(token)
        {
            sink.event(CmEvent::Aborted);
        }
    }

    fn reject(&self, token: Token, _: Refusal, private_data: Vec<u8>) {
        if let Some(end) = self.remove(token)
            && end.id.reject(&private_data).is_err()
        {
            // Over iWARP the requesting end cannot refuse a reply, so it disconnects. A call that fails means that the connection
            // has ended.
            let _ = end.id.disconnect();
        }
    }

    fn disconnect(&self, token: Token) {
        self.set_stage(token, Stage::Ending);
        let found = self.table.lock().ends.get(&token).map(End::parts);
        let Some((id, Role::Connection(.., sink))) = found else {
            return;
        };
        // A call that fails means that the connection has ended already.
        if id.disconnect().is_err() {
            sink.event(CmEvent::DisconnectConfirmed);
        }
    }

    fn forget(&self, token: Token) {
        let Some(end) = self.remove(token) else {
            return;
        };
        // A call that fails means that the connection has ended already.
        let _ = match end.role {
            Role::Connection(Stage::Answered, ..) if !self.is_iwarp() => end.id.reject(&[]),
            Role::Connection(..) => end.id.disconnect(),
            Role::Asked(_) => end.id.reject(&[]),
            _ => Ok(()),
        };
    }

    fn listen_datagrams(
        &self,
        at: SocketAddr,
        _: usize,
        sink: Arc<dyn ListenSink<Question>>,
    ) -> Result<SocketAddr, ConnectError> {
        self.check_datagrams("listen_datagrams")?;
        self.listen_with(Service::Datagrams, at, Role::DatagramListener(sink))
    }

    fn unlisten_datagrams(&self, at: SocketAddr) {
        self.unlisten_with(Service::Datagrams, at);
    }

    fn resolve(
        &self,
        to: SocketAddr,
        private_data: Vec<u8>,
        sink: Arc<dyn AnswerSink>,
    ) -> Result<(), ConnectError> {
        self.check_datagrams("resolve")?;
        let role = Role::Question(to, private_data, sink);
        self.resolve_with(Service::Datagrams, to, 0, role)?;
        Ok(())
    }

    fn ping(&self, to: SocketAddr, sink: PingSink) -> Result<(), ConnectError> {
        self.check_datagrams("ping")?;
        ping_by_question(self, to, sink)
    }

    fn answer(&self, token: Token, answer: Answer) -> Result<(), ConnectError> {
        let end = self.remove(token).ok_or(ConnectError::Aborted)?;
        if answer.qkey != QKEY {
            let _ = end.id.reject(&[]);
            let why =
                format!("librdmacm gives datagram services the queue key {QKEY:#x} and no other");
            return Err(VerbError::UnsupportedHere(why).into());
        }
        let terms = Terms::of_datagrams(answer.qp_num.value(), &answer.private_data);
        Ok(end.id.accept(&terms)?)
    }

    fn refuse(&self, token: Token, _: Refusal, private_data: Vec<u8>) {
        if let Some(end) = self.remove(token) {
            // A call that fails means that the peer has given up.
            let _ = end.id.reject(&private_data);
        }
    }
}

impl Manager {
    fn check_datagrams(&self, verb: &'static str) -> Result<(), ConnectError> {
        match self.is_iwarp() {
            true => Err(VerbError::UnsupportedVerb(verb).into()),
            false => Ok(()),
        }
    }
}
