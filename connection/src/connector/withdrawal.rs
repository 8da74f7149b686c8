//! Giving up a call before the peer has answered it.

use std::sync::Arc;

use verbs_api::VerbError;

use super::request::Request;
use super::side::Side;

/// Withdraws a request that [`Connector::begin_request`](crate::Connector::begin_request) has sent, or an answer to one that
/// [`Incoming::begin_accept`](crate::Incoming::begin_accept) has sent. Dropping it changes nothing.
pub struct Withdrawal {
    side: Arc<Side>,
    call: Arc<dyn Cancel>,
}

/// A pending call of a program, whatever its outcome is.
trait Cancel: Send + Sync {
    /// Ends the call as canceled; returns `false` if it has ended.
    fn cancel(&self) -> bool;
}

impl<T: Send + 'static> Cancel for Request<T> {
    fn cancel(&self) -> bool {
        self.try_end(Err(VerbError::Canceled.into()))
    }
}

impl Withdrawal {
    pub(super) fn new<T: Send + 'static>(side: &Arc<Side>, call: &Arc<Request<T>>) -> Self {
        Self {
            side: Arc::clone(side),
            call: Arc::clone(call) as Arc<dyn Cancel>,
        }
    }

    /// Ends the call with [`VerbError::Canceled`], and notifies the peer, which can neither accept the request nor complete the
    /// connection any longer. Returns `false` without effect if the call has ended.
    pub fn withdraw(&self) -> bool {
        let is_first = self.call.cancel();
        if is_first {
            self.side.withdraw();
        }
        is_first
    }
}

opaque!(Withdrawal);
