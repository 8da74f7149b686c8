//! Receive requests.

use super::Data;

/// Room for one incoming message, or for the notice of a write with immediate.
#[derive(Debug, Default)]
#[doc(alias = "ibv_recv_wr")]
pub struct ReceiveRequest<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the octets go. Datagrams put 40 octets of routing header first.
    pub data: Data<'a>,
}

impl<'a> ReceiveRequest<'a> {
    /// A receive into `data`.
    pub fn new(wr_id: u64, data: impl Into<Data<'a>>) -> Self {
        Self {
            wr_id,
            data: data.into(),
        }
    }
}

/// Receive requests that are posted together.
pub type ReceiveBatch<'a> = Vec<ReceiveRequest<'a>>;
