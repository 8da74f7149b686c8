//! Two connected queue pairs of one device, each with a context of its own and memory that the other may access.

use std::hint::spin_loop;
use std::thread::yield_now;

use polyverbs::qp::{QpAttributes, QpState};
use polyverbs::{
    Access, Completion, Context, Cq, Device, Memory, Mr, Operations, PathOptions, Qp, QpOptions,
    RemoteAddress, Requirements,
    capability::BaselineGaps,
    portable::read_sink_access,
    wr::{self, ReceiveRequest, WorkRequest},
};

/// A loop that waits for another thread without sleeping.
#[derive(Default)]
pub(super) struct Spin(u32);

impl Spin {
    /// So many rounds take longer than another thread needs that runs on a processor of its own.
    const ROUNDS: u32 = 1000;

    /// Called in each round. After many the thread that is waited for may need this processor, and gets it.
    pub(super) fn once(&mut self) {
        self.0 = self.0.saturating_add(1);
        if self.0 < Self::ROUNDS {
            spin_loop();
        } else {
            yield_now();
        }
    }
}

/// Requests of each queue.
pub(super) const DEPTH: u32 = 256;

/// One side.
pub(super) struct Side {
    pub(super) qp: Qp,
    pub(super) cq: Cq,
    pub(super) region: Mr,
    memory: Memory,
    beats_at: usize,
}

impl Side {
    fn open(device: &Device, size: u32) -> anyhow::Result<Self> {
        Self::of(&device.open(&Requirements::new())?, size)
    }

    /// A side on a context.
    pub(super) fn of(context: &Context, size: u32) -> anyhow::Result<Self> {
        let pd = context.alloc_pd().wait()?;
        let cq = context.create_cq(2 * DEPTH).wait()?;
        let options = QpOptions::rc(&cq).max_send_wr(DEPTH).max_recv_wr(DEPTH);
        let qp = pd.create_qp(options).wait()?;
        // Behind what is measured with: how often the other side has said that it measures.
        let beats_at = (size.max(8) as usize).next_multiple_of(8);
        let memory = Memory::zeroed(beats_at + 8)?;
        let mut rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        rights |= read_sink_access(context).access;
        let has_atomics = !context.attributes().gaps.contains(BaselineGaps::NO_ATOMICS);
        rights.set(Access::REMOTE_ATOMIC, has_atomics);
        let region = pd.register(&memory, rights).wait()?;
        Ok(Self {
            qp,
            cq,
            region,
            memory,
            beats_at,
        })
    }

    /// Whether the queue pair supports this operation.
    pub(super) fn does(&self, operation: Operations) -> bool {
        self.qp.operations().contains(operation)
    }

    pub(super) fn post<'a>(&self, request: impl Into<WorkRequest<'a>>) -> anyhow::Result<()> {
        self.qp
            .post_one(request)
            .map_err(|rejected| anyhow::anyhow!("{rejected}"))
    }

    /// How often the other side has said that it measures.
    pub(super) fn beats(&self) -> anyhow::Result<u64> {
        Ok(self.memory.load_u64(self.beats_at)?)
    }

    /// Says to the other side, whose memory this is, that this one measures.
    pub(super) fn beat(&self, count: u64, remote: RemoteAddress) -> anyhow::Result<()> {
        self.memory.write(self.beats_at, &count.to_ne_bytes())?;
        let count = self.region.sge(self.beats_at, 8)?;
        self.post(wr::Write::new(count, remote.plus(self.beats_at as u64)))
    }

    /// Posts a receive of this many bytes.
    pub(super) fn receive(&self, size: u32) -> anyhow::Result<()> {
        let room = self.region.sge(0, size)?;
        Ok(self.qp.post_receive(ReceiveRequest::new(0, room))?)
    }

    /// Polls until a request completes, without sleeping.
    pub(super) fn next(&self, slots: &mut [Completion]) -> anyhow::Result<usize> {
        let mut spin = Spin::default();
        loop {
            let found = self.cq.poll(slots)?.len();
            if found > 0 {
                return Ok(found);
            }
            spin.once();
        }
    }

    /// Polls until `count` requests have completed, without sleeping.
    pub(super) fn spin(&self, slots: &mut [Completion], count: usize) -> anyhow::Result<()> {
        let mut seen = 0;
        while seen < count {
            for done in self.cq.poll(slots)? {
                check(done)?;
                seen += 1;
            }
        }
        Ok(())
    }

    /// Flushes the queue pair, which ends what the other side waits for.
    pub(super) fn hang_up(&self) {
        // A queue pair that cannot be modified any more has ended already.
        drop(
            self.qp
                .modify(QpAttributes::new().qp_state(QpState::Err))
                .wait(),
        );
    }
}

pub(super) fn check(done: &Completion) -> anyhow::Result<()> {
    if !done.status.is_success() {
        anyhow::bail!("a request failed: {:?} ({:?})", done.status, done.opcode);
    }
    Ok(())
}

/// The access that each side has to the other's memory.
pub(super) const RIGHTS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// Two connected sides.
pub(super) fn connected(device: &Device, size: u32) -> anyhow::Result<(Side, Side)> {
    let (one, other) = (Side::open(device, size)?, Side::open(device, size)?);
    let (at_one, at_other) = (one.qp.endpoint()?, other.qp.endpoint()?);
    // Both are started before either is waited for: a stream needs both sides.
    let options = PathOptions::new().access(RIGHTS);
    let first = one.qp.connect(&at_other, options);
    let second = other.qp.connect(&at_one, options);
    first.wait()?;
    second.wait()?;
    Ok((one, other))
}
