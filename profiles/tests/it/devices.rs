//! Emulated devices that take on a profile.

use polyverbs::capability::{AtomicScope, Baseline, Mtu};
use polyverbs::emulated::EmulatedOptions;
use polyverbs::{Limit, OpenError, Requirements};
use polyverbs_profiles::{Profile, Unmet, Wanted};

fn profile(name: &str) -> Profile {
    Profile::named(name).unwrap()
}

#[test]
fn each_shipped_profile_is_taken_on() {
    for profile in Profile::shipped().unwrap() {
        let device = profile.device(&EmulatedOptions::default(), &[]).unwrap();
        let attributes = device.attributes();
        let unmet = profile.unmet().unwrap();
        for fact in &profile.facts {
            for &(limit, value) in &fact.limits {
                let offered = attributes.limits.value(limit);
                // A limit that is beyond ours is in the list of unmet ones.
                let is_told = unmet
                    .iter()
                    .any(|it| matches!(it, Unmet::Limit { limit: told, .. } if *told == limit));
                assert!(
                    offered == value || is_told,
                    "{}: {limit} is {offered}",
                    profile.name
                );
            }
            for ability in &fact.lacks {
                assert!(!ability.is_of(&attributes), "{}: {ability}", profile.name);
            }
        }
        let context = device
            .open(&Requirements::everything_of(&attributes))
            .unwrap();
        assert_eq!(
            context.attributes().identity,
            profile.identity().unwrap_or(attributes.identity)
        );
    }
}

#[test]
fn an_identity_and_a_table_of_gids_are_those_of_the_profile() {
    let thor = profile("broadcom-thor");
    let attributes = thor.attributes().unwrap();
    assert_eq!(attributes.identity.vendor_id, 0x14e4);
    assert_eq!(attributes.ports[0].gids.len(), 4);
    let cx5 = profile("mellanox-cx5").attributes().unwrap();
    assert_eq!(cx5.atomic_cap, AtomicScope::Hca);
    // An unknown fact stays that of the emulated device.
    assert_eq!(cx5.ports[0].active_mtu, Mtu::Mtu4096);
}

#[test]
fn limits_beyond_ours_are_told() {
    let unmet = profile("mellanox-cx5").unmet().unwrap();
    let told: Vec<_> = unmet.iter().map(ToString::to_string).collect();
    assert!(
        told.contains(&"max_mr 4194304 instead of 16777216".to_owned()),
        "{told:?}"
    );
    assert!(profile("intel-x722").unmet().unwrap().is_empty());
}

#[test]
fn opening_a_card_lists_everything_that_it_lacks() {
    let device = profile("amd-ionic")
        .device(&EmulatedOptions::default(), &[])
        .unwrap();
    let wanted = Requirements::new()
        .needs(Baseline::UC)
        .at_least(Limit::MaxSendSge, 16);
    let Err(OpenError::NotMet(shortfalls)) = device.open(&wanted) else {
        panic!("a device without UC was opened for it")
    };
    let told = shortfalls[0].to_string();
    assert!(told.contains("lacks baseline::UC"), "{told}");
    assert!(
        told.contains("max_send_sge: wanted at least 16, offered 8"),
        "{told}"
    );
}

#[test]
fn requirements_are_answered_without_a_device() {
    let wanted = Wanted::parse(
        "r",
        "needs = [\"RC\", \"SRQ\"]\n[limits]\nmax_mr = 5000000\n",
    )
    .unwrap();
    let runs = wanted.check(&profile("mellanox-cx5")).unwrap();
    assert!(
        runs.shortfall.is_none() && runs.unknown.is_empty(),
        "{runs:?}"
    );
    let lacks = wanted.check(&profile("amd-ionic")).unwrap();
    let told = lacks.shortfall.as_ref().unwrap().to_string();
    assert!(told.starts_with("amd-ionic: lacks SRQ"), "{told}");
    assert_eq!(
        (lacks.runs(), &*lacks.unknown),
        (Some(false), &["max_mr".to_owned()][..])
    );
    assert!(!told.contains("max_mr"), "{told}");
    // Only unknown facts are in the way.
    let lx = wanted.check(&profile("mellanox-cx4-lx")).unwrap();
    assert_eq!(lx.runs(), None);
}

#[test]
fn a_quirk_that_is_turned_off_must_exist() {
    let wrong = profile("amd-ionic").device(&EmulatedOptions::default(), &["budget-qp".into()]);
    let told = wrong.err().unwrap().to_string();
    assert_eq!(
        told,
        "amd-ionic has no quirk budget-qp; it has budget-res-rd-atom, mr-access-refused, qp-type-refused"
    );
}

#[test]
fn a_card_without_connections_has_no_reads_and_writes() {
    let wanted = Wanted::parse("r", "needs = [\"READ\", \"WRITE\"]\n").unwrap();
    let answer = wanted.check(&profile("aws-efa")).unwrap();
    let told = answer.shortfall.unwrap().to_string();
    assert_eq!(told, "aws-efa: lacks baseline::WRITE; lacks baseline::READ");
    assert!(
        wanted
            .check(&profile("mellanox-cx5"))
            .unwrap()
            .shortfall
            .is_none()
    );
}
