//! Receive requests.

use super::Data;

/// A receive: memory for one incoming message, or, for a write with immediate data, only its notification.
///
/// ```no_run
/// # fn example(qp: &verbs_api::Qp, cq: &verbs_api::Cq, region: &verbs_api::Mr)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::wr::ReceiveRequest;
/// qp.post_receive(ReceiveRequest::new(1, region.sge(0, 512)?))?;
/// let done = cq.next().wait()?.success()?;
/// println!("{} bytes lie in the region", done.byte_len);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
#[doc(alias = "ibv_recv_wr")]
pub struct ReceiveRequest<'a> {
    /// An identifier of the program's choice, which the completion returns.
    pub wr_id: u64,
    /// The memory that the message is placed into. A datagram is preceded by 40 bytes of routing header.
    pub data: Data<'a>,
}

impl<'a> ReceiveRequest<'a> {
    /// Receives a message into `data`.
    pub fn new(wr_id: u64, data: impl Into<Data<'a>>) -> Self {
        Self {
            wr_id,
            data: data.into(),
        }
    }
}

/// Receive requests that are posted together.
///
/// ```no_run
/// # fn example(qp: &verbs_api::Qp, region: &verbs_api::Mr) -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::wr::{ReceiveBatch, ReceiveRequest};
/// let mut receives = ReceiveBatch::new();
/// for slot in 0..8 {
///     receives.push(ReceiveRequest::new(slot, region.sge(slot as usize * 64, 64)?));
/// }
/// qp.post_receives(&mut receives)?;
/// assert!(receives.is_empty());
/// # Ok(())
/// # }
/// ```
pub type ReceiveBatch<'a> = Vec<ReceiveRequest<'a>>;
