//! Sockets over devices with a wire: in one process, and in several at one address.

mod acknowledged;
mod ends;
mod processes;
mod sockets;

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;

use polyverbs_rds::{Outgoing, RdsError, RdsSocket, Received, Wait};

/// Sends a message, and blocks as long as `wait` says.
fn send_for(
    socket: &RdsSocket,
    data: &[u8],
    to: SocketAddr,
    wait: Wait,
) -> Result<usize, RdsError> {
    let message = Outgoing {
        data: &[IoSlice::new(data)],
        to: Some(to),
        ..Outgoing::default()
    };
    socket.send_msg(message, wait)
}

/// Receives a message, and blocks as long as `wait` says.
fn receive_for(socket: &RdsSocket, room: &mut [u8], wait: Wait) -> Result<Received, RdsError> {
    socket.recv_msg(&mut [IoSliceMut::new(room)], wait, false)
}
