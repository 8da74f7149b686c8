//! Links with a wire: frames become octets on sockets.
//!
//! How, and why so, is told in `docs/wire-links.md` in the root. A link is generic over a [`codec`] that a driver hands
//! it; the sockets are those of `polyverbs-sockets`.
//!
//! Read first: [`codec`], then [`udp`].

pub mod codec;
pub mod octets;
mod train;
pub mod udp;

pub use codec::{Arrival, Common, DatagramCodec, Envelope, Laid, Manner, Opened};
pub use octets::{OctetCapture, OctetTap};
pub use udp::{UdpCounts, UdpLink, UdpLinkOptions};
