//! Two connected queue pairs of one device, and one thread that posts requests to the first queue pair and polls their
//! completions.

use anyhow::Result;
use polyverbs::{
    Batch, Completion, Cq, QpOptions, RemoteAddress, Sge,
    wr::{self, WorkRequest},
};

use crate::memory::plain_copy;
use crate::rig::Rig;
use crate::side::Side;

/// The largest number of requests that a batch may have: they are posted with one doorbell, and only the last one is
/// signaled.
pub const BATCH: usize = 32;

/// The `max_send_wr` and the `max_recv_wr` of both queue pairs.
const ROOM: u32 = 64;
/// Requests of at most this many bytes alternate between two sources and two targets. Longer ones use one source and one
/// target each, because two would need much memory.
const LONGEST_IN_TURN: u32 = 1 << 20;

/// Two connected queue pairs of one device, and the memory of their requests; the caller's thread posts and polls.
///
/// The sources and targets of all requests are in one memory region, that of the queue pair to which they are posted:
/// between two regions, requests of 64 KiB and more took up to three times as long on an AMD EPYC, while plain copies did
/// not.
pub struct Loopback {
    near: Side,
    slot: [Completion; 1],
    length: u32,
    turn: usize,
    /// Offsets in the memory of `near`: those of the two sources that requests use alternately, then those of the two
    /// targets.
    places: [[usize; 2]; 2],
    sources: [Sge; 2],
    targets: [RemoteAddress; 2],
    batch: Batch<'static>,
    _far: Side,
}

impl Loopback {
    /// Creates and connects two queue pairs of the device, for requests of `length` bytes each.
    ///
    /// # Errors
    /// There is too little memory, or the device refused to create or connect an object.
    pub fn new(rig: &Rig, length: u32) -> Result<Self> {
        let options = |cq: &Cq| Ok(QpOptions::rc(cq).max_send_wr(ROOM).max_recv_wr(ROOM));
        Self::with(rig, length, options)
    }

    /// Creates a loopback as [`new`](Self::new) does, but with queue pairs that support every operation which a linked
    /// extension adds to queue pairs.
    ///
    /// # Errors
    /// Those of [`new`](Self::new), or the linked extensions do not fit together.
    pub fn extended(rig: &Rig, length: u32) -> Result<Self> {
        Self::with(rig, length, |cq| rig.extended(cq))
    }

    fn with(rig: &Rig, length: u32, options: impl Fn(&Cq) -> Result<QpOptions>) -> Result<Self> {
        let size = (length as usize).next_multiple_of(8);
        let second = if length <= LONGEST_IN_TURN { size } else { 0 };
        let side = |length| Side::with(rig, length, rig.remote(), 2 * ROOM, &options);
        let (near, far) = (side(2 * (second + size))?, side(8)?);
        near.touch();
        near.connect(&far)?;
        let places = [[0, second], [second + size, 2 * second + size]];
        let [sources, targets] = places;
        let source = |place| near.region.sge(place, length);
        Ok(Self {
            slot: Default::default(),
            length,
            turn: 0,
            places,
            sources: [source(sources[0])?, source(sources[1])?],
            targets: targets.map(|place| near.region.remote(place as u64)),
            batch: Batch::with_capacity(BATCH),
            near,
            _far: far,
        })
    }

    /// Returns the number of bytes that each request reads or writes.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Posts an RDMA write of [`length`](Self::length) bytes and polls until it completes.
    ///
    /// # Errors
    /// The queue pair refused the request, or the request failed.
    #[inline]
    pub fn write(&mut self) -> Result<()> {
        let (source, target) = self.next_places();
        self.run(wr::Write::new(source, target).signaled(1))
    }

    /// Posts an RDMA read of [`length`](Self::length) bytes and polls until it completes.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    #[inline]
    pub fn read(&mut self) -> Result<()> {
        let (source, target) = self.next_places();
        self.run(wr::Read::new(source, target).signaled(1))
    }

    /// Posts a fetch-and-add of 1 and polls until the request completes. This must be a loopback for requests of 8
    /// bytes.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    #[inline]
    pub fn fetch_add(&mut self) -> Result<()> {
        let (source, target) = self.next_places();
        self.run(wr::FetchAdd::new(source, target, 1).signaled(1))
    }

    /// Posts a compare-and-swap and polls until the request completes. If `swaps` is true, the operation finds the
    /// expected 0 and writes 0; otherwise its comparison fails. This must be a loopback for requests of 8 bytes, and
    /// its memory must hold only zeros.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    #[inline]
    pub fn compare_swap(&mut self, swaps: bool) -> Result<()> {
        let (source, target) = self.next_places();
        let expected = if swaps { 0 } else { u64::MAX };
        self.run(wr::CompareSwap::new(source, target, expected, 0).signaled(1))
    }

    /// Posts `count` RDMA writes with one doorbell and polls until the last one completes, which alone is signaled. `count`
    /// is at most [`BATCH`].
    ///
    /// # Errors
    /// As [`write`](Self::write).
    #[inline]
    pub fn write_batch(&mut self, count: usize) -> Result<()> {
        for index in 1..=count {
            let (source, target) = self.next_places();
            let write = wr::Write::new(source, target);
            let is_last = index == count;
            let write = if is_last { write.signaled(1) } else { write };
            self.batch.push(write);
        }
        self.near.qp.post(&mut self.batch)?;
        self.near.complete(&mut self.slot)
    }

    /// Copies as many bytes as [`write`](Self::write) does, between the same addresses, with `memcpy` instead of a
    /// request.
    #[inline]
    #[allow(unsafe_code)]
    pub fn copy(&mut self) {
        let turn = self.next_turn();
        let [from, to] = self.places.map(|places| places[turn]);
        let length = self.length as usize;
        // SAFETY: only this loopback accesses the memory, and each of its methods polls its requests before it returns.
        unsafe { plain_copy(&self.near.memory, from, to, length) }
            .expect("places within the memory");
    }

    #[inline]
    fn run(&mut self, request: impl Into<WorkRequest<'static>>) -> Result<()> {
        self.near.post(request)?;
        self.near.complete(&mut self.slot)
    }

    #[inline]
    fn next_places(&mut self) -> (Sge, RemoteAddress) {
        let turn = self.next_turn();
        (self.sources[turn], self.targets[turn])
    }

    #[inline]
    fn next_turn(&mut self) -> usize {
        self.turn ^= 1;
        self.turn
    }
}
