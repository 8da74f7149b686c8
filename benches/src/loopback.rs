//! Two connected queue pairs, and one thread that posts to one of them and polls.

use polyverbs::{
    Batch, Completion, Cq, Memory, Mr, Qp, QpOptions, RemoteAddress, Sge, connect_pair,
    wr::{self, WorkRequest},
};

use crate::Outcome;
use crate::memory::plain_copy;
use crate::rig::{PEERS, REMOTE, Rig};

/// Requests of a batch: one doorbell, the last one signaled.
pub const BATCH: usize = 32;

/// The number of places in memory that consecutive requests use in turn, for the source and for the target.
const PLACES: usize = 2;

/// Two connected queue pairs on one completion queue, and one region that both ends use.
pub struct Loopback {
    near: Qp,
    cq: Cq,
    completions: [Completion; 1],
    memory: Memory,
    length: u32,
    turn: usize,
    sources: [Sge; PLACES],
    targets: [RemoteAddress; PLACES],
    batch: Batch<'static>,
    _far: Qp,
    _region: Mr,
}

impl Loopback {
    /// Connects a pair for requests of `length` bytes.
    ///
    /// # Errors
    /// The device refused.
    pub fn new(rig: &Rig, length: u32) -> Outcome<Self> {
        Self::with(rig, length, |_, cq| Ok(QpOptions::rc(cq)))
    }

    /// Connects a pair whose queue pairs have every operation that extensions add.
    ///
    /// # Errors
    /// The device refused.
    pub fn extended(rig: &Rig, length: u32) -> Outcome<Self> {
        Self::with(rig, length, Rig::extended)
    }

    fn with(
        rig: &Rig,
        length: u32,
        options: impl FnOnce(&Rig, &Cq) -> Outcome<QpOptions>,
    ) -> Outcome<Self> {
        let cq = rig.context.create_cq(256).wait()?;
        let options = options(rig, &cq)?;
        let near = rig.pd.create_qp(options.clone()).wait()?;
        let far = rig.pd.create_qp(options).wait()?;
        connect_pair(&near, &far, PEERS).wait()?;
        let size = length as usize;
        let (memory, region) = rig.memory(2 * PLACES * size.next_multiple_of(8), REMOTE)?;
        let source = |turn| region.sge(turn * size, length);
        Ok(Self {
            near,
            cq,
            completions: Default::default(),
            memory,
            length,
            turn: 0,
            sources: [source(0)?, source(1)?],
            targets: [0, 1].map(|turn| region.remote(((PLACES + turn) * size) as u64)),
            batch: Batch::with_capacity(BATCH),
            _far: far,
            _region: region,
        })
    }

    /// Posts and polls a write.
    #[inline]
    pub fn write(&mut self) {
        let (source, target) = self.places();
        self.run(wr::Write::new(source, target).signaled(1));
    }

    /// Posts and polls a read.
    #[inline]
    pub fn read(&mut self) {
        let (source, target) = self.places();
        self.run(wr::Read::new(source, target).signaled(1));
    }

    /// Posts and polls a compare-and-swap whose comparison fails. For loopbacks of 8 bytes.
    #[inline]
    pub fn compare_swap(&mut self) {
        let (source, target) = self.places();
        self.run(wr::CompareSwap::new(source, target, u64::MAX, 0).signaled(1));
    }

    /// Posts and polls a compare-and-swap that swaps. For loopbacks of 8 bytes.
    #[inline]
    pub fn compare_swap_taken(&mut self) {
        let (source, target) = self.places();
        self.run(wr::CompareSwap::new(source, target, 0, 0).signaled(1));
    }

    /// Posts a batch of writes with one doorbell, and polls the last write, which is signaled.
    #[inline]
    pub fn write_batch(&mut self) {
        for index in 1..=BATCH {
            let (source, target) = self.places();
            let write = wr::Write::new(source, target);
            let last = index == BATCH;
            self.batch
                .push(if last { write.signaled(1) } else { write });
        }
        self.near
            .post(&mut self.batch)
            .expect("writes within the region");
        self.poll();
    }

    /// Copies the bytes of the next write with a plain copy.
    #[inline]
    #[allow(unsafe_code)]
    pub fn copy(&mut self) {
        let size = self.length as usize;
        let turn = self.next_turn();
        let (from, to) = (turn * size, (PLACES + turn) * size);
        // SAFETY: only this loopback knows the memory, and each of its requests was polled before it returned.
        unsafe { plain_copy(&self.memory, from, to, size) }.expect("places within the memory");
    }

    #[inline]
    fn run(&mut self, request: impl Into<WorkRequest<'static>>) {
        self.near
            .post_one(request)
            .expect("a request within the region");
        self.poll();
    }

    #[inline]
    fn poll(&mut self) {
        loop {
            let done = self
                .cq
                .poll(&mut self.completions)
                .expect("a queue that does not overrun");
            if let Some(done) = done.first() {
                assert!(done.status.is_success());
                return;
            }
            std::hint::spin_loop();
        }
    }

    #[inline]
    fn places(&mut self) -> (Sge, RemoteAddress) {
        let turn = self.next_turn();
        (self.sources[turn], self.targets[turn])
    }

    #[inline]
    fn next_turn(&mut self) -> usize {
        self.turn = (self.turn + 1) % PLACES;
        self.turn
    }
}
