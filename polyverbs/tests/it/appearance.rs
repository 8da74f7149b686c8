//! Devices that look like devices of another kind: other vendors, other scopes of atomics, other ports, less of the baseline.

use polyverbs::capability::{AtomicScope, Baseline, BaselineGaps, GidSlot, GidType, Identity, Mtu};
use polyverbs::emulated::{self, Appearance, EmulatedOptions};
use polyverbs::qp::AddressVector;
use polyverbs::{Device, Limit, OpenError, QpOptions, Requirements, VerbError};

fn device(options: EmulatedOptions) -> Device {
    emulated::device("ib0", &options).unwrap()
}

#[test]
fn a_device_reports_the_appearance_that_it_was_given() {
    let identity = Identity {
        vendor_id: 0x1dd8,
        vendor_part_id: 4098,
        hw_ver: 2,
        fw_ver: "1.117.1-a-63".into(),
    };
    let appearance = Appearance {
        identity: Some(identity.clone()),
        atomic_cap: Some(AtomicScope::Hca),
        active_mtu: Some(Mtu::Mtu1024),
        gids: Some(vec![
            GidSlot::Empty,
            GidSlot::Address(GidType::RoceV1),
            GidSlot::Address(GidType::RoceV2),
            GidSlot::LinkLocal(GidType::RoceV2),
        ]),
    };
    let own = device(EmulatedOptions::default()).attributes();
    let attributes = device(EmulatedOptions {
        appearance,
        ..EmulatedOptions::default()
    })
    .attributes();
    assert_eq!(attributes.identity, identity);
    assert_eq!(attributes.atomic_cap, AtomicScope::Hca);
    let [port] = &attributes.ports[..] else {
        panic!("a device has one port")
    };
    let [link_local, address] = [0, 1].map(|index| own.ports[0].gids[index].gid);
    let gids: Vec<_> = port.gids.iter().map(|it| (it.gid, it.gid_type)).collect();
    assert_eq!(port.active_mtu, Mtu::Mtu1024);
    assert_eq!(
        gids[1..],
        [
            (address, GidType::RoceV1),
            (address, GidType::RoceV2),
            (link_local, GidType::RoceV2)
        ]
    );
    assert!(port.gids[0].is_empty());
}

#[test]
fn a_path_from_an_empty_gid_is_refused() {
    let device = device(EmulatedOptions {
        appearance: Appearance {
            gids: Some(vec![GidSlot::Empty, GidSlot::Address(GidType::RoceV2)]),
            ..Appearance::default()
        },
        ..EmulatedOptions::default()
    });
    let context = device.open(&Requirements::new()).unwrap();
    let port = context.query_port(1).unwrap();
    let pd = context.alloc_pd().wait().unwrap();
    let from = |sgid_index| {
        let path = AddressVector::new(port.address, port.gid(1).unwrap(), 1);
        pd.create_ah(AddressVector { sgid_index, ..path }).wait()
    };
    assert!(matches!(
        from(0),
        Err(VerbError::InvalidArgument {
            argument: "sgid_index",
            ..
        })
    ));
    assert!(from(1).is_ok());
}

#[test]
fn a_device_without_a_baseline_ability_refuses_it() {
    let device = device(EmulatedOptions {
        gaps: BaselineGaps::NO_UC | BaselineGaps::NO_ATOMICS,
        ..EmulatedOptions::default()
    });
    let attributes = device.attributes();
    assert_eq!(attributes.atomic_cap, AtomicScope::None);
    let wanted = Requirements::new().needs(Baseline::UC);
    assert!(matches!(device.open(&wanted), Err(OpenError::NotMet(_))));
    let context = device.open(&Requirements::new()).unwrap();
    let pd = context.alloc_pd().wait().unwrap();
    let cq = context.create_cq(4).wait().unwrap();
    let refused = pd.create_qp(QpOptions::uc(&cq)).wait().unwrap_err();
    assert!(matches!(refused, VerbError::BaselineGap(_)), "{refused}");
    assert!(pd.create_qp(QpOptions::rc(&cq)).wait().is_ok());
}

#[test]
fn masks_and_minima_are_weakened_in_their_direction() {
    let limits = device(EmulatedOptions {
        limits: vec![
            (Limit::PageSizeCap, 0x4020_1000),
            (Limit::LocalCaAckDelay, 15),
            (Limit::MaxQp, 10),
            (Limit::MaxQpRdAtom, 4),
        ],
        ..EmulatedOptions::default()
    })
    .attributes()
    .limits;
    assert_eq!(limits.page_size_cap, 0x4020_1000);
    assert_eq!(limits.local_ca_ack_delay, 15);
    // The device serves what its queue pairs serve together, if nothing else is said.
    assert_eq!(limits.max_res_rd_atom, 40);
}
