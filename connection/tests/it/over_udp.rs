//! Connections of devices on an IP network: InfiniBand's connection manager over queue pair 1.

use std::sync::Arc;

use polyverbs::qp::QpState;
use polyverbs::{PathOptions, QpOptions, WcStatus, ids::LinkAddress};
use polyverbs_connection::{ConnectError, ConnectionOptions, ReadLimits, Refusal};
use verbs_api::provider::Mutex;

use crate::rig::{End, error, state, udp_device};

#[test]
fn a_device_answers_a_ping_without_the_program() {
    let (near, far) = (End::udp("127.0.20.7"), End::udp("127.0.20.8"));
    // A device without a connection manager answers as well.
    for listener in [None, Some(far.listen())] {
        let at = listener
            .as_ref()
            .map_or(far.at(0), |listener| listener.address());
        let next = listener.as_ref().map(|listener| listener.next());
        near.connector.ping(at).wait().unwrap();
        assert!(next.is_none_or(|next| !next.is_done()));
    }
}

// covers 7.55 7.58
#[test]
fn devices_that_meet_by_an_address_exchange_messages() {
    for (near, far) in [
        ("127.0.20.1", "127.0.20.2"),
        ("127.0.20.3", "127.0.20.3"),
        ("::1", "::1"),
    ] {
        let (near, far) = (End::udp(near), End::udp(far));
        let listener = far.listen();
        let at = listener.address();
        let asked = near.request(at, ConnectionOptions::new().private_data(b"may I"));
        let incoming = listener.next().wait().unwrap();
        assert!(incoming.private_data().starts_with(b"may I\0"));
        assert_eq!(incoming.private_data().len(), 56);
        let options = ConnectionOptions::new()
            .private_data(b"you may")
            .reads(3, 2);
        let accepted = incoming.accept(&far.qp, options);
        let pending = asked.wait().unwrap();
        assert!(pending.private_data().starts_with(b"you may\0"));
        assert_eq!(pending.private_data().len(), 196);
        let expected = ReadLimits {
            inbound: 2,
            outbound: 3,
        };
        assert_eq!(pending.reads(), expected);
        assert_eq!(state(&near.qp), QpState::Reset);
        assert!(!accepted.is_done());
        let at_near = pending.complete().wait().unwrap();
        let at_far = accepted.wait().unwrap();
        assert_eq!(
            (state(&near.qp), state(&far.qp)),
            (QpState::Rts, QpState::Rts)
        );

        near.say(&near.qp, (&far, &far.qp), b"hello", End::completion);

        far.post_receive(&far.qp, 6);
        at_near.disconnect().wait().unwrap();
        at_far.disconnected().wait().unwrap();
        assert_eq!(
            (state(&near.qp), state(&far.qp)),
            (QpState::Err, QpState::Rts)
        );
        at_far.disconnect().wait().unwrap();
        assert_eq!(far.completion().status, WcStatus::WrFlushErr);
    }
}

#[test]
fn a_device_without_a_manager_refuses_connections() {
    let near = End::udp("127.0.20.60");
    let _device = udp_device("127.0.20.61");
    let far = "127.0.20.61:0".parse().unwrap();
    let asked = near.request(far, ConnectionOptions::new());
    assert!(matches!(error(asked), ConnectError::Refused { .. }));
    let asked = near.connector.resolve(far, b"who");
    assert!(matches!(error(asked), ConnectError::Refused { .. }));
}

// covers 7.21
#[test]
fn each_side_transmits_its_retry_counts() {
    let (near, far) = (End::udp("127.0.20.4"), End::udp("127.0.20.5"));
    let listener = far.listen();
    let retries = |count, rnr| PathOptions::new().retry_cnt(count).rnr_retry(rnr);
    let asked = near.request(
        listener.address(),
        ConnectionOptions::new().path(retries(3, 5)),
    );
    let incoming = listener.next().wait().unwrap();
    assert_eq!(incoming.offered_retry_cnt(), Some(3));
    assert_eq!(incoming.offered_rnr_retry(), Some(5));
    let accepted = incoming.accept(&far.qp, ConnectionOptions::new().path(retries(1, 0)));
    let pending = asked.wait().unwrap();
    assert_eq!(pending.offered_rnr_retry(), Some(0));
    let _both = (pending.complete().wait().unwrap(), accepted.wait().unwrap());
    // Each queue pair has the values of its own end.
    assert_eq!(near.retry_counts(), (Some(3), Some(5)));
    assert_eq!(far.retry_counts(), (Some(1), Some(0)));
}

// covers 7.21
#[test]
fn a_side_retries_as_its_peer_asks_where_it_is_to() {
    let (near, far) = (End::udp("127.0.20.14"), End::udp("127.0.20.15"));
    let listener = far.listen();
    let options = |count, rnr, class| {
        let path = PathOptions::new().retry_cnt(count).rnr_retry(rnr);
        let path = path.traffic_class(class);
        ConnectionOptions::new().path(path).as_peer_asks()
    };
    let asked = near.request(listener.address(), options(3, 5, 0x68));
    let incoming = listener.next().wait().unwrap();
    let [_, rtr, rts] = incoming.steps(&options(1, 0, 0x20)).unwrap();
    assert_eq!((rts.retry_cnt, rts.rnr_retry), (Some(3), Some(5)));
    assert_eq!(rtr.ah_attr.unwrap().traffic_class, 0x68);
    let accepted = incoming.accept(&far.qp, options(1, 0, 0x20));
    let completed = asked.wait().unwrap().complete();
    let _both = (completed.wait().unwrap(), accepted.wait().unwrap());
    // An answer asks for RNR retries only.
    assert_eq!(near.retry_counts(), (Some(3), Some(0)));
    assert_eq!(far.retry_counts(), (Some(3), Some(5)));
}

// covers 7.01 7.10
#[test]
fn an_unreliable_connection_connects_only_with_its_own_service() {
    let (near, far) = (End::udp("127.0.20.6"), End::udp("127.0.20.7"));
    let listener = far.listen();
    let uc = |end: &End| end.pd.create_qp(QpOptions::uc(&end.cq)).wait().unwrap();
    let (one, other) = (uc(&near), uc(&far));
    let (to, options) = (listener.address(), ConnectionOptions::new);
    let asked = near.connector.connect(&one, to, options());
    let incoming = listener.next().wait().unwrap();
    assert_eq!(incoming.offered_retry_cnt(), None);
    let mismatch = error(incoming.accept(&far.qp, ConnectionOptions::new()));
    assert!(mismatch.to_string().contains("Uc"), "{mismatch}");
    assert!(matches!(error(asked), ConnectError::Refused { .. }));

    let asked = near.connector.connect(&one, to, options());
    let accepted = listener.next().wait().unwrap().accept(&other, options());
    let _both = (asked.wait().unwrap(), accepted.wait().unwrap());
    near.say(&one, (&far, &other), b"hello", End::completion);
}

// covers 7.50
#[test]
fn without_a_listener_a_connect_is_refused_and_may_be_repeated() {
    let (near, far) = (End::udp("127.0.21.1"), End::udp("127.0.21.2"));
    let refused = error(near.request(far.at(7), ConnectionOptions::new()));
    let nothing = ConnectError::Refused {
        reason: Refusal::NoListener,
        private_data: Vec::new(),
    };
    assert_eq!(refused, nothing);
    let listener = far.connector.listen(far.at(7), 0).unwrap();
    let asked = near.request(far.at(7), ConnectionOptions::new());
    listener.next().wait().unwrap().reject(b"full").unwrap();
    let ConnectError::Refused { private_data, .. } = error(asked) else {
        panic!("it was not refused");
    };
    assert_eq!(
        (&private_data[..5], private_data.len()),
        (&b"full\0"[..], 148)
    );
    let _connected = near.connected(&far, &listener);
    // The addresses are one of another family, and one without a device.
    let six = "[::1]:7".parse().unwrap();
    let unreachable = error(End::udp("127.0.21.3").request(six, ConnectionOptions::new()));
    assert_eq!(unreachable, ConnectError::Unreachable(six));
    let elsewhere = "127.0.21.9:7".parse().unwrap();
    let listened = far.connector.listen(elsewhere, 0);
    assert!(matches!(listened, Err(ConnectError::Unreachable(at)) if at == elsewhere));
}

#[test]
fn an_unsent_message_fails_with_the_error_number() {
    let end = End::udp("127.0.21.4");
    // Datagrams to a broadcast address need an option of the socket.
    let to = "255.255.255.255:7".parse().unwrap();
    let refused = ConnectError::Unsent(libc::EACCES);
    assert_eq!(error(end.request(to, ConnectionOptions::new())), refused);
    assert_eq!(error(end.connector.resolve(to, b"who")), refused);
    assert_eq!(error(end.connector.ping(to)), refused);
}

// covers 7.63
#[test]
fn a_port_is_listened_at_once_for_all_devices_of_an_address() {
    let (one, other) = (End::udp("127.0.22.1"), End::udp("127.0.22.1"));
    let listener = one.connector.listen(one.at(9), 0).unwrap();
    for end in [&one, &other] {
        let again = end.connector.listen(end.at(9), 0).unwrap_err();
        assert!(
            matches!(again, ConnectError::AddressInUse { address, .. } if address == end.at(9))
        );
        assert_eq!(again.to_string(), "127.0.22.1:9 is in use by this process");
    }
    let assigned = other.connector.listen(other.at(0), 0).unwrap();
    assert!(assigned.address().port() >= 49_152);
    drop(listener);
    other.connector.listen(other.at(9), 0).unwrap();
}

// covers 7.60
#[test]
fn any_device_of_the_address_reaches_the_listener() {
    let ends: Vec<_> = (0..4).map(|_| End::udp("127.0.23.1")).collect();
    let near: Vec<_> = (0..8).map(|_| End::udp("127.0.23.2")).collect();
    let listener = ends[2].connector.listen(ends[2].at(11), 0).unwrap();
    let mut connections = Vec::new();
    for near in &near {
        let far = ends[2].new_qp();
        connections.push((near.connected_to(&far, &listener), far));
    }
    assert_eq!(connections.len(), 8);
}

// covers 7.71
#[test]
fn an_accept_fails_when_the_active_side_gives_up() {
    let (near, far) = (End::udp("127.0.24.1"), End::udp("127.0.24.2"));
    let listener = far.connector.listen(far.at(12), 0).unwrap();
    let asked = near.request(far.at(12), ConnectionOptions::new());
    let accepted = listener
        .next()
        .wait()
        .unwrap()
        .accept(&far.qp, ConnectionOptions::new());
    drop(asked.wait().unwrap());
    assert!(matches!(error(accepted), ConnectError::Refused { .. }));
}

// covers 7.47
#[test]
fn only_a_taken_request_outlives_its_listener() {
    let (near, far) = (End::udp("127.0.31.1"), End::udp("127.0.31.2"));
    let second = End::udp("127.0.31.3");
    let listener = far.connector.listen(far.at(14), 0).unwrap();
    let asked = near.request(far.at(14), ConnectionOptions::new());
    let incoming = listener.next().wait().unwrap();
    let waits = second.request(far.at(14), ConnectionOptions::new());
    drop(listener);
    let accepted = incoming.accept(&far.qp, ConnectionOptions::new());
    let _near = asked.wait().unwrap().complete().wait().unwrap();
    accepted.wait().unwrap();
    assert!(matches!(error(waits), ConnectError::Refused { .. }));
}

// covers 7.51
#[test]
fn both_sides_see_each_others_gid_and_address() {
    for (near, far, expected) in [
        ("127.0.27.1", "127.0.27.2", "::ffff:127.0.27.2"),
        ("::1", "::1", "::1"),
    ] {
        let (near, far) = (End::udp(near), End::udp(far));
        let listener = far.listen();
        let _connected = near.connected(&far, &listener);
        for (own, other) in [(&near, &far), (&far, &near)] {
            let path = own.qp.query().unwrap().attributes.ah_attr.unwrap();
            let port = other.context.query_port(1).unwrap();
            assert_eq!(path.dgid, port.gids[1].gid);
            assert_eq!(path.address, LinkAddress::Ip(other.at(0).ip()));
        }
        let expected: std::net::Ipv6Addr = expected.parse().unwrap();
        assert_eq!(
            far.context.query_port(1).unwrap().gids[1].gid.0,
            expected.octets()
        );
    }
}

// covers 7.54
#[test]
fn each_event_is_reported_once_and_in_order() {
    let (near, far) = (End::udp("127.0.28.1"), End::udp("127.0.28.2"));
    let told = Arc::new(Mutex::new(Vec::new()));
    let note = |what: &'static str| {
        let told = Arc::clone(&told);
        move || told.lock().push(what)
    };
    let listener = far.listen();
    let asked = near.request(listener.address(), ConnectionOptions::new());
    let incoming = listener.next().wait().unwrap();
    note("asked")();
    let accepted = incoming.accept(&far.qp, ConnectionOptions::new());
    let pending = asked.wait().unwrap();
    note("accepted")();
    let (established, at_far) = (note("established"), Arc::new(Mutex::new(None)));
    let keep = Arc::clone(&at_far);
    accepted.on_done(move |connection| {
        established();
        *keep.lock() = Some(connection.unwrap());
    });
    let at_near = pending.complete().wait().unwrap();
    let at_far = test_kit::waiting::until_some(|| at_far.lock().take());
    let (first, second) = (note("ended"), note("ended"));
    at_far.disconnected().on_done(move |_| first());
    at_near.disconnected().on_done(move |_| second());
    at_near.disconnect().wait().unwrap();
    at_far.disconnected().wait().unwrap();
    test_kit::waiting::until(|| told.lock().len() >= 5);
    // All messages that either side has sent arrive before this answer.
    near.connector.ping(far.at(0)).wait().unwrap();
    let expected = ["asked", "accepted", "established", "ended", "ended"];
    assert_eq!(*told.lock(), expected);
}
