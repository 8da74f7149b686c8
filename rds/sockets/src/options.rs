//! The options of RDS sockets (`setsockopt`, `getsockopt`).

use std::ffi::c_int;
use std::net::SocketAddr;

use polyverbs_rds::{Cookie, RdsTransport};
use rustix::io::Errno;

use crate::socket::{Socket, errno};

// These numbers come from `linux/rds.h`. `calls` handles the options whose values contain addresses of memory.
const RDS_CANCEL_SENT_TO: c_int = 1;
const RDS_FREE_MR: c_int = 3;
const RDS_RECVERR: c_int = 5;
const RDS_CONG_MONITOR: c_int = 6;
const SO_RDS_TRANSPORT: c_int = 8;

const RDS_TRANS_IB: c_int = 0;
const RDS_TRANS_IWARP: c_int = 1;
const RDS_TRANS_TCP: c_int = 2;
const RDS_TRANS_NONE: c_int = -1;

/// The smallest buffer sizes that a program can set, in bytes as `getsockopt` returns them. Linux doubles the value that a
/// program sets, to include its overhead.
const LEAST_SEND_BUFFER: usize = 4608;
const LEAST_RECEIVE_BUFFER: usize = 2304;

/// Where an option is stored: by the RDS socket itself, or by the kernel with the file of the program's descriptor.
pub(crate) enum Kept<T> {
    /// This library stores the option; the value is the result of the call.
    Here(T),
    /// The kernel stores the option, so the call has to be made on the program's descriptor.
    WithTheFile,
}

use Kept::{Here, WithTheFile};

/// Sets an option of an RDS socket, if this library stores it.
///
/// # Errors
/// Those of `setsockopt`.
pub(crate) fn set(
    socket: &Socket,
    level: c_int,
    name: c_int,
    value: &[u8],
) -> Result<Kept<()>, Errno> {
    let rds = &socket.rds;
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => {
            let bytes = buffer(int(value)?, LEAST_SEND_BUFFER);
            rds.set_options(|options| options.send_buffer = bytes);
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => {
            let bytes = buffer(int(value)?, LEAST_RECEIVE_BUFFER);
            rds.set_options(|options| options.receive_buffer = bytes);
        }
        // These options would change the file of the program's descriptor, not the RDS socket.
        (
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF
            | libc::SO_RCVLOWAT
            | libc::SO_ATTACH_FILTER
            | libc::SO_ATTACH_BPF
            | libc::SO_ZEROCOPY
            | libc::SO_TIMESTAMP
            | libc::SO_TIMESTAMPNS
            | libc::SO_TIMESTAMPING,
        ) => return Err(Errno::NOPROTOOPT),
        (libc::SOL_SOCKET, _) => return Ok(WithTheFile),
        (libc::SOL_RDS, RDS_CANCEL_SENT_TO) => {
            if rds.local_addr().is_none() {
                return Err(Errno::NOTCONN);
            }
            let to = destination(value)?;
            let to = Some(to).filter(|to| !to.ip().is_unspecified());
            rds.cancel_sent_to(to).map_err(errno)?;
        }
        (libc::SOL_RDS, RDS_FREE_MR) => {
            let [cookie, _flags] = words(value)?;
            rds.free_mr(Cookie(cookie)).map_err(errno)?;
        }
        (libc::SOL_RDS, RDS_RECVERR) => {
            let on = int(value)? != 0;
            rds.set_options(|options| options.recverr = on);
        }
        (libc::SOL_RDS, RDS_CONG_MONITOR) => {
            let on = int(value)? != 0;
            rds.set_options(|options| options.congestion_monitor = on);
        }
        (libc::SOL_RDS, SO_RDS_TRANSPORT) => set_transport(socket, value)?,
        _ => return Err(Errno::NOPROTOOPT),
    }
    socket.show();
    Ok(Here(()))
}

/// Returns the value of an option, if this library stores it.
///
/// # Errors
/// Those of `getsockopt`.
pub(crate) fn get(
    socket: &Socket,
    level: c_int,
    name: c_int,
    room: usize,
) -> Result<Kept<c_int>, Errno> {
    let rds = &socket.rds;
    let twice = |bytes: usize| c_int::try_from(bytes.saturating_mul(2)).unwrap_or(c_int::MAX);
    let value = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => twice(rds.options().send_buffer),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => twice(rds.options().receive_buffer),
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_SEQPACKET,
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => libc::AF_RDS,
        (libc::SOL_SOCKET, _) => return Ok(WithTheFile),
        (libc::SOL_RDS, RDS_RECVERR | SO_RDS_TRANSPORT) if room < size_of::<c_int>() => {
            return Err(Errno::INVAL);
        }
        (libc::SOL_RDS, RDS_RECVERR) => c_int::from(rds.options().recverr),
        (libc::SOL_RDS, SO_RDS_TRANSPORT) => match rds.transport() {
            Some(RdsTransport::InfiniBand) => RDS_TRANS_IB,
            Some(RdsTransport::Iwarp) => RDS_TRANS_IWARP,
            Some(RdsTransport::Tcp) => RDS_TRANS_TCP,
            None => RDS_TRANS_NONE,
        },
        _ => return Err(Errno::NOPROTOOPT),
    };
    Ok(Here(value))
}

fn set_transport(socket: &Socket, value: &[u8]) -> Result<(), Errno> {
    if socket.rds.transport().is_some() {
        return Err(Errno::OPNOTSUPP);
    }
    let transport = match value.try_into().map(c_int::from_ne_bytes) {
        Ok(RDS_TRANS_IB) => RdsTransport::InfiniBand,
        Ok(RDS_TRANS_IWARP) => RdsTransport::Iwarp,
        Ok(RDS_TRANS_TCP) => RdsTransport::Tcp,
        _ => return Err(Errno::INVAL),
    };
    socket.rds.set_transport(transport).map_err(errno)
}

fn buffer(bytes: c_int, least: usize) -> usize {
    // A negative number counts as a large unsigned one.
    let bytes = (bytes as u32 as usize).min(c_int::MAX as usize / 2);
    bytes.max(least / 2)
}

fn int(value: &[u8]) -> Result<c_int, Errno> {
    let value = value.first_chunk().ok_or(Errno::INVAL)?;
    Ok(c_int::from_ne_bytes(*value))
}

/// Reads an option value of exactly `COUNT` 64-bit numbers.
///
/// # Errors
/// The value has another length.
pub(crate) fn words<const COUNT: usize>(value: &[u8]) -> Result<[u64; COUNT], Errno> {
    if value.len() != COUNT * 8 {
        return Err(Errno::INVAL);
    }
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| value[at * 8 + byte]));
    Ok(std::array::from_fn(word))
}

// Reads a socket address. Its length decides whether it is IPv4 or IPv6; the family field is ignored.
fn destination(value: &[u8]) -> Result<SocketAddr, Errno> {
    let (v4, v6) = (
        size_of::<libc::sockaddr_in>(),
        size_of::<libc::sockaddr_in6>(),
    );
    if value.len() < v4 {
        return Err(Errno::INVAL);
    }
    let port = u16::from_be_bytes([value[2], value[3]]);
    if value.len() < v6 {
        let ip: [u8; 4] = std::array::from_fn(|at| value[4 + at]);
        return Ok((ip, port).into());
    }
    let ip: [u8; 16] = std::array::from_fn(|at| value[8 + at]);
    Ok((std::net::IpAddr::from(ip).to_canonical(), port).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_destination_decides_its_family() {
        let mut value = [0; 28];
        value[2..8].copy_from_slice(&[0x0f, 0xa0, 192, 0, 2, 1]);
        assert_eq!(
            destination(&value[..16]),
            Ok("192.0.2.1:4000".parse().unwrap())
        );
        value[8..24].copy_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(destination(&value), Ok("[fd00::1]:4000".parse().unwrap()));
        assert_eq!(destination(&value[..15]), Err(Errno::INVAL));
    }

    #[test]
    fn a_buffer_has_at_least_the_smallest_size() {
        assert_eq!(buffer(1, LEAST_SEND_BUFFER), 2304);
        assert_eq!(buffer(65_536, LEAST_SEND_BUFFER), 65_536);
        assert_eq!(buffer(-1, LEAST_SEND_BUFFER), c_int::MAX as usize / 2);
    }
}
