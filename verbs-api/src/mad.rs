//! Management datagrams (MADs): their addresses, and what agents of programs register, send and receive.

use std::time::Duration;

use crate::ids::Qpn;
use crate::qp_attributes::AddressVector;

/// The length of every MAD, in bytes.
pub const MAD_LEN: usize = 256;

/// The bit of a MAD's method, its fourth byte, that marks an answer.
pub const RESPONSE: u8 = 0x80;

/// The other end of a MAD. An answer goes to the address that its request came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadAddress {
    /// The path to the other end's port. A directed MAD goes to the port at the other end of the link, and needs no LID.
    pub path: AddressVector,
    /// The other end's queue pair: 0 for subnet management, 1 for all other classes.
    pub qpn: Qpn,
    /// The Q_Key of the other end's queue pair.
    pub qkey: u32,
    /// The index of the partition in this port's table.
    pub pkey_index: u16,
}

impl MadAddress {
    /// The Q_Key of queue pair 1 of every port.
    pub const GENERAL_SERVICES_QKEY: u32 = 0x8001_0000;

    /// Returns the address of subnet management, queue pair 0, at the end of a path.
    pub const fn subnet_management(path: AddressVector) -> Self {
        Self {
            path,
            qpn: Qpn::new(0),
            qkey: 0,
            pkey_index: 0,
        }
    }

    /// Returns the address of the general services, queue pair 1, at the end of a path.
    pub const fn general_services(path: AddressVector) -> Self {
        Self {
            path,
            qpn: Qpn::new(1),
            qkey: Self::GENERAL_SERVICES_QKEY,
            pkey_index: 0,
        }
    }
}

/// Which requests an agent receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "umad_reg_attr")]
pub struct AgentRegistration {
    /// The management class.
    pub class: u8,
    /// The version of the class.
    pub class_version: u8,
    /// The vendor, for the classes 0x30 to 0x4f; not used otherwise.
    pub oui: [u8; 3],
    /// The methods, as a set of bits: bit 1 for Get. Without methods, an agent receives the answers to its own requests only.
    pub methods: u128,
    /// Whether the agent receives each segment of a longer answer (RMPP), the first one of which answers its request.
    pub takes_segments: bool,
}

impl AgentRegistration {
    /// Returns a registration for the answers to an agent's own requests.
    pub const fn new(class: u8, class_version: u8) -> Self {
        Self {
            class,
            class_version,
            oui: [0; 3],
            methods: 0,
            takes_segments: false,
        }
    }

    /// Sets the vendor of the class.
    #[must_use]
    pub const fn oui(self, oui: [u8; 3]) -> Self {
        Self { oui, ..self }
    }

    /// Adds methods whose requests the agent receives. Those of answers, from 128 on, are ignored.
    #[must_use]
    pub fn methods(self, methods: impl IntoIterator<Item = u8>) -> Self {
        let bits = methods.into_iter().filter(|method| *method < RESPONSE);
        Self {
            methods: bits.fold(self.methods, |all, method| all | 1 << method),
            ..self
        }
    }
}

/// How long a request waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadPatience {
    /// The time that each transmission waits.
    pub timeout: Duration,
    /// How often the request is sent again.
    pub retries: u32,
}

/// An event of an agent: a MAD has arrived, or a request has ended without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentEvent {
    /// A MAD has arrived: a request for which the agent is registered, or the answer to a request of its own.
    Received {
        /// The MAD.
        mad: [u8; MAD_LEN],
        /// Where the MAD came from.
        from: MadAddress,
    },
    /// A request was not answered in time.
    TimedOut {
        /// The request.
        mad: [u8; MAD_LEN],
        /// Where the request was sent.
        to: MadAddress,
    },
    /// A request was cancelled.
    Flushed {
        /// The request.
        mad: [u8; MAD_LEN],
        /// Where the request was sent.
        to: MadAddress,
    },
}
