//! Captures of RoCEv2, iWARP and RDS over both: dissected into fields, checked, and encoded again.
//!
//! | module | holds |
//! | --- | --- |
//! | [`file`](mod@file) | the packets of a pcap or pcapng file |
//! | [`form`] | a packet as fields, which serde writes and reads |
//! | [`Dissector`] | packets into that form, one after the other |
//! | [`encode`](mod@encode) | that form back into bytes |
//! | [`summary`] | counts |
//! | [`line`](mod@line) | a packet in one line |
//!
//! Every ICRC and CRC-32C is checked. Anything that cannot be parsed is a complaint of the packet at which that became
//! clear. The form of a packet has fields and payloads but no raw headers; checksums that were right are computed anew when
//! it is encoded. TCP streams are reassembled in whatever order their segments arrive, and an FPDU is shown in the packet
//! that completes it. IP packets are reassembled from their fragments, and shown in the fragment that completes them.
//!
//! An RDS connection is recognized by the port of its connection request, so the capture must include the beginning of the
//! connection.
#![forbid(unsafe_code)]

pub mod encode;
pub mod file;
pub mod form;
pub mod line;
pub mod summary;

mod assembly;
mod connection;
mod dissector;
mod fragments;
mod layers;
mod rds;
mod roce;

use std::io::Read;

pub use dissector::Dissector;
pub use encode::{EncodeError, encode};
pub use file::{CaptureFile, FileError};
pub use form::{Capture, Packet};
pub use line::line;
pub use summary::Summary;

/// Dissects a whole capture file. If the file has a defect, the result has the packets before it, and the defect in words.
///
/// # Errors
/// The format is unknown, or reading failed at the beginning.
pub fn dissect(file: impl Read + Send) -> Result<Capture, FileError> {
    let mut file = CaptureFile::new(file)?;
    let mut dissector = Dissector::new();
    let mut packets = Vec::new();
    let defect = loop {
        match file.next_packet() {
            Ok(Some(captured)) => packets.push(dissector.packet(&captured)),
            Ok(None) => break None,
            Err(error) => break Some(error.to_string()),
        }
    };
    let (unfinished, summary) = dissector.finish();
    Ok(Capture {
        packets,
        unfinished,
        summary,
        defect,
    })
}
