//! Errors, and their error numbers.

use std::io::{self, IoSlice};
use std::net::SocketAddr;

use polyverbs_rds::{Outgoing, RdsError, RdsSocket, RdsTransport, Wait};

use crate::sockets::{address, at, errno, over_both, receive, sockets};
use crate::{receive_for, send_for};

fn bind(at: &str) -> Result<RdsSocket, RdsError> {
    RdsSocket::bind(at.parse().unwrap())
}

// covers 8.21
#[test]
fn an_address_that_is_not_of_one_host_is_refused() {
    for wrong in [
        "0.0.0.0:4000",
        "255.255.255.255:4000",
        "224.0.0.1:4000",
        "[::]:4000",
        "[ff02::1]:4000",
        "[fe80::1]:4000",
    ] {
        assert_eq!(errno(bind(wrong)), Some(libc::EINVAL), "{wrong}");
    }
}

// covers 8.21
#[test]
fn a_scope_is_refused_by_name() {
    let scoped = "[fe80::1%7]:4000".parse().unwrap();
    let socket = RdsSocket::bind(SocketAddr::new(address(), 0)).unwrap();
    let sent = socket.send_to(b"x", scoped).map(drop);
    for refused in [
        RdsSocket::bind(scoped).map(drop),
        socket.connect(scoped),
        sent,
    ] {
        let error = refused.unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("[fe80::1%7]:4000 has a scope")
        );
        assert_eq!(error.errno(), libc::EADDRNOTAVAIL);
    }
}

// covers 8.21
#[test]
fn an_address_that_no_device_has_is_refused() {
    let elsewhere = bind("192.0.2.1:4000");
    assert_eq!(errno(elsewhere), Some(libc::EADDRNOTAVAIL));
}

// covers 8.21
#[test]
fn a_port_has_one_socket_and_port_1_has_none() {
    let first = RdsSocket::bind(SocketAddr::new(address(), 0)).unwrap();
    assert_ne!(at(&first).port(), 0);
    assert_eq!(errno(RdsSocket::bind(at(&first))), Some(libc::EADDRINUSE));
    let reserved = SocketAddr::new(at(&first).ip(), 1);
    assert_eq!(errno(RdsSocket::bind(reserved)), Some(libc::EINVAL));
    let same = at(&first);
    drop(first);
    RdsSocket::bind(same).unwrap();
}

// covers 8.21
#[test]
fn a_socket_is_bound_once() {
    let socket = RdsSocket::bind(SocketAddr::new(address(), 0)).unwrap();
    let other = SocketAddr::new(address(), 0);
    assert_eq!(errno(socket.bind_to(other)), Some(libc::EINVAL));
}

// covers 8.21
#[test]
fn a_socket_that_could_not_be_bound_may_be_bound_elsewhere() {
    let socket = RdsSocket::new();
    let place = SocketAddr::new(address(), 0);
    socket.bind_to("0.0.0.0:0".parse().unwrap()).unwrap_err();
    socket.bind_to(SocketAddr::new(place.ip(), 1)).unwrap_err();
    socket.bind_to(place).unwrap();
}

// covers 8.21 8.47
#[test]
fn a_transport_without_a_device_at_the_address_is_refused() {
    let socket = RdsSocket::bind(SocketAddr::new(address(), 0)).unwrap();
    assert_eq!(socket.transport(), Some(RdsTransport::InfiniBand));
    let other = RdsSocket::new();
    other.set_transport(RdsTransport::Iwarp).unwrap();
    let same = SocketAddr::new(at(&socket).ip(), 0);
    assert_eq!(errno(other.bind_to(same)), Some(libc::ENOPROTOOPT));
}

// covers 8.47
#[test]
fn a_transport_is_chosen_once_and_tcp_is_refused() {
    let socket = RdsSocket::new();
    let refused = socket.set_transport(RdsTransport::Tcp);
    assert_eq!(errno(refused), Some(libc::ENOPROTOOPT));
    socket.set_transport(RdsTransport::Iwarp).unwrap();
    let again = socket.set_transport(RdsTransport::Iwarp);
    assert_eq!(errno(again), Some(libc::EOPNOTSUPP));
    let bound = RdsSocket::bind(SocketAddr::new(address(), 0)).unwrap();
    let late = bound.set_transport(RdsTransport::InfiniBand);
    assert_eq!(errno(late), Some(libc::EOPNOTSUPP));
}

// covers 8.21 8.22
#[test]
fn sending_needs_an_address_and_a_destination() {
    let to = SocketAddr::new(address(), 4000);
    let socket = RdsSocket::new();
    assert_eq!(
        errno(send_for(&socket, b"", to, Wait::No)),
        Some(libc::ENOTCONN)
    );
    socket.connect(to).unwrap();
    assert_eq!(
        errno(send_for(&socket, b"", to, Wait::No)),
        Some(libc::ENOTCONN)
    );
    let receives = receive_for(&socket, &mut [], Wait::No);
    assert_eq!(errno(receives), Some(libc::ENOTCONN));
    let socket = RdsSocket::bind(SocketAddr::new(address(), 0)).unwrap();
    let nowhere = socket.send_msg(Outgoing::default(), Wait::No);
    assert_eq!(errno(nowhere), Some(libc::ENOTCONN));
}

// covers 8.22
#[test]
fn connect_sets_the_default_destination_and_sends_nothing() {
    over_both(|transport| {
        let [near, far, other] = sockets(transport);
        near.connect(at(&far)).unwrap();
        assert_eq!(near.peer_addr(), Some(at(&far)));
        assert_eq!(near.paths().unwrap(), []);
        let data = [IoSlice::new(b"by default")];
        let message = Outgoing {
            data: &data,
            ..Outgoing::default()
        };
        near.send_msg(message, Wait::Forever).unwrap();
        assert_eq!(receive(&far, 100), b"by default");
        near.send_to(b"by name", at(&other)).unwrap();
        assert_eq!(receive(&other, 100), b"by name");
        near.connect(at(&other)).unwrap();
        assert_eq!(near.peer_addr(), Some(at(&other)));
        // A connected socket also receives from other senders.
        far.send_to(b"heard", at(&near)).unwrap();
        assert_eq!(receive(&near, 100), b"heard");
    });
}

// covers 8.22
#[test]
fn a_destination_that_is_not_one_host_is_refused() {
    let socket = RdsSocket::bind(SocketAddr::new(address(), 0)).unwrap();
    let connect = |to: &str| errno(socket.connect(to.parse().unwrap()));
    assert_eq!(connect("0.0.0.0:4000"), Some(libc::EDESTADDRREQ));
    assert_eq!(connect("255.255.255.255:4000"), Some(libc::EINVAL));
    assert_eq!(connect("224.0.0.1:4000"), Some(libc::EINVAL));
    for wrong in ["0.0.0.0:4000", "255.255.255.255:4000", "224.0.0.1:4000"] {
        let sent = send_for(&socket, b"", wrong.parse().unwrap(), Wait::No);
        assert_eq!(errno(sent), Some(libc::EINVAL), "{wrong}");
    }
    let other_family = send_for(&socket, b"", "[::1]:4000".parse().unwrap(), Wait::No);
    assert_eq!(errno(other_family), Some(libc::EOPNOTSUPP));
}

// covers 8.24
#[test]
fn messages_above_1_mib_or_the_send_buffer_are_refused() {
    let [near, far] = sockets(RdsTransport::InfiniBand);
    let try_send = |length| errno(send_for(&near, &vec![1; length], at(&far), Wait::No));
    far.set_options(|options| options.receive_buffer = 4 << 20);
    let send_buffer = near.options().send_buffer;
    assert_eq!(try_send(send_buffer + 1), Some(libc::EMSGSIZE));
    assert_eq!(try_send(send_buffer), None);
    near.set_options(|options| options.send_buffer = 4 << 20);
    assert_eq!(try_send((1 << 20) + 1), Some(libc::EMSGSIZE));
    assert_eq!(try_send(1 << 20), None);
    assert_eq!(try_send(0), None);
    for length in [send_buffer, 1 << 20, 0] {
        assert_eq!(receive(&far, 1 << 20).len(), length);
    }
}

#[test]
fn an_error_converts_to_the_io_error_of_its_number() {
    let error = bind("0.0.0.0:0").err().unwrap();
    assert_eq!(io::Error::from(error).raw_os_error(), Some(libc::EINVAL));
}
