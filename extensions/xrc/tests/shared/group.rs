//! Domains that the processes at one address share. Here each of them is a device of its own in one process, with a range of
//! numbers of its own; `processes` has real ones.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use test_kit::waiting::{until, until_some};
use verbs_api::event::{EventSubject, EventType};
use verbs_api::qp::QpState;
use verbs_api::{
    Access, Completion, ErrorKind, PathOptions, Qp, QpOptions, SrqOptions, VerbError, WcStatus,
    completion::WcOpcode,
    wr::{self, ReceiveRequest, WorkRequest},
};
use xrc::{OpenXrcd, XrcSrq, Xrcd, remote_srqn};

use crate::node::Node;

fn node(port: u16, memory: bool) -> Node {
    Node::new(SocketAddr::from(([127, 0, 7, 1], port)), memory, "none")
}

/// A process that has a shared receive queue in the domain.
struct Receiver {
    node: Node,
    domain: Xrcd,
    srq: XrcSrq,
}

impl Receiver {
    fn new(port: u16, memory: bool, file: &File) -> Self {
        let node = node(port, memory);
        let domain = node.domain(OpenXrcd::of(file.as_fd()).create()).unwrap();
        let srq = domain
            .create_srq(&node.pd, SrqOptions::new(64), &node.cq)
            .wait()
            .unwrap();
        Self { node, domain, srq }
    }

    fn receives(&self, count: usize, length: usize) {
        for id in 0..count {
            let sge = self.node.mr.sge(id * length, length as u32).unwrap();
            self.srq
                .post_receive(ReceiveRequest::new(id as u64, sge))
                .unwrap();
        }
    }

    fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.node.memory.read(at, &mut bytes).unwrap();
        bytes
    }
}

/// An initiator that is connected to a target of another process, and three processes with queues in the target's domain;
/// the first of them has the target.
struct Lab {
    node: Node,
    initiator: Qp,
    target: Qp,
    receivers: [Receiver; 3],
    _file: File,
}

impl Lab {
    fn new(port: u16, memory: bool) -> Self {
        let file = tempfile::tempfile().unwrap();
        let receivers = [(); 3].map(|()| Receiver::new(port, memory, &file));
        let node = node(port, memory);
        let options = QpOptions::rc(&node.cq).with(&node.xrc).sq_sig_all();
        let initiator = node.pd.create_qp(options).wait().unwrap();
        let target = receivers[0].domain.create_target().wait().unwrap();
        let open = PathOptions::new()
            .access(Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC);
        let (here, there) = (initiator.endpoint().unwrap(), target.endpoint().unwrap());
        target.connect(&here, open).wait().unwrap();
        initiator.connect(&there, open).wait().unwrap();
        Self {
            node,
            initiator,
            target,
            receivers,
            _file: file,
        }
    }

    fn run<'a>(&self, request: impl Into<WorkRequest<'a>>) -> Completion {
        self.initiator.post_one(request.into()).unwrap();
        self.node.take(1).remove(0)
    }

    fn succeeds<'a>(&self, request: impl Into<WorkRequest<'a>>) {
        assert_eq!(self.run(request).status, WcStatus::Success);
    }

    fn to(&self, which: usize) -> verbs_api::extension::RequestAttribute {
        remote_srqn(self.receivers[which].srq.number())
    }
}

fn octets(length: usize, seed: usize) -> Vec<u8> {
    (0..length)
        .map(|at| ((at + seed) * 7 + at / 251) as u8)
        .collect()
}

// covers 4.01
#[test]
fn processes_at_an_address_share_the_domain_of_a_file() {
    let file = tempfile::tempfile().unwrap();
    let of = || OpenXrcd::of(file.as_fd());
    let [one, other] = [(); 2].map(|()| node(48_001, true));
    let kind = |refused: Result<Xrcd, VerbError>| refused.unwrap_err().kind();
    assert_eq!(kind(one.domain(of())), ErrorKind::InvalidArgument);
    let first = one.domain(of().create().exclusive()).unwrap();
    for node in [&one, &other] {
        let again = node.domain(of().create().exclusive());
        assert_eq!(kind(again), ErrorKind::InvalidArgument);
    }
    let second = other.domain(of()).unwrap();
    // The domain stays as long as any process has it.
    first.close().unwrap();
    let third = one.domain(of()).unwrap();
    second.close().unwrap();
    third.close().unwrap();
    assert_eq!(kind(other.domain(of())), ErrorKind::InvalidArgument);
    // A process at another address has a domain of its own.
    let first = one.domain(of().create()).unwrap();
    let away = node(48_002, true);
    assert_eq!(kind(away.domain(of())), ErrorKind::InvalidArgument);
    drop(first);
}

// covers 4.03 4.04 4.11
#[test]
fn a_target_delivers_to_the_queues_of_other_processes() {
    for memory in [true, false] {
        let lab = Lab::new(48_003, memory);
        let numbers = lab.receivers.each_ref().map(|one| one.srq.number() >> 18);
        assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2]);
        for (which, receiver) in lab.receivers.iter().enumerate() {
            receiver.receives(4, 20_000);
            for (round, length) in [0, 5, 4096, 20_000].into_iter().enumerate() {
                let bytes = octets(length, which);
                lab.node.memory.write(0, &bytes).unwrap();
                let imm = [1, 2, 3, round as u8];
                let data = lab.node.mr.sge(0, length as u32).unwrap();
                lab.succeeds(wr::SendWithImmediate::new(data, imm).with(lab.to(which)));
                let done = receiver.node.take(1).remove(0);
                assert_eq!(done.status, WcStatus::Success);
                assert_eq!((done.wr_id, done.byte_len), (round as u64, length as u32));
                assert_eq!(done.immediate(), Some(imm));
                let names = (lab.target.qp_num(), lab.initiator.qp_num());
                assert_eq!((done.qp_num, done.src_qp), names);
                assert_eq!(receiver.bytes(round * 20_000, length), bytes);
            }
        }
    }
}

// covers 4.06 4.08
#[test]
fn writes_reads_and_atomics_reach_the_memory_of_other_processes() {
    for memory in [true, false] {
        let lab = Lab::new(48_004, memory);
        let receiver = &lab.receivers[1];
        let length = 200_000;
        let bytes = octets(length, 3);
        lab.node.memory.write(0, &bytes).unwrap();
        let local = |at, length: usize| lab.node.mr.sge(at, length as u32).unwrap();
        let remote = |at: usize| receiver.node.mr.remote(at as u64);
        receiver.receives(1, 8);
        let write = wr::WriteWithImmediate::new(local(0, length), remote(1000), [9; 4]);
        lab.succeeds(write.with(lab.to(1)));
        let done = receiver.node.take(1).remove(0);
        assert_eq!(done.opcode, WcOpcode::RecvRdmaWithImm);
        assert_eq!(
            (done.immediate(), done.byte_len),
            (Some([9; 4]), length as u32)
        );
        assert_eq!(receiver.bytes(1000, length), bytes);
        // Reads of any length return the written bytes.
        for length in [0, 7, 4096, 32 << 10, 33_000, length] {
            let at = 300_000;
            let read = wr::Read::new(local(at, length), remote(1000)).with(lab.to(1));
            lab.succeeds(read);
            let mut found = vec![0; length];
            lab.node.memory.read(at, &mut found).unwrap();
            assert_eq!(found, bytes[..length]);
        }
        receiver.node.memory.write(8, &5_u64.to_ne_bytes()).unwrap();
        lab.succeeds(wr::FetchAdd::new(local(0, 8), remote(8), 3).with(lab.to(1)));
        lab.succeeds(wr::CompareSwap::new(local(8, 8), remote(8), 8, 100).with(lab.to(1)));
        let mut found = [0; 16];
        lab.node.memory.read(0, &mut found).unwrap();
        assert_eq!(found[..8], 5_u64.to_ne_bytes());
        assert_eq!(found[8..], 8_u64.to_ne_bytes());
        assert_eq!(receiver.bytes(8, 8), 100_u64.to_ne_bytes());
        // The key of one process grants nothing through the queue of another.
        let foreign = wr::Write::new(local(0, 8), remote(8)).with(lab.to(2));
        assert_eq!(lab.run(foreign).status, WcStatus::RemAccessErr);
        assert_eq!(lab.target.query().unwrap().state, QpState::Err);
        assert_eq!(receiver.bytes(8, 8), 100_u64.to_ne_bytes());
    }
}

// covers 4.10
#[test]
fn an_empty_queue_of_another_process_delays_its_own_message() {
    let lab = Lab::new(48_005, true);
    lab.receivers[2].receives(1, 16);
    lab.succeeds(wr::Send::new(b"to two").with(lab.to(2)));
    let message = wr::Send::new(b"to one").with(lab.to(1));
    lab.initiator.post_one(message.signaled(1)).unwrap();
    // An RNR NAK reports that no receive is posted, and the initiator repeats its message.
    until(|| lab.initiator.counters().rnr_naks > 0);
    lab.receivers[1].receives(1, 16);
    assert_eq!(lab.node.take(1)[0].status, WcStatus::Success);
    assert_eq!(lab.receivers[1].node.take(1)[0].byte_len, 6);
    assert_eq!(lab.receivers[2].node.take(1)[0].byte_len, 6);
}

// covers 4.09
#[test]
fn a_queue_that_is_not_in_the_domain_is_refused() {
    let lab = Lab::new(48_006, true);
    let file = tempfile::tempfile().unwrap();
    let stranger = Receiver::new(48_006, true, &file);
    stranger.receives(1, 16);
    let number = stranger.srq.number();
    let refused = lab.run(wr::Send::new(b"?").with(remote_srqn(number)));
    assert_eq!(refused.status, WcStatus::RemInvReqErr);
    assert_eq!(lab.target.query().unwrap().state, QpState::Err);
    assert_eq!(stranger.srq.query().unwrap().posted, Some(1));
}

// covers 4.09
#[test]
fn a_message_for_a_process_that_has_gone_is_refused() {
    let mut lab = Lab::new(48_007, true);
    let Lab { receivers, .. } = &lab;
    receivers[2].receives(2, 16);
    lab.succeeds(wr::Send::new(b"there").with(lab.to(2)));
    let gone = lab.receivers[2].srq.number();
    let replacement = Receiver::new(48_007, true, &lab._file);
    drop(std::mem::replace(&mut lab.receivers[2], replacement));
    let refused = lab.run(wr::Send::new(b"gone").with(remote_srqn(gone)));
    assert_eq!(refused.status, WcStatus::RemInvReqErr);
}

// covers 4.07
#[test]
fn a_target_ends_with_the_last_handle_of_any_process() {
    let Lab {
        node,
        initiator,
        target,
        receivers,
        ..
    } = Lab::new(48_008, true);
    let number = target.qp_num();
    let open = |which: usize| receivers[which].domain.open_target(number).wait();
    let opened = open(1).unwrap();
    assert_eq!(opened.qp_num(), number);
    assert_eq!(opened.query().unwrap().state, QpState::Rts);
    // The target works without the handle of the process that has made it.
    target.destroy().wait().unwrap();
    let to = |which: usize| remote_srqn(receivers[which].srq.number());
    receivers[2].receives(1, 16);
    initiator
        .post_one(wr::Send::new(b"two").with(to(2)))
        .unwrap();
    assert_eq!(node.take(1)[0].status, WcStatus::Success);
    assert_eq!(receivers[2].node.take(1)[0].qp_num, number);
    // Each handle gets the events, in its own process.
    let last = open(2).unwrap();
    let none = remote_srqn(receivers[1].srq.number() ^ 1);
    initiator.post_one(wr::Send::new(b"?").with(none)).unwrap();
    assert_eq!(node.take(1)[0].status, WcStatus::RemInvReqErr);
    for (receiver, handle) in receivers[1..].iter().zip([&opened, &last]) {
        let event = until_some(|| receiver.node.context.poll_event());
        assert_eq!(event.event_type(), EventType::QpReqErr);
        assert_eq!(event.subject(), EventSubject::Object(handle.id()));
    }
    opened.destroy().wait().unwrap();
    assert_eq!(last.query().unwrap().state, QpState::Err);
    last.destroy().wait().unwrap();
    until(|| open(1).is_err_and(|error| error.kind() == ErrorKind::InvalidArgument));
}
