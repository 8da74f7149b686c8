//! The state table of queue pairs: every transition, every attribute.

use std::sync::atomic::Ordering;

use verbs_api::qp::QpAttrMask as M;
use verbs_api::qp::QpState::{Err as Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
use verbs_api::qp::QpType::{Rc, Uc, Ud};
use verbs_api::qp::*;
use verbs_api::*;
use verbs_api::{
    capability::Mtu,
    ids::{Gid, LinkAddress, Psn, Qpn},
};

use crate::mock;

// All attributes except the state, with legal values.
fn every() -> QpAttributes {
    QpAttributes::new()
        .en_sqd_async_notify(true)
        .qp_access_flags(Access::REMOTE_READ)
        .pkey_index(0)
        .port_num(1)
        .qkey(1)
        .ah_attr(AddressVector::new(
            LinkAddress::InProcess(1),
            Gid::default(),
            1,
        ))
        .path_mtu(Mtu::Mtu1024)
        .timeout(14)
        .retry_cnt(7)
        .rnr_retry(7)
        .rq_psn(Psn::new(1))
        .max_rd_atomic(1)
        .min_rnr_timer(12)
        .sq_psn(Psn::new(1))
        .max_dest_rd_atomic(1)
        .dest_qp_num(Qpn::new(2))
}

fn only(mask: M) -> QpAttributes {
    every().without(!mask)
}

fn check(qp_type: QpType, from: QpState, attributes: &QpAttributes) -> Result<QpState, BadModify> {
    check_modify(qp_type, from, attributes, 16, 16, 2)
}

// The attributes that the state table requires on the way to RTS, written down independently of it.
fn required(qp_type: QpType, from: QpState, to: QpState) -> M {
    let path = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    match (qp_type, from, to) {
        (Ud, Reset, Init) => M::PKEY_INDEX | M::PORT | M::QKEY,
        (_, Reset, Init) => M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
        (Uc, Init, Rtr) => path,
        (Rc, Init, Rtr) => path | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
        (Rc, Rtr, Rts) => {
            M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC
        }
        (_, Rtr, Rts) => M::SQ_PSN,
        _ => M::empty(),
    }
}

fn exists(qp_type: QpType, from: QpState, to: QpState) -> bool {
    match (from, to) {
        (_, Reset) => true,
        (Reset, Error) => false,
        (_, Error) => true,
        (Reset, Init) | (Init, Init | Rtr) | (Rtr, Rts) | (Rts, Rts | Sqd) | (Sqd, Sqd | Rts) => {
            true
        }
        (Sqe, Rts) => qp_type != Rc,
        _ => false,
    }
}

// covers 3.01 3.02 3.03 3.04 3.05 3.06 3.07 3.08 3.09
#[test]
fn every_transition_of_every_type_is_as_the_table_says() {
    for qp_type in mock::ALL_TYPES {
        for from in QpState::ALL {
            for to in QpState::ALL {
                let found = transition(qp_type, from, to);
                assert_eq!(
                    found.is_some(),
                    exists(qp_type, from, to),
                    "{qp_type:?} {from} {to}"
                );
                let Some(allowed) = found else {
                    let refused = check(qp_type, from, &QpAttributes::new().qp_state(to));
                    assert_eq!(refused, Err(BadModify::NoTransition { qp_type, from, to }));
                    continue;
                };
                assert_eq!(
                    allowed.required,
                    required(qp_type, from, to),
                    "{qp_type:?} {from} {to}"
                );
                assert!((allowed.required & allowed.optional).is_empty());
                each_bit(qp_type, from, to, allowed);
            }
        }
    }
}

fn each_bit(qp_type: QpType, from: QpState, to: QpState, allowed: Transition) {
    let enough = only(allowed.required).qp_state(to);
    assert_eq!(check(qp_type, from, &enough), Ok(to));
    let most = only(allowed.required | (allowed.optional - M::CUR_STATE)).qp_state(to);
    assert_eq!(check(qp_type, from, &most), Ok(to));
    for bit in (M::all() - M::STATE - M::CUR_STATE).iter() {
        if allowed.required.contains(bit) {
            let without = enough.without(bit);
            let forbidden = M::empty();
            let expected = BadModify::Attributes {
                from,
                to,
                missing: bit,
                forbidden,
            };
            assert_eq!(check(qp_type, from, &without), Err(expected));
        } else if !allowed.optional.contains(bit) {
            let with = only(allowed.required | bit).qp_state(to);
            let missing = M::empty();
            let expected = BadModify::Attributes {
                from,
                to,
                missing,
                forbidden: bit,
            };
            assert_eq!(check(qp_type, from, &with), Err(expected));
        }
    }
}

// covers 3.10
#[test]
fn the_current_state_is_checked_where_it_is_allowed() {
    for from in QpState::ALL {
        for claimed in QpState::ALL {
            let attributes = QpAttributes::new().qp_state(Reset).cur_qp_state(claimed);
            let refused = check(Rc, from, &attributes).unwrap_err();
            if claimed == from {
                assert!(matches!(
                    refused,
                    BadModify::Attributes {
                        forbidden: M::CUR_STATE,
                        ..
                    }
                ));
            } else {
                assert_eq!(
                    refused,
                    BadModify::CurrentState {
                        claimed,
                        actual: from
                    }
                );
            }
        }
    }
    for from in [Rts, Sqd] {
        let attributes = QpAttributes::new().qp_state(Rts).cur_qp_state(from);
        assert_eq!(check(Rc, from, &attributes), Ok(Rts));
    }
    assert_eq!(
        check(
            Ud,
            Sqe,
            &QpAttributes::new().qp_state(Rts).cur_qp_state(Sqe)
        ),
        Ok(Rts)
    );
}

// covers 3.11
#[test]
fn each_value_one_beyond_its_limit_is_refused() {
    let to_rtr = || only(required(Rc, Init, Rtr)).qp_state(Rtr);
    let to_rts = || only(required(Rc, Rtr, Rts)).qp_state(Rts);
    let to_init = || only(required(Rc, Reset, Init)).qp_state(Init);
    let elsewhere = AddressVector::new(LinkAddress::InProcess(1), Gid::default(), 3);
    for (from, attributes, attribute) in [
        (Rtr, to_rts().timeout(32), "timeout"),
        (Rtr, to_rts().retry_cnt(8), "retry_cnt"),
        (Rtr, to_rts().rnr_retry(8), "rnr_retry"),
        (Rtr, to_rts().max_rd_atomic(17), "max_rd_atomic"),
        (Init, to_rtr().min_rnr_timer(32), "min_rnr_timer"),
        (Init, to_rtr().max_dest_rd_atomic(17), "max_dest_rd_atomic"),
        (Init, to_rtr().ah_attr(elsewhere), "ah_attr.port_num"),
        (Reset, to_init().port_num(0), "port_num"),
        (Reset, to_init().port_num(3), "port_num"),
    ] {
        match check(Rc, from, &attributes) {
            Err(BadModify::Value {
                attribute: named, ..
            }) => assert_eq!(named, attribute),
            other => panic!("{attribute}: {other:?}"),
        }
    }
    for (from, attributes) in [
        (
            Rtr,
            to_rts()
                .timeout(31)
                .retry_cnt(7)
                .rnr_retry(7)
                .max_rd_atomic(16),
        ),
        (Init, to_rtr().min_rnr_timer(31).max_dest_rd_atomic(16)),
        (Reset, to_init().port_num(2)),
    ] {
        assert!(check(Rc, from, &attributes).is_ok());
    }
    assert_eq!(
        Psn::new(0x0100_0001),
        Psn::new(1),
        "24 bits by construction"
    );
}

// covers 3.01 3.03 3.04
#[test]
fn a_refused_modify_explains_itself_and_changes_nothing() {
    let (_mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(8).wait().unwrap();
    let qp = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    let attributes = QpAttributes::new()
        .qp_state(Init)
        .port_num(1)
        .sq_psn(Psn::new(1));
    let error = qp.modify(attributes).wait().unwrap_err();
    assert_eq!(
        error.to_string(),
        "RESET to INIT: missing ACCESS_FLAGS | PKEY_INDEX, forbidden SQ_PSN"
    );
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(qp.query().unwrap().state, Reset);
}

#[test]
fn unfit_queue_pairs_are_refused_before_either_changes() {
    let (_mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(8).wait().unwrap();
    let make = |options| pd.create_qp(options).wait().unwrap();
    let rc = make(QpOptions::rc(&cq));
    let uc = make(QpOptions::uc(&cq));
    let ud = make(QpOptions::ud(&cq));
    let datagrams = make(QpOptions::ud(&cq));
    for (a, b, why) in [
        (&rc, &uc, "qp_type: RC and UC cannot be connected"),
        (&uc, &rc, "qp_type: UC and RC cannot be connected"),
        (&rc, &ud, "qp_type: RC and UD cannot be connected"),
        (&rc, &rc, "qp: is one queue pair twice"),
        (&ud, &datagrams, "qp_type: datagrams have no peer"),
    ] {
        let error = connect_pair(a, b, Access::empty()).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().starts_with(why), "{error}");
        for qp in [a, b] {
            assert_eq!(qp.query().unwrap().state, Reset, "{why}");
        }
    }
}

#[test]
fn connecting_from_init_grants_the_rights_of_the_connection() {
    let (_mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(8).wait().unwrap();
    let make = |options| pd.create_qp(options).wait().unwrap();
    let (a, b) = (make(QpOptions::rc(&cq)), make(QpOptions::rc(&cq)));
    for qp in [&a, &b] {
        qp.init(PathOptions::new()).wait().unwrap();
        let now = qp.query().unwrap();
        let rights = now.attributes.qp_access_flags;
        assert_eq!((now.state, rights), (Init, Some(Access::empty())));
    }
    connect_pair(&a, &b, Access::REMOTE_READ).wait().unwrap();
    let now = b.query().unwrap();
    let rights = now.attributes.qp_access_flags;
    assert_eq!((now.state, rights), (Rts, Some(Access::REMOTE_READ)));
    let ud = make(QpOptions::ud(&cq));
    ud.init(PathOptions::new().qkey(7)).wait().unwrap();
    assert_eq!(ud.query().unwrap().attributes.qkey, Some(7));
    assert!(a.init(PathOptions::new()).wait().is_err());
}

#[test]
fn a_device_that_connects_by_itself_receives_the_peer() {
    let (mock, context) = mock::open();
    mock.connects.store(true, Ordering::SeqCst);
    mock.fail_next("modify_qp");
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(8).wait().unwrap();
    let qp = || pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    let (a, b) = (qp(), qp());
    connect_pair(&a, &b, Access::empty()).wait().unwrap();
    for (qp, peer) in [(&a, &b), (&b, &a)] {
        let now = qp.query().unwrap();
        let expected = (Rts, Some(peer.qp_num()));
        assert_eq!((now.state, now.attributes.dest_qp_num), expected);
    }
}

#[test]
fn connecting_uses_the_masks_of_the_type_until_a_failure() {
    let (mock, context) = mock::open();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(8).wait().unwrap();
    for options in [QpOptions::rc(&cq), QpOptions::uc(&cq)] {
        let a = pd.create_qp(options.clone()).wait().unwrap();
        let b = pd.create_qp(options).wait().unwrap();
        connect_pair(&a, &b, Access::empty()).wait().unwrap();
        let (at_a, at_b) = (a.query().unwrap(), b.query().unwrap());
        assert_eq!((at_a.state, at_b.state), (Rts, Rts));
        assert_eq!(at_a.attributes.dest_qp_num, Some(b.qp_num()));
        assert_eq!(at_a.attributes.rq_psn, at_b.attributes.sq_psn);
        assert_eq!(at_a.attributes.path_mtu, Some(Mtu::Mtu1024));
        assert!(a.activate(PathOptions::new()).wait().is_err());
    }
    let qp = pd.create_qp(QpOptions::rc(&cq)).wait().unwrap();
    let peer = pd
        .create_qp(QpOptions::rc(&cq))
        .wait()
        .unwrap()
        .endpoint()
        .unwrap();
    let too_deep = PathOptions::new().max_rd_atomic(200);
    assert!(matches!(
        qp.connect(&peer, too_deep).wait(),
        Err(VerbError::BadModify(_))
    ));
    assert_eq!(qp.query().unwrap().state, Rtr);
    let ud = pd.create_qp(QpOptions::ud(&cq)).wait().unwrap();
    assert!(ud.connect(&peer, PathOptions::new()).wait().is_err());
    assert!(qp.endpoint_at(1, 9).is_err() && qp.endpoint_at(9, 0).is_err());
    // The steps are one request: the queue pair is busy until the last has ended.
    mock.delay();
    let fresh = pd.create_qp(QpOptions::rc(&cq));
    mock.run_all();
    let fresh = fresh.wait().unwrap();
    let connecting = fresh.connect(&peer, PathOptions::new());
    assert!(mock.run() && mock.run());
    assert_eq!(
        fresh.clone().destroy().wait().unwrap_err().kind(),
        ErrorKind::Busy
    );
    mock.run_all();
    connecting.wait().unwrap();
}
