//! One of several processes at an address may end at any moment. Messages to the others arrive once and in order, or their
//! senders get an error.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use polyverbs::emulated::{EmulatedOptions, device_at};
use polyverbs::provider::Mutex;
use polyverbs_rds::{RdsError, RdsSocket, Wait};
use rustix::process::{Pid, Signal, kill_process};
use test_kit::process::ChildProcess;

use crate::{receive_for, send_for};

/// The environment variable with the address of a process that the test starts.
const STARTED: &str = "POLYVERBS_RDS_NEIGHBOUR";
/// The number of messages of each sender to each receiver.
const MESSAGES: u32 = 60;
/// The number of sockets of each sending process.
const SENDERS: usize = 4;

/// Runs as a separate process: reads commands from its standard input and answers in lines.
#[test]
#[ignore = "a process of the other tests"]
fn neighbour() {
    let Some(at) = std::env::var_os(STARTED) else {
        return;
    };
    let at: SocketAddr = at.to_str().unwrap().parse().unwrap();
    let mut lines = BufReader::new(std::io::stdin())
        .lines()
        .map_while(Result::ok);
    match lines.next().as_deref() {
        Some("receive") => receive_all(at, lines),
        Some("send") => {
            let peers = lines.next().unwrap();
            let peers: Vec<_> = peers.split(' ').map(|peer| peer.parse().unwrap()).collect();
            let sockets = [(); SENDERS].map(|()| RdsSocket::bind(at).unwrap());
            println!("> ready");
            lines.next().unwrap();
            for (from, undelivered) in send_all(sockets, &peers, &|_| ()) {
                println!("> {from} {undelivered}");
            }
            lines.next();
        }
        _ => panic!("the command is unknown"),
    }
}

fn receive_all(at: SocketAddr, lines: impl Iterator<Item = String> + Send + 'static) {
    let socket = RdsSocket::bind(at).unwrap();
    println!("> {}", socket.local_addr().unwrap());
    let (tell, told) = mpsc::channel();
    thread::spawn(move || lines.for_each(|line| tell.send(line).unwrap()));
    let mut received = BTreeMap::<SocketAddr, Vec<u32>>::new();
    let mut room = [0; 4];
    loop {
        let look = Instant::now() + Duration::from_millis(5);
        if let Ok(message) = receive_for(&socket, &mut room, Wait::Until(look)) {
            let from = received.entry(message.from.unwrap()).or_default();
            from.push(u32::from_be_bytes(room));
            continue;
        }
        match told.try_recv().as_deref() {
            // A program that ends by itself exits like this.
            Ok("exit") => std::process::exit(0),
            Ok("report") => {
                for (from, numbers) in &received {
                    let in_order = numbers.is_sorted_by(|one, next| one < next);
                    println!("> {from} {} {in_order}", numbers.len());
                }
                println!("> end");
            }
            Err(mpsc::TryRecvError::Disconnected) => return,
            _ => {}
        }
    }
}

/// Sends from each socket to each peer and waits for the acknowledges. Returns for each socket how many messages may be lost.
fn send_all(
    sockets: [RdsSocket; SENDERS],
    peers: &[SocketAddr],
    has_sent: &(impl Fn(u32) + Sync),
) -> Vec<(SocketAddr, u64)> {
    let send = |socket: RdsSocket| {
        let mut undelivered = 0;
        let mut tell = |outcome: Result<usize, RdsError>| match outcome {
            Ok(_) => true,
            Err(RdsError::Undelivered(messages)) => {
                undelivered += messages;
                false
            }
            Err(error) => panic!("{error}"),
        };
        for number in 0..MESSAGES {
            for peer in peers {
                let send = || {
                    send_for(
                        &socket,
                        &number.to_be_bytes(),
                        *peer,
                        Wait::Until(test_kit::waiting::deadline()),
                    )
                };
                while !tell(send()) {}
            }
            has_sent(number);
        }
        let flush = || {
            socket
                .flush(Wait::Until(test_kit::waiting::deadline()))
                .map(|()| 0)
        };
        while !tell(flush()) {}
        // The socket keeps its address until all threads have finished.
        let from = socket.local_addr().unwrap();
        (socket, (from, undelivered))
    };
    thread::scope(|scope| {
        let threads = sockets.map(|socket| scope.spawn(move || send(socket)));
        let done = threads.map(|thread| thread.join().unwrap());
        done.into_iter().map(|(_, told)| told).collect()
    })
}

fn start(at: SocketAddr, what: &str) -> ChildProcess {
    let mut process = ChildProcess::start("ends::neighbour", STARTED, &at.to_string());
    process.say(what);
    process
}

/// The number of messages that have arrived from each sender.
fn report(receiver: &mut ChildProcess) -> BTreeMap<SocketAddr, u64> {
    receiver.say("report");
    let mut arrived = BTreeMap::new();
    loop {
        let line = receiver.answer();
        let [from, count, in_order] = line.split(' ').collect::<Vec<_>>()[..] else {
            return arrived;
        };
        assert_eq!(
            in_order, "true",
            "a message arrived twice or out of order: {line}"
        );
        arrived.insert(from.parse().unwrap(), count.parse().unwrap());
    }
}

/// The ways in which a process ends: by a signal or, for `None`, by itself.
const WAYS: [Option<Signal>; 4] = [
    Some(Signal::INT),
    Some(Signal::TERM),
    Some(Signal::KILL),
    None,
];

fn end(process: &mut ChildProcess, way: Option<Signal>) {
    match way {
        Some(signal) => kill_process(Pid::from_child(&process.child), signal).unwrap(),
        None => process.say("exit"),
    }
}

/// Runs once: the receiver with this number ends in this way after this message of the first sender.
fn run(run: u32, victim: usize, way: Option<Signal>, after: u32) {
    let address = |host: u8| SocketAddr::from(([127, 0, 58 + host, 1 + (run % 250) as u8], 0));
    let mut receivers = [(); 3].map(|()| start(address(0), "receive"));
    let peers = receivers.each_mut().map(|process| process.answer());
    let mut near = start(address(0), "send");
    assert_eq!(near.ask(&peers.join(" ")), "ready");
    let peers = peers.map(|peer| peer.parse().unwrap());
    let far = address(1);
    let options = EmulatedOptions {
        faults: format!("drop=5%,seed={run}").parse().unwrap(),
        ..EmulatedOptions::default()
    };
    let device = device_at("ib0", far.ip(), &options).unwrap();
    let sockets = [(); SENDERS].map(|()| RdsSocket::bind_on(&device, far).unwrap());
    near.say("go");

    let (tell, told) = mpsc::channel();
    let told_by_far = thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let tell = Mutex::new(tell);
            send_all(sockets, &peers, &|number| _ = tell.lock().send(number))
        });
        while told.recv().unwrap() < after {}
        end(&mut receivers[victim], way);
        sending.join().unwrap()
    });
    let told_by_near = [(); SENDERS].map(|()| {
        let line = near.answer();
        let (from, undelivered) = line.split_once(' ').unwrap();
        (from.parse().unwrap(), undelivered.parse().unwrap())
    });
    let mut missing: BTreeMap<SocketAddr, u64> = BTreeMap::new();
    for (number, receiver) in receivers.iter_mut().enumerate() {
        if number == victim {
            continue;
        }
        let arrived = report(receiver);
        for (from, _) in told_by_far.iter().chain(&told_by_near) {
            let arrived = arrived.get(from).copied().unwrap_or_default();
            *missing.entry(*from).or_default() += u64::from(MESSAGES) - arrived;
        }
    }
    for (from, undelivered) in told_by_far.iter().chain(&told_by_near) {
        assert!(
            missing[from] <= *undelivered,
            "run {run}: {} messages of {from} are missing, and {undelivered} were reported to it",
            missing[from]
        );
    }
}

// covers 8.20 8.30
#[test]
fn every_lost_message_to_another_process_is_reported() {
    let runs = std::env::var("POLYVERBS_RUNS").map_or(4, |runs| runs.parse().unwrap());
    for number in 0..runs {
        let way = WAYS[number as usize % WAYS.len()];
        let after = number * 7919 % MESSAGES;
        run(number, number as usize % 3, way, after);
    }
}
