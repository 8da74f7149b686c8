//! Two connected queue pairs of a device, and one thread that posts to one of them and polls.

use anyhow::Result;
use polyverbs::{
    Batch, Completion, Cq, QpOptions, RemoteAddress, Sge,
    wr::{self, WorkRequest},
};

use crate::memory::plain_copy;
use crate::rig::Rig;
use crate::side::Side;

/// The most requests of a batch: one doorbell, the last one signaled.
pub const BATCH: usize = 32;

/// Room of each queue.
const ROOM: u32 = 64;
/// Requests up to this length use two places in turn, longer ones a single place: memory for two may be much.
const LONGEST_IN_TURN: u32 = 1 << 20;

/// Two connected ends. Sources and targets of all requests are in one region, that of the end which posts them: between two
/// regions, copies of 64 KiB and more took up to three times as long on an AMD EPYC, and plain copies did not.
pub struct Loopback {
    near: Side,
    slot: [Completion; 1],
    length: u32,
    turn: usize,
    /// The places of the sources of consecutive requests, and of their targets.
    places: [[usize; 2]; 2],
    sources: [Sge; 2],
    targets: [RemoteAddress; 2],
    batch: Batch<'static>,
    _far: Side,
}

impl Loopback {
    /// Connects a pair for requests of `length` bytes.
    ///
    /// # Errors
    /// The device refused.
    pub fn new(rig: &Rig, length: u32) -> Result<Self> {
        let options = |cq: &Cq| Ok(QpOptions::rc(cq).max_send_wr(ROOM).max_recv_wr(ROOM));
        Self::with(rig, length, options)
    }

    /// Connects a pair whose queue pairs have every operation that extensions add.
    ///
    /// # Errors
    /// The device refused.
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

    /// Bytes of a request.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Posts and polls a write.
    ///
    /// # Errors
    /// It was refused, or it failed.
    #[inline]
    pub fn write(&mut self) -> Result<()> {
        let (source, target) = self.next_places();
        self.run(wr::Write::new(source, target).signaled(1))
    }

    /// Posts and polls a read.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    #[inline]
    pub fn read(&mut self) -> Result<()> {
        let (source, target) = self.next_places();
        self.run(wr::Read::new(source, target).signaled(1))
    }

    /// Posts and polls a fetch-and-add. For loopbacks of 8 bytes.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    #[inline]
    pub fn fetch_add(&mut self) -> Result<()> {
        let (source, target) = self.next_places();
        self.run(wr::FetchAdd::new(source, target, 1).signaled(1))
    }

    /// Posts and polls a compare-and-swap that swaps 0 for 0, or whose comparison fails. For loopbacks of 8 bytes in which nothing
    /// else is written.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    #[inline]
    pub fn compare_swap(&mut self, swaps: bool) -> Result<()> {
        let (source, target) = self.next_places();
        let expected = if swaps { 0 } else { u64::MAX };
        self.run(wr::CompareSwap::new(source, target, expected, 0).signaled(1))
    }

    /// Posts a batch of so many writes with one doorbell, and polls the last write, which is signaled.
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

    /// Copies the bytes of the next write with a plain copy.
    #[inline]
    #[allow(unsafe_code)]
    pub fn copy(&mut self) {
        let turn = self.next_turn();
        let [from, to] = self.places.map(|places| places[turn]);
        let length = self.length as usize;
        // SAFETY: only this loopback knows the memory, and each of its requests was polled before it returned.
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
