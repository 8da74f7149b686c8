//! The options of an rsocket, and the sizes of its queues and buffers.

use std::ffi::c_int;
use std::time::Duration;

use polyverbs_libibverbs::errno::Errno;

/// The sizes of a connection's queues and buffers, which options set; the names are those of rsocket(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// The entries of the send queue (`RDMA_SQSIZE`).
    pub(crate) sends: u16,
    /// The receives for messages of the peer, which are its credits (`RDMA_RQSIZE`).
    pub(crate) receives: u16,
    /// The length of the send ring, in bytes (`SO_SNDBUF`).
    pub(crate) send_ring: u32,
    /// The length of the receive ring, in bytes (`SO_RCVBUF`).
    pub(crate) ring: u32,
    /// The most bytes that are sent as inline data, without the send ring (`RDMA_INLINE`).
    pub(crate) inline: u32,
    /// The number of maps that the peer may announce (`RDMA_IOMAPSIZE`).
    pub(crate) maps: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            sends: 384,
            receives: 384,
            send_ring: 1 << 17,
            ring: 1 << 17,
            inline: 64,
            maps: 0,
        }
    }
}

/// The options of a socket, as `rsetsockopt` sets them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    pub(crate) sizes: Sizes,
    pub(crate) linger: Option<Duration>,
    reuse_addr: bool,
    keep_alive: bool,
    oob_inline: bool,
    no_delay: bool,
    v6_only: bool,
    keep_idle: u32,
    keep_interval: u32,
    keep_count: u32,
    max_segment: u32,
    type_of_service: u32,
    broadcast: bool,
}

/// The option level `SOL_RDMA` of rsockets.
const RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;

// The value of TCP_CONGESTION, which some programs ask for.
const CONGESTION: &[u8] = b"rdma\0";

/// The fewest entries of a queue; smaller sizes are raised to it.
pub(crate) const FEWEST: u32 = 16;
const MOST: u32 = 0xfffe;
const LEAST_RING: u32 = 4096;
const MOST_RING: u32 = 1 << 30;

fn number(value: &[u8]) -> Result<u32, Errno> {
    let bytes = value.first_chunk().ok_or(Errno::INVAL)?;
    Ok(u32::from_ne_bytes(*bytes))
}

fn queue(value: &[u8]) -> Result<u16, Errno> {
    Ok(number(value)?.clamp(FEWEST, MOST) as u16)
}

// The size of a ring: two halves, each of at least the given size and of whole pages.
fn ring(value: &[u8]) -> Result<u32, Errno> {
    let wanted = number(value)?.clamp(LEAST_RING, MOST_RING / 2);
    Ok(wanted.next_multiple_of(LEAST_RING) * 2)
}

impl Options {
    /// Whether a listener at the IPv6 wildcard address accepts no IPv4 connections (`IPV6_V6ONLY`).
    pub(crate) fn is_alone_in_family(&self) -> bool {
        self.v6_only
    }

    /// Whether the address of the socket may be shared with other sockets (`SO_REUSEADDR`).
    pub(crate) fn reuses_address(&self) -> bool {
        self.reuse_addr
    }

    /// Sets an option. `is_made`: the QP and the buffers of the socket exist already.
    ///
    /// # Errors
    /// The option is unknown, its value is too short, or it can no longer be set because the QP exists.
    pub(crate) fn set(
        &mut self,
        level: c_int,
        name: c_int,
        value: &[u8],
        is_made: bool,
    ) -> Result<(), Errno> {
        let sizes = match is_made {
            true => Err(Errno::INVAL),
            false => Ok(&mut self.sizes),
        };
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
                // The buffers of an existing connection do not change, which is not an error.
                let ring = ring(value)?;
                if let Ok(sizes) = sizes {
                    sizes.ring = ring;
                }
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
                let ring = ring(value)?;
                if let Ok(sizes) = sizes {
                    sizes.send_ring = ring;
                }
            }
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let (on, seconds) = (number(value)?, number(value.get(4..).unwrap_or_default())?);
                self.linger = (on != 0).then(|| Duration::from_secs(seconds.into()));
            }
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => self.reuse_addr = number(value)? != 0,
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => self.keep_alive = number(value)? != 0,
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => self.oob_inline = number(value)? != 0,
            (libc::SOL_SOCKET, libc::SO_BROADCAST) => self.broadcast = number(value)? != 0,
            (libc::IPPROTO_IP, libc::IP_TOS) => self.type_of_service = number(value)?,
            // There is only one kind of congestion control, and rdma-core's rsockets accept every name for it.
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {}
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => self.no_delay = number(value)? != 0,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => self.max_segment = number(value)?,
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => self.keep_idle = positive(value)?,
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => self.keep_interval = positive(value)?,
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => self.keep_count = positive(value)?,
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => self.v6_only = number(value)? != 0,
            (RDMA, RDMA_SQSIZE) => sizes?.sends = queue(value)?,
            (RDMA, RDMA_RQSIZE) => sizes?.receives = queue(value)?,
            (RDMA, RDMA_INLINE) => sizes?.inline = number(value)?,
            (RDMA, RDMA_IOMAPSIZE) => sizes?.maps = number(value)?.min(MOST),
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        }
        Ok(())
    }

    /// The value of an option, in the bytes that `rgetsockopt` returns.
    ///
    /// # Errors
    /// The option is unknown.
    pub(crate) fn get(&self, level: c_int, name: c_int) -> Result<Vec<u8>, Errno> {
        let one = |value: u32| Ok(value.to_ne_bytes().to_vec());
        let or = |value: u32, default: u32| if value == 0 { default } else { value };
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => one(self.sizes.ring),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => one(self.sizes.send_ring),
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let seconds = self.linger.map_or(0, |linger| linger.as_secs() as u32);
                let on = u32::from(self.linger.is_some());
                Ok([on.to_ne_bytes(), seconds.to_ne_bytes()].concat())
            }
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => one(self.reuse_addr.into()),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => one(self.keep_alive.into()),
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => one(self.oob_inline.into()),
            (libc::SOL_SOCKET, libc::SO_BROADCAST) => one(self.broadcast.into()),
            (libc::IPPROTO_IP, libc::IP_TOS) => one(self.type_of_service),
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => Ok(CONGESTION.to_vec()),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => one(self.no_delay.into()),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => one(or(self.max_segment, 2048)),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => one(or(self.keep_idle, 7200)),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => one(or(self.keep_interval, 75)),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => one(or(self.keep_count, 9)),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => one(self.v6_only.into()),
            (RDMA, RDMA_SQSIZE) => one(self.sizes.sends.into()),
            (RDMA, RDMA_RQSIZE) => one(self.sizes.receives.into()),
            (RDMA, RDMA_INLINE) => one(self.sizes.inline),
            (RDMA, RDMA_IOMAPSIZE) => one(self.sizes.maps),
            _ => Err(Errno(libc::ENOPROTOOPT)),
        }
    }
}

fn positive(value: &[u8]) -> Result<u32, Errno> {
    match number(value)? {
        0 => Err(Errno::INVAL),
        seconds => Ok(seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(options: &mut Options, level: c_int, name: c_int, value: u32) -> Result<(), Errno> {
        options.set(level, name, &value.to_ne_bytes(), false)
    }

    #[test]
    fn options_are_returned_as_they_were_set() {
        let mut options = Options::default();
        for (level, name, value) in [
            (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 3),
            (libc::SOL_SOCKET, libc::SO_REUSEADDR, 1),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
            (libc::SOL_SOCKET, libc::SO_BROADCAST, 1),
            (libc::IPPROTO_IP, libc::IP_TOS, 0x10),
            (RDMA, RDMA_SQSIZE, 100),
            (RDMA, RDMA_RQSIZE, 101),
            (RDMA, RDMA_INLINE, 200),
            (RDMA, RDMA_IOMAPSIZE, 3),
        ] {
            set(&mut options, level, name, value).unwrap();
            assert_eq!(options.get(level, name).unwrap(), value.to_ne_bytes());
        }
    }

    #[test]
    fn sizes_are_clamped_to_supported_values() {
        let mut options = Options::default();
        set(&mut options, RDMA, RDMA_SQSIZE, 1).unwrap();
        set(&mut options, RDMA, RDMA_RQSIZE, u32::MAX).unwrap();
        set(&mut options, libc::SOL_SOCKET, libc::SO_RCVBUF, 1).unwrap();
        set(&mut options, libc::SOL_SOCKET, libc::SO_SNDBUF, u32::MAX).unwrap();
        let Sizes {
            sends,
            receives,
            ring,
            send_ring,
            ..
        } = options.sizes;
        assert_eq!((sends, receives), (16, 0xfffe));
        assert_eq!((ring, send_ring), (8192, MOST_RING));
    }

    #[test]
    fn buffer_sizes_do_not_change_after_connecting() {
        let mut options = Options::default();
        let before = options.sizes;
        let value = 999_u32.to_ne_bytes();
        assert_eq!(
            options.set(RDMA, RDMA_SQSIZE, &value, true),
            Err(Errno::INVAL)
        );
        assert_eq!(
            options.set(libc::SOL_SOCKET, libc::SO_RCVBUF, &value, true),
            Ok(())
        );
        assert_eq!(options.sizes, before);
    }

    #[test]
    fn unknown_and_short_options_are_errors() {
        let mut options = Options::default();
        let value = 1_u32.to_ne_bytes();
        let unknown = options.set(libc::SOL_SOCKET, 9999, &value, false);
        assert_eq!(unknown, Err(Errno(libc::ENOPROTOOPT)));
        let short = options.set(libc::IPPROTO_TCP, libc::TCP_NODELAY, &value[..3], false);
        assert_eq!(short, Err(Errno::INVAL));
        let half = options.set(libc::SOL_SOCKET, libc::SO_LINGER, &value, false);
        assert_eq!(half, Err(Errno::INVAL));
    }
}
