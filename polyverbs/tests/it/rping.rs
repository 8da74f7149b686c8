//! `rping` between processes: the test binary runs itself again as the client and the server.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use polyverbs::connection::{ConnectError, ConnectionOptions, Connector};
use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::wr::{self, ReceiveRequest};
use polyverbs::{Access, Memory, PathOptions, QpOptions, Requirements};

// The `main` of the example is not called.
#[allow(dead_code)]
#[path = "../../../examples/rping.rs"]
mod example;

const ARGUMENTS: &str = "RPING_ARGUMENTS";
/// Devices that reach other processes.
const DEVICES: [&str; 2] = ["ib0", "iw0"];

/// Runs the example in a process that another test has started; otherwise it does nothing.
#[test]
fn as_a_process() {
    if let Ok(arguments) = std::env::var(ARGUMENTS) {
        let given = arguments.split(' ').map(str::to_owned);
        example::run_with(given).unwrap();
    }
}

fn start(arguments: &str) -> Running {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "rping::as_a_process", "--nocapture"]);
    command.env(ARGUMENTS, arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Running(command.spawn().unwrap())
}

struct Running(Child);

impl Running {
    fn end(mut self) -> (bool, String) {
        let status = test_kit::waiting::until_some(|| self.0.try_wait().unwrap());
        let text = self.0.stdout.take().map(std::io::read_to_string);
        let text = text.transpose().unwrap().unwrap_or_default();
        let error = std::io::read_to_string(self.0.stderr.take().unwrap()).unwrap();
        (status.success(), text + &error)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// A client may connect before the server listens: then it is refused, and started again.
fn ping(arguments: &str) -> String {
    test_kit::waiting::until_some(|| {
        let (succeeded, text) = start(arguments).end();
        assert!(succeeded || text.contains("Refused"), "{text}");
        succeeded.then_some(text)
    })
}

// covers 7.50
#[test]
fn a_client_and_a_server_ping_each_other() {
    for device in DEVICES {
        for (address, size, count) in [
            ("127.0.40.1", 64, 1000),
            ("127.0.40.1", 65_536, 20),
            ("::1", 4097, 100),
        ] {
            let common = format!("-a {address} --device {device}");
            let server = start(&format!("-s {common}"));
            ping(&format!("-c {common} -C {count} -S {size} -V"));
            let (succeeded, text) = server.end();
            assert!(succeeded, "{text}");
        }
    }
}

#[test]
fn the_text_of_a_ping_is_that_of_rdma_core() {
    let common = "-a 127.0.41.1 -v";
    let server = start(&format!("-s {common}"));
    let text = ping(&format!("-c {common} -C 2 -S 64 -V"));
    let letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz";
    for (number, letters) in [&letters[..50], &letters[1..51]].iter().enumerate() {
        let line = format!("ping data: rdma-ping-{number}: {letters}\n");
        assert!(text.contains(&line), "{text}");
    }
    assert!(server.end().1.contains("server ping data: rdma-ping-1: B"));
}

/// Sends one ping with a text that no client of `rping` would send.
fn ping_by_hand(server: SocketAddr, text: &[u8]) {
    let device = emulated::device_reaching("ib0", server, &EmulatedOptions::default());
    let context = device.unwrap().open(&Requirements::new()).unwrap();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(4).wait().unwrap();
    let qp = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    let memory = Memory::zeroed(1024).unwrap();
    memory.write(0, text).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let mr = pd.register(&memory, access).wait().unwrap();
    qp.init(PathOptions::new()).wait().unwrap();
    let answer = ReceiveRequest::new(0, mr.sge(512, 16).unwrap());
    qp.post_receive(answer).unwrap();
    let connector = Connector::of(&context).unwrap();
    let connection = test_kit::waiting::until_some(|| {
        let options = ConnectionOptions::new().path(PathOptions::new().access(access));
        match connector.connect(&qp, server, options.reads(1, 1)).wait() {
            Ok(connection) => Some(connection),
            // The server may not listen yet.
            Err(ConnectError::Refused { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    });
    let length = (text.len() as u32).to_be_bytes();
    let message = [&mr.remote(0).to_bytes()[..], &length].concat();
    qp.post_one(wr::Send::new(&message[..])).unwrap();
    let done = cq
        .next()
        .wait_for(test_kit::waiting::PATIENCE)
        .unwrap()
        .unwrap();
    assert!(done.status.is_success() && done.opcode.is_receive());
    connection.disconnect().wait().unwrap();
}

#[test]
fn the_text_of_a_ping_is_printed_without_control_characters() {
    let server = start("-s -a 127.0.24.141 -v");
    let text = "a\u{1b}[2Jb\u{9b}31mc\nd\r\u{7f}e".as_bytes();
    ping_by_hand(
        "127.0.24.141:7174".parse().unwrap(),
        &[text, b"\xfff\0"].concat(),
    );
    let (_, told) = server.end();
    let shown = "server ping data: a?[2Jb?31mc?d??e\u{fffd}f\n";
    assert!(told.contains(shown), "{told:?}");
}

#[test]
fn a_client_fails_when_its_server_is_killed() {
    for device in DEVICES {
        let common = format!("-a 127.0.42.1 --device {device}");
        let Couple { server, client, .. } = Couple::new(&common);
        drop(server);
        let (succeeded, text) = client.end();
        assert!(!succeeded, "{text}");
        assert!(text.contains("connection"), "{text}");
    }
}

/// Two processes that ping each other without end, and how many pings were seen.
struct Couple {
    server: Running,
    client: Running,
    seen: Arc<AtomicUsize>,
}

impl Couple {
    fn new(common: &str) -> Self {
        let server = start(&format!("-s {common}"));
        let seen = Arc::new(AtomicUsize::new(0));
        // The server may not listen yet.
        let client = loop {
            let mut client = start(&format!("-c {common} -v -S 4096"));
            let mut lines = BufReader::new(client.0.stdout.take().unwrap()).lines();
            let is_ping = |line: &std::io::Result<String>| {
                line.as_ref().is_ok_and(|line| line.contains("ping data"))
            };
            if lines.any(|line| is_ping(&line)) {
                let seen = Arc::clone(&seen);
                std::thread::spawn(move || {
                    for _ in lines.map_while(Result::ok) {
                        seen.fetch_add(1, Ordering::Relaxed);
                    }
                });
                break client;
            }
        };
        Self {
            server,
            client,
            seen,
        }
    }

    /// Waits for more pings than the client's pipe and the peers' buffers hold: the last ones came after this call.
    fn goes_on(&self) {
        let seen = self.seen.load(Ordering::Relaxed);
        test_kit::waiting::until(|| self.seen.load(Ordering::Relaxed) > seen + 100);
    }
}

#[test]
fn eight_processes_at_one_address_and_one_that_is_killed() {
    let address = "127.0.43.1";
    let with_port = |port| Couple::new(&format!("-a {address} -p {port}"));
    let mut couples: Vec<_> = (1..=4).map(with_port).collect();
    // The first process has created the sockets of the address, and the second victim was started last.
    for (victim, of_server) in [(0, true), (2, false)] {
        let couple = couples.remove(victim);
        let (mut killed, survivor) = if of_server {
            (couple.server, couple.client)
        } else {
            (couple.client, couple.server)
        };
        killed.0.kill().unwrap();
        killed.0.wait().unwrap();
        couples.iter().for_each(Couple::goes_on);
        assert!(!survivor.end().0);
        // New processes still find each other.
        couples.push(with_port(10 + victim));
    }
}
