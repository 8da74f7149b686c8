//! Calls that block, with and without a deadline, calls that do not block, and calls that are
//! awaited.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use polyverbs_rds::{RdsSocket, RdsTransport, Wait};
use rustix::event::{PollFd, PollFlags, poll};

use crate::send_for;
use crate::sockets::{address, at, errno, over_both, receive, sockets};

/// Wakes a thread and counts the wake-ups.
struct Unpark(Thread, AtomicUsize);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current(), AtomicUsize::new(0))));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        thread::park();
    }
}

/// A socket whose send buffer is full of messages to an address without a host. Returns that
/// address too.
pub(crate) fn stuck() -> (RdsSocket, SocketAddr) {
    let [socket] = sockets(RdsTransport::InfiniBand);
    socket.set_options(|options| options.send_buffer = 1000);
    let nobody = SocketAddr::new(address(), 4000);
    (socket, nobody)
}

// covers 8.25
#[test]
fn a_full_send_buffer_refuses_messages_until_there_is_room() {
    let (socket, nobody) = stuck();
    send_for(&socket, &[1; 999], nobody, Wait::No).unwrap();
    send_for(&socket, &[2; 1000], nobody, Wait::No).unwrap();
    assert!(!socket.readiness().writable);
    let full = send_for(&socket, &[], nobody, Wait::No);
    assert_eq!(errno(full), Some(libc::EAGAIN));
}

// covers 8.25 8.36
#[test]
fn a_blocked_send_continues_when_another_thread_cancels() {
    let (socket, nobody) = stuck();
    send_for(&socket, &[1; 1000], nobody, Wait::No).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| socket.send_to(&[2; 1000], nobody));
        test_kit::waiting::until(|| {
            socket.cancel_sent_to(Some(nobody)).unwrap();
            waits.is_finished()
        });
        assert_eq!(waits.join().unwrap().unwrap(), 1000);
    });
}

// covers 8.36
#[test]
fn cancelling_for_one_destination_keeps_the_others() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        let nobody = SocketAddr::new(address(), 4000);
        near.send_to(&[1; 1000], nobody).unwrap();
        near.send_to(b"kept", at(&far)).unwrap();
        near.cancel_sent_to(Some(nobody)).unwrap();
        assert_eq!(receive(&far, 100), b"kept");
        let paths = near.paths().unwrap();
        let path = paths.iter().find(|path| path.peer == nobody.ip()).unwrap();
        assert_eq!((path.queued, path.unacknowledged), (0, 0));
    });
}

// covers 8.49
#[test]
fn closing_a_socket_gives_up_its_unsent_messages() {
    let (socket, nobody) = stuck();
    let other = RdsSocket::bind(SocketAddr::new(at(&socket).ip(), 0)).unwrap();
    socket.send_to(&[1; 1000], nobody).unwrap();
    assert_eq!(other.paths().unwrap()[0].queued, 1);
    drop(socket);
    assert_eq!(other.paths().unwrap()[0].queued, 0);
}

#[test]
fn a_receive_blocks_until_a_message_arrives() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let mut room = [0; 100];
                let received = far.recv_from(&mut room).unwrap();
                room[..received.length].to_vec()
            });
            near.send_to(b"at last", at(&far)).unwrap();
            assert_eq!(waits.join().unwrap(), b"at last");
        });
    });
}

#[test]
fn calls_can_be_awaited() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        for number in 0..100_u8 {
            let message = [number; 9000];
            block_on(near.send_to_async(&message, at(&far))).unwrap();
            let mut room = [0; 9000];
            let received = block_on(far.recv_from_async(&mut room)).unwrap();
            assert_eq!(received.length, 9000);
            assert_eq!(room, message);
        }
    });
}

// covers 8.25
#[test]
fn an_awaited_send_is_woken_when_there_is_room() {
    let (socket, nobody) = stuck();
    send_for(&socket, &[1; 1000], nobody, Wait::No).unwrap();
    let woken = Arc::new(Unpark(thread::current(), AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let mut send = pin!(socket.send_to_async(&[2; 1000], nobody));
    for _ in 0..3 {
        assert!(send.as_mut().poll(&mut cx).is_pending());
    }
    assert_eq!(woken.1.load(Ordering::SeqCst), 0);
    socket.cancel_sent_to(None).unwrap();
    assert_eq!(woken.1.load(Ordering::SeqCst), 1);
    assert!(send.as_mut().poll(&mut cx).is_ready());
}

#[test]
fn a_change_of_readiness_calls_the_callback() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        let told = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&told);
        far.on_change(Some(Arc::new(move || {
            counts.fetch_add(1, Ordering::SeqCst);
        })));
        near.send_to(b"readable", at(&far)).unwrap();
        // A new connection brings a congestion map first, which is reported too.
        let mut seen = 0;
        while !far.readiness().readable {
            seen = test_kit::waiting::until_some(|| {
                Some(told.load(Ordering::SeqCst)).filter(|count| *count > seen)
            });
        }
        far.on_change(None);
        test_kit::waiting::until(|| Arc::strong_count(&told) == 1);
        receive(&far, 100);
        let before = told.load(Ordering::SeqCst);
        near.send_to(b"again", at(&far)).unwrap();
        receive(&far, 100);
        assert_eq!(told.load(Ordering::SeqCst), before);
    });
}

// covers 8.20
#[test]
fn a_descriptor_is_readable_until_readiness_is_read() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        let is_readable = |socket: &RdsSocket, time: Duration| {
            let fd = socket.fd().unwrap();
            let time = time.try_into().unwrap();
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time)).unwrap() == 1
        };
        for socket in [&near, &far] {
            assert!(is_readable(socket, Duration::ZERO));
        }
        while far.readiness().readable || is_readable(&far, Duration::ZERO) {}
        near.send_to(b"readable", at(&far)).unwrap();
        assert!(is_readable(&far, test_kit::waiting::PATIENCE));
        test_kit::waiting::until(|| far.readiness().readable);
        receive(&far, 100);
        assert!(!far.readiness().readable);

        // The descriptor becomes readable when there is room to send again.
        near.set_options(|options| options.send_buffer = 5000);
        let nobody = SocketAddr::new(address(), 4000);
        near.send_to(&[1; 5000], nobody).unwrap();
        while near.readiness().writable || is_readable(&near, Duration::ZERO) {}
        near.cancel_sent_to(Some(nobody)).unwrap();
        assert!(is_readable(&near, test_kit::waiting::PATIENCE));
        assert!(near.readiness().writable);
    });
}

#[test]
fn paths_and_counters_show_what_was_sent() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        let mut first = None;
        for _ in 0..20 {
            near.send_to(&[1; 9000], at(&far)).unwrap();
            first = first.or(Some(near.paths().unwrap()[0].next_transmit - 1));
            receive(&far, 9000);
        }
        let next = first.unwrap() + 20;
        let paths = near.paths().unwrap();
        let peers: Vec<IpAddr> = paths.iter().map(|path| path.peer).collect();
        assert_eq!(peers, [at(&far).ip()]);
        assert_eq!(paths[0].next_transmit, next);
        assert_eq!(far.paths().unwrap()[0].next_receive, next);
        assert_eq!(near.counters().unwrap().send_queued, 20);
        assert_eq!(far.counters().unwrap().recv_delivered, 20);
    });
}
