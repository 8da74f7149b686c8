//! A shell command with all processes that it starts, in a process group of its own.

use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process_group};

const PAUSE: Duration = Duration::from_millis(20);

/// A process group: dropping it kills the command and all processes that it started.
pub(crate) struct Group {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Group {
    /// Starts the command; its output goes to the file.
    pub(crate) fn start(command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().display()))?;
        Ok(Self { child, ended: None })
    }

    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    /// Waits for the exit status; `None` if the command has not ended in time.
    pub(crate) fn wait(&mut self, at_most: Duration) -> io::Result<Option<ExitStatus>> {
        let until = Instant::now() + at_most;
        loop {
            let ended = self.ended()?;
            if ended.is_some() || Instant::now() >= until {
                return Ok(ended);
            }
            thread::sleep(PAUSE);
        }
    }

    /// Waits until the condition is true, the command has ended, or the time is over.
    pub(crate) fn wait_until(
        &mut self,
        at_most: Duration,
        is_true: impl Fn() -> bool,
    ) -> io::Result<()> {
        let until = Instant::now() + at_most;
        while !is_true() && self.ended()?.is_none() && Instant::now() < until {
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Terminates the command, and kills it if it does not end. The status is that of a program that ended by itself
    /// or by the first signal.
    pub(crate) fn end(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.ended()?.is_none() {
            self.signal(Signal::TERM);
            self.wait(Duration::from_secs(5))?;
        }
        self.signal(Signal::KILL);
        Ok(self.ended)
    }

    fn signal(&self, signal: Signal) {
        // Processes that have ended already need no signal.
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        // A killed child ends, so this does not hang.
        let _ = self.child.wait();
    }
}

/// Whether the program crashed, rather than ended by one of our signals.
pub(crate) fn has_crashed(status: ExitStatus) -> bool {
    let signal = match (status.signal(), status.code()) {
        (Some(signal), _) => signal,
        // A shell reports the signal of its command in this way.
        (None, Some(code)) if code > 128 => code - 128,
        _ => return false,
    };
    [
        Signal::SEGV,
        Signal::ABORT,
        Signal::BUS,
        Signal::ILL,
        Signal::FPE,
    ]
    .iter()
    .any(|fault| fault.as_raw() == signal)
}
