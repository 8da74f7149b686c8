//! Several processes at each of two addresses, which end and start again at random, forged requests, and hostile peers: the
//! messages are compared with a model, and the memory and the answers of each process stay within their bounds.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use polyverbs_rds::SocketOptions;
use polyverbs_rds::protocol::{
    Answer, ArrivalId, HostLimits, Inbound, PathId, Role, SocketId, Transmit,
};
use polyverbs_wire::rds::{ConnectData, Extension, FRAGMENT, Flags, Header, Version};
use rand::Rng;

use crate::net::{Net, TestHost, address, at, bytes_of, content, for_each_seed};

/// The number of processes at each address; each process has one socket.
const PROCESSES: usize = 3;

/// The hosts with these numbers are hostile: their requests come from their own addresses, and they complete connections.
const HOSTILE: std::ops::Range<usize> = 200..208;

/// The most bytes that one message of this test takes: three fragments and what a host keeps of a header.
const MESSAGE: usize = 4 * FRAGMENT;

/// A process: its address, and its number in the network.
#[derive(Clone, Copy)]
struct Process {
    host: usize,
    number: usize,
    socket: SocketId,
    is_over: bool,
    /// The first message that was sent since the process started.
    first: u64,
}

struct Run {
    net: Net,
    processes: Vec<Process>,
    /// The messages that were sent and have not been received, by sender and receiver.
    sent: HashMap<(usize, usize), VecDeque<u64>>,
    /// The messages that processes have received, with the number of the process in the network.
    received: HashSet<(usize, u64)>,
    /// The messages that did not arrive, by sender.
    missing: HashMap<usize, u64>,
    next: u64,
    /// Accepted requests for which a process still waits, with the number of the process.
    accepted: Vec<(usize, ArrivalId)>,
    /// Connections that hostile hosts have completed, with the number of the process.
    hostile: Vec<(usize, PathId)>,
    /// The requests that have come from an address without a proven connection, and the answers and requests to it.
    traffic: HashMap<IpAddr, [usize; 2]>,
    /// The requests of the hosts that `traffic` counts.
    counted: usize,
}

fn port(process: usize) -> u16 {
    4000 + process as u16
}

fn options() -> SocketOptions {
    SocketOptions {
        send_buffer: 1 << 20,
        receive_buffer: 1 << 20,
        ..SocketOptions::default()
    }
}

/// A connection request to a host from this address, by a process that has just started.
fn request(random: &mut impl Rng, source: IpAddr, to: usize) -> ConnectData {
    ConnectData {
        source,
        destination: address(to),
        version: Version::V4_1,
        minor_mask: 3,
        tos: 0,
        member: random.random_range(0..3),
        ack_sequence: random.random(),
        credit: random.random_range(0..2) * random.random::<u32>(),
        incarnation: random.random(),
    }
}

impl Run {
    fn new(seed: u64) -> Self {
        let limits = HostLimits {
            max_memory: [1 << 16, 256 << 20][seed as usize % 2],
            ..HostLimits::default()
        };
        let mut net = Net::new(2, limits, seed);
        net.delay = Duration::from_micros(net.random.random_range(1..500));
        let mut processes = Vec::new();
        for place in 0..2 * PROCESSES {
            let host = place % 2;
            let number = match place < 2 {
                true => host,
                false => net.add_member(host),
            };
            let socket = net.bind_with(number, port(place), options());
            processes.push(Process {
                host,
                number,
                socket,
                is_over: false,
                first: 0,
            });
        }
        net.settle_for(Duration::from_secs(1));
        if net.random.random_bool(0.3) {
            net.cut_after = Some(net.random.random_range(10..200));
        }
        Self {
            net,
            processes,
            sent: HashMap::new(),
            received: HashSet::new(),
            missing: HashMap::new(),
            next: 0,
            accepted: Vec::new(),
            hostile: Vec::new(),
            traffic: HashMap::new(),
            counted: 0,
        }
    }

    fn some_process(&mut self) -> usize {
        self.net.random.random_range(0..self.processes.len())
    }

    fn send(&mut self) {
        let (from, to) = (self.some_process(), self.some_process());
        // The memory limit is for messages of other processes.
        if from == to {
            return;
        }
        let Process {
            number,
            socket,
            is_over,
            ..
        } = self.processes[from];
        if is_over || self.processes[to].is_over {
            return;
        }
        let length = self.net.random.random_range(8..9000);
        let bytes = content(self.next, length);
        let to_address = at(self.processes[to].host, port(to));
        if self.net.send(number, socket, to_address, &bytes).is_ok() {
            self.sent
                .entry((from, to))
                .or_default()
                .push_back(self.next);
        }
        self.next += 1;
    }

    fn receive(&mut self, to: usize) -> bool {
        let Process {
            number,
            socket,
            is_over,
            first,
            ..
        } = self.processes[to];
        if is_over {
            return false;
        }
        let message = match self.net.receive(number, socket) {
            Some(Inbound::Message(message)) => message,
            None => return false,
            other => panic!("{other:?} instead of a message"),
        };
        if HOSTILE
            .map(address)
            .any(|address| message.from.ip() == address)
        {
            return true;
        }
        let from = usize::from(message.from.port() - port(0));
        let bytes = bytes_of(&message);
        let name = (0..self.next).find(|&name| bytes.starts_with(&content(name, 8)));
        let name = name.expect("the message was sent");
        assert_eq!(bytes, content(name, bytes.len()));
        let is_new = self.received.insert((number, name));
        assert!(is_new, "{from} to {to}: {name} has arrived before");
        // The process that had the port before may have received the message without acknowledging it.
        if name < first {
            return true;
        }
        let queue = self.sent.entry((from, to)).or_default();
        loop {
            let next = queue.pop_front();
            let next = next.unwrap_or_else(|| panic!("{from} to {to}: {name} arrives late"));
            if next == name {
                return true;
            }
            *self.missing.entry(from).or_default() += u64::from(next >= self.processes[from].first);
        }
    }

    fn end(&mut self) {
        let place = self.some_process();
        let of_host = self.processes[place].host;
        let is_left = |process: &&Process| process.host == of_host && !process.is_over;
        if self.processes[place].is_over || self.processes.iter().filter(is_left).count() < 2 {
            return;
        }
        self.processes[place].is_over = true;
        self.net.end_process(self.processes[place].number);
        // Messages to this process will not be received.
        self.sent.retain(|(_, to), _| *to != place);
    }

    /// Starts another process in place of one, with its port; ends the process before, if it runs.
    fn restart(&mut self) {
        let place = self.some_process();
        let Process {
            host,
            number,
            is_over,
            ..
        } = self.processes[place];
        if !is_over {
            self.net.end_process(number);
        }
        let number = self.net.add_member(host);
        let socket = self.net.bind_with(number, port(place), options());
        // Until then, messages for the port go to the process that had it before.
        let most = self.net.now + Duration::from_secs(60);
        self.net.until(|net| {
            assert!(net.now < most, "{number} waits for its port");
            net.host(number).is_announced(socket)
        });
        self.processes[place] = Process {
            host,
            number,
            socket,
            is_over: false,
            first: self.next,
        };
        self.sent.retain(|(_, to), _| *to != place);
        self.missing.remove(&place);
    }

    /// Sends a request that names a forged source, from that address or from another one. The sender may know the peer's
    /// incarnation.
    fn forge(&mut self) {
        let place = self.some_process();
        let (number, host) = (self.processes[place].number, self.processes[place].host);
        let peer = self.processes[1 - host].number;
        let known = self.net.host(peer).incarnation();
        let random = &mut self.net.random;
        let source = match random.random_bool(0.5) {
            true => address(1 - host),
            false => address(random.random_range(0..200)),
        };
        let mut asked = request(random, source, host);
        if random.random_bool(0.5) {
            asked.incarnation = known;
        }
        let from = match random.random_bool(0.5) {
            true => source,
            false => address(random.random_range(0..200)),
        };
        if !self.processes[place].is_over {
            let is_own = from == address(host);
            let before = (self.net.asked.len(), self.net.host(number).paths().count());
            let answer = self.ask(number, from, &asked);
            if from != source || is_own {
                assert_eq!(answer, None, "{from} named {source}");
            }
            if let Some(arrival) = answer {
                match self.net.random.random_bool(0.2) {
                    true => self.net.host(number).handle_withdrawn(arrival),
                    false => self.accepted.push((number, arrival)),
                }
            }
            self.net.pump(number);
            // A request that no peer completes makes the host connect to no address, and remember none.
            let after = (self.net.asked.len(), self.net.host(number).paths().count());
            assert_eq!(after, before, "{source}");
        }
    }

    /// Sends a request from an address to a process, and counts the request and the answer.
    fn ask(&mut self, number: usize, from: IpAddr, asked: &ConnectData) -> Option<ArrivalId> {
        let [requests, answers] = self.traffic.entry(from).or_default();
        (*requests, *answers) = (*requests + 1, *answers + 1);
        let host = self.net.host(number);
        match host.handle_request(Some(from), false, asked) {
            Answer::Accept { arrival, .. } => Some(arrival),
            Answer::Refuse => None,
        }
    }

    /// Connects a hostile host to a process, if that accepts it. Only the leader of an address does.
    fn connect_hostile(&mut self) {
        let place = self.some_process();
        let Process {
            host,
            number,
            is_over,
            ..
        } = self.processes[place];
        if is_over {
            return;
        }
        let source = address(self.net.random.random_range(HOSTILE));
        let asked = request(&mut self.net.random, source, host);
        let answer = self.ask(number, source, &asked);
        let is_leader = self.net.host(number).role() == Role::Leader;
        assert!(is_leader || answer.is_none(), "a member accepts {source}");
        if let Some(arrival) = answer
            && let Some(path) = self.net.host(number).handle_accepted(arrival, &asked)
        {
            self.hostile.push((number, path));
        }
        self.net.pump(number);
    }

    /// Sends some fragments over the connection of a hostile host, which does not acknowledge anything.
    fn send_hostile(&mut self) {
        if self.hostile.is_empty() {
            return;
        }
        let place = self.net.random.random_range(0..self.hostile.len());
        let (number, path) = self.hostile[place];
        for _ in 0..self.net.random.random_range(1..40) {
            if self.net.sides[number].is_over || !is_up(self.net.host(number), path) {
                return;
            }
            let random = &mut self.net.random;
            let length = random.random_range(0..3 * FRAGMENT);
            let ports = [0, 1, 5000].into_iter().chain((0..2 * PROCESSES).map(port));
            let ports: Vec<_> = ports.collect();
            let header = Header {
                sequence: random.random_range(0..1000),
                ack: random.random_range(0..1000),
                length: length as u32,
                source_port: ports[random.random_range(0..ports.len())],
                destination_port: ports[random.random_range(0..ports.len())],
                flags: Flags::from_bits_retain(random.random_range(0..8)),
                credit: random.random(),
                extensions: [
                    Extension::Paths(random.random_range(0..3)),
                    Extension::Generation(random.random()),
                    Extension::Passed {
                        sequence: random.random(),
                        again: random.random(),
                    },
                ]
                .into_iter()
                .skip(random.random_range(0..4))
                .collect(),
            };
            for begin in (0..length.max(1)).step_by(FRAGMENT) {
                let payload = self.net.fragment(&vec![0; FRAGMENT.min(length - begin)]);
                let length = FRAGMENT.min(length - begin);
                let host = self.net.host(number);
                if is_up(host, path) {
                    let taken = host.handle_fragment(path, &header.to_bytes(), length, payload);
                    self.net.refused_fragments.extend(taken.err());
                }
                complete_all(self.net.host(number), path);
                self.net.pump(number);
            }
        }
    }

    fn check_bounds(&mut self) {
        for asked in &self.net.asked[self.counted..] {
            let [_, sent] = self.traffic.entry(asked.destination).or_default();
            *sent += 1;
        }
        self.counted = self.net.asked.len();
        for (address, [received, sent]) in &self.traffic {
            let is_proven = (0..2)
                .chain(HOSTILE)
                .any(|host| at(host, 0).ip() == *address);
            assert!(
                is_proven || *sent <= 3 * received,
                "{address} has sent {received} and gets {sent}"
            );
        }
        let sides = &self.net.sides;
        self.accepted
            .retain(|(number, arrival)| sides[*number].host.is_awaited(*arrival));
        for (number, side) in sides.iter().enumerate().filter(|(_, side)| !side.is_over) {
            let host = &side.host;
            let most = host.limits().max_memory + MESSAGE;
            assert!(host.held() <= most, "{number} holds {}", host.held());
            let arrivals = self.accepted.iter().filter(|(of, _)| *of == number);
            assert!(arrivals.count() <= 64);
            // A path for each peer and each process that passes its messages, and one to each process.
            let processes = 1 + sides.len();
            assert!(host.paths().count() <= (1 + HOSTILE.len()) * processes + processes);
        }
    }

    fn act(&mut self) {
        match self.net.random.random_range(0..100) {
            0..40 => self.send(),
            40..50 => {
                for _ in 0..self.net.random.random_range(1..100) {
                    self.forge();
                }
            }
            50..54 => self.connect_hostile(),
            54..60 => self.send_hostile(),
            60..75 => {
                let to = self.some_process();
                while self.receive(to) {}
            }
            75..77 => self.end(),
            77..79 => self.net.cut(0, 1),
            79..81 => self.restart(),
            _ => {
                let time = Duration::from_micros(self.net.random.random_range(1..3000));
                self.net.pass(time);
            }
        }
        self.check_bounds();
    }

    fn finish(&mut self) {
        self.net.cut_after = None;
        // Peers of a host without memory connect again all the time, so the sockets receive often.
        let mut quiet = Duration::ZERO;
        while quiet < Duration::from_secs(30) {
            let time = Duration::from_millis(10);
            self.net.settle_for(time);
            quiet += time;
            for to in 0..self.processes.len() {
                while self.receive(to) {
                    quiet = Duration::ZERO;
                }
            }
        }
        for ((from, _), queue) in &self.sent {
            let first = self.processes[*from].first;
            let missing = queue.iter().filter(|name| **name >= first);
            *self.missing.entry(*from).or_default() += missing.count() as u64;
        }
        for (place, process) in self.processes.iter().enumerate() {
            let missing = self.missing.get(&place).copied().unwrap_or_default();
            if !process.is_over {
                let host = self.net.host(process.number);
                let told = host.take_undelivered(process.socket);
                assert!(
                    missing <= told,
                    "{missing} messages of {place} are missing, and it was told of {told}"
                );
            }
        }
    }
}

fn is_up(host: &TestHost, path: PathId) -> bool {
    host.is_connected(path) && host.attempt(path).is_none()
}

/// Completes what a host posts on a path without another end. Returns the last sequence number.
fn complete_all(host: &mut TestHost, path: PathId) -> u64 {
    let mut last = 0;
    while let Some(Transmit::Send {
        request, header, ..
    }) = host.poll_transmit(path)
    {
        last = last.max(header.sequence);
        host.handle_completion(path, request);
    }
    last
}

// covers 8.20 8.29 8.31
#[test]
fn a_message_arrives_once_or_its_sender_gets_an_error() {
    for_each_seed("processes", 2000, |seed| {
        let mut run = Run::new(seed);
        for _ in 0..300 {
            run.act();
        }
        run.finish();
    });
}

// covers 8.20
#[test]
fn no_message_of_a_peer_is_lost_with_the_leader() {
    for_each_seed("leaders", 500, |seed| {
        let mut net = Net::new(2, HostLimits::default(), seed);
        let member = net.add_member(0);
        let (near, far) = (net.bind(member, 100), net.bind(1, 200));
        net.settle_for(Duration::from_secs(1));
        for number in 0..40 {
            net.send(1, far, at(0, 100), &content(number, 100)).unwrap();
        }
        let time = Duration::from_micros(net.random.random_range(0..200));
        net.pass(time);
        net.end_process(0);
        net.settle_for(Duration::from_secs(10));
        let received = net.receive_all(member, near);
        let received: Vec<_> = received.into_iter().map(|(_, bytes)| bytes).collect();
        let expected: Vec<_> = (0..40).map(|number| content(number, 100)).collect();
        assert!(
            received == expected,
            "{} of 40 have arrived",
            received.len()
        );
        assert_eq!(net.host(1).take_undelivered(far), 0);
    });
}

// covers 8.20 8.29
#[test]
fn a_restarted_process_counts_anew_and_loses_no_message() {
    for_each_seed("restarted processes", 2000, |seed| {
        let mut net = Net::new(2, HostLimits::default(), seed);
        // The receiver and the sender are the leaders of their addresses or members.
        let is_member = |host: u64| seed >> host & 1 == 1;
        let processes = [0, 1].map(|host| match is_member(host) {
            true => net.add_member(host as usize),
            false => host as usize,
        });
        let [near, far] = processes;
        let to = net.bind(near, 100);
        let mut from = net.bind(far, 200);
        net.settle_for(Duration::from_secs(1));
        for number in 0..20 {
            net.send(far, from, at(0, 100), &content(number, 100))
                .unwrap();
        }
        net.settle_for(Duration::from_secs(1));
        assert_eq!(net.receive_all(near, to).len(), 20);

        let restarted = [far, 1][seed as usize >> 2 & 1];
        net.restart(restarted);
        if restarted == far {
            from = net.bind(far, 200);
        }
        // Each connection carries a few fragments, so that messages are retransmitted before the first one has arrived.
        net.cut_after = Some(3);
        for number in 20..25 {
            net.send(far, from, at(0, 100), &content(number, 100))
                .unwrap();
        }
        let time = Duration::from_micros(net.random.random_range(0..10_000));
        net.pass(time);
        net.cut_after = None;
        net.settle_for(Duration::from_secs(10));
        let received = net.receive_all(near, to);
        let names = received
            .iter()
            .map(|(_, bytes)| (20..25).find(|&name| content(name, 100) == *bytes).unwrap());
        let names: Vec<_> = names.collect();
        assert!(names.is_sorted_by(|one, next| one < next), "{names:?}");
        let missing = 5 - names.len() as u64;
        let told = net.host(far).take_undelivered(from);
        assert!(missing <= told, "{missing} are missing, told of {told}");
    });
}

// covers 8.20 8.46
#[test]
fn a_leader_and_its_members_remember_1024_paths_each() {
    let mut net = Net::new(1, HostLimits::default(), 1);
    let member = net.add_member(0);
    let socket = net.bind(member, 100);
    net.settle();
    for number in 0..1100 {
        let source = Ipv4Addr::from_bits(0x0a00_0000 + number).into();
        let asked = request(&mut net.random, source, 0);
        let Answer::Accept { arrival, .. } =
            net.host(0).handle_request(Some(source), false, &asked)
        else {
            panic!("peer {number} was refused");
        };
        let path = net.host(0).handle_accepted(arrival, &asked).unwrap();
        // The peer and the member exchange a message.
        let message = Header {
            sequence: 1,
            source_port: 300,
            destination_port: 100,
            ..Header::default()
        };
        arrives(&mut net, path, &message);
        assert!(net.receive(member, socket).is_some(), "{number}");
        net.send(member, socket, SocketAddr::new(source, 300), &[])
            .unwrap();
        net.settle();
        let ack = Header {
            ack: complete_all(net.host(0), path),
            ..Header::default()
        };
        arrives(&mut net, path, &ack);
        // The peer goes, and attempts to connect to it fail.
        net.host(0).handle_lost(path);
        net.pump(0);
        net.settle();
        for process in [0, member] {
            assert!(net.host(process).paths().count() <= 1024, "{number}");
        }
    }
}

/// Passes a message without payload to the leader on a path without another end.
fn arrives(net: &mut Net, path: PathId, message: &Header) {
    let nothing = net.fragment(&[]);
    let host = net.host(0);
    host.handle_fragment(path, &message.to_bytes(), 0, nothing)
        .unwrap();
    complete_all(host, path);
    net.pump(0);
    net.settle();
}

// covers 8.20
#[test]
fn a_parked_message_is_acknowledged_after_its_owner_comes() {
    for_each_seed("flushes", 200, |seed| {
        let mut net = Net::new(1, HostLimits::default(), seed);
        let (sends, owns) = (net.add_member(0), net.add_member(0));
        let (from, to) = (net.bind(sends, 100), net.bind(owns, 200));
        let pings = net.bind(sends, 300);
        net.settle_for(Duration::from_secs(1));
        net.end_process(0);
        let time = Duration::from_micros(net.random.random_range(0..200));
        net.pass(time);
        for number in 0..3 {
            let message = content(number, 100);
            net.send(sends, from, at(0, 200), &message).unwrap();
        }
        // A program that waits for acknowledges sends this ping.
        net.send(sends, pings, at(0, 0), &[]).unwrap();
        net.settle_for(Duration::from_secs(10));
        let arrived = net.receive_all(owns, to).len() as u64;
        let told = net.host(sends).take_undelivered(from);
        assert!(
            arrived + told >= 3,
            "{arrived} have arrived, told of {told}"
        );
        assert_eq!(net.host(sends).unacknowledged(from).next(), None);
    });
}

// covers 8.20
#[test]
fn a_member_learns_what_a_peer_acknowledged_before_it_ended() {
    for_each_seed("acknowledged", 200, |seed| {
        let mut net = Net::new(2, HostLimits::default(), seed);
        let sends = net.add_member(0);
        let (from, pings) = (net.bind(sends, 100), net.bind(sends, 300));
        let to = net.bind(1, 200);
        for number in 0..3 {
            let message = content(number, 100);
            net.send(sends, from, at(1, 200), &message).unwrap();
        }
        net.settle_for(Duration::from_secs(1));
        assert_eq!(net.receive_all(1, to).len(), 3);
        net.acknowledge_all(1);
        net.settle_for(Duration::from_secs(1));
        net.end_process(1);
        // A program that waits for acknowledges sends this ping, which nothing answers.
        net.send(sends, pings, at(1, 0), &[]).unwrap();
        net.settle_for(Duration::from_secs(1));
        assert_eq!(net.host(sends).unacknowledged(from).next(), None);
    });
}

/// Memory for a few messages.
fn least_memory() -> HostLimits {
    HostLimits {
        max_memory: 1 << 16,
        ..HostLimits::default()
    }
}

/// Lets sockets receive until no message has arrived for a while. Returns the number of messages of each socket.
fn receive_from_all(net: &mut Net, sockets: &[(usize, SocketId)]) -> Vec<usize> {
    let mut counts = vec![0; sockets.len()];
    let mut last = net.now;
    while net.now < last + Duration::from_secs(30) {
        net.pass(Duration::from_millis(10));
        for (count, &(number, socket)) in counts.iter_mut().zip(sockets) {
            let received = net.receive_all(number, socket).len();
            *count += received;
            if received > 0 {
                last = net.now;
            }
        }
    }
    counts
}

// covers 8.20 8.33
#[test]
fn two_leaders_full_of_messages_for_each_other_go_on() {
    for_each_seed("full leaders", 200, |seed| {
        let mut net = Net::new(2, least_memory(), seed);
        let members = [0, 1].map(|host| {
            let member = net.add_member(host);
            (member, net.bind_with(member, 100, options()))
        });
        net.settle_for(Duration::from_secs(1));
        for number in 0..30 {
            for (host, (member, socket)) in members.into_iter().enumerate() {
                let message = content(number, 9000);
                net.send(member, socket, at(1 - host, 100), &message)
                    .unwrap();
            }
        }
        assert_eq!(receive_from_all(&mut net, &members), [30, 30]);
    });
}

// covers 8.20 8.33
#[test]
fn a_leader_short_of_memory_asks_peers_to_acknowledge() {
    const PEERS: usize = 6;
    let mut net = Net::new(1 + PEERS, least_memory(), 1);
    let member = net.add_member(0);
    let from = net.bind_with(member, 100, options());
    let peers: Vec<_> = (1..=PEERS)
        .map(|peer| (peer, net.bind(peer, 200)))
        .collect();
    net.settle_for(Duration::from_secs(1));
    // So few messages for one peer that none of them requires an acknowledgement by itself.
    for number in 0..4 {
        for &(peer, _) in &peers {
            net.send(member, from, at(peer, 200), &content(number, 4096))
                .unwrap();
        }
    }
    assert_eq!(receive_from_all(&mut net, &peers), [4; PEERS]);
}

// covers 8.20 8.33
#[test]
fn a_full_leader_learns_the_ports_that_messages_wait_for() {
    for_each_seed("full new leaders", 200, |seed| {
        let mut net = Net::new(2, least_memory(), seed);
        let members = [100, 200].map(|port| {
            let member = net.add_member(0);
            (member, net.bind_with(member, port, options()))
        });
        let far = net.bind_with(1, 300, options());
        net.settle_for(Duration::from_secs(1));
        net.end_process(0);
        let time = Duration::from_micros(net.random.random_range(0..200));
        net.pass(time);
        // Messages of the peer fill the new leader, and the other member has messages for it.
        for number in 0..20 {
            let message = content(number, 9000);
            for port in [100, 200] {
                net.send(1, far, at(0, port), &message).unwrap();
            }
            for (place, port) in [(0, 200), (1, 100)] {
                let (member, socket) = members[place];
                net.send(member, socket, at(0, port), &message).unwrap();
            }
        }
        let counts = receive_from_all(&mut net, &members);
        let undelivered = members.map(|(member, socket)| net.host(member).take_undelivered(socket));
        let missing = 80 - counts.iter().sum::<usize>() as u64;
        assert!(
            missing <= undelivered.iter().sum(),
            "{counts:?}, {undelivered:?}"
        );
    });
}
