//! What a peer's host answers by itself: pings, and that everything has arrived.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use polyverbs_rds::{RdsError, RdsSocket, RdsTransport};

/// Everything here is done within this.
const SOON: Duration = Duration::from_secs(10);

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
    for (transport, addresses) in TRANSPORTS.into_iter().zip([
        ["127.0.49.1", "127.0.49.2"],
        ["127.0.49.3", "127.0.49.4"],
    ]) {
        let [near, _far] = addresses.map(|address| bound(address, transport).unwrap());
        // The peer's host, and its own.
        for address in [addresses[1], addresses[0]] {
            let to = SocketAddr::new(address.parse().unwrap(), 0);
            near.send_to(b"whatever", to)?;
            let answer = near.recv_from_until(&mut [0; 16], Instant::now() + SOON)?;
            assert_eq!((answer.from, answer.full_length), (Some(to), 0));
        }
    }
    Ok(())
}
