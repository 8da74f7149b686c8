//! The two ends of a connection.

use crate::ids::{Gid, LinkAddress, Psn, Qpn};

/// What a peer needs to know to connect: exchange it by any means.
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
    /// The queue pair.
    pub qp_num: Qpn,
    /// The first packet sequence number that it sends.
    pub sq_psn: Psn,
    /// Where its port is found on the link.
    pub address: LinkAddress,
    /// The port's global identifier.
    pub gid: Gid,
}

/// The role of a queue pair in its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Half {
    /// Requester and responder, as all queue pairs are that no extension makes a variant of.
    #[default]
    Both,
    /// Requester only: its peer is a [`Responder`](Self::Responder).
    Requester,
    /// Responder only, without queues of its own.
    Responder,
}
