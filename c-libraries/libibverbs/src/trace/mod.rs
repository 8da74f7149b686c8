//! The trace: one line for each verb that a program calls, with its arguments and result.
//!
//! The [entry](crate::entry) of each verb reports the call here. Verbs of the data path have this entry only if tracing was
//! on when their slot was filled, so that tracing costs nothing while it is off.
#![allow(unsafe_code)]

mod function;
mod show;

use std::any::Any;
use std::cell::Cell;
use std::ffi::c_int;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

use polyverbs_configuration::{STANDARD_ERROR, VARIABLE, complain, to_standard_error};
use verbs_api::provider::MadeOnce;

use crate::errno::Errno;
use crate::setup::configuration;
pub use function::{Answer, Function};

/// Whether tracing is on, as one of the three constants below.
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

const OFF: u8 = 0;
const UNKNOWN: u8 = 1;
const ON: u8 = 2;

/// The registers that hold arguments, which are all of every verb.
const REGISTERS: usize = 6;

/// A verb's arguments in registers.
pub(crate) type Arguments = [u64; REGISTERS];

/// Whether tracing is on. The first call reads the configuration.
pub fn is_on() -> bool {
    match STATE.load(Ordering::Relaxed) {
        UNKNOWN => {
            let on = std::env::var_os(VARIABLE).is_some() && target().is_some();
            STATE.store(if on { ON } else { OFF }, Ordering::Relaxed);
            on
        }
        state => state == ON,
    }
}

/// The destination of the trace. A file is opened anew for each line, so that there is no open descriptor that the program
/// could close by mistake.
enum Target {
    StandardError,
    File(&'static Path),
}

impl Target {
    fn open(file: &Path) -> io::Result<File> {
        File::options().create(true).append(true).open(file)
    }
}

fn target() -> Option<&'static Target> {
    static TARGET: MadeOnce<Option<Target>> = MadeOnce::new();
    let target = TARGET.get_or_make(|| {
        let file = configuration().trace.as_deref()?;
        if file == Path::new(STANDARD_ERROR) {
            return Some(Target::StandardError);
        }
        match Target::open(file) {
            Ok(_) => Some(Target::File(file)),
            Err(error) => {
                complain(format_args!("cannot write {}: {error}", file.display()));
                None
            }
        }
    });
    target.as_ref()
}

// Writes each line with one system call, so that lines of several threads and processes are not mixed.
fn write(line: &str) {
    // The verb does not fail because its trace cannot be written.
    match target() {
        Some(Target::StandardError) => to_standard_error(line),
        Some(Target::File(file)) => {
            let _ = Target::open(file).and_then(|mut file| file.write_all(line.as_bytes()));
        }
        None => {}
    }
}

#[derive(Clone, Copy, PartialEq)]
struct Call {
    function: &'static Function,
    arguments: Arguments,
}

thread_local! {
    // The last call that found nothing, such as a poll of an empty CQ, and how often it was repeated since.
    static IDLE: Cell<Option<(Call, u64)>> = const { Cell::new(None) };
}

fn thread() -> c_int {
    // SAFETY: asks for a number.
    unsafe { libc::gettid() }
}

/// Writes the line of a verb that has returned.
pub(crate) fn leave(function: &'static Function, arguments: Arguments, result: u64) {
    let errno = Errno::last();
    tell(
        Call {
            function,
            arguments,
        },
        result,
        errno,
    );
    errno.set();
}

/// Writes a line for a quirk of a device's profile that the program has met.
#[cold]
pub(crate) fn quirk(device: &str, quirk: &str, what: &str) {
    if is_on() {
        let thread = thread();
        write(&format!(
            "[{thread}] {device} has the quirk {quirk}: {what}\n"
        ));
    }
}

/// Writes a line for a verb of this name that has panicked.
#[cold]
pub(crate) fn panicked(name: &str, panic: Box<dyn Any + Send>) {
    let message = (panic.downcast_ref::<String>().map(String::as_str))
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a value that is no text");
    if is_on() {
        let thread = thread();
        write(&format!(
            "[{thread}] {name}(…) panicked: {message}; please report this\n"
        ));
    }
}

fn tell(call: Call, result: u64, errno: Errno) {
    let idle = call.function.is_idle(result, errno);
    let before = IDLE.get();
    if let Some((_, times)) = before.filter(|(last, _)| idle && *last == call) {
        IDLE.set(Some((call, times + 1)));
        return;
    }
    if let Some((_, times @ 1..)) = before {
        write(&format!("[{}] … {times} times more\n", thread()));
    }
    IDLE.set(idle.then_some((call, 0)));
    let shown = call.function.show(&call.arguments, result, errno);
    write(&format!("[{}] {shown}\n", thread()));
}

/// The name and text of an error number, such as `EINVAL (Invalid argument)`.
fn error(number: c_int) -> String {
    let name = match number {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EINTR => "EINTR",
        libc::EIO => "EIO",
        libc::EBADF => "EBADF",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EBUSY => "EBUSY",
        libc::ENODEV => "ENODEV",
        libc::EINVAL => "EINVAL",
        libc::ENOSPC => "ENOSPC",
        libc::ERANGE => "ERANGE",
        libc::EDEADLK => "EDEADLK",
        libc::ENOSYS => "ENOSYS",
        libc::ENODATA => "ENODATA",
        libc::ENOPROTOOPT => "ENOPROTOOPT",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EADDRINUSE => "EADDRINUSE",
        libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
        libc::ENETUNREACH => "ENETUNREACH",
        libc::ECONNRESET => "ECONNRESET",
        libc::EISCONN => "EISCONN",
        libc::ENOTCONN => "ENOTCONN",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::EINPROGRESS => "EINPROGRESS",
        libc::ECANCELED => "ECANCELED",
        _ => "",
    };
    let text = io::Error::from_raw_os_error(number).to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    if name.is_empty() {
        format!("{number} ({text})")
    } else {
        format!("{name} ({text})")
    }
}
