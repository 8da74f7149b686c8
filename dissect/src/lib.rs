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
//! Every ICRC and CRC-32C is checked, and whatever cannot be parsed is a complaint of the packet where that showed. A form
//! holds fields and payloads but no raw headers; correct checksums are computed anew when it is encoded. TCP streams are
//! reassembled whatever the order of their segments, and an FPDU is shown in the packet that completes it. IP packets are put
//! together from their fragments, and shown in the fragment that completes them.
//!
//! RDS is found by the port that a connection was made with, so that the capture has to have its beginning.
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

/// Dissects a whole file, or the part of it before a defect.
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
