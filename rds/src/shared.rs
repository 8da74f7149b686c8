//! The parts of a socket that the node accesses too, not only the socket itself.

use crate::rdma::Keys;
use crate::spin::Spin;
use crate::watch::Watch;

/// The shared part of a socket: see the [module](self).
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) watch: Watch,
    pub(crate) keys: Keys,
    pub(crate) spin: Spin,
}
