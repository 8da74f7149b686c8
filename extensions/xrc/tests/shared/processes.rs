//! Real processes: an initiator in one, and in three others the shared receive queues of one domain, one of which has the
//! target. A receiver is this program again.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, stdin};
use std::net::SocketAddr;
use std::os::fd::AsFd as _;

use test_kit::process::ChildProcess;
use test_kit::waiting::until_some;
use verbs_api::event::EventSubject;
use verbs_api::ids::{Psn, Qpn};
use verbs_api::{
    PathOptions, Qp, QpEndpoint, QpOptions, SrqOptions, WcStatus,
    wr::{self, ReceiveRequest},
};
use xrc::{OpenXrcd, XrcSrq, remote_srqn};

use crate::node::Node;

const RECEIVER: &str = "XRC_RECEIVER";
/// The bytes of a receive, and the receives of a queue.
const ROOM: usize = 64;
const DEPTH: usize = 256;
/// The messages that the initiator has posted and that have not completed, at most.
const WINDOW: usize = 128;

/// How the processes reach one another.
struct Way<'w> {
    address: &'w str,
    memory: bool,
    faults: &'w str,
    /// The messages to all queues together.
    messages: u64,
}

/// One of a receiver's queues, whose receives begin at `base` of the memory.
struct Queue {
    srq: XrcSrq,
    base: usize,
    next: u64,
}

impl Queue {
    fn post(&self, node: &Node, slot: usize) {
        let at = self.base + slot * ROOM;
        let sge = node.mr.sge(at, ROOM as u32).unwrap();
        let receive = ReceiveRequest::new(at as u64, sge);
        self.srq.post_receive(receive).unwrap();
    }
}

// Runs as a receiver, which another test starts.
#[test]
#[ignore = "a process of the other tests"]
fn receiver() {
    let Ok(settings) = std::env::var(RECEIVER) else {
        return;
    };
    let settings: Vec<_> = settings.split(' ').collect();
    let [address, memory, faults, path, queues] = settings[..] else {
        panic!("{settings:?}")
    };
    let address: SocketAddr = address.parse().unwrap();
    let node = Node::new(address, memory == "true", faults);
    let file = File::open(path).unwrap();
    let domain = node.domain(OpenXrcd::of(file.as_fd()).create()).unwrap();
    let queues = 0..queues.parse().unwrap();
    let mut queues: Vec<_> = queues
        .map(|which| {
            let made = domain.create_srq(&node.pd, SrqOptions::new(DEPTH as u32), &node.cq);
            let queue = Queue {
                srq: made.wait().unwrap(),
                base: which * DEPTH * ROOM,
                next: 0,
            };
            (0..DEPTH).for_each(|slot| queue.post(&node, slot));
            queue
        })
        .collect();
    let mut targets = Vec::new();
    for line in stdin().lock().lines().map_while(Result::ok) {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["numbers"] => {
                let numbers = queues.iter().map(|queue| queue.srq.number().to_string());
                println!("\n> {}", numbers.collect::<Vec<_>>().join(" "));
            }
            ["target", qpn, psn, from] => {
                let target = domain.create_target().wait().unwrap();
                let peer = peer(qpn, psn, from);
                target.connect(&peer, PathOptions::new()).wait().unwrap();
                println!("\n> {}", endpoint_text(&target));
                targets.push(target);
            }
            ["open", qpn] => {
                let target = domain.open_target(Qpn::new(qpn.parse().unwrap()));
                targets.push(target.wait().unwrap());
                println!("\n> opened");
            }
            ["event"] => {
                let event = until_some(|| node.context.poll_event());
                let handle = targets.last().unwrap();
                assert_eq!(event.subject(), EventSubject::Object(handle.id()));
                let state = handle.query().unwrap().state;
                println!("\n> {:?} {state}", event.event_type());
            }
            ["receive", count] => {
                let count: u64 = count.parse().unwrap();
                while queues.iter().map(|queue| queue.next).sum::<u64>() < count {
                    let done = node.take(1).remove(0);
                    assert_eq!(done.status, WcStatus::Success);
                    let at = done.wr_id as usize;
                    let queue = &mut queues[at / (DEPTH * ROOM)];
                    let mut number = [0; 8];
                    node.memory.read(at, &mut number).unwrap();
                    // Each message arrives once, and in the order in which it was sent.
                    assert_eq!(u64::from_ne_bytes(number), queue.next);
                    queue.next += 1;
                    queue.post(&node, at % (DEPTH * ROOM) / ROOM);
                }
                assert!(node.poll().is_none(), "a message arrived twice");
                println!("\n> received");
            }
            _ => panic!("{line}"),
        }
    }
}

fn endpoint_text(qp: &Qp) -> String {
    let own = qp.endpoint().unwrap();
    format!("{} {}", own.qp_num.value(), own.sq_psn.value())
}

// Returns the endpoint of a peer at the address `at`.
fn peer(qpn: &str, psn: &str, at: &str) -> QpEndpoint {
    let at: SocketAddr = at.parse().unwrap();
    QpEndpoint {
        qp_num: Qpn::new(qpn.parse().unwrap()),
        sq_psn: Psn::new(psn.parse().unwrap()),
        address: verbs_api::ids::LinkAddress::Ip(at.ip()),
        gid: at.ip().into(),
    }
}

/// The initiator, the receivers that it sends to, and what it has sent to each queue.
struct Sender {
    node: Node,
    /// Initiators, each with a target of its own in the first receiver. The last one is in use.
    qps: Vec<Qp>,
    receivers: Vec<ChildProcess>,
    queues: Vec<Outgoing>,
    /// The queues of the messages that have not completed.
    posted: VecDeque<usize>,
}

/// The messages that were sent to one queue.
struct Outgoing {
    number: u32,
    /// How many messages were carried out.
    done: u64,
    /// The number of the next message.
    next: u64,
    is_there: bool,
}

/// How many queues each receiver has.
const QUEUES: [u64; 3] = [1, 2, 1];

impl Sender {
    fn new(own: &str, way: &Way<'_>, file: &str) -> Self {
        let Way {
            address,
            memory,
            faults,
            ..
        } = way;
        let start = |queues: u64| {
            let settings = format!("{address} {memory} {faults} {file} {queues}");
            ChildProcess::start("processes::receiver", RECEIVER, &settings)
        };
        let mut receivers: Vec<_> = QUEUES.map(start).into_iter().collect();
        let mut queues = Vec::new();
        for receiver in &mut receivers {
            let numbers = receiver.ask("numbers");
            queues.extend(numbers.split(' ').map(|number| Outgoing {
                number: number.parse().unwrap(),
                done: 0,
                next: 0,
                is_there: true,
            }));
        }
        let node = Node::new(own.parse().unwrap(), *memory, faults);
        let qps = [(); 2].map(|()| {
            let options = QpOptions::rc(&node.cq)
                .with(&node.xrc)
                .sq_sig_all()
                .max_send_wr(WINDOW as u32);
            let qp = node.pd.create_qp(options).wait().unwrap();
            let target = receivers[0].ask(&format!("target {} {own}", endpoint_text(&qp)));
            let (qpn, psn) = target.split_once(' ').unwrap();
            let peer = peer(qpn, psn, address);
            qp.connect(&peer, PathOptions::new()).wait().unwrap();
            qp
        });
        Self {
            node,
            qps: qps.into(),
            receivers,
            queues,
            posted: VecDeque::new(),
        }
    }

    // Posts messages to the queues in turn, as many as may be under way. Each queue gets the messages below `end`.
    fn post(&mut self, end: u64) {
        let qp = self.qps.last().unwrap();
        while self.posted.len() < WINDOW {
            let before = self.posted.len();
            for (which, queue) in self.queues.iter_mut().enumerate() {
                if self.posted.len() < WINDOW && queue.is_there && queue.next < end {
                    let bytes = queue.next.to_ne_bytes();
                    let message = wr::Send::new(&bytes).with(remote_srqn(queue.number));
                    qp.post_one(message).unwrap();
                    queue.next += 1;
                    self.posted.push_back(which);
                }
            }
            if self.posted.len() == before {
                return;
            }
        }
    }

    // Sends to the queues that are there until each has got the messages below `end`. Kills the last receiver when it has got
    // `most`. Returns the queue and the status of the first message that failed.
    fn send(&mut self, end: u64, most: Option<u64>) -> Option<(usize, WcStatus)> {
        let last = self.queues.len() - 1;
        loop {
            self.post(end);
            let which = self.posted.pop_front()?;
            let done = self.node.take(1).remove(0);
            if done.status != WcStatus::Success {
                self.forget_posted(which);
                return Some((which, done.status));
            }
            self.queues[which].done += 1;
            if which == last && Some(self.queues[last].done) == most {
                self.receivers.last_mut().unwrap().child.kill().unwrap();
            }
        }
    }

    // Takes the completions of all messages after a failed one, none of which was carried out.
    fn forget_posted(&mut self, failed: usize) {
        for done in self.node.take(self.posted.len()) {
            assert_eq!(done.status, WcStatus::WrFlushErr);
        }
        self.posted.clear();
        self.queues[failed].is_there = false;
        for queue in &mut self.queues {
            queue.next = queue.done;
        }
        drop(self.qps.pop());
    }

    fn receive(&mut self, end: u64) {
        for (receiver, queues) in self.receivers.iter_mut().zip(QUEUES) {
            receiver.say(&format!("receive {}", end * queues));
        }
    }

    // Sends all messages. The last receiver is killed meanwhile.
    fn run(mut self, messages: u64) {
        let each = messages / self.queues.len() as u64;
        self.receive(each / 2);
        assert_eq!(self.send(each / 2, None), None);
        for receiver in &mut self.receivers {
            assert_eq!(receiver.answer(), "received");
        }
        self.receive(each);
        let failed = self.send(each, Some(each * 3 / 4));
        assert_eq!(failed, Some((3, WcStatus::RemInvReqErr)));
        // The other queues get the rest through another target: no message is lost, and none arrives twice.
        assert_eq!(self.send(each, None), None);
        for receiver in &mut self.receivers[..2] {
            assert_eq!(receiver.answer(), "received");
        }
    }
}

fn run(own: &str, way: &Way<'_>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    Sender::new(own, way, file.path().to_str().unwrap()).run(way.messages);
}

// covers 4.01 4.09 4.11
#[test]
fn queues_of_three_processes_get_each_message_once_and_in_order() {
    let way = Way {
        address: "127.0.7.1:48101",
        memory: true,
        faults: "none",
        messages: 100_000,
    };
    run(way.address, &way);
}

// covers 4.01 4.09 4.11
#[test]
fn queues_get_each_message_once_over_sockets_that_lose_packets() {
    let way = Way {
        address: "127.0.7.1:48102",
        memory: false,
        faults: "drop=0.2%",
        messages: 20_000,
    };
    run("127.0.7.2:48102", &way);
}

// covers 4.07
#[test]
fn a_handle_reports_that_the_process_with_the_target_was_killed() {
    let address = "127.0.7.1:48103";
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let settings = format!("{address} true none {path} 1");
    let start = || ChildProcess::start("processes::receiver", RECEIVER, &settings);
    let [mut owner, mut other] = [start(), start()];
    let target = owner.ask(&format!("target 300000 7 {address}"));
    let (qpn, _) = target.split_once(' ').unwrap();
    assert_eq!(other.ask(&format!("open {qpn}")), "opened");
    owner.child.kill().unwrap();
    assert_eq!(other.ask("event"), "QpFatal ERR");
}
