//! The header of RMPP, which carries messages that are longer than a MAD (IBTA 13.6.2).

use crate::layout::header;

/// The types of RMPP packets.
pub mod rmpp_type {
    /// A segment of the message.
    pub const DATA: u8 = 1;
    /// Acknowledges segments, and grants a window.
    pub const ACK: u8 = 2;
    /// The sender of the message gives up.
    pub const STOP: u8 = 3;
    /// An error ends the transfer.
    pub const ABORT: u8 = 4;
}

header! {
    /// The header of RMPP, after the MAD header of a class that uses it.
    Rmpp, RmppView: 12 octets {
        version: u8 = 8, "1; 0 if the MAD is not part of a longer message.";
        packet_type: u8 = 8, "The type of packet: see [`rmpp_type`].";
        response_time: u8 = 5, "How soon the receiver answers: n for 4.096 µs × 2^n; 31 if it does not say.";
        is_last: bool = 1, "Whether this is the last segment.";
        is_first: bool = 1, "Whether this is the first segment.";
        is_active: bool = 1, "Whether RMPP is in use.";
        status: u8 = 8, "The reason of a [`STOP`](rmpp_type::STOP) or an [`ABORT`](rmpp_type::ABORT).";
        segment_number: u32 = 32, "The number of the segment, or of the last one that is acknowledged; the first one is 1.";
        length: u32 = 32, "First segment: bytes of the whole message; last segment: bytes in it; \
            acknowledgement: the last segment that may be sent.";
    }
}
