//! The connection manager of one device: a [`Manager`] between a program's connectors and queue pair 1.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use polyverbs_engine::time::Time;
use polyverbs_wire::mad::rdma_cm::service_id;
use polyverbs_wire::mad::{self, cm};
use verbs_api::provider::backend::{
    Answer, AnswerSink, Backend, CmEvent, ConnectError, ListenSink, Offer, PingSink,
    PrivateDataLimits, Question, Refusal, Sink, Token, UNUSED_SERVICE_PORT, ping_answer,
};
use verbs_api::provider::carrier::{ManagementPort, ManagementSink};
use verbs_api::provider::{Mutex, random};
use verbs_api::qp::{Half, QpType};
use verbs_api::{
    QpEndpoint, VerbError,
    ids::{Gid, LinkAddress, Psn, Qpn},
};

use super::types::{
    CmError, CommId, Event, Inquiry, ListenerId, Path, Rejection, Reply, Request, Requested,
    Resolution, Transport,
};
use super::{Manager, ManagerOptions};
use super::{liveness, private};
use crate::long_queue::release;
use crate::notice::Notice;
use crate::panics::FirstPanic;
use crate::port_space::PortSpace;

/// Connects queue pairs of one device on an IP network, as a backend over InfiniBand's connection manager. Its calls fail once
/// the device was removed.
///
/// A device has one connection manager, however many agents of it a program makes.
pub struct Agent {
    device: Arc<DeviceManager>,
    space: PortSpace,
}

/// The connection manager of a device, which its agents share.
struct DeviceManager {
    port: Weak<dyn ManagementPort>,
    state: Mutex<State>,
    /// Held while sending, so that messages are sent in order. It is locked before the state.
    sending: Mutex<()>,
}

struct State {
    manager: Manager,
    ends: BTreeMap<CommId, End>,
    /// The sinks of connections that are in TIMEWAIT.
    timewait: BTreeMap<CommId, Arc<dyn Sink>>,
    listeners: BTreeMap<ListenerId, Listening>,
    /// The time for which the port was last asked to call [`ManagementSink::due`]; `None` if it was not.
    wakes_at: Option<Duration>,
    next_port: u16,
    notices: VecDeque<Notice>,
    is_notifying: bool,
}

/// The sink of a connection, or of a request to resolve a datagram service.
enum End {
    /// A connection request of a peer that the program has not answered yet.
    Asked(Arc<dyn ListenSink<Offer>>),
    Joined(Arc<dyn Sink>),
    Questioned(Arc<dyn ListenSink<Question>>),
    Asking(IpAddr, Arc<dyn AnswerSink>),
}

struct Listening {
    at: SocketAddr,
    service_id: u64,
    sink: ListenerSink,
}

#[derive(Clone)]
enum ListenerSink {
    Connections(Arc<dyn ListenSink<Offer>>),
    Datagrams(Arc<dyn ListenSink<Question>>),
}

impl Agent {
    /// Returns an agent of this port, whose services are in this port space.
    pub fn of(port: &Arc<dyn ManagementPort>, space: PortSpace) -> Result<Arc<Self>, ConnectError> {
        let (comm_id_base, comm_id_bits) = port.communication_ids();
        // A process that starts anew is another adapter: it has none of the queue pairs of the one before.
        let options = ManagerOptions {
            ca_guid: liveness::guid(random() as u32),
            comm_id_base,
            comm_id_bits,
            seed: random(),
            liveness_interval: Some(LIVENESS_INTERVAL),
            ..ManagerOptions::default()
        };
        Self::with_options(port, space, &options)
    }

    /// Returns an agent of this port, whose services are in this port space. The first agent of a port makes the device's connection
    /// manager, with these options.
    pub fn with_options(
        port: &Arc<dyn ManagementPort>,
        space: PortSpace,
        options: &ManagerOptions,
    ) -> Result<Arc<Self>, ConnectError> {
        let sink = port.attach(&mut || DeviceManager::new(port, options.clone()));
        let foreign = |_| VerbError::argument("device", "its connections are managed otherwise");
        let device = sink.as_any().downcast().map_err(foreign)?;
        Ok(Arc::new(Self { device, space }))
    }

    /// Returns the number of connections of the device in any state.
    pub fn connections(&self) -> usize {
        self.device.lock().manager.connections()
    }
}

impl DeviceManager {
    fn new(port: &Arc<dyn ManagementPort>, options: ManagerOptions) -> Arc<Self> {
        Arc::new(Self {
            port: Arc::downgrade(port),
            state: Mutex::new(State {
                manager: Manager::new(options),
                ends: BTreeMap::new(),
                timewait: BTreeMap::new(),
                listeners: BTreeMap::new(),
                wakes_at: None,
                next_port: FIRST_PORT.wrapping_add(random() as u16 & 0x3fff),
                notices: VecDeque::new(),
                is_notifying: false,
            }),
            sending: Mutex::new(()),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn port(&self) -> Result<Arc<dyn ManagementPort>, ConnectError> {
        let port = self.port.upgrade();
        port.ok_or_else(|| VerbError::DeviceRemoved.into())
    }

    /// Calls the manager by `what`, then sends the messages and delivers the events that result.
    fn with<T>(&self, port: &dyn ManagementPort, what: impl FnOnce(&mut State, Time) -> T) -> T {
        let now = Time::default().after(port.now());
        let result = what(&mut self.lock(), now);
        self.settle(port, now);
        result
    }

    // All messages have left when this returns, whichever thread sends them: the process may end right behind. One thread at a
    // time delivers notices, in order, also those that sinks cause meanwhile. If a sink panics, the panic resumes when all
    // notices are delivered.
    fn settle(&self, port: &dyn ManagementPort, now: Time) {
        let mut notifies = false;
        let mut panicked = FirstPanic::default();
        while let Some(notice) = self.send(port, now, &mut notifies) {
            panicked.catch(|| notice.deliver());
        }
        let mut state = self.lock();
        let due = state
            .manager
            .next_due()
            .map(|due| Duration::from_nanos(due.0));
        let is_earlier = |due: &Duration| state.wakes_at.is_none_or(|at| *due < at);
        let due = due.filter(is_earlier);
        state.wakes_at = due.or(state.wakes_at);
        drop(state);
        if let Some(due) = due {
            port.wake_at(due);
        }
        panicked.resume();
    }

    // Sends the messages, then returns the next notice to deliver: the answer to an event leaves before a program sees the
    // event.
    fn send(&self, port: &dyn ManagementPort, now: Time, notifies: &mut bool) -> Option<Notice> {
        let in_order = self.sending.lock();
        let mut has_sent = false;
        let notice = loop {
            let mut state = self.lock();
            state.hear(now);
            let Some(message) = state.manager.poll_message() else {
                break state.next_notice(notifies);
            };
            drop(state);
            let header = cm::header_of(&message.message, message.transaction_id);
            let datagram = mad::encode(&header, &message.message.to_data());
            if let LinkAddress::Ip(to) = message.to {
                port.send(to, &datagram);
                has_sent = true;
            }
        };
        drop(in_order);
        if has_sent {
            port.progress();
        }
        notice
    }
}

impl State {
    // Turns events of the manager into notices.
    fn hear(&mut self, now: Time) {
        while let Some(event) = self.manager.poll_event() {
            let notice = self.notice(event, now);
            self.notices.extend(notice);
        }
    }

    // The next notice, for the thread that delivers them or becomes the one that does.
    fn next_notice(&mut self, notifies: &mut bool) -> Option<Notice> {
        if self.is_notifying && !*notifies {
            return None;
        }
        let next = self.notices.pop_front();
        release(&mut self.notices);
        *notifies = next.is_some();
        self.is_notifying = *notifies;
        next
    }

    fn notice(&mut self, event: Event, now: Time) -> Option<Notice> {
        match event {
            Event::Requested {
                listener,
                id,
                request,
            } => self.asked(listener, id, &request, now),
            Event::Replied { id, reply } => {
                let transport = self.manager.transport(id).unwrap_or_default();
                let offer = Offer {
                    from: None,
                    endpoint: QpEndpoint {
                        qp_num: reply.remote_qpn,
                        sq_psn: Psn::default(),
                        address: reply.path.address,
                        gid: reply.path.remote_gid,
                    },
                    qp_type: qp_type(transport),
                    half: match transport {
                        Transport::Xrc => Half::Responder,
                        Transport::Rc | Transport::Uc => Half::Both,
                    },
                    takes_psn: Some(reply.starting_psn),
                    inbound_reads: reply.initiator_depth,
                    outbound_reads: reply.responder_resources,
                    path_mtu: Some(reply.path.mtu),
                    traffic_class: None,
                    retry_cnt: None,
                    rnr_retry: reliable(transport, reply.rnr_retry_count),
                    flow_control: reply.flow_control,
                    srq: reply.srq,
                    private_data: reply.private_data,
                };
                self.event(id, CmEvent::Accepted(offer))
            }
            Event::Established { id, .. } | Event::EstablishedByTraffic { id } => {
                self.event(id, CmEvent::Completed)
            }
            Event::Rejected {
                id,
                reason,
                private_data,
                ..
            } => {
                let last = match Refusal::of_reject_reason(reason) {
                    Refusal::Program => CmEvent::Rejected(Refusal::Program, private_data),
                    Refusal::Manager(cm::reason::TIMEOUT) => CmEvent::Aborted,
                    refusal => CmEvent::Rejected(refusal, Vec::new()),
                };
                self.last_event(id, last)
            }
            Event::RequestTimedOut { id }
            | Event::ReplyTimedOut { id }
            | Event::DisconnectTimedOut { id } => self.last_event(id, CmEvent::TimedOut),
            Event::DisconnectRequested { id, .. } => {
                // The program need not finish anything first: the queue pair is its own.
                let _ = self.manager.confirm_disconnect(now, id, &[]);
                self.last_event(id, CmEvent::Disconnected)
            }
            Event::PeerLost { id } => self.last_event(id, CmEvent::Disconnected),
            Event::Disconnected { id, .. } => self.last_event(id, CmEvent::DisconnectConfirmed),
            Event::Withdrawn { id } => self.last_event(id, CmEvent::Aborted),
            Event::ResolutionRequested {
                listener,
                id,
                from,
                service_id,
                private_data,
            } => self.questioned(listener, id, from, service_id, &private_data),
            Event::Resolved {
                id,
                status,
                qpn,
                q_key,
                private_data,
            } => self.answered(id, |to| match status {
                VALID => Ok(Answer {
                    address: LinkAddress::Ip(to),
                    gid: to.into(),
                    qp_num: qpn,
                    qkey: q_key,
                    private_data,
                }),
                status => Err(ConnectError::Refused {
                    reason: Refusal::of_sidr_status(status),
                    private_data,
                }),
            }),
            Event::Unsent { id, errno } => {
                let error = ConnectError::Unsent(errno);
                match self.ends.get(&id) {
                    Some(End::Asking(..)) => self.answered(id, |_| Err(error)),
                    _ => self.last_event(id, CmEvent::Failed(error)),
                }
            }
            Event::ResolutionTimedOut { id } => self.answered(id, |_| Err(ConnectError::TimedOut)),
            Event::TimewaitExit { id } => {
                let sink = self.timewait.remove(&id)?;
                Some(Notice::Event(sink, CmEvent::TimewaitExit))
            }
            Event::Delayed { .. } => None,
        }
    }

    fn questioned(
        &mut self,
        listener: ListenerId,
        id: CommId,
        from: LinkAddress,
        service_id: u64,
        private_data: &[u8],
    ) -> Option<Notice> {
        let sink = self
            .listeners
            .get(&listener)
            .map(|listening| &listening.sink);
        let said = addresses_of(from, service_id, private_data);
        let (Some(ListenerSink::Datagrams(sink)), Some(said)) = (sink, said) else {
            // It cannot fail: the question has just arrived.
            let _ = self
                .manager
                .resolve_reply(id, &refusal(Refusal::NoListener, &[]));
            return None;
        };
        let question = Question {
            from: Some(from),
            source: Some(said.source),
            private_data: said.private_data.to_vec(),
        };
        let sink = Arc::clone(sink);
        self.ends.insert(id, End::Questioned(Arc::clone(&sink)));
        Some(Notice::Question(sink, token(id), question))
    }

    fn answered(
        &mut self,
        id: CommId,
        answer: impl FnOnce(IpAddr) -> Result<Answer, ConnectError>,
    ) -> Option<Notice> {
        match self.ends.remove(&id) {
            Some(End::Asking(to, sink)) => Some(Notice::Answer(sink, answer(to))),
            _ => None,
        }
    }

    fn asked(
        &mut self,
        listener: ListenerId,
        id: CommId,
        request: &Requested,
        now: Time,
    ) -> Option<Notice> {
        let listening = self.listeners.get(&listener);
        let Path {
            address,
            remote_gid,
            ..
        } = request.path;
        let said = addresses_of(address, request.service_id, &request.private_data);
        // The queue pair would send to the host that has this GID.
        let said = said.filter(|said| remote_gid == Gid::from(said.source.ip()));
        let sink = listening.map(|listening| listening.sink.clone());
        let (Some(ListenerSink::Connections(sink)), Some(said)) = (sink, said) else {
            let rejection = Rejection {
                reason: cm::reason::UNSUPPORTED,
                info: &[],
                private_data: &[],
            };
            // It cannot fail: the request has just arrived.
            let _ = self.manager.reject(now, id, &rejection);
            return None;
        };
        let offer = Offer {
            from: Some(said.source),
            endpoint: QpEndpoint {
                qp_num: request.remote_qpn,
                sq_psn: Psn::default(),
                address: request.path.address,
                gid: request.path.remote_gid,
            },
            qp_type: qp_type(request.transport),
            half: match request.transport {
                Transport::Xrc => Half::Requester,
                Transport::Rc | Transport::Uc => Half::Both,
            },
            takes_psn: Some(request.starting_psn),
            // The peer's point of view; the manager reports this side's.
            inbound_reads: request.initiator_depth,
            outbound_reads: request.responder_resources,
            path_mtu: Some(request.path.mtu),
            traffic_class: Some(request.path.traffic_class),
            retry_cnt: reliable(request.transport, request.retry_count),
            rnr_retry: reliable(request.transport, request.rnr_retry_count),
            flow_control: request.flow_control,
            srq: request.srq,
            private_data: said.private_data.to_vec(),
        };
        self.ends.insert(id, End::Asked(Arc::clone(&sink)));
        Some(Notice::Request(sink, token(id), offer))
    }

    // Removes the notice of a request that was not delivered yet; returns whether there was one. So while a sink keeps the thread
    // that delivers notices, the notices of requests are limited as the requests are.
    fn retract(&mut self, id: CommId) -> bool {
        let is_it = |notice: &Notice| match notice {
            Notice::Request(_, of, _) | Notice::Question(_, of, _) => *of == token(id),
            _ => false,
        };
        let place = self.notices.iter().position(is_it);
        place.is_some_and(|place| self.notices.remove(place).is_some())
    }

    fn event(&mut self, id: CommId, event: CmEvent) -> Option<Notice> {
        match self.ends.get(&id) {
            Some(End::Joined(sink)) => Some(Notice::Event(Arc::clone(sink), event)),
            _ => None,
        }
    }

    // After this event the sink gets only the end of TIMEWAIT.
    fn last_event(&mut self, id: CommId, event: CmEvent) -> Option<Notice> {
        match self.ends.remove(&id) {
            Some(End::Joined(sink)) => {
                if self.manager.state(id) == Some(super::State::TimeWait) {
                    self.timewait.insert(id, Arc::clone(&sink));
                }
                Some(Notice::Event(sink, event))
            }
            Some(End::Asked(sink)) => {
                (!self.retract(id)).then(|| Notice::RequestWithdrawn(sink, token(id)))
            }
            Some(End::Questioned(sink)) => {
                (!self.retract(id)).then(|| Notice::QuestionWithdrawn(sink, token(id)))
            }
            Some(End::Asking(..)) | None => None,
        }
    }
}

impl Backend for Agent {
    fn private_data(&self) -> PrivateDataLimits {
        PrivateDataLimits::INFINIBAND
    }

    fn has_timewait(&self) -> bool {
        true
    }

    fn listen(
        &self,
        at: SocketAddr,
        backlog: usize,
        sink: Arc<dyn ListenSink<Offer>>,
    ) -> Result<SocketAddr, ConnectError> {
        let sink = ListenerSink::Connections(sink);
        self.listen_in(self.space.connections(), at, backlog, sink)
    }

    fn unlisten(&self, at: SocketAddr) {
        self.unlisten_in(self.space.connections(), at);
    }

    fn listen_datagrams(
        &self,
        at: SocketAddr,
        backlog: usize,
        sink: Arc<dyn ListenSink<Question>>,
    ) -> Result<SocketAddr, ConnectError> {
        let sink = ListenerSink::Datagrams(sink);
        self.listen_in(self.space.datagrams(), at, backlog, sink)
    }

    fn unlisten_datagrams(&self, at: SocketAddr) {
        self.unlisten_in(self.space.datagrams(), at);
    }

    fn resolve(
        &self,
        to: SocketAddr,
        private_data: Vec<u8>,
        sink: Arc<dyn AnswerSink>,
    ) -> Result<(), ConnectError> {
        self.inquire(to, &private_data, true, sink)
    }

    fn ping(&self, to: SocketAddr, sink: PingSink) -> Result<(), ConnectError> {
        // The refusal is the answer: repeating the question would only delay it.
        let unused = SocketAddr::new(to.ip(), UNUSED_SERVICE_PORT);
        self.inquire(unused, &[], false, ping_answer(sink))
    }

    fn answer(&self, token: Token, answer: Answer) -> Result<(), ConnectError> {
        let resolution = Resolution {
            status: VALID,
            qpn: answer.qp_num,
            q_key: answer.qkey,
            private_data: &answer.private_data,
        };
        self.resolved(token, &resolution)
    }

    fn refuse(&self, token: Token, why: Refusal, private_data: Vec<u8>) {
        // A device that was removed sends nothing.
        let _ = self.resolved(token, &refusal(why, &private_data));
    }

    fn connect(
        &self,
        to: SocketAddr,
        offer: Offer,
        sink: Arc<dyn Sink>,
    ) -> Result<Token, ConnectError> {
        let port = self.device.port()?;
        let unreachable = |_: CmError| ConnectError::Unreachable(to);
        self.device.with(&*port, |state, now| {
            let chosen = offer.from.map_or(0, |from| from.port());
            let source_port = match chosen {
                0 => state.ephemeral_port(),
                chosen => chosen,
            };
            let source = SocketAddr::new(port.address(), source_port);
            let data = private::with_addresses(private::REQ, source, to, &offer.private_data);
            let data = data.map_err(unreachable)?;
            let path = Path {
                mtu: offer
                    .path_mtu
                    .unwrap_or(verbs_api::capability::Mtu::Mtu1024),
                traffic_class: offer.traffic_class.unwrap_or_default(),
                packet_life_time: PACKET_LIFE_TIME,
                ..Path::new(LinkAddress::Ip(to.ip()), offer.endpoint.gid, to.ip().into())
            };
            let service_id = service_id(self.space.connections(), to.port());
            let (qpn, psn) = (offer.endpoint.qp_num, offer.endpoint.sq_psn);
            let request = Request {
                transport: match (offer.half, offer.qp_type) {
                    (Half::Requester | Half::Responder, _) => Transport::Xrc,
                    (Half::Both, QpType::Uc) => Transport::Uc,
                    (Half::Both, _) => Transport::Rc,
                },
                retry_count: offer.retry_cnt.unwrap_or_default(),
                rnr_retry_count: offer.rnr_retry.unwrap_or_default(),
                responder_resources: offer.inbound_reads,
                initiator_depth: offer.outbound_reads,
                flow_control: offer.flow_control,
                srq: offer.srq,
                remote_response_timeout: RESPONSE_TIMEOUT,
                local_response_timeout: RESPONSE_TIMEOUT,
                max_cm_retries: RETRIES,
                private_data: &data,
                ..Request::new(service_id, path, qpn, psn)
            };
            let asked = state.manager.connect(now, &request);
            let id = asked.map_err(|_| VerbError::Resources("connections of the device"))?;
            state.ends.insert(id, End::Joined(sink));
            Ok(token(id))
        })
    }

    fn accept(&self, token: Token, offer: Offer, sink: Arc<dyn Sink>) -> Result<(), ConnectError> {
        let port = self.device.port()?;
        self.device.with(&*port, |state, now| {
            let id = comm_id(token);
            let end = state.ends.get_mut(&id).ok_or(ConnectError::Aborted)?;
            *end = End::Joined(sink);
            let reply = Reply {
                qpn: offer.endpoint.qp_num,
                starting_psn: offer.endpoint.sq_psn,
                responder_resources: offer.inbound_reads,
                initiator_depth: offer.outbound_reads,
                rnr_retry_count: offer.rnr_retry.unwrap_or_default(),
                flow_control: offer.flow_control,
                srq: offer.srq,
                private_data: &offer.private_data,
            };
            let replied = state.manager.reply(now, id, &reply);
            replied.map_err(|_| ConnectError::Aborted)
        })
    }

    fn complete(&self, token: Token) {
        let Ok(port) = self.device.port() else { return };
        // If this fails, the peer is gone, which an event reports to the sink.
        let _ = self
            .device
            .with(&*port, |state, _| state.manager.ready(comm_id(token), &[]));
    }

    fn reject(&self, token: Token, why: Refusal, private_data: Vec<u8>) {
        let Ok(port) = self.device.port() else { return };
        let end = self.device.with(&*port, |state, now| {
            let id = comm_id(token);
            let rejection = Rejection {
                reason: why.reject_reason(),
                info: &[],
                private_data: &private_data,
            };
            // If this fails the peer is gone.
            let _ = state.manager.reject(now, id, &rejection);
            state.ends.remove(&id)
        });
        drop(end);
    }

    fn disconnect(&self, token: Token) {
        let Ok(port) = self.device.port() else { return };
        let over = self.device.with(&*port, |state, now| {
            let id = comm_id(token);
            match state.manager.disconnect(now, id, &[]) {
                Ok(()) => None,
                Err(_) => state.ends.remove(&id),
            }
        });
        if let Some(End::Joined(sink)) = over {
            sink.event(CmEvent::DisconnectConfirmed);
        }
    }

    fn forget(&self, token: Token) {
        let Ok(port) = self.device.port() else { return };
        let end = self.device.with(&*port, |state, now| {
            let id = comm_id(token);
            // If this fails the connection has ended.
            let _ = state.manager.destroy(now, id);
            (state.ends.remove(&id), state.timewait.remove(&id))
        });
        drop(end);
    }
}

impl Agent {
    /// Asks a peer to resolve a datagram service, and repeats that for a while if no program listens there and
    /// `awaits_listener` is set.
    fn inquire(
        &self,
        to: SocketAddr,
        private_data: &[u8],
        awaits_listener: bool,
        sink: Arc<dyn AnswerSink>,
    ) -> Result<(), ConnectError> {
        let port = self.device.port()?;
        let own = port.address();
        self.device.with(&*port, |state, now| {
            let source = SocketAddr::new(own, state.ephemeral_port());
            let data = private::with_addresses(private::SIDR_REQ, source, to, private_data);
            let data = data.map_err(|_| ConnectError::Unreachable(to))?;
            let path = Path {
                packet_life_time: PACKET_LIFE_TIME,
                ..Path::new(LinkAddress::Ip(to.ip()), own.into(), to.ip().into())
            };
            let inquiry = Inquiry {
                service_id: service_id(self.space.datagrams(), to.port()),
                path,
                response_timeout: RESPONSE_TIMEOUT,
                max_cm_retries: RETRIES,
                awaits_listener,
                private_data: &data,
            };
            let asked = state.manager.resolve(now, &inquiry);
            let id = asked.map_err(|_| VerbError::Resources("connections of the device"))?;
            state.ends.insert(id, End::Asking(to.ip(), sink));
            Ok(())
        })
    }

    /// Sends the answer to a peer's request to resolve a datagram service.
    fn resolved(&self, token: Token, resolution: &Resolution<'_>) -> Result<(), ConnectError> {
        let port = self.device.port()?;
        let end = self.device.with(&*port, |state, _| {
            let id = comm_id(token);
            // If this fails the peer has given up.
            let _ = state.manager.resolve_reply(id, resolution);
            state.ends.remove(&id)
        });
        drop(end);
        Ok(())
    }

    fn listen_in(
        &self,
        space: u16,
        at: SocketAddr,
        backlog: usize,
        sink: ListenerSink,
    ) -> Result<SocketAddr, ConnectError> {
        let port = self.device.port()?;
        let own = port.address();
        if at.is_ipv4() != own.is_ipv4() || !(at.ip() == own || at.ip().is_unspecified()) {
            return Err(ConnectError::Unreachable(at));
        }
        let (at, service_id) = self.serve(&*port, space, SocketAddr::new(own, at.port()))?;
        let listened = self.device.with(&*port, |state, _| {
            let (id, _) = state.manager.listen(service_id, u64::MAX)?;
            if backlog != 0 {
                let room = backlog.saturating_mul(ROOM_PER_REQUEST);
                state.manager.set_backlog(id, room);
            }
            let listening = Listening {
                at,
                service_id,
                sink,
            };
            state.listeners.insert(id, listening);
            Ok(())
        });
        listened.map_err(|_: CmError| ConnectError::AddressInUse {
            address: at,
            holder: Some("this device".to_owned()),
        })?;
        Ok(at)
    }

    fn unlisten_in(&self, space: u16, at: SocketAddr) {
        let Ok(port) = self.device.port() else { return };
        let service = service_id(space, at.port());
        let listening = self.device.with(&*port, |state, _| {
            let found = state
                .listeners
                .iter()
                .find(|(_, of)| of.at == at && of.service_id == service);
            let id = *found?.0;
            // It cannot fail: the listener was just found.
            let _ = state.manager.unlisten(id);
            state.listeners.remove(&id)
        });
        if let Some(listening) = listening {
            port.withdraw(listening.service_id);
        }
    }

    // For port 0, the next port that no process at this address serves.
    fn serve(
        &self,
        port: &dyn ManagementPort,
        space: u16,
        at: SocketAddr,
    ) -> Result<(SocketAddr, u64), ConnectError> {
        for _ in FIRST_PORT..=u16::MAX {
            let number = match at.port() {
                0 => self.device.lock().ephemeral_port(),
                number => number,
            };
            let chosen = SocketAddr::new(at.ip(), number);
            let service = service_id(space, number);
            match port.serve(service) {
                Ok(()) => return Ok((chosen, service)),
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                    return Err(VerbError::os("claim of a service", error).into());
                }
                Err(error) if at.port() != 0 => {
                    return Err(ConnectError::AddressInUse {
                        address: chosen,
                        holder: error.get_ref().map(ToString::to_string),
                    });
                }
                Err(_) => {}
            }
        }
        Err(ConnectError::AddressInUse {
            address: at,
            holder: None,
        })
    }
}

impl State {
    fn ephemeral_port(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port = port.checked_add(1).unwrap_or(FIRST_PORT);
        port
    }
}

impl ManagementSink for DeviceManager {
    fn datagram(&self, from: IpAddr, datagram: &[u8]) {
        let Ok(port) = self.port() else { return };
        let Ok(mad) = mad::decode(datagram) else {
            return;
        };
        let Ok(message) = cm::decode(&mad) else {
            return;
        };
        let transaction_id = mad.header.transaction_id();
        self.with(&*port, |state, now| {
            let from = LinkAddress::Ip(from);
            state
                .manager
                .handle_message(now, from, transaction_id, &message);
        });
    }

    fn refused(&self, to: IpAddr, errno: i32) {
        let Ok(port) = self.port() else { return };
        self.with(&*port, |state, now| {
            let to = LinkAddress::Ip(to);
            state.manager.handle_refusal(now, to, errno);
        });
    }

    fn traffic(&self, qp: Qpn) {
        let Ok(port) = self.port() else { return };
        self.with(&*port, |state, now| state.manager.handle_traffic(now, qp));
    }

    fn due(&self) {
        let Ok(port) = self.port() else { return };
        self.with(&*port, |state, now| {
            state.wakes_at = None;
            state.manager.handle_timeout(now);
        });
    }
}

/// Returns the socket addresses in the RDMA connection manager's header of a message from `from`. `None` if the header is
/// missing, or if its source differs from the source of the datagram: programs trust a peer by its address, so a peer must
/// not be able to choose that address.
fn addresses_of(
    from: LinkAddress,
    service_id: u64,
    private_data: &[u8],
) -> Option<private::Addressed<'_>> {
    let said = private::addresses(service_id, private_data)?;
    (LinkAddress::Ip(said.source.ip()) == from).then_some(said)
}

const fn qp_type(transport: Transport) -> QpType {
    match transport {
        Transport::Uc => QpType::Uc,
        Transport::Rc | Transport::Xrc => QpType::Rc,
    }
}

// Only reliable connections have retry counts.
fn reliable(transport: Transport, count: u8) -> Option<u8> {
    (transport == Transport::Rc).then_some(count)
}

fn token(CommId(id): CommId) -> Token {
    Token(id.into())
}

fn comm_id(Token(token): Token) -> CommId {
    CommId(token as u32)
}

const fn refusal(why: Refusal, private_data: &[u8]) -> Resolution<'_> {
    Resolution {
        status: why.sidr_status(),
        qpn: Qpn::new(0),
        q_key: 0,
        private_data,
    }
}

/// The status of a SIDR_REP that names a queue pair (IBTA 12.11.2).
const VALID: u8 = 0;

/// How many requests the manager keeps for each place in the program's backlog. One source may take half of them, and they
/// include requests that the program has taken out of its backlog and not answered.
const ROOM_PER_REQUEST: usize = 4;

/// The lowest port that is assigned to a listener without a port of its own.
const FIRST_PORT: u16 = 49_152;
/// The response timeout as a code: 1.07 s. With [`RETRIES`] an absent peer is detected after nine seconds.
const RESPONSE_TIMEOUT: u8 = 18;
const RETRIES: u8 = 7;
/// The packet lifetime as a code: 4 ms.
const PACKET_LIFE_TIME: u8 = 10;
/// The interval between liveness probes: a killed peer is detected after fifteen seconds.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(4);
