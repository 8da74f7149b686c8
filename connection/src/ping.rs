//! Whether a device answers at an address, and nothing else: no program there hears of it.

use std::net::SocketAddr;

use verbs_api::{Context, Started};

use crate::connector::{Connector, begin};
use verbs_api::provider::backend::ConnectError;

impl Connector {
    /// Asks whether an RDMA device answers at an address. No program there hears of it.
    ///
    /// Over InfiniBand the connection manager is asked for a service that nobody has, whatever the port (SIDR): it answers
    /// at once. Over iWARP, MPA's request goes to the port and is refused: port 0 is that of Polyverbs' own devices, and
    /// other devices answer at a port where one of their programs listens.
    ///
    /// Ends with [`ConnectError::Refused`] where the kernel there has no such TCP port, with [`ConnectError::NoDevice`]
    /// where something else has it, and with [`ConnectError::TimedOut`] where nobody answers in nine seconds or less.
    pub fn ping(&self, context: &Context, to: SocketAddr) -> Started<(), ConnectError> {
        let (started, request) = begin(context);
        let sink = {
            let request = std::sync::Arc::clone(&request);
            Box::new(move |outcome| request.end(outcome))
        };
        if let Err(error) = self.backend().ping(to, sink) {
            request.end(Err(error));
        }
        started
    }
}
