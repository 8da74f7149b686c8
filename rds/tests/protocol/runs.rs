//! Random actions of programs over connections that end at any time, compared with a model.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use polyverbs_rds::SocketOptions;
use polyverbs_rds::protocol::{FlowControl, HostLimits, Inbound, SocketId};
use rand::Rng;

use crate::net::{Net, at, bytes_of, content, for_each_seed};

const SOCKETS: usize = 8;

/// A socket: its host, and its index among the sockets there.
type Place = (usize, usize);

fn port(socket: usize) -> u16 {
    4000 + socket as u16
}

/// A message that may arrive; it has to unless it is optional.
struct Sent {
    name: u64,
    length: usize,
    is_optional: bool,
}

/// The messages that may still arrive, by sender and receiver and in their order.
#[derive(Default)]
struct Model {
    sent: HashMap<(Place, Place), VecDeque<Sent>>,
    next: u64,
}

impl Model {
    fn received(&mut self, from: Place, to: Place, bytes: &[u8]) {
        let queue = self.sent.entry((from, to)).or_default();
        loop {
            let next = queue.pop_front();
            let next = next.unwrap_or_else(|| panic!("{from:?} to {to:?}: nothing is expected"));
            if next.length == bytes.len() && content(next.name, next.length) == bytes {
                return;
            }
            assert!(
                next.is_optional,
                "{from:?} to {to:?}: message {} of {} bytes is missing, {} bytes are here",
                next.name,
                next.length,
                bytes.len()
            );
        }
    }

    /// Makes messages optional, because they may be lost or may have arrived already.
    fn give_up(&mut self, is_meant: impl Fn(Place, Place) -> bool) {
        let meant = self.sent.iter_mut();
        for (_, queue) in meant.filter(|((from, to), _)| is_meant(*from, *to)) {
            queue.iter_mut().for_each(|sent| sent.is_optional = true);
        }
    }

    fn check_end(&self) {
        for ((from, to), queue) in &self.sent {
            let missing = queue.iter().find(|sent| !sent.is_optional);
            if let Some(missing) = missing {
                panic!("{from:?} to {to:?}: message {} is lost", missing.name);
            }
        }
    }
}

struct Run {
    net: Net,
    model: Model,
    sockets: [Vec<Option<SocketId>>; 2],
    options: SocketOptions,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut net = Net::new(2, HostLimits::default(), seed);
        let random = &mut net.random;
        let limits = HostLimits {
            send_requests: [2, 8, 256][random.random_range(0..3)],
            first_receives: [32, 64][random.random_range(0..2)],
            receives: 512,
            flow_control: match random.random_range(0..3) {
                0 => FlowControl::Accepted,
                1 => FlowControl::Asked,
                _ => FlowControl::Required,
            },
            // One run in ten has less memory than its sockets may fill.
            max_memory: match random.random_bool(0.1) {
                true => 1 << 20,
                false => 256 << 20,
            },
        };
        let buffers = [2_048, 106_496, 2 << 20];
        let options = SocketOptions {
            send_buffer: buffers[random.random_range(0..3)],
            receive_buffer: buffers[random.random_range(0..3)],
            ..SocketOptions::default()
        };
        let cut_after = match random.random_bool(0.5) {
            true => Some(random.random_range(1..200)),
            false => None,
        };
        let delay = Duration::from_micros(random.random_range(1..500));
        let mut net = Net::new(2, limits, seed);
        (net.cut_after, net.delay) = (cut_after, delay);
        let sockets = [0, 1].map(|host| {
            let bind = |socket| Some(net.bind_with(host, port(socket), options));
            (0..SOCKETS).map(bind).collect()
        });
        Self {
            net,
            model: Model::default(),
            sockets,
            options,
        }
    }

    fn some_place(&mut self) -> Place {
        let random = &mut self.net.random;
        (random.random_range(0..2), random.random_range(0..SOCKETS))
    }

    fn some_length(&mut self) -> usize {
        let random = &mut self.net.random;
        match random.random_range(0..100) {
            0..10 => 0,
            10..80 => random.random_range(1..300),
            80..98 => random.random_range(300..20_000),
            _ => random.random_range(20_000..=1 << 20),
        }
    }

    fn send(&mut self) {
        let from = self.some_place();
        let to = match self.net.random.random_bool(0.9) {
            true => (1 - from.0, self.net.random.random_range(0..SOCKETS)),
            false => (from.0, self.net.random.random_range(0..SOCKETS)),
        };
        let mut length = self.some_length();
        let queue = self.model.sent.entry((from, to)).or_default();
        // Messages shorter than 8 bytes have no unique content, so they could be confused with messages that may have been lost.
        if length < 8 && queue.iter().any(|sent| sent.is_optional) {
            length += 8;
        }
        let Some(socket) = self.sockets[from.0][from.1] else {
            return;
        };
        let name = self.model.next;
        self.model.next += 1;
        let bytes = content(name, length);
        let sent = self.net.send(from.0, socket, at(to.0, port(to.1)), &bytes);
        if sent.is_ok() {
            let queue = self.model.sent.entry((from, to)).or_default();
            queue.push_back(Sent {
                name,
                length,
                is_optional: self.sockets[to.0][to.1].is_none(),
            });
        }
    }

    fn receive(&mut self, to: Place) -> bool {
        let Some(socket) = self.sockets[to.0][to.1] else {
            return false;
        };
        let message = match self.net.receive(to.0, socket) {
            Some(Inbound::Message(message)) => message,
            None => return false,
            other => panic!("{other:?} instead of a message"),
        };
        let from = (0..2).find(|&host| at(host, 0).ip() == message.from.ip());
        let from = (from.unwrap(), usize::from(message.from.port() - port(0)));
        self.model.received(from, to, &bytes_of(&message));
        true
    }

    fn cancel(&mut self) {
        let from = self.some_place();
        let to = (1 - from.0, self.net.random.random_range(0..SOCKETS));
        let is_all = self.net.random.random_bool(0.3);
        let Some(socket) = self.sockets[from.0][from.1] else {
            return;
        };
        let named = (!is_all).then(|| at(to.0, port(to.1)));
        self.net.cancel(from.0, socket, named);
        self.model
            .give_up(|source, destination| source == from && (is_all || destination == to));
    }

    fn close(&mut self) {
        let place = self.some_place();
        if let Some(socket) = self.sockets[place.0][place.1].take() {
            self.net.close(place.0, socket);
            self.model.give_up(|from, to| from == place || to == place);
        }
    }

    fn open(&mut self, place: Place) {
        let socket = &mut self.sockets[place.0][place.1];
        if socket.is_none() {
            *socket = Some(self.net.bind_with(place.0, port(place.1), self.options));
        }
    }

    fn act(&mut self) {
        match self.net.random.random_range(0..200) {
            0..100 => self.send(),
            100..160 => {
                let place = self.some_place();
                for _ in 0..self.net.random.random_range(1..20) {
                    self.receive(place);
                }
            }
            160..164 => self.cancel(),
            164..166 => self.close(),
            166..170 => {
                let place = self.some_place();
                self.open(place);
            }
            170..173 => self.net.cut(0, 1),
            _ => {
                let most = Duration::from_millis(self.net.random.random_range(1..5));
                let time = most.mul_f64(self.net.random.random());
                self.net.pass(time);
            }
        }
        self.check_bounds();
    }

    /// Asserts that the fragments in the network stay within the buffers; each buffer may be exceeded by one message.
    fn check_bounds(&self) {
        let kept = self.options.send_buffer.max(self.options.receive_buffer) + (1 << 20);
        // Each fragment may be on its way a second time. Fragments that are sent before the congestion map arrives add to that.
        let most = 2 * SOCKETS * (4 * kept).div_ceil(4096) + 4_000;
        assert!(self.net.fragments_held() <= most);
    }

    fn finish(&mut self) {
        self.net.cut_after = None;
        for host in 0..2 {
            (0..SOCKETS).for_each(|socket| self.open((host, socket)));
        }
        loop {
            self.net.settle_for(Duration::from_secs(3));
            let places = (0..2).flat_map(|host| (0..SOCKETS).map(move |socket| (host, socket)));
            let received = places.filter(|&place| {
                let mut any = false;
                while self.receive(place) {
                    any = true;
                }
                any
            });
            if received.count() == 0 {
                break;
            }
        }
        self.model.check_end();
        for host in 0..2 {
            for path in self.net.host(host).paths() {
                assert_eq!(path.queued, 0, "everything is sent: {path:?}");
                // No acknowledge of the last messages was requested.
                assert!(path.unacknowledged <= 9, "{path:?}");
            }
            for socket in self.sockets[host].clone().into_iter().flatten() {
                assert!(self.net.host(host).readiness(socket).writable);
            }
        }
    }
}

// covers 8.20 8.29 8.31
#[test]
fn messages_arrive_once_and_in_order_over_cut_connections() {
    for_each_seed("random programs", 2000, |seed| {
        let mut run = Run::new(seed);
        for _ in 0..400 {
            run.act();
        }
        run.finish();
    });
}
