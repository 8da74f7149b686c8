//! The backend for devices on which librdmacm cannot be used.

use std::net::SocketAddr;
use std::sync::Arc;

use verbs_api::VerbError;
use verbs_api::provider::backend::{
    self, AnswerSink, Backend, ConnectError, ListenSink, Offer, PrivateDataLimits, Question, Sink,
    Token,
};

/// A backend that refuses all connections with this error.
pub(super) struct Refusal(pub(super) VerbError);

impl Refusal {
    fn refuse<T>(&self) -> Result<T, ConnectError> {
        Err(self.0.clone().into())
    }
}

impl Backend for Refusal {
    fn private_data(&self) -> PrivateDataLimits {
        PrivateDataLimits::INFINIBAND
    }

    fn listen(
        &self,
        _: SocketAddr,
        _: usize,
        _: Arc<dyn ListenSink<Offer>>,
    ) -> Result<SocketAddr, ConnectError> {
        self.refuse()
    }

    fn connect(&self, _: SocketAddr, _: Offer, _: Arc<dyn Sink>) -> Result<Token, ConnectError> {
        self.refuse()
    }

    fn accept(&self, _: Token, _: Offer, _: Arc<dyn Sink>) -> Result<(), ConnectError> {
        self.refuse()
    }

    fn listen_datagrams(
        &self,
        _: SocketAddr,
        _: usize,
        _: Arc<dyn ListenSink<Question>>,
    ) -> Result<SocketAddr, ConnectError> {
        self.refuse()
    }

    fn resolve(
        &self,
        _: SocketAddr,
        _: Vec<u8>,
        _: Arc<dyn AnswerSink>,
    ) -> Result<(), ConnectError> {
        self.refuse()
    }

    // There is nothing to end, because all calls that create something were refused.
    fn unlisten(&self, _: SocketAddr) {}
    fn complete(&self, _: Token) {}
    fn reject(&self, _: Token, _: backend::Refusal, _: Vec<u8>) {}
    fn disconnect(&self, _: Token) {}
    fn forget(&self, _: Token) {}
}
