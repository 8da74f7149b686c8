//! The messages of the communication manager, CM (IBTA 12.6 to 12.8).
//!
//! Each message fills the 232 bytes after the MAD header, and ends with private data whose size depends on the message. If
//! several fields share a byte, the one that is declared first has the high bits. A [`Message`] is any of them.
//!
//! In the names of fields, *local* is the end that sends the message.

use crate::layout::{Header as _, Octets, Reserved, header, view};
use crate::mad::{CM_CLASS, DATA_LEN, Mad, MadHeader, Reject, method};

/// The class version of CM messages in the MAD header.
pub const CLASS_VERSION: u8 = 2;

header! {
    /// REQ, the CM message that asks for a connection (IBTA 12.6.5).
    Req, ReqView: 232 octets {
        local_comm_id: u32 = 32, "The communication ID that the sender has chosen for the connection.";
        reserved32: Reserved = 32, "Zero.";
        service_id: u64 = 64, "The ID of the service that the sender wants to connect to.";
        ca_guid: u64 = 64, "The GUID of the sender's channel adapter.";
        reserved32b: Reserved = 32, "Zero.";
        q_key: u32 = 32, "The Q_Key of the sender's queue pair.";
        qpn: u32 = 24, "The number of the sender's queue pair: 24 bits.";
        responder_resources: u8 = 8, "Reads and atomics that the sender serves at one time.";
        local_ee_context: u32 = 24, "End-to-end context of reliable datagrams.";
        initiator_depth: u8 = 8, "Reads and atomics that the sender has outstanding at one time.";
        remote_ee_context: u32 = 24, "End-to-end context of reliable datagrams.";
        remote_response_timeout: u8 = 5, "How soon the receiver is to answer a message: n for 4.096 µs × 2^n.";
        transport_type: u8 = 2, "0 RC, 1 UC, 2 RD, 3 see `extended_transport_type`.";
        flow_control: bool = 1, "Whether the sender supports end-to-end flow control.";
        starting_psn: u32 = 24, "The PSN of the first packet that the receiver's queue pair sends: 24 bits.";
        local_response_timeout: u8 = 5, "How soon the sender will answer a message: n for 4.096 µs × 2^n.";
        retry_count: u8 = 3, "How often the receiver's queue pair retransmits a packet that is not acknowledged.";
        p_key: u16 = 16, "The P_Key of the connection's partition.";
        path_mtu: u8 = 4, "The path MTU, coded as in the verbs: 1 for 256 bytes to 5 for 4096 bytes.";
        rdc_exists: bool = 1, "For reliable datagrams: whether the end-to-end context exists already.";
        rnr_retry_count: u8 = 3, "How often the receiver sends a message again after an RNR NAK; 7 means without a limit.";
        max_cm_retries: u8 = 4, "How often either side sends a CM message again that is not answered.";
        srq: bool = 1, "Whether the sender's queue pair takes its receives from an SRQ.";
        extended_transport_type: u8 = 3, "1 for XRC, if `transport_type` is 3.";
        primary_local_lid: u16 = 16, "Primary path: the sender's LID.";
        primary_remote_lid: u16 = 16, "Primary path: the receiver's LID.";
        primary_local_gid: Octets<16> = 128, "Primary path: the sender's GID.";
        primary_remote_gid: Octets<16> = 128, "Primary path: the receiver's GID.";
        primary_flow_label: u32 = 20, "Primary path: flow label.";
        primary_reserved6: Reserved = 6, "Zero.";
        primary_packet_rate: u8 = 6, "Primary path: static rate of packets, coded as in the verbs.";
        primary_traffic_class: u8 = 8, "Primary path: traffic class.";
        primary_hop_limit: u8 = 8, "Primary path: hop limit.";
        primary_service_level: u8 = 4, "Primary path: service level.";
        primary_subnet_local: bool = 1, "Primary path: whether it does not leave the subnet.";
        primary_reserved3: Reserved = 3, "Zero.";
        primary_ack_timeout: u8 = 5, "Primary path: local ACK timeout, n for 4.096 µs × 2^n.";
        primary_reserved3b: Reserved = 3, "Zero.";
        alternate_local_lid: u16 = 16, "Alternate path, whose fields are all zero if there is none: the sender's LID.";
        alternate_remote_lid: u16 = 16, "Alternate path: the receiver's LID.";
        alternate_local_gid: Octets<16> = 128, "Alternate path: the sender's GID.";
        alternate_remote_gid: Octets<16> = 128, "Alternate path: the receiver's GID.";
        alternate_flow_label: u32 = 20, "Alternate path: flow label.";
        alternate_reserved6: Reserved = 6, "Zero.";
        alternate_packet_rate: u8 = 6, "Alternate path: static rate of packets, coded as in the verbs.";
        alternate_traffic_class: u8 = 8, "Alternate path: traffic class.";
        alternate_hop_limit: u8 = 8, "Alternate path: hop limit.";
        alternate_service_level: u8 = 4, "Alternate path: service level.";
        alternate_subnet_local: bool = 1, "Alternate path: whether it does not leave the subnet.";
        alternate_reserved3: Reserved = 3, "Zero.";
        alternate_ack_timeout: u8 = 5, "Alternate path: local ACK timeout, n for 4.096 µs × 2^n.";
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
        local_comm_id: u32 = 32, "The communication ID that the sender has chosen for the connection.";
        remote_comm_id: u32 = 32, "The communication ID that the receiver has chosen for the connection.";
        message: u8 = 2, "The message that has arrived: 0 REQ, 1 REP, 2 LAP.";
        reserved6: Reserved = 6, "Zero.";
        service_timeout: u8 = 5, "How long the answer to it may take: n for 4.096 µs × 2^n.";
        reserved3: Reserved = 3, "Zero.";
        private_data: Octets<222> = 1776, "Private data of the program.";
    }
}

header! {
    /// REJ, the CM message that refuses a connection (IBTA 12.6.7).
    Rej, RejView: 232 octets {
        local_comm_id: u32 = 32, "The communication ID that the sender has chosen for the connection.";
        remote_comm_id: u32 = 32, "The communication ID that the receiver has chosen for the connection.";
        message: u8 = 2, "The message that is refused: 0 REQ, 1 REP, 2 another one.";
        reserved6: Reserved = 6, "Zero.";
        info_length: u8 = 7, "The number of bytes of `info` that are used.";
        reserved1: Reserved = 1, "Zero.";
        reason: u16 = 16, "Why the connection is refused: see [`reason`].";
        info: Octets<72> = 576, "More about the reason; its form depends on the reason.";
        private_data: Octets<148> = 1184, "Private data of the program.";
    }
}

header! {
    /// REP, the CM message that agrees to a connection (IBTA 12.6.8).
    Rep, RepView: 232 octets {
        local_comm_id: u32 = 32, "The communication ID that the sender has chosen for the connection.";
        remote_comm_id: u32 = 32, "The communication ID that the receiver has chosen for the connection.";
        q_key: u32 = 32, "The Q_Key of the sender's queue pair.";
        qpn: u32 = 24, "The number of the sender's queue pair: 24 bits.";
        reserved8: Reserved = 8, "Zero.";
        ee_context: u32 = 24, "End-to-end context of reliable datagrams.";
        reserved8b: Reserved = 8, "Zero.";
        starting_psn: u32 = 24, "The PSN of the first packet that the receiver's queue pair sends: 24 bits.";
        reserved8c: Reserved = 8, "Zero.";
        responder_resources: u8 = 8, "Reads and atomics that the sender serves at one time.";
        initiator_depth: u8 = 8, "Reads and atomics that the sender has outstanding at one time.";
        target_ack_delay: u8 = 5, "The longest time until the sender's adapter acknowledges: n for 4.096 µs × 2^n.";
        failover_accepted: u8 = 2, "The answer to the REQ's alternate path: 0 accepted, 1 unsupported, 2 rejected.";
        flow_control: bool = 1, "Whether the sender supports end-to-end flow control.";
        rnr_retry_count: u8 = 3, "How often the receiver sends a message again after an RNR NAK; 7 means without a limit.";
        srq: bool = 1, "Whether the sender's queue pair takes its receives from an SRQ.";
        reserved4: Reserved = 4, "Zero.";
        ca_guid: u64 = 64, "The GUID of the sender's channel adapter.";
        private_data: Octets<196> = 1568, "Private data of the program.";
    }
}

header! {
    /// RTU (ready to use), the CM message that confirms that the connection is established (IBTA 12.6.9).
    Rtu, RtuView: 232 octets {
        local_comm_id: u32 = 32, "The communication ID that the sender has chosen for the connection.";
        remote_comm_id: u32 = 32, "The communication ID that the receiver has chosen for the connection.";
        private_data: Octets<224> = 1792, "Private data of the program.";
    }
}

header! {
    /// DREQ, the CM message that ends a connection (IBTA 12.6.10).
    Dreq, DreqView: 232 octets {
        local_comm_id: u32 = 32, "The communication ID that the sender has chosen for the connection.";
        remote_comm_id: u32 = 32, "The communication ID that the receiver has chosen for the connection.";
        remote_qpn: u32 = 24, "The number of the receiver's queue pair, or of its end-to-end context: 24 bits.";
        reserved8: Reserved = 8, "Zero.";
        private_data: Octets<220> = 1760, "Private data of the program.";
    }
}

header! {
    /// DREP, the CM message that confirms that the connection has ended (IBTA 12.6.11).
    Drep, DrepView: 232 octets {
        local_comm_id: u32 = 32, "The communication ID that the sender has chosen for the connection.";
        remote_comm_id: u32 = 32, "The communication ID that the receiver has chosen for the connection.";
        private_data: Octets<224> = 1792, "Private data of the program.";
    }
}

header! {
    /// LAP, the CM message that asks the peer to load an alternate path (IBTA 12.8.1).
    Lap, LapView: 232 octets {
        local_comm_id: u32 = 32, "The communication ID that the sender has chosen for the connection.";
        remote_comm_id: u32 = 32, "The communication ID that the receiver has chosen for the connection.";
        reserved32: Reserved = 32, "Zero.";
        remote_qpn: u32 = 24, "The number of the receiver's queue pair: 24 bits.";
        remote_response_timeout: u8 = 5, "How soon the receiver is to answer a message: n for 4.096 µs × 2^n.";
        reserved3: Reserved = 3, "Zero.";
        reserved32b: Reserved = 32, "Zero.";
        local_lid: u16 = 16, "Alternate path: the sender's LID.";
        remote_lid: u16 = 16, "Alternate path: the receiver's LID.";
        local_gid: Octets<16> = 128, "Alternate path: the sender's GID.";
        remote_gid: Octets<16> = 128, "Alternate path: the receiver's GID.";
        flow_label: u32 = 20, "Alternate path: flow label.";
        reserved4: Reserved = 4, "Zero.";
        traffic_class: u8 = 8, "Alternate path: traffic class.";
        hop_limit: u8 = 8, "Alternate path: hop limit.";
        reserved2: Reserved = 2, "Zero.";
        packet_rate: u8 = 6, "Alternate path: static rate of packets, coded as in the verbs.";
        service_level: u8 = 4, "Alternate path: service level.";
        subnet_local: bool = 1, "Alternate path: whether it does not leave the subnet.";
        reserved3b: Reserved = 3, "Zero.";
        ack_timeout: u8 = 5, "Alternate path: local ACK timeout, n for 4.096 µs × 2^n.";
        reserved3c: Reserved = 3, "Zero.";
        private_data: Octets<168> = 1344, "Private data of the program.";
    }
}

header! {
    /// APR, the CM message that answers a [`Lap`] (IBTA 12.8.2).
    Apr, AprView: 232 octets {
        local_comm_id: u32 = 32, "The communication ID that the sender has chosen for the connection.";
        remote_comm_id: u32 = 32, "The communication ID that the receiver has chosen for the connection.";
        info_length: u8 = 8, "The number of bytes of `info` that are used.";
        status: u8 = 8, "0 if the alternate path was loaded; otherwise the reason why it was not.";
        reserved16: Reserved = 16, "Zero.";
        info: Octets<72> = 576, "More about the status; its form depends on the status.";
        private_data: Octets<148> = 1184, "Private data of the program.";
    }
}

header! {
    /// SIDR_REQ, the CM message that asks which QP serves the datagrams of a service (IBTA 12.11.1).
    SidrReq, SidrReqView: 232 octets {
        request_id: u32 = 32, "A number that the sender has chosen and the answer repeats.";
        p_key: u16 = 16, "The P_Key of the partition.";
        reserved16: Reserved = 16, "Zero.";
        service_id: u64 = 64, "The ID of the service for which the sender wants a queue pair.";
        private_data: Octets<216> = 1728, "Private data of the program.";
    }
}

header! {
    /// SIDR_REP, the CM message that answers a [`SidrReq`] (IBTA 12.11.2).
    SidrRep, SidrRepView: 232 octets {
        request_id: u32 = 32, "The number of the request that this answers.";
        status: u8 = 8, "0 valid, 1 unsupported, 2 rejected, 3 no queue pair, 4 redirected, 5 version.";
        info_length: u8 = 8, "The number of bytes of `info` that are used.";
        reserved16: Reserved = 16, "Zero.";
        qpn: u32 = 24, "The number of the queue pair that serves the service: 24 bits.";
        reserved8: Reserved = 8, "Zero.";
        service_id: u64 = 64, "The ID of the service.";
        q_key: u32 = 32, "The Q_Key with which datagrams to that queue pair are sent.";
        info: Octets<72> = 576, "More about the status; its form depends on the status.";
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
    if header.method() != method::SEND {
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
        method: method::SEND,
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
