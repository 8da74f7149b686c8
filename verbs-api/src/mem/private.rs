//! Memory with local rights only, cut into buffers that travel with requests and return with completions.
// Hands out exclusive slices over slots of an allocation.
#![allow(unsafe_code)]

use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use super::{Allocation, Loan, Sge, take_back_into};
use crate::ids::LKey;
use crate::lock::Mutex;

struct Pool {
    allocation: Arc<Allocation>,
    buffer_size: usize,
    free: Mutex<Vec<u32>>,
    registration: OnceLock<Registration>,
}

struct Registration {
    lkey: LKey,
    // Keeps the region registered while a buffer lives.
    _region: Box<dyn Send + Sync>,
}

/// A pool of buffers of one size in one memory region that has local rights only. A clone refers to the same pool.
///
/// [`Pd::register_buffers`](crate::Pd::register_buffers) makes one.
///
/// ```no_run
/// # fn example(pd: &verbs_api::Pd, qp: &verbs_api::Qp, cq: &verbs_api::Cq)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// let pool = pd.register_buffers(16, 4096).wait()?;
/// while let Some(buffer) = pool.take() {
///     qp.post_receive(buffer)?;
/// }
/// let done = cq.next().wait()?.success()?;
/// println!("{:?} has come", done.buffer()); // dropping `done` gives the buffer back
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct BufferPool {
    pool: Arc<Pool>,
}

impl BufferPool {
    pub(crate) fn new(count: u32, buffer_size: usize) -> Option<Self> {
        let allocation = Arc::new(Allocation::zeroed(
            buffer_size.checked_mul(count as usize)?,
        )?);
        let free = Mutex::new((0..count).rev().collect());
        Some(Self {
            pool: Arc::new(Pool {
                allocation,
                buffer_size,
                free,
                registration: OnceLock::new(),
            }),
        })
    }

    pub(crate) fn allocation(&self) -> &Arc<Allocation> {
        &self.pool.allocation
    }

    pub(crate) fn registered(&self, lkey: LKey, region: Box<dyn Send + Sync>) {
        let _ = self.pool.registration.set(Registration {
            lkey,
            _region: region,
        });
    }

    /// Takes a buffer, whose length is its full size, for exclusive use; `None` while all are taken.
    pub fn take(&self) -> Option<Buffer> {
        let index = self.pool.free.lock().pop()?;
        Some(Buffer {
            pool: Arc::clone(&self.pool),
            index,
            length: self.pool.buffer_size as u32,
        })
    }

    /// Returns how many buffers can be taken now.
    pub fn available(&self) -> usize {
        self.pool.free.lock().len()
    }

    /// Returns the size of each buffer in bytes.
    pub fn buffer_size(&self) -> usize {
        self.pool.buffer_size
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("buffer_size", &self.pool.buffer_size)
            .finish_non_exhaustive()
    }
}

/// A buffer of a pool, which peers cannot access: an ordinary slice while the program holds it, and the device's while it
/// is posted.
///
/// ```no_run
/// # fn example(pool: &verbs_api::BufferPool, qp: &verbs_api::Qp, cq: &verbs_api::Cq)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::wr;
/// let mut buffer = pool.take().ok_or("every buffer is taken")?;
/// buffer[..5].copy_from_slice(b"hello");
/// buffer.set_len(5);
/// qp.post_one(wr::Send::new(buffer).signaled(1))?;
/// let mut done = cq.next().wait()?;
/// let again = done.take_buffers().next(); // the same buffer, for the next message
/// # Ok(())
/// # }
/// ```
///
/// Dropping it gives it back to its pool.
///
/// ```compile_fail
/// fn after_post(batch: &mut verbs_api::Batch<'_>, mut buffer: verbs_api::Buffer) {
///     batch.push(verbs_api::wr::Send::new(buffer));
///     buffer[0] = 1; // handed over: the program no longer holds it
/// }
/// ```
pub struct Buffer {
    pool: Arc<Pool>,
    index: u32,
    length: u32,
}

impl Buffer {
    /// Sets the length of the buffer to `length` bytes, or to its full size if that is less.
    pub fn set_len(&mut self, length: usize) {
        self.length = length.min(self.pool.buffer_size) as u32;
    }

    /// Returns the full size of the buffer in bytes, whatever its length.
    pub fn capacity(&self) -> usize {
        self.pool.buffer_size
    }

    pub(crate) fn sge(&self) -> Sge {
        let lkey = self
            .pool
            .registration
            .get()
            .map_or(LKey::new(0), |registration| registration.lkey);
        Sge::new(self.start().expose_provenance() as u64, self.length, lkey)
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: `index` is below the number of buffers of the allocation.
        unsafe {
            self.pool
                .allocation
                .as_ptr()
                .add(self.index as usize * self.pool.buffer_size)
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the slot belongs to this buffer alone: `index` left the free list, and the device accesses it only while
        // the buffer is posted, when no `Buffer` for it is reachable.
        unsafe { std::slice::from_raw_parts(self.start(), self.length as usize) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.length as usize) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.free.lock().push(self.index);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("index", &self.index)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

/// The buffers that a completion returns: those of its own request first, then those of the unsignaled requests that it
/// retires.
#[derive(Debug, Default)]
pub struct Buffers {
    first: First,
    // Nearly always none: as a pointer it keeps a completion within one cache line, and an empty one all zeros. Once
    // allocated it stays, so that a slot that is used again need not allocate.
    more: Option<Box<More>>,
}

// The loan from the provider until the completion is handed out, its buffers from then on.
#[derive(Debug)]
enum First {
    Loan(Loan),
    Buffer(Buffer),
}

impl Default for First {
    fn default() -> Self {
        Self::Loan(Loan::NONE)
    }
}

#[derive(Debug, Default)]
struct More(Vec<Buffer>);

impl Buffers {
    /// Returns the number of buffers in the collection.
    pub fn len(&self) -> usize {
        let more = self.more.as_ref().map_or(0, |more| more.0.len());
        usize::from(!self.is_empty()) + more
    }

    /// Whether there are no buffers in the collection.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// Returns the first buffer; `None` if there are none.
    pub fn first(&self) -> Option<&Buffer> {
        match &self.first {
            First::Buffer(buffer) => Some(buffer),
            First::Loan(_) => None,
        }
    }

    /// Removes all buffers and returns them.
    pub fn take(&mut self) -> impl Iterator<Item = Buffer> + '_ {
        let first = self.take_first();
        let more = self.more.iter_mut().flat_map(|more| more.0.drain(..));
        first.into_iter().chain(more)
    }

    pub(crate) fn take_first(&mut self) -> Option<Buffer> {
        match mem::take(&mut self.first) {
            First::Buffer(buffer) => Some(buffer),
            First::Loan(_) => None,
        }
    }

    pub(crate) fn push(&mut self, buffer: Buffer) {
        if self.is_empty() {
            self.first = First::Buffer(buffer);
        } else {
            self.more.get_or_insert_default().0.push(buffer);
        }
    }

    #[inline]
    pub(crate) fn set_loan(&mut self, loan: Loan) {
        self.first = First::Loan(loan);
    }

    /// Exchanges the loan for its buffers. Buffers of an earlier completion that are still here return to their pools.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if !matches!((&self.first, &self.more), (First::Loan(Loan::NONE), None)) {
            self.settle_all();
        }
    }

    fn settle_all(&mut self) {
        let loan = match mem::take(&mut self.first) {
            First::Loan(loan) => loan,
            First::Buffer(_) => Loan::NONE,
        };
        if let Some(more) = &mut self.more {
            more.0.clear();
        }
        take_back_into(loan, self);
    }
}

impl From<Buffer> for Buffers {
    fn from(buffer: Buffer) -> Self {
        Self {
            first: First::Buffer(buffer),
            more: None,
        }
    }
}

impl FromIterator<Buffer> for Buffers {
    fn from_iter<I: IntoIterator<Item = Buffer>>(buffers: I) -> Self {
        let mut all = Self::default();
        buffers.into_iter().for_each(|buffer| all.push(buffer));
        all
    }
}
