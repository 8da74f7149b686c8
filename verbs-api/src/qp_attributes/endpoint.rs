//! The endpoint and the role of a queue pair in a connection.

use crate::ids::{Gid, LinkAddress, Psn, Qpn};

/// The address of a queue pair that a peer needs to connect to it. Programs exchange it by any means.
///
/// ```no_run
/// # fn example(qp: &verbs_api::Qp) -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::{QpEndpoint, ids::{Psn, Qpn}};
/// let own = qp.endpoint()?;
/// // All four go to the peer, in any form; it makes the same endpoint of them, and connects to it.
/// let (qp_num, sq_psn) = (own.qp_num.value(), own.sq_psn.value());
/// let told = QpEndpoint { qp_num: Qpn::new(qp_num), sq_psn: Psn::new(sq_psn), ..own };
/// assert_eq!(told, own);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpEndpoint {
    /// The queue pair number.
    pub qp_num: Qpn,
    /// The first PSN that the queue pair sends.
    pub sq_psn: Psn,
    /// The link address of the queue pair's port.
    pub address: LinkAddress,
    /// The GID of the queue pair's port.
    pub gid: Gid,
}

/// The role of a queue pair in its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Half {
    /// Requester and responder. Every queue pair is both, unless an extension made it a variant.
    #[default]
    Both,
    /// Requester only; its peer is a [`Responder`](Self::Responder).
    Requester,
    /// Responder only, without send and receive queues of its own.
    Responder,
}
