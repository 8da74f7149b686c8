//! Destroying objects: Busy with its holders, two destroys at once, requests in flight, deferred destruction; identities.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use verbs_api::objects::{Holder, ObjectId, ObjectKind};
use verbs_api::qp::{AddressVector, QpAttributes, QpState};
use verbs_api::*;
use verbs_api::{
    event::CompletionChannel,
    ids::{Gid, LinkAddress},
    memory::{MrReregister, MwType},
    portable::RemoteAccess,
    wr::{self, PostReason},
};

use crate::mock;

fn busy<T: std::fmt::Debug>(result: Result<(), DestroyError<T>>) -> (T, Vec<ObjectKind>) {
    match result {
        Err(Busy { object, held_by }) => {
            (object, held_by.iter().map(|holder| holder.kind).collect())
        }
        other => panic!("not busy: {other:?}"),
    }
}

// covers 5.07
#[test]
fn a_domain_is_busy_while_anything_is_in_it() {
    let (mock, context) = mock::open();
    let memory = Memory::zeroed(4096).unwrap();
    let mut pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(64).wait().unwrap();
    let path = AddressVector::new(LinkAddress::InProcess(1), Gid::default(), 1);

    let mr = pd.register(&memory, Access::LOCAL_WRITE).wait().unwrap();
    let (back, held_by) = busy(pd.destroy().wait());
    assert_eq!(held_by, [ObjectKind::Mr]);
    mr.deregister().wait().unwrap();
    pd = back;

    let mw = pd.alloc_mw(MwType::Type2).wait().unwrap();
    let (back, held_by) = busy(pd.destroy().wait());
    assert_eq!(held_by, [ObjectKind::Mw]);
    mw.destroy().wait().unwrap();
    pd = back;

    let qp = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    let (back, held_by) = busy(pd.destroy().wait());
    assert_eq!(held_by, [ObjectKind::Qp]);
    qp.destroy().wait().unwrap();
    pd = back;

    let srq = pd.create_srq(SrqOptions::new(8)).wait().unwrap();
    let (back, held_by) = busy(pd.destroy().wait());
    assert_eq!(held_by, [ObjectKind::Srq]);
    srq.destroy().wait().unwrap();
    pd = back;

    let ah = pd.create_ah(path).wait().unwrap();
    let (back, held_by) = busy(pd.destroy().wait());
    assert_eq!(held_by, [ObjectKind::Ah]);
    ah.destroy().wait().unwrap();

    back.destroy().wait().unwrap();
    assert_eq!(mock.live("pd"), 0);
}

// covers 5.07
#[test]
fn queues_count_each_use() {
    let (_mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let send = context.create_cq(64).wait().unwrap();
    let recv = context.create_cq(64).wait().unwrap();
    let srq = pd.create_srq(SrqOptions::new(8)).wait().unwrap();
    let qp = pd.create_qp(QpOptions::rc(&send)).wait().unwrap();
    let other = pd
        .create_qp(QpOptions::rc(&send).recv_cq(&recv).srq(&srq))
        .wait()
        .unwrap();
    let (send, held_by) = busy(send.destroy().wait());
    assert_eq!(
        held_by,
        [ObjectKind::Qp; 2],
        "once each, though both queues of the first are this one"
    );
    let (recv, held_by) = busy(recv.destroy().wait());
    assert_eq!(held_by, [ObjectKind::Qp]);
    let (srq, held_by) = busy(srq.destroy().wait());
    assert_eq!(held_by, [ObjectKind::Qp]);
    let message = match srq.clone().destroy().wait() {
        Err(error) => error.to_string(),
        Ok(()) => panic!("in use"),
    };
    assert_eq!(message, format!("in use by QP {}", other.qp_num()));
    other.destroy().wait().unwrap();
    srq.destroy().wait().unwrap();
    recv.destroy().wait().unwrap();
    qp.destroy().wait().unwrap();
    send.destroy().wait().unwrap();
}

// covers 5.07
#[test]
fn a_device_is_busy_while_anything_lives() {
    let (mock, context) = mock::open();
    let channel = context.create_completion_channel().unwrap();
    let cq = context
        .create_cq(CqOptions::new(8).channel(&channel))
        .wait()
        .unwrap();
    let (context, held_by) = busy(context.close().wait());
    assert_eq!(held_by, [ObjectKind::CompletionChannel, ObjectKind::Cq]);
    let (channel, held_by) = busy(channel.destroy().wait());
    assert_eq!(held_by, [ObjectKind::Cq]);
    cq.destroy().wait().unwrap();
    channel.destroy().wait().unwrap();
    let other = context.clone();
    context.close().wait().unwrap();
    assert_eq!(
        other.alloc_pd().wait().unwrap_err(),
        VerbError::InvalidHandle(ObjectKind::Context)
    );
    drop(other);
    assert_eq!(mock.closed.load(Ordering::SeqCst), 1);
}

// covers 5.07
#[test]
fn multicast_attachments_hold_a_queue_pair() {
    let (_mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(64).wait().unwrap();
    let qp = pd.create_qp(QpOptions::ud(&cq)).wait().unwrap();
    let group = Gid([0xff; 16]);
    assert!(qp.attach_multicast(Gid::default()).wait().is_err());
    qp.attach_multicast(group).wait().unwrap();
    assert!(qp.attach_multicast(group).wait().is_err());
    let (qp, held_by) = busy(qp.destroy().wait());
    assert_eq!(held_by, [ObjectKind::Multicast]);
    qp.detach_multicast(group).wait().unwrap();
    assert!(qp.detach_multicast(group).wait().is_err());
    qp.destroy().wait().unwrap();
}

// covers 2.13 5.07
#[test]
fn a_busy_region_with_a_bound_window_is_returned() {
    let (mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let memory = Memory::zeroed(4096).unwrap();
    let mr = pd
        .register(&memory, Access::LOCAL_WRITE | Access::MW_BIND)
        .wait()
        .unwrap();
    let mw = pd.alloc_mw(MwType::Type2).wait().unwrap();
    let bound = Holder::new(ObjectKind::Mw, mw.id());
    mock.bound.lock().push(bound);
    let refused = mr.clone().deregister().wait().unwrap_err();
    let message = format!("in use by MW with rkey {}", mw.rkey());
    assert_eq!(refused.to_string(), message);
    drop(refused);
    assert_eq!(context.find_mr(mr.id()).unwrap().lkey(), mr.lkey());
    // The region is dropped instead: it is deregistered when the window is gone.
    drop(mr);
    assert_eq!(mock.live("mr"), 1);
    mw.destroy().wait().unwrap();
    assert_eq!(mock.live("mr"), 0);
    pd.destroy().wait().unwrap();
}

// covers 5.08 1.10
#[test]
fn a_failed_create_leaves_no_trace() {
    let (mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(64).wait().unwrap();
    let memory = Memory::zeroed(64).unwrap();
    for verb in ["mr", "mr", "mw", "srq", "qp"] {
        mock.fail_next(verb);
    }
    assert!(pd.register(&memory, Access::empty()).wait().is_err());
    assert!(pd.register_buffers(4, 16).wait().is_err());
    assert!(pd.alloc_mw(MwType::Type1).wait().is_err());
    assert!(pd.create_srq(SrqOptions::new(4)).wait().is_err());
    assert!(pd.create_qp(QpOptions::rc(&cq)).wait().is_err());
    let wanted = QpOptions::rc(&cq).operations(Operations::SEND | Operations::READ_WITH_INV);
    let missing = Features::READ_WITH_INVALIDATE;
    assert_eq!(
        pd.create_qp(wanted).wait().unwrap_err(),
        VerbError::Unsupported { missing }
    );
    cq.destroy().wait().unwrap();
    pd.destroy().wait().unwrap();
    context.close().wait().unwrap();
}

// covers 5.09
#[test]
fn a_request_in_flight_makes_its_object_busy() {
    let (mock, context) = mock::open();
    let (pd, cq, qp, _other) = mock::pair(&context);
    mock.delay();
    let modify = qp.modify(QpAttributes::new().qp_state(QpState::Err));
    let (qp, held_by) = busy(qp.destroy().wait());
    assert_eq!(held_by, [ObjectKind::Request]);
    mock.run_all();
    modify.wait().unwrap();
    let create = pd.create_qp(QpOptions::rc(&cq));
    let (pd, held_by) = busy(pd.destroy().wait());
    assert_eq!(
        held_by,
        [ObjectKind::Qp; 3],
        "the one that is being made holds it already"
    );
    mock.run_all();
    drop(create.wait().unwrap());
    let destroy = qp.clone().destroy();
    assert_eq!(
        qp.query().unwrap_err(),
        VerbError::InvalidHandle(ObjectKind::Qp)
    );
    let late = qp.modify(QpAttributes::new().qp_state(QpState::Reset));
    assert_eq!(
        late.wait().unwrap_err(),
        VerbError::InvalidHandle(ObjectKind::Qp)
    );
    assert_eq!(
        qp.post_one(wr::Send::new(())).unwrap_err().reason,
        PostReason::InvalidHandle
    );
    assert_eq!(
        qp.destroy().wait().unwrap_err().kind(),
        ErrorKind::InvalidHandle
    );
    mock.run_all();
    destroy.wait().unwrap();
    drop(pd);
}

// covers 5.09
#[test]
fn of_two_destroys_one_wins() {
    let (mock, context) = mock::open();
    let (wins, invalid) = (AtomicU32::new(0), AtomicU32::new(0));
    let rounds = 10_000;
    let barrier = Barrier::new(2);
    let pds = (0..rounds)
        .map(|_| context.alloc_pd().wait().unwrap())
        .collect::<Vec<_>>();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for pd in &pds {
                    barrier.wait();
                    match pd.clone().destroy().wait() {
                        Ok(()) => wins.fetch_add(1, Ordering::SeqCst),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::InvalidHandle);
                            invalid.fetch_add(1, Ordering::SeqCst)
                        }
                    };
                }
            });
        }
    });
    assert_eq!((wins.into_inner(), invalid.into_inner()), (rounds, rounds));
    assert_eq!(mock.live("pd"), 0);
}

#[test]
fn dropping_a_handle_in_use_defers_its_end() {
    let (mock, context) = mock::open();
    let (pd, cq, a, b) = mock::pair(&context);
    drop((pd, cq));
    drop(context);
    assert_eq!((mock.live("pd"), mock.live("cq")), (1, 1));
    drop(a);
    assert_eq!(
        (mock.live("pd"), mock.live("cq"), mock.live("qp")),
        (1, 1, 1)
    );
    drop(b);
    assert_eq!(
        (mock.live("pd"), mock.live("cq"), mock.live("qp")),
        (0, 0, 0)
    );
    assert_eq!(mock.closed.load(Ordering::SeqCst), 1);
}

#[test]
fn buffers_keep_their_region_and_its_domain() {
    let (mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let pool = pd.register_buffers(2, 64).wait().unwrap();
    let buffer = pool.take().unwrap();
    let (pd, held_by) = busy(pd.destroy().wait());
    assert_eq!(held_by, [ObjectKind::Mr]);
    drop((pd, pool));
    assert_eq!((mock.live("mr"), mock.live("pd")), (1, 1));
    drop(buffer);
    assert_eq!((mock.live("mr"), mock.live("pd")), (0, 0));
}

// covers 5.29
#[test]
fn a_stale_identity_never_resolves() {
    let (_mock, context) = mock::open();
    let mut stale: Vec<ObjectId> = Vec::new();
    for round in 0..100_000 {
        let pd = context.alloc_pd().wait().unwrap();
        let id = pd.id();
        assert_eq!(context.find_pd(id).unwrap().id(), id);
        assert!(context.find_qp(id).is_none(), "of another kind");
        pd.destroy().wait().unwrap();
        assert!(context.find_pd(id).is_none());
        if round % 1000 == 0 {
            stale.push(id);
        }
        assert!(
            stale
                .iter()
                .all(|&id| round % 100 != 0 || context.find_pd(id).is_none())
        );
    }
}

// covers 5.09
#[test]
fn a_destroy_that_the_device_refuses_leaves_the_object_usable() {
    let (mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let other = pd.clone();
    mock.fail_next("dealloc_pd");
    assert_eq!(
        pd.destroy().wait().unwrap_err().kind(),
        ErrorKind::Resources
    );
    let key = other.alloc_key(4).wait().unwrap();
    drop((other, key));
    assert_eq!((mock.live("mr"), mock.live("pd")), (0, 0));
}

// covers 2.15
#[test]
fn a_region_that_moves_to_another_domain_holds_that_one() {
    let (_mock, context) = mock::open();
    let memory = Memory::zeroed(4096).unwrap();
    let first = context.alloc_pd().wait().unwrap();
    let second = context.alloc_pd().wait().unwrap();
    let mr = first.register(&memory, Access::LOCAL_WRITE).wait().unwrap();
    let illegal = MrReregister::new().access(Access::REMOTE_WRITE);
    assert_eq!(
        mr.rereg(illegal).wait().unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    mr.rereg(MrReregister::new().pd(&second)).wait().unwrap();
    first.destroy().wait().unwrap();
    let (second, held_by) = busy(second.destroy().wait());
    assert_eq!(held_by, [ObjectKind::Mr]);
    mr.deregister().wait().unwrap();
    second.destroy().wait().unwrap();
}

// covers 5.27
#[test]
fn handles_are_shared_between_threads() {
    fn shared<T: Send + Sync + Clone>() {}
    shared::<Context>();
    shared::<Pd>();
    shared::<Cq>();
    shared::<CompletionChannel>();
    shared::<Mr>();
    shared::<MrKey>();
    shared::<Mw>();
    shared::<Srq>();
    shared::<Ah>();
    shared::<Qp>();
    let _: fn(Arc<RemoteAccess>) = |_| {};
}

#[test]
fn the_region_of_private_buffers_cannot_be_found_and_opened() {
    let (_mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let pool = pd.register_buffers(2, 64).wait().unwrap();
    let Err(Busy { held_by, .. }) = pd.destroy().wait() else {
        panic!("in use")
    };
    assert!(context.find_mr(held_by[0].id).is_none());
    drop(pool);
}

// Compares two handles of one object, and one of another.
fn are_equal_by_object<H: Clone + Eq + Hash + std::fmt::Debug>(one: H, other: H) {
    let again = one.clone();
    assert_eq!(one, again);
    assert_ne!(one, other);
    let distinct = HashSet::from([one, again, other]);
    assert_eq!(distinct.len(), 2);
}

#[test]
fn handles_are_equal_where_they_are_of_one_object() {
    let (_mock, context) = mock::open();
    let (_mock, elsewhere) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let foreign = elsewhere.alloc_pd().wait().unwrap();
    assert_eq!(pd.open_device(), context);
    let cq = context.create_cq(8).wait().unwrap();
    let memory = Memory::zeroed(64).unwrap();
    let path = AddressVector::new(LinkAddress::InProcess(1), Gid::default(), 1);

    let region = || pd.register(&memory, Access::LOCAL_WRITE).wait().unwrap();
    are_equal_by_object(region(), region());
    let key = || pd.alloc_key(1).wait().unwrap();
    are_equal_by_object(key(), key());
    let window = || pd.alloc_mw(MwType::Type2).wait().unwrap();
    are_equal_by_object(window(), window());
    let srq = || pd.create_srq(SrqOptions::new(8)).wait().unwrap();
    are_equal_by_object(srq(), srq());
    let ah = || pd.create_ah(path).wait().unwrap();
    are_equal_by_object(ah(), ah());
    let qp = || pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    are_equal_by_object(qp(), qp());
    let channel = || context.create_completion_channel().unwrap();
    are_equal_by_object(channel(), channel());
    are_equal_by_object(cq, context.create_cq(8).wait().unwrap());
    are_equal_by_object(pd, foreign);
    are_equal_by_object(context, elsewhere);
}
