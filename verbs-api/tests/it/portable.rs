//! Portable operations: the posted requests are those of the plan.

use verbs_api::capability::BaselineGaps;
use verbs_api::provider::Operation as _;
use verbs_api::*;
use verbs_api::{
    portable::{
        Plan, PlanStep, ReadAndInvalidate, ReadSink, RegisterForRemoteAccess, RemoteAccess,
        SendAndInvalidate, Sink, read_sink_access,
    },
    wr::{self, PostReason, SendFlags},
};

use crate::mock;

fn posted(mock: &mock::Mock) -> Vec<PlanStep> {
    let posted = std::mem::take(&mut *mock.posted.lock());
    posted
        .into_iter()
        .map(|(operation, flags, _)| PlanStep { operation, flags })
        .collect()
}

fn sink(pd: &Pd) -> Sink {
    let key = pd.alloc_key(4).wait().unwrap().next_consumer_key();
    key.sink(0x1000, 64)
}

#[test]
fn read_and_invalidate_takes_1_request_on_iwarp_2_on_ib() {
    let mut plans = Vec::new();
    for attributes in [mock::iwarp("a"), mock::attributes("b")] {
        let (mock, _, context) = mock::open_with(attributes);
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(64).wait().unwrap();
        let make = || {
            pd.create_qp(QpOptions::rc(&cq).reserve_portable(4))
                .wait()
                .unwrap()
        };
        let (a, b) = (make(), make());
        connect_pair(&a, &b, Access::empty()).wait().unwrap();
        assert!(a.cap().max_send_wr >= 64 + 8);
        let operation =
            ReadAndInvalidate::new(RemoteAddress::new(1, RKey::new(2)), &sink(&pd)).wr_id(42);
        let plan = context.plan(&operation).unwrap();
        a.post_portable(operation).unwrap();
        assert_eq!(plan.steps, posted(&mock));
        let mut slots: [Completion; 4] = Default::default();
        let ids: Vec<_> = cq
            .poll(&mut slots)
            .unwrap()
            .iter()
            .map(|done| done.wr_id)
            .collect();
        assert_eq!(ids, [42], "one completion");
        plans.push(plan.to_string());
    }
    assert_eq!(
        plans,
        [
            "read-and-invalidate: 1 work request, one completion\n  1. READ_WITH_INV (signaled)\n",
            "read-and-invalidate: 2 work requests, one completion\n  1. READ (unsignaled)\n  \
             2. LOCAL_INV (fenced, signaled)\n",
        ]
    );
}

#[test]
fn an_operation_without_any_form_names_the_missing_features() {
    let operation = ReadAndInvalidate::new(RemoteAddress::default(), &Sink::default());
    let missing = Features::BMME | Features::LOCAL_INVALIDATE_FENCE;
    assert_eq!(
        Plan::of(&operation, Features::empty()),
        Err(PostReason::Unsupported { missing })
    );
}

#[test]
fn access_is_opened_by_the_best_means_as_planned() {
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let windows = Features::all() - Features::BMME - Features::WINDOW_2A;
    for (features, allow_plain, means) in [
        (Features::BMME, false, Operations::FAST_REGISTER),
        (windows, false, Operations::BIND_MW),
        (Features::empty(), true, Operations::WRITE),
    ] {
        let mut attributes = mock::attributes("mock0");
        attributes.features = features;
        let (mock, _, context) = mock::open_with(attributes);
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(64).wait().unwrap();
        let make = || {
            pd.create_qp(QpOptions::rc(&cq).reserve_portable(1))
                .wait()
                .unwrap()
        };
        let (a, b) = (make(), make());
        connect_pair(&a, &b, Access::empty()).wait().unwrap();
        let memory = Memory::zeroed(10_000).unwrap();
        let remote = RemoteAccess::prepare(&pd, &memory, access, allow_plain)
            .wait()
            .unwrap();
        let before = remote.remote();
        let outline = RegisterForRemoteAccess::outline(features, allow_plain).unwrap();
        let plan = context.plan(&outline).unwrap();
        a.post_portable(remote.register().wr_id(7)).unwrap();
        assert_eq!(plan.steps, posted(&mock));
        assert_eq!(plan.steps[0].operation, means);
        let mut slots: [Completion; 4] = Default::default();
        assert_eq!(cq.poll(&mut slots).unwrap()[0].wr_id, 7);
        let plain = means == Operations::WRITE;
        assert_eq!(plan.control_verb.is_some(), plain);
        assert_eq!(
            remote.remote() == before,
            plain,
            "a fresh key wherever there is one"
        );
        assert_eq!(remote.invalidation().is_none(), plain);
        remote.revoke().wait().unwrap();
        assert_eq!((mock.live("mr"), mock.live("mw")), (0, 0));
        drop((a, b));
        pd.destroy().wait().unwrap();
    }
    assert!(RegisterForRemoteAccess::outline(Features::empty(), false).is_err());
}

/// The operations that are posted for a read into a prepared sink on a device with these features and gaps.
fn sunk(
    features: Features,
    gaps: BaselineGaps,
    allow_plain: bool,
) -> Result<Vec<Operations>, VerbError> {
    let mut attributes = mock::attributes("mock0");
    (attributes.features, attributes.gaps) = (features, gaps);
    let (mock, _, context) = mock::open_with(attributes);
    let pd = context.alloc_pd().wait()?;
    let cq = context.create_cq(64).wait()?;
    let make = || pd.create_qp(QpOptions::rc(&cq).reserve_portable(1)).wait();
    let (a, b) = (make()?, make()?);
    connect_pair(&a, &b, Access::empty()).wait()?;
    let memory = Memory::zeroed(10_000).unwrap();
    let sink = ReadSink::prepare(&pd, &memory, allow_plain).wait()?;
    let mut batch = Batch::with_capacity(1);
    batch.extend(sink.register(64));
    a.post(&mut batch).unwrap();
    let remote = RemoteAddress::new(1, RKey::new(2));
    let read = ReadAndInvalidate::new(remote, &sink.sink(64)).wr_id(3);
    let plan = context
        .plan(&ReadAndInvalidate::new(
            remote,
            &ReadSink::outline(&context),
        ))
        .unwrap();
    a.post_portable(read).unwrap();
    let steps = posted(&mock);
    assert!(
        steps.ends_with(&plan.steps),
        "the posted requests are those of the plan"
    );
    let mut slots: [Completion; 4] = Default::default();
    assert_eq!(cq.poll(&mut slots).unwrap().len(), 1, "one completion");
    sink.revoke().wait()?;
    assert_eq!(mock.live("mr"), 0);
    Ok(steps.iter().map(|step| step.operation).collect())
}

#[test]
fn a_sink_is_registered_per_read_if_keys_allow_it() {
    use Operations as Op;
    let fenced = Features::BMME | Features::LOCAL_INVALIDATE_FENCE;
    let none = BaselineGaps::empty();
    let three = vec![Op::FAST_REGISTER, Op::READ, Op::LOCAL_INV];
    assert_eq!(sunk(fenced, none, false), Ok(three));
    // Keys that no read can invalidate are useless here.
    assert_eq!(sunk(Features::BMME, none, false), Ok(vec![Op::READ]));
    assert_eq!(sunk(Features::empty(), none, false), Ok(vec![Op::READ]));
    // A transport that exposes sinks to peers does so only if the program has allowed it.
    let open = BaselineGaps::READ_SINK_NEEDS_REMOTE_WRITE;
    let missing = Features::BMME;
    let refused = Err(VerbError::Unsupported { missing });
    assert_eq!(sunk(Features::empty(), open, false), refused);
    assert_eq!(sunk(Features::empty(), open, true), Ok(vec![Op::READ]));
}

#[test]
fn a_message_ends_a_key_where_the_device_has_such_messages() {
    let key = Some(RKey::new(0x123));
    let lowered = |features, key| {
        let plan = Plan::of(&SendAndInvalidate::new(b"done", key), features).unwrap();
        assert_eq!(plan.slots(), 1);
        plan.steps[0].operation
    };
    for features in [Features::BMME, Features::WINDOW_2B] {
        assert_eq!(lowered(features, key), Operations::SEND_WITH_INV);
        assert_eq!(
            lowered(features, None),
            Operations::SEND,
            "a key that lasts"
        );
    }
    assert_eq!(lowered(Features::empty(), key), Operations::SEND);
}

// covers 2.60
#[test]
fn read_sink_rights_say_what_they_expose() {
    let (_mock, _, infiniband) = mock::open_with(mock::attributes("b"));
    let (_mock, _, iwarp) = mock::open_with(mock::iwarp("a"));
    assert_eq!(read_sink_access(&infiniband).access, Access::LOCAL_WRITE);
    assert_eq!(read_sink_access(&infiniband).exposes, None);
    let sink = read_sink_access(&iwarp);
    assert_eq!(sink.access, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    assert!(sink.to_string().contains("may write the sink"));
}

#[test]
fn a_program_cannot_set_the_flags_of_halves() {
    let request = wr::Send::new(()).flags(SendFlags::all());
    assert_eq!(
        request.common().flags,
        SendFlags::FENCE | SendFlags::SIGNALED | SendFlags::SOLICITED
    );
}
