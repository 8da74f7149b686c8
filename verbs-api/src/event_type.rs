//! The types of asynchronous events, and what an event concerns.

use crate::ids::Port;
use crate::object_id::ObjectId;

/// The type of an asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_event_type")]
#[non_exhaustive]
pub enum EventType {
    /// A completion queue overran and is unusable.
    CqErr,
    /// A queue pair failed, and no request was outstanding whose completion could report it.
    QpFatal,
    /// The peer of a queue pair sent an invalid request.
    QpReqErr,
    /// The peer of a queue pair sent a request that violates access rights.
    QpAccessErr,
    /// A queue pair in RTR received its first valid packet (communication established).
    CommEst,
    /// The send queue of a queue pair has drained (SQD).
    SqDrained,
    /// The connection moved to its alternate path.
    PathMig,
    /// The connection failed to move to its alternate path.
    PathMigErr,
    /// A queue pair in error has completed the last receive that it took from a shared queue.
    QpLastWqeReached,
    /// A shared receive queue failed and is unusable.
    SrqErr,
    /// A shared receive queue contains fewer receives than its limit.
    SrqLimitReached,
    /// A port has begun to carry traffic.
    PortActive,
    /// A port has ceased to carry traffic.
    PortErr,
    /// The GID table of a port changed.
    GidChange,
    /// The LID of a port changed.
    LidChange,
    /// The partition keys of a port changed.
    PkeyChange,
    /// A port has a new subnet manager.
    SmChange,
    /// The subnet manager asks clients to reregister: multicast groups have to be joined anew.
    ClientReregister,
    /// The speed of one or more ports of the device changed.
    DeviceSpeedChange,
    /// The device failed and is unusable.
    DeviceFatal,
    /// The device was removed: see [removal](crate::provider#removal).
    DeviceRemoved,
}

// The numbers of verbs. The removal of a device has none: it is reported as a failure of the device.
const CODES: [(EventType, u8); 20] = [
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
    (EventType::DeviceSpeedChange, 20),
];
const DEVICE_FATAL: u8 = 8;

impl EventType {
    /// Returns the event's code in verbs: 0 for CQ_ERR … 20 for DEVICE_SPEED_CHANGE. `DeviceRemoved` has the code of DEVICE_FATAL.
    pub fn code(self) -> u8 {
        let found = CODES.iter().find(|(event, _)| *event == self);
        found.map_or(DEVICE_FATAL, |&(_, code)| code)
    }

    /// Returns the event with this code of verbs; `None` for an unknown code.
    pub fn from_code(code: u8) -> Option<Self> {
        let found = CODES.iter().find(|&&(_, known)| known == code);
        found.map(|&(event, _)| event)
    }

    /// Whether the event concerns one object (an affiliated event), rather than a port or the device.
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
                | Self::DeviceSpeedChange
                | Self::DeviceFatal
                | Self::DeviceRemoved
        )
    }
}

/// What an asynchronous event concerns, as a provider names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventSubject {
    /// The object that the safe layer created with this identity.
    Object(ObjectId),
    /// The port with this number, counted from 1.
    Port(Port),
    /// The device as a whole.
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
        assert_eq!(EventType::from_code(19), None, "of raw work queues");
        let speed = EventType::DeviceSpeedChange;
        assert_eq!((EventType::from_code(20), speed.code()), (Some(speed), 20));
        assert_eq!(EventType::from_code(21), None);
        assert_eq!(
            EventType::DeviceRemoved.code(),
            EventType::DeviceFatal.code()
        );
        let named = [
            (EventType::LidChange, 11),
            (EventType::PkeyChange, 12),
            (EventType::SmChange, 13),
            (EventType::ClientReregister, 17),
            (EventType::DeviceSpeedChange, 20),
        ];
        for (event, code) in named {
            assert_eq!((event.code(), event.is_affiliated()), (code, false));
        }
    }
}
