//! Many connected pairs of QPs on one device: the memory that they occupy, and the cost of a write on one of them.

use anyhow::Result;
use polyverbs::{
    Completion, Cq, Memory, Mr, Qp, QpOptions, RemoteAddress, Sge, connect_pair,
    wr::{self, ReceiveRequest},
};
use polyverbs_benches::memory::resident;
use polyverbs_benches::rig::{PEERS, Rig};
use polyverbs_benches::side::{Spin, check};

use crate::misses::shuffled;

/// The `max_send_wr` and the `max_recv_wr` of each queue pair.
pub(crate) const SLOTS: u32 = 16;
/// The number of bytes that each request writes.
pub(crate) const LENGTH: u32 = 8;

/// On which of the connected pairs of QPs the next request is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// All requests are posted on the same pair of QPs.
    Hot,
    /// Requests are posted on each pair of QPs in turn, in the order in which the pairs were connected.
    RoundRobin,
    /// Requests are posted on each pair of QPs once, in a pseudo-random order of the pairs, then again in the same
    /// order.
    Random,
}

/// Many connected pairs of QPs of one device, `near[i]` with `far[i]`. All of them share one completion queue.
pub(crate) struct Crowd {
    near: Vec<Qp>,
    far: Vec<Qp>,
    order: Vec<u32>,
    at: usize,
    cq: Cq,
    completions: [Completion; 1],
    source: Sge,
    target: RemoteAddress,
    occupied: [Option<u64>; 2],
    _memory: Memory,
    _region: Mr,
}

impl Crowd {
    /// Creates and connects `pairs` pairs of QPs, each with room for [`SLOTS`] sends and as many receives, then posts a
    /// receive and a write on every QP.
    ///
    /// # Errors
    /// The device refused to create or connect an object, a write failed, or `pairs` does not fit into 32 bits.
    ///
    /// # Panics
    /// If `pairs` is 0.
    pub(crate) fn new(rig: &Rig, pairs: usize) -> Result<Self> {
        assert!(pairs > 0);
        let order = shuffled(u32::try_from(pairs)?);
        let (memory, region) = rig.memory(2 * 64, rig.remote())?;
        let cq = rig.context.create_cq(64).wait()?;
        let (near, far) = (Vec::with_capacity(pairs), Vec::with_capacity(pairs));
        let mut crowd = Self {
            near,
            far,
            order,
            at: 0,
            cq,
            completions: Default::default(),
            source: region.sge(0, LENGTH)?,
            target: region.remote(64),
            occupied: [None; 2],
            _memory: memory,
            _region: region,
        };
        let empty = resident();
        crowd.connect(rig, pairs)?;
        crowd.occupied[0] = since(empty);
        crowd.use_each()?;
        crowd.occupied[1] = since(empty);
        Ok(crowd)
    }

    /// Returns by how many bytes the resident memory of this process grew while the pairs were created and connected,
    /// before any request was posted; `None` where the system does not report it.
    pub(crate) fn occupied_unused(&self) -> Option<u64> {
        self.occupied[0]
    }

    /// Returns by how many bytes the resident memory of this process grew while the pairs were created and connected and a
    /// receive and a write were posted on every QP; `None` where the system does not report it.
    pub(crate) fn occupied(&self) -> Option<u64> {
        self.occupied[1]
    }

    /// Returns the number of connected pairs of QPs.
    pub(crate) fn pairs(&self) -> usize {
        self.near.len()
    }

    /// Posts an RDMA write of 8 bytes on the pair of QPs that `choice` selects next, and polls until the write
    /// completes.
    #[inline]
    pub(crate) fn write(&mut self, choice: Choice) -> Result<()> {
        let index = self.next(choice);
        Self::write_on(
            &self.near[index],
            &self.cq,
            &mut self.completions,
            self.source,
            self.target,
        )
    }

    #[inline]
    fn write_on(
        qp: &Qp,
        cq: &Cq,
        completions: &mut [Completion],
        source: Sge,
        target: RemoteAddress,
    ) -> Result<()> {
        qp.post_one(wr::Write::new(source, target).signaled(1))?;
        let mut spin = Spin::default();
        loop {
            if let Some(done) = cq.poll(completions)?.first() {
                return check(done);
            }
            spin.once();
        }
    }

    #[inline]
    fn next(&mut self, choice: Choice) -> usize {
        if choice == Choice::Hot {
            return self.near.len() / 2;
        }
        let at = self.at;
        self.at = if at + 1 == self.near.len() { 0 } else { at + 1 };
        if choice == Choice::RoundRobin {
            at
        } else {
            self.order[at] as usize
        }
    }

    fn connect(&mut self, rig: &Rig, pairs: usize) -> Result<()> {
        let options = || {
            QpOptions::rc(&self.cq)
                .max_send_wr(SLOTS)
                .max_recv_wr(SLOTS)
        };
        for _ in 0..pairs {
            let near = rig.pd.create_qp(options()).wait()?;
            let far = rig.pd.create_qp(options()).wait()?;
            connect_pair(&near, &far, PEERS).wait()?;
            self.near.push(near);
            self.far.push(far);
        }
        Ok(())
    }

    // Posts a receive and a write on every QP, so that the memory which a QP allocates on first use is counted.
    fn use_each(&mut self) -> Result<()> {
        let sink = self.source;
        for qp in self.near.iter().chain(&self.far) {
            qp.post_receive(ReceiveRequest::new(0, sink))?;
            Self::write_on(
                qp,
                &self.cq,
                &mut self.completions,
                self.source,
                self.target,
            )?;
        }
        Ok(())
    }
}

fn since(before: Option<u64>) -> Option<u64> {
    Some(resident()?.saturating_sub(before?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_reaches_a_pair_that_works() {
        let rig = Rig::new("ib0").unwrap();
        let mut crowd = Crowd::new(&rig, 3).unwrap();
        for choice in [Choice::Hot, Choice::RoundRobin, Choice::Random] {
            (0..7).for_each(|_| crowd.write(choice).unwrap());
        }
    }
}
