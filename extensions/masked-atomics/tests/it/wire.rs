//! The encoding of masked atomics on the wire, and their refusal by a device that does not emulate them.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use emulated_ib::InfiniBand;
use emulated_ib::header::Body as Ib;
use emulated_iwarp::Iwarp;
use emulated_iwarp::header::{
    AtomicOp, Body as Rdmap, Message, operation, reset_header, stream_key,
};
use masked_atomics::{
    EXTENSION, FETCH_ADD, MaskedAtomics, MaskedCompareSwap, MaskedFeatures, MaskedFetchAdd,
};
use polyverbs_engine::device::{Device as Engine, DeviceOptions};
use polyverbs_engine::driver::Driver;
use polyverbs_engine::link::{Deliver, Frame, Link, OwnedFrame, SharedLink};
use polyverbs_engine::time::Time;
use polyverbs_io::sim::{DatagramLink, FaultSpec, Simulation, StreamLink};
use verbs_api::provider::Mutex;
use verbs_api::{
    Access, Completion, Context, Device, Memory, PathOptions, Qp, QpOptions, RemoteAddress,
    Requirements, Sge, WcStatus,
    capability::{AtomicScope, Mtu},
    extension::{Extensions, extension_id},
    ids::LinkAddress,
    wr::{self, PostReason},
};

/// A link that records frames and loses some of the first device's answers.
struct Watched<H> {
    inner: SharedLink<H>,
    log: Mutex<Vec<OwnedFrame<H>>>,
    losing: AtomicUsize,
    is_answer: fn(&H) -> bool,
}

impl<H: Clone + Send + Sync + 'static> Link<H> for Watched<H> {
    fn max_frame(&self) -> Option<usize> {
        self.inner.max_frame()
    }

    fn send(&self, frame: Frame<'_, H>, now: Time) {
        self.log.lock().push(frame.to_owned());
        let lose = |left: usize| left.checked_sub(1);
        let loses = (self.is_answer)(&frame.header)
            && self
                .losing
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, lose)
                .is_ok();
        if !loses {
            self.inner.send(frame, now);
        }
    }

    fn progress(&self, now: Time, network: &dyn Deliver<H>) -> bool {
        self.inner.progress(now, network)
    }

    fn next_due(&self) -> Option<Time> {
        self.inner.next_due()
    }
}

struct Lab<H> {
    simulation: Simulation,
    link: Arc<Watched<H>>,
    near: Context,
    far: Context,
}

impl<H: Clone + Send + Sync + std::fmt::Debug + 'static> Lab<H> {
    fn new<D: Driver<Header = H>>(
        inner: SharedLink<H>,
        is_answer: fn(&H) -> bool,
        driver: impl Fn(LinkAddress) -> D,
        far_has_it: bool,
    ) -> Self {
        let simulation = Simulation::new();
        let link = Arc::new(Watched {
            inner,
            log: Mutex::default(),
            losing: AtomicUsize::new(0),
            is_answer,
        });
        let network = simulation.network::<D>(Some(Arc::clone(&link) as SharedLink<H>));
        let open = |at, has_it| {
            let mut extensions = Extensions::new();
            if has_it {
                extensions.add(&EXTENSION).unwrap();
            }
            let options = DeviceOptions {
                extensions: Some(extensions),
                ..DeviceOptions::default()
            };
            let engine =
                Engine::new(driver(LinkAddress::InProcess(at)), &network, options).unwrap();
            let wanted = Requirements::new().prefers(MaskedFeatures::MASKED_64);
            Device::of(engine).open(&wanted).unwrap()
        };
        let (near, far) = (open(1, true), open(2, far_has_it));
        Self {
            simulation,
            link,
            near,
            far,
        }
    }

    // Posts the request of `make` against eight far bytes with the value 0xff. Returns its status, the result that it
    // returned, and the value of the bytes afterwards.
    fn run(
        &self,
        make: impl FnOnce(&Qp, Sge, RemoteAddress) -> Result<(), PostReason>,
    ) -> (WcStatus, u64, u64) {
        let side = |context: &Context| {
            let pd = context.alloc_pd().wait().unwrap();
            let cq = context.create_cq(16).wait().unwrap();
            let mut options = QpOptions::rc(&cq);
            if let Ok(masked) = context.extension::<MaskedAtomics>() {
                options = options.operations(&masked);
            }
            let qp = pd.create_qp(options).wait().unwrap();
            let memory = Memory::zeroed(16).unwrap();
            let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
            let mr = pd.register(&memory, access).wait().unwrap();
            (qp, cq, memory, mr)
        };
        let (qp, cq, result, sink) = side(&self.near);
        let (peer, _far_cq, target, mr) = side(&self.far);
        target.store_u64(0, 0xff).unwrap();
        let options = PathOptions::new().access(Access::REMOTE_ATOMIC);
        let first = qp.connect(&peer.endpoint().unwrap(), options);
        let second = peer.connect(&qp.endpoint().unwrap(), options);
        self.settle();
        first.wait().unwrap();
        second.wait().unwrap();
        make(&qp, sink.sge(0, 8).unwrap(), mr.remote(0)).unwrap();
        self.settle();
        let mut slot = [Completion::default()];
        let done = cq.poll(&mut slot).unwrap().first().unwrap().status;
        (
            done,
            result.load_u64(0).unwrap(),
            target.load_u64(0).unwrap(),
        )
    }

    fn settle(&self) {
        self.simulation.run_until_idle().unwrap();
    }

    fn headers(&self) -> Vec<OwnedFrame<H>> {
        self.link.log.lock().clone()
    }
}

fn infiniband(far_has_it: bool) -> Lab<emulated_ib::header::Header> {
    let link = Arc::new(DatagramLink::new(Some(Mtu::Mtu256), FaultSpec::default()));
    let is_answer = |header: &emulated_ib::header::Header| !header.body.is_request();
    let driver = |address| InfiniBand {
        name: format!("{address:?}"),
        address,
        windows_2a: false,
        management: None,
        subnet: None,
    };
    Lab::new(link, is_answer, driver, far_has_it)
}

fn iwarp(far_has_it: bool) -> Lab<emulated_iwarp::header::Header> {
    let link = Arc::new(StreamLink::new(
        NonZeroUsize::new(100),
        FaultSpec::default(),
        stream_key,
        Some(reset_header),
    ));
    let driver = |address| Iwarp::new(format!("{address:?}"), address);
    Lab::new(link, |_| false, driver, far_has_it)
}

fn add(qp: &Qp, sink: Sge, remote: RemoteAddress) -> Result<(), PostReason> {
    let add = MaskedFetchAdd::new(remote, 1).fields(0x80);
    let request = add.request(sink).signaled(1);
    qp.post_one(request).map_err(|refused| refused.reason)
}

// covers 4.26
#[test]
fn infiniband_encodes_masked_atomics_as_an_extension() {
    let lab = infiniband(true);
    assert_eq!(lab.run(add), (WcStatus::Success, 0xff, 0));
    let numbers = (extension_id("masked-atomics"), FETCH_ADD.number());
    let mut frames = lab.headers().into_iter();
    let request = frames.next().unwrap();
    assert_eq!(
        request.header.body,
        Ib::ExtensionRequest(numbers.0, numbers.1)
    );
    // The operands travel in network order, the address and the key first.
    assert_eq!(request.payload.len(), 28);
    assert_eq!(
        request.payload[12..],
        [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0x80]
    );
    let answer = frames.next().unwrap();
    assert_eq!(
        answer.header.body,
        Ib::ExtensionResponse(numbers.0, numbers.1)
    );
    assert_eq!(answer.payload, [0, 0, 0, 0, 0, 0, 0, 0xff]);
}

// covers 3.43
#[test]
fn a_repeated_request_is_answered_from_the_recorded_result() {
    let lab = infiniband(true);
    lab.link.losing.store(2, Ordering::SeqCst);
    let adds = |qp: &Qp, sink: Sge, remote| {
        let add = MaskedFetchAdd::new(remote, 1);
        let request = add.request(sink).signaled(1);
        qp.post_one(request).map_err(|refused| refused.reason)
    };
    assert_eq!(lab.run(adds), (WcStatus::Success, 0xff, 0x100));
    let requests = lab.headers();
    let requests = requests
        .iter()
        .filter(|frame| frame.header.body.is_request());
    assert_eq!(requests.count(), 3, "two answers were lost");
}

// covers 4.27
#[test]
fn iwarp_encodes_masked_atomics_as_in_rfc_7306() {
    let lab = iwarp(true);
    assert_eq!(lab.run(add), (WcStatus::Success, 0xff, 0));
    let swap = |qp: &Qp, sink: Sge, remote| {
        let swap = MaskedCompareSwap::new(remote, 0xff, 0x1100).swap_mask(0xff00);
        let request = swap.request(sink).signaled(1);
        qp.post_one(request).map_err(|refused| refused.reason)
    };
    assert_eq!(lab.run(swap), (WcStatus::Success, 0xff, 0x11ff));
    let ordinary = |qp: &Qp, sink: Sge, remote| {
        let request = wr::FetchAdd::new(sink, remote, 1).signaled(1);
        qp.post_one(request).map_err(|refused| refused.reason)
    };
    assert_eq!(lab.run(ordinary), (WcStatus::Success, 0xff, 0x100));
    let frames = lab.headers();
    let atomics = frames
        .iter()
        .filter_map(|frame| match &frame.header.message {
            Message::Untagged(_, Rdmap::AtomicRequest(request)) => operation(request),
            _ => None,
        });
    let swap = AtomicOp::CompareSwap {
        compare: 0xff,
        compare_mask: u64::MAX,
        swap: 0x1100,
        swap_mask: 0xff00,
    };
    let add = AtomicOp::FetchAdd { add: 1, mask: 0x80 };
    let plain = AtomicOp::FetchAdd { add: 1, mask: 0 };
    assert_eq!(atomics.collect::<Vec<_>>(), [add, swap, plain]);
}

// covers 1.07 1.17
#[test]
fn a_device_without_the_extension_refuses_its_opcodes_as_unknown() {
    let refused = (WcStatus::RemInvReqErr, 0, 0xff);
    assert_eq!(infiniband(false).run(add), refused);
    let lab = iwarp(false);
    assert_eq!(lab.run(add), refused);
    let frames = lab.headers();
    let codes = frames
        .iter()
        .filter_map(|frame| match &frame.header.message {
            Message::Untagged(_, Rdmap::Terminate) => frame.payload.first_chunk(),
            _ => None,
        });
    // Each pair is layer and type, and the code of an unexpected opcode.
    assert_eq!(codes.collect::<Vec<_>>(), [&[0x02, 0x06]]);
}

// covers 4.28 1.06
#[test]
fn masked_atomics_have_a_scope_of_their_own() {
    let lab = infiniband(false);
    let (with, without) = (lab.near.attributes(), lab.far.attributes());
    assert_eq!(with.masked_atomic_cap, with.atomic_cap);
    assert_eq!(without.masked_atomic_cap, AtomicScope::None);
    assert_eq!(without.atomic_cap, with.atomic_cap);
    let ordinary = |qp: &Qp, sink: Sge, remote| {
        let request = wr::FetchAdd::new(sink, remote, 1).signaled(1);
        qp.post_one(request).map_err(|refused| refused.reason)
    };
    assert_eq!(lab.run(ordinary), (WcStatus::Success, 0xff, 0x100));
}
