//! Registered memory in slots of one fragment with its header, or of less, for what the paths of a node send and receive.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use polyverbs::{Access, Memory, Mr, Pd, Sge, VerbError};
use polyverbs_rds_wire::{FRAGMENT, HEADER};

use crate::protocol::Fragment;

/// Slots that are registered at one time.
const CHUNK: usize = 64;

/// Bytes behind the header that a short slot has: with it, four cache lines.
const SHORT: usize = 256 - HEADER;

/// See the [module](self).
pub(crate) struct Pool {
    pd: Pd,
    free: Mutex<Vec<Place>>,
    short: Mutex<Vec<Place>>,
}

/// Slots of one length.
struct Chunk {
    memory: Memory,
    region: Mr,
    /// Bytes behind the header.
    room: usize,
    /// The number of slots in use.
    used: AtomicUsize,
}

struct Place {
    chunk: Arc<Chunk>,
    offset: usize,
}

/// A slot that somebody has; dropped, it is free again.
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

    /// A free slot for so many bytes behind the header, a fragment at most; where there is none, memory is registered.
    ///
    /// # Errors
    /// There is no memory, or it cannot be registered.
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
        // Whole cache lines.
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
        free.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.place.as_ref().expect("it is taken when it is dropped")
    }

    /// The whole slot, to be received into.
    pub(crate) fn room(&self) -> Sge {
        self.sge(self.place().chunk.room)
    }

    /// The header and so many bytes behind it in a slot that is no longer than it must be: many that wait take no more memory than
    /// what they say.
    pub(crate) fn shortened(self, length: usize) -> Self {
        // Of a header only nothing is kept.
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

    /// The header and so many bytes behind it.
    pub(crate) fn sge(&self, length: usize) -> Sge {
        let place = self.place();
        let length = (HEADER + length) as u32;
        let sge = place.chunk.region.sge(place.offset, length);
        sge.expect("a slot is as long as a header and a fragment")
    }

    pub(crate) fn write_header(&self, header: &[u8; HEADER]) {
        self.write_at(0, header);
    }

    pub(crate) fn header(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        self.read_at(0, &mut header);
        header
    }

    /// Bytes behind the header, from this one on.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        self.write_at(HEADER + offset, bytes);
    }

    /// Bytes behind the header, from this one on.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        self.read_at(HEADER + offset, into);
    }

    fn write_at(&self, offset: usize, bytes: &[u8]) {
        let place = self.place();
        let written = place.chunk.memory.write(place.offset + offset, bytes);
        written.expect("no more than a slot has");
    }

    fn read_at(&self, offset: usize, into: &mut [u8]) {
        let place = self.place();
        let read = place.chunk.memory.read(place.offset + offset, into);
        read.expect("no more than a slot has");
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some(place) = self.place.take() else {
            return;
        };
        let is_unused = place.chunk.used.fetch_sub(1, Ordering::Relaxed) == 1;
        let mut free = self.pool.free(place.chunk.room);
        // Where enough others are free, all of its slots go, and with them its memory: here, when the lock has been given back.
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
