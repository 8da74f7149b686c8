//! A command of the shell with all that it starts, in a process group of its own.

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

/// Ended with all that it started when dropped.
pub(crate) struct Group {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Group {
    /// Starts it; what it prints goes to the file.
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

    /// How it has ended, or `None` where it has not by then.
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

    /// Waits until the text is true of what it has printed, it has ended, or the time is over.
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

    /// Asks it to end, and ends it where it does not. The status is that of a program which ended by itself or by the
    /// first signal.
    pub(crate) fn end(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.ended()?.is_none() {
            self.signal(Signal::TERM);
            self.wait(Duration::from_secs(5))?;
        }
        self.signal(Signal::KILL);
        Ok(self.ended)
    }

    fn signal(&self, signal: Signal) {
        // Those that have ended already need none.
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        // A child that was killed ends.
        let _ = self.child.wait();
    }
}

/// Whether a fault ended it, and no signal of ours.
pub(crate) fn has_crashed(status: ExitStatus) -> bool {
    let signal = match (status.signal(), status.code()) {
        (Some(signal), _) => signal,
        // As a shell tells of a command that it ran.
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
