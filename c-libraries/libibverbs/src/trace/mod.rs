//! The trace: a line for each verb that a program calls, with arguments and result.
//!
//! The [entry](crate::entry) of verbs reports each call here. A slot of the data path leads there only if tracing was on when
//! the table was filled: a data path that is not traced costs nothing.
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

use polyverbs_configuration::{STANDARD_ERROR, VARIABLE};
use verbs_api::provider::MadeOnce;

use crate::errno::Errno;
use crate::setup::{complain, configuration};
pub use function::{Answer, Function};

/// Whether tracing is on.
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

/// The file of the trace. It is opened for each line: between calls there is no descriptor that the program could close.
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

// One write for each line, so that lines of several threads and processes stay whole.
fn write(line: &str) {
    // A trace that cannot be written is no reason to fail.
    let _ = match target() {
        Some(Target::StandardError) => io::stderr().write_all(line.as_bytes()),
        Some(Target::File(file)) => {
            Target::open(file).and_then(|mut file| file.write_all(line.as_bytes()))
        }
        None => Ok(()),
    };
}

#[derive(Clone, Copy, PartialEq)]
struct Call {
    function: &'static Function,
    arguments: Arguments,
}

thread_local! {
    // The last poll that found nothing, and how often it was repeated.
    static IDLE: Cell<Option<(Call, u64)>> = const { Cell::new(None) };
}

fn thread() -> c_int {
    // SAFETY: asks for a number.
    unsafe { libc::gettid() }
}

/// Reports the result of a verb.
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

/// Reports that a verb of this name has panicked.
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

/// Name and text of an error number: `EINVAL (Invalid argument)`.
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
