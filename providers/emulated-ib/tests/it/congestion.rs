//! Congestion on the path: the sender is notified and sends less. Also frames that do not belong to the connection.

use std::time::Duration;

use crate::support::*;
use emulated_ib::header::{Body, Position, SendExtra};
use verbs_api::qp::QpType;
use verbs_api::{capability::Mtu, ids::LinkAddress, wr};

const SEND: Body = Body::Send(Position::Only, SendExtra::Nothing);

fn notifications(rig: &Rig) -> usize {
    let log = rig.wire.log();
    let told = |frame: &&OwnFrame| frame.header.body == Body::Congestion;
    log.iter().filter(told).count()
}

fn marked(rig: &Rig, offset: u32) -> OwnFrame {
    let mut frame = rig.request(offset, SEND, &[1; 8]);
    frame.header.ip.traffic_class |= 0b11;
    frame
}

#[test]
fn a_congestion_mark_notifies_the_sender_but_not_too_often() {
    let rig = Rig::rc();
    (0..4).for_each(|id| rig.b.receive(id, 0, 64));
    rig.inject([marked(&rig, 0), marked(&rig, 1), marked(&rig, 2)]);
    rig.run();
    assert_eq!(rig.b.done(), ok(0..3), "it is delivered all the same");
    assert_eq!(notifications(&rig), 1);
    let log = rig.wire.log();
    let told = log
        .iter()
        .find(|frame| frame.header.body == Body::Congestion)
        .expect("a notification");
    assert_eq!(told.to, rig.a.address());
    assert_eq!(told.header.ip.traffic_class & 0b11, 0, "unmarked");
    rig.run_for(Duration::from_millis(1));
    rig.inject([marked(&rig, 3)]);
    rig.run();
    assert_eq!(notifications(&rig), 2);
}

#[test]
fn frames_of_reliable_connections_may_be_marked() {
    for (rig, bits) in [(Rig::rc(), 0b10), (Rig::uc(), 0)] {
        rig.b.receive(1, 0, 64);
        rig.a.post(wr::Send::new(rig.a.sge(0, 8)).signaled(1));
        rig.run();
        assert_eq!(rig.wire.log()[0].header.ip.traffic_class & 0b11, bits);
    }
}

#[test]
fn a_notified_sender_has_fewer_frames_under_way() {
    let most_under_way = |tell: bool| {
        let rig = Rig::new(Setup {
            mtu: Some(Mtu::Mtu256),
            ..Setup::default()
        });
        if tell {
            for _ in 0..3 {
                // The requests take a round between two notifications, so that each counts.
                rig.inject([rig.answer(0, Body::Congestion, &[])]);
                rig.a
                    .post(wr::Write::new(rig.a.sge(0, 8), rig.b.remote(0)).signaled(1));
                rig.run();
            }
            rig.a.done();
        }
        rig.wire.forget();
        rig.wire.rule(|_| Fate::Drop);
        rig.a
            .post(wr::Write::new(rig.a.sge(0, 65_536), rig.b.remote(0)).signaled(2));
        rig.wire.log().len()
    };
    let (free, told) = (most_under_way(false), most_under_way(true));
    assert!(told < free, "{told} of {free}");
}

// covers 3.57
#[test]
fn frames_of_another_peer_or_service_are_dropped() {
    let rig = Rig::rc();
    rig.b.receive(1, 0, 64);
    let mut elsewhere = rig.request(0, SEND, &[1; 8]);
    elsewhere.from = LinkAddress::InProcess(77);
    let mut other = rig.request(0, SEND, &[1; 8]);
    other.header.service = QpType::Uc;
    rig.inject([elsewhere, other]);
    rig.run();
    assert_eq!((rig.b.done(), rig.answers()), (vec![], vec![]));
    assert_eq!(rig.b.counters().dropped, 1);
    rig.inject([rig.request(0, SEND, &[1; 8])]);
    rig.run();
    assert_eq!(rig.b.done(), ok([1]));
}
