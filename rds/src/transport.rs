//! The transports that can carry RDS messages.

use polyverbs::Transport;

/// The transport that carries the messages of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdsTransport {
    /// InfiniBand or RoCE, with Linux's protocol `rds_rdma`.
    InfiniBand,
    /// iWARP, with Linux's protocol `rds_rdma` and flow control.
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
