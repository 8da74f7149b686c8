//! Adds explanations to errors of the system whose own text does not say what to do.

use std::io;
use std::net::IpAddr;

use rustix::io::Errno;
use thiserror::Error;

/// Adds the likely cause and a remedy to the error of a call about `about`, an address of this machine. Errors without a
/// known cause are returned unchanged.
pub(crate) fn explained(error: io::Error, about: IpAddr) -> io::Error {
    let cause = match Errno::from_io_error(&error) {
        Some(Errno::NETUNREACH | Errno::NETDOWN | Errno::ADDRNOTAVAIL) if about.is_loopback() => {
            "the loopback interface is down, or lacks this address: `ip link set lo up`"
        }
        Some(Errno::MFILE) => {
            "the process has no descriptor left: a device needs about 15, raise `ulimit -n`"
        }
        Some(Errno::NFILE) => "the system has no file left: see /proc/sys/fs/file-max",
        _ => return error,
    };
    with_cause(error, cause.to_owned())
}

/// Returns a function that adds the name of a system call to its error if a sandbox may have refused the call. Other errors
/// stay as they are.
pub(crate) fn named(call: &'static str) -> impl Fn(Errno) -> io::Error {
    move |errno| match errno {
        Errno::PERM | Errno::ACCESS | Errno::NOSYS => with_cause(
            errno.into(),
            format!("the system refuses {call}: allow it in the sandbox (seccomp) of this process"),
        ),
        errno => errno.into(),
    }
}

fn with_cause(error: io::Error, cause: String) -> io::Error {
    io::Error::new(error.kind(), Explained { cause, error })
}

#[derive(Debug, Error)]
#[error("{cause} ({error})")]
struct Explained {
    cause: String,
    #[source]
    error: io::Error,
}

#[cfg(test)]
mod tests {
    use verbs_api::provider::errno_of;

    use super::*;

    #[test]
    fn a_refusal_says_what_to_do() {
        let said = |errno: Errno, about: &str| {
            let error = explained(errno.into(), about.parse().unwrap());
            assert_eq!(errno_of(&error), errno.raw_os_error());
            error.to_string()
        };
        for errno in [Errno::NETUNREACH, Errno::ADDRNOTAVAIL] {
            for about in ["127.0.0.1", "::1"] {
                assert!(said(errno, about).contains("ip link set lo up"));
            }
            assert_eq!(said(errno, "192.0.2.1"), io::Error::from(errno).to_string());
        }
        assert!(said(Errno::MFILE, "192.0.2.1").contains("ulimit -n"));
    }

    #[test]
    fn a_call_that_a_sandbox_refuses_is_named() {
        for errno in [Errno::PERM, Errno::NOSYS] {
            let error = named("eventfd2")(errno);
            assert_eq!(errno_of(&error), errno.raw_os_error());
            assert!(error.to_string().contains("refuses eventfd2"), "{error}");
        }
        let full = named("eventfd2")(Errno::MFILE);
        assert_eq!(full.to_string(), io::Error::from(Errno::MFILE).to_string());
    }
}
