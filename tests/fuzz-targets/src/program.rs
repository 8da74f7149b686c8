//! A program on a device whose peer is hostile, and the conditions that must hold whatever arrives.

use std::collections::HashSet;
use std::sync::Arc;

use verbs_api::provider::DeviceOps;
use verbs_api::wr::{self, ReceiveRequest, WorkRequest};
use verbs_api::*;

use crate::script::Script;

/// Bytes of the program's memory, and the start of the part that peers may access.
const MEMORY: usize = 16_384;
const OPEN: usize = 4096;
const OPEN_LENGTH: usize = 8192;
/// The range that its requests and receives use, within that part.
const LOCAL: usize = 4096;
/// The byte with which its memory is filled.
const GUARD: u8 = 0x5a;
/// The identity of its requests to its neighbour.
const NEIGHBOURS: u64 = u64::MAX;
/// The rights of peers on that part.
pub(crate) const RIGHTS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// A program with one device, its memory and its requests.
pub(crate) struct Program {
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) memory: Memory,
    pub(crate) mr: Mr,
    /// Requests and receives that have not completed yet.
    outstanding: HashSet<u64>,
    posted: u64,
}

impl Program {
    pub(crate) fn new(ops: Arc<dyn DeviceOps>) -> Self {
        let device = Device::of(ops);
        let everything = Requirements::everything_of(&device.attributes());
        let context = device.open(&everything).expect("all that it has");
        let pd = context.alloc_pd().wait().expect("a domain");
        let cq = context.create_cq(1024).wait().expect("a queue");
        let memory = Memory::zeroed(MEMORY).expect("memory");
        let open = memory.range(OPEN, OPEN_LENGTH).expect("within");
        let mr = pd.register(open, RIGHTS | Access::LOCAL_WRITE);
        let mr = mr.wait().expect("a region");
        let program = Self {
            context,
            pd,
            cq,
            memory,
            mr,
            outstanding: HashSet::new(),
            posted: 0,
        };
        program.tidy();
        program
    }

    pub(crate) fn qp(&self, options: QpOptions) -> Qp {
        let options = options.max_send_wr(64).max_recv_wr(64);
        self.pd.create_qp(options).wait().expect("a queue pair")
    }

    /// Posts a request to a peer.
    pub(crate) fn post(&mut self, qp: &Qp, script: &mut Script<'_>) {
        let (which, length) = (script.octet(), u32::from(script.octet()) * 4);
        let id = self.note();
        let local = self.mr.sge(LOCAL, length).expect("within");
        let word = self.mr.sge(LOCAL, 8).expect("within");
        let remote = RemoteAddress::new(0x1000, RKey::new(0x77));
        let posted = match which % 8 {
            0 => qp.post_one(wr::Send::new(local).signaled(id)),
            1 => qp.post_one(wr::Write::new(local, remote).signaled(id)),
            2 => qp.post_one(wr::WriteWithImmediate::new(local, remote, *b"imm!").signaled(id)),
            3 | 4 => qp.post_one(wr::Read::new(local, remote).signaled(id)),
            5 => qp.post_one(wr::FetchAdd::new(word, remote, 1).signaled(id)),
            6 => qp.post_one(wr::CompareSwap::new(word, remote, 1, 2).signaled(id)),
            _ => qp.post_one(wr::Send::new(local).fence().signaled(id)),
        };
        if posted.is_err() {
            self.outstanding.remove(&id);
        }
    }

    pub(crate) fn receive(&mut self, qp: &Qp, script: &mut Script<'_>) {
        let length = u32::from(script.octet()) * 4;
        let id = self.note();
        let room = self.mr.sge(LOCAL, length).expect("within");
        if qp.post_receive(ReceiveRequest::new(id, room)).is_err() {
            self.outstanding.remove(&id);
        }
    }

    fn note(&mut self) -> u64 {
        self.posted += 1;
        self.outstanding.insert(self.posted);
        self.posted
    }

    /// Polls, and checks that each request and receive completes once.
    pub(crate) fn take(&mut self) {
        for done in completions(&self.cq) {
            let known = self.outstanding.remove(&done.wr_id);
            assert!(known, "{done:?} was not posted");
        }
        while self.context.poll_event().is_some() {}
    }

    /// Checks that every request and receive has completed.
    pub(crate) fn has_all(&self) {
        assert!(self.outstanding.is_empty(), "{:?}", self.outstanding);
    }

    /// Checks that memory for which no peer has a key is unchanged.
    pub(crate) fn is_unharmed(&self) {
        let octets = self.memory.to_vec(0, MEMORY).expect("within");
        for outside in [&octets[..OPEN], &octets[OPEN + OPEN_LENGTH..]] {
            assert!(
                *outside == [GUARD; OPEN],
                "memory without a key for peers has changed"
            );
        }
    }

    /// Drops the pending completions.
    pub(crate) fn drain(&self) {
        drop(completions(&self.cq));
    }

    /// Fills the memory as it was in the beginning.
    pub(crate) fn tidy(&self) {
        self.memory.write(0, &[GUARD; MEMORY]).expect("within");
    }

    /// Exchanges data with a neighbour: here by `qp`, there by `theirs`. `run` lets time pass.
    pub(crate) fn serves(&self, qp: &Qp, there: &Self, theirs: &Qp, run: impl FnOnce()) {
        let told: Vec<u8> = (0..1000_u32).map(|at| at as u8).collect();
        there.memory.write(OPEN, &told).expect("within");
        let room = self.mr.sge(0, 1000).expect("within");
        let receive = ReceiveRequest::new(NEIGHBOURS, room);
        qp.post_receive(receive).expect("it is ready");
        let local = there.mr.sge(0, 1000).expect("within");
        let sink = there.mr.sge(1024, 1000).expect("within");
        let remote = self.mr.remote(1024);
        let requests: [WorkRequest<'_>; 3] = [
            wr::Send::new(local).signaled(1).into(),
            wr::Write::new(local, remote).signaled(2).into(),
            wr::Read::new(sink, remote).fence().signaled(3).into(),
        ];
        for request in requests {
            theirs.post_one(request).expect("it is ready");
        }
        run();
        let done = completions(&there.cq);
        let done: Vec<_> = done.iter().map(|done| (done.wr_id, done.status)).collect();
        let all = [1, 2, 3].map(|id| (id, WcStatus::Success));
        assert_eq!(done, all, "the neighbour");
        let received = completions(&self.cq);
        let received: Vec<_> = received.iter().map(|done| done.wr_id).collect();
        assert_eq!(received, [NEIGHBOURS]);
        assert_eq!(self.memory.to_vec(OPEN, 1000).expect("within"), told);
        let found = there.memory.to_vec(OPEN + 1024, 1000).expect("within");
        assert_eq!(found, told);
    }
}

fn completions(cq: &Cq) -> Vec<Completion> {
    let mut all = Vec::new();
    loop {
        let mut slots: [Completion; 16] = Default::default();
        let count = cq.poll(&mut slots).expect("no overrun").len();
        all.extend(slots.into_iter().take(count));
        if count == 0 {
            return all;
        }
    }
}
