//! The queue pair of a connection, remembered by its identity.

use verbs_api::objects::{ObjectId, ObjectKind};
use verbs_api::provider::backend::{BringUp, ConnectError};
use verbs_api::provider::carrier::Carrier;
use verbs_api::qp::{QpAttributes, QpState};
use verbs_api::{Context, PathOptions, Qp, QpEndpoint, Started, Transport, VerbError};

use super::side::Side;

/// The identity of a connection's queue pair, which the program may destroy at any time.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) context: Context,
    id: ObjectId,
}

impl Target {
    pub(super) fn new(qp: &Qp) -> Self {
        Self {
            context: qp.open_device(),
            id: qp.id(),
        }
    }

    /// Returns the queue pair, or an error if it no longer exists.
    pub(super) fn find(&self) -> Result<Qp, ConnectError> {
        let gone = || VerbError::InvalidHandle(ObjectKind::Qp);
        let found = self.context.find_qp(self.id).ok_or_else(gone);
        found.map_err(ConnectError::in_queue_pair)
    }

    /// Brings the queue pair to RTS, or leaves that to the backend.
    pub(super) fn bring_up(
        &self,
        side: &Side,
        peer: &QpEndpoint,
        options: PathOptions,
    ) -> Result<Started<()>, ConnectError> {
        let qp = self.find()?;
        qp.keep_receives();
        let planned = qp
            .connect_steps(peer, options)
            .map_err(ConnectError::in_queue_pair)?;
        Ok(match side.backend.bring_up(side.token()?, planned)? {
            BringUp::Steps(steps) => qp.modify_in_turn(*steps),
            BringUp::ByBackend => Started::ready(Ok(())),
        })
    }

    /// Closes the stream between two queue pairs of one process in good order; on other networks the connection's backend
    /// does that.
    pub(super) fn close(&self) -> Option<Started<()>> {
        let attributes = self.context.attributes();
        let is_in_process = matches!(self.context.carrier(), Some(Carrier::InProcess));
        if attributes.transport != Transport::Iwarp || !is_in_process {
            return None;
        }
        let qp = self.find().ok()?;
        let is_ready = qp.query().ok()?.state == QpState::Rts;
        is_ready.then(|| qp.modify(QpAttributes::new().qp_state(QpState::Sqd)))
    }

    /// Flushes the queue pair if it still exists, without waiting for the end.
    pub(super) fn flush_unasked(&self) {
        if let Ok(flushed) = self.flush() {
            flushed.on_done(|_| {});
        }
    }

    pub(super) fn flush(&self) -> Result<Started<()>, ConnectError> {
        let qp = self.find()?;
        let state = qp.query().map_err(ConnectError::in_queue_pair)?.state;
        if state == QpState::Reset {
            // Nothing is outstanding there.
            return Ok(Started::ready(Ok(())));
        }
        Ok(qp.modify(QpAttributes::new().qp_state(QpState::Err)))
    }
}
