//! The key-value store between processes: the test binary runs itself again as the server and as the clients.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use polyverbs::connection::{ConnectError, ConnectionOptions, Connector};
use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::{Qp, QpOptions, Requirements};
use test_kit::waiting::until;

// The `main` of the example is not called.
#[allow(dead_code)]
#[path = "../../../examples/key_value.rs"]
mod example;

const ARGUMENTS: &str = "KEY_VALUE_ARGUMENTS";

/// Runs the example in a process that another test has started; otherwise it does nothing.
#[test]
fn as_a_process() {
    if let Ok(arguments) = std::env::var(ARGUMENTS) {
        let given: Vec<_> = arguments.split(' ').map(str::to_owned).collect();
        example::run(&given).unwrap();
    }
}

fn command(arguments: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "key_value::as_a_process", "--nocapture"]);
    command.env(ARGUMENTS, arguments);
    command
}

/// Runs a process that must fail; returns its standard error.
#[track_caller]
fn complaint(arguments: &str) -> String {
    let ended = command(arguments).output().unwrap();
    assert!(!ended.status.success(), "{ended:?}");
    String::from_utf8(ended.stderr).unwrap()
}

struct Process(Child);

impl Process {
    fn start(arguments: &str) -> Self {
        let mut command = command(arguments);
        Self(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Waits for a line with this beginning; returns the rest of the line.
    fn says(&mut self, beginning: &str) -> String {
        let lines = BufReader::new(self.0.stdout.as_mut().unwrap()).lines();
        let mut found =
            lines.filter_map(|line| Some(line.unwrap().split_once(beginning)?.1.to_owned()));
        found.next().expect("it ended without saying so")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn clients_of_both_runtimes_share_a_table_over_each_device() {
    for device in ["ib0", "iw0"] {
        let mut server = Process::start(&format!("serve 127.0.44.1:0 {device}"));
        let address = server.says("serving at ");
        for (runtime, visits) in [("tokio", 100), ("smol", 200), ("tokio", 300)] {
            let mut clients = Process::start(&format!("try {address} {device} {runtime}"));
            let counted = clients.says("100 clients put, got and counted over ");
            assert_eq!(counted, format!("{device}: {visits} visits"), "{runtime}");
            assert!(clients.0.wait().unwrap().success());
        }
    }
}

#[test]
fn a_table_has_room_for_as_many_keys_as_it_may() {
    // A hundred clients have a key each, and share another one.
    for (keys, is_enough) in [(101, true), (100, false)] {
        let mut server = Process::start(&format!("serve 127.0.24.131:0 ib0 --max-keys {keys}"));
        let clients = format!("try {} ib0 tokio", server.says("serving at "));
        match is_enough {
            true => drop(Process::start(&clients).says("visits")),
            false => assert!(complaint(&clients).contains("the table is full")),
        }
    }
}

/// A connector of a client, and a function that creates the client's queue pairs.
fn client(device: &str, server: SocketAddr) -> (Connector, impl Fn() -> Qp) {
    let device = emulated::device_reaching(device, server, &EmulatedOptions::default());
    let context = device.unwrap().open(&Requirements::new()).unwrap();
    let (pd, cq) = (
        context.alloc_pd().wait().unwrap(),
        context.create_cq(4).wait().unwrap(),
    );
    let connector = Connector::of(&context).unwrap();
    let qp = move || pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    (connector, qp)
}

#[test]
fn a_request_that_is_not_completed_takes_no_place() {
    let mut server = Process::start("serve 127.0.24.136:0 ib0 --max-connections 2");
    let address: SocketAddr = server.says("serving at ").parse().unwrap();
    let (connector, qp) = client("ib0", address);
    let asks = || {
        let qp = qp();
        let asked = connector.request(&qp, address, ConnectionOptions::new());
        (qp, asked.wait().unwrap())
    };
    let _unproven = [(); 4].map(|()| asks());
    let (_qp, last) = asks();
    last.complete().wait().unwrap();
}

#[test]
fn a_server_refuses_excess_connections_with_the_reason() {
    for (name, at) in [("ib0", "127.0.24.132"), ("iw0", "127.0.24.33")] {
        let limit = "--max-connections 4";
        let mut server = Process::start(&format!("serve {at}:0 {name} {limit}"));
        let address: SocketAddr = server.says("serving at ").parse().unwrap();
        let (connector, qp) = client(name, address);
        let connect = || {
            let qp = qp();
            let connecting = connector.connect(&qp, address, ConnectionOptions::new());
            Ok((qp, connecting.wait()?))
        };
        // One address gets half of the connections.
        let mut kept = vec![connect().unwrap(), connect().unwrap()];
        // A request is accepted while fewer have completed. The server keeps those that complete first, which on a busy machine
        // need not be those that asked first, and ends the others.
        let private_data = loop {
            match connect() {
                Err(ConnectError::Refused { private_data, .. }) => break private_data,
                Err(error) => panic!("{error}"),
                Ok(excess) => kept.push(excess),
            }
            until(|| {
                kept.retain(|(_qp, connection)| {
                    let ended = connection.disconnected().wait_for(Duration::ZERO);
                    ended.unwrap().is_none()
                });
                kept.len() == 2
            });
        };
        let reason = String::from_utf8_lossy(&private_data);
        assert!(
            reason.starts_with("it serves as many as it may"),
            "{reason}"
        );
        assert!(complaint(&format!("try {address} {name} tokio")).contains("as many as it may"));
        // A free place can be taken again.
        kept[0].1.disconnect().wait().unwrap();
        until(|| connect().is_ok());
    }
    for wrong in ["--max-connections", "--max-keys 0", "--max 7"] {
        complaint(&format!("serve 127.0.24.134:0 ib0 {wrong}"));
    }
}
