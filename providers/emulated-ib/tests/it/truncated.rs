//! Frames that were truncated on the way.

use std::sync::Arc;

use crate::support::*;
use verbs_api::provider::Mutex;
use verbs_api::{capability::Mtu, wr};

/// One byte after those that requests may access.
const GUARD: usize = 200_000;

// Posts requests that cause every kind of frame, in both directions.
fn post_all(rig: &Rig) {
    let (a, b) = (&rig.a, &rig.b);
    a.write(0, &pattern(600, 1));
    b.write(GUARD, &pattern(1000, 9));
    a.write(GUARD, &pattern(1000, 9));
    b.receive(11, 0, 600);
    b.receive(12, 4096, 0);
    a.post(wr::Send::new(a.sge(0, 600)).signaled(1));
    a.post(wr::WriteWithImmediate::new(a.sge(0, 600), b.remote(8192), *b"imm.").signaled(2));
    a.post(wr::Read::new(a.sge(4096, 600), b.remote(8192)).signaled(3));
    a.post(wr::FetchAdd::new(a.sge(8192, 8), b.remote(16_384), 5).signaled(4));
    a.post(wr::AtomicWrite::new(a.sge(0, 8), b.remote(16_392)).signaled(5));
    a.post(wr::Write::new(a.sge(0, 0), b.remote(0)).signaled(6));
}

fn setup() -> Setup {
    Setup {
        mtu: Some(Mtu::Mtu256),
        timeout: 8,
        ..Setup::default()
    }
}

// Posts everything, with frame `number` cut to `length` bytes. Returns `None` if the frame is not longer than that.
fn cut(number: usize, length: usize, damaged: bool) -> Option<Rig> {
    let rig = Rig::new(setup());
    let taken: Arc<Mutex<Option<OwnFrame>>> = Arc::default();
    let (take, mut count) = (Arc::clone(&taken), 0);
    rig.wire.rule(move |frame| {
        count += 1;
        if count - 1 != number {
            return Fate::Pass;
        }
        *take.lock() = Some(frame.clone());
        Fate::Drop
    });
    post_all(&rig);
    let mut frame = taken.lock().take()?;
    if length >= frame.payload.len() && !damaged {
        return None;
    }
    frame.payload.truncate(length);
    frame.damaged = damaged;
    rig.inject([frame]);
    rig.run();
    Some(rig)
}

fn frames() -> usize {
    let rig = Rig::new(setup());
    post_all(&rig);
    rig.run();
    assert_eq!(rig.a.done(), ok(1..=6));
    rig.wire.log().len()
}

// covers 3.58 6.19
#[test]
fn a_frame_with_a_wrong_checksum_is_dropped_and_sent_again() {
    for number in 0..frames() {
        for length in [0, 1, 100, 255] {
            let Some(rig) = cut(number, length, true) else {
                continue;
            };
            assert_eq!(rig.a.done(), ok(1..=6), "frame {number} cut to {length}");
            assert_eq!(rig.b.read(0, 600), pattern(600, 1));
            assert_eq!(rig.a.read(4096, 600), pattern(600, 1));
            assert_eq!(rig.b.memory.load_u64(16_384).unwrap(), 5, "once");
        }
    }
}

// covers 6.19
#[test]
fn a_frame_that_contradicts_itself_is_refused_at_every_length() {
    let mut cuts = 0;
    for number in 0..frames() {
        for length in 0..256 {
            let Some(rig) = cut(number, length, false) else {
                break;
            };
            cuts += 1;
            // Each request has ended once, and no byte was written to a wrong place.
            let mut ended: Vec<_> = rig.a.done().into_iter().map(|(wr_id, _)| wr_id).collect();
            ended.sort_unstable();
            assert_eq!(
                ended,
                (1..=6).collect::<Vec<_>>(),
                "frame {number} cut to {length}"
            );
            for side in [&rig.a, &rig.b] {
                assert_eq!(side.read(GUARD, 1000), pattern(1000, 9));
                let mut received: Vec<_> =
                    side.done().into_iter().map(|(wr_id, _)| wr_id).collect();
                received.dedup();
                assert!(received.len() <= 2);
            }
        }
    }
    assert!(cuts > 1000, "{cuts}");
}
