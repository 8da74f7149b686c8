//! The transports of RDMA.

/// The family of protocols that a device speaks.
///
/// ```
/// use verbs_api::{OpenError, Requirements, Transport, open};
/// let wanted = Requirements::new().transport(Transport::Iwarp);
/// match open(wanted) {
///     Ok(device) => assert_eq!(device.attributes().transport.name(), "iwarp"),
///     Err(error) => println!("{error}"),
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// The InfiniBand transport, which InfiniBand and RoCE devices speak.
    InfiniBand,
    /// RDMA over TCP: RFC 5040 to 5044.
    Iwarp,
}

impl Transport {
    /// Returns the name in lower case: `"infiniband"` or `"iwarp"`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InfiniBand => "infiniband",
            Self::Iwarp => "iwarp",
        }
    }
}
