//! Whole programs on every shipped profile: each runs, or is refused when it opens the device, with the list of missing features;
//! none fails later.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::thread;

use polyverbs::emulated::{EmulatedOptions, ROCE_PORT};
use polyverbs::{Device, OpenError, Requirements};
use polyverbs_profiles::Profile;
use test_kit::waiting::until_some;

#[allow(dead_code)]
#[path = "../../../examples/copy.rs"]
mod copy;
#[allow(dead_code)]
#[path = "../../../examples/key_value.rs"]
mod key_value;

/// The result of a program on each profile: `None` where it ran, otherwise the missing features.
type Found = Vec<(String, Option<String>)>;

/// Runs a program on every profile whose device meets its requirements.
fn on_all(
    options: impl Fn(u8) -> EmulatedOptions,
    needs: &Requirements,
    program: impl Fn(&Device, &Profile),
) -> Found {
    let profiles = Profile::shipped().unwrap();
    let numbered = (1..).zip(&profiles);
    numbered
        .map(|(number, profile)| {
            let device = profile.device(&options(number), &[]).unwrap();
            let missing = match device.open(needs) {
                Ok(_) => {
                    program(&device, profile);
                    None
                }
                Err(OpenError::NotMet(shortfalls)) => Some(shortfalls[0].to_string()),
                Err(error) => panic!("{}: {error}", profile.name),
            };
            (profile.name.clone(), missing)
        })
        .collect()
}

#[track_caller]
fn assert_refused(found: &Found, expected: &[(&str, &str)]) {
    for (name, missing) in found {
        let wanted = expected.iter().find(|(refused, _)| refused == name);
        match (missing, wanted) {
            (None, None) => {}
            (Some(missing), Some((_, why))) if missing.contains(why) => {}
            _ => panic!("{name}: {missing:?}, expected {wanted:?}"),
        }
    }
}

#[test]
fn copy_runs_or_is_refused_when_it_opens_a_card() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    let bytes: Vec<u8> = (0..3_000_001_u32).map(|it| (it * 7 / 3) as u8).collect();
    fs::write(&source, &bytes).unwrap();
    let found = on_all(
        |_| EmulatedOptions::default(),
        &copy::needs(),
        |device, profile| {
            let target = folder.path().join(&profile.name);
            let context = device.open(&copy::needs()).unwrap();
            let (from, to) = (File::open(&source).unwrap(), File::create(&target).unwrap());
            let copied = copy::copy(&context, from, to);
            assert!(copied.is_ok(), "{}: {copied:?}", profile.name);
            assert!(fs::read(&target).unwrap() == bytes, "{}", profile.name);
        },
    );
    assert_refused(
        &found,
        &[
            ("apple-thunderbolt", "lacks baseline::RC"),
            ("aws-efa", "lacks baseline::RC"),
            ("broadcom-thor", "lacks baseline::INLINE"),
        ],
    );
}

#[test]
fn key_value_runs_or_is_refused_when_it_opens_a_card() {
    let at = |number| EmulatedOptions {
        at: Some(SocketAddr::new(
            IpAddr::V4(Ipv4Addr::new(127, 0, 77, number)),
            ROCE_PORT,
        )),
        ..EmulatedOptions::default()
    };
    let found = on_all(at, &key_value::needs(), |device, profile| {
        let polyverbs::ids::LinkAddress::Ip(address) = device.attributes().ports[0].address else {
            panic!("the device is at an address")
        };
        // A port that is free now.
        let port = TcpListener::bind((address, 0))
            .unwrap()
            .local_addr()
            .unwrap();
        let server = device.clone();
        // It serves until the process of the tests ends.
        thread::spawn(move || {
            let limits = key_value::Limits::parse(&[]).unwrap();
            key_value::on_tokio(key_value::serve(port, &server, limits))
        });
        let tried = until_some(|| {
            let tried = smol::block_on(key_value::try_on_smol(port, device));
            // It may not listen yet.
            let is_early = |error: &(dyn std::error::Error + Send + Sync)| {
                error.to_string().contains("listens")
            };
            match tried {
                Err(error) if is_early(&*error) => None,
                tried => Some(tried),
            }
        });
        assert!(tried.is_ok(), "{}: {tried:?}", profile.name);
    });
    let no_atomics = "lacks baseline::ATOMICS";
    assert_refused(
        &found,
        &[
            ("amd-ionic", no_atomics),
            ("apple-thunderbolt", "lacks baseline::RC"),
            ("aws-efa", "lacks baseline::RC"),
            ("azure-mana", no_atomics),
            ("broadcom-thor", no_atomics),
            ("chelsio-t6", no_atomics),
            ("intel-e810-iwarp", no_atomics),
            ("intel-e810-roce", no_atomics),
            ("intel-x722", no_atomics),
            ("siw-6.1", no_atomics),
        ],
    );
}
