//! The process that holds a fabric, with programs that die, lie, flood it or do not read.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::thread;

use polyverbs_fabric::FabricName;
use polyverbs_fabric::client::{self, Connection, Querier};
use polyverbs_fabric::members::{Outgoing, Registration};
use polyverbs_fabric::process::Process;
use polyverbs_fabric::protocol::{LONGEST, Request};
use polyverbs_fabric::query::{self, QueryError, Route};
use polyverbs_management::Address;
use polyverbs_wire::mad::smp::{NodeInfo, PERMISSIVE_LID};
use polyverbs_wire::mad::{MAD_LEN, method};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};

use crate::rig::BACK_TO_BACK;

/// Runs a function while a process holds a fabric of two nodes.
fn with_process(name: &str, run: impl FnOnce(&FabricName)) {
    let name = format!("polyverbs-test-{name}.{}", std::process::id());
    let name: FabricName = name.parse().unwrap();
    let process = Process::new(&BACK_TO_BACK.parse().unwrap(), name.clone()).unwrap();
    let (stop, stopped) = io::pipe().unwrap();
    thread::scope(|scope| {
        let serving = scope.spawn(move || process.run(Some(stop.as_fd())));
        // The end of this side stops the process, also if the function panics.
        let stopped = stopped;
        run(&name);
        drop(stopped);
        serving.join().unwrap().unwrap();
    });
}

#[track_caller]
fn must_answer(name: &FabricName) {
    let mut querier = Querier::attach(name, "A", 1).unwrap();
    let next = Route::Directed(vec![1]);
    query::get::<NodeInfo>(&mut querier, &next, 0).unwrap();
}

/// A program at A that has registered an agent for directed requests.
fn program(name: &FabricName) -> Connection {
    let connection = Connection::open(name).unwrap();
    client::attach(connection.as_fd(), "A", 1).unwrap();
    let registration = Registration {
        class: 0x81,
        class_version: 1,
        methods: 1 << method::TRAP,
        ..Registration::default()
    };
    assert_eq!(
        client::register(connection.as_fd(), registration).unwrap(),
        0
    );
    connection
}

/// A request for the NodeInfo of the own node.
fn request(number: u32) -> Outgoing {
    let mut data = vec![0; MAD_LEN];
    data[..4].copy_from_slice(&[1, 0x81, 1, method::GET]);
    data[12..16].copy_from_slice(&number.to_be_bytes());
    data[17] = 0x11;
    data[32..36].fill(0xff);
    Outgoing {
        agent: 0,
        timeout_ms: 1000,
        retries: 0,
        to: Address {
            lid: PERMISSIVE_LID,
            ..Address::default()
        },
        data,
    }
}

/// A socket that is connected to the process, for messages that no client sends.
fn raw(name: &FabricName) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let name = name.to_string();
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    connect(&socket, &address).unwrap();
    socket
}

#[test]
fn programs_query_a_fabric_at_any_of_its_adapters() {
    with_process("query", |name| {
        let mut querier = Querier::attach(name, "B", 1).unwrap();
        let found = query::walk(&mut querier).unwrap();
        let names: Vec<_> = found.iter().map(|it| &*it.description).collect();
        assert_eq!(names, ["B", "A"]);
        let gone = query::get::<NodeInfo>(&mut querier, &Route::Lid(9), 0);
        assert_eq!(gone, Err(QueryError::TimedOut));
        assert!(Querier::attach(name, "C", 1).is_err());
        assert!(Querier::attach(name, "A", 2).is_err());
    });
}

#[test]
fn the_agents_and_the_role_of_a_program_end_with_its_connection() {
    with_process("ends", |name| {
        let connection = program(name);
        client::ask(connection.as_fd(), &Request::BecomeSm).unwrap();
        let describe = || {
            let other = Connection::open(name).unwrap();
            let report = client::describe(other.as_fd(), "A").unwrap();
            report.ports[0].info().capability_mask & 2
        };
        assert_eq!(describe(), 2);
        drop(connection);
        // The process sees the end of a connection before it accepts the next one, or soon after.
        while describe() != 0 {
            thread::yield_now();
        }
        program(name);
    });
}

#[test]
fn a_program_that_does_not_read_harms_no_other() {
    with_process("deaf", |name| {
        let deaf = program(name);
        for number in 0..5000 {
            client::send(deaf.as_fd(), &request(number)).unwrap();
        }
        must_answer(name);
        // It has its first answers still, and lost the last ones.
        let mut answers = 0;
        while client::receive(deaf.as_fd()).is_ok() {
            answers += 1;
        }
        assert!((1..5000).contains(&answers), "{answers}");
    });
}

#[test]
fn messages_that_are_nothing_get_no_reply_and_change_nothing() {
    with_process("lies", |name| {
        let socket = raw(name);
        for message in [
            &b"M"[..],
            b"{",
            b"\"Nonsense\"",
            &[b'M'; 58],
            &[b'M'; 59],
            &[b'M'; 5000],
        ] {
            send(&socket, message, SendFlags::NOSIGNAL).unwrap();
        }
        must_answer(name);
        // Without a port there are no agents.
        let connection = Connection::open(name).unwrap();
        let refused = client::register(connection.as_fd(), Registration::default());
        assert!(refused.is_err());
        client::send(connection.as_fd(), &request(1)).unwrap();
        must_answer(name);
    });
}

#[test]
fn a_long_message_comes_in_a_file_up_to_a_limit() {
    with_process("file", |name| {
        let connection = program(name);
        let mut sent = request(1);
        sent.data.resize(100_000, 0);
        client::send(connection.as_fd(), &sent).unwrap();
        // The agent makes no segments, so the process gives the request back.
        while client::peek(connection.as_fd()).is_err() {
            thread::yield_now();
        }
        let back = client::receive(connection.as_fd()).unwrap();
        assert_eq!((back.status, back.data.len()), (22, 24));
        sent.data.resize(LONGEST + 1, 0);
        client::send(connection.as_fd(), &sent).unwrap();
        must_answer(name);
        assert!(client::receive(connection.as_fd()).is_err());
    });
}

#[test]
fn a_program_notices_the_end_of_the_process() {
    let mut kept = None;
    with_process("gone", |name| kept = Some(program(name)));
    let connection = kept.unwrap();
    let error = client::receive(connection.as_fd()).unwrap_err();
    assert_ne!(error.kind(), io::ErrorKind::WouldBlock);
    assert!(client::send(connection.as_fd(), &request(1)).is_err());
}

#[test]
fn a_name_has_one_holder_and_a_file_that_is_left_is_replaced() {
    let folder = std::env::temp_dir().join(format!("polyverbs-test-fabric.{}", std::process::id()));
    let name: FabricName = format!("{}/socket", folder.display()).parse().unwrap();
    std::fs::create_dir_all(&folder).unwrap();
    let topology = BACK_TO_BACK.parse().unwrap();
    let first = Process::new(&topology, name.clone()).unwrap();
    assert!(Process::new(&topology, name.clone()).is_err());
    drop(first);
    Process::new(&topology, name).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}
