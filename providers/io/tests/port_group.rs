//! Several processes on one UDP port: processes join, are killed or stopped, and the others continue undisturbed.
//!
//! A member is this program again, with environment variables that say what to do. It answers each datagram with the number
//! of its range, and forwards datagrams that are meant for others.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, IoSlice, Lines, Read};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, UdpSocket as StdSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use polyverbs_engine::network::Progress;
use polyverbs_engine::time::Time;
use polyverbs_io::sockets::{FlowSockets, ReceiveBatch, Transmit, UdpOptions, UdpSocket};
use polyverbs_io::{
    Admission, Arrival, GroupOptions, HandError, IoHandler, JoinError, Lease, Mail, Presence,
    QpnRange, Reactor, Service, Source, Witness,
};
use rustix::cmsg_space;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, connect, listen, recv, sendmsg, sendmsg_addr,
    socket_with,
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use test_kit::waiting::{PATIENCE, until, until_some};
use verbs_api::provider::Mutex;

// ---- a member

const ADDRESS: &str = "POLYVERBS_TEST_ADDRESS";
const SERVICE: &str = "POLYVERBS_TEST_SERVICE";
const ADMITTED: &str = "POLYVERBS_TEST_ADMITTED";
const FORKS: &str = "POLYVERBS_TEST_FORKS";
const GIVES_UP: &str = "POLYVERBS_TEST_GIVES_UP";

const DATA: u64 = 1;
const COMMON: u64 = 2;
const INBOX: u64 = 3;
const REQUESTS: u64 = 4;

/// The answer of a member if no process holds the range or serves the service.
const NOBODY: u8 = 0xff;
/// The service to which a member answers whether it has refused strangers.
const STRANGERS: u64 = u64::MAX;

struct Member {
    lease: Lease,
    service: Service,
    flows: FlowSockets,
    batch: Mutex<ReceiveBatch>,
}

#[test]
#[ignore = "a process of the other tests"]
fn member() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    let mut options = GroupOptions::new(address.parse().unwrap());
    options.admission = Admission {
        users: number(ADMITTED).into_iter().collect(),
    };
    if std::env::var_os(GIVES_UP).is_none() {
        // On a busy machine the others may take long to answer.
        options.patience = PATIENCE;
    }
    let lease = match Lease::join(options) {
        Ok(lease) => lease,
        Err(error) => {
            let taken = matches!(error, JoinError::Taken(..));
            println!("\nrefused {taken} {error}");
            return;
        }
    };
    let service = lease.serve(number(SERVICE).unwrap().into()).unwrap();
    let flows = FlowSockets::new(lease.address(), 1, UdpOptions::default());
    if std::env::var_os(FORKS).is_some() {
        // SAFETY: the child makes system calls only, and an alarm ends it.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(60);
                // The child has none of the sockets any longer.
                libc::write(1, c"\nforked\n".as_ptr().cast(), 8);
                loop {
                    libc::pause();
                }
            }
            child
        };
        println!("\nchild {child}");
    }
    println!("\nready {}", lease.range().index());
    let member = Arc::new(Member {
        lease,
        service,
        flows,
        batch: Mutex::new(ReceiveBatch::new(8, 65_535).unwrap()),
    });
    let reactor = Arc::new(Reactor::new().unwrap());
    let add = |source, token, kind| reactor.add(source, token, kind).unwrap();
    let lease = &member.lease;
    add(lease.socket() as &dyn AsFd, DATA, Source::Data);
    add(lease.common(), COMMON, Source::Shared);
    add(lease, INBOX, Source::Rare);
    add(&member.service, REQUESTS, Source::Rare);
    let handler = Arc::downgrade(&member);
    reactor.start(handler.clone(), handler).unwrap();
    // This returns when the test is over, or has ended without a message.
    let _ = std::io::stdin().read(&mut [0]);
}

impl Progress for Member {
    fn next_timeout(&self) -> Option<Time> {
        None
    }

    fn handle_timeout(&self, _now: Time) {}

    fn progress(&self) -> bool {
        self.read(self.lease.socket());
        true
    }
}

impl IoHandler for Member {
    fn attend(&self, token: u64) {
        let mut take = |mail: Mail<'_>| match mail {
            Mail::Datagram(arrival, datagram) => self.take(arrival, datagram),
            Mail::Message(_) | Mail::Gone(_) => {}
        };
        match token {
            COMMON => self.read(self.lease.common()),
            INBOX => self.lease.attend(&mut take).unwrap(),
            _ => self.service.attend(&mut take).unwrap(),
        }
    }
}

impl Member {
    fn read(&self, socket: &UdpSocket) {
        let mut batch = self.batch.lock();
        while socket.receive(&mut batch).unwrap() > 0 {
            for message in batch.messages() {
                let arrival = Arrival {
                    from: message.from,
                    to: socket.local(),
                    traffic_class: message.traffic_class,
                    segment: 0,
                };
                message
                    .datagrams()
                    .for_each(|datagram| self.take(arrival, datagram));
            }
        }
    }

    fn take(&self, arrival: Arrival, datagram: &[u8]) {
        let range = QpnRange::of_datagram(datagram);
        let own = self.lease.range();
        let answer = |range| self.answer(arrival.from, datagram, range);
        if range == own {
            return answer(own.index() as u8);
        }
        if range != QpnRange::COMMON {
            let _ = self.lease.hand_to_range(range, &arrival, datagram);
            return;
        }
        let Some(probe) = Probe::read(datagram) else {
            return;
        };
        let handed = match probe.service {
            0 => match QpnRange::of_communication(probe.communication) {
                range if range == own => return answer(own.index() as u8),
                range => self.lease.hand_to_range(range, &arrival, datagram),
            },
            STRANGERS => return answer(u8::from(self.lease.strangers() > 0)),
            id if id == self.service.id() => return answer(own.index() as u8),
            id => self.lease.hand_to_service(id, &arrival, datagram),
        };
        if let Err(HandError::Nobody) = handed {
            answer(NOBODY);
        }
    }

    fn answer(&self, to: SocketAddr, datagram: &[u8], range: u8) {
        let answer = [&[range], datagram].concat();
        let socket = self.flows.of(0).unwrap();
        let _ = socket.send(&[Transmit::new(to, &answer)]);
    }
}

/// A datagram of the tests: a BTH and, for QP 1, the communication or service for which it is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Probe {
    qpn: u32,
    /// A number that makes otherwise equal probes differ.
    number: u32,
    communication: u32,
    service: u64,
}

impl Probe {
    fn of_service(service: u64) -> Self {
        Self {
            qpn: 1,
            service,
            ..Self::default()
        }
    }

    fn bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[4..8].copy_from_slice(&self.qpn.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.number.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.communication.to_be_bytes());
        bytes[16..].copy_from_slice(&self.service.to_be_bytes());
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<24>()?;
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|step| bytes[at + step]));
        Some(Self {
            qpn: word(4),
            number: word(8),
            communication: word(12),
            service: u64::from(word(16)) << 32 | u64::from(word(20)),
        })
    }
}

// ---- the tests' side

struct Process {
    child: Child,
    range: u8,
    service: u32,
}

#[derive(Clone, Copy, Default)]
struct As {
    user: Option<u32>,
    admits: Option<u32>,
    /// The others do not admit it soon, so it gives up early.
    gives_up: bool,
}

fn member_command(address: SocketAddr, service: u32) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "member", "--ignored", "--nocapture"])
        .env(ADDRESS, address.to_string())
        .env(SERVICE, service.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

fn start(address: SocketAddr, service: u32, who: As) -> Child {
    let mut command = member_command(address, service);
    if let Some(user) = who.admits {
        command.env(ADMITTED, user.to_string());
    }
    if let Some(user) = who.user {
        command.uid(user);
    }
    if who.gives_up {
        command.env(GIVES_UP, "1");
    }
    command.spawn().unwrap()
}

/// Returns the member's first message: its range, or why it has none.
fn word_of(child: &mut Child) -> Result<u8, String> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for line in lines.map_while(Result::ok) {
        if let Some(range) = line.strip_prefix("ready ") {
            return Ok(range.parse().unwrap());
        }
        if let Some(reason) = line.strip_prefix("refused ") {
            return Err(reason.to_owned());
        }
    }
    panic!("a member that said nothing");
}

impl Process {
    fn start(address: SocketAddr, service: u32) -> Self {
        Self::ready(start(address, service, As::default()), service)
    }

    fn ready(mut child: Child, service: u32) -> Self {
        let range = word_of(&mut child).unwrap();
        Self {
            child,
            range,
            service,
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops the process, and waits until it has stopped.
    fn stop(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped());
    }

    fn go_on(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }

    /// Returns a probe for its range, one for its service, and one for a communication of its own.
    fn probes(&self) -> [Probe; 3] {
        let range = u32::from(self.range);
        let qpn = range << 18 | 0x17;
        let communication = range << 26 | 5;
        [
            Probe {
                qpn,
                ..Probe::default()
            },
            Probe::of_service(self.service.into()),
            Probe {
                qpn: 1,
                communication,
                ..Probe::default()
            },
        ]
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Prober {
    socket: StdSocket,
    to: SocketAddr,
    /// The number of the last probe that had to differ from all others.
    number: Cell<u32>,
}

impl Prober {
    fn new(to: SocketAddr) -> Self {
        let socket = StdSocket::bind("127.0.3.51:0").unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let number = Cell::new(0);
        Self { socket, to, number }
    }

    fn send(&self, probe: Probe) {
        self.socket.send_to(&probe.bytes(), self.to).unwrap();
    }

    fn receive(&self) -> Option<(u8, Probe)> {
        let mut bytes = [0; 100];
        let length = self.socket.recv(&mut bytes).ok()?;
        Some((bytes[0], Probe::read(&bytes[1..length])?))
    }

    /// Sends a probe until it is answered. Returns the range that answered.
    fn ask(&self, probe: Probe) -> u8 {
        until_some(|| {
            self.send(probe);
            let mut answers = std::iter::from_fn(|| self.receive());
            answers.find_map(|(range, answered)| (answered == probe).then_some(range))
        })
    }

    /// Sends each probe of these processes once. The process for which a probe is meant must answer it.
    fn ask_once<'p>(&self, processes: impl IntoIterator<Item = &'p Process>) {
        let mut asked = BTreeMap::new();
        for process in processes {
            for probe in process.probes() {
                self.number.set(self.number.get() + 1);
                let number = self.number.get();
                let probe = Probe { number, ..probe };
                asked.insert(probe, process.range);
                self.send(probe);
            }
        }
        until(|| {
            while let Some((range, probe)) = self.receive() {
                let expected = asked.remove(&probe);
                assert!(
                    expected.is_none_or(|expected| expected == range),
                    "{range} for {probe:?}"
                );
            }
            asked.is_empty()
        });
    }

    /// These processes must answer while `during` runs, and lose nothing after it.
    fn all_answer_during(&self, processes: &[Process], during: impl FnOnce() + Send) {
        thread::scope(|scope| {
            let during = scope.spawn(during);
            while !during.is_finished() {
                all_answer(self, processes);
            }
        });
        self.ask_once(processes);
    }
}

fn address(port: u16) -> SocketAddr {
    ([127, 0, 3, 50], port).into()
}

fn eight(address: SocketAddr) -> Vec<Process> {
    // All start at once, so several try to make the sockets.
    let children: Vec<_> = (1..=8)
        .map(|service| (start(address, service, As::default()), service))
        .collect();
    children
        .into_iter()
        .map(|(child, service)| Process::ready(child, service))
        .collect()
}

fn all_answer(prober: &Prober, processes: &[Process]) {
    for process in processes {
        for probe in process.probes() {
            assert_eq!(prober.ask(probe), process.range, "{probe:?}");
        }
    }
}

#[test]
fn eight_processes_that_start_at_once_share_the_port() {
    for port in 47_050..47_054 {
        let processes = eight(address(port));
        let mut ranges: Vec<_> = processes.iter().map(|process| process.range).collect();
        ranges.sort_unstable();
        ranges.dedup();
        assert_eq!(ranges.len(), 8);
        let prober = Prober::new(address(port));
        all_answer(&prober, &processes);
        assert_eq!(prober.ask(Probe::of_service(4711)), NOBODY);
    }
}

#[test]
fn killing_any_disturbs_none_of_the_others() {
    let address = address(47_060);
    let mut processes = eight(address);
    let prober = Prober::new(address);
    for victim in 0..8 {
        let mut dying = processes.remove(victim);
        prober.all_answer_during(&processes, || dying.kill());
        // The next process joins while the others answer.
        let next = Mutex::new(None);
        prober.all_answer_during(&processes, || {
            *next.lock() = Some(Process::start(address, victim as u32 + 1));
        });
        processes.insert(victim, next.into_inner().unwrap());
    }
    prober.ask_once(&processes);
}

#[test]
fn a_stopped_process_holds_up_no_other() {
    let address = address(47_061);
    let mut processes: Vec<_> = (1..=3)
        .map(|service| Process::start(address, service))
        .collect();
    let prober = Prober::new(address);
    all_answer(&prober, &processes);
    // A process that joins asks the oldest first, and the kernel wakes it first.
    let stopped = processes.remove(0);
    stopped.stop();
    for _ in 0..100 {
        prober.ask_once(&processes);
    }
    processes.push(Process::start(address, 4));
    all_answer(&prober, &processes);
    stopped.go_on();
    processes.push(stopped);
    all_answer(&prober, &processes);
}

#[test]
fn the_port_is_free_when_the_last_is_killed() {
    let address = address(47_062);
    let processes = eight(address);
    drop(processes);
    StdSocket::bind(address).unwrap();
}

#[test]
fn a_child_of_a_fork_does_not_keep_the_address() {
    let address = address(47_069);
    let mut command = member_command(address, 1);
    let mut parent = command.env(FORKS, "1").spawn().unwrap();
    let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    let (mut child, mut ready, mut forked) = (None, false, false);
    while !(ready && forked) {
        let line = lines.next().unwrap().unwrap();
        child = child.or_else(|| line.strip_prefix("child ")?.parse().ok());
        ready |= line.starts_with("ready");
        forked |= line == "forked";
    }
    let child = Pid::from_raw(child.unwrap()).unwrap();
    parent.kill().unwrap();
    parent.wait().unwrap();
    let bound = StdSocket::bind(address).map(drop);
    let next = word_of(&mut start(address, 2, As::default()));
    let was_there = kill_process(child, Signal::KILL);
    bound.unwrap();
    next.unwrap();
    was_there.unwrap();
}

#[test]
fn strays_of_one_call_reach_their_ranges() {
    let address = address(47_063);
    let processes = [1, 2].map(|service| Process::start(address, service));
    let prober = Prober::new(address);
    let socket = UdpSocket::bind("127.0.3.51:0".parse().unwrap(), &UdpOptions::default()).unwrap();
    let probes: Vec<_> = (0..20)
        .map(|step| processes[step % 2].probes()[0].bytes())
        .collect();
    let bytes = probes.concat();
    let transmit = Transmit {
        segment: 24,
        ..Transmit::new(address, &bytes)
    };
    socket.send(&[transmit]).unwrap();
    let (mut batch, mut answered) = (ReceiveBatch::new(8, 65_535).unwrap(), [0; 2]);
    until(|| {
        socket.receive(&mut batch).unwrap();
        for bytes in batch.messages().flat_map(|message| message.datagrams()) {
            let which = processes
                .iter()
                .position(|process| process.range == bytes[0]);
            let which = which.unwrap();
            assert_eq!(Probe::read(&bytes[1..]), Some(processes[which].probes()[0]));
            answered[which] += 1;
        }
        answered == [10, 10]
    });
    all_answer(&prober, &processes);
}

#[test]
#[ignore = "needs root: tests/foreign runs it"]
fn another_user_is_admitted_by_name() {
    let address = address(47_064);
    let named = As {
        user: Some(65_534),
        ..As::default()
    };
    let admitting = As {
        admits: Some(65_534),
        ..As::default()
    };
    let first = Process::ready(start(address, 1, admitting), 1);
    let second = Process::ready(start(address, 2, named), 2);
    let prober = Prober::new(address);
    let processes = [first, second];
    all_answer(&prober, &processes);
    let stranger = As {
        user: Some(65_533),
        gives_up: true,
        ..As::default()
    };
    let mut stranger = start(address, 3, stranger);
    let refused = word_of(&mut stranger).unwrap_err();
    assert!(refused.starts_with("true"), "{refused}");
    assert!(refused.contains("is held by user 0: "), "{refused}");
    stranger.wait().unwrap();
}

#[test]
fn an_error_names_the_process_that_serves_the_service() {
    let address = address(47_079);
    let member = Process::start(address, 7);
    let lease = Lease::join(GroupOptions::new(address)).unwrap();
    let held = lease.serve(7).unwrap_err();
    let user = rustix::process::geteuid().as_raw();
    let named = format!("process {} of user {user}", member.child.id());
    assert_eq!(
        (held.kind(), held.to_string()),
        (ErrorKind::AddrInUse, named)
    );
    let _own = lease.serve(8).unwrap();
    assert_eq!(lease.serve(8).unwrap_err().to_string(), "this process");
}

// ---- a user without admission

const ATTACK: &str = "POLYVERBS_TEST_ATTACK";
const STRANGER: u32 = 65_533;

/// Holds names, or sends messages with as many descriptors as the kernel passes, in both forms that inboxes have had.
#[test]
#[ignore = "a process of the other tests"]
fn stranger() {
    let (Ok(names), Ok(attack)) = (std::env::var(ADDRESS), std::env::var(ATTACK)) else {
        return;
    };
    let names: Vec<_> = names.split_whitespace().collect();
    let heard = match &*attack {
        "hold" => hold(&names),
        _ => {
            println!("\nready");
            flood(&names, attack.parse().unwrap());
            processor_time("self").as_micros() as usize
        }
    };
    println!("\nheard {heard}");
}

fn local(kind: SocketType) -> OwnedFd {
    socket_with(AddressFamily::UNIX, kind, SocketFlags::NONBLOCK, None).unwrap()
}

// Returns how many messages arrived until the test ended.
fn hold(names: &[&str]) -> usize {
    let held = |kind| {
        names.iter().filter_map(move |name| {
            let socket = local(kind);
            let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
            bind(&socket, &name).is_ok().then_some(socket)
        })
    };
    let datagrams: Vec<_> = held(SocketType::DGRAM).collect();
    let listeners: Vec<_> = held(SocketType::SEQPACKET).collect();
    listeners.iter().for_each(|one| listen(one, 100).unwrap());
    println!("\nready");
    let _ = std::io::stdin().read(&mut [0]);
    let messages = |socket: &OwnedFd| {
        let received = || recv(socket, &mut [0; 100], RecvFlags::DONTWAIT);
        std::iter::from_fn(|| received().ok().filter(|(_, length)| *length > 0)).count()
    };
    let accepted = |one| accept_with(one, SocketFlags::empty()).ok();
    let connections = (listeners.iter()).flat_map(|one| std::iter::from_fn(move || accepted(one)));
    let heard: usize = connections.map(|one| messages(&one)).sum();
    heard + datagrams.iter().map(messages).sum::<usize>()
}

fn flood(names: &[&str], letters: usize) {
    let passed = std::fs::File::open("/dev/null").unwrap();
    let passed = [passed.as_fd(); 253];
    let send = |socket: &OwnedFd, name: Option<&SocketAddrUnix>| {
        let mut room = [MaybeUninit::uninit(); cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        control.push(SendAncillaryMessage::ScmRights(&passed));
        let (bytes, flags) = ([IoSlice::new(b"letter")], SendFlags::NOSIGNAL);
        match name {
            Some(name) => sendmsg_addr(socket, name, &bytes, &mut control, flags),
            None => sendmsg(socket, &bytes, &mut control, flags),
        }
    };
    let datagrams = local(SocketType::DGRAM);
    let mut sent = 0;
    while sent < letters {
        for name in names {
            let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
            while send(&datagrams, Some(&name)).is_ok() {
                sent += 1;
            }
            let connection = local(SocketType::SEQPACKET);
            while connect(&connection, &name).is_ok() || send(&connection, None).is_ok() {
                sent += 1;
            }
        }
    }
}

/// Returns the processor time of all threads of a process.
fn processor_time(process: &str) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let nanoseconds = tasks.map(|task| {
        let text = std::fs::read_to_string(task.unwrap().path().join("schedstat"));
        let text = text.unwrap_or_default();
        text.split_whitespace()
            .next()
            .map_or(0, |first| first.parse().unwrap())
    });
    Duration::from_nanos(nanoseconds.sum())
}

struct Stranger {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Stranger {
    fn start(names: &[String], attack: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "stranger", "--ignored", "--nocapture"])
            .env(ADDRESS, names.join(" "))
            .env(ATTACK, attack)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .uid(STRANGER)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut stranger = Self { child, lines };
        stranger.says("ready");
        stranger
    }

    fn says(&mut self, what: &str) -> String {
        let mut lines = (self.lines).by_ref().map_while(Result::ok);
        let said = lines.find_map(|line| Some(line.strip_prefix(what)?.trim().to_owned()));
        said.expect("a stranger that said nothing")
    }

    /// Returns how many messages it received, or how many microseconds it worked.
    fn heard(mut self) -> u64 {
        drop(self.child.stdin.take());
        self.says("heard").parse().unwrap()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ranges_of(address: SocketAddr, which: impl Iterator<Item = u8>) -> Vec<String> {
    which
        .map(|range| format!("polyverbs/udp/{address}/range/{range}"))
        .collect()
}

#[test]
#[ignore = "needs root: tests/foreign runs it"]
fn no_datagram_is_forwarded_to_a_stranger_with_a_name() {
    let address = address(47_065);
    let member = Process::start(address, 1);
    let mut names = ranges_of(address, 1..=63);
    names.push(format!("polyverbs/udp/{address}/service/{:016x}", 7));
    let stranger = Stranger::start(&names, "hold");
    let prober = Prober::new(address);
    assert_eq!(prober.ask(Probe::of_service(7)), NOBODY);
    for range in (1..=63).filter(|range| *range != member.range) {
        let communication = Probe {
            qpn: 1,
            communication: u32::from(range) << 26 | 5,
            ..Probe::default()
        };
        assert_eq!(prober.ask(communication), NOBODY, "{range}");
    }
    all_answer(&prober, std::slice::from_ref(&member));
    // A process that joins now gets no range and an error that says why, and no other process serves the service.
    let refused = word_of(&mut start(address, 2, As::default())).unwrap_err();
    assert!(refused.contains("is held by user 65533: "), "{refused}");
    assert_eq!(stranger.heard(), 0);
}

#[test]
#[ignore = "needs root: tests/foreign runs it"]
fn ranges_that_a_stranger_holds_are_skipped_at_once() {
    let address = address(47_066);
    let stranger = Stranger::start(&ranges_of(address, 1..=61), "hold");
    let processes = [1, 2].map(|service| Process::start(address, service));
    let mut ranges = processes.each_ref().map(|process| process.range);
    ranges.sort_unstable();
    assert_eq!(ranges, [62, 63]);
    all_answer(&Prober::new(address), &processes);
    // No member has asked the stranger for anything, so none has waited for an answer.
    assert_eq!(stranger.heard(), 0);
}

#[test]
#[ignore = "needs root: tests/foreign runs it"]
fn a_stranger_who_holds_the_lock_of_an_address_is_named() {
    let address = address(47_067);
    let stranger = Stranger::start(&[format!("polyverbs/udp/{address}/making")], "hold");
    let hasty = As {
        gives_up: true,
        ..As::default()
    };
    let refused = word_of(&mut start(address, 1, hasty)).unwrap_err();
    assert!(refused.starts_with("true"), "{refused}");
    assert!(refused.contains("is held by user 65533: "), "{refused}");
    drop(stranger);
    Process::start(address, 1);
}

#[test]
#[ignore = "needs root: tests/foreign runs it"]
fn refusing_a_stranger_costs_less_than_half_of_its_time() {
    let address = address(47_068);
    let member = Process::start(address, 1);
    let names = ranges_of(address, std::iter::once(member.range));
    let process = member.child.id().to_string();
    let before = processor_time(&process);
    let prober = Prober::new(address);
    assert_eq!(prober.ask(Probe::of_service(STRANGERS)), 0);
    let stranger = Stranger::start(&names, "10000");
    let worked = Duration::from_micros(stranger.heard());
    let took = processor_time(&process) - before;
    println!("{took:?} for {worked:?} of the stranger's");
    assert!(took < worked / 2, "{took:?} of {worked:?}");
    assert_eq!(prober.ask(Probe::of_service(STRANGERS)), 1);
    all_answer(&prober, std::slice::from_ref(&member));
}

// If the process kept connections of strangers, these would fill its backlog or take the place of the first witness.
#[test]
#[ignore = "needs root: tests/foreign runs it"]
fn a_stranger_who_fills_a_presence_holds_up_no_witness() {
    let name = format!("polyverbs-test/{}/presence", std::process::id());
    let presence = Presence::named(&name).unwrap();
    let first = Witness::of(&name).unwrap();
    let stranger = Stranger::start(std::slice::from_ref(&name), "50000");
    thread::scope(|scope| {
        let waits = scope.spawn(|| first.wait());
        stranger.heard();
        let second = until_some(|| Witness::of(&name).ok());
        assert!(!waits.is_finished());
        drop(presence);
        second.wait();
    });
}
