//! The states of queue pairs.

use std::fmt;

/// The state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[doc(alias = "ibv_qp_state")]
#[repr(u8)]
pub enum QpState {
    /// Takes nothing.
    #[default]
    Reset = 0,
    /// Takes receives, processes nothing.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Sends begun are finished, no new one starts. On iWARP: the stream closes gracefully.
    Sqd = 4,
    /// A send failed on an unreliable service: sends are flushed, receives go on.
    Sqe = 5,
    /// Everything is flushed.
    Err = 6,
}

impl QpState {
    /// Every state.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::Rtr,
        Self::Rts,
        Self::Sqd,
        Self::Sqe,
        Self::Err,
    ];

    /// The state of this code.
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
