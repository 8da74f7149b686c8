//! Profiles that are recorded from a device or imported from a posted text.

use capability_matrix::Matrix;
use polyverbs::capability::{GidSlot, GidType};
use polyverbs::emulated::{self, EmulatedOptions};
use polyverbs::{Device, Limit};
use polyverbs_profiles::{Ability, Profile, Unmet};
use serde_json::Value;

fn device(kind: &str) -> Device {
    emulated::device(kind, &EmulatedOptions::default()).unwrap()
}

/// The rows of a matrix about one device: what it claims, and with which values.
fn rows(matrix: &Value, device: &str) -> Vec<(String, Value)> {
    let of = |array: &str, name: &str, value: &dyn Fn(&Value) -> Value| {
        let rows = matrix[array].as_array().unwrap().iter();
        rows.map(|row| {
            let what = row[name].as_str().unwrap().to_owned();
            (what, value(&row["cells"][device]))
        })
        .collect::<Vec<_>>()
    };
    let features = of("rows", "feature", &|cell| cell["claimed"].clone());
    let claims = of("claims", "name", &|cell| cell.clone());
    let mut all: Vec<_> = features.into_iter().chain(claims).collect();
    all.retain(|(_, value)| !matches!(value, Value::Null | Value::Bool(false)));
    all
}

fn matrix(device: &Device) -> Value {
    Matrix::of(std::slice::from_ref(device)).unwrap().to_json()
}

#[test]
fn a_recorded_profile_gives_the_same_matrix() {
    for kind in ["ib0", "iw0"] {
        let own = device(kind);
        let verified = Matrix::verified(std::slice::from_ref(&own), &mut |_| ()).unwrap();
        let recorded = Profile::of_matrix(kind, "a test", &verified.to_json(), None).unwrap();
        // The written profile can be read, and says the same.
        let read = Profile::parse(kind, &recorded.to_toml()).unwrap();
        assert_eq!(read.differences(&recorded), []);
        let named = EmulatedOptions {
            name: Some(kind.to_owned()),
            ..EmulatedOptions::default()
        };
        let again = read.device(&named, &[]).unwrap();
        assert_eq!(rows(&matrix(&again), kind), rows(&matrix(&own), kind));
        assert_eq!(again.attributes().identity, own.attributes().identity);
    }
}

/// The rows in which a device that takes on an imported profile differs from the device that was measured.
fn differences(device: &str) -> Vec<String> {
    let text = include_str!("../../../docs/devices/matrix.json");
    let measured: Value = serde_json::from_str(text).unwrap();
    let profile = Profile::of_matrix("imported", "matrix.json", &measured, Some(device)).unwrap();
    let profile = Profile::parse("imported", &profile.to_toml()).unwrap();
    let named = EmulatedOptions {
        name: Some(device.to_owned()),
        ..EmulatedOptions::default()
    };
    let ours = rows(&matrix(&profile.device(&named, &[]).unwrap()), device);
    let theirs = rows(&measured, device);
    let told: Vec<_> = profile.unmet().unwrap();
    let is_told = |name: &str| {
        told.iter().any(|unmet| match unmet {
            Unmet::Limit { limit, .. } => limit.name() == name,
            Unmet::Ability(ability) => ability == name,
            _ => false,
        })
    };
    let value = |rows: &[(String, Value)], name: &str| {
        let found = rows.iter().find(|(known, _)| known == name);
        found.map_or(Value::Null, |(_, value)| value.clone())
    };
    let mut names: Vec<_> = ours
        .iter()
        .chain(&theirs)
        .map(|(name, _)| name.clone())
        .collect();
    names.dedup();
    names.sort();
    names.dedup();
    // The present matrix has rows that the older one lacks.
    let is_newer = |name: &str| !text.contains(&format!("\"{name}\""));
    names.retain(|name| {
        value(&ours, name) != value(&theirs, name) && !is_told(name) && !is_newer(name)
    });
    names
}

#[test]
fn devices_of_the_kernel_are_taken_on_row_by_row() {
    assert_eq!(differences("rxe0"), [""; 0]);
    // What an emulated iWARP device does in another way is in docs/profiles.md.
    assert_eq!(
        differences("siw0"),
        ["NO_MODIFY_TO_RTR", "READ_SINK_NEEDS_REMOTE_WRITE"]
    );
}

const POSTED: &str = "\
hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t16.23.1020
\tnode_guid:\t\t\t506b:4b03:00c2:0e98
\tvendor_id:\t\t\t0x02c9
\tvendor_part_id:\t\t\t4119
\thw_ver:\t\t\t\t0x0
\tboard_id:\t\t\tMT_0000000011
\tphys_port_cnt:\t\t\t1
\tmax_mr_size:\t\t\t0xffffffffffffffff
\tpage_size_cap:\t\t\t0xfffffffffffff000
\tmax_qp:\t\t\t\t262144
\tdevice_cap_flags:\t\t0xe5721c36
\t\t\t\t\tBAD_PKEY_CNTR
\tmax_sge:\t\t\t30
\tmax_srq:\t\t\t8388608
\tatomic_cap:\t\t\tATOMIC_HCA (1)
\tmax_mw:\t\t\t\t16777216
\tmax_mcast_grp:\t\t\t0
\t\tport:\t1
\t\t\tactive_mtu:\t\t1024 (3)
\t\t\tlink_layer:\t\tEthernet
\t\t\tGID[  0]:\t\tfe80:0000:0000:0000:526b:4bff:fec2:0e98, RoCE v1
\t\t\tGID[  1]:\t\tfe80::526b:4bff:fec2:e98, RoCE v2
\t\t\tGID[  2]:\t\t0000:0000:0000:0000:0000:ffff:c0a8:0102, RoCE v1
\t\t\tGID[  3]:\t\t::ffff:192.168.1.2, RoCE v2
\t\t\tmax_ms";

#[test]
fn a_profile_of_a_posted_text_has_no_names_and_addresses() {
    let imported = Profile::import("posted", "a page", POSTED).unwrap();
    let text = imported.profile.to_toml();
    for personal in ["506b", "526b", "192.168", "c0a8", "mlx5_0"] {
        assert!(!text.contains(personal), "{personal}\n{text}");
        assert!(imported.rest.iter().all(|line| !line.contains(personal)));
    }
    assert_eq!(imported.rest, ["board_id: MT_0000000011"]);
    let profile = Profile::parse("posted.toml", &text).unwrap();
    let value = |limit| profile.limit(limit).map(|(value, _)| value);
    assert_eq!(value(Limit::MaxMrSize), Some(u64::MAX));
    assert_eq!(
        (value(Limit::MaxSendSge), value(Limit::MaxRecvSge)),
        (Some(30), Some(30))
    );
    assert_eq!(value(Limit::MaxCq), None);
    let has = |name: &str| {
        profile
            .ability(&name.parse::<Ability>().unwrap())
            .map(|(has, _)| has)
    };
    assert_eq!(
        [
            "SRQ",
            "MULTICAST",
            "WINDOW_1",
            "WINDOW_2B",
            "WINDOW_2A",
            "ATOMICS",
            "RC"
        ]
        .map(has),
        [
            Some(true),
            Some(false),
            Some(true),
            Some(true),
            Some(false),
            Some(true),
            None
        ]
    );
    use GidType::{RoceV1, RoceV2};
    let gids = [
        GidSlot::LinkLocal(RoceV1),
        GidSlot::LinkLocal(RoceV2),
        GidSlot::Address(RoceV1),
        GidSlot::Address(RoceV2),
    ];
    assert_eq!(profile.gids().unwrap(), gids);
    // The device that takes it on says the same.
    let device = profile.device(&EmulatedOptions::default(), &[]).unwrap();
    assert_eq!(
        polyverbs_profiles::gid_layout(&device.attributes()).unwrap(),
        gids
    );
}

#[test]
fn other_texts_than_outputs_are_refused() {
    for (text, told) in [
        ("hello\n", "page: has no line of `ibv_devinfo -v`"),
        ("", "page: has no line of"),
        (
            "{ \"reports\": [",
            "page: is no JSON of `polyverbs matrix --json`: is it cut off?",
        ),
        ("{}", "page: has no `reports`"),
        ("max_qp: many\n", "page:1: max_qp is a number, not many"),
        (
            "a: b\nmax_qp: 99999999999999999999999\n",
            "page:2: max_qp is a number",
        ),
    ] {
        let complaint = Profile::import("x", "page", text).unwrap_err().to_string();
        assert!(complaint.starts_with(told), "{complaint}");
    }
    let two = include_str!("../../../docs/devices/matrix.json");
    let complaint = Profile::import("x", "page", two).unwrap_err().to_string();
    assert_eq!(
        complaint,
        "page: has several devices: name one of ib0, iw0, rxe0, siw0 with --device"
    );
}
