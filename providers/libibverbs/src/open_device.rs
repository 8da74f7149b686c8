//! What extensions reach of an open device of this provider.

use std::ffi::c_void;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use verbs_api::VerbError;
use verbs_api::provider::{Reply, own};

use crate::context::Open;
use crate::xrc::{OpenFlags, Xrcd};

/// An open device of this provider, for extensions.
pub struct OpenDevice(Arc<Open>);

impl OpenDevice {
    /// That of a context; `None` where another provider has opened it.
    pub fn of(context: &verbs_api::Context) -> Option<Self> {
        own(context.ops(), "context").ok().map(Self)
    }

    /// Does something with its `ibv_context*`, such as with a driver's direct verbs. The pointer is good until `act` returns,
    /// and the device is not to be closed.
    ///
    /// # Errors
    /// It is closed.
    pub fn with_context<R>(&self, act: impl FnOnce(*mut c_void) -> R) -> Result<R, VerbError> {
        self.0.context.live.with(|at| act(at.cast()))
    }

    /// Opens the domain of a file, or without one a domain that nobody else can open.
    pub fn open_xrcd(&self, file: Option<OwnedFd>, flags: OpenFlags, reply: Reply<Arc<Xrcd>>) {
        let context = Arc::clone(&self.0.context);
        self.0.context.start(reply, move || {
            // Who was granted what the device does not claim is refused.
            if !context.properties.has_xrc {
                return Err(VerbError::UnsupportedVerb("open_xrcd"));
            }
            let file = file.as_ref().map(|file| file.as_fd());
            Xrcd::open(&context.live, file, flags)
        });
    }
}
