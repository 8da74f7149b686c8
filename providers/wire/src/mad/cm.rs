//! The messages of the communication manager, CM (IBTA 12.6 to 12.8).
//!
//! Each message fills the 232 bytes after the MAD header, and ends with private data whose size depends on the message. If
//! several fields share a byte, the one that is declared first has the high bits. A [`Message`] is any of them.
//!
//! In the names of fields, *local* is the end that sends the message.

use crate::layout::{Header as _, Octets, Reserved, header, view};
use crate::mad::{CM_CLASS, DATA_LEN, Mad, MadHeader, Reject, SEND_METHOD};

/// The class version of CM messages in the MAD header.
pub const CLASS_VERSION: u8 = 2;

header! {
    /// REQ, the CM message that asks for a connection (IBTA 12.6.5).
    Req, ReqView: 232 octets {
        local_comm_id: u32 = 32, "The sender's number of the connection.";
        reserved32: Reserved = 32, "Zero.";
        service_id: u64 = 64, "The service asked for.";
        ca_guid: u64 = 64, "The sender's GUID.";
        reserved32b: Reserved = 32, "Zero.";
        q_key: u32 = 32, "Queue key of the sender's queue pair.";
        qpn: u32 = 24, "The sender's queue pair: 24 bits.";
        responder_resources: u8 = 8, "Reads and atomics that the sender serves at one time.";
        local_ee_context: u32 = 24, "End-to-end context of reliable datagrams.";
        initiator_depth: u8 = 8, "Reads and atomics that the sender has outstanding at one time.";
        remote_ee_context: u32 = 24, "End-to-end context of reliable datagrams.";
        remote_response_timeout: u8 = 5, "How soon the receiver is to answer: 4.096 µs times two to the power of this.";
        transport_type: u8 = 2, "0 RC, 1 UC, 2 RD, 3 see `extended_transport_type`.";
        flow_control: bool = 1, "End-to-end flow control.";
        starting_psn: u32 = 24, "Number of the first packet: 24 bits.";
        local_response_timeout: u8 = 5, "How soon the sender will answer.";
        retry_count: u8 = 3, "Retries of a packet.";
        p_key: u16 = 16, "Partition.";
        path_mtu: u8 = 4, "Path MTU, coded as the verbs have it.";
        rdc_exists: bool = 1, "Reliable datagrams: the context exists.";
        rnr_retry_count: u8 = 3, "Retries of a packet that met no receive.";
        max_cm_retries: u8 = 4, "Repetitions of a message of the connection manager.";
        srq: bool = 1, "The sender's receives come from a shared queue.";
        extended_transport_type: u8 = 3, "1 XRC, where the transport type is 3.";
        primary_local_lid: u16 = 16, "Primary path: the sender's LID.";
        primary_remote_lid: u16 = 16, "The receiver's LID.";
        primary_local_gid: Octets<16> = 128, "The sender's GID.";
        primary_remote_gid: Octets<16> = 128, "The receiver's GID.";
        primary_flow_label: u32 = 20, "Flow label.";
        primary_reserved6: Reserved = 6, "Zero.";
        primary_packet_rate: u8 = 6, "Rate of packets.";
        primary_traffic_class: u8 = 8, "Traffic class.";
        primary_hop_limit: u8 = 8, "Hop limit.";
        primary_service_level: u8 = 4, "Service level.";
        primary_subnet_local: bool = 1, "Whether the path does not leave the subnet.";
        primary_reserved3: Reserved = 3, "Zero.";
        primary_ack_timeout: u8 = 5, "Local ack timeout, coded as the verbs have it.";
        primary_reserved3b: Reserved = 3, "Zero.";
        alternate_local_lid: u16 = 16, "Alternate path, all zero where there is none: the sender's LID.";
        alternate_remote_lid: u16 = 16, "The receiver's LID.";
        alternate_local_gid: Octets<16> = 128, "The sender's GID.";
        alternate_remote_gid: Octets<16> = 128, "The receiver's GID.";
        alternate_flow_label: u32 = 20, "Flow label.";
        alternate_reserved6: Reserved = 6, "Zero.";
        alternate_packet_rate: u8 = 6, "Rate of packets.";
        alternate_traffic_class: u8 = 8, "Traffic class.";
        alternate_hop_limit: u8 = 8, "Hop limit.";
        alternate_service_level: u8 = 4, "Service level.";
        alternate_subnet_local: bool = 1, "Whether the path does not leave the subnet.";
        alternate_reserved3: Reserved = 3, "Zero.";
        alternate_ack_timeout: u8 = 5, "Local ack timeout, coded as the verbs have it.";
        alternate_reserved3b: Reserved = 3, "Zero.";
        private_data: Octets<92> = 736, "Private data of the program.";
    }
}

impl Req {
    /// Returns the path MTU in bytes; `None` if its code is reserved.
    pub const fn path_mtu_bytes(&self) -> Option<u32> {
        match self.path_mtu {
            1..=5 => Some(128 << self.path_mtu),
            _ => None,
        }
    }
}

header! {
    /// Message receipt acknowledgment: confirms that a message has arrived, and announces that the answer will take some
    /// time (IBTA 12.6.6).
    Mra, MraView: 232 octets {
        local_comm_id: u32 = 32, "The sender's number of the connection.";
        remote_comm_id: u32 = 32, "The receiver's number of the connection.";
        message: u8 = 2, "What has been received: 0 REQ, 1 REP, 2 LAP.";
        reserved6: Reserved = 6, "Zero.";
        service_timeout: u8 = 5, "How long: 4.096 µs times two to the power of this.";
        reserved3: Reserved = 3, "Zero.";
        private_data: Octets<222> = 1776, "Private data of the program.";
    }
}

header! {
    /// REJ, the CM message that refuses a connection (IBTA 12.6.7).
    Rej, RejView: 232 octets {
        local_comm_id: u32 = 32, "The sender's number of the connection.";
        remote_comm_id: u32 = 32, "The receiver's number of the connection.";
        message: u8 = 2, "What is refused: 0 REQ, 1 REP, 2 something else.";
        reserved6: Reserved = 6, "Zero.";
        info_length: u8 = 7, "Bytes of `info` that are used.";
        reserved1: Reserved = 1, "Zero.";
        reason: u16 = 16, "Why: see [`reason`].";
        info: Octets<72> = 576, "More about the reason.";
        private_data: Octets<148> = 1184, "Private data of the program.";
    }
}

header! {
    /// REP, the CM message that agrees to a connection (IBTA 12.6.8).
    Rep, RepView: 232 octets {
        local_comm_id: u32 = 32, "The sender's number of the connection.";
        remote_comm_id: u32 = 32, "The receiver's number of the connection.";
        q_key: u32 = 32, "Queue key of the sender's queue pair.";
        qpn: u32 = 24, "The sender's queue pair: 24 bits.";
        reserved8: Reserved = 8, "Zero.";
        ee_context: u32 = 24, "End-to-end context of reliable datagrams.";
        reserved8b: Reserved = 8, "Zero.";
        starting_psn: u32 = 24, "Number of the first packet: 24 bits.";
        reserved8c: Reserved = 8, "Zero.";
        responder_resources: u8 = 8, "Reads and atomics that the sender serves at one time.";
        initiator_depth: u8 = 8, "Reads and atomics that the sender has outstanding at one time.";
        target_ack_delay: u8 = 5, "How long the sender's adapter takes to acknowledge.";
        failover_accepted: u8 = 2, "Whether the alternate path was taken.";
        flow_control: bool = 1, "End-to-end flow control.";
        rnr_retry_count: u8 = 3, "Retries of a packet that met no receive.";
        srq: bool = 1, "The sender's receives come from a shared queue.";
        reserved4: Reserved = 4, "Zero.";
        ca_guid: u64 = 64, "The sender's GUID.";
        private_data: Octets<196> = 1568, "Private data of the program.";
    }
}

header! {
    /// RTU (ready to use), the CM message that confirms that the connection is established (IBTA 12.6.9).
    Rtu, RtuView: 232 octets {
        local_comm_id: u32 = 32, "The sender's number of the connection.";
        remote_comm_id: u32 = 32, "The receiver's number of the connection.";
        private_data: Octets<224> = 1792, "Private data of the program.";
    }
}

header! {
    /// DREQ, the CM message that ends a connection (IBTA 12.6.10).
    Dreq, DreqView: 232 octets {
        local_comm_id: u32 = 32, "The sender's number of the connection.";
        remote_comm_id: u32 = 32, "The receiver's number of the connection.";
        remote_qpn: u32 = 24, "The receiver's queue pair, or its end-to-end context: 24 bits.";
        reserved8: Reserved = 8, "Zero.";
        private_data: Octets<220> = 1760, "Private data of the program.";
    }
}

header! {
    /// DREP, the CM message that confirms that the connection has ended (IBTA 12.6.11).
    Drep, DrepView: 232 octets {
        local_comm_id: u32 = 32, "The sender's number of the connection.";
        remote_comm_id: u32 = 32, "The receiver's number of the connection.";
        private_data: Octets<224> = 1792, "Private data of the program.";
    }
}

header! {
    /// LAP, the CM message that asks the peer to load an alternate path (IBTA 12.8.1).
    Lap, LapView: 232 octets {
        local_comm_id: u32 = 32, "The sender's number of the connection.";
        remote_comm_id: u32 = 32, "The receiver's number of the connection.";
        reserved32: Reserved = 32, "Zero.";
        remote_qpn: u32 = 24, "The receiver's queue pair: 24 bits.";
        remote_response_timeout: u8 = 5, "How soon the receiver is to answer.";
        reserved3: Reserved = 3, "Zero.";
        reserved32b: Reserved = 32, "Zero.";
        local_lid: u16 = 16, "Alternate path: the sender's LID.";
        remote_lid: u16 = 16, "The receiver's LID.";
        local_gid: Octets<16> = 128, "The sender's GID.";
        remote_gid: Octets<16> = 128, "The receiver's GID.";
        flow_label: u32 = 20, "Flow label.";
        reserved4: Reserved = 4, "Zero.";
        traffic_class: u8 = 8, "Traffic class.";
        hop_limit: u8 = 8, "Hop limit.";
        reserved2: Reserved = 2, "Zero.";
        packet_rate: u8 = 6, "Rate of packets.";
        service_level: u8 = 4, "Service level.";
        subnet_local: bool = 1, "Whether the path does not leave the subnet.";
        reserved3b: Reserved = 3, "Zero.";
        ack_timeout: u8 = 5, "Local ack timeout, coded as the verbs have it.";
        reserved3c: Reserved = 3, "Zero.";
        private_data: Octets<168> = 1344, "Private data of the program.";
    }
}

header! {
    /// APR, the CM message that answers a [`Lap`] (IBTA 12.8.2).
    Apr, AprView: 232 octets {
        local_comm_id: u32 = 32, "The sender's number of the connection.";
        remote_comm_id: u32 = 32, "The receiver's number of the connection.";
        info_length: u8 = 8, "Bytes of `info` that are used.";
        status: u8 = 8, "0 where the path was loaded.";
        reserved16: Reserved = 16, "Zero.";
        info: Octets<72> = 576, "More about the status.";
        private_data: Octets<148> = 1184, "Private data of the program.";
    }
}

header! {
    /// SIDR_REQ, the CM message that asks which QP serves the datagrams of a service (IBTA 12.11.1).
    SidrReq, SidrReqView: 232 octets {
        request_id: u32 = 32, "The sender's number of the request.";
        p_key: u16 = 16, "Partition.";
        reserved16: Reserved = 16, "Zero.";
        service_id: u64 = 64, "The service asked for.";
        private_data: Octets<216> = 1728, "Private data of the program.";
    }
}

header! {
    /// SIDR_REP, the CM message that answers a [`SidrReq`] (IBTA 12.11.2).
    SidrRep, SidrRepView: 232 octets {
        request_id: u32 = 32, "The number of the request.";
        status: u8 = 8, "0 valid, 1 unsupported, 2 rejected, 3 no queue pair, 4 redirected, 5 version.";
        info_length: u8 = 8, "Bytes of `info` that are used.";
        reserved16: Reserved = 16, "Zero.";
        qpn: u32 = 24, "The queue pair: 24 bits.";
        reserved8: Reserved = 8, "Zero.";
        service_id: u64 = 64, "The service asked for.";
        q_key: u32 = 32, "The queue key to send with.";
        info: Octets<72> = 576, "More about the status.";
        private_data: Octets<136> = 1088, "Private data of the program.";
    }
}

macro_rules! messages {
    ($($message:ident = $attribute:literal, $name:literal;)*) => {
        /// A message of the communication manager (CM).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(
            feature = "serde",
            derive(serde::Serialize, serde::Deserialize),
            serde(rename_all = "snake_case")
        )]
        pub enum Message {
            $(
                #[doc = concat!("[`", stringify!($message), "`].")]
                $message($message),
            )*
        }

        impl Message {
            /// Decodes the message with this attribute ID; `None` if no message has it.
            pub fn of(attribute_id: u16, data: &[u8; DATA_LEN]) -> Option<Self> {
                match attribute_id {
                    $($attribute => {
                        view::<$message>(data).map(|(view, _)| Self::$message($message::of(view)))
                    })*
                    _ => None,
                }
            }

            /// The attribute ID that identifies the kind of message.
            pub const fn attribute_id(&self) -> u16 {
                match self {
                    $(Self::$message(_) => $attribute,)*
                }
            }

            /// The name of the kind of message, as in `REQ`.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$message(_) => $name,)*
                }
            }

            /// Encodes the message: the 232 bytes after the MAD header.
            pub fn to_data(&self) -> [u8; DATA_LEN] {
                match self {
                    $(Self::$message(message) => message.to_view().0,)*
                }
            }

            /// The private data field of the message in its full length, padding included.
            pub fn private_data(&self) -> &[u8] {
                match self {
                    $(Self::$message(message) => &message.private_data.0,)*
                }
            }
        }

        $(
            const _: () = assert!($message::LEN == DATA_LEN);

            impl From<$message> for Message {
                fn from(message: $message) -> Self {
                    Self::$message(message)
                }
            }
        )*
    };
}

messages! {
    Req = 0x10, "REQ";
    Mra = 0x11, "MRA";
    Rej = 0x12, "REJ";
    Rep = 0x13, "REP";
    Rtu = 0x14, "RTU";
    Dreq = 0x15, "DREQ";
    Drep = 0x16, "DREP";
    SidrReq = 0x17, "SIDR_REQ";
    SidrRep = 0x18, "SIDR_REP";
    Lap = 0x19, "LAP";
    Apr = 0x1a, "APR";
}

/// Decodes the CM message in a MAD (IBTA 12.6, 13.4).
///
/// # Errors
/// The MAD is not a CM message.
pub fn decode(mad: &Mad<'_>) -> Result<Message, Reject> {
    let header = mad.header;
    if header.management_class() != CM_CLASS || header.class_version() != CLASS_VERSION {
        return Err(Reject::Class);
    }
    if header.method() != SEND_METHOD {
        return Err(Reject::Method);
    }
    Message::of(header.attribute_id(), mad.data).ok_or(Reject::Attribute)
}

/// Returns the header of the MAD that carries this message.
pub fn header_of(message: &Message, transaction_id: u64) -> MadHeader {
    MadHeader {
        base_version: 1,
        management_class: CM_CLASS,
        class_version: CLASS_VERSION,
        method: SEND_METHOD,
        transaction_id,
        attribute_id: message.attribute_id(),
        ..MadHeader::default()
    }
}

macro_rules! reasons {
    ($($name:ident = $number:literal: $words:literal)*) => {
        /// The reasons with which a REJ message refuses a connection (IBTA 12.6.7.2).
        pub mod reason {
            $(
                #[doc = concat!("Refused: ", $words, ".")]
                pub const $name: u16 = $number;
            )*

            /// Returns the reason in words; `None` if the number has no meaning.
            pub const fn name(reason: u16) -> Option<&'static str> {
                Some(match reason {
                    $($name => $words,)*
                    _ => return None,
                })
            }
        }
    };
}

reasons! {
    NO_QP = 1: "no queue pair"
    NO_EE_CONTEXT = 2: "no end-to-end context"
    NO_RESOURCES = 3: "no resources"
    TIMEOUT = 4: "timeout"
    UNSUPPORTED = 5: "unsupported request"
    INVALID_COMM_ID = 6: "invalid communication id"
    INVALID_COMM_INSTANCE = 7: "invalid communication instance"
    INVALID_SERVICE_ID = 8: "invalid service id"
    INVALID_TRANSPORT_TYPE = 9: "invalid transport type"
    STALE_CONNECTION = 10: "stale connection"
    RDC_MISSING = 11: "reliable datagram channel missing"
    INVALID_GID = 12: "invalid GID"
    INVALID_LID = 13: "invalid LID"
    INVALID_SERVICE_LEVEL = 14: "invalid service level"
    INVALID_TRAFFIC_CLASS = 15: "invalid traffic class"
    INVALID_HOP_LIMIT = 16: "invalid hop limit"
    INVALID_PACKET_RATE = 17: "invalid packet rate"
    INVALID_ALTERNATE_GID = 18: "invalid alternate GID"
    INVALID_ALTERNATE_LID = 19: "invalid alternate LID"
    INVALID_ALTERNATE_SERVICE_LEVEL = 20: "invalid alternate service level"
    INVALID_ALTERNATE_TRAFFIC_CLASS = 21: "invalid alternate traffic class"
    INVALID_ALTERNATE_HOP_LIMIT = 22: "invalid alternate hop limit"
    INVALID_ALTERNATE_PACKET_RATE = 23: "invalid alternate packet rate"
    PORT_AND_CM_REDIRECT = 24: "port and manager redirected"
    PORT_REDIRECT = 25: "port redirected"
    INVALID_MTU = 26: "invalid path MTU"
    INSUFFICIENT_RESPONDER_RESOURCES = 27: "insufficient responder resources"
    CONSUMER = 28: "by the program"
    RNR_RETRY_COUNT = 29: "RNR retry count"
    DUPLICATE_LOCAL_COMM_ID = 30: "duplicate local communication id"
    INVALID_CLASS_VERSION = 31: "invalid class version"
    INVALID_FLOW_LABEL = 32: "invalid flow label"
    INVALID_ALTERNATE_FLOW_LABEL = 33: "invalid alternate flow label"
    VENDOR_OPTION = 35: "vendor option not supported"
}

#[cfg(test)]
mod tests;
