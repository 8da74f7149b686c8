//! Registered memory for the sends and receives of all paths of a node. It is divided into slots, each with room for a
//! header and one fragment, or a short payload.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};

use polyverbs::provider::Mutex;
use polyverbs::{Access, Memory, Mr, Pd, Sge, VerbError};
use polyverbs_wire::rds::{FRAGMENT, HEADER};

use crate::protocol::Fragment;

/// The number of slots that are allocated and registered together, as one MR.
const CHUNK: usize = 64;

/// Payload bytes of a short slot: with its header it takes four cache lines.
const SHORT: usize = 256 - HEADER;

/// A pool of slots of registered memory, for sends and receives, that grows on demand.
pub(crate) struct Pool {
    pd: Pd,
    free: Mutex<Vec<Place>>,
    short: Mutex<Vec<Place>>,
}

/// One registered memory region, divided into slots of one length.
struct Chunk {
    memory: Memory,
    region: Mr,
    /// The payload bytes that each slot has room for.
    room: usize,
    /// The number of its slots that are in use.
    used: AtomicUsize,
}

struct Place {
    chunk: Arc<Chunk>,
    offset: usize,
}

/// A slot that is in use. Dropping it returns it to its pool.
pub(crate) struct Slot {
    place: Option<Place>,
    pool: Arc<Pool>,
}

impl Pool {
    pub(crate) fn new(pd: &Pd) -> Arc<Self> {
        Arc::new(Self {
            pd: pd.clone(),
            free: Mutex::new(Vec::new()),
            short: Mutex::new(Vec::new()),
        })
    }

    /// Takes a free slot with room for `length` bytes of payload, at most one fragment. If no slot is free, allocates and
    /// registers further ones.
    ///
    /// # Errors
    /// There is no memory, or the device cannot register it.
    pub(crate) fn take(self: &Arc<Self>, length: usize) -> Result<Slot, VerbError> {
        let room = match length <= SHORT {
            true => SHORT,
            false => FRAGMENT,
        };
        let free = self.free(room).pop();
        let place = match free {
            Some(place) => place.taken(),
            None => self.grow(room)?,
        };
        Ok(Slot {
            place: Some(place),
            pool: Arc::clone(self),
        })
    }

    fn grow(&self, room: usize) -> Result<Place, VerbError> {
        // Each slot begins at a cache line.
        let stride = (HEADER + room).next_multiple_of(64);
        let memory = Memory::zeroed(CHUNK * stride).map_err(|_| VerbError::Resources("memory"))?;
        let region = self.pd.register(&memory, Access::LOCAL_WRITE).wait()?;
        let chunk = Arc::new(Chunk {
            memory,
            region,
            room,
            used: AtomicUsize::new(1),
        });
        let mut places = (0..CHUNK).map(|number| Place {
            chunk: Arc::clone(&chunk),
            offset: number * stride,
        });
        let first = places.next().ok_or(VerbError::Resources("memory"))?;
        self.free(room).extend(places);
        Ok(first)
    }

    fn free(&self, room: usize) -> MutexGuard<'_, Vec<Place>> {
        let free = match room {
            SHORT => &self.short,
            _ => &self.free,
        };
        free.lock()
    }
}

impl Place {
    fn taken(self) -> Self {
        self.chunk.used.fetch_add(1, Ordering::Relaxed);
        self
    }
}

impl Slot {
    fn place(&self) -> &Place {
        self.place.as_ref().expect("only `drop` takes the place")
    }

    /// An SGE of the whole slot, for a receive work request.
    pub(crate) fn room(&self) -> Sge {
        self.sge(self.place().chunk.room)
    }

    /// Moves the header and the `length` bytes of payload to a short slot if they fit there, so that messages that wait for
    /// a long time take little memory. Returns the slot unchanged otherwise.
    pub(crate) fn shortened(self, length: usize) -> Self {
        // A message without payload keeps no slot, so nothing is saved.
        if !(1..=SHORT).contains(&length) {
            return self;
        }
        let Ok(short) = self.pool.take(length) else {
            return self;
        };
        let mut bytes = [0; HEADER + SHORT];
        let bytes = &mut bytes[..HEADER + length];
        self.read_at(0, bytes);
        short.write_at(0, bytes);
        short
    }

    /// An SGE of the header and `length` bytes of payload, for a send.
    pub(crate) fn sge(&self, length: usize) -> Sge {
        let place = self.place();
        let length = (HEADER + length) as u32;
        let sge = place.chunk.region.sge(place.offset, length);
        sge.expect("header and payload fit into a slot")
    }

    pub(crate) fn write_header(&self, header: &[u8; HEADER]) {
        self.write_at(0, header);
    }

    pub(crate) fn header(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        self.read_at(0, &mut header);
        header
    }

    /// Copies bytes into the payload, beginning at this offset in it.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        self.write_at(HEADER + offset, bytes);
    }

    /// Copies bytes out of the payload, beginning at this offset in it.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        self.read_at(HEADER + offset, into);
    }

    fn write_at(&self, offset: usize, bytes: &[u8]) {
        let place = self.place();
        let written = place.chunk.memory.write(place.offset + offset, bytes);
        written.expect("the range lies within the slot");
    }

    fn read_at(&self, offset: usize, into: &mut [u8]) {
        let place = self.place();
        let read = place.chunk.memory.read(place.offset + offset, into);
        read.expect("the range lies within the slot");
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some(place) = self.place.take() else {
            return;
        };
        let is_unused = place.chunk.used.fetch_sub(1, Ordering::Relaxed) == 1;
        let mut free = self.pool.free(place.chunk.room);
        // If many other slots are free, all slots of this chunk are removed, which frees its memory. `gone` is dropped last,
        // after the lock is released.
        let gone: Vec<_> = match is_unused && free.len() >= 4 * CHUNK {
            true => {
                let chunk = &place.chunk;
                free.extract_if(.., |one| Arc::ptr_eq(&one.chunk, chunk))
                    .collect()
            }
            false => Vec::new(),
        };
        match (gone.is_empty(), free.len()) {
            (true, _) => free.push(place),
            (false, left) => free.shrink_to(2 * left),
        }
        drop(free);
    }
}

impl Fragment for Slot {
    fn copy_to(&self, into: &mut [u8]) {
        self.read(0, into);
    }

    fn held(&self) -> usize {
        HEADER + self.place().chunk.room
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot at {}", self.place().offset)
    }
}

#[cfg(test)]
mod tests {
    use polyverbs::Requirements;
    use polyverbs::emulated::{self, EmulatedOptions};

    use super::*;

    #[test]
    fn memory_of_unused_slots_is_freed() {
        let device = emulated::device("ib0", &EmulatedOptions::default()).unwrap();
        let context = device.open(&Requirements::new()).unwrap();
        let pool = Pool::new(&context.alloc_pd().wait().unwrap());
        for length in [SHORT, FRAGMENT] {
            let take = |_| pool.take(length).unwrap();
            let taken: Vec<_> = (0..100 * CHUNK).map(take).collect();
            let of_each_chunk = taken.iter().step_by(CHUNK);
            let chunks: Vec<_> = of_each_chunk
                .map(|slot| Arc::downgrade(&slot.place().chunk))
                .collect();
            drop(taken);
            let left = chunks.iter().filter(|chunk| chunk.strong_count() > 0);
            assert!(left.count() <= 5, "of 100 chunks");
            assert!(pool.free(length).capacity() <= 20 * CHUNK);
        }
    }
}
