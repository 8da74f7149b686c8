//! Management datagrams, MADs (IBTA 13.4): 256 bytes each, the payload of a UD SEND Only packet to QP 1.
//!
//! [`decode`] separates header and data of a MAD. [`cm`] has the CM messages, and [`rdma_cm`] the header that the RDMA
//! connection manager puts in front of the private data of programs.

pub mod cm;
pub mod rdma_cm;

use crate::layout::{Header as _, header, view};

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

/// The method of a MAD that expects no answer by the MAD protocol; all CM messages have it.
pub const SEND_METHOD: u8 = 0x03;

header! {
    /// The header of every MAD (IBTA 13.4.3).
    MadHeader, MadHeaderView: 24 octets {
        base_version: u8 = 8, "Version of the MAD format: 1.";
        management_class: u8 = 8, "The management class, which says what kind of MAD this is: [`CM_CLASS`], for instance.";
        class_version: u8 = 8, "Version of the management class: 2 for [`CM_CLASS`].";
        method: u8 = 8, "The method: [`SEND_METHOD`], for instance. Its highest bit marks a response.";
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
