//! Messages arrive whole, once, and in order.

use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::thread;

use polyverbs_rds::{Received, Wait};

use crate::receive_for;
use crate::sockets::{at, content, over_both, receive, socket_at, sockets};

// covers 8.01 8.20 8.24 8.28 8.50
#[test]
fn a_message_arrives_whole_with_its_sender() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        near.set_options(|options| options.send_buffer = 4 << 20);
        for length in [0, 1, 4095, 4096, 4097, 8192, 8193, 65536, 1 << 20] {
            let sent = content(length, length);
            assert_eq!(near.send_to(&sent, at(&far)).unwrap(), length);
            let mut room = vec![0; length + 1];
            let received = far.recv_from(&mut room).unwrap();
            assert_eq!(received.from, near.local_addr());
            assert_eq!((received.length, received.full_length), (length, length));
            assert_eq!(room[..length], sent);
        }
    });
}

// covers 8.20
#[test]
fn truncation_leaves_the_next_message_whole() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        let sent = content(0, 10_000);
        near.send_to(&sent, at(&far)).unwrap();
        near.send_to(b"next", at(&far)).unwrap();
        let (mut first, mut second) = ([0; 3000], [0; 2000]);
        let mut room = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        let received = far.recv_msg(&mut room, Wait::Forever, false).unwrap();
        assert!(received.is_truncated());
        assert_eq!((received.length, received.full_length), (5000, 10_000));
        assert_eq!([&first[..], &second[..]].concat(), sent[..5000]);
        assert_eq!(receive(&far, 100), b"next");
    });
}

// covers 8.20
#[test]
fn a_peeked_message_stays_in_the_queue() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        near.send_to(b"stays", at(&far)).unwrap();
        let look = || -> (Received, Vec<u8>) {
            let mut room = [0; 3];
            let received = far.recv_msg(&mut [IoSliceMut::new(&mut room)], Wait::Forever, true);
            (received.unwrap(), room.into())
        };
        let first = look();
        assert!(first.0.is_truncated());
        assert_eq!(look(), first);
        assert_eq!(far.next_length(), Some(5));
        assert_eq!(receive(&far, 100), b"stays");
        assert_eq!(far.next_length(), None);
    });
}

// covers 8.20 8.25 8.46 8.48 8.50
#[test]
fn eight_senders_to_eight_receivers_keep_the_order_of_pairs() {
    const MESSAGES: u32 = 100;
    over_both(|transport| {
        let [first_near, first_far] = sockets(transport);
        let others = |first| {
            let here = SocketAddr::new(at(first).ip(), 0);
            (0..7).map(move |_| socket_at(here, transport))
        };
        let near: Vec<_> = [first_near.clone()]
            .into_iter()
            .chain(others(&first_near))
            .collect();
        let far: Vec<_> = [first_far.clone()]
            .into_iter()
            .chain(others(&first_far))
            .collect();
        let from: Vec<_> = near.iter().map(at).collect();
        thread::scope(|scope| {
            for socket in &near {
                scope.spawn(|| {
                    for number in 0..MESSAGES {
                        for to in &far {
                            let mut message = number.to_be_bytes().to_vec();
                            message.resize(4 + (number as usize * 97) % 9000, 0);
                            socket.send_to(&message, at(to)).unwrap();
                        }
                    }
                });
            }
            for socket in &far {
                scope.spawn(|| {
                    let mut next = vec![0; from.len()];
                    for _ in 0..MESSAGES * 8 {
                        let mut room = [0; 9004];
                        let received = socket.recv_from(&mut room).unwrap();
                        let source = received.from.unwrap();
                        let source = from.iter().position(|one| *one == source).unwrap();
                        let number = u32::from_be_bytes(*room.first_chunk().unwrap());
                        assert_eq!(number, next[source]);
                        assert_eq!(received.length, 4 + (number as usize * 97) % 9000);
                        next[source] += 1;
                    }
                });
            }
        });
        for host in [&first_near, &first_far] {
            assert_eq!(
                host.paths().unwrap().len(),
                1,
                "one connection carries the messages of all sockets"
            );
        }
    });
}

// covers 8.46
#[test]
fn two_sides_that_connect_at_once_exchange_messages() {
    over_both(|transport| {
        for _ in 0..10 {
            let [near, far] = sockets(transport);
            thread::scope(|scope| {
                for (from, to) in [(&near, &far), (&far, &near)] {
                    scope.spawn(|| from.send_to(b"first", at(to)).unwrap());
                }
            });
            assert_eq!(receive(&near, 100), b"first");
            assert_eq!(receive(&far, 100), b"first");
        }
    });
}

// covers 8.46
#[test]
fn messages_reach_a_host_that_has_restarted() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        let place = at(&far);
        near.send_to(b"one", place).unwrap();
        assert_eq!(receive(&far, 100), b"one");
        drop(far);
        let far = socket_at(place, transport);
        // Messages that were on their way to the old host may be lost or arrive again at the new
        // one.
        test_kit::waiting::until(|| {
            near.send_to(b"two", place).unwrap();
            let mut room = [0; 100];
            let received = receive_for(&far, &mut room, Wait::No);
            received.is_ok_and(|received| room[..received.length] == *b"two")
        });
        far.send_to(b"three", at(&near)).unwrap();
        assert_eq!(receive(&near, 100), b"three");
    });
}

// covers 8.45
#[test]
fn a_ping_is_answered_from_port_0_and_reaches_no_socket() {
    over_both(|transport| {
        let [near, far] = sockets(transport);
        for peer in [&far, &near] {
            let to = SocketAddr::new(at(peer).ip(), 0);
            near.send_to(b"ping", to).unwrap();
            let mut room = [0; 10];
            let received =
                receive_for(&near, &mut room, Wait::Until(test_kit::waiting::deadline()));
            let received = received.unwrap();
            assert_eq!((received.from, received.full_length), (Some(to), 0));
        }
        assert_eq!(far.next_length(), None);
    });
}

// covers 8.47
#[test]
fn a_message_to_the_own_address_needs_no_connection() {
    over_both(|transport| {
        let [near] = sockets(transport);
        let far = socket_at(SocketAddr::new(at(&near).ip(), 0), transport);
        let sent = content(3, 9000);
        near.send_to(&sent, at(&far)).unwrap();
        assert_eq!(receive(&far, 9000), sent);
        near.send_to(b"to itself", at(&near)).unwrap();
        assert_eq!(receive(&near, 9000), b"to itself");
        assert_eq!(near.paths().unwrap(), []);
    });
}
