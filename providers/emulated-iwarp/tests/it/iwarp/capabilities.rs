//! The claims of the device.

use emulated_iwarp::Iwarp;
use polyverbs_engine::device::{Device, DeviceOptions};
use verbs_api::provider::DeviceOps;
use verbs_api::{
    Features, QpOptions, Transport, VerbError, WcStatus,
    capability::{AtomicScope, BaselineGaps, PortCaps},
    event::EventType,
    extension::Extensions,
    ids::LinkAddress,
    wr::{self, PostReason},
};

use crate::iwarp::lab::Lab;

#[test]
fn the_device_claims_iwarps_features_and_lists_its_gaps() {
    let lab = Lab::direct();
    let attributes = DeviceOps::attributes(&*lab.a.device);
    assert_eq!(
        (attributes.name.as_str(), attributes.transport),
        ("iw1", Transport::Iwarp)
    );
    assert!(
        attributes
            .features
            .contains(Features::IWARP_MANDATORY | Features::SRQ)
    );
    let never = Features::WINDOW_1
        | Features::WINDOW_2A
        | Features::ATOMIC_WRITE
        | Features::FLUSH
        | Features::MULTICAST;
    assert!(!attributes.features.intersects(never));
    assert_eq!(attributes.gaps, emulated_iwarp::caps::GAPS);
    assert_eq!(attributes.atomic_cap, AtomicScope::Global);
    assert_eq!(attributes.ports[0].caps, PortCaps::IWARP);
}

#[test]
fn features_without_a_linked_emulation_are_gaps() {
    let lab = Lab::direct();
    let options = DeviceOptions {
        extensions: Some(Extensions::new()),
        ..DeviceOptions::default()
    };
    let driver = Iwarp::new("bare", LinkAddress::InProcess(9));
    let attributes = DeviceOps::attributes(&*Device::new(driver, &lab.network, options).unwrap());
    let built_in = Features::SRQ | Features::COMPLETION_COUNTERS | Features::ON_DEMAND;
    assert_eq!(attributes.features, built_in);
    assert!(
        attributes
            .gaps
            .contains(BaselineGaps::NO_BMME | BaselineGaps::NO_READ_WITH_INVALIDATE)
    );
}

#[test]
fn a_change_of_the_ports_speed_is_reported_once() {
    let lab = Lab::direct();
    let speed = || lab.a.context.query_port(1).unwrap().speed;
    assert_eq!(speed(), 2_500);
    lab.a.device.set_port_speed(100_000);
    lab.a.device.set_port_speed(100_000);
    assert_eq!(speed(), 100_000);
    assert_eq!(lab.a.events(), [EventType::DeviceSpeedChange]);
}

// covers 1.13 2.61
#[test]
fn a_read_has_one_entry() {
    let lab = Lab::direct();
    let two = [lab.a.sge(0, 8), lab.a.sge(8, 8)];
    let refused = lab
        .a
        .qp
        .post_one(wr::Read::new(&two, lab.b.remote(0)))
        .unwrap_err();
    assert_eq!(refused.reason, PostReason::TooManySges { max: 1, given: 2 });
    lab.a
        .post(wr::Read::new(lab.a.sge(0, 8), lab.b.remote(0)).signaled(1));
    assert_eq!(lab.a.statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn a_send_carries_no_immediate_data() {
    let lab = Lab::direct();
    let refused = lab
        .a
        .qp
        .post_one(wr::SendWithImmediate::new((), [1, 2, 3, 4]))
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "refused: SEND_WITH_IMM: this device has the gap NO_SEND_WITH_IMMEDIATE"
    );
    let ud = lab.a.pd.create_qp(QpOptions::ud(&lab.a.cq)).wait();
    assert_eq!(ud.unwrap_err(), VerbError::BaselineGap(BaselineGaps::NO_UD));
}
