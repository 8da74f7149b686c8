//! The states of queue pairs.

use std::fmt;

/// The state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[doc(alias = "ibv_qp_state")]
#[repr(u8)]
pub enum QpState {
    /// RESET: requests cannot be posted.
    #[default]
    Reset = 0,
    /// INIT: receives can be posted, but none is processed.
    Init = 1,
    /// RTR, ready to receive: incoming messages are processed.
    Rtr = 2,
    /// RTS, ready to send: requests of the send queue are processed too.
    Rts = 3,
    /// SQD, send queue drained: requests that have begun are finished, and no further one begins. On iWARP the stream is
    /// closed in good order.
    Sqd = 4,
    /// SQE, send queue error: a send failed on an unreliable service; sends are flushed, receives are processed.
    Sqe = 5,
    /// ERR: outstanding requests, and all that are posted, complete with a flush error.
    Err = 6,
}

impl QpState {
    /// All states, in the order of their codes.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::Rtr,
        Self::Rts,
        Self::Sqd,
        Self::Sqe,
        Self::Err,
    ];

    /// Returns the state with this code in verbs; `None` for an unknown code.
    pub const fn from_code(code: u8) -> Option<Self> {
        if (code as usize) < Self::ALL.len() {
            Some(Self::ALL[code as usize])
        } else {
            None
        }
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        })
    }
}
