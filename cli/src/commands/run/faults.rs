//! `polyverbs run --fail`: runs the program as a child, and reports afterwards how often each rule fired.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::mpsc;
use std::thread::Builder;
use std::{env, fs, io};

use anyhow::Context as _;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use polyverbs_configuration::Configuration;
use polyverbs_layer::Faults;
use tempfile::NamedTempFile;

use super::Arguments;
use crate::output::complain;

/// The status of a run whose program has succeeded although a rule never fired.
const NEVER_FIRED: u8 = 125;

/// The code of a signal that the kernel itself has sent.
const SI_KERNEL: i32 = 0x80;

/// The rules of the command line; `None` if it has none.
pub(super) fn rules(arguments: &Arguments) -> anyhow::Result<Option<Faults>> {
    let Arguments {
        fail,
        fail_file,
        fail_seed,
        ..
    } = arguments;
    if fail.is_empty() && fail_file.is_none() {
        anyhow::ensure!(
            fail_seed.is_none(),
            "--fail-seed without --fail or --fail-file: there are no rules with chances"
        );
        return Ok(None);
    }
    let mut faults = Faults::new();
    for text in fail {
        faults = faults
            .rule(text)
            .with_context(|| format!("--fail {text:?}"))?;
    }
    if let Some(file) = fail_file {
        let name = file.display();
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
        faults = faults.rule(&text).with_context(|| name.to_string())?;
    }
    anyhow::ensure!(!faults.is_empty(), "--fail has no rules");
    Ok(Some(match fail_seed {
        Some(seed) => faults.seed(*seed),
        None => faults,
    }))
}

/// The file to which the program's processes write each rule that fires.
pub(super) enum Log {
    /// The program has no faults.
    None,
    /// The user's.
    File(PathBuf),
    /// One that is removed after the run.
    Temporary(NamedTempFile),
}

impl Log {
    pub(super) fn of(configuration: &mut Configuration) -> anyhow::Result<Self> {
        if configuration.fail.is_none() {
            return Ok(Self::None);
        }
        if let Some(file) = &configuration.fail_log {
            return Ok(Self::File(file.clone()));
        }
        let file = tempfile::Builder::new()
            .prefix("polyverbs-fail.")
            .tempfile();
        let file = file.context("cannot make a file that counts faults: set TMPDIR")?;
        configuration.fail_log = Some(file.path().to_owned());
        Ok(Self::Temporary(file))
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::None => Path::new(""),
            Self::File(file) => file,
            Self::Temporary(file) => file.path(),
        }
    }
}

/// Runs the program, passes signals on to it, and reports how often each rule fired.
///
/// # Errors
/// The program could not be started.
pub(super) fn supervise(
    command: &mut Command,
    faults: &Faults,
    log: &Path,
) -> Result<ExitCode, io::Error> {
    let mut signals = SigSet::empty();
    let ending = [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
    ];
    let passed = ending.into_iter().chain([Signal::SIGUSR1, Signal::SIGUSR2]);
    passed.for_each(|signal| signals.add(signal));
    // Blocked before the child exists, so that no signal ends this process while it runs.
    let mask = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    // What can fail comes before the child, which nothing would wait for.
    let received = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?;
    let (child, of_child) = mpsc::channel();
    let passing = Builder::new().name("signals".to_owned());
    passing.spawn(move || {
        let Ok(process) = of_child.recv() else { return };
        while let Ok(Some(signal)) = received.read_signal() {
            // A terminal sends the child its signals itself.
            let is_of_terminal = signal.ssi_code == SI_KERNEL;
            let number = signal.ssi_signo.cast_signed();
            if let (false, Ok(signal)) = (is_of_terminal, Signal::try_from(number)) {
                let _ = kill(process, signal);
            }
        }
    })?;
    let process = start(command, &mask)?;
    // The thread waits for it.
    let _ = child.send(process);
    let code = loop {
        match waitpid(process, None)? {
            WaitStatus::Exited(_, code) => break code,
            // As a shell says it.
            WaitStatus::Signaled(_, signal, _) => break 128 + signal as i32,
            _ => {}
        }
    };
    let all_have_fired = report(faults, log);
    Ok(match u8::try_from(code) {
        Ok(0) if !all_have_fired => ExitCode::from(NEVER_FIRED),
        Ok(code) => ExitCode::from(code),
        Err(_) => ExitCode::FAILURE,
    })
}

/// Starts the program with this signal mask. The standard library would give it the mask of this thread.
fn start(command: &Command, mask: &SigSet) -> io::Result<Pid> {
    let text = |text: &OsStr| CString::new(text.as_bytes()).map_err(io::Error::from);
    let program = text(command.get_program())?;
    let mut arguments = vec![program.clone()];
    for argument in command.get_args() {
        arguments.push(text(argument)?);
    }
    let mut variables: BTreeMap<_, _> = env::vars_os().collect();
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => variables.insert(name.to_owned(), value.to_owned()),
            None => variables.remove(name),
        };
    }
    let pairs = variables.into_iter().map(|(mut name, value)| {
        name.push("=");
        name.push(value);
        name
    });
    let environment = pairs
        .map(|pair| text(&pair))
        .collect::<io::Result<Vec<_>>>()?;
    let mut attributes = PosixSpawnAttr::init()?;
    let flags = PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF;
    attributes.set_flags(flags)?;
    attributes.set_sigmask(mask)?;
    // The standard library ignores it in this process.
    attributes.set_sigdefault(&SigSet::from(Signal::SIGPIPE))?;
    let files = PosixSpawnFileActions::init()?;
    Ok(posix_spawnp(
        &program,
        &files,
        &attributes,
        &arguments,
        &environment,
    )?)
}

/// Reports for each rule how often it fired. Returns whether each rule fired.
fn report(faults: &Faults, log: &Path) -> bool {
    let text = fs::read_to_string(log).unwrap_or_default();
    let fired = count(&text);
    let mut all = true;
    for (number, rule) in (1..).zip(faults.rules()) {
        let (times, processes) = fired.get(&number).copied().unwrap_or_default();
        all &= times > 0;
        complain(&match (times, processes) {
            (0, _) => format!("fault {number}, {rule}: never fired"),
            (1, _) => format!("fault {number}, {rule}: fired once"),
            (times, 0 | 1) => format!("fault {number}, {rule}: fired {times} times"),
            (times, processes) => {
                format!("fault {number}, {rule}: fired {times} times in {processes} processes")
            }
        });
    }
    all
}

/// How often each rule has fired, and in how many processes, by the comments of the log.
fn count(log: &str) -> HashMap<usize, (u64, usize)> {
    let mut times: HashMap<(usize, &str), u64> = HashMap::new();
    for line in log.lines() {
        let comment = line.rsplit_once("# rule ").map(|(_, comment)| comment);
        let parts = comment.and_then(|comment| comment.split_once(", process "));
        if let Some((number, process)) = parts
            && let Ok(number) = number.parse()
        {
            *times.entry((number, process)).or_default() += 1;
        }
    }
    let mut rules: HashMap<usize, (u64, usize)> = HashMap::new();
    for ((number, _), times) in times {
        let rule = rules.entry(number).or_default();
        rule.0 += times;
        rule.1 += 1;
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_counted_by_rule_and_process() {
        let log = "reg_mr@2:ENOMEM  # rule 1, process 7\n\
                   reg_mr@3:ENOMEM  # rule 1, process 7\n\
                   wc@1:lost  # rule 3, process 7\n\
                   wc@1:lost  # rule 3, process 8\n\
                   a line of somebody else\n";
        let expected = HashMap::from([(1, (2, 1)), (3, (2, 2))]);
        assert_eq!(count(log), expected);
    }
}
