//! One end of a connection.

use std::hint::spin_loop;
use std::thread::yield_now;

use anyhow::{Result, ensure};
use polyverbs::qp::{QpAttributes, QpState};
use polyverbs::{
    Access, Completion, Cq, Memory, Mr, Qp, QpOptions, connect_pair,
    wr::{ReceiveRequest, WorkRequest},
};

use crate::rig::{PEERS, Rig};

/// A loop that waits for another thread without sleeping.
#[derive(Default)]
pub struct Spin(u32);

impl Spin {
    /// So many rounds take longer than another thread needs that runs on a processor of its own.
    const ROUNDS: u32 = 1000;

    /// Called in each round. After many rounds the awaited thread may need this processor, and gets it.
    #[inline]
    pub fn once(&mut self) {
        self.0 = self.0.saturating_add(1);
        if self.0 < Self::ROUNDS {
            spin_loop();
        } else {
            yield_now();
        }
    }
}

/// One end of a connection: a queue pair, its completion queue, and memory.
pub struct Side {
    /// The queue pair.
    pub qp: Qp,
    /// The queue on which its requests complete.
    pub cq: Cq,
    /// The memory, registered.
    pub region: Mr,
    /// The memory.
    pub memory: Memory,
}

impl Side {
    /// Makes an end with so many bytes of memory, and with room for so many sends and so many receives.
    ///
    /// # Errors
    /// Out of memory, or the device refused.
    pub fn new(rig: &Rig, length: usize, access: Access, room: [u32; 2]) -> Result<Self> {
        let [sends, receives] = room;
        let options = |cq: &Cq| Ok(QpOptions::rc(cq).max_send_wr(sends).max_recv_wr(receives));
        Self::with(rig, length, access, sends + receives, options)
    }

    /// Makes an end whose queue pair has these options, and whose completion queue has so many entries.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with(
        rig: &Rig,
        length: usize,
        access: Access,
        cqe: u32,
        options: impl FnOnce(&Cq) -> Result<QpOptions>,
    ) -> Result<Self> {
        let cq = rig.context.create_cq(cqe).wait()?;
        let qp = rig.pd.create_qp(options(&cq)?).wait()?;
        let (memory, region) = rig.memory(length, access)?;
        Ok(Self {
            qp,
            cq,
            region,
            memory,
        })
    }

    /// Writes zeros to every page of the memory, so that the system makes the pages now: before, it reads one page for all.
    pub fn touch(&self) {
        for page in (0..self.memory.len()).step_by(4096) {
            let written = self.memory.write(page, &[0]);
            written.expect("a place within the memory");
        }
    }

    /// Connects two ends of this process, each of which may access the other's memory.
    ///
    /// # Errors
    /// A device refused.
    pub fn connect(&self, other: &Self) -> Result<()> {
        Ok(connect_pair(&self.qp, &other.qp, PEERS).wait()?)
    }

    /// Posts a request.
    ///
    /// # Errors
    /// The queue pair refused it.
    #[inline]
    pub fn post<'a>(&self, request: impl Into<WorkRequest<'a>>) -> Result<()> {
        Ok(self.qp.post_one(request)?)
    }

    /// Posts a receive of this many bytes, at the start of the memory.
    ///
    /// # Errors
    /// The queue pair refused it.
    pub fn receive(&self, size: u32) -> Result<()> {
        let room = self.region.sge(0, size)?;
        Ok(self.qp.post_receive(ReceiveRequest::new(0, room))?)
    }

    /// Polls until a request completes, without sleeping; returns the number of completions.
    ///
    /// # Errors
    /// The queue cannot be polled.
    #[inline]
    pub fn next(&self, slots: &mut [Completion]) -> Result<usize> {
        let mut spin = Spin::default();
        loop {
            let found = self.cq.poll(slots)?.len();
            if found > 0 {
                return Ok(found);
            }
            spin.once();
        }
    }

    /// Polls until a request completes, and demands that it succeeded.
    ///
    /// # Errors
    /// It failed, or the queue cannot be polled.
    #[inline]
    pub fn complete(&self, slot: &mut [Completion; 1]) -> Result<()> {
        self.next(slot)?;
        check(&slot[0])
    }

    /// Flushes the queue pair, which ends what the other side waits for.
    pub fn hang_up(&self) {
        let error = QpAttributes::new().qp_state(QpState::Err);
        // A queue pair that refuses this has ended already.
        drop(self.qp.modify(error).wait());
    }
}

/// Demands that a request succeeded.
///
/// # Errors
/// It failed.
#[inline]
pub fn check(done: &Completion) -> Result<()> {
    ensure!(
        done.status.is_success(),
        "a request failed: {:?} ({:?})",
        done.status,
        done.opcode
    );
    Ok(())
}
