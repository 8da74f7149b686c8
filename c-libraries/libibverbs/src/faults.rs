//! The faults of verbs that the configuration asks for.
//!
//! Verbs of a device fail in the [layer](polyverbs_layer) in front of it. Calls that do not reach a device fail here, at the
//! [entry](crate::entry) of all calls, or where the event of a connection manager is fetched.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::sleep;

use polyverbs_configuration::VARIABLE;
use polyverbs_layer::{CmFate, Fired, Injector, LibraryFate};
use verbs_api::provider::PerProcess;

use crate::errno::Errno;
use crate::setup::configuration;

/// Whether there are faults, as one of the three constants below. Each call reads this byte first, and nothing else if there are
/// no faults.
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

const NONE: u8 = 0;
const UNKNOWN: u8 = 1;
const SOME: u8 = 2;

fn are_there() -> bool {
    match STATE.load(Ordering::Relaxed) {
        UNKNOWN => {
            let is_configured = std::env::var_os(VARIABLE).is_some();
            let are_there = is_configured && configuration().fail.is_some();
            STATE.store(if are_there { SOME } else { NONE }, Ordering::Relaxed);
            are_there
        }
        state => state == SOME,
    }
}

/// What counts the faults of this process; `None` if there are none. A child of a fork counts from the beginning.
pub fn injector() -> Option<&'static Arc<Injector>> {
    static OF_PROCESS: PerProcess<Option<Arc<Injector>>> = PerProcess::new(|| {
        let configuration = configuration();
        let faults = configuration.fail.as_ref()?;
        Some(match configuration.fail_log.as_deref() {
            Some(file) => faults.logged(|fired| note(file, fired)),
            None => faults.injector(),
        })
    });
    match are_there() {
        true => OF_PROCESS.as_ref(),
        false => None,
    }
}

/// Writes the rule that has fired, with its exact count, and in a comment which rule of the script it is. One system call writes
/// the line, so that lines of several threads and processes are not mixed; the file is open only meanwhile, so that the program
/// cannot close it by mistake.
fn note(file: &Path, fired: &Fired) {
    let (rule, process) = (fired.rule + 1, std::process::id());
    let line = format!("{}  # rule {rule}, process {process}\n", fired.exactly);
    let opened = File::options().create(true).append(true).open(file);
    // The verb does not fail because its fault cannot be noted.
    let _ = opened.and_then(|mut file| file.write_all(line.as_bytes()));
}

/// The error with which a call of this name fails, after the delay that it has.
pub(crate) fn of_call(name: &str) -> Option<Errno> {
    if !are_there() {
        return None;
    }
    let name = name.trim_start_matches('_');
    let call = name.strip_prefix("ibv_").unwrap_or(name);
    let LibraryFate { delay, errno } = injector()?.library(call);
    if !delay.is_zero() {
        sleep(delay);
    }
    errno.map(Errno)
}

/// What happens to an event of the connection manager that the program is about to get.
pub fn of_cm_event(code: u8) -> CmFate {
    injector().map_or_else(CmFate::default, |injector| injector.cm_event(code))
}
