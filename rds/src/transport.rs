//! The transports that carry messages.

use polyverbs::Transport;

/// The transport of a socket's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdsTransport {
    /// InfiniBand or RoCE.
    InfiniBand,
    /// iWARP.
    Iwarp,
    /// RDS over TCP, another protocol, which this crate does not implement.
    Tcp,
}

impl RdsTransport {
    pub(crate) fn of(transport: Transport) -> Self {
        match transport {
            Transport::Iwarp => Self::Iwarp,
            _ => Self::InfiniBand,
        }
    }
}
