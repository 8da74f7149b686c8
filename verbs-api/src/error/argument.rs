//! What can be wrong with an argument of a verb.

use thiserror::Error;

use super::RegistryError;
use crate::capability::{Features, feature_names};
use crate::ids::LinkAddress;
use crate::mem::PageListError;
use crate::service::{Operations, QpType};
use crate::transport::Transport;

/// What is wrong with an argument, or what would be right.
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
    /// The object belongs to a device of the second transport, and what it is used with to one of the first.
    #[error("belongs to a device of {}, which never meets one of {}", .1.name(), .0.name())]
    AnotherTransport(Transport, Transport),
    /// Queue pairs of these services or variants never meet.
    #[error("{0} and {1} cannot be connected")]
    NoPair(&'static str, &'static str),
    /// The service does not have these operations.
    #[error("{qp_type:?} has no {}", operations.names().join(", "))]
    NotOfService {
        /// The service.
        qp_type: QpType,
        /// The operations.
        operations: Operations,
    },
    /// Nothing on the port's network has this address.
    #[error("{0:?} is not on the network of the port")]
    NotOnNetwork(LinkAddress),
    /// A number is too small or too large.
    #[error("is {given}, {}", range(*least, *most))]
    OutOfRange {
        /// The number given.
        given: u64,
        /// The least that is allowed.
        least: u64,
        /// The greatest that is allowed; `u64::MAX` where nothing bounds it.
        most: u64,
    },
    /// Memory that no page list can map.
    #[error(transparent)]
    Pages(#[from] PageListError),
    /// Extensions that do not fit together.
    #[error(transparent)]
    Registry(#[from] Box<RegistryError>),
    /// Features without which the others cannot be.
    #[error("lacks {}", feature_names(*.0).join(", "))]
    Lacks(Features),
    /// What a variant of a service does not go with.
    #[error("{name}: {reason}")]
    Variant {
        /// The variant.
        name: &'static str,
        /// The rule.
        reason: &'static str,
    },
    /// The peer asks for a queue pair of this service, which the argument does not have.
    #[error("the peer asks for one of the service {0:?}")]
    PeerService(QpType),
    /// The emulation of an extension gains features that the extension does not describe.
    #[error("the emulation of {extension} gains bits {bits:#x} that {extension} does not describe")]
    Undescribed {
        /// The extension.
        extension: &'static str,
        /// Bits of its features or of the core's.
        bits: u64,
    },
    /// Bits that have no meaning.
    #[error("the bits {0:#x} have no meaning")]
    UnknownBits(u64),
    /// Another reason.
    #[error("{0}")]
    Other(&'static str),
    /// What a part outside of this library says.
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
