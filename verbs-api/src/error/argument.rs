//! What can be wrong with an argument of a verb.

use thiserror::Error;

use super::RegistryError;
use crate::capability::{Features, feature_names};
use crate::ids::LinkAddress;
use crate::mem::PageListError;
use crate::service::{Operations, QpType};
use crate::transport::Transport;

/// The reason why an argument is invalid, with the valid values where they are known.
///
/// ```
/// use verbs_api::{ArgumentReason, VerbError};
///
/// fn most_allowed(error: &VerbError) -> Option<u64> {
///     match error {
///         VerbError::InvalidArgument { reason: ArgumentReason::OutOfRange { most, .. }, .. } => Some(*most),
///         _ => None,
///     }
/// }
///
/// let refused = VerbError::argument("port_num", ArgumentReason::OutOfRange { given: 9, least: 1, most: 2 });
/// assert_eq!(refused.to_string(), "port_num: is 9, allowed are 1 to 2");
/// assert_eq!(most_allowed(&refused), Some(2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ArgumentReason {
    /// The object was made from another open device.
    #[error("belongs to another open device")]
    AnotherDevice,
    /// The object was made by another provider.
    #[error("belongs to a device of another provider")]
    AnotherProvider,
    /// The object belongs to a device of the second transport, but is used with one of the first.
    #[error("belongs to a device of {}, which never meets one of {}", .1.name(), .0.name())]
    AnotherTransport(Transport, Transport),
    /// Queue pairs of these two services or variants cannot be connected with each other.
    #[error("{0} and {1} cannot be connected")]
    NoPair(&'static str, &'static str),
    /// Queue pairs of this service cannot do these operations.
    #[error("{qp_type:?} has no {}", operations.names().join(", "))]
    NotOfService {
        /// The service type that lacks the operations.
        qp_type: QpType,
        /// The operations that the service does not have.
        operations: Operations,
    },
    /// No peer on the port's network can have an address of this kind.
    #[error("{0:?} is not on the network of the port")]
    NotOnNetwork(LinkAddress),
    /// A number is too small or too large.
    #[error("is {given}, {}", range(*least, *most))]
    OutOfRange {
        /// The number that was given.
        given: u64,
        /// The least number that is allowed.
        least: u64,
        /// The greatest number that is allowed; `u64::MAX` if there is no limit.
        most: u64,
    },
    /// The memory cannot be mapped by a page list.
    #[error(transparent)]
    Pages(#[from] PageListError),
    /// The extensions cannot be combined.
    #[error(transparent)]
    Registry(#[from] Box<RegistryError>),
    /// A device claims features, but lacks these that the claimed ones depend on.
    #[error("lacks {}", feature_names(*.0).join(", "))]
    Lacks(Features),
    /// The argument cannot be combined with a variant of a service.
    #[error("{name}: {reason}")]
    Variant {
        /// Name of the variant of a service.
        name: &'static str,
        /// The rule of the variant that was broken.
        reason: &'static str,
    },
    /// The peer asks for a queue pair of this service, but the argument is of another.
    #[error("the peer asks for a queue pair of the service {0:?}")]
    PeerService(QpType),
    /// The emulation of an extension adds features that the extension's descriptor does not list.
    #[error("the emulation of {extension} gains bits {bits:#x} that {extension} does not describe")]
    Undescribed {
        /// Name of the extension.
        extension: &'static str,
        /// The bits that are not listed, of the extension's own set or of the core's.
        bits: u64,
    },
    /// These bits are set, but have no meaning.
    #[error("the bits {0:#x} have no meaning")]
    UnknownBits(u64),
    /// Another reason, as fixed text.
    #[error("{0}")]
    Other(&'static str),
    /// Text that something outside this library gave as the reason.
    #[error("{0}")]
    Said(Box<str>),
}

impl From<&'static str> for ArgumentReason {
    fn from(reason: &'static str) -> Self {
        Self::Other(reason)
    }
}

impl From<RegistryError> for ArgumentReason {
    fn from(error: RegistryError) -> Self {
        Self::Registry(Box::new(error))
    }
}

fn range(least: u64, most: u64) -> String {
    match most {
        u64::MAX => format!("at least {least}"),
        _ if least == most => format!("only {least} is allowed"),
        _ => format!("allowed are {least} to {most}"),
    }
}
