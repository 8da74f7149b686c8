//! The parts of a socket that the node accesses too, not only the socket itself.

use crate::rdma::Keys;
use crate::spin::Spin;
use crate::watch::Watch;

/// The part of a socket that its node accesses too: its waiters, the keys of its registered memory, and how long its calls
/// poll.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) watch: Watch,
    pub(crate) keys: Keys,
    pub(crate) spin: Spin,
}
