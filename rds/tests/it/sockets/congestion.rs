//! Congestion: a receiver that does not read.

use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::thread;

use polyverbs_rds::{RdsError, RdsSocket, RdsTransport, Wait};

use crate::send_for;
use crate::sockets::{at, errno, over_both, receive, socket_at, sockets};

/// Sends until the destination is congested. Returns how many messages were sent.
pub(crate) fn congest(near: &RdsSocket, to: SocketAddr) -> usize {
    congest_with(&[1; 1000], near, to)
}

fn congest_with(message: &[u8], near: &RdsSocket, to: SocketAddr) -> usize {
    let mut sent = 0;
    test_kit::waiting::until_some(|| {
        loop {
            match send_for(near, message, to, Wait::No) {
                Ok(_) => sent += 1,
                Err(RdsError::WouldBlock) => return None,
                Err(error) => {
                    assert_eq!(error.errno(), libc::ENOBUFS);
                    return Some(sent);
                }
            }
        }
    })
}

/// A sender, a receiver with a small buffer, and another socket at the receiver's address.
pub(crate) fn three(transport: RdsTransport) -> [RdsSocket; 3] {
    let [near, far] = sockets(transport);
    far.set_options(|options| options.receive_buffer = 5000);
    let other = socket_at(SocketAddr::new(at(&far).ip(), 0), transport);
    [near, far, other]
}

// covers 8.33 8.34
#[test]
fn only_the_congested_port_of_a_host_is_refused() {
    over_both(|transport| {
        let [near, far, other] = three(transport);
        congest(&near, at(&far));
        for _ in 0..100 {
            near.send_to(&[2; 4000], at(&other)).unwrap();
            assert_eq!(receive(&other, 4000), [2; 4000]);
        }
        let refused = send_for(&near, b"no", at(&far), Wait::No).unwrap_err();
        assert_eq!(refused.errno(), libc::ENOBUFS);
        assert!(near.counters().unwrap().cong_send_error > 0);
    });
}

// covers 8.33 8.34
#[test]
fn a_blocked_send_continues_when_the_receiver_has_read() {
    over_both(|transport| {
        let [near, far, _] = three(transport);
        let sent = congest(&near, at(&far));
        thread::scope(|scope| {
            let waits = scope.spawn(|| near.send_to(b"free", at(&far)).unwrap());
            // The destination stays congested until the receiver reads.
            let refused = send_for(&near, b"refused", at(&far), Wait::No);
            assert_eq!(errno(refused), Some(libc::ENOBUFS));
            assert!(!waits.is_finished());
            (0..sent).for_each(|_| assert_eq!(receive(&far, 1000), [1; 1000]));
            waits.join().unwrap();
            assert_eq!(receive(&far, 1000), b"free");
        });
    });
}

// covers 8.35
#[test]
fn a_monitor_gets_the_group_of_the_free_port() {
    over_both(|transport| {
        let [near, far, _] = three(transport);
        near.set_options(|options| options.congestion_monitor = true);
        let sent = congest(&near, at(&far));
        assert!(!near.readiness().readable);
        (0..sent).for_each(|_| assert_eq!(receive(&far, 1000), [1; 1000]));
        let mut room = [0; 10];
        let wait = Wait::Until(test_kit::waiting::deadline());
        let told = near.recv_msg(&mut [IoSliceMut::new(&mut room)], wait, false);
        let told = told.unwrap();
        assert_eq!(told.congestion, Some(1 << (at(&far).port() % 64)));
        assert_eq!((told.from, told.length), (None, 0));
        // Messages that were still on their way may have made the port congested again.
        test_kit::waiting::until(|| send_for(&near, b"free", at(&far), Wait::No).is_ok());
    });
}

// covers 8.33 8.49
#[test]
fn closing_a_receiver_ends_its_congestion() {
    over_both(|transport| {
        let [near, far, _other] = three(transport);
        congest(&near, at(&far));
        let to = at(&far);
        drop(far);
        test_kit::waiting::until(|| send_for(&near, b"dropped", to, Wait::No).is_ok());
    });
}

// covers 8.33
#[test]
fn unread_short_messages_leave_memory_for_others() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        // If each message took the memory of a whole fragment, they would need more than there is.
        let idle = [(); 6].map(|()| socket_at(SocketAddr::new(at(&far).ip(), 0), transport));
        let sent = idle
            .each_ref()
            .map(|idle| congest_with(&[1; 8], &near, at(idle)));
        assert!(sent.iter().sum::<usize>() * 4096 > 256 << 20);
        near.send_to(&[2; 4000], at(&far)).unwrap();
        assert_eq!(receive(&far, 4000), [2; 4000]);
        assert_eq!(far.counters().unwrap().conn_reset, 0);
    });
}
