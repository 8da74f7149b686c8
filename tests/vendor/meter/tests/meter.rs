//! The counters and the quota of the meter.

use acme_meter::{PROVIDER, QUOTA};
use polyverbs::capability::FeatureBits;
use polyverbs::{
    Access, Batch, Completion, Context, Device, ErrorKind, Features, Limit, Memory, Operations,
    QpOptions, Registry, RemoteAddress, Requirements, SrqOptions, connect_pair, wr,
};

/// A device of its own for each test: the counters are the device's.
fn metered() -> (Device, Context) {
    let mut registry = Registry::new();
    registry.add_provider(&PROVIDER).unwrap();
    let device = registry.device("meter0").unwrap().clone();
    let context = device.open(&Requirements::new().needs(Features::SRQ));
    (device, context.unwrap())
}

/// The meter's own counters; those of the inner device follow.
fn counted(device: &Device) -> Vec<u64> {
    let counters = device.counters();
    let names: Vec<_> = counters.iter().take(3).map(|(name, _)| *name).collect();
    assert_eq!(names, ["posted_sends", "posted_receives", "completions"]);
    counters.iter().take(3).map(|(_, value)| *value).collect()
}

#[test]
fn posted_and_polled_requests_are_counted() {
    let (device, context) = metered();
    let (pd, cq) = (
        context.alloc_pd().wait().unwrap(),
        context.create_cq(16).wait().unwrap(),
    );
    let srq = pd.create_srq(SrqOptions::new(4)).wait().unwrap();
    let near = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    let far = pd.create_qp(QpOptions::rc(&cq).srq(&srq)).wait().unwrap();
    connect_pair(&near, &far, Access::empty()).wait().unwrap();
    let memory = Memory::zeroed(64).unwrap();
    let region = pd.register(&memory, Access::LOCAL_WRITE).wait().unwrap();
    assert_eq!(counted(&device), [0, 0, 0]);

    srq.post_receive(wr::ReceiveRequest::new(1, region.sge(32, 32).unwrap()))
        .unwrap();
    near.post_receive(wr::ReceiveRequest::new(2, region.sge(32, 32).unwrap()))
        .unwrap();
    assert_eq!(counted(&device), [0, 2, 0]);
    near.post_one(wr::Send::new(region.sge(0, 8).unwrap()).signaled(3))
        .unwrap();
    assert_eq!(counted(&device), [1, 2, 0]);
    let mut slots = [(); 4].map(|()| Completion::default());
    assert_eq!(cq.poll(&mut slots).unwrap().len(), 2);
    assert_eq!(counted(&device), [1, 2, 2]);
}

#[test]
fn verbs_that_a_provider_may_leave_out_are_forwarded() {
    let (device, context) = metered();
    let (pd, cq) = (
        context.alloc_pd().wait().unwrap(),
        context.create_cq(16).wait().unwrap(),
    );
    let srq = pd.create_srq(SrqOptions::new(4)).wait().unwrap();
    srq.post_receive(wr::ReceiveRequest::new(1, ())).unwrap();
    assert_eq!(srq.query().unwrap().posted, Some(1));

    let qp = || pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    let (near, far) = (qp(), qp());
    let connected = connect_pair(&near, &far, Access::REMOTE_WRITE);
    connected.wait().unwrap();
    let write = || wr::Write::new((), RemoteAddress::default());
    let batch = |length| (0..length).map(|_| write()).collect::<Batch<'_>>();
    near.post_whole(&mut batch(2)).unwrap();
    assert_eq!(counted(&device), [2, 1, 0]);
    let room = near.cap().max_send_wr;
    near.post_whole(&mut batch(room + 1)).unwrap_err();
    assert_eq!(counted(&device), [2, 1, 0], "all are posted, or none");
}

#[test]
fn a_refused_request_is_not_counted() {
    let (device, context) = metered();
    let (pd, cq) = (
        context.alloc_pd().wait().unwrap(),
        context.create_cq(16).wait().unwrap(),
    );
    let qp = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    let refused = qp.post_one(wr::Send::default()).unwrap_err();
    assert_eq!(
        refused.kind(),
        ErrorKind::InvalidArgument,
        "it is not connected"
    );
    assert_eq!(counted(&device), [0, 0, 0]);
}

#[test]
fn the_quota_is_the_limit_and_a_destroy_frees_a_place() {
    let (device, context) = metered();
    assert_eq!(device.attributes().limit(Limit::MaxQp), u64::from(QUOTA));
    let (pd, cq) = (
        context.alloc_pd().wait().unwrap(),
        context.create_cq(16).wait().unwrap(),
    );
    let create = || pd.create_qp(QpOptions::rc(&cq)).wait();
    let mut qps: Vec<_> = (0..QUOTA).map(|_| create().unwrap()).collect();
    let error = create().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert_eq!(error.to_string(), "max_qp: wanted at least 65, offered 64");

    qps.pop().unwrap().destroy().wait().unwrap();
    drop(qps.pop());
    qps.extend([create().unwrap(), create().unwrap()]);
    assert_eq!(create().unwrap_err().kind(), ErrorKind::Limit);
}

#[test]
fn a_queue_pair_that_the_inner_device_refuses_takes_no_place() {
    let (device, _) = metered();
    // The feature is granted although the device lacks it, so that the device itself refuses.
    let beyond = [FeatureBits::of(Features::READ_WITH_INVALIDATE)];
    let context = device
        .open_beyond_claims(&Requirements::new(), &beyond)
        .unwrap();
    let (pd, cq) = (
        context.alloc_pd().wait().unwrap(),
        context.create_cq(16).wait().unwrap(),
    );
    for _ in 0..=QUOTA {
        let options = QpOptions::rc(&cq).operations(Operations::READ_WITH_INV);
        let error = pd.create_qp(options).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
}
