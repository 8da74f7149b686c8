//! Calls that block until a deadline of the real clock, which they may exceed but not precede.

use std::time::{Duration, Instant};

use polyverbs_rds::{RdsError, Wait};

use crate::sockets::calls::stuck;
use crate::sockets::congestion::{congest, three};
use crate::sockets::{at, errno, over_both, sockets};
use crate::{receive_for, send_for};

/// Makes a call that cannot succeed, and asserts that it reports the timeout at or after its deadline.
#[track_caller]
fn times_out<T>(call: impl FnOnce(Instant) -> Result<T, RdsError>) {
    let deadline = Instant::now() + Duration::from_millis(20);
    assert_eq!(errno(call(deadline)), Some(libc::ETIMEDOUT));
    assert!(Instant::now() >= deadline);
}

// covers 8.25
#[test]
fn a_send_without_room_ends_at_its_deadline() {
    let (socket, nobody) = stuck();
    send_for(&socket, &[1; 1000], nobody, Wait::No).unwrap();
    times_out(|deadline| send_for(&socket, &[], nobody, Wait::Until(deadline)));
}

// covers 8.34
#[test]
fn a_send_to_a_congested_destination_ends_at_its_deadline() {
    over_both(|transport| {
        let [near, far, _] = three(transport);
        congest(&near, at(&far));
        times_out(|deadline| send_for(&near, b"late", at(&far), Wait::Until(deadline)));
    });
}

#[test]
fn a_receive_ends_at_its_deadline_or_at_once() {
    over_both(|transport| {
        let [socket] = sockets(transport);
        let nothing = receive_for(&socket, &mut [], Wait::No);
        assert_eq!(errno(nothing), Some(libc::EAGAIN));
        times_out(|deadline| receive_for(&socket, &mut [], Wait::Until(deadline)));
    });
}

#[test]
fn flush_ends_at_its_deadline() {
    let (socket, nobody) = stuck();
    socket.send_to(b"never acknowledged", nobody).unwrap();
    times_out(|deadline| socket.flush(Wait::Until(deadline)));
}
