//! Child processes of a test. Each runs this test binary with one ignored test, which reads commands from standard input
//! and writes answers to standard output, one per line.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::waiting::until_some;

/// A child process of a test; dropping this kills the process.
pub struct ChildProcess {
    /// The process itself, for sending signals to it.
    pub child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl ChildProcess {
    /// Starts a process that runs the ignored test with this name, with the environment variable `variable` set to `value`.
    ///
    /// # Panics
    /// The process cannot be started.
    #[must_use]
    pub fn start(test: &str, variable: &str, value: &str) -> Self {
        Self::within(test, &[(variable, value)])
    }

    /// Starts a process that runs the ignored test with this name, with these variables in its environment.
    ///
    /// # Panics
    /// The process cannot be started.
    #[must_use]
    pub fn within(test: &str, environment: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture"])
            .envs(environment.iter().copied())
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

    /// Sends the process one line, a command.
    ///
    /// # Panics
    /// The process has ended.
    pub fn say(&mut self, what: &str) {
        writeln!(self.stdin, "{what}").unwrap();
    }

    /// Waits for the process to answer. Returns the rest of its next line that contains `> `, because the test framework
    /// prints other lines.
    ///
    /// # Panics
    /// The process ends without such a line.
    pub fn answer(&mut self) -> String {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        let answer = lines.find_map(|line| Some(line.split_once("> ")?.1.to_owned()));
        answer.expect("the process answers before it ends")
    }

    /// Sends the process a command, and waits for the answer.
    ///
    /// # Panics
    /// The process ends without an answer.
    pub fn ask(&mut self, what: &str) -> String {
        self.say(what);
        self.answer()
    }

    /// Waits until the process has ended, and checks that its test has passed.
    ///
    /// # Panics
    /// The test of the process has failed.
    pub fn ends_well(&mut self) {
        let status = until_some(|| self.child.try_wait().unwrap());
        assert!(status.success(), "{status}");
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
