//! Programs in virtual time: retries, RNR delays and command latency pass when the test advances the clock.

use std::time::Duration;

use polyverbs::completion::{SubmitError, Submitted};
use polyverbs::emulated::{self, EmulatedOptions, VirtualClock};
use polyverbs::qp::connect_pair_with;
use polyverbs::{Cq, PathOptions, Pd, Qp, QpOptions, Requirements, WcStatus, wr};

fn device(name: &str, options: EmulatedOptions) -> (Pd, Cq) {
    let device = emulated::device(name, &options).unwrap();
    let context = device.open(&Requirements::new()).unwrap();
    (
        context.alloc_pd().wait().unwrap(),
        context.create_cq(16).wait().unwrap(),
    )
}

fn pair((pd, cq): &(Pd, Cq), options: PathOptions) -> [Qp; 2] {
    let pair = [(); 2].map(|()| pd.create_qp(QpOptions::rc(cq)).wait().unwrap());
    connect_pair_with(&pair[0], &pair[1], options)
        .wait()
        .unwrap();
    pair
}

/// The status of a request, if it has completed.
fn status(submitted: &mut Submitted) -> Option<WcStatus> {
    match submitted.wait_for(Duration::ZERO) {
        Ok(done) => done.map(|done| done.status),
        Err(SubmitError::Failed(error)) => Some(error.status),
        Err(other) => panic!("{other}"),
    }
}

fn with_clock(clock: &VirtualClock) -> EmulatedOptions {
    EmulatedOptions {
        clock: Some(clock.clone()),
        ..EmulatedOptions::default()
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn rnr_retries_wait_until_the_test_advances_the_clock() {
    let clock = VirtualClock::new();
    let objects = device("ib0", with_clock(&clock));
    // The RNR timer code 14 is 1.28 ms.
    let patient = PathOptions::new().rnr_retry(2).min_rnr_timer(14);
    let [near, _far] = pair(&objects, patient);
    let mut early = near.submit(wr::Send::new(b"nobody waits for it"));
    clock.advance(2 * MILLISECOND).unwrap();
    assert_eq!(
        status(&mut early),
        None,
        "the second of three attempts has failed"
    );
    clock.advance(MILLISECOND).unwrap();
    assert_eq!(status(&mut early), Some(WcStatus::RnrRetryExcErr));
    assert_eq!(clock.now(), 3 * MILLISECOND);
}

#[test]
fn a_receive_that_is_posted_in_time_ends_the_rnr_retries() {
    let clock = VirtualClock::new();
    let objects = device("ib0", with_clock(&clock));
    let [near, far] = pair(&objects, PathOptions::new().rnr_retry(2).min_rnr_timer(14));
    let mut early = near.submit(wr::Send::new(b"early"));
    clock.advance(2 * MILLISECOND).unwrap();
    let pool = objects.0.register_buffers(1, 64).wait().unwrap();
    let message = far.receive(pool.take().unwrap());
    clock.advance_until_idle().unwrap();
    assert_eq!(status(&mut early), Some(WcStatus::Success));
    assert_eq!(message.wait().unwrap().buffer(), b"early");
}

#[test]
fn retries_of_a_lost_message_take_virtual_time() {
    let clock = VirtualClock::new();
    let options = EmulatedOptions {
        faults: "drop=100%".parse().unwrap(),
        ..with_clock(&clock)
    };
    let objects = device("ib0", options);
    // The timeout code 20 is 4.3 s; there are an attempt and three retries.
    let [near, _far] = pair(&objects, PathOptions::new().timeout(20).retry_cnt(3));
    let mut lost = near.submit(wr::Send::new(b"lost"));
    clock.advance(Duration::from_secs(17)).unwrap();
    assert_eq!(status(&mut lost), None);
    clock.advance_until_idle().unwrap();
    assert_eq!(status(&mut lost), Some(WcStatus::RetryExcErr));
    assert!(clock.now() > Duration::from_secs(17));
}

#[test]
fn a_control_verb_ends_when_its_latency_has_passed() {
    for name in ["ib0", "iw0"] {
        let clock = VirtualClock::new();
        let options = EmulatedOptions {
            command_latency: 5 * MILLISECOND,
            ..with_clock(&clock)
        };
        let device = emulated::device(name, &options).unwrap();
        let context = device.open(&Requirements::new()).unwrap();
        let made = context.alloc_pd();
        clock.advance(4 * MILLISECOND).unwrap();
        assert!(!made.is_done());
        clock.advance(MILLISECOND).unwrap();
        made.wait().unwrap();
    }
}

#[test]
fn a_device_on_an_ip_network_has_no_virtual_clock() {
    for name in ["ib0", "iw0"] {
        let options = with_clock(&VirtualClock::new());
        let at = "127.0.24.135".parse().unwrap();
        let error = emulated::device_at(name, at, &options).err().unwrap();
        assert!(error.to_string().contains("runs in real time"), "{error}");
    }
}
