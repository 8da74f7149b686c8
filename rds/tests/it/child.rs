//! Other processes of a test. Each runs this test binary with one ignored test, which reads commands and answers in lines.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A process; dropping this kills it.
pub(crate) struct ChildProcess {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl ChildProcess {
    /// Runs an ignored test, which gets its address in an environment variable.
    pub(crate) fn start(test: &str, variable: &str, at: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env(variable, at)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            stdin: child.stdin.take().unwrap(),
            lines: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn say(&mut self, what: &str) {
        writeln!(self.stdin, "{what}").unwrap();
    }

    /// The rest of the next line that begins with `> `: the test framework prints other lines.
    pub(crate) fn answer(&mut self) -> String {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        let answer = lines.find_map(|line| Some(line.split_once("> ")?.1.to_owned()));
        answer.expect("the process answers before it ends")
    }

    pub(crate) fn ask(&mut self, what: &str) -> String {
        self.say(what);
        self.answer()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
