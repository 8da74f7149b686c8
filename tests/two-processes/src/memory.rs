//! Memory of which both processes have a copy: each side sends its changes to the other.
// This module reads and writes registered memory.
#![allow(unsafe_code)]

use std::ptr::with_exposed_provenance_mut;

use serde::{Deserialize, Serialize};
use verbs_api::PageList;
use verbs_api::memory::Span;
use verbs_api::provider::RegionMemory;

/// Bytes that are compared and sent together.
const BLOCK: usize = 256;

/// Bytes of a region that have changed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Change {
    pub(crate) region: u32,
    offset: usize,
    octets: Vec<u8>,
}

/// The memory of a region, and the content that the other process knows.
pub(crate) struct Mirror {
    region: u32,
    memory: RegionMemory,
    known: Vec<u8>,
}

impl Mirror {
    /// Mirrors memory that the other process assumes to be zeroed.
    pub(crate) fn new(region: u32, memory: RegionMemory) -> Self {
        let known = vec![0; memory.len()];
        Self {
            region,
            memory,
            known,
        }
    }

    fn span(&self) -> Span<'_> {
        // SAFETY: the library owns the region, and `memory` keeps it; the stand-in takes no private memory, so every
        // access is a copy.
        unsafe {
            Span::new(
                with_exposed_provenance_mut(self.memory.address()),
                self.memory.len(),
            )
        }
    }

    /// The changes since the last ones were sent.
    pub(crate) fn changes(&mut self) -> Vec<Change> {
        let mut now = vec![0; self.known.len()];
        self.span().read(&mut now);
        let blocks = now.chunks(BLOCK).zip(self.known.chunks(BLOCK)).enumerate();
        let changes = blocks
            .filter(|(_, (now, known))| now != known)
            .map(|(at, (now, _))| Change {
                region: self.region,
                offset: at * BLOCK,
                octets: now.to_vec(),
            })
            .collect();
        self.known = now;
        changes
    }

    /// Applies a change of the other process.
    pub(crate) fn take(&mut self, change: &Change) {
        let Change { offset, octets, .. } = change;
        self.span().sub(*offset, octets.len()).write(octets);
        if let Some(known) = self.known.get_mut(*offset..*offset + octets.len()) {
            known.copy_from_slice(octets);
        }
    }
}

/// The bytes that a page list maps.
pub(crate) fn octets_of(pages: &PageList) -> Vec<u8> {
    let mut octets = vec![0; pages.len() as usize];
    let mut at = 0;
    while let Some((address, length)) = pages.locate(at) {
        let start = with_exposed_provenance_mut(address as usize);
        // SAFETY: a page list keeps the memory that it maps, which is exposed, so every access is a copy.
        let span = unsafe { Span::new(start, length as usize) };
        span.read(&mut octets[at as usize..]);
        at += length;
    }
    octets
}
