//! What scripts do to emulated devices, by a clock that the test advances.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use polyverbs::capability::PortState;
use polyverbs::completion::Notify;
use polyverbs::emulated::{EmulatedOptions, device};
use polyverbs::event::EventType;
use polyverbs::provider::Mutex;
use polyverbs::qp::QpState;
use polyverbs::{
    Access, Completion, Context, Cq, Memory, Mr, Pd, Qp, QpOptions, Requirements, VerbError,
    WcStatus, connect_pair, wr,
};
use polyverbs_layer::{Clock, Faults, Fired, Injector, Job};

/// A clock that stands until the test advances it.
#[derive(Default)]
struct Standing {
    now: AtomicU64,
    jobs: Mutex<Vec<(u64, Job)>>,
    slept: AtomicU64,
}

impl Standing {
    fn advance(&self, milliseconds: u64) {
        let now = self.now.fetch_add(milliseconds, Ordering::Relaxed) + milliseconds;
        loop {
            let mut jobs = self.jobs.lock();
            let next = jobs.iter().enumerate().min_by_key(|(_, (at, _))| *at);
            let Some((place, _)) = next.filter(|(_, (at, _))| *at <= now) else {
                return;
            };
            let (_, job) = jobs.remove(place);
            drop(jobs);
            job();
        }
    }
}

impl Clock for Standing {
    fn now(&self) -> Duration {
        Duration::from_millis(self.now.load(Ordering::Relaxed))
    }

    fn sleep(&self, time: Duration) {
        self.slept
            .fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }

    fn after(&self, time: Duration, job: Job) {
        let at = self.now.load(Ordering::Relaxed) + time.as_millis() as u64;
        self.jobs.lock().push((at, job));
    }

    fn clear(&self) {
        let jobs = std::mem::take(&mut *self.jobs.lock());
        drop(jobs);
    }
}

/// Two connected queue pairs on a device with faults.
struct Rig {
    clock: Arc<Standing>,
    injector: Arc<Injector>,
    context: Context,
    pd: Pd,
    cq: Cq,
    near: Qp,
    far: Qp,
    region: Mr,
}

const KINDS: [&str; 2] = ["ib0", "iw0"];

impl Rig {
    fn new(kind: &str, script: &str) -> Self {
        let faults: Faults = script.parse().unwrap();
        let injector = faults.injector();
        let clock = Arc::new(Standing::default());
        let plain = device(kind, &EmulatedOptions::default()).unwrap();
        let device = injector.on_with_clock(&plain, Arc::clone(&clock) as Arc<dyn Clock>);
        let context = device.open(&Requirements::new()).unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(32).wait().unwrap();
        let qp = || pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
        let (near, far) = (qp(), qp());
        connect_pair(&near, &far, Access::REMOTE_WRITE)
            .wait()
            .unwrap();
        let memory = Memory::zeroed(64).unwrap();
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = pd.register(&memory, rights).wait().unwrap();
        Self {
            clock,
            injector,
            context,
            pd,
            cq,
            near,
            far,
            region,
        }
    }

    fn write(&self, wr_id: u64) {
        let write = wr::Write::new(self.region.sge(0, 8).unwrap(), self.region.remote(8));
        self.near.post_one(write.signaled(wr_id)).unwrap();
    }

    /// The completions that can be polled now: identifiers and statuses.
    fn poll(&self) -> Vec<(u64, WcStatus)> {
        let mut slots = [(); 8].map(|()| Completion::default());
        let polled = self.cq.poll(&mut slots).unwrap();
        polled
            .iter()
            .map(|done| (done.wr_id, done.status))
            .collect()
    }

    fn fired(&self) -> Vec<u64> {
        self.injector
            .fired()
            .iter()
            .map(|(_, fired)| *fired)
            .collect()
    }
}

const OK: WcStatus = WcStatus::Success;

#[test]
fn a_failed_write_flushes_what_was_posted_after_it() {
    for kind in KINDS {
        let rig = Rig::new(kind, "wc.write@2:RETRY_EXC vendor 0x81");
        (1..=3).for_each(|wr_id| rig.write(wr_id));
        let flushed = WcStatus::WrFlushErr;
        let expected = [(1, OK), (2, WcStatus::RetryExcErr), (3, flushed)];
        assert_eq!(rig.poll(), expected, "{kind}");
        assert_eq!(rig.near.query().unwrap().state, QpState::Err);
        rig.write(4);
        assert_eq!(rig.poll(), [(4, flushed)]);
        assert_eq!(rig.fired(), [1]);
    }
}

#[test]
fn a_queue_pair_that_was_reset_works_again() {
    let rig = Rig::new("ib0", "wc.write@1:RETRY_EXC");
    rig.write(1);
    assert_eq!(rig.poll(), [(1, WcStatus::RetryExcErr)]);
    let reset = |qp: &Qp| {
        let reset = polyverbs::qp::QpAttributes::new().qp_state(QpState::Reset);
        qp.modify(reset).wait().unwrap();
    };
    reset(&rig.near);
    reset(&rig.far);
    connect_pair(&rig.near, &rig.far, Access::REMOTE_WRITE)
        .wait()
        .unwrap();
    rig.write(2);
    assert_eq!(rig.poll(), [(2, OK)]);
}

#[test]
fn a_held_completion_keeps_the_order_of_its_queue_pair() {
    for kind in KINDS {
        let rig = Rig::new(kind, "wc.write@2:hold 30ms");
        (1..=3).for_each(|wr_id| rig.write(wr_id));
        assert_eq!(rig.poll(), [(1, OK)], "{kind}");
        rig.clock.advance(29);
        assert_eq!(rig.poll(), []);
        rig.clock.advance(1);
        assert_eq!(rig.poll(), [(2, OK), (3, OK)]);
    }
}

#[test]
fn an_armed_queue_is_notified_of_a_held_completion() {
    let rig = Rig::new("ib0", "wc.write@1:hold 30ms");
    let notified = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&notified);
    rig.write(1);
    assert_eq!(rig.poll(), []);
    rig.cq.on_completion(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert!(!rig.cq.arm(Notify::Next).unwrap());
    let before = notified.load(Ordering::Relaxed);
    rig.clock.advance(30);
    assert!(notified.load(Ordering::Relaxed) > before);
}

#[test]
fn a_flap_of_the_port_takes_the_time_that_its_rule_says() {
    let rig = Rig::new("ib0", "event@5s:PORT_ERR->after 2s->PORT_ACTIVE");
    let state = || rig.context.query_port(1).unwrap().state;
    let event = || rig.context.poll_event().map(|event| event.event_type());
    rig.clock.advance(4_999);
    assert_eq!((event(), state()), (None, PortState::Active));
    rig.clock.advance(1);
    assert_eq!(
        (event(), state()),
        (Some(EventType::PortErr), PortState::Down)
    );
    rig.clock.advance(2_000);
    assert_eq!(
        (event(), state()),
        (Some(EventType::PortActive), PortState::Active)
    );
    assert_eq!(rig.fired(), [1]);
}

#[test]
fn a_removed_device_flushes_and_refuses_every_verb() {
    for kind in KINDS {
        let rig = Rig::new(kind, "event@1s:DEVICE_FATAL");
        rig.far
            .post_receive(wr::ReceiveRequest::new(9, ()))
            .unwrap();
        rig.clock.advance(1_000);
        let event = rig.context.poll_event().unwrap();
        assert_eq!(event.event_type(), EventType::DeviceRemoved);
        assert_eq!(rig.poll(), [(9, WcStatus::WrFlushErr)], "{kind}");
        let refused = rig.pd.create_qp(QpOptions::rc(&rig.cq)).wait();
        assert_eq!(refused.err(), Some(VerbError::DeviceRemoved));
        assert_eq!(rig.context.query_port(1), Err(VerbError::DeviceRemoved));
    }
}

#[test]
fn a_late_verb_is_answered_at_its_time() {
    let rig = Rig::new("ib0", "create_cq@2:delay 10ms->ENOMEM");
    let started = rig.context.create_cq(4);
    assert!(!started.is_done());
    rig.clock.advance(10);
    assert!(matches!(
        started.wait(),
        Err(VerbError::Os { errno: 12, .. })
    ));
}

#[test]
fn a_late_post_blocks_its_poster() {
    let rig = Rig::new("ib0", "post_send@2:delay 7ms");
    (1..=2).for_each(|wr_id| rig.write(wr_id));
    assert_eq!(rig.clock.slept.load(Ordering::Relaxed), 7);
    assert_eq!(rig.poll(), [(1, OK), (2, OK)]);
}

#[test]
fn rules_choose_by_object_and_count_for_themselves() {
    let rig = Rig::new(
        "ib0",
        "wc[qp=2]:lost; wc[qp=1]@2:bare REM_OP; wc[cq=2]:lost; wc[dev=ib9]:lost",
    );
    (1..=2).for_each(|wr_id| rig.write(wr_id));
    assert_eq!(rig.poll(), [(1, OK), (2, WcStatus::RemOpErr)]);
    assert_eq!(rig.fired(), [0, 1, 0, 0]);
}

#[test]
fn a_rule_with_off_fires_once() {
    let rig = Rig::new("ib0", "wc~50%:bare GENERAL->off; seed=5");
    let mut failed = 0;
    for wr_id in 0..40 {
        rig.write(wr_id);
        failed += rig
            .poll()
            .iter()
            .filter(|(_, status)| *status != OK)
            .count();
    }
    assert_eq!((failed, rig.fired()), (1, vec![1]));
}

#[test]
fn chances_follow_the_seed_and_the_log_replays_them() {
    let outcome = |script: &str| {
        let log = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&log);
        let faults: Faults = script.parse().unwrap();
        let injector =
            faults.logged(move |fired: &Fired| noted.lock().push(fired.exactly.to_string()));
        let plain = device("ib0", &EmulatedOptions::default()).unwrap();
        let context = injector.on(&plain).open(&Requirements::new()).unwrap();
        let pds: Vec<_> = (0..200)
            .map(|_| context.alloc_pd().wait().is_ok())
            .collect();
        let log = log.lock().join("\n");
        (pds, log)
    };
    let (seven, log) = outcome("alloc_pd~20%:ENOMEM; seed=7");
    assert_eq!(outcome("alloc_pd~20%:ENOMEM; seed=7").0, seven);
    assert_eq!(outcome(&log).0, seven);
    assert_ne!(outcome("alloc_pd~20%:ENOMEM; seed=8").0, seven);
    let failed = seven.iter().filter(|is_ok| !**is_ok).count();
    assert!((20..60).contains(&failed), "{failed} of 200 at 20 %");
}
