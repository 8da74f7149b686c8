//! One run of a row.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::capture;
use crate::install::Tools;
use crate::process::{Group, has_crashed};
use crate::results::Outcome;
use crate::rows::{Row, Trial};

/// How long a trial waits for a server.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// The time until the server is ready: it has printed the row's word, or has opened a device or a port.
    ready: Duration,
    /// The time after that before the client starts, where the row has no word.
    beginning: Duration,
    /// The time that the server has to end by itself after the client.
    ending: Duration,
}

/// How long trials of the table wait.
pub(crate) const PATIENCE: Patience = Patience {
    ready: Duration::from_secs(20),
    beginning: Duration::from_secs(1),
    ending: Duration::from_secs(2),
};

/// Runs the trial once. Logs and capture stay in a folder of its name.
///
/// # Errors
/// The program could not be run at all; a program that fails is an outcome.
pub(crate) fn run(
    trial: &Trial<'_>,
    polyverbs: &Path,
    tools: &Tools,
    keep: &Path,
    patience: Patience,
) -> anyhow::Result<Outcome> {
    let folder = keep.join(
        trial
            .name()
            .replace(|c: char| !c.is_ascii_alphanumeric(), "-"),
    );
    let _ = fs::remove_dir_all(&folder);
    let work = folder.join("work");
    fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
    let scene = Scene {
        trial,
        polyverbs,
        tools,
        folder: &folder,
        patience,
    };
    let began = Instant::now();
    let failure = scene
        .play()?
        .map(|reason| format!("{reason}; see {}{}", folder.display(), shortage(&folder)));
    if failure.is_none() {
        // Programs leave large files behind.
        let _ = fs::remove_dir_all(&work);
        let _ = fs::remove_file(scene.capture());
    }
    Ok(Outcome {
        failure,
        seconds: began.elapsed().as_secs_f64(),
    })
}

// A capture may take gigabytes, and on a full disk the last output of a program is lost.
fn shortage(folder: &Path) -> String {
    const LITTLE: u64 = 256 << 20;
    match rustix::fs::statvfs(folder) {
        Ok(disk) if disk.f_bavail * disk.f_frsize < LITTLE => {
            let left = (disk.f_bavail * disk.f_frsize) >> 20;
            format!("; its disk has {left} MiB left, too few to keep what is printed and captured")
        }
        _ => String::new(),
    }
}

// The servers on this machine to which a client can connect: TCP ports, and the names of processes that have a device of ours.
fn listening() -> BTreeSet<String> {
    let lines = |file| fs::read_to_string(file).unwrap_or_default();
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let tcp = ["/proc/net/tcp", "/proc/net/tcp6"].map(lines).concat();
    let ports = tcp.lines().map(words).filter_map(|mut words| {
        let is_listening = words.get(3).is_some_and(|state| state == "0A");
        is_listening.then(|| words.swap_remove(1))
    });
    let unix = lines("/proc/net/unix");
    let names = unix.lines().filter_map(|line| words(line).pop());
    ports
        .chain(names.filter(|name| name.starts_with("@polyverbs/")))
        .collect()
}

struct Scene<'a> {
    trial: &'a Trial<'a>,
    polyverbs: &'a Path,
    tools: &'a Tools,
    folder: &'a Path,
    patience: Patience,
}

impl Scene<'_> {
    fn row(&self) -> &Row {
        self.trial.row
    }

    fn capture(&self) -> std::path::PathBuf {
        self.folder.join("capture.pcapng")
    }

    /// Plays the scene; returns the failure, if there was one.
    fn play(&self) -> anyhow::Result<Option<String>> {
        let mut server = match &self.row().server {
            Some(command) => Some(self.serve(command)?),
            None => None,
        };
        let mut client = Group::start(&mut self.command(&self.row().run, true), &self.log("run"))?;
        let at_most = Duration::from_secs(self.row().seconds);
        let status = client.wait(at_most)?;
        drop(client);
        let end = |server: &mut Group| end(server, self.patience.ending);
        let served = server.as_mut().map(end).transpose()?.flatten();
        let printed = self.printed();
        let Some(status) = status else {
            return Ok(Some(format!("not done within {} s", at_most.as_secs())));
        };
        if has_crashed(status) || (!status.success() && self.row().refused.is_none()) {
            return Ok(Some(status.to_string()));
        }
        if let Some(served) = served {
            return Ok(Some(format!("its server: {served}")));
        }
        for pattern in &self.row().seen {
            if !pattern.0.is_match(&printed) {
                return Ok(Some(format!("{:?} was not seen", pattern.0.as_str())));
            }
        }
        self.carried()
    }

    fn serve(&self, command: &str) -> anyhow::Result<Group> {
        let log = self.log("server");
        let before = listening();
        let mut server = Group::start(&mut self.command(command, false), &log)?;
        match &self.row().ready {
            Some(ready) => {
                server.wait_until(self.patience.ready, || ready.0.is_match(&text(&log)))?
            }
            None => {
                server.wait_until(self.patience.ready, || !listening().is_subset(&before))?;
                server.wait_until(self.patience.beginning, || false)?;
            }
        }
        Ok(server)
    }

    /// The command that runs a shell command under `polyverbs run`.
    fn command(&self, shell: &str, is_captured: bool) -> Command {
        let mut command = Command::new(self.polyverbs);
        command
            .arg("run")
            .args(self.row().options.split_whitespace());
        if let Some(device) = self.trial.device {
            command.args(["--device", device]).env("DEVICE", device);
        }
        if let Some(faults) = self.trial.faults {
            command.args(["--fault", faults]);
        }
        if is_captured && self.row().carried.is_some() {
            command.arg("--pcap").arg(self.capture());
        }
        command
            .args(["--", "/bin/sh", "-c", shell])
            .env("PATH", &self.tools.path)
            .env("POLYVERBS", self.polyverbs)
            .current_dir(self.folder.join("work"));
        command
    }

    fn log(&self, name: &str) -> std::path::PathBuf {
        self.folder.join(name).with_extension("log")
    }

    fn printed(&self) -> String {
        text(&self.log("run")) + &text(&self.log("server"))
    }

    fn carried(&self) -> anyhow::Result<Option<String>> {
        let Some(wanted) = self.row().carried else {
            return Ok(None);
        };
        let carried = capture::bytes(&self.capture())?;
        Ok((carried < wanted)
            .then(|| format!("{carried} bytes went over our devices instead of {wanted} or more")))
    }
}

/// Ends a server that does not end by itself. Returns its status where that is a failure.
fn end(server: &mut Group, at_most: Duration) -> anyhow::Result<Option<std::process::ExitStatus>> {
    let by_itself = server.wait(at_most)?;
    if let Some(status) = by_itself {
        return Ok((!status.success()).then_some(status));
    }
    let status = server.end()?;
    Ok(status.filter(|&status| has_crashed(status)))
}

/// The output of a program; bytes that are not UTF-8 are replaced.
fn text(log: &Path) -> String {
    fs::read(log).map_or_else(
        |_| String::new(),
        |octets| String::from_utf8_lossy(&octets).into_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows;

    /// A program that stands in for `polyverbs`. It is a file of the sources: a file that a test writes cannot be
    /// executed while a process that another test has just started still holds it open for writing.
    const STAND_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/table/src/stand-in");

    fn failure(row: &str) -> Option<String> {
        failure_within(PATIENCE, row)
    }

    fn failure_within(patience: Patience, row: &str) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let text = format!("title = \"t\"\n[[row]]\nprogram = \"p\"\n{row}");
        let group: rows::Group = toml::from_str(&text).unwrap();
        let trial = group.trials().next().unwrap();
        let tools = Tools {
            path: std::env::var_os("PATH").unwrap(),
        };
        let outcome = run(&trial, Path::new(STAND_IN), &tools, folder.path(), patience);
        outcome.unwrap().failure
    }

    #[test]
    fn a_program_that_meets_its_row_passes() {
        for row in [
            "run = 'echo done'\nseen = ['^done$']",
            "server = 'mkfifo pipe; echo ready; read -r line <pipe; echo got $line'\nready = 'ready'
             run = 'echo ok >pipe'\nseen = ['got ok']",
            "run = 'echo no such thing >&2; exit 3'\nseen = ['no such']\nrefused = 'why'",
        ] {
            assert_eq!(failure(row), None, "{row}");
        }
    }

    #[test]
    fn a_server_that_opens_nothing_and_serves_on_passes() {
        let none = Patience {
            ready: Duration::ZERO,
            beginning: Duration::ZERO,
            ending: Duration::ZERO,
        };
        let row = "server = 'echo serves; exec sleep 600'
             run = 'until read word <../server.log; do :; done'\nseen = ['serves']";
        assert_eq!(failure_within(none, row), None);
    }

    #[test]
    fn a_program_that_does_not_fails() {
        for (row, reason) in [
            (
                "run = 'echo done'\nseen = ['done', 'more']",
                "\"(?m)more\" was not seen",
            ),
            (
                "run = 'echo done; exit 3'\nseen = ['done']",
                "exit status: 3",
            ),
            (
                "run = 'kill -SEGV $$'\nseen = []\nrefused = 'why'",
                "signal: 11",
            ),
            (
                "run = 'sleep 600'\nseconds = 0\nseen = []",
                "not done within 0 s",
            ),
            (
                "server = 'exit 4'\nrun = 'true'\nseen = []",
                "its server: exit status: 4",
            ),
            (
                "run = 'true'\nseen = []\ncarried = 1",
                "0 bytes went over our devices",
            ),
        ] {
            let failure = failure(row).unwrap_or_default();
            assert!(failure.contains(reason), "{row}: {failure:?}");
        }
    }
}
