//! Evidence that a rule does not hold.

use std::fmt;
use std::panic::Location;

use rustix::io::Errno;

use crate::capability::Unsupported;
use crate::error::{ErrorKind, VerbError};
use crate::lifecycle::DestroyError;
use crate::mem::{OutOfMemory, OutOfRange};
use crate::post::{PostError, PostReason};
use crate::wc::WcStatus;

/// What a probe found instead of a rule that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EvidenceKind {
    /// The rule that the probe checks is broken.
    Wrong,
    /// The device reported that it does not support what the probe used.
    Unsupported,
    /// The rule cannot be checked here, for a reason that is not the device's, such as a network without a peer.
    NotHere,
}

/// What a probe found instead of a rule that holds, and where in the probe. The operator `?` converts errors of verbs and
/// of posting.
#[derive(Clone, Debug)]
pub struct Evidence {
    kind: EvidenceKind,
    found: String,
    at: &'static Location<'static>,
}

impl Evidence {
    /// The rule is broken; `found` describes what the probe found.
    #[track_caller]
    pub fn wrong(found: impl Into<String>) -> Self {
        Self::of(EvidenceKind::Wrong, found.into())
    }

    /// The device reported that it does not support what the probe used; `said` is the text of its error.
    #[track_caller]
    pub fn unsupported(said: impl Into<String>) -> Self {
        Self::of(EvidenceKind::Unsupported, said.into())
    }

    /// Makes the evidence of a legal request that completed with the error `status`. A status by which a device refuses an
    /// operation that it does not have makes it [`Unsupported`](EvidenceKind::Unsupported).
    #[track_caller]
    pub fn ended(status: WcStatus) -> Self {
        let said = format!("a request that is legal failed with {status:?}");
        match status {
            WcStatus::LocQpOpErr => Self::unsupported(said),
            _ => Self::wrong(said),
        }
    }

    /// The rule cannot be checked here; `why` is the reason.
    #[track_caller]
    pub fn not_here(why: impl Into<String>) -> Self {
        Self::of(EvidenceKind::NotHere, why.into())
    }

    #[track_caller]
    fn of(kind: EvidenceKind, found: String) -> Self {
        let at = Location::caller();
        Self { kind, found, at }
    }

    /// Returns the kind of evidence.
    pub const fn kind(&self) -> EvidenceKind {
        self.kind
    }

    /// Returns the text that describes what the probe found.
    pub fn found(&self) -> &str {
        &self.found
    }

    /// Returns the file and line in the probe where this was found.
    pub fn at(&self) -> String {
        format!("{}:{}", self.at.file(), self.at.line())
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.found, self.at())
    }
}

macro_rules! from_errors {
    ($($error:ty: |$name:ident| $kind:expr;)*) => {
        $(impl From<$error> for Evidence {
            #[track_caller]
            fn from($name: $error) -> Self {
                Self::of($kind, $name.to_string())
            }
        })*
    };
}

from_errors! {
    VerbError: |error| of_verb(&error);
    Unsupported: |error| EvidenceKind::Unsupported;
    PostReason: |error| of_post(&error);
    PostError: |error| of_post(&error.reason);
    OutOfMemory: |error| EvidenceKind::NotHere;
    OutOfRange: |error| EvidenceKind::Wrong;
}

impl<T> From<DestroyError<T>> for Evidence {
    #[track_caller]
    fn from(error: DestroyError<T>) -> Self {
        let kind = match &error {
            DestroyError::Busy { .. } => EvidenceKind::Wrong,
            DestroyError::Failed(error) => of_verb(error),
        };
        Self::of(kind, error.to_string())
    }
}

fn of_verb(error: &VerbError) -> EvidenceKind {
    match error {
        // A limit that comes with a feature is 0 where the feature is absent.
        VerbError::Limit(short) if short.offered == 0 => EvidenceKind::Unsupported,
        VerbError::MemoryLock { .. } | VerbError::Resources(_) | VerbError::UnsupportedHere(_) => {
            EvidenceKind::NotHere
        }
        VerbError::Os { errno, .. } => of_errno(*errno),
        other => of_kind(other.kind()),
    }
}

fn of_post(reason: &PostReason) -> EvidenceKind {
    match reason {
        PostReason::Os { errno } => of_errno(*errno),
        other => of_kind(other.kind()),
    }
}

// A device that promised room in its queues and has none is wrong, so `ErrorKind::Resources` alone says nothing about the machine.
fn of_kind(kind: ErrorKind) -> EvidenceKind {
    match kind {
        ErrorKind::Unsupported => EvidenceKind::Unsupported,
        _ => EvidenceKind::Wrong,
    }
}

// The operating system refuses either the call itself, or an address, a peer, a permission, a descriptor or memory that the
// machine does not have for it; the latter says nothing about the device.
fn of_errno(errno: i32) -> EvidenceKind {
    match Errno::from_raw_os_error(errno) {
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::AFNOSUPPORT | Errno::PROTONOSUPPORT => {
            EvidenceKind::Unsupported
        }
        Errno::INVAL
        | Errno::BADF
        | Errno::FAULT
        | Errno::BUSY
        | Errno::EXIST
        | Errno::IO
        | Errno::DEADLK
        | Errno::CANCELED => EvidenceKind::Wrong,
        _ => EvidenceKind::NotHere,
    }
}

/// Checks a condition in a probe; if it is false, the probe ends with the text that follows as its evidence.
#[doc(hidden)]
#[macro_export]
macro_rules! __ensure {
    ($condition:expr, $($found:tt)+) => {
        if !$condition {
            return Err($crate::probe::Evidence::wrong(format!($($found)+)));
        }
    };
}

/// Checks that two values are equal in a probe; if not, the probe ends with both values as its evidence.
#[doc(hidden)]
#[macro_export]
macro_rules! __ensure_eq {
    ($found:expr, $expected:expr, $($what:tt)+) => {
        match (&$found, &$expected) {
            (found, expected) => {
                if found != expected {
                    let what = format!($($what)+);
                    let evidence = format!("{what}: found {found:?}, expected {expected:?}");
                    return Err($crate::probe::Evidence::wrong(evidence));
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_the_machine_lacks_are_no_evidence_against_devices() {
        let lacking = [
            Errno::ADDRNOTAVAIL,
            Errno::ADDRINUSE,
            Errno::CONNREFUSED,
            Errno::HOSTUNREACH,
            Errno::NETUNREACH,
            Errno::TIMEDOUT,
            Errno::PERM,
            Errno::ACCESS,
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOMEM,
            Errno::NOBUFS,
            Errno::NODEV,
        ];
        for errno in lacking {
            let verb = Evidence::from(VerbError::os("bind", errno));
            assert_eq!(verb.kind(), EvidenceKind::NotHere, "{verb}");
            let errno = errno.raw_os_error();
            let post = Evidence::from(PostReason::Os { errno });
            assert_eq!(post.kind(), EvidenceKind::NotHere, "{post}");
        }
        let elsewhere = VerbError::UnsupportedHere("no address".into());
        let memory = VerbError::MemoryLock {
            wanted: 1 << 30,
            limit: 1 << 16,
        };
        for error in [elsewhere, memory, VerbError::Resources("descriptors")] {
            let found = Evidence::from(DestroyError::<()>::Failed(error));
            assert_eq!(found.kind(), EvidenceKind::NotHere, "{found}");
        }
    }

    #[test]
    fn refusals_of_the_device_itself_are_evidence() {
        let broken = Evidence::from(VerbError::os("ibv_modify_qp", Errno::INVAL));
        assert_eq!(broken.kind(), EvidenceKind::Wrong);
        let absent = Evidence::from(VerbError::os("ibv_alloc_mw", Errno::OPNOTSUPP));
        assert_eq!(absent.kind(), EvidenceKind::Unsupported);
        // Of its own queues a device has what it promised.
        let full = Evidence::from(PostReason::QueueFull { max: 4 });
        assert_eq!(full.kind(), EvidenceKind::Wrong);
        let overrun = Evidence::from(VerbError::CqOverrun);
        assert_eq!(overrun.kind(), EvidenceKind::Wrong);
    }
}
