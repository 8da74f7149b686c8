//! One local address: its sockets by port, its paths by peer, and congestion on both sides.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use polyverbs_wire::rds::{CongestionMap, ConnectData, Extension, FRAGMENT, Header, Version};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustc_hash::FxHashMap;
use thiserror::Error;

use super::credits::Credits;
use super::endpoint::{Endpoint, Queued, RdmaStatus, Readiness, SocketOptions};
use super::message::{
    Arrived, Attached, Fragment, Fragments, Message, NO_PORT, Operation, OperationStatus, Origin,
    PROBE_PORT, PathId, SocketId, held,
};
use super::path::{Event, Path, PathState, ProtocolError, Transmit};

/// The minor versions of major version 4 that the host speaks: bits for 0 and 1.
const MINORS: u16 = 3;

/// A member announces a port with this value in the extension that otherwise carries the number of paths.
const HAS_PORT: u16 = 1;

/// The mask of all 64 groups of ports.
const ALL_GROUPS: u64 = u64::MAX;

/// The most accepted requests whose peers have not completed the connection, and the most of one peer. One more replaces the oldest.
const MOST_ARRIVALS: usize = 64;
const MOST_ARRIVALS_OF_ONE: usize = 16;

/// The most peers that requests can add. One more replaces the idle peer that was used least recently.
const MOST_PEERS: usize = 1024;

/// How often a path without a connection checks whether its peer still has one to complete.
const CHECK_AGAIN: Duration = Duration::from_millis(100);

/// How often the host asks for the owner of a port that messages wait for, and for how long.
const ASK_AGAIN: Duration = Duration::from_millis(50);
const WAIT_FOR_OWNER: Duration = Duration::from_secs(10);

/// The limits of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLimits {
    /// Requests that the send queue of a path holds.
    pub send_requests: u32,
    /// Receives that a path posts when its connection is made.
    pub first_receives: u32,
    /// The most receives that a path posts.
    pub receives: u32,
    /// The most bytes of memory for messages that wait in sockets or to be forwarded.
    pub max_memory: usize,
    /// Whether connections use credits.
    pub flow_control: FlowControl,
}

/// Whether a host's connections have flow control by credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowControl {
    /// If the peer asks for it.
    Accepted,
    /// If the peer supports it: this side asks.
    Asked,
    /// Always: a peer that does not support it is refused.
    Required,
}

impl Default for HostLimits {
    fn default() -> Self {
        Self {
            send_requests: 256,
            first_receives: 32,
            receives: 512,
            max_memory: 256 << 20,
            flow_control: FlowControl::Accepted,
        }
    }
}

/// Why a socket cannot have a port.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PortError {
    /// Another socket has the port.
    #[error("port {0} is in use")]
    InUse(u16),
    /// The port is reserved for probes.
    #[error("port 1 is reserved")]
    Reserved,
    /// All ports are in use.
    #[error("every port is in use")]
    Exhausted,
}

/// Why a message cannot be sent now.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Refused {
    /// The unacknowledged bytes fill the send buffer.
    #[error("the send buffer is full")]
    NoRoom,
    /// More bytes wait at the receiver than its receive buffer allows.
    #[error("the destination is congested")]
    Congested,
}

/// A message to send.
#[derive(Debug)]
pub struct Outbound<F, O> {
    /// The destination.
    pub to: SocketAddr,
    /// Length of the payload, in bytes.
    pub length: u32,
    /// The payload.
    pub fragments: Fragments<F>,
    /// An operation that is posted before the message.
    pub attached: Option<Attached<O>>,
    /// The cookie of own memory that the message carries to the peer.
    pub cookie: Option<u64>,
}

/// Something that a socket receives.
#[derive(Debug)]
pub enum Inbound<F> {
    /// A message.
    Message(Queued<F>),
    /// The outcome of operations.
    Statuses(Vec<RdmaStatus>),
    /// Groups of ports that became free.
    Congestion(u64),
}

/// The role of a host among the processes at its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The process that peers connect to. It forwards the messages of the others.
    Leader,
    /// Another process, which reaches its peers through the leader. The number identifies it there.
    Member(u16),
}

/// An action that a host asks its driver for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Request a connection. The driver answers with [`Host::handle_connected`] or [`Host::handle_gone`].
    Connect {
        /// The path.
        path: PathId,
        /// The process to connect to: one of the peer's host, or one at the own address.
        to: Process,
        /// The private data of the request.
        data: ConnectData,
    },
    /// End the connection and destroy its queue pair. The driver answers with [`Host::handle_gone`].
    End(PathId),
    /// Abandon an accepted request. The host expects no answer.
    Withdraw(ArrivalId),
    /// Give the connection of an accepted request to the path. The driver answers with [`Host::handle_connected`] and the peer's
    /// private data.
    Adopt {
        /// The path.
        path: PathId,
        /// The request.
        arrival: ArrivalId,
        /// The private data of the peer.
        told: ConnectData,
    },
    /// Find out whether another process has this port. The driver answers with [`Host::handle_port_free`] if none has.
    FindOwner(u16),
    /// Notify the socket, whose readiness may have changed.
    Wake(SocketId),
    /// A peer has used this key of the socket.
    Used {
        /// The socket.
        socket: SocketId,
        /// The key.
        rkey: u32,
    },
}

/// The process to connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// A process of the peer's host.
    Peer,
    /// The leader at the own address.
    Leader,
    /// A member at the own address, with its port.
    Member(u16),
}

/// The answer to a connection request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Accept the request.
    Accept {
        /// Identifies the request. The driver answers with [`Host::handle_accepted`] or [`Host::handle_withdrawn`].
        arrival: ArrivalId,
        /// The private data of the reply.
        data: ConnectData,
    },
    /// Refuse the request.
    Refuse,
}

/// A request for a connection that was accepted. It does not affect the path before the peer has completed the connection, because the
/// source of a request can be forged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArrivalId(u64);

/// A message for a port that no process has announced.
#[derive(Debug)]
struct Parked<F, O> {
    address: IpAddr,
    message: Message<F, O>,
}

/// The messages that wait for the owner of one port.
#[derive(Debug)]
struct Waiting<F, O> {
    /// When they are dropped; `None` until the first timeout.
    until: Option<Duration>,
    asks_at: Duration,
    messages: Vec<Parked<F, O>>,
}

#[derive(Debug)]
struct Peer<F, O> {
    address: IpAddr,
    /// Only in paths of a leader: the member that reaches `address` through it.
    member: Option<u16>,
    path: Path<F, O>,
    map: CongestionMap,
    /// Only in paths to members: congested ports of the member.
    member_map: CongestionMap,
    /// No process listens where the last connection was requested.
    is_absent: bool,
    /// Requests whose completion a program waits for in a cancel or a close, each with the time when the connection ends otherwise.
    awaited: Vec<(u64, Duration)>,
    /// A socket waits until one of the peer's ports becomes free.
    is_asked: bool,
    /// The leader through which the path was connected last.
    leader: Option<u16>,
    /// A connection that replaces the present one as soon as the present one has ended.
    successor: Option<(ArrivalId, ConnectData)>,
    /// The peer's sequence number of the last message that was delivered to a socket of this process, through any leader.
    delivered: Option<u64>,
    /// The incarnation of the peer's host whose messages `delivered` counts; 0 if the host sends none.
    generation: u32,
    /// Only in paths of a leader to members: the generation of the peer that the leader last sent to the member.
    told_generation: u32,
    /// The value of `ends` when the last connection of the path ended.
    used: u64,
    /// The version that the next request proposes.
    version: Version,
    is_ready: bool,
}

/// An accepted request.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// The peer, and the member that reaches it through this host.
    key: (IpAddr, Option<u16>),
    /// The random number that the peer's host chose at its start.
    incarnation: u32,
}

/// Event counters, with the names that `rds-info` uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that ended.
    pub conn_reset: u64,
    /// Fragments whose header was not valid.
    pub recv_drop_bad_checksum: u64,
    /// Messages for a port that no socket has.
    pub recv_drop_no_sock: u64,
    /// Messages that were queued for a socket.
    pub recv_queued: u64,
    /// Messages that a program has received.
    pub recv_delivered: u64,
    /// Sends that found the send buffer full.
    pub send_queue_full: u64,
    /// Messages that a program has sent.
    pub send_queued: u64,
    /// Congestion maps that were queued for sending.
    pub cong_update_queued: u64,
    /// Congestion maps that arrived.
    pub cong_update_received: u64,
    /// Sends that found their destination congested.
    pub cong_send_error: u64,
}

impl Counters {
    /// Each counter with its name.
    pub fn by_name(&self) -> [(&'static str, u64); 10] {
        [
            ("conn_reset", self.conn_reset),
            ("recv_drop_bad_checksum", self.recv_drop_bad_checksum),
            ("recv_drop_no_sock", self.recv_drop_no_sock),
            ("recv_queued", self.recv_queued),
            ("recv_delivered", self.recv_delivered),
            ("send_queue_full", self.send_queue_full),
            ("send_queued", self.send_queued),
            ("cong_update_queued", self.cong_update_queued),
            ("cong_update_received", self.cong_update_received),
            ("cong_send_error", self.cong_send_error),
        ]
    }
}

/// The observable state of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathInfo {
    /// The peer.
    pub peer: IpAddr,
    /// The state of the connection.
    pub state: PathState,
    /// The sequence number of the next message to the peer.
    pub next_transmit: u64,
    /// The expected sequence number of the peer's next message; it is higher if the peer gives messages up.
    pub next_receive: u64,
    /// Messages that wait to be sent.
    pub queued: usize,
    /// Messages that the peer has not acknowledged.
    pub unacknowledged: usize,
}

/// The sockets and paths of one local address.
#[derive(Debug)]
pub struct Host<F, O> {
    address: IpAddr,
    role: Role,
    /// The number by which members distinguish one leader from the next.
    identity: u16,
    /// A random number by which peers recognize that the host has restarted.
    incarnation: u32,
    limits: HostLimits,
    random: SmallRng,
    sockets: BTreeMap<SocketId, Endpoint<F>>,
    by_port: FxHashMap<u16, SocketId>,
    next_socket: u32,
    peers: Vec<Peer<F, O>>,
    by_address: FxHashMap<(IpAddr, Option<u16>), PathId>,
    /// Accepted requests, the oldest first.
    arrivals: BTreeMap<ArrivalId, Asked>,
    next_arrival: u64,
    /// The number of connections that have ended.
    ends: u64,
    /// The ports of members, each with its member.
    members: FxHashMap<u16, u16>,
    /// Messages that wait for the owner of their port, by port.
    waiting: BTreeMap<u16, Waiting<F, O>>,
    /// Own ports that are congested.
    map: CongestionMap,
    /// Congested ports of this address in all its processes.
    exported: CongestionMap,
    /// Stands for the map of a peer that has not sent one.
    blank: CongestionMap,
    /// The number of congestion maps that have arrived.
    generation: u64,
    ready: VecDeque<PathId>,
    actions: VecDeque<Action>,
    /// Bytes of memory for messages that wait in sockets or to be forwarded.
    held: usize,
    /// The sequence number of the first message of a path.
    first_sequence: u64,
    counters: Counters,
}

impl<F: Fragment, O: Operation> Peer<F, O> {
    /// Notes the generation of the peer's host that its messages belong to from now on.
    fn note_generation(&mut self, generation: u32) {
        let known = std::mem::replace(&mut self.generation, generation);
        if known != 0 && known != generation {
            self.delivered = None;
        }
    }

    /// The deadline of the first awaited request.
    fn completion_due(&self) -> Option<Duration> {
        let completed = self.path.completed();
        let awaited = self.awaited.iter();
        let pending = awaited.filter(|(request, _)| *request > completed);
        pending.map(|(_, until)| *until).min()
    }
}

impl<F: Fragment, O: Operation> Host<F, O> {
    /// The host of a local address. `seed` determines the ports and waits that it chooses at random.
    pub fn new(address: IpAddr, limits: HostLimits, seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        Self {
            address,
            role: Role::Leader,
            identity: random.random(),
            incarnation: random.random_range(1..=u32::MAX),
            limits,
            random,
            sockets: BTreeMap::new(),
            by_port: FxHashMap::default(),
            next_socket: 0,
            peers: Vec::new(),
            by_address: FxHashMap::default(),
            arrivals: BTreeMap::new(),
            next_arrival: 0,
            ends: 0,
            members: FxHashMap::default(),
            waiting: BTreeMap::new(),
            map: CongestionMap::new(),
            exported: CongestionMap::new(),
            blank: CongestionMap::new(),
            generation: 0,
            ready: VecDeque::new(),
            actions: VecDeque::new(),
            held: 0,
            first_sequence: 1,
            counters: Counters::default(),
        }
    }

    /// Sets the sequence number of the first message of each new path. Linux remembers the numbers of the host that had the address before,
    /// and drops a retransmitted message with a lower number as a duplicate.
    pub fn number_from(&mut self, first: u64) {
        self.first_sequence = first;
    }

    /// The limits of the host.
    pub fn limits(&self) -> &HostLimits {
        &self.limits
    }

    /// The paths of the host and their state.
    pub fn paths(&self) -> impl Iterator<Item = PathInfo> + '_ {
        self.peers.iter().map(|peer| {
            let [queued, unacknowledged] = peer.path.messages();
            PathInfo {
                peer: peer.address,
                state: peer.path.state,
                next_transmit: peer.path.next_transmit,
                next_receive: peer.path.next_receive,
                queued: queued.len(),
                unacknowledged: unacknowledged.len(),
            }
        })
    }

    /// The peers that have not acknowledged all messages of a socket.
    pub fn unacknowledged(&self, socket: SocketId) -> impl Iterator<Item = IpAddr> + '_ {
        let owing = self.peers.iter().filter(move |peer| peer.path.owes(socket));
        let waiting = self.waiting.values().flat_map(|waiting| &waiting.messages);
        let own = waiting.filter(move |one| one.message.socket == Some(socket));
        let own = own.map(|one| one.address);
        owing.map(|peer| peer.address).chain(own)
    }

    /// Acknowledges to all peers everything that has arrived.
    pub fn acknowledge_all(&mut self) {
        for number in 0..self.peers.len() {
            self.peers[number].path.acknowledge_now();
            self.is_ready(PathId(number as u32));
        }
    }

    /// The random number by which peers and members recognize that the host has restarted.
    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// The role of the host.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Makes this process a leader or a member. A process that becomes the leader has no paths, or was a member: then its paths go to
    /// its peers directly from now on. Unacknowledged messages that its sockets have sent through the old leader count as undelivered.
    pub fn set_role(&mut self, role: Role) {
        self.role = role;
        if role == Role::Leader
            && let Some(path) = self.by_address.remove(&(self.address, None))
        {
            self.path_mut(path).abandon();
            self.handle_lost(path);
            self.settle(path);
            self.tell_congestion();
        }
        for endpoint in self.sockets.values_mut() {
            endpoint.is_announced |= role == Role::Leader;
        }
    }

    /// The address of the host.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The event counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the port if it is free here; for port 0 any port that is free here.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind).
    pub fn choose(&mut self, port: u16) -> Result<u16, PortError> {
        match port {
            0 => self.free_port().ok_or(PortError::Exhausted),
            PROBE_PORT => Err(PortError::Reserved),
            port if self.by_port.contains_key(&port) => Err(PortError::InUse(port)),
            port => Ok(port),
        }
    }

    /// Binds a socket to this port; for port 0 a free port is chosen.
    ///
    /// # Errors
    /// The port is in use or reserved, or every port is in use.
    pub fn bind(
        &mut self,
        port: u16,
        options: SocketOptions,
    ) -> Result<(SocketId, u16), PortError> {
        let port = self.choose(port)?;
        let id = SocketId(self.next_socket);
        self.next_socket += 1;
        let endpoint = Endpoint::new(port, options, self.generation);
        self.sockets.insert(id, endpoint);
        self.by_port.insert(port, id);
        // A late announcement may have come from a member that had the port before.
        self.members.remove(&port);
        self.announce(id);
        Ok((id, port))
    }

    /// Announces a socket to the leader.
    fn announce(&mut self, id: SocketId) {
        let Some(endpoint) = self.sockets.get_mut(&id) else {
            return;
        };
        if self.role == Role::Leader {
            endpoint.is_announced = true;
            return;
        }
        let announcement = Message {
            socket: Some(id),
            extension: Some(Extension::Paths(HAS_PORT)),
            is_ack_required: true,
            ..Message::header_only(endpoint.port, PROBE_PORT)
        };
        self.enqueue(self.address, None, announcement);
    }

    /// Whether messages for a socket reach it.
    pub fn is_announced(&self, socket: SocketId) -> bool {
        let endpoint = self.sockets.get(&socket);
        endpoint.is_some_and(|endpoint| endpoint.is_announced)
    }

    /// Queues a message on a path, which is connected if it is not.
    fn enqueue(&mut self, address: IpAddr, member: Option<u16>, message: Message<F, O>) {
        let path = self.path_to(address, member);
        self.path_mut(path).enqueue(message);
        self.wants_connection(path);
        self.is_ready(path);
    }

    fn wants_connection(&mut self, path: PathId) {
        if self.path(path).state == (PathState::Down { due: None }) {
            match self.is_coming(path) {
                true => {
                    self.path_mut(path).state = PathState::Down {
                        due: Some(Duration::ZERO),
                    }
                }
                false => self.begin_connection(path),
            }
        }
    }

    fn free_port(&mut self) -> Option<u16> {
        let first = self.random.random_range(PROBE_PORT + 1..=u16::MAX);
        let mut ports = (first..=u16::MAX).chain(PROBE_PORT + 1..first);
        ports.find(|port| !self.by_port.contains_key(port))
    }

    /// Closes a socket: gives up its unacknowledged messages and drops those that wait to be received. Returns the requests that
    /// have to complete before the memory of its operations is free, as [`cancel`](Self::cancel) does.
    pub fn close(&mut self, now: Duration, socket: SocketId) -> Vec<(PathId, u64)> {
        let pending = self.cancel(now, socket, None);
        if let Some(endpoint) = self.sockets.remove(&socket) {
            self.by_port.remove(&endpoint.port);
            if self.role != Role::Leader {
                let farewell = Message {
                    extension: Some(Extension::Paths(0)),
                    ..Message::header_only(endpoint.port, PROBE_PORT)
                };
                self.enqueue(self.address, None, farewell);
            }
            let waiting = endpoint.queued().map(|message| held(&message.fragments));
            self.held -= waiting.sum::<usize>();
            if endpoint.is_congested {
                self.map.clear(endpoint.port);
                self.tell_congestion();
            }
        }
        pending
    }

    /// The options of a socket, for changes.
    pub fn options_mut(&mut self, socket: SocketId) -> Option<&mut SocketOptions> {
        let endpoint = self.sockets.get_mut(&socket)?;
        Some(&mut endpoint.options)
    }

    /// The state that `poll` reports for a socket.
    pub fn readiness(&mut self, socket: SocketId) -> Readiness {
        let generation = self.generation;
        let endpoint = self.sockets.get_mut(&socket);
        endpoint.map_or_else(Readiness::default, |one| one.readiness(generation))
    }

    /// The length of the next message in bytes; `None` if there is none.
    pub fn next_length(&self, socket: SocketId) -> Option<u32> {
        let message = self.sockets.get(&socket)?.front()?;
        Some(message.length)
    }

    /// Checks whether a message can be sent now.
    ///
    /// # Errors
    /// The destination is congested, or the send buffer is full.
    pub fn may_send(&mut self, socket: SocketId, to: SocketAddr) -> Result<(), Refused> {
        let Some(endpoint) = self.sockets.get_mut(&socket) else {
            return Err(Refused::NoRoom);
        };
        let map = match self.by_address.get(&(to.ip(), None)) {
            _ if to.ip() == self.address && self.by_port.contains_key(&to.port()) => {
                Some(&self.map)
            }
            _ if to.ip() == self.address && self.role == Role::Leader => Some(&self.exported),
            Some(path) => Some(&self.peers[path.index()].map),
            None => None,
        };
        if map.is_some_and(|map| map.is_set(to.port())) {
            endpoint.was_refused(to.port());
            self.counters.cong_send_error += 1;
            return Err(Refused::Congested);
        }
        if !endpoint.has_room() {
            self.counters.send_queue_full += 1;
            return Err(Refused::NoRoom);
        }
        Ok(())
    }

    /// Sends a message.
    ///
    /// # Errors
    /// Those of [`may_send`](Self::may_send); the message is returned.
    pub fn send(
        &mut self,
        socket: SocketId,
        message: Outbound<F, O>,
    ) -> Result<(), (Refused, Outbound<F, O>)> {
        if let Err(refused) = self.may_send(socket, message.to) {
            // The host stays connected to the peer, which reports the end of congestion over the connection.
            if let Some(&path) = self.by_address.get(&(message.to.ip(), None)) {
                self.peers[path.index()].is_asked |= refused == Refused::Congested;
                self.wants_connection(path);
            }
            return Err((refused, message));
        }
        self.counters.send_queued += 1;
        let endpoint = self.sockets.get_mut(&socket).expect("the socket exists");
        let source_port = endpoint.port;
        let (address, port) = (message.to.ip(), message.to.port());
        let member = self.members.get(&port).copied();
        let is_own = address == self.address;
        let is_near = self.by_port.contains_key(&port) || port == 0 || self.role == Role::Leader;
        let is_known = port == 0 || self.by_port.contains_key(&port);
        if is_own && is_near && is_known && member.is_none() && message.attached.is_none() {
            let mut queued = Queued {
                from: SocketAddr::new(self.address, source_port),
                length: message.length,
                fragments: message.fragments,
                cookie: message.cookie,
            };
            let to = match port {
                // The answer to a ping has no payload. A peer that answers a ping acknowledges too, so the other processes here
                // are asked to acknowledge.
                0 => {
                    self.ask_others();
                    queued = Queued {
                        from: message.to,
                        length: 0,
                        fragments: Fragments::new(),
                        cookie: None,
                    };
                    source_port
                }
                port => port,
            };
            self.deliver(to, queued);
            return Ok(());
        }
        endpoint.sent += message.length as usize;
        let outgoing = Message {
            socket: Some(socket),
            length: message.length,
            fragments: message.fragments,
            attached: message.attached,
            extension: message.cookie.map(Extension::from_cookie),
            is_ack_required: endpoint.sent >= endpoint.options.send_buffer / 2,
            ..Message::header_only(source_port, port)
        };
        match is_own && self.role == Role::Leader && member.is_none() {
            true => self.park(address, outgoing),
            false => self.enqueue(address, member.filter(|_| is_own), outgoing),
        }
        Ok(())
    }

    /// Keeps a message until a process announces its port, or the port turns out to be free.
    fn park(&mut self, address: IpAddr, mut message: Message<F, O>) {
        // The leader does not have the socket of this message: it is acknowledged only once another process has it.
        message.is_ack_required = true;
        let port = message.destination_port;
        let waiting = self.waiting.entry(port).or_insert_with(|| {
            self.actions.push_back(Action::FindOwner(port));
            Waiting {
                until: None,
                asks_at: Duration::ZERO,
                messages: Vec::new(),
            }
        });
        waiting.messages.push(Parked { address, message });
    }

    /// No process has the port: drops the messages that wait for it.
    pub fn handle_port_free(&mut self, port: u16) {
        let Some(waiting) = self.waiting.remove(&port) else {
            return;
        };
        for Parked { mut message, .. } in waiting.messages {
            self.counters.recv_drop_no_sock += 1;
            if let Some(origin) = message.origin.take() {
                self.settled(origin);
            }
            if let Some(socket) = message.socket.take() {
                self.freed(socket, port, message.length);
            }
        }
    }

    /// A member has the port: sends it the messages that wait, before any later one.
    fn handle_owner(&mut self, port: u16, member: u16) {
        self.members.insert(port, member);
        let waiting = self.waiting.remove(&port);
        let messages = waiting.into_iter().flat_map(|waiting| waiting.messages);
        for Parked { address, message } in messages {
            self.enqueue_for_member(address, member, message);
        }
    }

    /// Queues a message for a member. If the peer's host has restarted, a message before it reports that to the member.
    fn enqueue_for_member(&mut self, address: IpAddr, member: u16, message: Message<F, O>) {
        let peer = self.by_address.get(&(address, None));
        let generation = peer.map_or(0, |peer| self.peers[peer.index()].generation);
        let path = self.path_to(address, Some(member));
        let told = &mut self.peers[path.index()].told_generation;
        if std::mem::replace(told, generation) != generation && generation != 0 {
            let news = Message {
                extension: Some(Extension::Generation(generation)),
                ..Message::header_only(NO_PORT, PROBE_PORT)
            };
            self.enqueue(address, Some(member), news);
        }
        self.enqueue(address, Some(member), message);
    }

    /// Asks the other processes at this address to acknowledge the messages that were sent to them.
    fn ask_others(&mut self) {
        for number in 0..self.peers.len() {
            let Peer {
                address,
                member,
                ref path,
                ..
            } = self.peers[number];
            if address == self.address && path.waits_unasked() {
                let question = Message {
                    is_ack_required: true,
                    ..Message::header_only(NO_PORT, PROBE_PORT)
                };
                self.enqueue(address, member, question);
            }
        }
    }

    fn deliver(&mut self, port: u16, message: Queued<F>) {
        let Some(&id) = self.by_port.get(&port) else {
            self.counters.recv_drop_no_sock += 1;
            return;
        };
        let endpoint = self.sockets.get_mut(&id).expect("each port has a socket");
        self.held += held(&message.fragments);
        self.counters.recv_queued += 1;
        endpoint.push(message);
        self.actions.push_back(Action::Wake(id));
        self.congestion_may_change(id);
    }

    fn congestion_may_change(&mut self, id: SocketId) {
        let Some(endpoint) = self.sockets.get_mut(&id) else {
            return;
        };
        if !endpoint.congestion_changes() {
            return;
        }
        match endpoint.is_congested {
            true => self.map.set(endpoint.port),
            false => self.map.clear(endpoint.port),
        }
        self.tell_congestion();
    }

    /// Reports that ports of this address became congested or free: to every peer, and to every own socket, because it may send
    /// to them.
    fn tell_congestion(&mut self) {
        self.exported = self.map.clone();
        for peer in self.peers.iter().filter(|peer| peer.member.is_some()) {
            self.exported.merge(&peer.member_map);
        }
        for number in 0..self.peers.len() {
            let is_of_address =
                self.peers[number].member.is_none() || self.peers[number].address == self.address;
            if is_of_address {
                self.map_is_due(PathId(number as u32));
            }
        }
        self.congestion_changed(ALL_GROUPS);
    }

    fn map_is_due(&mut self, path: PathId) {
        let path_state = self.path_mut(path);
        if path_state.state == PathState::Up {
            path_state.is_map_due = true;
            self.counters.cong_update_queued += 1;
            self.is_ready(path);
        }
    }

    fn congestion_changed(&mut self, groups: u64) {
        self.generation += 1;
        for (&id, endpoint) in &mut self.sockets {
            if !endpoint.options.congestion_monitor || endpoint.ports_freed(groups) {
                self.actions.push_back(Action::Wake(id));
            }
        }
    }

    /// Takes what a socket receives next: at most `most_statuses` statuses and freed ports come before messages.
    /// [`peek`](Self::peek) leaves a message in the queue.
    pub fn receive(&mut self, socket: SocketId, most_statuses: usize) -> Option<Inbound<F>> {
        let endpoint = self.sockets.get_mut(&socket)?;
        let statuses = endpoint.take_statuses(most_statuses);
        if !statuses.is_empty() {
            return Some(Inbound::Statuses(statuses));
        }
        if let Some(freed) = endpoint.take_freed() {
            return Some(Inbound::Congestion(freed));
        }
        let message = endpoint.pop()?;
        self.held -= held(&message.fragments);
        self.counters.recv_delivered += 1;
        self.congestion_may_change(socket);
        Some(Inbound::Message(message))
    }

    /// The number of messages of a socket that were given up since the last call. Each may have arrived or not.
    pub fn take_undelivered(&mut self, socket: SocketId) -> u64 {
        let endpoint = self.sockets.get_mut(&socket);
        endpoint.map_or(0, |endpoint| std::mem::take(&mut endpoint.undelivered))
    }

    /// The next message, which stays in the queue.
    pub fn peek(&self, socket: SocketId) -> Option<&Queued<F>> {
        self.sockets.get(&socket)?.front()
    }

    /// Gives up the unacknowledged messages of a socket to a destination, or to all. Returns the path and the number of each
    /// request that has to complete before the memory of operations is free. A connection ends if its requests have not completed
    /// after the socket's [`patience`](SocketOptions::patience).
    pub fn cancel(
        &mut self,
        now: Duration,
        socket: SocketId,
        to: Option<SocketAddr>,
    ) -> Vec<(PathId, u64)> {
        self.cancel_waiting(socket, to);
        let mut pending = Vec::new();
        let endpoint = self.sockets.get(&socket);
        let patience = endpoint.map_or(Duration::ZERO, |endpoint| endpoint.options.patience);
        for number in 0..self.peers.len() {
            let peer = &mut self.peers[number];
            if to.is_some_and(|to| to.ip() != peer.address) {
                continue;
            }
            let last = peer.path.cancel(socket, to.map(|to| to.port()));
            if last > peer.path.completed() {
                peer.awaited.push((last, now.saturating_add(patience)));
                pending.push((PathId(number as u32), last));
            }
            self.settle(PathId(number as u32));
        }
        pending
    }

    fn cancel_waiting(&mut self, socket: SocketId, to: Option<SocketAddr>) {
        let mut freed = Vec::new();
        for (&port, waiting) in &mut self.waiting {
            let is_meant = |one: &mut Parked<F, O>| {
                let is_there = to.is_none_or(|to| to == SocketAddr::new(one.address, port));
                one.message.socket == Some(socket) && is_there
            };
            let given_up = waiting.messages.extract_if(.., is_meant);
            freed.extend(given_up.map(|one| (port, one.message.length)));
        }
        for (port, length) in freed {
            self.freed(socket, port, length);
        }
    }

    /// The number of the attempt to connect a path, if one is in progress.
    pub fn attempt(&self, path: PathId) -> Option<u32> {
        let path = self.path(path);
        (path.state == PathState::Connecting).then_some(path.epoch)
    }

    /// Whether a path is connected, or is connecting.
    pub fn is_connected(&self, path: PathId) -> bool {
        matches!(self.path(path).state, PathState::Up | PathState::Connecting)
    }

    /// Whether the requests of a path up to this one are complete.
    pub fn is_completed(&self, path: PathId, request: u64) -> bool {
        self.path(path).completed() >= request
    }

    fn path(&self, path: PathId) -> &Path<F, O> {
        &self.peers[path.index()].path
    }

    fn path_mut(&mut self, path: PathId) -> &mut Path<F, O> {
        &mut self.peers[path.index()].path
    }

    fn path_to(&mut self, address: IpAddr, member: Option<u16>) -> PathId {
        if let Some(&known) = self.by_address.get(&(address, member)) {
            return known;
        }
        let idle = match self.peers.len() < MOST_PEERS {
            true => None,
            false => self.longest_idle(),
        };
        let epoch = idle.map_or(0, |idle| self.path(idle).epoch + 1);
        let mut path = Path::new(self.limits.send_requests, self.first_sequence, epoch);
        // The peer answers the pings of a member, so the leader forwards them.
        path.answers_pings = member.is_none();
        let peer = Peer {
            address,
            member,
            path,
            map: CongestionMap::new(),
            member_map: CongestionMap::new(),
            is_absent: false,
            awaited: Vec::new(),
            is_asked: false,
            leader: None,
            successor: None,
            delivered: None,
            generation: 0,
            told_generation: 0,
            used: self.ends,
            version: Version::V4_1,
            is_ready: false,
        };
        let number = idle.unwrap_or(PathId(self.peers.len() as u32));
        match self.peers.get_mut(number.index()) {
            Some(place) => {
                let before = std::mem::replace(place, peer);
                self.by_address.remove(&(before.address, before.member));
            }
            None => self.peers.push(peer),
        }
        self.by_address.insert((address, member), number);
        number
    }

    /// The idle peer that was used least recently.
    fn longest_idle(&self) -> Option<PathId> {
        let peers = (0..).map(PathId).zip(&self.peers);
        let idle = peers.filter(|(_, peer)| {
            let is_remote = peer.address != self.address && peer.member.is_none();
            is_remote && peer.path.is_idle() && !peer.is_ready && !peer.is_asked
        });
        let longest = idle.min_by_key(|(_, peer)| peer.used);
        longest.map(|(number, _)| number)
    }

    fn is_ready(&mut self, path: PathId) {
        let peer = &mut self.peers[path.index()];
        if !std::mem::replace(&mut peer.is_ready, true) {
            self.ready.push_back(path);
        }
    }

    /// Takes a path that may have something to post.
    pub fn next_ready(&mut self) -> Option<PathId> {
        let path = self.ready.pop_front()?;
        self.peers[path.index()].is_ready = false;
        Some(path)
    }

    /// The request that a path wants to post next.
    pub fn poll_transmit(&mut self, path: PathId) -> Option<Transmit<'_, F, O>> {
        let peer = &self.peers[path.index()];
        let is_own = peer.address == self.address;
        let remote = self.by_address.get(&(peer.address, None)).copied();
        match (self.role, peer.member, remote) {
            // A member gets the peer's congestion map.
            (_, Some(_), Some(remote)) if !is_own => {
                let both = [path.index(), remote.index()];
                let [peer, remote] = self.peers.get_disjoint_mut(both).ok()?;
                peer.path.poll_transmit(&remote.map)
            }
            (_, Some(_), None) if !is_own => {
                self.peers[path.index()].path.poll_transmit(&self.blank)
            }
            (Role::Leader, ..) => self.peers[path.index()].path.poll_transmit(&self.exported),
            (Role::Member(_), ..) => self.peers[path.index()].path.poll_transmit(&self.map),
        }
    }

    /// Takes the next action for the driver.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Reports to the sockets what [`poll_transmit`](Self::poll_transmit) has ended, such as operations that are not tried again.
    /// The driver calls it when a path has nothing more to post.
    pub fn settle(&mut self, path: PathId) {
        while let Some(event) = self.path_mut(path).events.pop_front() {
            self.handle_event(path, event);
        }
    }

    fn handle_event(&mut self, path: PathId, event: Event<F>) {
        match event {
            Event::Arrived(message) => self.handle_arrived(path, message),
            Event::Generation(generation) => {
                // A leader learns the generation from the peer itself.
                if let Role::Member(_) = self.role {
                    self.peers[path.index()].note_generation(generation);
                }
            }
            Event::Map(fragments) => self.handle_map(path, &fragments),
            Event::Freed {
                socket,
                port,
                bytes,
            } => {
                self.freed(socket, port, bytes);
            }
            Event::Settled(origin) => self.settled(origin),
            Event::Undelivered(socket) => {
                if let Some(endpoint) = self.sockets.get_mut(&socket) {
                    endpoint.undelivered += 1;
                    self.actions.push_back(Action::Wake(socket));
                }
            }
            Event::Ended {
                socket,
                user_token,
                status,
            } => {
                if let Some(endpoint) = self.sockets.get_mut(&socket) {
                    endpoint.push_status(RdmaStatus { user_token, status });
                    self.actions.push_back(Action::Wake(socket));
                }
            }
        }
    }

    fn freed(&mut self, socket: SocketId, port: u16, bytes: u32) {
        if let Some(endpoint) = self.sockets.get_mut(&socket) {
            endpoint.is_announced |= port == PROBE_PORT;
            endpoint.sent -= bytes as usize;
            self.actions.push_back(Action::Wake(socket));
        }
    }

    fn settled(&mut self, origin: Origin) {
        self.held -= origin.held;
        self.path_mut(origin.path).settled(origin);
        self.is_ready(origin.path);
    }

    fn handle_arrived(&mut self, path: PathId, message: Arrived<F>) {
        let Peer {
            address, member, ..
        } = self.peers[path.index()];
        let port = message.destination_port;
        let is_own = address == self.address;
        match (member, self.members.get(&port)) {
            (Some(member), _) if is_own && port == PROBE_PORT => {
                self.handle_announced(member, &message)
            }
            // A message of a member for the peer.
            (Some(member), _) if !is_own => {
                self.handle_owner(message.source_port, member);
                let outgoing = self.passed_on(path, message);
                self.enqueue(address, None, outgoing);
            }
            // A message for a socket of a member.
            (_, Some(&member)) => {
                let outgoing = self.passed_on(path, message);
                self.enqueue_for_member(address, member, outgoing);
            }
            _ if self.role != Role::Leader
                || self.by_port.contains_key(&port)
                || port <= PROBE_PORT =>
            {
                self.receive_arrived(path, message);
            }
            // Another process may have the port without having announced it yet.
            _ => {
                let outgoing = self.passed_on(path, message);
                self.park(address, outgoing);
            }
        }
    }

    /// A member announces that it has a port, or that it no longer has it.
    fn handle_announced(&mut self, member: u16, message: &Arrived<F>) {
        let has_port = message.extensions.iter().next() == Some(Extension::Paths(HAS_PORT));
        if has_port {
            self.handle_owner(message.source_port, member);
        } else if self.members.get(&message.source_port) == Some(&member) {
            self.members.remove(&message.source_port);
        }
    }

    /// The message to forward for one that has arrived.
    fn passed_on(&mut self, path: PathId, message: Arrived<F>) -> Message<F, O> {
        let Peer {
            address,
            member,
            path: ref mut from,
            ..
        } = self.peers[path.index()];
        from.hold(message.sequence);
        let origin = Origin {
            path,
            numbering: from.numbering,
            sequence: message.sequence,
            held: held(&message.fragments),
        };
        self.held += origin.held;
        let is_own = address == self.address;
        let is_of_peer = !is_own && member.is_none();
        let passed = Extension::Passed {
            sequence: message.sequence,
            // The previous leader may already have forwarded a message that is retransmitted.
            again: message.is_retransmitted,
        };
        let mut extensions = message.extensions.iter();
        Message {
            origin: Some(origin),
            length: message.length,
            fragments: message.fragments,
            extension: extensions.find(|extension| extension.cookie().is_some()),
            passed: is_of_peer.then_some(passed),
            // The next process acknowledges each message, because the peer may ask for an acknowledge after all were forwarded.
            is_ack_required: message.is_ack_required || is_own || is_of_peer,
            ..Message::header_only(message.source_port, message.destination_port)
        }
    }

    fn receive_arrived(&mut self, path: PathId, message: Arrived<F>) {
        let peer = &mut self.peers[path.index()];
        let from = peer.address;
        let passed = message
            .extensions
            .iter()
            .find_map(|extension| match extension {
                Extension::Passed { sequence, again } => Some((sequence, again)),
                _ => None,
            });
        // A retransmitted message may have been delivered through another leader, or before this process became the leader.
        let (sequence, again) = match (self.role, passed) {
            (Role::Member(_), Some(passed)) => passed,
            _ => (message.sequence, message.is_retransmitted),
        };
        if from != self.address {
            if again && peer.delivered.is_some_and(|last| !is_after(sequence, last)) {
                return;
            }
            peer.delivered = Some(sequence);
        }
        let mut cookie = None;
        for extension in message.extensions.iter() {
            match extension {
                Extension::Rdma { rkey } => {
                    let socket = self.by_port.get(&message.destination_port);
                    let used = socket.map(|&socket| Action::Used { socket, rkey });
                    self.actions.extend(used);
                }
                told => cookie = told.cookie().or(cookie),
            }
        }
        self.deliver(
            message.destination_port,
            Queued {
                from: SocketAddr::new(from, message.source_port),
                length: message.length,
                fragments: message.fragments,
                cookie,
            },
        );
    }

    fn handle_map(&mut self, path: PathId, fragments: &Fragments<F>) {
        let mut bytes = [0; 2 * FRAGMENT];
        for (fragment, into) in fragments.iter().zip(bytes.chunks_exact_mut(FRAGMENT)) {
            fragment.copy_to(into);
        }
        self.counters.cong_update_received += 1;
        let Peer {
            address, member, ..
        } = self.peers[path.index()];
        if member.is_some() {
            self.peers[path.index()].member_map.replace(&bytes);
            return self.tell_congestion();
        }
        let peer = &mut self.peers[path.index()];
        let freed = peer.map.replace(&bytes);
        peer.is_asked &= bytes.iter().any(|byte| *byte != 0);
        for number in 0..self.peers.len() {
            let peer = &self.peers[number];
            if peer.member.is_some() && peer.address == address {
                self.map_is_due(PathId(number as u32));
            }
        }
        self.congestion_changed(freed);
    }

    /// Handles a fragment that has arrived on a path's queue pair: `header` is its first bytes, `length` the number of bytes
    /// after them.
    ///
    /// # Errors
    /// Why the fragment is invalid. The connection ends.
    pub fn handle_fragment(
        &mut self,
        path: PathId,
        header: &[u8],
        length: usize,
        fragment: F,
    ) -> Result<(), ProtocolError> {
        let has_room = self.held <= self.limits.max_memory;
        let has_refused = self.path(path).has_refused;
        let outcome = match Header::parse(header) {
            // The peer will retransmit this fragment together with the refused one, but its acknowledge counts now.
            Ok(header) if has_refused => {
                self.path_mut(path).handle_ack(header.ack);
                Ok(())
            }
            _ if has_refused => Ok(()),
            // An acknowledge takes no memory and may free some; a congestion map takes memory only for a short time.
            Ok(header) if !has_room && !header.is_ack_only(length) && !header.is_map() => {
                self.path_mut(path).handle_ack(header.ack);
                Err(ProtocolError::Memory)
            }
            Ok(header) => self
                .path_mut(path)
                .handle_fragment(&header, length, fragment),
            Err(_) => {
                self.counters.recv_drop_bad_checksum += 1;
                Err(ProtocolError::Header)
            }
        };
        self.settle(path);
        self.is_ready(path);
        if outcome.is_err() {
            self.path_mut(path).has_refused = true;
            self.handle_lost(path);
        }
        outcome
    }

    /// Bytes of memory for messages that wait in sockets or to be forwarded.
    pub fn held(&self) -> usize {
        self.held
    }

    /// All requests of a path up to this one are complete.
    pub fn handle_completion(&mut self, path: PathId, request: u64) {
        self.path_mut(path).handle_completion(request);
        self.settle(path);
        self.is_ready(path);
    }

    /// A request has failed, and not because of an earlier one. The connection ends.
    pub fn handle_failure(&mut self, path: PathId, request: u64, status: OperationStatus) {
        self.path_mut(path).handle_failure(request, status);
        self.settle(path);
        self.handle_lost(path);
    }

    /// This many further receives were posted on a path's queue pair.
    pub fn handle_posted_receives(&mut self, path: PathId, receives: u32) {
        self.path_mut(path).posted_receives(receives);
        self.is_ready(path);
    }

    /// Answers the connection request of a peer.
    pub fn handle_request(&mut self, asked: &ConnectData) -> Answer {
        let lacks_credits = asked.credit == 0 && self.limits.flow_control == FlowControl::Required;
        let is_own = asked.source == self.address;
        if asked.destination != self.address || is_own || lacks_credits {
            return Answer::Refuse;
        }
        self.answer(asked, asked.source, None)
    }

    /// Answers the connection request of another process at the own address: of a member that wants to reach its destination, or
    /// of the leader, on behalf of a source that wants to reach this process.
    pub fn handle_request_of_process(&mut self, asked: &ConnectData) -> Answer {
        match self.role {
            Role::Leader if asked.source == self.address && asked.member != 0 => {
                self.answer(asked, asked.destination, Some(asked.member))
            }
            Role::Member(_) if asked.destination == self.address => {
                self.answer(asked, asked.source, None)
            }
            _ => Answer::Refuse,
        }
    }

    fn answer(&mut self, asked: &ConnectData, peer: IpAddr, member: Option<u16>) -> Answer {
        let key = (peer, member);
        let known = self.by_address.get(&key).copied();
        // Both sides have sent a request: both refuse, and try again after random times. A restarted peer is accepted: it may never
        // receive the request, which was sent to the process before it.
        let has_asked = known.is_some_and(|path| {
            let path = self.path(path);
            path.state == PathState::Connecting && !path.is_restart(asked.incarnation)
        });
        let has_place =
            known.is_some() || self.peers.len() < MOST_PEERS || self.longest_idle().is_some();
        // A member that becomes the leader receives requests that it has sent to the old leader.
        let is_from_itself = asked.incarnation == self.incarnation;
        let (Some(version), false, true) = (asked.agreed(), has_asked || is_from_itself, has_place)
        else {
            return Answer::Refuse;
        };
        self.make_way(key);
        let arrival = ArrivalId(self.next_arrival);
        self.next_arrival += 1;
        let incarnation = asked.incarnation;
        self.arrivals.insert(arrival, Asked { key, incarnation });
        let credit = match asked.credit {
            0 => 0,
            _ => self.limits.first_receives,
        };
        Answer::Accept {
            arrival,
            data: self.connect_data(key, version, credit),
        }
    }

    /// Withdraws the oldest accepted request if there are too many, of this peer or in total.
    fn make_way(&mut self, key: (IpAddr, Option<u16>)) {
        let is_its = |(_, asked): &(_, &Asked)| asked.key == key;
        let of_one = self.arrivals.iter().filter(is_its).count();
        let oldest = match of_one >= MOST_ARRIVALS_OF_ONE {
            true => self.arrivals.iter().find(is_its),
            false if self.arrivals.len() >= MOST_ARRIVALS => self.arrivals.first_key_value(),
            false => None,
        };
        if let Some((&oldest, _)) = oldest {
            self.arrivals.remove(&oldest);
            self.actions.push_back(Action::Withdraw(oldest));
        }
    }

    /// Whether an accepted request is still wanted.
    pub fn is_awaited(&self, arrival: ArrivalId) -> bool {
        self.arrivals.contains_key(&arrival)
    }

    /// The peer has completed the connection that it requested. Returns the path that has the connection from now on; `None` if
    /// the connection has to wait until another has ended ([`Action::Adopt`]), or was withdrawn.
    pub fn handle_accepted(&mut self, arrival: ArrivalId, told: &ConnectData) -> Option<PathId> {
        let (peer, member) = self.arrivals.remove(&arrival)?.key;
        let path = self.path_to(peer, member);
        if let PathState::Down { .. } = self.path(path).state {
            self.path_mut(path).state = PathState::Connecting;
            self.handle_connected(path, told);
            return Some(path);
        }
        let successor = &mut self.peers[path.index()].successor;
        if let Some((before, _)) = successor.replace((arrival, *told)) {
            self.actions.push_back(Action::Withdraw(before));
        }
        self.handle_lost(path);
        None
    }

    /// The peer has not completed the connection that it requested, or the connection ended before a path had it.
    pub fn handle_withdrawn(&mut self, arrival: ArrivalId) {
        self.arrivals.remove(&arrival);
        for peer in &mut self.peers {
            peer.successor
                .take_if(|(successor, _)| *successor == arrival);
        }
    }

    fn connect_data(
        &self,
        (peer, member): (IpAddr, Option<u16>),
        version: Version,
        credit: u32,
    ) -> ConnectData {
        // To the member, the leader appears as the peer.
        let (source, destination) = match member {
            Some(_) => (peer, self.address),
            None => (self.address, peer),
        };
        ConnectData {
            source,
            destination,
            version,
            minor_mask: MINORS,
            tos: 0,
            member: match self.role {
                Role::Leader if member.is_some() => self.identity,
                Role::Leader => 0,
                Role::Member(member) => member,
            },
            ack_sequence: 0,
            credit,
            incarnation: self.incarnation,
        }
    }

    /// A path is connected. `told` is the private data of the peer, from its request or its reply.
    pub fn handle_connected(&mut self, path: PathId, told: &ConnectData) {
        // The private data that the peer got counts all receives that are posted.
        let credits = (told.credit != 0).then(|| Credits::new(told.credit, 0));
        let peer = &mut self.peers[path.index()];
        let leader = match self.role {
            Role::Leader => self.identity,
            Role::Member(_) => told.member,
        };
        peer.path.meet(told.incarnation);
        if self.role == Role::Leader && peer.member.is_none() {
            peer.note_generation(told.incarnation);
        }
        let before = peer.leader.replace(leader);
        if let Some(before) = before.filter(|before| *before != leader) {
            // Messages that another leader may have forwarded are not forwarded again, because a message must arrive at most
            // once.
            peer.path.forget_sent();
            // Other paths may not have noticed the change yet.
            self.handle_leader_gone(before);
        }
        let peer = &mut self.peers[path.index()];
        peer.path.connected(told.ack_sequence, credits);
        self.counters.cong_update_queued += 1;
        // A new leader does not know the sockets of its members.
        if peer.address == self.address && peer.member.is_none() {
            let sockets: Vec<_> = self.sockets.keys().copied().collect();
            sockets.into_iter().for_each(|socket| self.announce(socket));
        }
        self.settle(path);
        self.is_ready(path);
        if told.credit == 0 && self.limits.flow_control == FlowControl::Required {
            self.handle_lost(path);
        }
    }

    /// The peer has refused a connection, perhaps because of the proposed version: the next request proposes the older one.
    pub fn handle_refused(&mut self, path: PathId) {
        self.peers[path.index()].version = Version::V3_1;
    }

    /// No process listens where the connection of a path was requested: a member there has ended.
    pub fn handle_absent(&mut self, path: PathId) {
        self.peers[path.index()].is_absent = true;
    }

    /// The connection of a path has ended, or has to end.
    pub fn handle_lost(&mut self, path: PathId) {
        let state = &mut self.path_mut(path).state;
        if matches!(state, PathState::Up | PathState::Connecting) {
            *state = PathState::Ending;
            self.actions.push_back(Action::End(path));
        }
    }

    /// A path has neither a connection nor a queue pair now.
    pub fn handle_gone(&mut self, now: Duration, path: PathId) {
        self.counters.conn_reset += 1;
        let peer = &mut self.peers[path.index()];
        let is_absent = std::mem::take(&mut peer.is_absent);
        peer.path.reset();
        let (address, member) = (peer.address, peer.member);
        let is_wanted = match member {
            // The connection to a member can also end while the member runs. Its messages are given up only if it has ended.
            Some(_) if is_absent || peer.path.has_been_tried_long() => {
                self.handle_member_gone(member);
                false
            }
            Some(_) => true,
            // A leader does not need the path to a leader, which `set_role` has removed.
            None => self.by_address.contains_key(&(address, None)),
        };
        self.ends += 1;
        let peer = &mut self.peers[path.index()];
        peer.used = self.ends;
        if let Some((arrival, told)) = peer.successor.take() {
            peer.path.state = PathState::Connecting;
            self.actions.push_back(Action::Adopt {
                path,
                arrival,
                told,
            });
            return self.handle_timeout(now);
        }
        // The connections between processes of one address are kept up also while they are idle.
        let is_asked = peer.is_asked || address == self.address;
        let due = match is_wanted {
            true => peer.path.next_attempt(now, &mut self.random, is_asked),
            false => None,
        };
        peer.path.state = PathState::Down { due };
        self.handle_timeout(now);
    }

    /// A member has ended. If it connects again, it announces its sockets again.
    fn handle_member_gone(&mut self, member: Option<u16>) {
        self.members.retain(|_, of| Some(*of) != member);
        for number in 0..self.peers.len() {
            let peer = &mut self.peers[number];
            if peer.member == member {
                peer.told_generation = 0;
                peer.member_map = CongestionMap::new();
                peer.path.abandon();
                self.handle_lost(PathId(number as u32));
                self.settle(PathId(number as u32));
            }
        }
        self.tell_congestion();
    }

    /// The leader with this number ([`ConnectData::member`]) has gone, and with it all connections to it.
    pub fn handle_leader_gone(&mut self, leader: u16) {
        for number in 0..self.peers.len() {
            if self.peers[number].leader == Some(leader) {
                self.handle_lost(PathId(number as u32));
            }
        }
    }

    /// Whether the peer, which has not restarted, has requested a connection that it only has to complete. A second connection would
    /// replace that one, and messages that are outstanding on the first would be lost.
    fn is_coming(&self, path: PathId) -> bool {
        let peer = &self.peers[path.index()];
        let (key, incarnation) = ((peer.address, peer.member), peer.path.incarnation);
        let is_its = |asked: &Asked| asked.key == key && asked.incarnation == incarnation;
        incarnation != 0 && self.arrivals.values().any(is_its)
    }

    fn begin_connection(&mut self, path: PathId) {
        let peer = &mut self.peers[path.index()];
        peer.path.state = PathState::Connecting;
        let to = match (self.role, peer.member) {
            (Role::Leader, None) => Process::Peer,
            (Role::Leader, Some(member)) => Process::Member(member),
            (Role::Member(_), _) => Process::Leader,
        };
        let (key, version) = ((peer.address, peer.member), peer.version);
        let credit = match self.limits.flow_control {
            FlowControl::Asked | FlowControl::Required => self.limits.first_receives,
            FlowControl::Accepted => 0,
        };
        let data = self.connect_data(key, version, credit);
        self.actions.push_back(Action::Connect { path, to, data });
    }

    /// The latest time at which [`handle_timeout`](Self::handle_timeout) must be called.
    pub fn next_due(&self) -> Option<Duration> {
        let due = |peer: &Peer<F, O>| match peer.path.state {
            PathState::Down { due } => due,
            PathState::Up => peer.completion_due(),
            PathState::Connecting | PathState::Ending => None,
        };
        let paths = self.peers.iter().filter_map(due);
        let owners = self.waiting.values().map(|waiting| waiting.asks_at);
        paths.chain(owners).min()
    }

    /// Handles everything that is due at `now`.
    pub fn handle_timeout(&mut self, now: Duration) {
        for number in 0..self.peers.len() {
            let (path, peer) = (PathId(number as u32), &mut self.peers[number]);
            match peer.path.state {
                PathState::Down { due: Some(due) } if due <= now => match self.is_coming(path) {
                    true => {
                        let due = Some(now + CHECK_AGAIN);
                        self.path_mut(path).state = PathState::Down { due };
                    }
                    false => self.begin_connection(path),
                },
                PathState::Up => {
                    let completed = peer.path.completed();
                    peer.awaited.retain(|(request, _)| *request > completed);
                    if peer.completion_due().is_some_and(|due| due <= now) {
                        self.handle_lost(path);
                    }
                }
                _ => {}
            }
        }
        self.ask_for_owners(now);
    }

    fn ask_for_owners(&mut self, now: Duration) {
        let mut given_up = Vec::new();
        for (&port, waiting) in &mut self.waiting {
            let until = *waiting.until.get_or_insert(now + WAIT_FOR_OWNER);
            if until <= now {
                given_up.push(port);
            } else if waiting.asks_at <= now {
                waiting.asks_at = now + ASK_AGAIN;
                self.actions.push_back(Action::FindOwner(port));
            }
        }
        for port in given_up {
            self.handle_port_free(port);
        }
    }
}

/// Whether sequence number `one` comes after `other`. Compares the lower 48 bits, because a leader forwards only those.
const fn is_after(one: u64, other: u64) -> bool {
    let distance = one.wrapping_sub(other) << 16;
    distance != 0 && distance <= 1 << 63
}
