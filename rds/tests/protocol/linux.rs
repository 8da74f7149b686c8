//! A peer that counts sequence numbers as Linux's `rds_recv_incoming` does: it has no incarnation, and remembers the numbers of
//! the host that had this address before.

use std::time::Duration;

use polyverbs_rds::protocol::{Action, HostLimits, PathId, Transmit};
use polyverbs_wire::rds::{ConnectData, Flags, Header};
use rand::Rng;

use crate::net::{Net, TestHost, address, at, for_each_seed};

/// The port of the peer's only socket.
const PORT: u16 = 200;

struct Linux {
    /// Linux's `cp_next_rx_seq`, which outlives connections.
    next_receive: u64,
    /// The lengths of the messages that the socket has received.
    received: Vec<u32>,
}

impl Linux {
    /// Receives a fragment, which is a whole message. Returns the acknowledgement if the message requires one.
    fn receive(&mut self, header: &Header) -> Option<Header> {
        if header.is_map() || header.is_ack_only(header.length as usize) {
            return None;
        }
        let ports = (header.source_port, header.destination_port);
        assert!(
            ![(0, 1), (1, 0)].contains(&ports),
            "Linux expects handshakes over TCP only"
        );
        let is_marked = header.flags.contains(Flags::RETRANSMITTED);
        if !is_marked || header.sequence >= self.next_receive {
            self.next_receive = header.sequence + 1;
            self.received
                .extend((header.destination_port == PORT).then_some(header.length));
        }
        let ack = Header {
            ack: header.sequence,
            ..Header::default()
        };
        let is_required = header.flags.contains(Flags::ACK_REQUIRED);
        is_required.then_some(ack)
    }
}

struct Run {
    net: Net,
    host: TestHost,
    now: Duration,
}

impl Run {
    /// Answers the host's next connection request as a peer with this incarnation; Linux has none and sends 0. Returns
    /// `None` if the host does not connect again.
    fn connect(&mut self, incarnation: u32) -> Option<PathId> {
        loop {
            match self.host.poll_action() {
                Some(Action::Connect { path, data, .. }) => {
                    let told = ConnectData {
                        incarnation,
                        ..data
                    };
                    self.host.handle_connected(path, &told);
                    return Some(path);
                }
                Some(_) => {}
                None => {
                    self.now = self.now.max(self.host.next_due()?);
                    self.host.handle_timeout(self.now);
                }
            }
        }
    }

    /// The header of the next fragment that the host posts.
    fn transmit(&mut self, path: PathId) -> Option<Header> {
        let Transmit::Send {
            request, header, ..
        } = self.host.poll_transmit(path)?
        else {
            panic!("no operation was sent");
        };
        self.host.handle_completion(path, request);
        Some(header)
    }

    /// Ends the connection. What the host had posted and the peer had not received is lost.
    fn end(&mut self, path: PathId) {
        while self.transmit(path).is_some() {}
        self.host.handle_lost(path);
        self.host.handle_gone(self.now, path);
    }
}

/// A new host with this many messages for the peer, of 1, 2, 3, … bytes.
fn host_with_messages(count: u32, seed: u64) -> Run {
    let net = Net::new(0, HostLimits::default(), seed);
    let mut host = TestHost::new(address(0), HostLimits::default(), seed);
    let (socket, _) = host.bind(100, Default::default()).unwrap();
    for length in 1..=count {
        let message = net.message(at(1, PORT), &vec![1; length as usize]);
        host.send(socket, message).unwrap();
    }
    Run {
        net,
        host,
        now: Duration::ZERO,
    }
}

// covers 8.29 8.31
#[test]
fn linux_receives_each_message_once_after_a_restart() {
    for_each_seed("Linux", 1000, |seed| {
        let mut run = host_with_messages(20, seed);
        let mut linux = Linux {
            next_receive: run.net.random.random_range(0..100),
            received: Vec::new(),
        };
        for is_last in (0..20).map(|connection| connection == 19) {
            let Some(path) = run.connect(0) else {
                break;
            };
            let fragments = match is_last {
                true => usize::MAX,
                false => run.net.random.random_range(0..10),
            };
            // Acknowledgements are lost as well if the connection ends before they arrive.
            let loses_acks = run.net.random.random_bool(0.3) && !is_last;
            for _ in 0..fragments {
                let Some(header) = run.transmit(path) else {
                    break;
                };
                let ack = linux.receive(&header);
                if let Some(ack) = ack.filter(|_| !loses_acks) {
                    let nothing = run.net.fragment(&[]);
                    run.host
                        .handle_fragment(path, &ack.to_bytes(), 0, nothing)
                        .unwrap();
                }
            }
            if !is_last {
                run.end(path);
            }
        }
        assert_eq!(linux.received, Vec::from_iter(1..=20));
    });
}

// covers 8.29
#[test]
fn a_peer_with_an_incarnation_gets_messages_at_once() {
    let mut run = host_with_messages(3, 1);
    let path = run.connect(7).expect("the host has messages");
    let headers: Vec<_> = std::iter::from_fn(|| run.transmit(path)).collect();
    let messages = headers.iter().filter(|header| !header.is_map());
    assert!(messages.map(|header| header.length).eq([1, 2, 3]));
}
