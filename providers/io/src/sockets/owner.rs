//! Finds the user that owns the peer's socket of a TCP connection within this machine.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// Returns the UID of the user that owns the TCP socket which is bound to `from` and connected to `to`. Asks the kernel by
/// `NETLINK_SOCK_DIAG`.
///
/// # Errors
/// No process of this network namespace has this socket ([`NotFound`](io::ErrorKind::NotFound)), or the kernel lacks `inet_diag`.
pub(crate) fn owner(from: SocketAddr, to: SocketAddr) -> io::Result<u32> {
    let kernel = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    send(&kernel, &question(from, to), SendFlags::empty())?;
    let mut answer = [0; ANSWER];
    // The kernel has queued its answer when `send` returns.
    let (length, _) = recv(&kernel, &mut answer, RecvFlags::DONTWAIT)?;
    user_of(&answer[..length])
}

/// Builds the request for one socket in any state: a `nlmsghdr` and an `inet_diag_req_v2`.
fn question(from: SocketAddr, to: SocketAddr) -> [u8; QUESTION] {
    let mut bytes = [0; QUESTION];
    bytes[..4].copy_from_slice(&(QUESTION as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    let (family, _) = octets(from.ip());
    bytes[16..18].copy_from_slice(&[family, IPPROTO_TCP]);
    bytes[20..24].fill(0xff);
    bytes[24..26].copy_from_slice(&from.port().to_be_bytes());
    bytes[26..28].copy_from_slice(&to.port().to_be_bytes());
    bytes[28..44].copy_from_slice(&octets(from.ip()).1);
    bytes[44..60].copy_from_slice(&octets(to.ip()).1);
    // The cookie is not used.
    bytes[64..72].fill(0xff);
    bytes
}

/// Returns the address family, and the address at the beginning of 16 bytes, as in `inet_diag_sockid`.
fn octets(ip: IpAddr) -> (u8, [u8; 16]) {
    match ip {
        IpAddr::V4(ip) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&ip.octets());
            (libc::AF_INET as u8, octets)
        }
        IpAddr::V6(ip) => (libc::AF_INET6 as u8, ip.octets()),
    }
}

/// Reads the UID out of the kernel's answer: a `nlmsghdr` and an `inet_diag_msg`.
fn user_of(answer: &[u8]) -> io::Result<u32> {
    let word = |at: usize| {
        let bytes = answer.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    };
    let is_answer = word(4) as u16 == SOCK_DIAG_BY_FAMILY && answer.len() == ANSWER;
    // A socket without a process has inode 0, and user 0.
    let has_process = word(INODE) != 0;
    match is_answer && has_process {
        true => Ok(word(UID)),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Lengths of the request and its answer, and offsets in the answer (`linux/inet_diag.h`).
const QUESTION: usize = 16 + 56;
const ANSWER: usize = 16 + 72;
const UID: usize = 16 + 64;
const INODE: usize = 16 + 68;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_kernel_reports_the_owner_of_a_socket() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(at).unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (from, to) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
            let own = rustix::process::geteuid().as_raw();
            assert_eq!(owner(from, to).unwrap(), own);
            let nobody = SocketAddr::new(from.ip(), 1);
            assert!(owner(nobody, to).is_err());
        }
    }

    #[test]
    fn a_malformed_answer_names_no_owner() {
        for length in 0..ANSWER {
            assert!(user_of(&vec![1; length]).is_err());
        }
    }
}
