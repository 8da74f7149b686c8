//! UDP sockets that only send, each from a source port of its own.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use crate::sockets::udp::{UdpOptions, UdpSocket, send_groups_by};

/// The first source port for RoCEv2 packets; the last is 65,535.
pub(crate) const FIRST_PORT: u16 = 0xc000;

/// UDP sockets on one address with different source ports, each bound when it is first used. Frames of one flow use one
/// socket, so that routers that spread traffic by ports keep their order.
#[derive(Debug)]
pub struct FlowSockets {
    local: SocketAddr,
    options: UdpOptions,
    sockets: Box<[OnceLock<UdpSocket>]>,
}

impl FlowSockets {
    /// Creates room for `count` sockets on the address of `local`, whose port is ignored. None is bound yet.
    pub fn new(local: SocketAddr, count: usize, options: UdpOptions) -> Self {
        let options = UdpOptions {
            // These sockets receive nothing, so the kernel's minimum is enough.
            receive_buffer: 0,
            ..options
        };
        Self {
            local,
            options,
            sockets: (0..count.max(1)).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Returns the socket of a flow, always the same for one flow number, and binds it if it is the first use.
    ///
    /// # Errors
    /// No port is free, or the system refuses.
    #[inline]
    pub fn of(&self, flow: u32) -> io::Result<&UdpSocket> {
        let slot = flow as usize % self.sockets.len();
        if let Some(socket) = self.sockets[slot].get() {
            return Ok(socket);
        }
        // If another thread was faster, this thread's socket is closed again.
        let bound = self.bind(slot)?;
        Ok(self.sockets[slot].get_or_init(|| bound))
    }

    #[cold]
    fn bind(&self, slot: usize) -> io::Result<UdpSocket> {
        // Processes begin at different ports, so that they rarely try the same one.
        let begin = (std::process::id() as usize)
            .wrapping_mul(0x9e37)
            .wrapping_add(slot * 61);
        let mut last = io::ErrorKind::AddrInUse.into();
        for step in 0..TRIES {
            let port = FIRST_PORT | (begin.wrapping_add(step * 7) & 0x3fff) as u16;
            let mut local = self.local;
            local.set_port(port);
            match UdpSocket::bind(local, &self.options) {
                Ok(socket) => {
                    send_groups_by(socket.as_fd(), self.local)?;
                    return Ok(socket);
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }
}

const TRIES: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flow_keeps_a_port_of_its_own() {
        let options = UdpOptions::default();
        let flows = FlowSockets::new("127.0.3.9:4791".parse().unwrap(), 4, options);
        let port = |flow| flows.of(flow).unwrap().local().port();
        let ports: std::collections::HashSet<_> = (0..4).map(port).collect();
        assert_eq!(ports.len(), 4);
        assert!(ports.iter().all(|&port| port >= FIRST_PORT));
        assert_eq!(port(1), port(5));
    }

    #[test]
    fn a_port_that_is_in_use_is_skipped() {
        let options = UdpOptions::default();
        let local = "127.0.3.10:0".parse().unwrap();
        let [one, other] = [(); 2].map(|()| FlowSockets::new(local, 1, options));
        assert_ne!(one.of(0).unwrap().local(), other.of(0).unwrap().local());
    }
}
