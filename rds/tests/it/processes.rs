//! Several processes at one address: the first one is the leader, which peers connect to, and the others have sockets too.

use std::fs;
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::OnceLock;

use polyverbs::connection::Connector;
use polyverbs::emulated::{EmulatedOptions, device_at};
use polyverbs::{Device, Requirements};
use polyverbs_rds::{RdsSocket, Wait, look_first_at};
use test_kit::process::ChildProcess;

use crate::send_for;

/// The environment variable that marks a process which a test has started.
const STARTED: &str = "POLYVERBS_RDS_PROCESS";

/// Runs as a separate process with one socket: reads commands from its standard input and answers in lines.
#[test]
#[ignore = "a process of the other tests"]
fn process() {
    let Some(at) = std::env::var_os(STARTED) else {
        return;
    };
    let at = at.to_str().unwrap().parse().unwrap();
    let socket = match RdsSocket::bind(at) {
        Ok(socket) => socket,
        Err(error) => return println!("> refused {}", error.errno()),
    };
    println!("> {}", socket.local_addr().unwrap());
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let deadline = test_kit::waiting::deadline();
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["send", to, text] => {
                let sent = send_for(
                    &socket,
                    text.as_bytes(),
                    to.parse().unwrap(),
                    Wait::Until(deadline),
                );
                println!("> {:?}", sent.map_err(|error| error.errno()));
            }
            ["try", to, length] => {
                let length = length.parse().unwrap();
                let sent = send_for(&socket, &vec![0; length], to.parse().unwrap(), Wait::No);
                println!("> {:?}", sent.map_err(|error| error.errno()));
            }
            ["flush"] => {
                let flushed = socket.flush(Wait::Until(deadline));
                println!("> {:?}", flushed.map_err(|error| error.errno()));
            }
            ["try_receive"] => println!("> {}", received(&socket, Wait::No)),
            ["receive"] => println!("> {}", received(&socket, Wait::Until(deadline))),
            _ => panic!("{line}"),
        }
    }
}

fn received(socket: &RdsSocket, wait: Wait) -> String {
    let mut room = [0; 64];
    match socket.recv_msg(&mut [IoSliceMut::new(&mut room)], wait, false) {
        Ok(received) => {
            let text = String::from_utf8_lossy(&room[..received.length]);
            format!("{} {text}", received.from.unwrap())
        }
        Err(error) => error.errno().to_string(),
    }
}

fn send(from: &RdsSocket, to: SocketAddr, data: &[u8]) {
    let sent = send_for(from, data, to, Wait::Until(test_kit::waiting::deadline()));
    assert_eq!(sent.unwrap(), data.len());
}

struct Process {
    child: ChildProcess,
    at: String,
}

impl Process {
    fn start(at: &str) -> Self {
        let mut child = ChildProcess::start("processes::process", STARTED, at);
        let at = child.answer();
        Self { child, at }
    }

    fn ask(&mut self, what: &str) -> String {
        self.child.ask(what)
    }

    fn send(&mut self, to: &str, text: &str) {
        let sent = self.ask(&format!("send {to} {text}"));
        assert_eq!(sent, format!("Ok({})", text.len()));
    }

    /// Sends a message after which earlier ones may have been lost: the call that reports a loss does not send its message.
    fn send_again(&mut self, to: &str, text: &str) {
        let send = format!("send {to} {text}");
        let mut sent = self.ask(&send);
        if sent == format!("Err({})", libc::ECONNRESET) {
            sent = self.ask(&send);
        }
        assert_eq!(sent, format!("Ok({})", text.len()));
    }

    /// Receives a message when earlier ones of this process may have been lost: the call that reports a loss receives nothing.
    fn receives_again(&mut self, from: &str, text: &str) {
        let mut received = self.ask("receive");
        if received == libc::ECONNRESET.to_string() {
            received = self.ask("receive");
        }
        assert_eq!(received, format!("{from} {text}"));
    }

    fn receives(&mut self, from: &str, text: &str) {
        assert_eq!(self.ask("receive"), format!("{from} {text}"));
    }
}

// covers 8.20
#[test]
fn processes_at_one_address_send_to_each_other() {
    let [mut first, mut second, mut third] = [(); 3].map(|()| Process::start("127.0.50.1:0"));
    let (one, two, three) = (first.at.clone(), second.at.clone(), third.at.clone());
    first.send(&two, "from-the-leader");
    second.receives(&one, "from-the-leader");
    second.send(&one, "to-the-leader");
    first.receives(&two, "to-the-leader");
    second.send(&three, "between-members");
    third.receives(&two, "between-members");
    third.send(&three, "to-itself");
    third.receives(&three, "to-itself");
}

// covers 8.20
#[test]
fn a_peer_elsewhere_reaches_every_process_at_an_address() {
    let peer = RdsSocket::bind("127.0.51.2:0".parse().unwrap()).unwrap();
    let at = peer.local_addr().unwrap().to_string();
    let mut processes = [(); 3].map(|()| Process::start("127.0.51.1:0"));
    for (number, process) in processes.iter_mut().enumerate() {
        process.send(&at, &format!("question-{number}"));
        let asked = received(&peer, Wait::Until(test_kit::waiting::deadline()));
        assert_eq!(asked, format!("{} question-{number}", process.at));
        send(&peer, process.at.parse().unwrap(), b"answer");
        process.receives(&at, "answer");
    }
    // The peer also reaches a process that has sent nothing to it.
    let mut silent = Process::start("127.0.51.1:0");
    send(&peer, silent.at.parse().unwrap(), b"unasked");
    silent.receives(&at, "unasked");
}

#[test]
fn messages_of_a_peer_to_any_process_are_acknowledged() {
    let peer = RdsSocket::bind("127.0.57.2:0".parse().unwrap()).unwrap();
    let processes = [(); 2].map(|()| Process::start("127.0.57.1:0"));
    for process in &processes {
        send(&peer, process.at.parse().unwrap(), b"one");
        peer.flush(Wait::Until(test_kit::waiting::deadline()))
            .unwrap();
    }
}

#[test]
fn messages_between_processes_are_acknowledged() {
    let peer = RdsSocket::bind("127.0.57.4:0".parse().unwrap()).unwrap();
    let mut processes = [(); 3].map(|()| Process::start("127.0.57.3:0"));
    let peers = processes.each_ref().map(|process| process.at.clone());
    let at = peer.local_addr().unwrap().to_string();
    for to in peers.iter().chain([&at]) {
        for process in &mut processes {
            process.send(to, "one");
            assert_eq!(process.ask("flush"), "Ok(())");
        }
    }
}

#[test]
fn another_process_leads_after_the_leader_has_ended() {
    let peer = RdsSocket::bind("127.0.52.2:0".parse().unwrap()).unwrap();
    let at = peer.local_addr().unwrap().to_string();
    let first = Process::start("127.0.52.1:0");
    let [mut second, mut third] = [(); 2].map(|()| Process::start("127.0.52.1:0"));
    second.send(&at, "before");
    let before = received(&peer, Wait::Until(test_kit::waiting::deadline()));
    assert_eq!(before, format!("{} before", second.at));
    drop(first);
    // Messages that are sent before the others notice the end may be lost, which is reported. No message arrives twice.
    for process in [&mut second, &mut third] {
        let from = process.at.clone();
        let receive = |wait| {
            let received = received(&peer, wait);
            let (of, number) = received.split_once(" after-")?;
            assert_eq!(of, from);
            number.parse::<u32>().ok()
        };
        let mut sent = 0;
        let first = test_kit::waiting::until_some(|| {
            sent += 1;
            process.send_again(&at, &format!("after-{sent}"));
            receive(Wait::No)
        });
        // Messages that are sent after the first one has arrived are not lost.
        let mut arrived = vec![first];
        while arrived.last() != Some(&sent) {
            let next = receive(Wait::Until(test_kit::waiting::deadline()));
            arrived.push(next.expect("the last message arrives"));
        }
        assert!(arrived.is_sorted_by(|one, next| one < next), "{arrived:?}");
        send(&peer, process.at.parse().unwrap(), b"answer");
        process.receives_again(&at, "answer");
    }
    let (two, three) = (second.at.clone(), third.at.clone());
    test_kit::waiting::until(|| {
        second.send_again(&three, "still-here");
        third.ask("try_receive") == format!("{two} still-here")
    });
}

// covers 8.21
#[test]
fn a_port_belongs_to_one_process() {
    let first = Process::start("127.0.53.1:0");
    let second = Process::start(&first.at);
    assert_eq!(second.at, format!("refused {}", libc::EADDRINUSE));
}

#[test]
fn a_member_that_has_ended_leaves_no_thread() {
    let _leader = Process::start("127.0.55.1:0");
    for _ in 0..20 {
        RdsSocket::bind("127.0.55.1:0".parse().unwrap()).unwrap();
    }
    let followers = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
        let follows = |name: &String| name.trim() == "rds-leader";
        names.filter_map(Result::ok).filter(follows).count()
    };
    test_kit::waiting::until(|| followers() == 0);
}

// covers 8.33
#[test]
fn congestion_of_any_process_is_known_to_all_senders() {
    let peer = RdsSocket::bind("127.0.54.2:0".parse().unwrap()).unwrap();
    let [_leader, mut full, mut near] = [(); 3].map(|()| Process::start("127.0.54.1:0"));
    let to: SocketAddr = full.at.parse().unwrap();
    let mut sent = 0;
    test_kit::waiting::until(|| {
        loop {
            match send_for(&peer, &[0; 50_000], to, Wait::No) {
                Ok(_) => sent += 1,
                Err(error) => return error.errno() == libc::ENOBUFS,
            }
        }
    });
    let refused = format!("Err({})", libc::ENOBUFS);
    let attempt = format!("try {} 1", full.at);
    test_kit::waiting::until(|| {
        let told = near.ask(&attempt);
        sent += usize::from(told.starts_with("Ok"));
        told == refused
    });
    for _ in 0..sent {
        full.ask("receive");
    }
    send(&peer, to, b"x");
    near.send(&full.at, "y");
}

/// The environment variables that `tests/kit/c/fails.c` reads, and that name the address of the process below.
const FAILS_WHILE: &str = "FAILS_WHILE";
const WITHOUT_THREADS: &str = "POLYVERBS_RDS_WITHOUT_THREADS";

/// Runs as a process that cannot create a thread once its device has its own threads.
#[test]
#[ignore = "a process of the other tests"]
fn process_without_threads() {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let Ok(at) = std::env::var(WITHOUT_THREADS) else {
        return;
    };
    let at: SocketAddr = at.parse().unwrap();
    let device = device_at("ib0", at.ip(), &EmulatedOptions::default()).unwrap();
    let context = device.open(&Requirements::new()).unwrap();
    // A device that listens has started its threads.
    let connector = Connector::of(&context).unwrap();
    let _listener = connector.listen(SocketAddr::new(at.ip(), 0), 1).unwrap();
    DEVICE.set(device).ok().unwrap();
    look_first_at(|_| DEVICE.get().cloned().map(Ok));
    fs::write(std::env::var(FAILS_WHILE).unwrap(), "").unwrap();
    let refused = RdsSocket::bind(at).err().unwrap();
    println!("> {refused}");
    // The process stays until the test ends it.
    for _ in std::io::stdin().lines() {}
}

// covers 8.20
#[test]
fn a_process_that_cannot_serve_does_not_lead() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let fails = test_kit::preload::failing(&folder.join("fails.so"));
    let mark = folder.join("has-no-threads");
    // An earlier run of this test may have been stopped.
    let _ = fs::remove_file(&mark);
    let environment = [
        ("LD_PRELOAD", fails.to_str().unwrap()),
        (FAILS_WHILE, mark.to_str().unwrap()),
        (WITHOUT_THREADS, "127.0.51.3:0"),
    ];
    let mut child = ChildProcess::within("processes::process_without_threads", &environment);
    let refused = child.answer();
    assert!(refused.contains("thread: "), "{refused}");
    assert_eq!(fs::read(&mark).unwrap(), b"!");
    fs::remove_file(mark).unwrap();
    let [socket, peer] =
        ["127.0.51.3:0", "127.0.51.4:0"].map(|at| RdsSocket::bind(at.parse().unwrap()).unwrap());
    send(&peer, socket.local_addr().unwrap(), b"served");
    let told = received(&socket, Wait::Until(test_kit::waiting::deadline()));
    assert_eq!(told, format!("{} served", peer.local_addr().unwrap()));
}
