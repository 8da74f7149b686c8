//! What a socket and its node both have of it.

use crate::rdma::Keys;
use crate::spin::Spin;
use crate::watch::Watch;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) watch: Watch,
    pub(crate) keys: Keys,
    pub(crate) spin: Spin,
}
