//! Several processes at each of two addresses, which end at random, and forged requests: the messages are compared with a model.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use polyverbs_rds::SocketOptions;
use polyverbs_rds::protocol::{Answer, HostLimits, Inbound, SocketId};
use polyverbs_wire::rds::{ConnectData, Version};
use rand::Rng;

use crate::net::{Net, address, at, bytes_of, content, for_each_seed};

/// The number of processes at each address; each process has one socket.
const PROCESSES: usize = 3;

/// A process: its address, and its number in the network.
#[derive(Clone, Copy)]
struct Process {
    host: usize,
    number: usize,
    socket: SocketId,
    is_over: bool,
}

struct Run {
    net: Net,
    processes: Vec<Process>,
    /// The messages that were sent and have not been received, by sender and receiver.
    sent: HashMap<(usize, usize), VecDeque<u64>>,
    /// The messages that did not arrive, by sender.
    missing: HashMap<usize, u64>,
    next: u64,
}

fn port(process: usize) -> u16 {
    4000 + process as u16
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut net = Net::new(2, HostLimits::default(), seed);
        net.delay = Duration::from_micros(net.random.random_range(1..500));
        let mut processes = Vec::new();
        for place in 0..2 * PROCESSES {
            let host = place % 2;
            let number = match place < 2 {
                true => host,
                false => net.add_member(host),
            };
            let options = SocketOptions {
                send_buffer: 1 << 20,
                receive_buffer: 1 << 20,
                ..SocketOptions::default()
            };
            let socket = net.bind_with(number, port(place), options);
            processes.push(Process {
                host,
                number,
                socket,
                is_over: false,
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
            missing: HashMap::new(),
            next: 0,
        }
    }

    fn some_process(&mut self) -> usize {
        self.net.random.random_range(0..self.processes.len())
    }

    fn send(&mut self) {
        let (from, to) = (self.some_process(), self.some_process());
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
        let from = usize::from(message.from.port() - port(0));
        let bytes = bytes_of(&message);
        let queue = self.sent.entry((from, to)).or_default();
        loop {
            let next = queue.pop_front();
            let next = next.unwrap_or_else(|| panic!("{from} to {to}: it has arrived before"));
            if content(next, bytes.len()) == bytes {
                return true;
            }
            *self.missing.entry(from).or_default() += 1;
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
        let asked = ConnectData {
            source,
            destination: address(host),
            version: Version::V4_1,
            minor_mask: 3,
            tos: 0,
            member: random.random_range(0..3),
            ack_sequence: random.random(),
            credit: random.random_range(0..2) * random.random::<u32>(),
            incarnation: match random.random_bool(0.5) {
                true => known,
                false => random.random(),
            },
        };
        let from = match random.random_bool(0.5) {
            true => source,
            false => address(random.random_range(0..200)),
        };
        if !self.processes[place].is_over {
            let is_own = from == address(host);
            let before = (self.net.asked.len(), self.net.host(number).paths().count());
            let answer = self
                .net
                .host(number)
                .handle_request(Some(from), false, &asked);
            if from != source || is_own {
                assert_eq!(answer, Answer::Refuse, "{from} named {source}");
            }
            if let Answer::Accept { arrival, .. } = answer
                && self.net.random.random_bool(0.5)
            {
                self.net.host(number).handle_withdrawn(arrival);
            }
            self.net.pump(number);
            // A request that no peer completes makes the host connect to no address, and remember none.
            let after = (self.net.asked.len(), self.net.host(number).paths().count());
            assert_eq!(after, before, "{source}");
        }
    }

    fn act(&mut self) {
        match self.net.random.random_range(0..100) {
            0..45 => self.send(),
            45..55 => self.forge(),
            55..75 => {
                let to = self.some_process();
                while self.receive(to) {}
            }
            75..77 => self.end(),
            77..79 => self.net.cut(0, 1),
            _ => {
                let time = Duration::from_micros(self.net.random.random_range(1..3000));
                self.net.pass(time);
            }
        }
    }

    fn finish(&mut self) {
        self.net.cut_after = None;
        loop {
            self.net.settle_for(Duration::from_secs(30));
            let received = (0..self.processes.len()).filter(|&to| {
                let mut any = false;
                while self.receive(to) {
                    any = true;
                }
                any
            });
            if received.count() == 0 {
                break;
            }
        }
        for ((from, _), queue) in &self.sent {
            *self.missing.entry(*from).or_default() += queue.len() as u64;
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
