//! Pending calls of a program.

use std::sync::Arc;

use verbs_api::provider::Mutex;
use verbs_api::provider::backend::{CmEvent, ConnectError};
use verbs_api::{
    Context, Started, VerbError,
    provider::{Completer, Outcome},
};

/// A pending call of the program, such as a connect. Its first outcome counts; the removal of the device is one.
pub(crate) struct Request<T> {
    completer: Completer<T, ConnectError>,
    pending: Mutex<Option<Pending>>,
}

/// What a call needs while it is pending.
struct Pending {
    guard: Outcome<()>,
    context: Context,
}

pub(super) fn begin<T: Send + 'static>(
    context: &Context,
) -> (Started<T, ConnectError>, Arc<Request<T>>) {
    let (started, completer) = Started::pending();
    let (guarded, guard) = context.begin::<()>();
    let removed = completer.clone();
    guarded.on_done(move |outcome| {
        if let Err(error) = outcome {
            removed.complete(Err(error.into()));
        }
    });
    let pending = Pending {
        guard,
        context: context.clone(),
    };
    let request = Request {
        completer,
        pending: Mutex::new(Some(pending)),
    };
    (started, Arc::new(request))
}

impl<T: Send + 'static> Request<T> {
    pub(crate) fn end(&self, outcome: Result<T, ConnectError>) {
        self.try_end(outcome);
    }

    /// Ends the call unless it has ended; returns whether this was its first outcome.
    pub(super) fn try_end(&self, outcome: Result<T, ConnectError>) -> bool {
        let pending = self.pending.lock().take();
        let outcome = match &pending {
            // The failures that the removal of a device causes may be reported before the removal.
            Some(pending) if outcome.is_err() && is_removed(&pending.context) => {
                Err(VerbError::DeviceRemoved.into())
            }
            _ => outcome,
        };
        let is_first = self.completer.complete(outcome);
        if let Some(pending) = pending {
            pending.guard.complete(Ok(()));
        }
        is_first
    }

    /// Returns the event that ends the call. If there is none, because another call has replaced this one, the call ends as
    /// canceled.
    pub(super) fn or_cancel(&self, event: Option<CmEvent>) -> Option<CmEvent> {
        if event.is_none() {
            self.end(Err(VerbError::Canceled.into()));
        }
        event
    }
}

fn is_removed(context: &Context) -> bool {
    context.query_port(1) == Err(VerbError::DeviceRemoved)
}
