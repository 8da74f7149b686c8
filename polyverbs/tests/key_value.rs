//! The key-value store between processes: this test runs itself again as the server and as the clients.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

// Its `main` is that of the example.
#[allow(dead_code)]
#[path = "../../examples/key_value.rs"]
mod key_value;

const ARGUMENTS: &str = "KEY_VALUE_ARGUMENTS";

/// Does nothing unless it is another process.
#[test]
fn as_a_process() {
    if let Ok(arguments) = std::env::var(ARGUMENTS) {
        let given: Vec<_> = arguments.split(' ').map(str::to_owned).collect();
        key_value::run(&given).unwrap();
    }
}

struct Process(Child);

impl Process {
    fn start(arguments: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "as_a_process", "--nocapture"]);
        command.env(ARGUMENTS, arguments).stdout(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// The end of the line that begins so.
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
        let mut server = Process::start(&format!("serve 127.0.43.1:0 {device}"));
        let address = server.says("serving at ");
        for (runtime, visits) in [("tokio", 100), ("smol", 200), ("tokio", 300)] {
            let mut clients = Process::start(&format!("try {address} {device} {runtime}"));
            let counted = clients.says("100 clients put, got and counted over ");
            assert_eq!(counted, format!("{device}: {visits} visits"), "{runtime}");
            assert!(clients.0.wait().unwrap().success());
        }
    }
}
