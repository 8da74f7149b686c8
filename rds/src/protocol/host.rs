//! One local address: its sockets by port, its paths by peer, and the congestion of local and remote ports.

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
    Arrived, Attached, Fragment, Fragments, HAS_PORT, Message, NO_PORT, Operation, OperationStatus,
    Origin, PROBE_PORT, PathId, SocketId, held,
};
use super::path::{Event, Path, PathState, ProtocolError, Transmit};

/// The minor versions of RDS protocol version 4 that this side accepts, as a bit mask: 4.0 and 4.1.
const MINORS: u16 = 3;

/// The mask of all 64 groups of ports.
const ALL_GROUPS: u64 = u64::MAX;

/// The most accepted connection requests whose peers have not yet completed the connection: in total, and of one peer.
/// Above that, a new request replaces the oldest.
const MOST_ARRIVALS: usize = 64;
const MOST_ARRIVALS_OF_ONE: usize = 16;

/// The size of the table of paths at which a new path replaces the idle one that was used least recently. A connection
/// request of a new peer is refused if no path is idle.
const MOST_PEERS: usize = 1024;

/// The sequence number of the first message of the first path. The path's introduction has the number before, and 0 means
/// in an acknowledgement that no message has arrived.
const FIRST_SEQUENCE: u64 = 2;

/// How often a path without a connection checks whether a connection that its peer has requested, and this side has
/// accepted, is still being completed. Meanwhile the path requests no connection itself.
const CHECK_AGAIN: Duration = Duration::from_millis(100);

/// How long a path without a connection waits in all for one that its peer has requested. The connection manager repeats
/// a lost message within this time. Requests that are never completed may be forged, and must not keep the path down.
const WAIT_FOR_PEER: Duration = Duration::from_secs(2);

/// How often the leader, the process that peers connect to, asks its driver which process of the address has a port, and
/// how long it keeps the messages for that port meanwhile.
const ASK_AGAIN: Duration = Duration::from_millis(50);
const WAIT_FOR_OWNER: Duration = Duration::from_secs(10);

/// The limits of a [`Host`], per path where a limit says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLimits {
    /// The send work requests that the send queue of one path's QP holds.
    pub send_requests: u32,
    /// The receives that a path posts when its connection is established.
    pub first_receives: u32,
    /// The most receives that a path keeps posted: a busy path posts more than at first, up to this number.
    pub receives: u32,
    /// The most bytes of memory for messages that wait in sockets or to be forwarded. Above that, an arriving message ends
    /// the connection, so that the peer retransmits it later.
    pub max_memory: usize,
    /// Whether the connections of this host use flow control by credits.
    pub flow_control: FlowControl,
}

/// Whether connections use flow control by credits, where a side sends only as many fragments as its peer has posted
/// receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowControl {
    /// A connection has flow control only if the peer requests it.
    Accepted,
    /// This side requests flow control, and connects without it if the peer does not answer with credits.
    Asked,
    /// This side requests flow control, and refuses or ends a connection whose peer does not support it.
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
    /// Another socket of this process has the port.
    #[error("port {0} is in use")]
    InUse(u16),
    /// Port 1 is reserved for the messages that hosts exchange about themselves.
    #[error("port 1 is reserved")]
    Reserved,
    /// Port 0 (any free port) was requested, but sockets have all ports.
    #[error("every port is in use")]
    Exhausted,
}

/// Why a message cannot be sent now.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Refused {
    /// The unacknowledged bytes of the socket fill its send buffer.
    #[error("the send buffer is full")]
    NoRoom,
    /// The receiver has marked the destination port as congested: more bytes wait in the port's socket than the receive
    /// buffer of that socket allows.
    #[error("the destination is congested")]
    Congested,
}

/// A message that a socket sends.
#[derive(Debug)]
pub struct Outbound<F, O> {
    /// The address and RDS port of the socket to which the message goes.
    pub to: SocketAddr,
    /// Length of the payload, in bytes.
    pub length: u32,
    /// The payload of the message, in fragments.
    pub fragments: Fragments<F>,
    /// An RDMA operation or atomic on the peer's memory, which is posted before the message; `None` for none.
    pub attached: Option<Attached<O>>,
    /// The cookie, key and offset of memory of this process, that the message carries to the peer; `None` for none.
    pub cookie: Option<u64>,
}

/// Something that a socket receives.
#[derive(Debug)]
pub enum Inbound<F> {
    /// A message that has arrived for the socket.
    Message(Queued<F>),
    /// The outcomes of RDMA operations and atomics of this socket.
    Statuses(Vec<RdmaStatus>),
    /// The groups of ports that are no longer congested, as a bit mask by the port modulo 64.
    Congestion(u64),
}

/// The role of this process among the processes that have sockets at the same address. Only one of them can listen on the
/// RDS port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The process that peers connect to. The leader forwards messages between peers and the other processes of the
    /// address, the members.
    Leader,
    /// A process that reaches its peers through the leader. The number is the port on which it listens for connections from
    /// the leader.
    Member(u16),
}

/// An action that a [`Host`] asks its driver to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Request a connection for a path. The driver answers with [`Host::handle_connected`] or [`Host::handle_gone`].
    Connect {
        /// The path that needs the connection.
        path: PathId,
        /// The process to connect to: the peer's, or another one at the own address.
        to: Process,
        /// The private data of the connection request.
        data: ConnectData,
    },
    /// End the connection of the path and destroy its queue pair. The driver answers with [`Host::handle_gone`].
    End(PathId),
    /// Abandon the connection of an accepted request, because no path needs it. No call of the driver follows.
    Withdraw(ArrivalId),
    /// Use the connection of an accepted request for the path, whose previous connection has ended. The driver answers with
    /// [`Host::handle_connected`].
    Adopt {
        /// The path that gets the connection.
        path: PathId,
        /// The accepted connection request.
        arrival: ArrivalId,
        /// The private data of the peer, which the driver passes to [`Host::handle_connected`].
        told: ConnectData,
    },
    /// Find out whether another process at the own address has this port. The driver answers with
    /// [`Host::handle_port_free`] if none has; a process that has it announces it by itself.
    FindOwner(u16),
    /// Wake the waiters of this socket, because its readiness may have changed.
    Wake(SocketId),
    /// A peer has reported that it used memory of this socket by RDMA; memory that was registered for a single use can be
    /// freed.
    Used {
        /// The socket that registered the memory.
        socket: SocketId,
        /// The R_Key of the memory.
        rkey: u32,
    },
}

/// The process that a path is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// The process that listens on the peer's RDS port.
    Peer,
    /// The leader at the own address: the process that peers connect to, and that forwards messages of the others.
    Leader,
    /// Another process at the own address, a member, by the port on which it listens for connections from the leader.
    Member(u16),
}

/// The answer to a connection request, which the driver carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Accept the connection request.
    Accept {
        /// Identifies the accepted connection request. The driver calls [`Host::handle_accepted`] when the peer
        /// completes the connection, or [`Host::handle_withdrawn`] if the peer does not.
        arrival: ArrivalId,
        /// The private data of the connection reply.
        data: ConnectData,
    },
    /// Refuse the connection request.
    Refuse,
}

/// Identifies an accepted connection request. The request does not affect the path to its peer until the peer has completed
/// the connection, because the source of a request can be forged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArrivalId(u64);

/// A message that the leader, the process that peers connect to, keeps because no process of the address has announced the
/// port that the message is for.
#[derive(Debug)]
struct Parked<F, O> {
    address: IpAddr,
    message: Message<F, O>,
}

/// The messages that the leader, the process that peers connect to, keeps until it learns which process of the address has
/// one port.
#[derive(Debug)]
struct Waiting<F, O> {
    /// When the leader drops these messages, if no process has announced the port; `None` until the first call of
    /// `handle_timeout`, which supplies the time.
    until: Option<Duration>,
    asks_at: Duration,
    messages: Vec<Parked<F, O>>,
}

/// A process that is or was the leader of the own address. Its number alone is too short to identify it: if
/// two leaders in succession had the same, messages would be forwarded twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leader {
    /// The number in [`ConnectData::member`].
    number: u16,
    incarnation: u32,
}

#[derive(Debug)]
struct Peer<F, O> {
    address: IpAddr,
    /// Only in the leader, the process that peers connect to: the other process (member) whose messages with `address` go
    /// over this path. `None` for the path to `address` itself, which carries the messages of all processes.
    member: Option<u16>,
    path: Path<F, O>,
    map: CongestionMap,
    /// Only in the leader's paths to members, the other processes of its address: the congested ports of the member.
    member_map: CongestionMap,
    /// Whether no process was listening at the address and port of the path's last connection request.
    is_absent: bool,
    /// The work requests that a cancel or close waits for, each with its number and the time at which this side ends the
    /// connection if the request has not completed.
    awaited: Vec<(u64, Duration)>,
    /// Whether a socket could not send because of congestion and waits for the peer's next congestion map, so that the
    /// path has to stay connected.
    is_asked: bool,
    /// The leader, the process at the own address through which the path was connected last; `None` if the path never was
    /// connected.
    leader: Option<Leader>,
    /// A connection that the peer has completed while the path still had one; the path adopts it as soon as the old one has
    /// ended.
    successor: Option<(ArrivalId, ConnectData)>,
    /// The peer's sequence number of the last message that was delivered to a socket of this process, directly or
    /// forwarded by any leader; `None` if none was delivered. A retransmitted message up to this number is a duplicate.
    delivered: Option<u64>,
    /// The incarnation of the peer whose messages `delivered` counts; 0 if the peer sends no incarnation.
    generation: u32,
    /// Only in the leader's paths to members, the other processes of its address: the peer's incarnation that the leader
    /// last sent to the member.
    told_generation: u32,
    /// Until when the path waits for a connection that the peer has requested itself; `None` if it has not waited since
    /// its last connection.
    waits_until: Option<Duration>,
    /// The value of [`Host`]'s counter `ends` when the last connection of the path ended, by which the least recently used
    /// peer is found.
    used: u64,
    /// The protocol version that the next connection request proposes.
    version: Version,
    is_ready: bool,
}

/// What the host remembers of an accepted connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    /// The peer's address and, in the leader, the other process of its address that reaches the peer through it; together
    /// they select the path.
    key: (IpAddr, Option<u16>),
    /// The random number that the requesting process chose when it started.
    incarnation: u32,
}

/// Event counters of one host, with the names that `rds-info` uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections and connection attempts that ended.
    pub conn_reset: u64,
    /// Fragments that were dropped because their header was invalid or its checksum wrong.
    pub recv_drop_bad_checksum: u64,
    /// Messages that were dropped because no socket has their destination port.
    pub recv_drop_no_sock: u64,
    /// Messages that were queued for a socket to receive.
    pub recv_queued: u64,
    /// Messages that programs have received.
    pub recv_delivered: u64,
    /// Sends that were refused because the send buffer was full.
    pub send_queue_full: u64,
    /// Messages that programs have sent.
    pub send_queued: u64,
    /// Congestion maps that were queued to be sent to peers.
    pub cong_update_queued: u64,
    /// Congestion maps that arrived from peers.
    pub cong_update_received: u64,
    /// Sends that were refused because their destination was congested.
    pub cong_send_error: u64,
}

impl Counters {
    /// The values of the counters, each with the name that `rds-info` prints.
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

/// The observable state of a path, the messages and the connection between this host and one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathInfo {
    /// The address of the peer.
    pub peer: IpAddr,
    /// The state of the connection to the peer.
    pub state: PathState,
    /// The sequence number that the next message to the peer gets.
    pub next_transmit: u64,
    /// The sequence number that is expected of the peer's next message. The peer may skip numbers of messages that it has
    /// given up.
    pub next_receive: u64,
    /// Messages to the peer that were not posted yet.
    pub queued: usize,
    /// Messages that were posted at least in part and that the peer has not acknowledged.
    pub unacknowledged: usize,
}

/// The sockets and paths of one local address in this process: all state of the protocol. It does no I/O; a driver passes
/// inputs to the `handle_` methods and carries out the actions and requests of the `poll_` methods.
#[derive(Debug)]
pub struct Host<F, O> {
    address: IpAddr,
    role: Role,
    /// The random number of this process as the leader of its address, by which the other processes distinguish it from a
    /// previous leader.
    identity: u16,
    /// The random number by which peers recognize that this process has started anew.
    incarnation: u32,
    limits: HostLimits,
    random: SmallRng,
    sockets: BTreeMap<SocketId, Endpoint<F>>,
    by_port: FxHashMap<u16, SocketId>,
    next_socket: u32,
    peers: Vec<Peer<F, O>>,
    by_address: FxHashMap<(IpAddr, Option<u16>), PathId>,
    /// The connection requests of peers that this host has accepted and whose connections the peers have not completed
    /// yet, the oldest first.
    arrivals: BTreeMap<ArrivalId, Asked>,
    next_arrival: u64,
    /// The number of connections that have ended since the start.
    ends: u64,
    /// Only in the leader: the ports of sockets in the other processes (members) of its address, each with the member
    /// that has the port.
    members: FxHashMap<u16, u16>,
    /// The messages that the leader keeps because no process of its address has announced their destination port, by
    /// port.
    waiting: BTreeMap<u16, Waiting<F, O>>,
    /// The congested ports of this process's sockets.
    map: CongestionMap,
    /// Congested ports of this address in all its processes: the map that the leader, the process that peers connect to,
    /// sends to peers.
    exported: CongestionMap,
    /// An empty congestion map. The leader sends it to the other processes of its address in place of the map of a peer
    /// that has not sent one.
    blank: CongestionMap,
    /// Counts the changes of congestion, so that a socket can find out whether there was one since it last checked.
    generation: u64,
    ready: VecDeque<PathId>,
    actions: VecDeque<Action>,
    /// Bytes of memory of the messages that wait in sockets or to be forwarded.
    held: usize,
    /// The sequence number of the first message of each new path. It is higher than those of all replaced paths, because peers
    /// remember the numbers.
    first_sequence: u64,
    counters: Counters,
}

impl<F: Fragment, O: Operation> Peer<F, O> {
    /// Notes the incarnation of the peer that sent the messages which arrive from now on. If the peer has restarted, its
    /// sequence numbers begin anew, so `delivered` is forgotten. Returns whether it has restarted.
    fn note_generation(&mut self, generation: u32) -> bool {
        let known = std::mem::replace(&mut self.generation, generation);
        let has_restarted = known != 0 && known != generation;
        if has_restarted {
            self.delivered = None;
        }
        has_restarted
    }

    /// When this side ends the connection because a request that a cancel or close waits for has not completed; `None` if
    /// none is outstanding.
    fn completion_due(&self) -> Option<Duration> {
        let completed = self.path.completed();
        let awaited = self.awaited.iter();
        let pending = awaited.filter(|(request, _)| *request > completed);
        pending.map(|(_, until)| *until).min()
    }
}

impl<F: Fragment, O: Operation> Host<F, O> {
    /// A host of this local address, without sockets, which takes the process for the leader of its address. `seed`
    /// determines the ports and waiting times that it chooses at random.
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
            first_sequence: FIRST_SEQUENCE,
            counters: Counters::default(),
        }
    }

    /// The limits that the host was created with.
    pub fn limits(&self) -> &HostLimits {
        &self.limits
    }

    /// The paths of this host, each with its state.
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

    /// The addresses of the peers that have not acknowledged all messages of this socket.
    pub fn unacknowledged(&self, socket: SocketId) -> impl Iterator<Item = IpAddr> + '_ {
        let owing = self.peers.iter().filter(move |peer| peer.path.owes(socket));
        let waiting = self.waiting.values().flat_map(|waiting| &waiting.messages);
        let own = waiting.filter(move |one| one.message.socket == Some(socket));
        let own = own.map(|one| one.address);
        owing.map(|peer| peer.address).chain(own)
    }

    /// Has each path acknowledge all messages that have arrived on it, in messages of their own if need be.
    pub fn acknowledge_all(&mut self) {
        for number in 0..self.peers.len() {
            self.peers[number].path.acknowledge_now();
            self.is_ready(PathId(number as u32));
        }
    }

    /// The random number, chosen at the start, by which peers and the other processes of the address recognize that this
    /// process has started anew.
    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Whether this process is the leader of its address, which peers connect to, or a member, which sends through the
    /// leader.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Makes this process the leader of its address or a member. It becomes the leader before it has paths, or takes over
    /// from a leader that has ended: then its paths go to its peers directly from now on, and unacknowledged messages that
    /// its sockets have sent through the old leader count as undelivered.
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

    /// The local address of the host.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The current values of the event counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Checks that no socket of this process has the port, and returns it; for port 0 returns a free port. Does not reserve
    /// the port.
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

    /// Creates a socket at this port; for port 0 a free port is chosen. Returns the socket and its port.
    ///
    /// # Errors
    /// Another socket has the port, the port is reserved, or every port is in use.
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
        // The leader may hold an outdated announcement of a member that had the port before.
        self.members.remove(&port);
        self.announce(id);
        Ok((id, port))
    }

    /// Announces a socket's port to the leader, the process that peers connect to, which then forwards messages for the
    /// port to this process. In the leader itself no message is sent.
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

    /// Whether messages of peers reach the socket. In a process that is not the leader of its address, they do once the
    /// leader has acknowledged the announcement of the socket's port.
    pub fn is_announced(&self, socket: SocketId) -> bool {
        let endpoint = self.sockets.get(&socket);
        endpoint.is_some_and(|endpoint| endpoint.is_announced)
    }

    /// Queues a message on the path to `address`, and requests a connection for the path if it has none.
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

    /// Closes a socket: gives up its unacknowledged messages and drops those that wait to be received. Returns the work
    /// requests that have to complete before the memory of its operations can be reused, as [`cancel`](Self::cancel) does.
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

    /// Access to the options of a socket for changes; `None` if there is no such socket.
    pub fn options_mut(&mut self, socket: SocketId) -> Option<&mut SocketOptions> {
        let endpoint = self.sockets.get_mut(&socket)?;
        Some(&mut endpoint.options)
    }

    /// The readiness of a socket for `poll`. Calling it consumes the report of changed congestion.
    pub fn readiness(&mut self, socket: SocketId) -> Readiness {
        let generation = self.generation;
        let endpoint = self.sockets.get_mut(&socket);
        endpoint.map_or_else(Readiness::default, |one| one.readiness(generation))
    }

    /// The length of the next message that the socket receives, in bytes; `None` if none waits.
    pub fn next_length(&self, socket: SocketId) -> Option<u32> {
        let message = self.sockets.get(&socket)?.front()?;
        Some(message.length)
    }

    /// Checks whether the socket can send a message to this destination now. If the destination is congested, the
    /// congestion monitor will report when it is no longer.
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

    /// Queues a message to its destination, or delivers it at once if the destination is a socket of this process.
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

    /// In the leader, the process that peers connect to: keeps a message until another process of the address announces its
    /// port or the port turns out to be free.
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

    /// Drops the messages that wait for the process that has this port, because the driver found out that no process has
    /// it.
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

    /// In the leader, the process that peers connect to: drops the messages that a peer has sent before it restarted and
    /// that wait for the owner of their port. Their sequence numbers would be confused with the new ones.
    fn drop_parked(&mut self, address: IpAddr) {
        for waiting in self.waiting.values_mut() {
            let of_peer = |one: &mut Parked<F, O>| one.address == address;
            for one in waiting.messages.extract_if(.., of_peer) {
                self.held -= one.message.origin.map_or(0, |origin| origin.held);
            }
        }
    }

    /// In the leader, the process that peers connect to: notes that another process of the address, `member`, has this
    /// port, and sends it the messages that wait for the port, before any later one.
    fn handle_owner(&mut self, port: u16, member: u16) {
        self.members.insert(port, member);
        let waiting = self.waiting.remove(&port);
        let messages = waiting.into_iter().flat_map(|waiting| waiting.messages);
        for Parked { address, message } in messages {
            self.enqueue_for_member(address, member, message);
        }
    }

    /// In the leader, the process that peers connect to: queues a message for another process of the address. If the peer
    /// that sent the message has restarted, queues a report of its new incarnation first, so that the process accepts
    /// sequence numbers that begin anew.
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

    /// Asks the other processes at this address to acknowledge the messages that were sent to them, by an empty message
    /// that requires an acknowledgement.
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

    /// Reports that ports of this address became congested or free: to every peer by a new congestion map, and to the
    /// sockets of this process, because they may send to those ports.
    fn tell_congestion(&mut self) {
        self.exported = self.map.clone();
        // A member sends its map on each of its paths. Only the path of the own address stays connected, so only its map is
        // always the newest.
        let own = self
            .peers
            .iter()
            .filter(|peer| peer.address == self.address);
        for peer in own {
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

    /// Takes the next item that a socket receives: first up to `most_statuses` statuses of operations, then ports that
    /// are no longer congested, then one message. `None` if nothing waits for the socket. [`peek`](Self::peek) leaves a
    /// message in the queue.
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

    /// Takes the number of the socket's messages that were given up without an acknowledgement since the last call. Each of
    /// them may or may not have arrived.
    pub fn take_undelivered(&mut self, socket: SocketId) -> u64 {
        let endpoint = self.sockets.get_mut(&socket);
        endpoint.map_or(0, |endpoint| std::mem::take(&mut endpoint.undelivered))
    }

    /// The next message that the socket receives, which stays in the queue; `None` if none waits.
    pub fn peek(&self, socket: SocketId) -> Option<&Queued<F>> {
        self.sockets.get(&socket)?.front()
    }

    /// Gives up the unacknowledged messages of a socket to one destination, or to all if `to` is `None`. Returns the path
    /// and the number of each work request that has to complete before the memory of operations can be reused. The host
    /// ends a connection whose requests have not completed after the socket's [`patience`](SocketOptions::patience).
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

    /// The number of the current attempt to connect the path; `None` if no attempt is in progress.
    pub fn attempt(&self, path: PathId) -> Option<u32> {
        let path = self.path(path);
        (path.state == PathState::Connecting).then_some(path.epoch)
    }

    /// Whether the path is connected or an attempt to connect it is in progress.
    pub fn is_connected(&self, path: PathId) -> bool {
        matches!(self.path(path).state, PathState::Up | PathState::Connecting)
    }

    /// Whether the work requests of the path are complete up to the one with this number.
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
        let before = idle.map(|idle| self.path(idle));
        let [epoch, numbering] =
            before.map_or([0, 0], |before| [before.epoch + 1, before.numbering + 1]);
        let used = before.map_or(0, |before| before.next_transmit);
        self.first_sequence = self.first_sequence.max(used + 1);
        let mut path = Path::new(self.limits.send_requests, self.first_sequence);
        (path.epoch, path.numbering) = (epoch, numbering);
        // The peer itself answers the pings of a member, so the leader forwards them.
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
            waits_until: None,
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

    /// The idle path whose last connection ended the longest ago; `None` if no path is idle.
    fn longest_idle(&self) -> Option<PathId> {
        let paths = (0..).map(PathId).zip(&self.peers);
        let idle =
            paths.filter(|(_, peer)| peer.path.is_idle() && !peer.is_ready && !peer.is_asked);
        let longest = idle.min_by_key(|(_, peer)| peer.used);
        longest.map(|(number, _)| number)
    }

    fn is_ready(&mut self, path: PathId) {
        let peer = &mut self.peers[path.index()];
        if !std::mem::replace(&mut peer.is_ready, true) {
            self.ready.push_back(path);
        }
    }

    /// Takes a path that may have work requests to post; `None` if no path has any. The driver then calls
    /// [`poll_transmit`](Self::poll_transmit) for the path until that returns `None`.
    pub fn next_ready(&mut self) -> Option<PathId> {
        let path = self.ready.pop_front()?;
        self.peers[path.index()].is_ready = false;
        Some(path)
    }

    /// The next work request that the driver has to post on the path's QP; `None` if the path has nothing to send, or no
    /// room in the send queue or no credits for it.
    pub fn poll_transmit(&mut self, path: PathId) -> Option<Transmit<'_, F, O>> {
        let peer = &self.peers[path.index()];
        let is_own = peer.address == self.address;
        let remote = self.by_address.get(&(peer.address, None)).copied();
        match (self.role, peer.member, remote) {
            // The leader forwards the peer's congestion map to the member.
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

    /// Reports to the sockets the operations and messages that [`poll_transmit`](Self::poll_transmit) or an input has
    /// ended, such as operations that are not retried. The driver calls it when the path has nothing more to post.
    pub fn settle(&mut self, path: PathId) {
        while let Some(event) = self.path_mut(path).events.pop_front() {
            self.handle_event(path, event);
        }
    }

    fn handle_event(&mut self, path: PathId, event: Event<F>) {
        match event {
            Event::Arrived(message) => self.handle_arrived(path, message),
            Event::HasPort(port) => {
                let Peer {
                    address, member, ..
                } = self.peers[path.index()];
                if let Some(member) = member.filter(|_| address == self.address) {
                    self.handle_owner(port, member);
                }
            }
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

    /// In the leader: notes that another process of the address has announced a port, or that it no longer has the port.
    fn handle_announced(&mut self, member: u16, message: &Arrived<F>) {
        let has_port = message.extensions.iter().next() == Some(Extension::Paths(HAS_PORT));
        if has_port {
            self.handle_owner(message.source_port, member);
        } else if self.members.get(&message.source_port) == Some(&member) {
            self.members.remove(&message.source_port);
        }
    }

    /// Turns a message that has arrived into the one that this process, the leader of its address, forwards to the next
    /// process. Its sender gets an acknowledgement only when that process has acknowledged the forwarded message.
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
        let is_short = self.held > self.limits.max_memory / 4;
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
            // A peer acknowledges each message of a member while memory is short, because members wait for that memory.
            is_ack_required: message.is_ack_required || is_own || is_of_peer || is_short,
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

    /// Handles a fragment that has arrived on a path's QP. `header` is the RDS header at its beginning, `length` the number
    /// of payload bytes after that header, and `fragment` holds them.
    ///
    /// # Errors
    /// The fragment is invalid, or there is no memory for it. The host then ends the connection.
    pub fn handle_fragment(
        &mut self,
        path: PathId,
        header: &[u8],
        length: usize,
        fragment: F,
    ) -> Result<(), ProtocolError> {
        let has_room = self.has_room(path);
        let has_refused = self.path(path).has_refused;
        let outcome = match Header::parse(header) {
            // The peer will retransmit this fragment together with the refused one, but its acknowledge counts now.
            Ok(header) if has_refused => {
                self.path_mut(path).handle_ack(header.ack);
                Ok(())
            }
            _ if has_refused => Ok(()),
            Ok(header) if !has_room && takes_memory(&header, length) => {
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

    /// Whether a further message on this path finds memory. Messages of members find none in the last half of `max_memory`,
    /// so that the messages that the leader forwards to peers leave room for those that it takes from peers. Otherwise the
    /// leaders of two addresses could be full of messages for each other, and both wait. docs/rds.md says why this suffices.
    fn has_room(&self, path: PathId) -> bool {
        let most = self.limits.max_memory;
        let is_of_member = self.peers[path.index()].member.is_some();
        self.held <= if is_of_member { most / 2 } else { most }
    }

    /// Bytes of memory of the messages that wait in sockets or to be forwarded, to compare with [`HostLimits::max_memory`].
    pub fn held(&self) -> usize {
        self.held
    }

    /// Notes that the path's work requests up to the one with this number are complete, and reports the outcomes of their
    /// operations.
    pub fn handle_completion(&mut self, path: PathId, request: u64) {
        self.path_mut(path).handle_completion(request);
        self.settle(path);
        self.is_ready(path);
    }

    /// Handles a work request that failed itself, rather than being flushed because of an earlier one: reports `status` for
    /// its operation and ends the connection.
    pub fn handle_failure(&mut self, path: PathId, request: u64, status: OperationStatus) {
        self.path_mut(path).handle_failure(request, status);
        self.settle(path);
        self.handle_lost(path);
    }

    /// Notes that the driver has posted this many further receives on the path's QP, which flow control advertises to the
    /// peer.
    pub fn handle_posted_receives(&mut self, path: PathId, receives: u32) {
        self.path_mut(path).posted_receives(receives);
        self.is_ready(path);
    }

    /// Decides whether to accept a connection request whose private data is `asked`. `from` is the address that the request
    /// comes from, `None` if the transport does not know it. `is_admitted` only matters for a request from the own address:
    /// whether its sender is a process that may use that address.
    pub fn handle_request(
        &mut self,
        from: Option<IpAddr>,
        is_admitted: bool,
        asked: &ConnectData,
    ) -> Answer {
        match from {
            Some(from) if from == self.address && is_admitted => self.answer_process(asked),
            // The sender must not be able to choose the address by which its messages are known.
            Some(from) if from != asked.source => Answer::Refuse,
            _ => self.answer_peer(asked),
        }
    }

    fn answer_peer(&mut self, asked: &ConnectData) -> Answer {
        let lacks_credits = asked.credit == 0 && self.limits.flow_control == FlowControl::Required;
        let is_own = asked.source == self.address;
        // Only the leader connects to a member, whose port peers can reach too.
        let is_member = self.role != Role::Leader;
        if asked.destination != self.address || is_own || is_member || lacks_credits {
            return Answer::Refuse;
        }
        match self.has_place(asked.source) {
            true => self.answer(asked, asked.source, None),
            false => Answer::Refuse,
        }
    }

    /// Whether the peer has a path or can have one. If the table is full and members have passed messages of peers that have
    /// gone, ends the connections for these messages, so that further paths can take their places.
    fn has_place(&mut self, peer: IpAddr) -> bool {
        if self.by_address.contains_key(&(peer, None)) || self.peers.len() < MOST_PEERS {
            return true;
        }
        for number in 0..self.peers.len() {
            let Peer {
                address,
                member,
                ref path,
                ..
            } = self.peers[number];
            let to_peer = self.by_address.get(&(address, None));
            let has_gone = to_peer.is_none_or(|path| self.path(*path).is_idle());
            let is_quiet = path.messages().iter().all(|messages| messages.is_empty());
            if member.is_some() && address != self.address && has_gone && is_quiet {
                self.handle_lost(PathId(number as u32));
            }
        }
        self.longest_idle().is_some()
    }

    /// Answers a request of another process at the own address: one of a member to this leader, to reach a peer through it,
    /// or one of the leader to this member, on behalf of a peer.
    fn answer_process(&mut self, asked: &ConnectData) -> Answer {
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
        // A member that becomes the leader receives requests that it has sent to the old leader.
        let is_from_itself = asked.incarnation == self.incarnation;
        let (Some(version), false) = (asked.agreed(), has_asked || is_from_itself) else {
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
            data: ConnectData {
                // If the peer has no memory for messages, it ends the connection when the first one arrives, and has memory
                // again when it learns which of its own messages have arrived here.
                ack_sequence: known.map_or(0, |path| self.path(path).acknowledgement(incarnation)),
                ..self.connect_data(key, version, credit)
            },
        }
    }

    /// Withdraws the oldest accepted request if there is no room for another one, of this peer or in total.
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

    /// Whether the host still wants the connection of an accepted request.
    pub fn is_awaited(&self, arrival: ArrivalId) -> bool {
        self.arrivals.contains_key(&arrival)
    }

    /// Handles a connection that its peer has completed after the host accepted the request. Returns the path that has the
    /// connection from now on. Returns `None` if the request was withdrawn, if other peers have taken the last place since, or
    /// if the path has an older connection: that is ended first, then [`Action::Adopt`] follows.
    pub fn handle_accepted(&mut self, arrival: ArrivalId, told: &ConnectData) -> Option<PathId> {
        let (peer, member) = self.arrivals.remove(&arrival)?.key;
        if self.role == Role::Leader && member.is_none() && !self.has_place(peer) {
            self.actions.push_back(Action::Withdraw(arrival));
            return None;
        }
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

    /// Forgets an accepted request: the peer has not completed the connection, or the connection ended before a path
    /// adopted it.
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

    /// Handles the peer's reply to the connection request of this attempt ([`attempt`](Self::attempt)). Returns whether this
    /// side has to complete the connection. It must not if the path has another connection by now: the peer would replace that
    /// one by this one, and an acknowledgement on its way would be lost. If it has to, connections that the same process has
    /// requested and not completed are withdrawn, because that process replaces them.
    pub fn handle_reply(&mut self, path: PathId, attempt: u32, told: &ConnectData) -> bool {
        if self.attempt(path) != Some(attempt) {
            return false;
        }
        let peer = &self.peers[path.index()];
        let replaced = Asked {
            key: (peer.address, peer.member),
            incarnation: told.incarnation,
        };
        let actions = &mut self.actions;
        self.arrivals.retain(|arrival, asked| {
            let is_replaced = *asked == replaced;
            if is_replaced {
                actions.push_back(Action::Withdraw(*arrival));
            }
            !is_replaced
        });
        true
    }

    /// Handles a connection that is established: the path sends its queued messages over it. `told` is the private data of
    /// the peer, from its request or its reply.
    pub fn handle_connected(&mut self, path: PathId, told: &ConnectData) {
        // The private data that the peer got counts all receives that are posted.
        let credits = (told.credit != 0).then(|| Credits::new(told.credit, 0));
        let peer = &mut self.peers[path.index()];
        let leader = match self.role {
            Role::Leader => Leader {
                number: self.identity,
                incarnation: self.incarnation,
            },
            Role::Member(_) => Leader {
                number: told.member,
                incarnation: told.incarnation,
            },
        };
        peer.path.meet(told.incarnation);
        let is_of_peer = self.role == Role::Leader && peer.member.is_none();
        if is_of_peer && peer.note_generation(told.incarnation) {
            let address = peer.address;
            self.drop_parked(address);
        }
        let peer = &mut self.peers[path.index()];
        let before = peer.leader.replace(leader);
        if let Some(before) = before.filter(|before| *before != leader) {
            // Messages that another leader may have forwarded are not forwarded again, because a message must arrive at most
            // once.
            peer.path.forget_sent();
            // Other paths may not have noticed the change yet.
            self.lose_paths_through(|leader| leader == before);
        }
        let peer = &mut self.peers[path.index()];
        peer.waits_until = None;
        peer.path.connected(told.ack_sequence, credits);
        self.counters.cong_update_queued += 1;
        // A new leader does not know the sockets of its members. Messages for them fill its memory meanwhile, so the
        // announcements must not wait behind messages of the member, for which the leader may have no memory.
        if peer.address == self.address && peer.member.is_none() {
            peer.path.announce(self.by_port.keys().copied().collect());
        }
        self.settle(path);
        self.is_ready(path);
        if told.credit == 0 && self.limits.flow_control == FlowControl::Required {
            self.handle_lost(path);
        }
    }

    /// Notes that the peer has refused a connection request, perhaps because of the proposed protocol version: the next
    /// request proposes version 3.1.
    pub fn handle_refused(&mut self, path: PathId) {
        self.peers[path.index()].version = Version::V3_1;
    }

    /// Notes that no process listens where the path's connection was requested. If the path leads to another process of
    /// this address, that process has ended.
    pub fn handle_absent(&mut self, path: PathId) {
        self.peers[path.index()].is_absent = true;
    }

    /// Ends the connection of a path, which is broken or no longer wanted: asks the driver to destroy the QP
    /// ([`Action::End`]). No effect on a path that has no connection.
    pub fn handle_lost(&mut self, path: PathId) {
        let state = &mut self.path_mut(path).state;
        if matches!(state, PathState::Up | PathState::Connecting) {
            *state = PathState::Ending;
            self.actions.push_back(Action::End(path));
        }
    }

    /// Handles the end of a path's connection or attempt, after its QP was destroyed: adopts a newer connection of the
    /// peer, or schedules the next attempt if the path has reason to connect again.
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
        // The connection between a member and the leader is kept up also while it is idle. Those on which they pass the
        // messages of a peer are made again only for a message.
        let is_asked = peer.is_asked || address == self.address;
        let is_to_peer = self.role == Role::Leader && member.is_none();
        let due = match is_wanted {
            true => peer
                .path
                .next_attempt(now, &mut self.random, is_asked, is_to_peer),
            false => None,
        };
        peer.path.state = PathState::Down { due };
        self.handle_timeout(now);
    }

    /// In the leader, the process that peers connect to: handles the end of another process of the address by giving up
    /// the messages for that process. If that process connects again, it announces its sockets again.
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

    /// Ends the connections through the previous leader of the address, which has ended; `leader` is its number
    /// ([`ConnectData::member`]).
    pub fn handle_leader_gone(&mut self, leader: u16) {
        self.lose_paths_through(|one| one.number == leader);
    }

    fn lose_paths_through(&mut self, is_gone: impl Fn(Leader) -> bool) {
        for number in 0..self.peers.len() {
            if self.peers[number].leader.is_some_and(&is_gone) {
                self.handle_lost(PathId(number as u32));
            }
        }
    }

    /// Whether the path's peer is about to complete a connection that the peer has requested itself, without having
    /// restarted since. A second connection would replace that connection, and the messages outstanding on it would be
    /// lost.
    fn is_coming(&self, path: PathId) -> bool {
        let peer = &self.peers[path.index()];
        let (key, incarnation) = ((peer.address, peer.member), peer.path.incarnation);
        let is_its = |asked: &Asked| asked.key == key && asked.incarnation == incarnation;
        incarnation != 0 && self.arrivals.values().any(is_its)
    }

    /// Whether the path waits for the connection that its peer is about to complete.
    fn waits_for_peer(&mut self, now: Duration, path: PathId) -> bool {
        let is_coming = self.is_coming(path);
        let waits_until = &mut self.peers[path.index()].waits_until;
        is_coming && now < *waits_until.get_or_insert(now + WAIT_FOR_PEER)
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

    /// When the driver has to call [`handle_timeout`](Self::handle_timeout) at the latest; `None` if there is nothing to
    /// wait for. Times count from the start of the host.
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

    /// Carries out the timeouts that are due at `now`: requests connections, ends those whose requests have not completed
    /// in time, and gives up messages for ports that no process announces.
    pub fn handle_timeout(&mut self, now: Duration) {
        for number in 0..self.peers.len() {
            let (path, peer) = (PathId(number as u32), &mut self.peers[number]);
            match peer.path.state {
                PathState::Down { due: Some(due) } if due <= now => {
                    match self.waits_for_peer(now, path) {
                        true => {
                            let due = Some(now + CHECK_AGAIN);
                            self.path_mut(path).state = PathState::Down { due };
                        }
                        false => self.begin_connection(path),
                    }
                }
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

/// Whether the message of a fragment waits to be received or forwarded. An acknowledge does not and may free memory, a
/// congestion map takes memory only for a short time, and hosts and processes read the messages to port 1 at once, such as
/// the announcement of a port for which a program waits.
fn takes_memory(header: &Header, length: usize) -> bool {
    !header.is_ack_only(length) && !header.is_map() && header.destination_port != PROBE_PORT
}

/// Whether sequence number `one` comes after `other`. Compares the lower 48 bits, because forwarded messages carry only
/// those.
const fn is_after(one: u64, other: u64) -> bool {
    let distance = one.wrapping_sub(other) << 16;
    distance != 0 && distance <= 1 << 63
}
