//! Connections of XRC, whose ends are two processes: this test runs itself again as the process with the target.
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;

use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::qp::{Half, QpState};
use polyverbs::{
    Access, Cq, Device, Features, Memory, Mr, Qp, QpOptions, Requirements, SrqOptions, WcStatus,
    wr::{self, ReceiveRequest},
};
use polyverbs_connection::{ConnectError, ConnectionOptions, ReadLimits};
use test_kit::process::ChildProcess;
use xrc::{OpenXrcd, Xrc, XrcFeatures, XrcSrq, Xrcd, remote_srqn};

use crate::rig::{End, udp_device};

/// Environment variable of the process with the target: the address of its device, and the file of its domain, if that has one.
const ADDRESS: &str = "XRC_TARGET_AT";

/// An end with the features that extended reliable connections need.
fn end_of(device: &Device) -> End {
    let wanted = Requirements::new()
        .needs(Features::SRQ)
        .needs(XrcFeatures::XRC);
    End::of(&device.open(&wanted).unwrap())
}

fn end_at(ip: &str) -> End {
    end_of(&udp_device(ip))
}

fn xrc(end: &End) -> Xrc {
    end.context.extension().unwrap()
}

fn initiator(end: &End) -> Qp {
    let options = QpOptions::rc(&end.cq).with(&xrc(end));
    end.pd.create_qp(options).wait().unwrap()
}

fn domain(end: &End) -> Xrcd {
    xrc(end).open(OpenXrcd::anonymous()).wait().unwrap()
}

fn domain_of(end: &End, file: &File) -> Xrcd {
    let how = OpenXrcd::of(file.as_fd()).create();
    xrc(end).open(how).wait().unwrap()
}

/// A shared receive queue with receives, and their memory.
struct Mailbox {
    srq: XrcSrq,
    cq: Cq,
    memory: Memory,
    _mr: Mr,
}

impl Mailbox {
    fn new(end: &End, domain: &Xrcd) -> Self {
        let cq = end.context.create_cq(16).wait().unwrap();
        let made = domain.create_srq(&end.pd, SrqOptions::new(8), &cq);
        let srq = made.wait().unwrap();
        let memory = Memory::zeroed(8 * 64).unwrap();
        let mr = end
            .pd
            .register(&memory, Access::LOCAL_WRITE)
            .wait()
            .unwrap();
        for slot in 0..8 {
            let room = mr.sge(slot * 64, 64).unwrap();
            srq.post_receive(ReceiveRequest::new(slot as u64, room))
                .unwrap();
        }
        Self {
            srq,
            cq,
            memory,
            _mr: mr,
        }
    }

    fn next(&self) -> String {
        let done = self.cq.next().wait().unwrap();
        assert_eq!(done.status, WcStatus::Success);
        let at = done.wr_id as usize * 64;
        let bytes = self.memory.to_vec(at, done.byte_len as usize).unwrap();
        String::from_utf8(bytes).unwrap()
    }
}

/// Runs as the process with the target.
#[test]
#[ignore = "a process of the other tests"]
fn process_with_the_target() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let say = |what: &str| println!("> {what}");
    let (address, file) = address.split_once(' ').unwrap_or((&address, ""));
    let end = end_at(address);
    let domain = match file {
        "" => domain(&end),
        file => domain_of(&end, &File::open(file).unwrap()),
    };
    let boxes = [Mailbox::new(&end, &domain), Mailbox::new(&end, &domain)];
    let target = domain.create_target().wait().unwrap();
    let listener = end.listen();
    let numbers = [0, 1].map(|at| boxes[at].srq.number());
    say(&format!(
        "{} {} {}",
        listener.address(),
        numbers[0],
        numbers[1]
    ));

    let incoming = listener.next().wait().unwrap();
    assert!(incoming.private_data().starts_with(b"may I\0"));
    // The active side serves no reads.
    let offered = ReadLimits {
        inbound: 5,
        outbound: 0,
    };
    assert_eq!(incoming.offered_reads(), offered);
    let options = ConnectionOptions::new()
        .private_data(b"you may")
        .reads(3, 9);
    let accepted = incoming.accept(&target, options);
    let mut connection = Some(accepted.wait().unwrap());
    let attributes = target.query().unwrap().attributes;
    assert_eq!(attributes.max_dest_rd_atomic, Some(3));
    say("connected");

    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "forget" => {
                drop(connection.take());
                say("forgotten");
            }
            "receive 0" => say(&boxes[0].next()),
            "receive 1" => say(&boxes[1].next()),
            "state" => say(&format!("{:?}", target.query().unwrap().state)),
            "ended" => {
                connection.as_ref().unwrap().disconnected().wait().unwrap();
                say("ended");
            }
            "end" => return,
            other => panic!("{other:?} is no command"),
        }
    }
}

/// The process with the target.
struct Target {
    process: ChildProcess,
    at: SocketAddr,
    queues: [u32; 2],
}

impl Target {
    fn at(address: &str) -> Self {
        let mut process = ChildProcess::start("xrc::process_with_the_target", ADDRESS, address);
        let first = process.answer();
        let first: Vec<_> = first.split(' ').collect();
        let [at, one, two] = first[..] else {
            panic!("{first:?}");
        };
        Self {
            at: at.parse().unwrap(),
            queues: [one, two].map(|number| number.parse().unwrap()),
            process,
        }
    }

    fn ends(mut self) {
        self.process.say("end");
        self.process.ends_well();
    }
}

fn send(near: &End, initiator: &Qp, queue: u32, text: &str) {
    let message = wr::Send::new(text.as_bytes()).with(remote_srqn(queue));
    initiator.post_one(message.signaled(1)).unwrap();
    let done = near.cq.next().wait().unwrap();
    assert_eq!(done.status, WcStatus::Success, "{text}");
}

// covers 4.13 4.14
#[test]
fn a_remote_target_outlives_its_connection() {
    let mut target = Target::at("127.0.60.2");
    let near = end_at("127.0.60.1");
    let initiator = initiator(&near);
    assert_eq!(initiator.half(), Half::Requester);
    let options = ConnectionOptions::new().private_data(b"may I").reads(7, 5);
    let asked = near.connector.request(&initiator, target.at, options);
    let accepted = asked.wait().unwrap();
    assert!(accepted.private_data().starts_with(b"you may\0"));
    let agreed = ReadLimits {
        inbound: 0,
        outbound: 3,
    };
    assert_eq!(accepted.reads(), agreed);
    let connection = accepted.complete().wait().unwrap();
    assert_eq!(target.process.answer(), "connected");

    let queues = target.queues;
    send(&near, &initiator, queues[1], "to the second");
    send(&near, &initiator, queues[0], "to the first");
    assert_eq!(target.process.ask("receive 1"), "to the second");
    assert_eq!(target.process.ask("receive 0"), "to the first");

    // The process with the target drops its connection: no peer is notified, and the target keeps working.
    assert_eq!(target.process.ask("forget"), "forgotten");
    let ended = connection.disconnected();
    // A notification would arrive before this answer.
    near.connector.ping(target.at).wait().unwrap();
    assert!(!ended.is_done());
    send(&near, &initiator, queues[0], "still there");
    assert_eq!(target.process.ask("receive 0"), "still there");
    assert_eq!(target.process.ask("state"), "Rts");

    // The disconnect of the initiator is answered, although the other process has forgotten the connection.
    connection.disconnect().wait().unwrap();
    assert_eq!(initiator.query().unwrap().state, QpState::Err);
    assert_eq!(target.process.ask("state"), "Rts");
    target.ends();
}

// covers 4.13 4.14
#[test]
fn a_connection_reaches_the_queues_of_two_processes() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let mut target = Target::at(&format!("127.0.64.2 {path}"));
    // This process has no target, but a queue in the domain of the other process, at the same address.
    let other = end_at("127.0.64.2");
    let mailbox = Mailbox::new(&other, &domain_of(&other, file.as_file()));
    let near = end_at("127.0.64.1");
    let initiator = initiator(&near);
    let options = ConnectionOptions::new().private_data(b"may I").reads(7, 5);
    let connecting = near.connector.connect(&initiator, target.at, options);
    let connection = connecting.wait().unwrap();
    assert_eq!(target.process.answer(), "connected");
    let queues = target.queues;
    send(
        &near,
        &initiator,
        mailbox.srq.number(),
        "to another process",
    );
    assert_eq!(mailbox.next(), "to another process");
    send(&near, &initiator, queues[0], "to its own");
    assert_eq!(target.process.ask("receive 0"), "to its own");
    // The target stays when its process forgets the connection.
    assert_eq!(target.process.ask("forget"), "forgotten");
    send(&near, &initiator, mailbox.srq.number(), "still there");
    assert_eq!(mailbox.next(), "still there");
    connection.disconnect().wait().unwrap();
    target.ends();
}

// covers 4.13
#[test]
fn a_disconnect_of_an_initiator_leaves_the_target_untouched() {
    let mut target = Target::at("127.0.61.2");
    let near = end_at("127.0.61.1");
    let initiator = initiator(&near);
    let options = ConnectionOptions::new().private_data(b"may I").reads(7, 5);
    let connecting = near.connector.connect(&initiator, target.at, options);
    let connection = connecting.wait().unwrap();
    assert_eq!(target.process.answer(), "connected");
    connection.disconnect().wait().unwrap();
    assert_eq!(target.process.ask("ended"), "ended");
    assert_eq!(target.process.ask("state"), "Rts");
    target.ends();
}

// covers 4.13
#[test]
fn an_xrc_target_accepts_only_initiators_and_never_connects() {
    let near = end_at("127.0.62.1");
    let far = end_at("127.0.62.2");
    let domain = domain(&far);
    let target = domain.create_target().wait().unwrap();
    assert_eq!(target.half(), Half::Responder);
    let listener = far.listen();
    let at = listener.address();
    let asks = |end: &End, qp: &Qp| {
        let options = ConnectionOptions::new();
        end.connector.connect(qp, at, options)
    };
    let is_argument =
        |error| matches!(error, ConnectError::Verb(error) if error.to_string().contains("qp"));
    assert!(is_argument(
        asks(&far, &target).wait().map(drop).unwrap_err()
    ));
    for (asking, answering) in [
        (near.new_qp(), target),
        (initiator(&near), far.new_qp()),
        (initiator(&near), initiator(&far)),
    ] {
        let asked = asks(&near, &asking);
        let incoming = listener.next().wait().unwrap();
        let options = ConnectionOptions::new();
        let accepted = incoming.accept(&answering, options);
        assert!(is_argument(accepted.wait().map(drop).unwrap_err()));
        let refused = asked.wait().map(drop).unwrap_err();
        assert!(matches!(refused, ConnectError::Refused { .. }), "{refused}");
        assert_eq!(answering.query().unwrap().state, QpState::Reset);
    }
}

// covers 4.14
#[test]
fn a_target_of_one_process_outlives_its_connection() {
    let device = emulated::device("ib0", &EmulatedOptions::default()).unwrap();
    let end = end_of(&device);
    let target = domain(&end).create_target().wait().unwrap();
    let initiator = initiator(&end);
    let listener = end.listen();
    let options = ConnectionOptions::new;
    let connecting = end
        .connector
        .connect(&initiator, listener.address(), options());
    let incoming = listener.next().wait().unwrap();
    let accepted = incoming.accept(&target, options());
    let near = connecting.wait().unwrap();
    drop(accepted.wait().unwrap());
    let ended = near.disconnected();
    assert!(!ended.is_done());
    near.disconnect().wait().unwrap();
    ended.wait().unwrap();
    assert_eq!(target.query().unwrap().state, QpState::Rts);
}
