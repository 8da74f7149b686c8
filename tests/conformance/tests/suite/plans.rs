//! Portable operations: the device executes exactly the plan, with one completion, in the slots that
//! the plan names.

use std::sync::Arc;

use crate::support::statuses;
use crate::{cases, steered_cases};
use conformance::{ANY_DEVICE, End, Evidence, Fast, Outcome, Pair, Rig, needs, one_of};
use verbs_api::provider::Mutex;
use verbs_api::qp::QpState;
use verbs_api::{
    Access, Context, Device, Features, Memory, Operations, RKey, RemoteAddress, Requirements,
    WcStatus,
    capability::PortState,
    portable::{
        Plan, PlanStep, ReadAndInvalidate, RegisterForRemoteAccess, RemoteAccess, read_sink_access,
    },
    wr::{self, PostReason, SendFlags},
};

cases! {
    a_read_and_invalidate_is_executed_as_planned: needs(FENCED);
    plans_are_executed_in_the_order_of_posting: needs(FENCED);
    a_registration_is_executed_as_planned: ANY_DEVICE;
    a_registration_by_window_is_executed_as_planned: one_of(Features::WINDOW_2);
    a_plan_that_nothing_was_granted_for_names_what_is_missing: ANY_DEVICE;
    one_completion_where_the_first_half_fails: needs(FENCED);
    one_completion_where_the_second_half_fails: needs(FENCED);
    one_completion_where_every_request_has_one: needs(FENCED);
}

steered_cases! {
    one_completion_for_each_operation_that_is_flushed: needs(FENCED);
    an_operation_takes_the_slots_of_its_plan_or_none: needs(FENCED);
    reserved_slots_hold_as_many_operations_as_asked_for: needs(FENCED);
}

/// The features that a read-and-invalidate needs.
const FENCED: Features = Features::BMME.union(Features::LOCAL_INVALIDATE_FENCE);
const LENGTH: u32 = 4096;

/// The steps that queue pairs have executed, if their device reports them.
struct Traced {
    steps: Arc<Mutex<Vec<(PlanStep, WcStatus)>>>,
    is_told: bool,
}

impl Traced {
    // Records the steps that queue pairs of this end execute from now on.
    fn of(end: &End) -> Self {
        let steps = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&steps);
        let is_told = end.trace(Arc::new(move |told| {
            let step = PlanStep {
                operation: told.operation,
                flags: told.flags,
            };
            noted.lock().push((step, told.status));
        }));
        Self { steps, is_told }
    }

    fn clear(&self) {
        self.steps.lock().clear();
    }

    fn is(&self, expected: &[PlanStep]) {
        let steps = self.steps.lock();
        assert!(steps.iter().all(|(_, status)| status.is_success()));
        let executed: Vec<_> = steps.iter().map(|(step, _)| *step).collect();
        assert!(
            !self.is_told || executed == expected,
            "{executed:?}, not {expected:?}"
        );
    }
}

// Memory of the near end, registered as the sink of reads.
fn sink(rig: &Rig, pair: &Pair) -> Result<Fast, Evidence> {
    let sink = rig.near.fast(LENGTH as usize)?;
    register(rig, pair, &sink)?;
    Ok(sink)
}

fn register(rig: &Rig, pair: &Pair, sink: &Fast) -> Outcome {
    let access = read_sink_access(&rig.near.context).access;
    rig.succeeds(&pair.near, sink.register_afresh(access).signaled(0))
}

fn fetch(from: RemoteAddress, into: &Fast, wr_id: u64) -> ReadAndInvalidate {
    let sink = into.key.sink(into.pages.address(), LENGTH);
    ReadAndInvalidate::new(from, &sink).wr_id(wr_id)
}

fn a_read_and_invalidate_is_executed_as_planned(rig: &Rig) -> Outcome {
    let steps = Traced::of(&rig.near);
    let pair = rig.rc()?;
    let source = rig.far.region(LENGTH as usize, Access::REMOTE_READ)?;
    source.fill(7)?;
    let sink = sink(rig, &pair)?;
    steps.clear();
    let fetch = fetch(source.remote(0), &sink, 42);
    let plan = rig.near.context.plan(&fetch).expect("a plan");
    pair.near.post_portable(fetch).expect("posted");
    let done = rig.take(&pair.near.cq, 1)?;
    assert_eq!(statuses(&done), [(42, WcStatus::Success)]);
    assert_eq!(
        sink.bytes(0, LENGTH as usize)?,
        source.bytes(0, LENGTH as usize)?
    );
    steps.is(&plan.steps);
    let one = rig
        .near
        .context
        .features()
        .contains(Features::READ_WITH_INVALIDATE);
    let expected: &[(Operations, bool)] = match one {
        true => &[(Operations::READ_WITH_INV, false)],
        false => &[(Operations::READ, false), (Operations::LOCAL_INV, true)],
    };
    let is_fenced = |step: &PlanStep| step.flags.contains(SendFlags::FENCE);
    let found: Vec<_> = plan
        .steps
        .iter()
        .map(|step| (step.operation, is_fenced(step)))
        .collect();
    assert_eq!(found, expected);
    // The operation has invalidated the key of the sink.
    let dead = wr::Send::new(sink.sge(0, 8)).signaled(9);
    rig.fails(&pair.near, dead, &[WcStatus::LocProtErr])
}

fn plans_are_executed_in_the_order_of_posting(rig: &Rig) -> Outcome {
    let steps = Traced::of(&rig.near);
    let pair = rig.rc()?;
    let source = rig.far.region(
        1 << 16,
        Access::REMOTE_READ | Access::REMOTE_WRITE | Access::LOCAL_WRITE,
    )?;
    let sinks: Vec<_> = (0..4).map(|_| sink(rig, &pair)).collect::<Result<_, _>>()?;
    steps.clear();
    let mut expected = Vec::new();
    let step = |operation, flags| PlanStep { operation, flags };
    for (sink, wr_id) in sinks.iter().zip(1..) {
        let read = wr::Read::new(rig.scratch.sge(0, 20_000)?, source.remote(0)).signaled(100);
        pair.near.post_one(read).expect("posted");
        expected.push(step(Operations::READ, SendFlags::SIGNALED));
        let fetch = fetch(source.remote(64), sink, wr_id);
        expected.extend(rig.near.context.plan(&fetch).expect("a plan").steps);
        pair.near.post_portable(fetch).expect("posted");
        let write = wr::Write::new(rig.scratch.sge(30_000, 100)?, source.remote(40_000));
        pair.near.post_one(write).expect("posted");
        expected.push(step(Operations::WRITE, SendFlags::empty()));
    }
    let done = rig.take(&pair.near.cq, 8)?;
    let ids: Vec<_> = done.iter().map(|done| done.wr_id).collect();
    assert_eq!(ids, [100, 1, 100, 2, 100, 3, 100, 4]);
    rig.settle();
    steps.is(&expected);
    Ok(())
}

fn a_registration_is_executed_as_planned(rig: &Rig) -> Outcome {
    let steps = Traced::of(&rig.far);
    let pair = rig.rc()?;
    opens_as_planned(rig, &pair, &rig.far.context, &steps)
}

fn a_registration_by_window_is_executed_as_planned(rig: &Rig) -> Outcome {
    let steps = Traced::of(&rig.far);
    // The context is granted windows and no other feature that could open the memory.
    let device = Device::of(Arc::clone(&rig.far.device));
    let wanted = Requirements::new().needs(rig.far.context.features() & Features::WINDOW_2);
    let context = device.open(&wanted).expect("a device that opens");
    let pd = context.alloc_pd().wait().expect("a domain");
    let cq = context.create_cq(8).wait().expect("a queue");
    let options = verbs_api::QpOptions::rc(&cq).operations(Operations::BIND_MW);
    let qp = pd.create_qp(options).wait().expect("a queue pair");
    let far = conformance::Side { qp, cq };
    let near = rig.near.side(verbs_api::qp::QpType::Rc)?;
    let pair = rig.connected(near, far)?;
    let memory = opens_through(rig, &pair, &context, &pd, &steps)?;
    assert_eq!(memory, [Operations::BIND_MW]);
    Ok(())
}

fn opens_as_planned(rig: &Rig, pair: &Pair, context: &Context, steps: &Traced) -> Outcome {
    let found = opens_through(rig, pair, context, &rig.far.pd, steps)?;
    let features = context.features();
    let expected = match () {
        () if features.contains(Features::BMME) => Operations::FAST_REGISTER,
        () if features.intersects(Features::WINDOW_2) => Operations::BIND_MW,
        () => Operations::WRITE,
    };
    assert_eq!(found, [expected]);
    Ok(())
}

fn opens_through(
    rig: &Rig,
    pair: &Pair,
    context: &Context,
    pd: &verbs_api::Pd,
    steps: &Traced,
) -> Result<Vec<Operations>, Evidence> {
    let memory = Memory::zeroed(8192).expect("memory");
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let access = rig.finish(RemoteAccess::prepare(pd, &memory, rights, true))?;
    let mut keys: Vec<RKey> = Vec::new();
    let mut operations = Vec::new();
    let features = context.features();
    for wr_id in [5, 6] {
        steps.clear();
        let opening = access.register().wr_id(wr_id);
        let outline = RegisterForRemoteAccess::outline(features, true).expect("a form");
        let plan = context.plan(&opening).expect("a plan");
        assert_eq!(plan, context.plan(&outline).expect("a plan"));
        let is_region = plan.control_verb.is_some();
        pair.far.post_portable(opening).expect("posted");
        let done = rig.take(&pair.far.cq, 1)?;
        assert_eq!(statuses(&done), [(wr_id, WcStatus::Success)]);
        steps.is(&plan.steps);
        assert!(rig.can_write(pair, access.remote())?);
        assert!(is_region || !keys.contains(&access.remote().rkey));
        keys.push(access.remote().rkey);
        operations = plan.steps.iter().map(|step| step.operation).collect();
        match access.invalidation() {
            // Without base memory management only deallocating a window closes it.
            Some(_) if !features.contains(Features::BMME) => break,
            Some(close) => rig.succeeds(&pair.far, close.signaled(99))?,
            None => {}
        }
    }
    rig.finish(access.revoke())?;
    let last = RemoteAddress::new(memory.address(), keys[keys.len() - 1]);
    let write = wr::Write::new(rig.scratch.sge(0, 8)?, last).signaled(99);
    rig.run(&pair.near, write)?;
    rig.settle();
    assert_eq!(pair.far.state()?, QpState::Err, "refused");
    Ok(operations)
}

fn a_plan_that_nothing_was_granted_for_names_what_is_missing(rig: &Rig) -> Outcome {
    let device = Device::of(Arc::clone(&rig.near.device));
    let context = device
        .open(&Requirements::new())
        .expect("a device that opens");
    let fetch = ReadAndInvalidate::new(
        RemoteAddress::default(),
        &verbs_api::portable::Sink::default(),
    );
    let missing = FENCED;
    assert_eq!(
        context.plan(&fetch),
        Err(PostReason::Unsupported { missing })
    );
    let pair = rig.rc()?;
    let all = FENCED - rig.near.context.features();
    if !all.is_empty() {
        let refused = pair.near.post_portable(fetch);
        assert_eq!(
            refused,
            Err(PostReason::Unsupported { missing: all }.into())
        );
    }
    assert!(RegisterForRemoteAccess::outline(context.features(), false).is_err());
    let plan = RegisterForRemoteAccess::outline(context.features(), true)
        .map(|op| Plan::of(&op, context.features()));
    let plan = plan.expect("a form").expect("a plan");
    assert_eq!((plan.control_verb, plan.slots()), (Some("register"), 1));
    Ok(())
}

fn one_completion_where_the_first_half_fails(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let sink = sink(rig, &pair)?;
    let nowhere = RemoteAddress::new(0x1000, RKey::new(0xfff_ff00));
    pair.near
        .post_portable(fetch(nowhere, &sink, 42))
        .expect("posted");
    let done = rig.take(&pair.near.cq, 1)?;
    assert_eq!(statuses(&done), [(42, WcStatus::RemAccessErr)]);
    assert_eq!(pair.near.state()?, QpState::Err);
    rig.nothing_on(&pair.near.cq)
}

fn one_completion_where_the_second_half_fails(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let source = rig.far.region(LENGTH as usize, Access::REMOTE_READ)?;
    let into = rig
        .near
        .region(LENGTH as usize, read_sink_access(&rig.near.context).access)?;
    // An ordinary region cannot be invalidated: neither by a second request nor with the read.
    let rkey = RKey::new(into.mr.lkey().value());
    let sink = verbs_api::portable::Sink::new(into.sge(0, LENGTH)?, rkey);
    let fetch = ReadAndInvalidate::new(source.remote(0), &sink).wr_id(42);
    pair.near.post_portable(fetch).expect("posted");
    let done = rig.take(&pair.near.cq, 1)?;
    assert_eq!(done[0].wr_id, 42);
    assert!(!done[0].status.is_success(), "{:?}", done[0].status);
    rig.nothing_on(&pair.near.cq)?;
    assert_eq!(pair.near.state()?, QpState::Err);
    Ok(())
}

fn one_completion_for_each_operation_that_is_flushed(rig: &Rig) -> Outcome {
    let pair = rig.rc()?;
    let source = rig.far.region(LENGTH as usize, Access::REMOTE_READ)?;
    let sinks: Vec<_> = (0..3).map(|_| sink(rig, &pair)).collect::<Result<_, _>>()?;
    // No frame reaches the peer, so all requests stay queued.
    rig.near.steer().set_port_state(PortState::Down);
    let write = wr::Write::new(rig.scratch.sge(0, 8)?, source.remote(0)).signaled(1);
    pair.near.post_one(write).expect("posted");
    for (sink, wr_id) in sinks.iter().zip(2..) {
        let fetch = fetch(source.remote(0), sink, wr_id);
        pair.near.post_portable(fetch).expect("posted");
    }
    let end = verbs_api::qp::QpAttributes::new().qp_state(QpState::Err);
    rig.finish(pair.near.modify(end))?;
    let late = fetch(source.remote(0), &sinks[0], 5);
    pair.near
        .post_portable(late)
        .expect("flushed, and not refused");
    let done = rig.take(&pair.near.cq, 5)?;
    assert_eq!(
        statuses(&done),
        [1, 2, 3, 4, 5].map(|wr_id| (wr_id, WcStatus::WrFlushErr))
    );
    rig.nothing_on(&pair.near.cq)
}

fn one_completion_where_every_request_has_one(rig: &Rig) -> Outcome {
    let near = rig.near.side_with(&rig.near.pd, |cq| {
        rig.near.options(verbs_api::qp::QpType::Rc, cq).sq_sig_all()
    })?;
    let far = rig.far.side(verbs_api::qp::QpType::Rc)?;
    let pair = rig.connected(near, far)?;
    let source = rig.far.region(LENGTH as usize, Access::REMOTE_READ)?;
    let sink = sink(rig, &pair)?;
    pair.near
        .post_portable(fetch(source.remote(0), &sink, 42))
        .expect("posted");
    let done = rig.take(&pair.near.cq, 1)?;
    assert_eq!(statuses(&done), [(42, WcStatus::Success)]);
    rig.nothing_on(&pair.near.cq)
}

fn an_operation_takes_the_slots_of_its_plan_or_none(rig: &Rig) -> Outcome {
    let near = rig.near.side_with(&rig.near.pd, |cq| {
        rig.near
            .options(verbs_api::qp::QpType::Rc, cq)
            .max_send_wr(4)
    })?;
    let pair = rig.connected(near, rig.far.side(verbs_api::qp::QpType::Rc)?)?;
    let source = rig.far.region(
        LENGTH as usize,
        Access::REMOTE_READ | Access::REMOTE_WRITE | Access::LOCAL_WRITE,
    )?;
    let sink = sink(rig, &pair)?;
    let slots = rig
        .near
        .context
        .plan(&fetch(source.remote(0), &sink, 0))
        .expect("a plan")
        .slots();
    rig.near.steer().set_port_state(PortState::Down);
    let room = pair.near.cap().max_send_wr;
    let fillers = room - slots + 1;
    for wr_id in 0..fillers {
        let write = wr::Write::new(rig.scratch.sge(0, 8)?, source.remote(0)).signaled(wr_id.into());
        pair.near.post_one(write).expect("posted");
    }
    let refused = pair.near.post_portable(fetch(source.remote(0), &sink, 77));
    assert_eq!(refused, Err(PostReason::QueueFull { max: room }.into()));
    for wr_id in fillers..room {
        // A posted half of the operation would have taken the slot of this write.
        let write = wr::Write::new(rig.scratch.sge(0, 8)?, source.remote(0)).signaled(wr_id.into());
        pair.near.post_one(write).expect("posted");
    }
    rig.near.steer().set_port_state(PortState::Active);
    let done = rig.take(&pair.near.cq, room as usize)?;
    let expected: Vec<_> = (0..u64::from(room))
        .map(|id| (id, WcStatus::Success))
        .collect();
    assert_eq!(statuses(&done), expected);
    pair.near
        .post_portable(fetch(source.remote(0), &sink, 78))
        .expect("posted");
    assert_eq!(
        statuses(&rig.take(&pair.near.cq, 1)?),
        [(78, WcStatus::Success)]
    );
    Ok(())
}

// covers 6.17
fn reserved_slots_hold_as_many_operations_as_asked_for(rig: &Rig) -> Outcome {
    let near = rig.near.side_with(&rig.near.pd, |cq| {
        let options = rig.near.options(verbs_api::qp::QpType::Rc, cq);
        options.max_send_wr(2).reserve_portable(3)
    })?;
    let options = conformance::open().timeout(18);
    let far = rig.far.side(verbs_api::qp::QpType::Rc)?;
    let pair = rig.connected_with(near, far, options)?;
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::LOCAL_WRITE;
    let source = rig.far.region(LENGTH as usize, rights)?;
    let sinks: Vec<_> = (0..3).map(|_| sink(rig, &pair)).collect::<Result<_, _>>()?;
    rig.near.steer().set_port_state(PortState::Down);
    for wr_id in [1, 3] {
        let write = wr::Write::new(rig.scratch.sge(0, 8)?, source.remote(0)).signaled(wr_id);
        pair.near.post_one(write).expect("posted");
        if wr_id == 1 {
            let fetch = fetch(source.remote(0), &sinks[0], 2);
            pair.near.post_portable(fetch).expect("room was reserved");
        }
    }
    let more = wr::Write::new(rig.scratch.sge(0, 8)?, source.remote(0));
    let refused = pair.near.post_one(more).expect_err("reserved for others");
    assert_eq!(refused.reason, PostReason::QueueFull { max: 2 });
    for (sink, wr_id) in sinks[1..].iter().zip(4..) {
        let fetch = fetch(source.remote(0), sink, wr_id);
        pair.near.post_portable(fetch).expect("room was reserved");
    }
    rig.near.steer().set_port_state(PortState::Active);
    let done = rig.take(&pair.near.cq, 5)?;
    assert_eq!(
        statuses(&done),
        [1, 2, 3, 4, 5].map(|wr_id| (wr_id, WcStatus::Success))
    );
    Ok(())
}
