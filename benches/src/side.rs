//! One side of a connection: a queue pair with its completion queue and memory.

use std::hint::spin_loop;
use std::thread::yield_now;

use anyhow::{Result, ensure};
use polyverbs::qp::{QpAttributes, QpState};
use polyverbs::{
    Access, Completion, Cq, Memory, Mr, Qp, QpOptions, connect_pair,
    wr::{ReceiveRequest, WorkRequest},
};

use crate::rig::{PEERS, Rig};

/// The pause in each round of a loop that polls until another thread has done something; the thread never sleeps in it.
#[derive(Default)]
pub struct Spin(u32);

impl Spin {
    /// The number of rounds after which the processor is yielded: they take longer than a thread with a processor of its
    /// own needs to respond.
    const ROUNDS: u32 = 1000;

    /// Pauses briefly; the loop calls it in each round. From the thousandth call on it yields the processor to other
    /// threads, because the awaited thread may need it.
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

/// One side of a connection: a queue pair, the completion queue of its sends and receives, and registered memory.
pub struct Side {
    /// The queue pair of this side.
    pub qp: Qp,
    /// The completion queue of the queue pair's sends and receives.
    pub cq: Cq,
    /// The memory region as which this side's `memory` is registered.
    pub region: Mr,
    /// The memory for the data of this side's requests.
    pub memory: Memory,
}

impl Side {
    /// Creates a side with `length` bytes of memory, registered with these access rights. `room` has the `max_send_wr` and
    /// then the `max_recv_wr` of its RC queue pair; the completion queue has an entry for each. The queue pair is not
    /// connected.
    ///
    /// # Errors
    /// There is too little memory, or the device refused to create an object.
    pub fn new(rig: &Rig, length: usize, access: Access, room: [u32; 2]) -> Result<Self> {
        let [sends, receives] = room;
        let options = |cq: &Cq| Ok(QpOptions::rc(cq).max_send_wr(sends).max_recv_wr(receives));
        Self::with(rig, length, access, sends + receives, options)
    }

    /// Creates a side with `length` bytes of memory, registered with these access rights, and a completion queue with `cqe`
    /// entries. `options` receives that completion queue and returns the options of the queue pair.
    ///
    /// # Errors
    /// Those of [`new`](Self::new), or `options` failed.
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

    /// Writes a zero to every page of the memory, so that the system allocates the pages now. Pages that were never written
    /// are all the same page of zeros, and reading them would be faster than reading memory.
    pub fn touch(&self) {
        for page in (0..self.memory.len()).step_by(4096) {
            let written = self.memory.write(page, &[0]);
            written.expect("a place within the memory");
        }
    }

    /// Connects this side's queue pair to that of another side in this process. Each side grants the other one RDMA
    /// reads, RDMA writes and atomics on its memory.
    ///
    /// # Errors
    /// A device refused a state change of its queue pair.
    pub fn connect(&self, other: &Self) -> Result<()> {
        Ok(connect_pair(&self.qp, &other.qp, PEERS).wait()?)
    }

    /// Posts a request to the send queue of this side's queue pair.
    ///
    /// # Errors
    /// The queue pair refused the request.
    #[inline]
    pub fn post<'a>(&self, request: impl Into<WorkRequest<'a>>) -> Result<()> {
        Ok(self.qp.post_one(request)?)
    }

    /// Posts a receive for a message of at most `size` bytes, which the device stores at the start of this side's
    /// memory.
    ///
    /// # Errors
    /// `size` exceeds the memory, or the queue pair refused the receive.
    pub fn receive(&self, size: u32) -> Result<()> {
        let room = self.region.sge(0, size)?;
        Ok(self.qp.post_receive(ReceiveRequest::new(0, room))?)
    }

    /// Polls the completion queue, without sleeping, until at least one send or receive has completed; returns the number
    /// of completions, which are stored in the first slots.
    ///
    /// # Errors
    /// The completion queue cannot be polled.
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

    /// Polls the completion queue until one send or receive has completed, and checks that this request succeeded.
    ///
    /// # Errors
    /// The request failed, or the completion queue cannot be polled.
    #[inline]
    pub fn complete(&self, slot: &mut [Completion; 1]) -> Result<()> {
        self.next(slot)?;
        check(&slot[0])
    }

    /// Moves the queue pair to the ERR state, which completes its outstanding requests in error, so that no thread
    /// waits for one of them any longer.
    pub fn hang_up(&self) {
        let error = QpAttributes::new().qp_state(QpState::Err);
        // A queue pair that refuses the state change has already failed.
        drop(self.qp.modify(error).wait());
    }
}

/// Returns `Ok` if the request of this completion succeeded.
///
/// # Errors
/// The request failed; the error names its status and opcode.
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
