//! Two hosts whose connection is a pair of queue pairs on a network that loses a fifth of what it carries, in virtual time.

use std::collections::VecDeque;
use std::time::Duration;

use polyverbs::completion::Submitted;
use polyverbs::emulated::{self, EmulatedOptions, VirtualClock};
use polyverbs::qp::connect_pair_with;
use polyverbs::{BufferPool, Cq, PathOptions, Pd, Qp, QpOptions, Requirements, wr};
use polyverbs_rds::SocketOptions;
use polyverbs_rds::protocol::{
    Action, Answer, FlowControl, HostLimits, Inbound, PathId, Payload, SocketId, Transmit,
};
use polyverbs_wire::rds::{ConnectData, FRAGMENT, HEADER};

use crate::net::{Net, TestHost, address, at, bytes_of, content, for_each_seed};

/// Messages in each direction, and the length of each: 1.5 MB, so 3 MB in all.
const MESSAGES: u64 = 50;
const LENGTH: usize = 30_000;

/// By how much the clock advances between two polls.
const STEP: Duration = Duration::from_micros(100);

/// One end of the connection.
struct End {
    host: TestHost,
    socket: SocketId,
    qp: Qp,
    path: Option<PathId>,
    /// The posted sends, each with the number of its request.
    sends: VecDeque<(u64, Submitted)>,
    receives: VecDeque<Submitted>,
    sent: u64,
    received: u64,
}

/// The two ends, and what they share.
struct Lossy {
    clock: VirtualClock,
    pool: BufferPool,
    /// The source of the fragments.
    net: Net,
    ends: [End; 2],
    _objects: (Pd, Cq),
}

impl Lossy {
    fn new(name: &str, faults: &str, flow_control: FlowControl, seed: u64) -> Self {
        let clock = VirtualClock::new();
        let options = EmulatedOptions {
            clock: Some(clock.clone()),
            faults: format!("{faults},seed={seed}").parse().unwrap(),
            ..EmulatedOptions::default()
        };
        let device = emulated::device(name, &options).unwrap();
        let context = device.open(&Requirements::new()).unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(4096).wait().unwrap();
        let pool = pd.register_buffers(2048, HEADER + FRAGMENT).wait().unwrap();
        let limits = HostLimits {
            flow_control,
            ..HostLimits::default()
        };
        let ends = [0, 1].map(|number| {
            let mut host = TestHost::new(address(number), limits, seed + number as u64);
            let buffers = SocketOptions {
                send_buffer: 1 << 18,
                receive_buffer: 1 << 18,
                ..SocketOptions::default()
            };
            let socket = host.bind(100, buffers).unwrap().0;
            let options = QpOptions::rc(&cq)
                .max_send_wr(limits.send_requests)
                .max_recv_wr(limits.receives);
            let qp = pd.create_qp(options).wait().unwrap();
            End {
                host,
                socket,
                qp,
                path: None,
                sends: VecDeque::new(),
                receives: VecDeque::new(),
                sent: 0,
                received: 0,
            }
        });
        connect_pair_with(&ends[0].qp, &ends[1].qp, PathOptions::new())
            .wait()
            .unwrap();
        let mut lossy = Self {
            clock,
            pool,
            net: Net::new(0, limits, seed),
            ends,
            _objects: (pd, cq),
        };
        for end in 0..2 {
            for _ in 0..limits.first_receives {
                lossy.post_receive(end);
            }
        }
        lossy
    }

    fn post_receive(&mut self, end: usize) {
        let buffer = self.pool.take().expect("there are buffers");
        let end = &mut self.ends[end];
        end.receives.push_back(end.qp.receive(buffer));
    }

    /// Connects the path by the queue pairs, which are connected already: only messages are subject to loss here.
    fn connect(&mut self, number: usize, path: PathId, data: &ConnectData) {
        let [near, far] = self.ends.get_disjoint_mut([number, 1 - number]).unwrap();
        let answer = far.host.handle_request(Some(data.source), false, data);
        let Answer::Accept {
            arrival,
            data: told,
        } = answer
        else {
            panic!("the host refuses the request");
        };
        let attempt = near.host.attempt(path).expect("an attempt is in progress");
        assert!(near.host.handle_reply(path, attempt, &told));
        near.host.handle_connected(path, &told);
        near.path = Some(path);
        far.path = far.host.handle_accepted(arrival, data);
    }

    /// Posts what a host has to send, and carries out its actions.
    fn pump(&mut self, number: usize) {
        loop {
            while let Some(path) = self.ends[number].host.next_ready() {
                self.transmit(number, path);
                self.ends[number].host.settle(path);
            }
            match self.ends[number].host.poll_action() {
                Some(Action::Connect { path, data, .. }) => self.connect(number, path, &data),
                Some(Action::Wake(_)) => {}
                Some(other) => panic!("{other:?}: the connection is not to end"),
                None => return,
            }
        }
    }

    fn transmit(&mut self, number: usize, path: PathId) {
        let end = &mut self.ends[number];
        if end.path != Some(path) {
            return;
        }
        while let Some(Transmit::Send {
            request,
            header,
            payload,
            ..
        }) = end.host.poll_transmit(path)
        {
            let mut buffer = self.pool.take().expect("there are buffers");
            buffer[..HEADER].copy_from_slice(&header.to_bytes());
            let mut bytes = [0; FRAGMENT];
            let payload = match payload {
                Payload::None => &[],
                Payload::Fragment { fragment, length } => {
                    polyverbs_rds::protocol::Fragment::copy_to(fragment, &mut bytes[..length]);
                    &bytes[..length]
                }
                Payload::Map(map) => map,
            };
            buffer[HEADER..][..payload.len()].copy_from_slice(payload);
            buffer.set_len(HEADER + payload.len());
            let sent = end.qp.submit(wr::Send::new(buffer));
            end.sends.push_back((request, sent));
        }
    }

    /// Passes completions to the host.
    fn poll(&mut self, number: usize) {
        let end = &mut self.ends[number];
        let Some(path) = end.path else { return };
        while let Some((request, sent)) = end.sends.front_mut()
            && sent.wait_for(Duration::ZERO).unwrap().is_some()
        {
            end.host.handle_completion(path, *request);
            end.sends.pop_front();
        }
        let mut taken = 0;
        while let Some(received) = end.receives.front_mut()
            && let Some(completion) = received.wait_for(Duration::ZERO).unwrap()
        {
            let bytes = completion.buffer();
            let payload = self.net.fragment(&bytes[HEADER..]);
            let length = bytes.len() - HEADER;
            end.host
                .handle_fragment(path, &bytes[..HEADER], length, payload)
                .unwrap();
            end.receives.pop_front();
            taken += 1;
        }
        (0..taken).for_each(|_| self.post_receive(number));
        let host = &mut self.ends[number].host;
        host.handle_posted_receives(path, taken);
    }

    /// Sends as many messages as the host accepts, and checks those that have arrived.
    fn program(&mut self, number: usize) {
        let end = &mut self.ends[number];
        while end.sent < MESSAGES {
            let message = self
                .net
                .message(at(1 - number, 100), &content(end.sent, LENGTH));
            if end.host.send(end.socket, message).is_err() {
                break;
            }
            end.sent += 1;
        }
        while let Some(inbound) = end.host.receive(end.socket, usize::MAX) {
            let Inbound::Message(message) = inbound else {
                panic!("{inbound:?} instead of a message");
            };
            assert_eq!(bytes_of(&message), content(end.received, LENGTH));
            end.received += 1;
        }
    }

    /// Runs until both sockets have received all messages, which takes less than `most` of virtual time.
    fn run(&mut self, most: Duration) {
        while self.ends.iter().any(|end| end.received < MESSAGES) {
            for end in 0..2 {
                self.program(end);
                self.pump(end);
                self.poll(end);
                self.pump(end);
            }
            self.clock.advance(STEP).unwrap();
            let counts = self.ends.each_ref().map(|end| end.received);
            assert!(self.clock.now() < most, "{counts:?} messages have arrived");
        }
    }
}

/// Sends all messages within this virtual time, and checks that nothing arrives afterwards.
fn all_arrive_once(name: &str, faults: &str, flow_control: FlowControl, most: Duration) {
    for_each_seed(name, 100, |seed| {
        let mut lossy = Lossy::new(name, faults, flow_control, seed);
        lossy.run(most);
        for _ in 0..100 {
            lossy.clock.advance(STEP).unwrap();
            for end in 0..2 {
                lossy.poll(end);
                lossy.pump(end);
                lossy.program(end);
            }
        }
        let counts = lossy.ends.each_ref().map(|end| end.received);
        assert_eq!(counts, [MESSAGES; 2]);
    });
}

// covers 8.20 8.31
#[test]
fn messages_arrive_once_and_soon_at_20_percent_loss() {
    let most = Duration::from_secs(4);
    all_arrive_once("ib0", "drop=20%,delay=50us", FlowControl::Accepted, most);
}

// covers 8.20 8.31
#[test]
fn messages_arrive_once_and_soon_on_a_stream_that_often_stalls() {
    let most = Duration::from_secs(2);
    // TCP below iWARP repeats what is lost. What follows waits for it.
    let faults = "stall=20%:2ms,delay=50us";
    all_arrive_once("iw0", faults, FlowControl::Required, most);
}
