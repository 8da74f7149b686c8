//! The active side: connections that the peer has accepted.

use std::sync::Arc;

use verbs_api::provider::backend::{ConnectError, Offer, Refusal};
use verbs_api::qp::QpAttributes;
use verbs_api::{PathOptions, Started, ids::Qpn};

use super::connection::{Connection, settle};
use super::offer::{agreed, copied, with_reads};
use super::options::ReadLimits;
use super::request::begin;
use super::side::{Side, reject};
use super::target::Target;

/// A connection that the peer has accepted, and that the active side still has to complete. Dropping it aborts the connection.
///
/// ```
/// use polyverbs::connection::{ConnectionOptions, Connector};
/// # use polyverbs::{QpOptions, Requirements, emulated};
/// # let device = emulated::device("ib0", &Default::default())?.open(&Requirements::new())?;
/// # let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(16).wait()?);
/// # let near = pd.create_qp(QpOptions::rc(&cq)).wait()?;
/// # let far = pd.create_qp(QpOptions::rc(&cq)).wait()?;
/// # let connector = Connector::of(&device)?;
/// # let listener = connector.listen("192.0.2.1:7471".parse()?, 1)?;
/// let asked = connector.request(&near, listener.address(), ConnectionOptions::new());
/// # let answer = ConnectionOptions::new().private_data(b"welcome");
/// # let accepting = listener.next().wait()?.accept(&far, answer);
/// let accepted = asked.wait()?;
/// if accepted.private_data().starts_with(b"welcome") {
///     let connection = accepted.complete().wait()?;
/// #   accepting.wait()?;
/// } else {
///     accepted.reject(b"this is not the service that I know")?;
/// #   unreachable!("the peer says that");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Accepted {
    side: Option<Arc<Side>>,
    target: Target,
    options: PathOptions,
    reads: ReadLimits,
    peer: Offer,
    pub(super) brings_up: bool,
}

impl Accepted {
    pub(super) fn new(
        side: Arc<Side>,
        target: Target,
        options: PathOptions,
        own: ReadLimits,
        peer: Offer,
    ) -> Self {
        let reads = agreed(own, &peer);
        Self {
            side: Some(side),
            target,
            options: with_reads(options, reads),
            reads,
            peer,
            brings_up: true,
        }
    }

    /// Returns the attributes for INIT, RTR and RTS, for a program that modifies the queue pair itself before it completes
    /// the connection.
    ///
    /// # Errors
    /// The device was removed.
    pub fn steps(&self) -> Result<[QpAttributes; 3], ConnectError> {
        let side = self.side.as_ref().ok_or(ConnectError::NotConnected)?;
        let context = &self.target.context;
        let planned = self.options.reliable_steps(context, &self.peer.endpoint)?;
        side.steps(planned)
    }

    /// Returns the number of the peer's queue pair.
    pub const fn remote_qpn(&self) -> Qpn {
        self.peer.endpoint.qp_num
    }

    /// Returns the private data of the peer's reply, padded with zeros to at least 196 bytes.
    pub fn private_data(&self) -> &[u8] {
        &self.peer.private_data
    }

    /// Copies the private data of the peer's reply, and returns its length.
    ///
    /// # Errors
    /// [`ConnectError::PrivateData`] if the buffer is too short; it is filled nevertheless.
    pub fn copy_private_data(&self, into: &mut [u8]) -> Result<usize, ConnectError> {
        copied(&self.peer.private_data, into)
    }

    /// Returns the read limits that both sides agreed on, from this side's point of view.
    pub const fn reads(&self) -> ReadLimits {
        self.reads
    }

    /// Returns the RNR retry count that the peer asks this side to use; `None` where the transport does not convey it.
    pub const fn offered_rnr_retry(&self) -> Option<u8> {
        self.peer.rnr_retry
    }

    /// Returns whether the peer asks for end-to-end flow control; `false` where the transport does not convey it.
    pub const fn offered_flow_control(&self) -> bool {
        self.peer.flow_control
    }

    /// Returns whether the peer's queue pair has a shared receive queue; `false` where the transport does not convey it.
    pub const fn offered_srq(&self) -> bool {
        self.peer.srq
    }

    /// Completes the connection: brings the queue pair to RTS, and sends the RTU message or its equivalent. If the peer has
    /// given up meanwhile, this fails with [`ConnectError::Aborted`], and the queue pair is either untouched or flushed.
    pub fn complete(mut self) -> Started<Connection, ConnectError> {
        let Some(side) = self.side.take() else {
            return Started::ready(Err(ConnectError::NotConnected));
        };
        if side.is_over() {
            side.forget();
            return Started::ready(Err(ConnectError::Aborted));
        }
        let private_data: Arc<[u8]> = std::mem::take(&mut self.peer.private_data).into();
        if !self.brings_up {
            let done = side.token().map(|token| side.backend.complete(token));
            return Started::ready(settle(side, &self.target, &private_data, done));
        }
        let (started, request) = begin(&self.target.context);
        let target = self.target.clone();
        match self
            .target
            .bring_up(&side, &self.peer.endpoint, self.options)
        {
            Ok(up) => up.on_done(move |up| {
                // Checked first: if the peer is gone the queue pair may be in ERR already, and fail to come up for that.
                let done = if side.is_over() {
                    target.flush_unasked();
                    Err(ConnectError::Aborted)
                } else {
                    let up = up.map_err(ConnectError::in_queue_pair);
                    up.and_then(|()| {
                        side.backend.complete(side.token()?);
                        Ok(())
                    })
                };
                request.end(settle(side, &target, &private_data, done));
            }),
            Err(error) => {
                side.forget();
                request.end(Err(error));
            }
        }
        started
    }

    /// Rejects the connection although the peer has accepted it: the peer's accept fails.
    ///
    /// # Errors
    /// The private data is too long: the connection is aborted without it.
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), ConnectError> {
        let Some(side) = self.side.take() else {
            return Err(ConnectError::NotConnected);
        };
        reject(&side, Refusal::Program, private_data)
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        if let Some(side) = self.side.take() {
            side.forget();
        }
    }
}

opaque!(Accepted);
