//! The one table of RDMAP's opcodes (RFC 5040 section 4.3, RFC 7306 section 5).

use core::fmt;

use super::ddp::queue;
use crate::layout::newtype_field;

newtype_field! {
    /// An RDMAP opcode, 4 bits, as it is on the wire: one of the constants below or an unknown one.
    Opcode(u8) = 4
}

/// The properties of the messages with an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The name of the message.
    pub name: &'static str,
    /// The queues to which the message may go; empty if it is a tagged message.
    pub queues: &'static [u32],
    /// Whether the message names an STag that its receiver invalidates.
    pub invalidates: bool,
    /// Whether the message asks for a solicited event at its receiver.
    pub solicits: bool,
}

impl Opcode {
    /// The opcode of an RDMA Write.
    pub const WRITE: Self = Self(0x0);
    /// The opcode of an RDMA Read Request.
    pub const READ_REQUEST: Self = Self(0x1);
    /// The opcode of an RDMA Read Response.
    pub const READ_RESPONSE: Self = Self(0x2);
    /// The opcode of a Terminate.
    pub const TERMINATE: Self = Self(0x7);
    pub(super) const IMMEDIATE: Self = Self(0x8);
    pub(super) const IMMEDIATE_SE: Self = Self(0x9);
    /// The opcode of an Atomic Request (RFC 7306).
    pub const ATOMIC_REQUEST: Self = Self(0xa);
    /// The opcode of an Atomic Response (RFC 7306).
    pub const ATOMIC_RESPONSE: Self = Self(0xb);
    /// The opcode of all extensions without a standard encoding: 0xf, the last opcode that no RFC has assigned.
    pub const EXTENSION: Self = Self(0xf);

    /// Returns the opcode of a Send: with or without a solicited event, and with or without an STag to invalidate.
    pub const fn send(solicited: bool, invalidates: bool) -> Self {
        Self(match (solicited, invalidates) {
            (false, false) => 0x3,
            (false, true) => 0x4,
            (true, false) => 0x5,
            (true, true) => 0x6,
        })
    }

    /// Returns the opcode of Immediate Data (RFC 7306), with or without a solicited event.
    pub const fn immediate(solicited: bool) -> Self {
        if solicited {
            Self::IMMEDIATE_SE
        } else {
            Self::IMMEDIATE
        }
    }

    /// Returns the properties of messages with this opcode; `None` if it is not assigned.
    #[inline]
    pub fn facts(self) -> Option<&'static Facts> {
        FACTS.get(usize::from(self.0))?.as_ref()
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.facts() {
            Some(facts) => f.write_str(facts.name),
            None => write!(f, "opcode {:#x}", self.0),
        }
    }
}

const fn facts(name: &'static str, queues: &'static [u32]) -> Facts {
    Facts {
        name,
        queues,
        invalidates: false,
        solicits: false,
    }
}

impl Facts {
    const fn invalidates(mut self) -> Self {
        self.invalidates = true;
        self
    }

    const fn solicits(mut self) -> Self {
        self.solicits = true;
        self
    }
}

static FACTS: [Option<Facts>; 16] = {
    const TAGGED: &[u32] = &[];
    const SEND: &[u32] = &[queue::SEND];
    const REQUEST: &[u32] = &[queue::REQUEST];
    const TERMINATE: &[u32] = &[queue::TERMINATE];
    const RESPONSE: &[u32] = &[queue::ATOMIC_RESPONSE];
    const EITHER: &[u32] = &[queue::REQUEST, queue::ATOMIC_RESPONSE];

    [
        Some(facts("RDMA Write", TAGGED)),
        Some(facts("RDMA Read Request", REQUEST)),
        Some(facts("RDMA Read Response", TAGGED)),
        Some(facts("Send", SEND)),
        Some(facts("Send with Invalidate", SEND).invalidates()),
        Some(facts("Send with SE", SEND).solicits()),
        Some(
            facts("Send with SE and Invalidate", SEND)
                .invalidates()
                .solicits(),
        ),
        Some(facts("Terminate", TERMINATE)),
        Some(facts("Immediate Data", SEND)),
        Some(facts("Immediate Data with SE", SEND).solicits()),
        Some(facts("Atomic Request", REQUEST)),
        Some(facts("Atomic Response", RESPONSE)),
        None,
        None,
        None,
        Some(facts("Extension", EITHER)),
    ]
};
