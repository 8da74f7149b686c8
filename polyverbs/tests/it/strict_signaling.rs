//! A device that frees slots of send queues like hardware, so that programs that signal too rarely fail.

use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::qp::{QpAttributes, QpState};
use polyverbs::wr::{self, PostReason};
use polyverbs::*;

const DEPTH: u32 = 4;

struct Rig {
    pd: Pd,
    cq: Cq,
    near: Qp,
    far: Qp,
}

impl Rig {
    fn new(name: &str, options: EmulatedOptions) -> Self {
        let device = emulated::device(name, &options).unwrap();
        let context = device.open(&Requirements::new()).unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(64).wait().unwrap();
        let qp = || {
            let options = QpOptions::rc(&cq).max_send_wr(DEPTH);
            pd.create_qp(options).wait().unwrap()
        };
        let (near, far) = (qp(), qp());
        connect_pair(&near, &far, Access::REMOTE_WRITE)
            .wait()
            .unwrap();
        Self { pd, cq, near, far }
    }

    fn post(&self, request: wr::Write<'_>) -> Result<(), PostReason> {
        self.near
            .post_one(request)
            .map_err(|refused| refused.reason)
    }

    fn polled(&self) -> Vec<u64> {
        let mut slots: [Completion; 8] = Default::default();
        let done = self.cq.poll(&mut slots).unwrap();
        done.iter().map(|done| done.wr_id).collect()
    }
}

fn write<'a>() -> wr::Write<'a> {
    wr::Write::new((), RemoteAddress::default())
}

const FULL: Result<(), PostReason> = Err(PostReason::QueueFull { max: DEPTH });

fn strict() -> EmulatedOptions {
    EmulatedOptions {
        strict_signaling: true,
        ..EmulatedOptions::default()
    }
}

// covers 3.22
#[test]
fn a_queue_pair_that_never_signals_is_full_for_good() {
    for name in ["ib0", "iw0"] {
        let rig = Rig::new(name, strict());
        (0..DEPTH).for_each(|_| rig.post(write()).unwrap());
        assert_eq!(rig.post(write()), FULL, "{name}");
        assert!(rig.polled().is_empty());
        assert_eq!(rig.post(write().signaled(1)), FULL);
        // After RESET all slots are free.
        for qp in [&rig.near, &rig.far] {
            let reset = QpAttributes::new().qp_state(QpState::Reset);
            qp.modify(reset).wait().unwrap();
        }
        connect_pair(&rig.near, &rig.far, Access::REMOTE_WRITE)
            .wait()
            .unwrap();
        rig.post(write()).unwrap();
    }
}

// covers 3.22
#[test]
fn polling_frees_the_slots_up_to_the_request_that_was_signaled() {
    for name in ["ib0", "iw0"] {
        let rig = Rig::new(name, strict());
        rig.post(write()).unwrap();
        rig.post(write().signaled(2)).unwrap();
        rig.post(write()).unwrap();
        rig.post(write().signaled(4)).unwrap();
        assert_eq!(rig.post(write()), FULL, "{name}: nobody has polled");
        let mut one: [Completion; 1] = Default::default();
        assert_eq!(rig.cq.poll(&mut one).unwrap().len(), 1);
        (0..2).for_each(|_| rig.post(write()).unwrap());
        assert_eq!(rig.post(write()), FULL);
        assert_eq!(rig.polled(), [4]);
        (0..2).for_each(|_| rig.post(write()).unwrap());
        assert_eq!(rig.post(write()), FULL);
    }
}

// covers 3.22
#[test]
fn receives_free_no_slots_of_sends() {
    for name in ["ib0", "iw0"] {
        let rig = Rig::new(name, strict());
        let memory = Memory::zeroed(64).unwrap();
        let mr = rig
            .pd
            .register(&memory, Access::LOCAL_WRITE)
            .wait()
            .unwrap();
        let room = wr::ReceiveRequest::new(9, mr.sge(0, 64).unwrap());
        rig.near.post_receive(room).unwrap();
        (0..DEPTH).for_each(|_| rig.post(write()).unwrap());
        let send = wr::Send::new(b"anything").signaled(1);
        rig.far.post_one(send).unwrap();
        let mut polled = rig.polled();
        polled.sort_unstable();
        assert_eq!(polled, [1, 9]);
        assert_eq!(rig.post(write()), FULL, "{name}");
    }
}

// covers 3.22
#[test]
fn completions_of_other_queue_pairs_free_no_slots() {
    for name in ["ib0", "iw0"] {
        let rig = Rig::new(name, strict());
        rig.far.post_one(write().signaled(9)).unwrap();
        (1..DEPTH).for_each(|_| rig.post(write()).unwrap());
        rig.post(write().signaled(4)).unwrap();
        let poll_one = || {
            let mut one: [Completion; 1] = Default::default();
            rig.cq.poll(&mut one).unwrap()[0].wr_id
        };
        assert_eq!(poll_one(), 9);
        assert_eq!(rig.post(write()), FULL, "{name}");
        assert_eq!(poll_one(), 4);
        rig.post(write()).unwrap();
    }
}

// covers 3.22
#[test]
fn without_the_option_a_completed_request_holds_no_slot() {
    for name in ["ib0", "iw0"] {
        let rig = Rig::new(name, EmulatedOptions::default());
        (0..3 * DEPTH).for_each(|_| rig.post(write()).unwrap());
        assert!(rig.polled().is_empty());
    }
}
