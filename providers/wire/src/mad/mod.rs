//! Management datagrams (IBTA 13.4): 256 octets, as the payload of a UD SEND Only to queue pair 1.
//!
//! [`decode`] takes one apart; [`cm`] has the messages of the connection manager, [`rdma_cm`] what the RDMA connection
//! manager puts in front of its users' private data.

pub mod cm;
pub mod rdma_cm;

use crate::layout::{Header as _, header, view};

/// Octets of every management datagram.
pub const MAD_LEN: usize = 256;

/// Octets behind the header.
pub const DATA_LEN: usize = MAD_LEN - MadHeader::LEN;

/// The queue pair of general services.
pub const GSI_QP: u32 = 1;

/// The queue key of general services (IBTA 10.2.4).
pub const GSI_Q_KEY: u32 = 0x8001_0000;

/// The class of communication management.
pub const CM_CLASS: u8 = 0x07;

/// The method of a message that is no question.
pub const SEND_METHOD: u8 = 0x03;

header! {
    /// What every management datagram begins with (IBTA 13.4.3).
    MadHeader, MadHeaderView: 24 octets {
        base_version: u8 = 8, "1.";
        management_class: u8 = 8, "Which messages, for instance [`CM_CLASS`].";
        class_version: u8 = 8, "Version of the class: 2 of [`CM_CLASS`].";
        method: u8 = 8, "For instance [`SEND_METHOD`]; the highest bit says that this is an answer.";
        status: u16 = 16, "Of an answer.";
        class_specific: u16 = 16, "Of the class.";
        transaction_id: u64 = 64, "Tells which question an answer belongs to.";
        attribute_id: u16 = 16, "What the datagram is about; of [`CM_CLASS`], which message it is.";
        reserved: u16 = 16, "Zero.";
        attribute_modifier: u32 = 32, "Which of several.";
    }
}

/// Why octets are no management datagram, or none of the connection manager. Each is dropped and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reject {
    /// Not of 256 octets.
    #[error("not of 256 octets")]
    Length,
    /// The base version is not 1.
    #[error("another base version")]
    BaseVersion,
    /// Of another class, or of another version of it.
    #[error("another management class or version of it")]
    Class,
    /// Connection managers only send.
    #[error("another method than send")]
    Method,
    /// No message has this attribute.
    #[error("an unknown attribute")]
    Attribute,
}

/// A management datagram, looked at in place.
#[derive(Clone, Copy, Debug)]
pub struct Mad<'a> {
    /// The header.
    pub header: &'a MadHeaderView,
    /// What is behind it.
    pub data: &'a [u8; DATA_LEN],
}

/// Takes a management datagram apart (IBTA 13.4.3).
///
/// # Errors
/// Another length or base version.
pub fn decode(octets: &[u8]) -> Result<Mad<'_>, Reject> {
    let (header, data) = view::<MadHeader>(octets).ok_or(Reject::Length)?;
    let data = data.try_into().map_err(|_| Reject::Length)?;
    if header.base_version() != 1 {
        return Err(Reject::BaseVersion);
    }
    Ok(Mad { header, data })
}

/// Puts a management datagram together.
pub fn encode(header: &MadHeader, data: &[u8; DATA_LEN]) -> [u8; MAD_LEN] {
    let mut octets = [0; MAD_LEN];
    octets[..MadHeader::LEN].copy_from_slice(&header.to_view().0);
    octets[MadHeader::LEN..].copy_from_slice(data);
    octets
}
