//! The opcodes of the BTH, and the one table of their properties (IBTA 9.2.1; annexes A14, A17 and A19).
//!
//! The three high bits of an opcode are its transport service, the five low bits its operation. Callers use
//! [`Opcode::facts`] and do not compare numbers.

use core::fmt;

use super::extended::{HeaderSet, KINDS};
use crate::layout::newtype_field;

newtype_field! {
    /// An opcode of the BTH as it is on the wire: one of the known ones or any other number.
    Opcode(u8) = 8
}

/// The transport service of an opcode: its three high bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification, which belongs to no transport service (IBTA annex A17).
    Cnp,
    /// Extended reliable connection.
    Xrc,
    /// Reserved for manufacturers; this project uses one of these opcodes: [`Opcode::EXTENSION`].
    Manufacturer,
}

/// The operation to which a packet belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse,
    /// An acknowledgment: ACK, NAK or RNR NAK.
    Acknowledge,
    /// The response to an atomic operation.
    AtomicAcknowledge,
    /// An atomic compare and swap.
    CompareSwap,
    /// An atomic fetch and add.
    FetchAdd,
    /// FLUSH.
    Flush,
    /// ATOMIC WRITE.
    AtomicWrite,
    /// Congestion notification packet.
    CongestionNotification,
    /// An operation of an extension without a standard encoding.
    Extension,
}

/// The position of a packet in its message, or in the response to an RDMA READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// The first of several packets.
    First,
    /// Neither the first nor the last packet.
    Middle,
    /// The last of several packets.
    Last,
    /// The only packet of its message.
    Only,
}

impl Position {
    /// Returns the position of the packet that carries `length` of the `total` bytes of a message, beginning at `offset`.
    pub const fn of(offset: u64, length: u64, total: u64) -> Self {
        match (offset == 0, offset + length >= total) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, false) => Self::Middle,
            (false, true) => Self::Last,
        }
    }

    /// Returns the rule for the payload of a SEND or RDMA WRITE packet at this position (IBTA 9.7.4.1.6).
    pub const fn payload(self) -> PayloadRule {
        match self {
            Self::First | Self::Middle => PayloadRule::Full,
            Self::Last => PayloadRule::Some,
            Self::Only => PayloadRule::Any,
        }
    }

    /// Returns whether a message begins with a packet at this position.
    pub const fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Returns whether a message ends with a packet at this position.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// The extended header that the last packet of a SEND carries in addition to the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendExtra {
    /// No extended header.
    Nothing,
    /// Immediate data.
    Immediate,
    /// An R_Key that the responder invalidates.
    Invalidate,
}

/// The payload length in bytes that an opcode requires, pad not counted (IBTA 9.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PayloadRule {
    /// No payload.
    None,
    /// Exactly as many bytes as the path MTU.
    Full,
    /// At least one byte, at most the path MTU.
    Some,
    /// Zero bytes to the path MTU.
    Any,
    /// Exactly this many bytes.
    Exactly(usize),
}

impl PayloadRule {
    /// Returns whether a payload of `length` bytes obeys the rule on a path with this MTU.
    pub const fn admits(self, length: usize, path_mtu: usize) -> bool {
        match self {
            Self::None => length == 0,
            Self::Full => length == path_mtu,
            Self::Some => length > 0 && length <= path_mtu,
            Self::Any => length <= path_mtu,
            Self::Exactly(exact) => length == exact,
        }
    }

    /// Returns whether a payload of `length` bytes obeys the rule with at least one path MTU: these are the powers of two
    /// from 256 to 4096.
    pub const fn admits_somewhere(self, length: usize) -> bool {
        match self {
            Self::Full => length.is_power_of_two() && length >= 256 && length <= 4096,
            _ => self.admits(length, 4096),
        }
    }
}

/// The properties of packets with an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The transport service.
    pub service: Service,
    /// The operation to which the packet belongs.
    pub operation: Operation,
    /// The position of the packet in its message.
    pub position: Position,
    /// The name of the operation with the packet's position, for example `SEND First`.
    pub name: &'static str,
    /// The extended headers that follow the BTH.
    pub headers: HeaderSet,
    /// The rule for the payload's length.
    pub payload: PayloadRule,
    /// Whether a requester sends the packet to a responder; otherwise it is a response or a congestion notification.
    pub is_request: bool,
    /// The length of the extended headers together, in bytes.
    pub headers_len: usize,
    offsets: [u8; KINDS],
}

impl Facts {
    /// Returns the offset of an extended header in bytes from the end of the BTH; `None` if packets with this opcode do not
    /// have it.
    #[inline]
    pub fn offset(&self, header: HeaderSet) -> Option<usize> {
        let kind = header.bits().trailing_zeros() as usize;
        let has = self.headers.contains(header);
        self.offsets
            .get(kind)
            .filter(|_| has)
            .map(|&offset| usize::from(offset))
    }
}

impl Opcode {
    /// The opcode of a congestion notification packet.
    pub const CNP: Self = Self(0x81);
    /// The opcode of all extensions without a standard encoding: the first of those reserved for manufacturers. The header
    /// [`ExtensionEth`](super::ExtensionEth) names the extension.
    pub const EXTENSION: Self = Self(0xc0);

    /// Returns the opcode of a SEND packet. `extra` counts only for its last packet.
    pub const fn send(service: Service, position: Position, extra: SendExtra) -> Self {
        let operation = match (position, extra) {
            (Position::First, _) => 0x00,
            (Position::Middle, _) => 0x01,
            (Position::Last, SendExtra::Nothing) => 0x02,
            (Position::Last, SendExtra::Immediate) => 0x03,
            (Position::Last, SendExtra::Invalidate) => 0x16,
            (Position::Only, SendExtra::Nothing) => 0x04,
            (Position::Only, SendExtra::Immediate) => 0x05,
            (Position::Only, SendExtra::Invalidate) => 0x17,
        };
        Self(service.bits() | operation)
    }

    /// Returns the opcode of an RDMA WRITE packet. `has_immediate` counts only for its last packet, which carries the
    /// immediate data.
    pub const fn write(service: Service, position: Position, has_immediate: bool) -> Self {
        let operation = match (position, has_immediate) {
            (Position::First, _) => 0x06,
            (Position::Middle, _) => 0x07,
            (Position::Last, false) => 0x08,
            (Position::Last, true) => 0x09,
            (Position::Only, false) => 0x0a,
            (Position::Only, true) => 0x0b,
        };
        Self(service.bits() | operation)
    }

    /// Returns the opcode of an RDMA READ response packet.
    pub const fn read_response(service: Service, position: Position) -> Self {
        let operation = match position {
            Position::First => 0x0d,
            Position::Middle => 0x0e,
            Position::Last => 0x0f,
            Position::Only => 0x10,
        };
        Self(service.bits() | operation)
    }

    /// Returns the opcode of an operation that takes one packet; `None` for an operation that may take several.
    pub const fn single(service: Service, operation: Operation) -> Option<Self> {
        let low = match operation {
            Operation::ReadRequest => 0x0c,
            Operation::Acknowledge => 0x11,
            Operation::AtomicAcknowledge => 0x12,
            Operation::CompareSwap => 0x13,
            Operation::FetchAdd => 0x14,
            Operation::Flush => 0x1c,
            Operation::AtomicWrite => 0x1d,
            Operation::CongestionNotification => return Some(Self::CNP),
            Operation::Extension => return Some(Self::EXTENSION),
            Operation::Send | Operation::Write | Operation::ReadResponse => return None,
        };
        Some(Self(service.bits() | low))
    }

    /// Returns the properties of the opcode; `None` if it is reserved, belongs to reliable datagrams, or belongs to another
    /// manufacturer.
    #[inline]
    pub fn facts(self) -> Option<&'static Facts> {
        FACTS[usize::from(self.0)].as_ref()
    }

    /// Returns all opcodes that have properties, in ascending order.
    pub fn known() -> impl Iterator<Item = (Self, &'static Facts)> {
        (0..=u8::MAX).filter_map(|code| Some((Self(code), Self(code).facts()?)))
    }
}

impl Service {
    /// The three high bits of the service's opcodes, in their place.
    const fn bits(self) -> u8 {
        match self {
            Self::Rc => 0x00,
            Self::Uc => 0x20,
            Self::Ud => 0x60,
            Self::Cnp => 0x80,
            Self::Xrc => 0xa0,
            Self::Manufacturer => 0xc0,
        }
    }

    /// The name of the service, for example `RC`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Cnp => "CNP",
            Self::Xrc => "XRC",
            Self::Manufacturer => "manufacturer",
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.facts() {
            Some(facts) if *self == Self::CNP || *self == Self::EXTENSION => {
                f.write_str(facts.name)
            }
            Some(facts) => write!(f, "{} {}", facts.service.name(), facts.name),
            None => write!(f, "opcode {:#04x}", self.0),
        }
    }
}

/// A row of the opcode table: an operation at one position in its message, and the services that have it.
struct Row {
    low: u8,
    operation: Operation,
    position: Position,
    name: &'static str,
    /// The extended headers, without the XRCETH or DETH that the service adds.
    headers: HeaderSet,
    payload: PayloadRule,
    services: &'static [Service],
}

impl Row {
    const fn is_request(&self) -> bool {
        !matches!(
            self.operation,
            Operation::Acknowledge
                | Operation::AtomicAcknowledge
                | Operation::ReadResponse
                | Operation::CongestionNotification
        )
    }

    const fn facts(&self, service: Service) -> Facts {
        let of_service = match service {
            Service::Ud => HeaderSet::DETH,
            Service::Xrc if self.is_request() => HeaderSet::XRCETH,
            _ => HeaderSet::empty(),
        };
        let headers = of_service.union(self.headers);
        let (offsets, headers_len) = headers.layout();
        Facts {
            service,
            operation: self.operation,
            position: self.position,
            name: self.name,
            headers,
            payload: self.payload,
            is_request: self.is_request(),
            headers_len,
            offsets,
        }
    }
}

static FACTS: [Option<Facts>; 256] = {
    let mut facts = [None; 256];
    let mut at = 0;
    while at < ROWS.len() {
        let row = &ROWS[at];
        let mut service = 0;
        while service < row.services.len() {
            let code = row.services[service].bits() | row.low;
            assert!(facts[code as usize].is_none());
            facts[code as usize] = Some(row.facts(row.services[service]));
            service += 1;
        }
        at += 1;
    }
    facts
};

macro_rules! rows {
    ($(
        $low:literal $operation:ident $position:ident $name:literal
        [$($header:ident)*] $payload:ident $(($octets:literal))? $services:ident;
    )*) => {
        &[$(Row {
            low: $low,
            operation: Operation::$operation,
            position: Position::$position,
            name: $name,
            headers: HeaderSet::empty()$(.union(HeaderSet::$header))*,
            payload: PayloadRule::$payload $(($octets))?,
            services: $services,
        }),*]
    };
}

const ROWS: &[Row] = {
    const CONNECTED: &[Service] = &[Service::Rc, Service::Uc, Service::Xrc];
    const ALL: &[Service] = &[Service::Rc, Service::Uc, Service::Ud, Service::Xrc];
    const RELIABLE: &[Service] = &[Service::Rc, Service::Xrc];
    const CNP: &[Service] = &[Service::Cnp];
    const MANUFACTURER: &[Service] = &[Service::Manufacturer];

    rows! {
        0x00 Send                   First  "SEND First"                       [] Full CONNECTED;
        0x01 Send                   Middle "SEND Middle"                      [] Full CONNECTED;
        0x02 Send                   Last   "SEND Last"                        [] Some CONNECTED;
        0x03 Send                   Last   "SEND Last with Immediate"         [IMM_DT] Some CONNECTED;
        0x04 Send                   Only   "SEND Only"                        [] Any ALL;
        0x05 Send                   Only   "SEND Only with Immediate"         [IMM_DT] Any ALL;
        0x06 Write                  First  "RDMA WRITE First"                 [RETH] Full CONNECTED;
        0x07 Write                  Middle "RDMA WRITE Middle"                [] Full CONNECTED;
        0x08 Write                  Last   "RDMA WRITE Last"                  [] Some CONNECTED;
        0x09 Write                  Last   "RDMA WRITE Last with Immediate"   [IMM_DT] Some CONNECTED;
        0x0a Write                  Only   "RDMA WRITE Only"                  [RETH] Any CONNECTED;
        0x0b Write                  Only   "RDMA WRITE Only with Immediate"   [RETH IMM_DT] Any CONNECTED;
        0x0c ReadRequest            Only   "RDMA READ Request"                [RETH] None RELIABLE;
        0x0d ReadResponse           First  "RDMA READ Response First"         [AETH] Full RELIABLE;
        0x0e ReadResponse           Middle "RDMA READ Response Middle"        [] Full RELIABLE;
        0x0f ReadResponse           Last   "RDMA READ Response Last"          [AETH] Some RELIABLE;
        0x10 ReadResponse           Only   "RDMA READ Response Only"          [AETH] Any RELIABLE;
        0x11 Acknowledge            Only   "Acknowledge"                      [AETH] None RELIABLE;
        0x12 AtomicAcknowledge      Only   "ATOMIC Acknowledge"               [AETH ATOMIC_ACK_ETH] None RELIABLE;
        0x13 CompareSwap            Only   "Compare & Swap"                   [ATOMIC_ETH] None RELIABLE;
        0x14 FetchAdd               Only   "Fetch & Add"                      [ATOMIC_ETH] None RELIABLE;
        0x16 Send                   Last   "SEND Last with Invalidate"        [IETH] Some RELIABLE;
        0x17 Send                   Only   "SEND Only with Invalidate"        [IETH] Any RELIABLE;
        0x1c Flush                  Only   "FLUSH"                            [FETH RETH] None RELIABLE;
        0x1d AtomicWrite            Only   "ATOMIC WRITE"                     [RETH] Exactly(8) RELIABLE;
        0x01 CongestionNotification Only   "CNP"                              [CNP] None CNP;
        0x00 Extension              Only   "Extension"                        [EXTENSION_ETH] Any MANUFACTURER;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICES: [Service; 4] = [Service::Rc, Service::Uc, Service::Ud, Service::Xrc];

    #[test]
    fn each_service_has_the_operations_of_the_standard() {
        let of = |service: Service| {
            Opcode::known()
                .filter(|(_, f)| f.service == service)
                .count()
        };
        assert_eq!(SERVICES.map(of), [25, 12, 2, 25]);
        assert_eq!(of(Service::Cnp) + of(Service::Manufacturer), 2);
        // Unreliable connections have no opcode that invalidates or reads, and no atomics.
        assert!((0x2c..0x40).all(|code| Opcode(code).facts().is_none()));
        // These are for reliable datagrams; 0x15 is RESYNC.
        assert!(
            (0x40..0x60)
                .chain([0x15])
                .all(|code| Opcode(code).facts().is_none())
        );
    }

    // Asserts that the table has these properties, where `headers` omits the headers that the service adds.
    fn check(
        opcode: Opcode,
        service: Service,
        operation: Operation,
        position: Position,
        headers: HeaderSet,
    ) {
        if let Some(facts) = opcode.facts() {
            assert_eq!((facts.service, facts.operation), (service, operation));
            assert_eq!(facts.position, position);
            let of_service = HeaderSet::DETH | HeaderSet::XRCETH;
            assert_eq!(facts.headers.difference(of_service), headers, "{opcode}");
        }
    }

    #[test]
    fn composed_opcodes_have_the_properties_asked_for() {
        use Position::{First, Last, Middle, Only};
        for service in SERVICES {
            for position in [First, Middle, Last, Only] {
                for extra in [
                    SendExtra::Nothing,
                    SendExtra::Immediate,
                    SendExtra::Invalidate,
                ] {
                    let headers = match extra {
                        SendExtra::Immediate if position.ends() => HeaderSet::IMM_DT,
                        SendExtra::Invalidate if position.ends() => HeaderSet::IETH,
                        _ => HeaderSet::empty(),
                    };
                    let opcode = Opcode::send(service, position, extra);
                    check(opcode, service, Operation::Send, position, headers);
                }
                for immediate in [false, true] {
                    let mut headers = HeaderSet::empty();
                    headers.set(HeaderSet::RETH, position.begins());
                    headers.set(HeaderSet::IMM_DT, immediate && position.ends());
                    let opcode = Opcode::write(service, position, immediate);
                    check(opcode, service, Operation::Write, position, headers);
                }
                let mut headers = HeaderSet::empty();
                headers.set(HeaderSet::AETH, position != Middle);
                let opcode = Opcode::read_response(service, position);
                check(opcode, service, Operation::ReadResponse, position, headers);
            }
        }
        for (opcode, facts) in Opcode::known() {
            if let Some(single) = Opcode::single(facts.service, facts.operation) {
                assert_eq!(single, opcode);
            }
        }
    }

    // covers 9.07
    #[test]
    fn offsets_follow_the_order_of_headers() {
        let offsets = |opcode: Opcode, headers: &[HeaderSet]| {
            let facts = opcode.facts().unwrap();
            let offsets = headers.iter().map(|&header| facts.offset(header));
            (offsets.collect::<Vec<_>>(), facts.headers_len)
        };
        let write = Opcode::write(Service::Rc, Position::Only, true);
        let headers = [HeaderSet::RETH, HeaderSet::IMM_DT, HeaderSet::AETH];
        let expected = (vec![Some(0), Some(16), None], 20);
        assert_eq!(offsets(write, &headers), expected);
        let send = Opcode::send(Service::Xrc, Position::Only, SendExtra::Invalidate);
        let headers = [HeaderSet::XRCETH, HeaderSet::IETH, HeaderSet::IMM_DT];
        let expected = (vec![Some(0), Some(4), None], 8);
        assert_eq!(offsets(send, &headers), expected);
        let datagram = Opcode::send(Service::Ud, Position::Only, SendExtra::Immediate);
        let headers = [HeaderSet::DETH, HeaderSet::IMM_DT];
        assert_eq!(offsets(datagram, &headers), (vec![Some(0), Some(8)], 12));
        let flush = Opcode::single(Service::Rc, Operation::Flush).unwrap();
        let headers = [HeaderSet::FETH, HeaderSet::RETH];
        assert_eq!(offsets(flush, &headers), (vec![Some(0), Some(4)], 20));
    }

    #[test]
    fn xrc_answers_carry_no_xrceth() {
        for (_, facts) in Opcode::known().filter(|(_, f)| f.service == Service::Xrc) {
            assert_eq!(facts.headers.contains(HeaderSet::XRCETH), facts.is_request);
        }
    }

    #[test]
    fn the_position_decides_the_length_of_the_payload() {
        let rule = |low: u8| Opcode(low).facts().unwrap().payload;
        let admitted = |low: u8| [0, 1, 255, 256, 257].map(|n| rule(low).admits(n, 256));
        assert_eq!(admitted(0x00), [false, false, false, true, false]);
        assert_eq!(admitted(0x02), [false, true, true, true, false]);
        assert_eq!(admitted(0x04), [true, true, true, true, false]);
        assert_eq!(admitted(0x0c), [true, false, false, false, false]);
        assert!(rule(0x1d).admits(8, 256) && !rule(0x1d).admits(4, 256));
        assert!(rule(0x00).admits_somewhere(1024) && !rule(0x00).admits_somewhere(1000));
    }

    #[test]
    fn opcodes_display_their_service_and_operation() {
        assert_eq!(Opcode(0x64).to_string(), "UD SEND Only");
        assert_eq!(
            Opcode(0x0b).to_string(),
            "RC RDMA WRITE Only with Immediate"
        );
        assert_eq!(Opcode::CNP.to_string(), "CNP");
        assert_eq!(Opcode(0x15).to_string(), "opcode 0x15");
    }
}
