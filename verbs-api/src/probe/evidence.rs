//! What a probe found otherwise than the rule says.

use std::fmt;
use std::panic::Location;

use crate::capability::Unsupported;
use crate::error::{ErrorKind, VerbError};
use crate::lifecycle::DestroyError;
use crate::mem::{OutOfMemory, OutOfRange};
use crate::post::{PostError, PostReason};
use crate::wc::WcStatus;

/// What kind of thing a probe found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EvidenceKind {
    /// The rule was broken.
    Wrong,
    /// The device said that it does not have what the probe used.
    Unsupported,
    /// The rule cannot be looked at here, for a reason that is not the device's.
    NotHere,
}

/// What a probe found, and where in the probe. Errors of verbs and of posting become evidence with `?`.
#[derive(Clone, Debug)]
pub struct Evidence {
    kind: EvidenceKind,
    found: String,
    at: &'static Location<'static>,
}

impl Evidence {
    /// The rule was broken: what was found.
    #[track_caller]
    pub fn wrong(found: impl Into<String>) -> Self {
        Self::of(EvidenceKind::Wrong, found.into())
    }

    /// The device said that it does not have what the probe used: how.
    #[track_caller]
    pub fn unsupported(said: impl Into<String>) -> Self {
        Self::of(EvidenceKind::Unsupported, said.into())
    }

    /// A request that is legal ended so. An operation that a device does not have ends as one that its queue pair cannot
    /// do, where it was granted nonetheless.
    #[track_caller]
    pub fn ended(status: WcStatus) -> Self {
        let said = format!("a request that is legal failed with {status:?}");
        match status {
            WcStatus::LocQpOpErr => Self::unsupported(said),
            _ => Self::wrong(said),
        }
    }

    /// The rule cannot be looked at here: why.
    #[track_caller]
    pub fn not_here(why: impl Into<String>) -> Self {
        Self::of(EvidenceKind::NotHere, why.into())
    }

    #[track_caller]
    fn of(kind: EvidenceKind, found: String) -> Self {
        let at = Location::caller();
        Self { kind, found, at }
    }

    #[track_caller]
    fn of_error(kind: ErrorKind, error: &dyn fmt::Display) -> Self {
        let kind = match kind {
            ErrorKind::Unsupported => EvidenceKind::Unsupported,
            ErrorKind::Resources => EvidenceKind::NotHere,
            _ => EvidenceKind::Wrong,
        };
        Self::of(kind, error.to_string())
    }

    /// What kind of thing it is.
    pub const fn kind(&self) -> EvidenceKind {
        self.kind
    }

    /// What was found.
    pub fn found(&self) -> &str {
        &self.found
    }

    /// Where in the probe: file and line.
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
                Self::of_error($kind, &$name)
            }
        })*
    };
}

from_errors! {
    VerbError: |error| match &error {
        // What comes with a feature is 0 where that is absent.
        VerbError::Limit(short) if short.offered == 0 => ErrorKind::Unsupported,
        other => other.kind(),
    };
    Unsupported: |error| ErrorKind::Unsupported;
    PostReason: |error| error.kind();
    PostError: |error| error.kind();
    OutOfMemory: |error| ErrorKind::Resources;
    OutOfRange: |error| ErrorKind::Internal;
}

impl<T> From<DestroyError<T>> for Evidence {
    #[track_caller]
    fn from(error: DestroyError<T>) -> Self {
        Self::of_error(error.kind(), &error)
    }
}

/// Sees that a condition holds, in a probe: otherwise what follows is the evidence.
#[doc(hidden)]
#[macro_export]
macro_rules! __ensure {
    ($condition:expr, $($found:tt)+) => {
        if !$condition {
            return Err($crate::probe::Evidence::wrong(format!($($found)+)));
        }
    };
}

/// Sees that two values are equal, in a probe: otherwise both are the evidence, with what they are.
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
