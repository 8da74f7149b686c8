//! Hosts and the network between them. Time passes only in [`Net::step`], and all random choices
//! come from one seed.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use polyverbs_rds::protocol::{
    Action, Answer, ArrivalId, Attached, FlowControl, Fragment, Host, HostLimits, Inbound, Notify,
    Operation, OperationStatus, Outbound, PathId, PathState, Payload, Process, ProtocolError,
    Queued, Refused, Role, SocketId, Transmit,
};
use polyverbs_rds::{RdmaStatus, SocketOptions};
use polyverbs_wire::rds::{ConnectData, FRAGMENT, HEADER, Header};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// A fragment of payload, which is counted as long as it exists.
#[derive(Clone, Debug)]
pub(crate) struct Bytes {
    bytes: Rc<[u8]>,
    _counted: Rc<()>,
}

impl Fragment for Bytes {
    fn copy_to(&self, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes[..into.len()]);
    }

    fn held(&self) -> usize {
        FRAGMENT
    }
}

/// The outcome of an operation at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Done,
    Refused,
    /// The peer never answers the request.
    Unanswered,
}

/// An operation: its name, its number of requests, and its outcome.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) name: u64,
    pub(crate) requests: u32,
    pub(crate) fate: Fate,
    /// The completion does not show that the peer has carried the operation out.
    pub(crate) completes_early: bool,
}

impl Operation for Op {
    fn requests(&self) -> u32 {
        self.requests
    }

    fn is_shown_by_completion(&self) -> bool {
        !self.completes_early
    }
}

/// Copies an operation under another name.
pub(crate) fn renamed(attached: &Attached<Op>, name: u64) -> Attached<Op> {
    Attached {
        operation: Op {
            name,
            ..attached.operation.clone()
        },
        user_token: name,
        ..*attached
    }
}

pub(crate) type TestHost = Host<Bytes, Op>;

/// An operation with a key that is always reported and is not silent.
pub(crate) fn attached(name: u64) -> Attached<Op> {
    Attached {
        operation: Op {
            name,
            requests: 1,
            fate: Fate::Done,
            completes_early: false,
        },
        rkey: Some(7),
        fence: false,
        is_silent: false,
        user_token: name,
        notify: Notify::Always,
    }
}

/// A header on the wire, with its sender and its connection.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) from: usize,
    pub(crate) connection: usize,
    pub(crate) header: Header,
    pub(crate) length: usize,
}

pub(crate) struct Side {
    pub(crate) host: TestHost,
    /// The connection of each path, as the number of the connection and of its end.
    links: BTreeMap<PathId, (usize, usize)>,
    /// The connections of accepted requests, in the same form.
    arrivals: BTreeMap<ArrivalId, (usize, usize)>,
    pub(crate) woken: Vec<SocketId>,
    pub(crate) used: Vec<(SocketId, u32)>,
    /// Increases when the host is replaced: events for the old host are dropped.
    incarnation: u32,
    /// The process has ended.
    pub(crate) is_over: bool,
    /// The ports of its sockets.
    ports: BTreeMap<SocketId, u16>,
}

/// The owner of one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Path(PathId),
    Arrival(ArrivalId),
}

struct Connection {
    ends: [Option<(usize, Owner)>; 2],
    /// Packets that arrived before the accepting end belonged to a path.
    early: Vec<Packet>,
    /// Whether each end has been notified that the connection is established.
    established: [bool; 2],
    /// The time at which the last packet that was sent to each end arrives.
    last: [Duration; 2],
    /// The receives that each end has posted, and those that were used since it last posted some.
    receives: [u32; 2],
    used: [u32; 2],
    /// The number of fragments that still pass before the connection ends.
    left: Option<u32>,
    /// The attempt of the path whose host requested the connection.
    attempt: u32,
    to: Process,
    asked: ConnectData,
}

#[derive(Debug)]
enum Packet {
    Established,
    Fragment {
        bytes: [u8; HEADER],
        payload: Bytes,
        request: u64,
        signaled: bool,
    },
    Operation {
        operation: Op,
        request: u64,
    },
    Complete(u64),
    Failed(u64),
    Lost,
}

#[derive(Debug)]
enum Event {
    Nothing,
    Asked(usize),
    Answered(usize, Option<ConnectData>),
    Unreachable(usize),
    Packet {
        connection: usize,
        end: usize,
        packet: Packet,
    },
    Gone {
        at: usize,
        incarnation: u32,
        path: PathId,
    },
}

/// A network: see the [module](self).
pub(crate) struct Net {
    pub(crate) now: Duration,
    pub(crate) random: SmallRng,
    pub(crate) sides: Vec<Side>,
    pub(crate) seen: Vec<Seen>,
    /// Operations that were carried out, in this order.
    pub(crate) carried_out: Vec<u64>,
    /// The private data of all connection requests.
    pub(crate) asked: Vec<ConnectData>,
    /// The errors for fragments that hosts refused.
    pub(crate) refused_fragments: Vec<ProtocolError>,
    pub(crate) delay: Duration,
    /// The mean number of fragments that a connection carries before it ends.
    pub(crate) cut_after: Option<u32>,
    /// No connection request reaches a host.
    pub(crate) is_unreachable: bool,
    pub(crate) limits: HostLimits,
    connections: Vec<Connection>,
    events: BTreeMap<(Duration, u64), Event>,
    next_event: u64,
    counted: Rc<()>,
}

/// The address of a host.
pub(crate) fn address(host: usize) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, 1 + host as u8).into()
}

pub(crate) fn at(host: usize, port: u16) -> SocketAddr {
    SocketAddr::new(address(host), port)
}

impl Net {
    pub(crate) fn new(hosts: usize, limits: HostLimits, seed: u64) -> Self {
        let mut net = Self {
            now: Duration::ZERO,
            random: SmallRng::seed_from_u64(seed),
            sides: Vec::new(),
            seen: Vec::new(),
            carried_out: Vec::new(),
            asked: Vec::new(),
            refused_fragments: Vec::new(),
            delay: Duration::from_micros(10),
            cut_after: None,
            is_unreachable: false,
            limits,
            connections: Vec::new(),
            events: BTreeMap::new(),
            next_event: 0,
            counted: Rc::new(()),
        };
        for number in 0..hosts {
            let side = net.fresh(address(number), 0);
            net.sides.push(side);
        }
        net
    }

    fn fresh(&mut self, address: IpAddr, incarnation: u32) -> Side {
        let seed = self.random.random();
        Side {
            host: Host::new(address, self.limits, seed),
            links: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            woken: Vec::new(),
            used: Vec::new(),
            incarnation,
            is_over: false,
            ports: BTreeMap::new(),
        }
    }

    /// Adds a process at the address of a host, which has a leader. Returns its number.
    pub(crate) fn add_member(&mut self, of: usize) -> usize {
        let number = self.sides.len();
        let mut side = self.fresh(address(of), 0);
        side.host.set_role(Role::Member(number as u16));
        self.sides.push(side);
        number
    }

    /// Ends a process. Its peers see the ends of their connections.
    pub(crate) fn end_process(&mut self, number: usize) {
        self.sides[number].is_over = true;
        for connection in 0..self.connections.len() {
            for end in 0..2 {
                if self.connections[connection].ends[end].is_some_and(|(at, _)| at == number) {
                    self.connections[connection].ends[end] = None;
                    self.lose_packets(connection, &[1 - end]);
                    self.send_to_end(connection, 1 - end, Packet::Lost);
                }
            }
        }
    }

    /// The leader at an address.
    fn leader(&self, address: IpAddr) -> Option<usize> {
        self.sides.iter().position(|side| {
            !side.is_over && side.host.address() == address && side.host.role() == Role::Leader
        })
    }

    /// Replaces a process by another one with its address and role without notifying its peers.
    pub(crate) fn restart(&mut self, number: usize) {
        let before = &self.sides[number];
        let (address, role) = (before.host.address(), before.host.role());
        let incarnation = before.incarnation + 1;
        for connection in &mut self.connections {
            let ends = connection.ends.iter_mut();
            ends.filter(|end| end.is_some_and(|(at, _)| at == number))
                .for_each(|end| *end = None);
        }
        self.sides[number] = self.fresh(address, incarnation);
        self.host(number).set_role(role);
    }

    pub(crate) fn host(&mut self, number: usize) -> &mut TestHost {
        &mut self.sides[number].host
    }

    pub(crate) fn bind(&mut self, host: usize, port: u16) -> SocketId {
        self.bind_with(host, port, SocketOptions::default())
    }

    pub(crate) fn bind_with(&mut self, host: usize, port: u16, options: SocketOptions) -> SocketId {
        let (id, bound) = self.host(host).bind(port, options).unwrap();
        assert_eq!(bound, port);
        self.sides[host].ports.insert(id, port);
        self.pump(host);
        id
    }

    pub(crate) fn fragment(&self, bytes: &[u8]) -> Bytes {
        Bytes {
            bytes: bytes.into(),
            _counted: Rc::clone(&self.counted),
        }
    }

    /// The number of fragments that exist.
    pub(crate) fn fragments_held(&self) -> usize {
        Rc::strong_count(&self.counted) - 1
    }

    pub(crate) fn message(&self, to: SocketAddr, bytes: &[u8]) -> Outbound<Bytes, Op> {
        let fragments = bytes.chunks(FRAGMENT).map(|part| self.fragment(part));
        Outbound {
            to,
            length: bytes.len() as u32,
            fragments: fragments.collect(),
            attached: None,
            cookie: None,
        }
    }

    pub(crate) fn send(
        &mut self,
        host: usize,
        socket: SocketId,
        to: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), Refused> {
        let message = self.message(to, bytes);
        self.send_message(host, socket, message)
    }

    pub(crate) fn send_message(
        &mut self,
        host: usize,
        socket: SocketId,
        message: Outbound<Bytes, Op>,
    ) -> Result<(), Refused> {
        let sent = self.host(host).send(socket, message);
        self.pump(host);
        sent.map_err(|(refused, _)| refused)
    }

    pub(crate) fn cancel(
        &mut self,
        host: usize,
        socket: SocketId,
        to: Option<SocketAddr>,
    ) -> Vec<(PathId, u64)> {
        let now = self.now;
        let pending = self.host(host).cancel(now, socket, to);
        self.pump(host);
        pending
    }

    pub(crate) fn acknowledge_all(&mut self, host: usize) {
        self.host(host).acknowledge_all();
        self.pump(host);
    }

    pub(crate) fn close(&mut self, host: usize, socket: SocketId) -> Vec<(PathId, u64)> {
        let now = self.now;
        self.sides[host].ports.remove(&socket);
        let pending = self.host(host).close(now, socket);
        self.pump(host);
        pending
    }

    pub(crate) fn receive(&mut self, host: usize, socket: SocketId) -> Option<Inbound<Bytes>> {
        let inbound = self.host(host).receive(socket, usize::MAX);
        self.pump(host);
        inbound
    }

    /// The next message of a socket: its sender and its bytes.
    pub(crate) fn receive_message(
        &mut self,
        host: usize,
        socket: SocketId,
    ) -> Option<(SocketAddr, Vec<u8>)> {
        match self.receive(host, socket)? {
            Inbound::Message(message) => Some((message.from, bytes_of(&message))),
            other => panic!("{other:?} instead of a message"),
        }
    }

    pub(crate) fn receive_all(
        &mut self,
        host: usize,
        socket: SocketId,
    ) -> Vec<(SocketAddr, Vec<u8>)> {
        std::iter::from_fn(|| self.receive_message(host, socket)).collect()
    }

    pub(crate) fn statuses(&mut self, host: usize, socket: SocketId) -> Vec<RdmaStatus> {
        match self.receive(host, socket) {
            Some(Inbound::Statuses(statuses)) => statuses,
            None => Vec::new(),
            other => panic!("{other:?} instead of statuses"),
        }
    }

    pub(crate) fn state(&self, host: usize, peer: usize) -> PathState {
        let mut paths = self.sides[host].host.paths();
        let path = paths.find(|path| path.peer == address(peer));
        path.map_or(PathState::Down { due: None }, |path| path.state)
    }

    /// The connection between two hosts, if there is one and both know it.
    pub(crate) fn common(&self, one: usize, other: usize) -> Option<usize> {
        let is_up = |at: usize, peer| self.state(at, peer) == PathState::Up;
        if !is_up(one, other) || !is_up(other, one) {
            return None;
        }
        self.connections.iter().position(|connection| {
            let [Some((near, _)), Some((far, _))] = connection.ends else {
                return false;
            };
            [(near, far), (far, near)].contains(&(one, other))
        })
    }

    /// How many connections both hosts have known to be established.
    pub(crate) fn established(&self) -> usize {
        let is_known = |connection: &&Connection| connection.established == [true; 2];
        self.connections.iter().filter(is_known).count()
    }

    /// Ends the connection between two hosts; fragments on their way are lost.
    pub(crate) fn cut(&mut self, one: usize, other: usize) {
        if let Some(connection) = self.common(one, other) {
            self.cut_connection(connection);
        }
    }

    /// Ends the connection between two hosts after this number of further fragments.
    pub(crate) fn cut_after(&mut self, one: usize, other: usize, fragments: u32) {
        let connection = self.common(one, other).expect("the hosts are connected");
        self.connections[connection].left = Some(fragments);
    }

    fn cut_connection(&mut self, connection: usize) {
        self.lose_packets(connection, &[0, 1]);
        for end in 0..2 {
            self.send_to_end(connection, end, Packet::Lost);
        }
    }

    fn lose_packets(&mut self, connection: usize, ends: &[usize]) {
        self.events.retain(|_, event| match event {
            Event::Packet {
                connection: of,
                end,
                ..
            } => *of != connection || !ends.contains(end),
            _ => true,
        });
    }

    fn some_delay(&mut self) -> Duration {
        self.delay.mul_f64(0.5 + self.random.random::<f64>())
    }

    fn schedule(&mut self, when: Duration, event: Event) {
        self.events.insert((when, self.next_event), event);
        self.next_event += 1;
    }

    fn later(&mut self, event: Event) {
        let when = self.now + self.some_delay();
        self.schedule(when, event);
    }

    /// Sends a packet that arrives after everything else on its way to this end.
    fn send_to_end(&mut self, connection: usize, end: usize, packet: Packet) {
        let arrives = self.now + self.some_delay();
        let last = &mut self.connections[connection].last[end];
        *last = arrives.max(*last);
        let when = *last;
        self.schedule(
            when,
            Event::Packet {
                connection,
                end,
                packet,
            },
        );
    }

    /// Carries out the actions of a host until it asks for none.
    pub(crate) fn pump(&mut self, number: usize) {
        loop {
            while let Some(path) = self.sides[number].host.next_ready() {
                self.transmit(number, path);
                self.sides[number].host.settle(path);
            }
            let Some(action) = self.sides[number].host.poll_action() else {
                return;
            };
            self.act(number, action);
        }
    }

    fn transmit(&mut self, number: usize, path: PathId) {
        let Some(&(connection, end)) = self.sides[number].links.get(&path) else {
            return;
        };
        loop {
            let counted = Rc::clone(&self.counted);
            let bytes = |bytes: &[u8]| Bytes {
                bytes: bytes.into(),
                _counted: counted,
            };
            let Some(transmit) = self.sides[number].host.poll_transmit(path) else {
                return;
            };
            let packet = match transmit {
                Transmit::Send {
                    request,
                    header,
                    payload,
                    signaled,
                    ..
                } => {
                    let payload = match payload {
                        Payload::None => bytes(&[]),
                        Payload::Fragment { fragment, length } => bytes(&fragment.bytes[..length]),
                        Payload::Map(map) => bytes(map),
                    };
                    let length = payload.bytes.len();
                    self.seen.push(Seen {
                        from: number,
                        connection,
                        header,
                        length,
                    });
                    Packet::Fragment {
                        bytes: header.to_bytes(),
                        payload,
                        request,
                        signaled,
                    }
                }
                Transmit::Operation {
                    request, operation, ..
                } => Packet::Operation {
                    operation: operation.clone(),
                    request,
                },
            };
            self.send_to_end(connection, 1 - end, packet);
        }
    }

    fn act(&mut self, number: usize, action: Action) {
        match action {
            Action::Wake(socket) => self.sides[number].woken.push(socket),
            Action::Used { socket, rkey } => self.sides[number].used.push((socket, rkey)),
            Action::Connect { path, to, data } => self.connect(number, path, to, data),
            Action::End(path) => self.end(number, path),
            Action::Withdraw(arrival) => self.withdraw(number, arrival),
            Action::Adopt {
                path,
                arrival,
                told,
            } => {
                let host = &mut self.sides[number].host;
                host.handle_connected(path, &told);
                self.adopt(number, path, arrival);
            }
            Action::FindOwner(port) => {
                let own = self.sides[number].host.address();
                let is_taken = self.sides.iter().any(|side| {
                    let is_there = !side.is_over && side.host.address() == own;
                    is_there && side.ports.values().any(|one| *one == port)
                });
                if !is_taken {
                    self.sides[number].host.handle_port_free(port);
                }
            }
        }
    }

    fn withdraw(&mut self, number: usize, arrival: ArrivalId) {
        if let Some((connection, end)) = self.sides[number].arrivals.remove(&arrival) {
            self.connections[connection].ends[end] = None;
            self.send_to_end(connection, 1 - end, Packet::Lost);
        }
    }

    fn adopt(&mut self, number: usize, path: PathId, arrival: ArrivalId) {
        let side = &mut self.sides[number];
        let Some(link) = side.arrivals.remove(&arrival) else {
            return side.host.handle_lost(path);
        };
        let before = side.links.insert(path, link);
        assert!(before.is_none(), "a path has one connection");
        let (connection, end) = link;
        self.connections[connection].ends[end] = Some((number, Owner::Path(path)));
        for packet in std::mem::take(&mut self.connections[connection].early) {
            self.arrived(connection, end, packet);
        }
    }

    fn connect(&mut self, number: usize, path: PathId, to: Process, data: ConnectData) {
        let own = self.sides[number].host.address();
        if to == Process::Leader && self.leader(own).is_none() {
            let host = &mut self.sides[number].host;
            host.set_role(Role::Leader);
            return host.handle_lost(path);
        }
        self.asked.push(data);
        let attempt = self.sides[number].host.attempt(path);
        let connection = self.connections.len();
        let receives = self.limits.first_receives;
        let left = self
            .cut_after
            .map(|mean| self.random.random_range(0..2 * mean));
        self.connections.push(Connection {
            ends: [Some((number, Owner::Path(path))), None],
            early: Vec::new(),
            established: [false; 2],
            last: [self.now; 2],
            receives: [receives; 2],
            used: [0; 2],
            left,
            attempt: attempt.expect("an attempt is in progress"),
            to,
            asked: data,
        });
        let links = &mut self.sides[number].links;
        let before = links.insert(path, (connection, 0));
        assert!(before.is_none(), "a path has one connection");
        self.later(match self.is_unreachable {
            true => Event::Unreachable(connection),
            false => Event::Asked(connection),
        });
    }

    fn end(&mut self, number: usize, path: PathId) {
        let incarnation = self.sides[number].incarnation;
        if let Some((connection, end)) = self.sides[number].links.remove(&path) {
            self.connections[connection].ends[end] = None;
            self.send_to_end(connection, 1 - end, Packet::Lost);
        }
        self.later(Event::Gone {
            at: number,
            incarnation,
            path,
        });
    }

    /// Runs the next event. Returns false if there is none.
    pub(crate) fn step(&mut self) -> bool {
        let sides = self.sides.iter().filter(|side| !side.is_over);
        let due = sides.filter_map(|side| side.host.next_due()).min();
        let next = self.events.first_key_value().map(|(&(when, _), _)| when);
        match (due, next) {
            (None, None) => return false,
            (Some(due), next) if next.is_none_or(|next| due < next) => {
                self.now = self.now.max(due);
                for number in 0..self.sides.len() {
                    if self.sides[number].is_over {
                        continue;
                    }
                    let now = self.now;
                    self.sides[number].host.handle_timeout(now);
                    self.pump(number);
                }
            }
            _ => {
                let ((when, _), event) = self.events.pop_first().expect("an event is scheduled");
                self.now = when;
                self.handle(event);
            }
        }
        true
    }

    /// Runs until no event is left and no host waits to connect.
    pub(crate) fn settle(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 3_000_000, "the network does not become idle");
        }
    }

    /// Runs until the network is idle, for at most this time.
    pub(crate) fn settle_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end && self.step() {}
    }

    /// Runs until the condition holds.
    pub(crate) fn until(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) {
        while !is_so(self) {
            assert!(self.step(), "no event is left");
        }
    }

    /// Runs for this time.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        // An event at the end lets the time pass even if there is no other event.
        self.schedule(end, Event::Nothing);
        while self.now < end && self.step() {}
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Nothing => {}
            Event::Asked(connection) => self.asked_at_peer(connection),
            Event::Answered(connection, answer) => self.answered(connection, answer),
            Event::Unreachable(connection) => self.failed(connection),
            Event::Packet {
                connection,
                end,
                packet,
            } => self.arrived(connection, end, packet),
            Event::Gone {
                at,
                incarnation,
                path,
            } => {
                let now = self.now;
                let side = self.sides.get_mut(at);
                let is_it = |side: &&mut Side| side.incarnation == incarnation && !side.is_over;
                if let Some(side) = side.filter(is_it) {
                    side.host.handle_gone(now, path);
                    self.pump(at);
                }
            }
        }
    }

    fn asked_at_peer(&mut self, connection: usize) {
        let Connection {
            asked: data,
            to,
            ends: [from, _],
            ..
        } = self.connections[connection];
        let own = from.map(|(at, _)| self.sides[at].host.address());
        let number = match (to, own) {
            (Process::Peer, _) => self.leader(data.destination),
            (Process::Leader, Some(own)) => self.leader(own),
            (Process::Member(member), Some(own)) => self.sides.iter().position(|side| {
                let is_there = !side.is_over && side.host.address() == own;
                is_there && side.host.role() == Role::Member(member)
            }),
            (_, None) => None,
        };
        let Some(number) = number else {
            if let Some((at, Owner::Path(path))) = from {
                self.sides[at].host.handle_absent(path);
            }
            return self.later(Event::Unreachable(connection));
        };
        let host = &mut self.sides[number].host;
        let answer = host.handle_request(own, to != Process::Peer, &data);
        let answer = match answer {
            Answer::Accept { arrival, data } => {
                self.connections[connection].ends[1] = Some((number, Owner::Arrival(arrival)));
                self.sides[number].arrivals.insert(arrival, (connection, 1));
                Some(data)
            }
            Answer::Refuse => None,
        };
        self.pump(number);
        self.later(Event::Answered(connection, answer));
    }

    fn answered(&mut self, connection: usize, answer: Option<ConnectData>) {
        let Some((number, Owner::Path(path))) = self.connections[connection].ends[0] else {
            if answer.is_some() {
                self.send_to_end(connection, 1, Packet::Lost);
            }
            return;
        };
        let host = &mut self.sides[number].host;
        let Some(told) = answer else {
            host.handle_refused(path);
            return self.failed(connection);
        };
        if !host.handle_reply(path, self.connections[connection].attempt, &told) {
            return self.pump(number);
        }
        host.handle_connected(path, &told);
        self.connections[connection].established[0] = true;
        self.send_to_end(connection, 1, Packet::Established);
        self.pump(number);
    }

    fn failed(&mut self, connection: usize) {
        if let Some((number, Owner::Path(path))) = self.connections[connection].ends[0] {
            self.sides[number].host.handle_lost(path);
            self.pump(number);
        }
    }

    fn arrived(&mut self, connection: usize, end: usize, packet: Packet) {
        let Some((number, owner)) = self.connections[connection].ends[end] else {
            return self.unanswered(connection, end, &packet);
        };
        let path = match owner {
            Owner::Path(path) => path,
            Owner::Arrival(arrival) => {
                return self.arrived_early(connection, end, (number, arrival), packet);
            }
        };
        match packet {
            Packet::Established => {
                panic!("an accepting end belongs to no path until it is established")
            }
            Packet::Fragment {
                bytes,
                payload,
                request,
                signaled,
            } => {
                match &mut self.connections[connection].left {
                    Some(0) => return self.cut_connection(connection),
                    Some(left) => *left -= 1,
                    None => {}
                }
                self.use_receive(connection, end, number, path);
                if signaled {
                    self.send_to_end(connection, 1 - end, Packet::Complete(request));
                }
                let length = payload.bytes.len();
                let host = &mut self.sides[number].host;
                let taken = host.handle_fragment(path, &bytes, length, payload);
                self.refused_fragments.extend(taken.err());
            }
            Packet::Operation { operation, request } => match operation.fate {
                Fate::Done => {
                    self.carried_out.push(operation.name);
                    self.send_to_end(connection, 1 - end, Packet::Complete(request));
                }
                Fate::Unanswered => {}
                Fate::Refused => {
                    self.lose_packets(connection, &[end]);
                    self.send_to_end(connection, 1 - end, Packet::Failed(request));
                    self.send_to_end(connection, end, Packet::Lost);
                }
            },
            Packet::Complete(request) => {
                self.sides[number].host.handle_completion(path, request);
            }
            Packet::Failed(request) => {
                let status = OperationStatus::RemoteError;
                let host = &mut self.sides[number].host;
                host.handle_failure(path, request, status);
            }
            Packet::Lost => self.sides[number].host.handle_lost(path),
        }
        self.pump(number);
    }

    fn arrived_early(
        &mut self,
        connection: usize,
        end: usize,
        (number, arrival): (usize, ArrivalId),
        packet: Packet,
    ) {
        match packet {
            Packet::Established => {
                let asked = self.connections[connection].asked;
                self.connections[connection].established[end] = true;
                let host = &mut self.sides[number].host;
                if let Some(path) = host.handle_accepted(arrival, &asked) {
                    self.adopt(number, path, arrival);
                }
            }
            Packet::Lost => {
                self.sides[number].host.handle_withdrawn(arrival);
                self.sides[number].arrivals.remove(&arrival);
                self.connections[connection].ends[end] = None;
            }
            packet => self.connections[connection].early.push(packet),
        }
        self.pump(number);
    }

    /// The receiving end has gone: a sender gets an error.
    fn unanswered(&mut self, connection: usize, end: usize, packet: &Packet) {
        if matches!(
            packet,
            Packet::Fragment { .. } | Packet::Operation { .. } | Packet::Established
        ) {
            self.send_to_end(connection, 1 - end, Packet::Lost);
        }
    }

    /// With flow control, each fragment must find a posted receive.
    fn use_receive(&mut self, connection: usize, end: usize, number: usize, path: PathId) {
        let one = &mut self.connections[connection];
        if self.limits.flow_control == FlowControl::Accepted {
            return;
        }
        let receives = one.receives[end].checked_sub(1);
        one.receives[end] = receives.expect("a fragment arrives where no receive is posted");
        one.used[end] += 1;
        if one.used[end] >= 4 {
            let posted = std::mem::take(&mut one.used[end]);
            one.receives[end] += posted;
            let host = &mut self.sides[number].host;
            host.handle_posted_receives(path, posted);
        }
    }

    /// Passes a fragment to a host as if its peer had sent it.
    pub(crate) fn inject(
        &mut self,
        number: usize,
        peer: usize,
        header: &[u8],
        payload: &[u8],
    ) -> Result<(), ProtocolError> {
        let path = self.path(number, peer).expect("the hosts are connected");
        let payload = self.fragment(payload);
        let length = payload.bytes.len();
        let host = &mut self.sides[number].host;
        let outcome = host.handle_fragment(path, header, length, payload);
        self.pump(number);
        outcome
    }

    /// The path of a host to a peer that it is connected to.
    pub(crate) fn path(&self, number: usize, peer: usize) -> Option<PathId> {
        let links = self.sides[number].links.iter();
        let mut links = links.filter(|(_, (connection, end))| {
            let there = self.connections[*connection].ends[1 - end];
            there.is_some_and(|(at, _)| at == peer)
        });
        links.next().map(|(path, _)| *path)
    }

    /// The path that requested this connection.
    pub(crate) fn path_of_asked(&self, number: usize) -> PathId {
        let [Some((_, Owner::Path(path))), _] = self.connections[number].ends else {
            panic!("the request was given up");
        };
        path
    }

    /// Connects two hosts; only their congestion maps are exchanged.
    pub(crate) fn connect_hosts(&mut self, one: usize, other: usize) {
        let (socket, _) = self.host(one).bind(0, SocketOptions::default()).unwrap();
        self.send(one, socket, at(other, 2), &[]).unwrap();
        self.settle();
        self.close(one, socket);
        assert!(self.common(one, other).is_some(), "they are connected");
    }
}

/// The payload of a message.
pub(crate) fn bytes_of(message: &Queued<Bytes>) -> Vec<u8> {
    let mut bytes = vec![0; message.length as usize];
    for (fragment, into) in message.fragments.iter().zip(bytes.chunks_mut(FRAGMENT)) {
        fragment.copy_to(into);
    }
    bytes
}

/// Bytes that depend on `name` and on their position.
pub(crate) fn content(name: u64, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length.div_ceil(8) as u64)
        .flat_map(|place| (name.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ place).to_le_bytes())
        .collect();
    bytes.truncate(length);
    bytes
}

/// The number of seeds for an ordinary run, at most `most`.
pub(crate) fn runs(most: u64) -> u64 {
    let most = if cfg!(debug_assertions) {
        most.div_ceil(20)
    } else {
        most
    };
    std::env::var("POLYVERBS_SEEDED_RUNS").map_or(most, |text| {
        text.parse().expect("POLYVERBS_SEEDED_RUNS is a number")
    })
}

/// Runs `run` with each seed up to `most`, or with `POLYVERBS_SEED` alone.
pub(crate) fn for_each_seed(name: &str, most: u64, mut run: impl FnMut(u64)) {
    let one = std::env::var("POLYVERBS_SEED").ok();
    let seeds: VecDeque<u64> = match one {
        Some(seed) => [seed.parse().expect("POLYVERBS_SEED is a number")].into(),
        None => (1..=runs(most)).collect(),
    };
    for seed in seeds {
        let shown = Shown { name, seed };
        run(seed);
        drop(shown);
    }
}

/// Prints the seed if the run panics.
struct Shown<'n> {
    name: &'n str,
    seed: u64,
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { name, seed } = self;
            eprintln!("{name} failed: run it again with POLYVERBS_SEED={seed}");
        }
    }
}
