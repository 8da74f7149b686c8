//! Ping: asks whether an RDMA device answers at an address.

use std::net::SocketAddr;

use verbs_api::Started;

use crate::connector::Connector;
use verbs_api::provider::backend::ConnectError;

impl Connector {
    /// Asks whether an RDMA device answers at an address. No program at the peer notices.
    ///
    /// On InfiniBand this is a SIDR_REQ for an unused service, whatever the port: the connection manager answers at once.
    /// On iWARP it is an MPA request to the port, which the peer rejects: port 0 stands for the port of Polyverbs' own
    /// devices; other devices answer at a port where one of their programs listens.
    ///
    /// Fails with [`ConnectError::Refused`] where the TCP port is closed, with [`ConnectError::NoDevice`] if the program
    /// there speaks another protocol, and with [`ConnectError::TimedOut`] after nine seconds at most.
    pub fn ping(&self, to: SocketAddr) -> Started<(), ConnectError> {
        let (started, request) = self.begin();
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
