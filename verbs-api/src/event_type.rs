//! Types of asynchronous events, and what one is about.

use crate::ids::Port;
use crate::object_id::ObjectId;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_event_type")]
#[non_exhaustive]
pub enum EventType {
    /// A completion queue overran and is unusable.
    CqErr,
    /// A queue pair failed with no request to report it on.
    QpFatal,
    /// A queue pair got an invalid request from its peer.
    QpReqErr,
    /// A queue pair got an access violation from its peer.
    QpAccessErr,
    /// The first valid packet arrived while the queue pair was ready to receive.
    CommEst,
    /// The send queue has drained.
    SqDrained,
    /// The connection moved to its alternate path.
    PathMig,
    /// The connection failed to move to its alternate path.
    PathMigErr,
    /// A queue pair in error has completed the last receive that it took from a shared queue.
    QpLastWqeReached,
    /// A shared receive queue failed.
    SrqErr,
    /// A shared receive queue fell below its limit.
    SrqLimitReached,
    /// A port carries traffic.
    PortActive,
    /// A port carries no traffic.
    PortErr,
    /// The identifiers of a port changed.
    GidChange,
    /// The LID of a port changed.
    LidChange,
    /// The partition keys of a port changed.
    PkeyChange,
    /// Another subnet manager took over.
    SmChange,
    /// The subnet manager asks clients to reregister: multicast groups have to be joined anew.
    ClientReregister,
    /// The device failed.
    DeviceFatal,
    /// The device was removed: see [removal](crate::provider#removal).
    DeviceRemoved,
}

// The numbers of verbs. The removal of a device has none: it is reported as a failure of the device.
const CODES: [(EventType, u8); 19] = [
    (EventType::CqErr, 0),
    (EventType::QpFatal, 1),
    (EventType::QpReqErr, 2),
    (EventType::QpAccessErr, 3),
    (EventType::CommEst, 4),
    (EventType::SqDrained, 5),
    (EventType::PathMig, 6),
    (EventType::PathMigErr, 7),
    (EventType::DeviceFatal, DEVICE_FATAL),
    (EventType::PortActive, 9),
    (EventType::PortErr, 10),
    (EventType::LidChange, 11),
    (EventType::PkeyChange, 12),
    (EventType::SmChange, 13),
    (EventType::SrqErr, 14),
    (EventType::SrqLimitReached, 15),
    (EventType::QpLastWqeReached, 16),
    (EventType::ClientReregister, 17),
    (EventType::GidChange, 18),
];
const DEVICE_FATAL: u8 = 8;

impl EventType {
    /// The verbs' code: 0 for CQ_ERR … 18 for GID_CHANGE. A removal has that of DEVICE_FATAL.
    pub fn code(self) -> u8 {
        let found = CODES.iter().find(|(event, _)| *event == self);
        found.map_or(DEVICE_FATAL, |&(_, code)| code)
    }

    /// The event with this code of verbs, where there is one that is known.
    pub fn from_code(code: u8) -> Option<Self> {
        let found = CODES.iter().find(|&&(_, known)| known == code);
        found.map(|&(event, _)| event)
    }

    /// Whether the event belongs to one object, and then goes only to its owner.
    pub const fn is_affiliated(self) -> bool {
        !matches!(
            self,
            Self::PortActive
                | Self::PortErr
                | Self::GidChange
                | Self::LidChange
                | Self::PkeyChange
                | Self::SmChange
                | Self::ClientReregister
                | Self::DeviceFatal
                | Self::DeviceRemoved
        )
    }
}

/// What an event is about, as a provider names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventSubject {
    /// The object that was created with this identity.
    Object(ObjectId),
    /// A port.
    Port(Port),
    /// The device.
    Device,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_verbs_both_ways() {
        for code in 0..=18 {
            let event = EventType::from_code(code).expect("every code up to GID_CHANGE is known");
            assert_eq!(event.code(), code, "{event:?}");
        }
        assert_eq!(EventType::from_code(19), None);
        assert_eq!(
            EventType::DeviceRemoved.code(),
            EventType::DeviceFatal.code()
        );
        let named = [
            (EventType::LidChange, 11),
            (EventType::PkeyChange, 12),
            (EventType::SmChange, 13),
            (EventType::ClientReregister, 17),
        ];
        for (event, code) in named {
            assert_eq!((event.code(), event.is_affiliated()), (code, false));
        }
    }
}
