//! The traffic of devices, according to their capture.

use std::fs::File;
use std::path::Path;

use anyhow::Context;
use pcap_file::pcapng::{Block, PcapNgReader};

/// The bytes of all packets of the capture, headers included.
pub(crate) fn bytes(file: &Path) -> anyhow::Result<u64> {
    let name = || format!("the capture {}", file.display());
    let opened = File::open(file).with_context(name)?;
    if opened.metadata()?.len() == 0 {
        return Ok(0);
    }
    let mut reader = PcapNgReader::new(std::io::BufReader::new(opened)).with_context(name)?;
    let mut sum = 0;
    while let Some(block) = reader.next_block() {
        match block {
            Ok(Block::EnhancedPacket(packet)) => sum += u64::from(packet.original_len),
            Ok(_) => {}
            // A process that was killed leaves the last block unfinished.
            Err(_) => break,
        }
    }
    Ok(sum)
}
