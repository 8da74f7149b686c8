//! Management datagrams, MADs (IBTA 13.4): 256 bytes each, the payload of a UD SEND Only packet to QP 0 or 1.
//!
//! [`decode`] separates header and data of a MAD.
//!
//! | module | holds |
//! | --- | --- |
//! | [`smp`] | subnet management, the only MADs that go to QP 0: the attributes of nodes, ports and switches |
//! | [`notice`] | notices, the events that traps and reports carry |
//! | [`sa`], [`rmpp`] | requests to the administrator of a subnet, and the header of messages that are longer than a MAD |
//! | [`perf`] | the counters of ports |
//! | [`cm`], [`rdma_cm`] | the CM messages, and the header that the RDMA connection manager puts in front of private data |

pub mod cm;
pub mod notice;
pub mod perf;
pub mod rdma_cm;
pub mod rmpp;
pub mod sa;
pub mod smp;

use crate::layout::{Header, Octets, Reserved, header, view};

/// Length of every MAD, in bytes.
pub const MAD_LEN: usize = 256;

/// Length of the part of a MAD after its header, in bytes.
pub const DATA_LEN: usize = MAD_LEN - MadHeader::LEN;

/// The number of the general services QP, to which MADs are sent.
pub const GSI_QP: u32 = 1;

/// The Q_Key of the general services QP (IBTA 10.2.4).
pub const GSI_Q_KEY: u32 = 0x8001_0000;

/// The management class of CM messages.
pub const CM_CLASS: u8 = 0x07;

/// The methods of MADs (IBTA 13.4.5).
pub mod method {
    /// The bit that marks a response; the other bits are those of the request, but a response to [`SET`] has those of [`GET`].
    pub const RESPONSE: u8 = 0x80;
    /// Reads an attribute.
    pub const GET: u8 = 0x01;
    /// Writes an attribute. The response has the attribute as it is afterwards.
    pub const SET: u8 = 0x02;
    /// Expects no answer by the MAD protocol; all CM messages have it.
    pub const SEND: u8 = 0x03;
    /// Carries a notice of an event.
    pub const TRAP: u8 = 0x05;
    /// Forwards a notice to a subscriber.
    pub const REPORT: u8 = 0x06;
    /// Acknowledges a trap, whose transaction ID it has, and so ends its repetition.
    pub const TRAP_REPRESS: u8 = 0x07;
    /// Reads all records that match.
    pub const GET_TABLE: u8 = 0x12;
    /// Deletes a record.
    pub const DELETE: u8 = 0x15;
}

/// The status codes of responses (IBTA 13.4.7), the low eight bits of the status.
pub mod status {
    /// The request succeeded.
    pub const OK: u16 = 0;
    /// The agent does not support the base version or the class version.
    pub const VERSION: u16 = 0x0004;
    /// The class does not support the method.
    pub const METHOD: u16 = 0x0008;
    /// The agent does not support the method for the attribute.
    pub const METHOD_AND_ATTRIBUTE: u16 = 0x000c;
    /// A field of the attribute or the attribute modifier has an invalid value.
    pub const INVALID_FIELD: u16 = 0x001c;
}

/// An attribute of a management class.
pub trait Attribute: Header {
    /// The ID by which the MAD header names the attribute.
    const ID: u16;
}

/// Gives attributes their IDs.
macro_rules! attributes {
    ($($attribute:ident = $id:literal;)*) => {$(
        impl crate::mad::Attribute for $attribute {
            const ID: u16 = $id;
        }
    )*};
}
use attributes;

attributes! {
    ClassPortInfo = 0x0001;
}

header! {
    /// What an agent of a management class supports, and where it and the recipient of its traps are (IBTA 13.4.8.1).
    ClassPortInfo, ClassPortInfoView: 72 octets {
        base_version: u8 = 8, "Version of the MAD format: 1.";
        class_version: u8 = 8, "Version of the management class.";
        capability_mask: u16 = 16, "The abilities of the agent, whose upper eight bits the class defines.";
        capability_mask2: u32 = 27, "More abilities, all defined by the class.";
        resp_time_value: u8 = 5, "How soon the agent answers: n for 4.096 µs × 2^n.";
        redirect_gid: Octets<16> = 128, "Where requests are to be sent instead: the GID, or zero.";
        redirect_traffic_class: u8 = 8, "Redirection: traffic class.";
        redirect_sl: u8 = 4, "Redirection: service level.";
        redirect_flow_label: u32 = 20, "Redirection: flow label.";
        redirect_lid: u16 = 16, "Redirection: the LID, or zero.";
        redirect_p_key: u16 = 16, "Redirection: P_Key.";
        reserved8: Reserved = 8, "Zero.";
        redirect_qp: u32 = 24, "Redirection: the number of the queue pair.";
        redirect_q_key: u32 = 32, "Redirection: Q_Key.";
        trap_gid: Octets<16> = 128, "Where traps are sent: the GID, or zero.";
        trap_traffic_class: u8 = 8, "Traps: traffic class.";
        trap_sl: u8 = 4, "Traps: service level.";
        trap_flow_label: u32 = 20, "Traps: flow label.";
        trap_lid: u16 = 16, "Traps: the LID.";
        trap_p_key: u16 = 16, "Traps: P_Key.";
        trap_hop_limit: u8 = 8, "Traps: hop limit.";
        trap_qp: u32 = 24, "Traps: the number of the queue pair.";
        trap_q_key: u32 = 32, "Traps: Q_Key.";
    }
}

header! {
    /// The header of every MAD (IBTA 13.4.3).
    MadHeader, MadHeaderView: 24 octets {
        base_version: u8 = 8, "Version of the MAD format: 1.";
        management_class: u8 = 8, "The management class, which says what kind of MAD this is: [`CM_CLASS`], for instance.";
        class_version: u8 = 8, "Version of the management class: 2 for [`CM_CLASS`].";
        method: u8 = 8, "The method: [`method::SEND`], for instance. Its highest bit marks a response.";
        status: u16 = 16, "The status of the request, in a response; not used otherwise.";
        class_specific: u16 = 16, "Defined by the management class.";
        transaction_id: u64 = 64, "The number of the transaction: a response repeats that of its request.";
        attribute_id: u16 = 16, "The attribute; in [`CM_CLASS`], the kind of message.";
        reserved: u16 = 16, "Zero.";
        attribute_modifier: u32 = 32, "Selects one of several attributes that have the same ID.";
    }
}

/// The reason why the input is not a MAD, or not a CM message. Receivers drop and count such input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reject {
    /// The input does not have 256 bytes.
    #[error("not 256 bytes long")]
    Length,
    /// The base version of the MAD header is not 1.
    #[error("another base version than 1")]
    BaseVersion,
    /// The MAD has another management class than that of CM messages, or another version of it.
    #[error("not the management class of CM messages, or another version of it")]
    Class,
    /// The method is not Send, the only one that CM messages have.
    #[error("another method than send")]
    Method,
    /// No CM message has this attribute ID.
    #[error("an unknown attribute")]
    Attribute,
}

/// A MAD, read in place.
#[derive(Clone, Copy, Debug)]
pub struct Mad<'a> {
    /// The MAD header.
    pub header: &'a MadHeaderView,
    /// The 232 bytes after the header.
    pub data: &'a [u8; DATA_LEN],
}

/// Decodes the header of a MAD (IBTA 13.4.3).
///
/// # Errors
/// The input does not have 256 bytes, or has another base version than 1.
pub fn decode(octets: &[u8]) -> Result<Mad<'_>, Reject> {
    let (header, data) = view::<MadHeader>(octets).ok_or(Reject::Length)?;
    let data = data.try_into().map_err(|_| Reject::Length)?;
    if header.base_version() != 1 {
        return Err(Reject::BaseVersion);
    }
    Ok(Mad { header, data })
}

/// Encodes a MAD: its header and the 232 bytes after it.
pub fn encode(header: &MadHeader, data: &[u8; DATA_LEN]) -> [u8; MAD_LEN] {
    let mut octets = [0; MAD_LEN];
    octets[..MadHeader::LEN].copy_from_slice(&header.to_view().0);
    octets[MadHeader::LEN..].copy_from_slice(data);
    octets
}
