//! The answers of a peer's host that need no program: pongs, and acknowledges of everything that
//! has arrived.

use std::net::SocketAddr;

use polyverbs_rds::{RdsError, RdsSocket, RdsTransport, Wait};

use crate::receive_for;

const TRANSPORTS: [RdsTransport; 2] = [RdsTransport::InfiniBand, RdsTransport::Iwarp];

fn bound(address: &str, transport: RdsTransport) -> Result<RdsSocket, RdsError> {
    let socket = RdsSocket::new();
    socket.set_transport(transport)?;
    socket.bind_to(SocketAddr::new(address.parse().unwrap(), 0))?;
    Ok(socket)
}

// covers 8.45
#[test]
fn a_ping_is_answered_by_the_host_without_data() -> Result<(), RdsError> {
    for (transport, addresses) in TRANSPORTS
        .into_iter()
        .zip([["127.0.49.1", "127.0.49.2"], ["127.0.49.3", "127.0.49.4"]])
    {
        let [near, _far] = addresses.map(|address| bound(address, transport).unwrap());
        // One ping goes to the peer's host, and one to the socket's own.
        for address in [addresses[1], addresses[0]] {
            let to = SocketAddr::new(address.parse().unwrap(), 0);
            near.send_to(b"whatever", to)?;
            let answer = receive_for(
                &near,
                &mut [0; 16],
                Wait::Until(test_kit::waiting::deadline()),
            )?;
            assert_eq!((answer.from, answer.full_length), (Some(to), 0));
        }
    }
    Ok(())
}

// covers 8.30
#[test]
fn flush_waits_until_everything_has_arrived() -> Result<(), RdsError> {
    for (transport, addresses) in TRANSPORTS
        .into_iter()
        .zip([["127.0.49.5", "127.0.49.6"], ["127.0.49.7", "127.0.49.8"]])
    {
        let [near, far] = addresses.map(|address| bound(address, transport).unwrap());
        let to = far.local_addr().unwrap();
        near.flush(Wait::No)?;
        // These are fewer messages than it takes for a sender to ask for an acknowledge by itself.
        for number in 0..3 {
            near.send_to(&[number], to)?;
        }
        near.flush(Wait::Until(test_kit::waiting::deadline()))?;
        let paths = near.paths()?;
        assert!(paths.iter().all(|path| path.queued == 0), "{paths:?}");
        for number in 0..3 {
            let mut room = [9];
            let received = receive_for(&far, &mut room, Wait::No)?;
            assert_eq!((received.length, room[0]), (1, number));
        }
    }
    Ok(())
}

// covers 8.30
#[test]
fn a_host_acknowledges_everything_before_it_ends() -> Result<(), RdsError> {
    for (transport, addresses) in TRANSPORTS.into_iter().zip([
        ["127.0.49.9", "127.0.49.10"],
        ["127.0.49.11", "127.0.49.12"],
    ]) {
        let [near, far] = addresses.map(|address| bound(address, transport).unwrap());
        near.send_to(b"the last one", far.local_addr().unwrap())?;
        receive_for(
            &far,
            &mut [0; 16],
            Wait::Until(test_kit::waiting::deadline()),
        )?;
        drop(far);
        near.flush(Wait::Until(test_kit::waiting::deadline()))?;
    }
    Ok(())
}
