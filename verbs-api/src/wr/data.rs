//! The local and remote memory of a request.

use std::fmt;

use crate::ah::Ah;
use crate::ids::{Qpn, RKey};
use crate::mem::{Buffer, Loan, Sge};

/// Remote memory: an address, and the key (R_Key) that the peer has given for it.
///
/// Programs send it to a peer in the form of bytes, in any message.
///
/// ```
/// use verbs_api::{RKey, RemoteAddress};
/// let told = RemoteAddress::new(0x1000, RKey::new(7)).to_bytes();
/// assert_eq!(RemoteAddress::from_bytes(told), RemoteAddress::new(0x1000, RKey::new(7)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RemoteAddress {
    /// The address of the first byte; for zero-based memory, its offset.
    pub addr: u64,
    /// The key (R_Key) that the peer has given for the memory.
    pub rkey: RKey,
}

impl RemoteAddress {
    /// The number of bytes in the form that peers exchange.
    pub const BYTES: usize = 12;

    /// Names the memory at `addr` under `rkey`.
    pub const fn new(addr: u64, rkey: RKey) -> Self {
        Self { addr, rkey }
    }

    /// Returns the address that is `offset` bytes higher, under the same key.
    #[must_use]
    pub const fn plus(self, offset: u64) -> Self {
        Self {
            addr: self.addr.wrapping_add(offset),
            rkey: self.rkey,
        }
    }

    /// Returns address and key in network byte order, to be sent to a peer.
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        let [a, b, c, d, e, f, g, h] = self.addr.to_be_bytes();
        let [i, j, k, l] = self.rkey.value().to_be_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l]
    }

    /// Converts the bytes that a peer has sent. All values are accepted: the peer's device checks the key.
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        Self {
            addr: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            rkey: RKey::new(u32::from_be_bytes([i, j, k, l])),
        }
    }
}

/// The destination of a UD send.
///
/// ```no_run
/// # fn example(device: &verbs_api::Context, pd: &verbs_api::Pd, datagrams: &verbs_api::Qp)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// use std::net::IpAddr;
/// use verbs_api::{ids::{Gid, Qpn}, wr::{self, UdDestination}};
/// // To every queue pair that has attached to the group.
/// let group = Gid::from("ff0e::1".parse::<IpAddr>()?);
/// let path = device.path_to(1, device.query_port(1)?.address, group)?;
/// let ah = pd.create_ah(path).wait()?;
/// let everybody = UdDestination { ah, remote_qpn: Qpn::MULTICAST, remote_qkey: 0x1111_1111 };
/// datagrams.post_one(wr::Send::new(b"hello").to(&everybody).signaled(1))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UdDestination {
    /// The address handle, which contains the route.
    pub ah: Ah,
    /// The number of the destination's queue pair; [`Qpn::MULTICAST`] for a multicast group.
    pub remote_qpn: Qpn,
    /// The Q_Key of the destination's queue pair. If its top bit is set, the sender's own Q_Key is used instead.
    pub remote_qkey: u32,
}

/// The local bytes of a request: in registered memory, inline, or in private buffers, which belong to the device until the
/// completion.
///
/// ```
/// use verbs_api::wr::Data;
/// let inline = Data::from(b"few bytes"); // an entry of a region and a private buffer convert as well
/// assert_eq!((inline.len(), inline.num_sge()), (9, 0));
/// ```
#[derive(Debug, Default)]
pub enum Data<'a> {
    /// The request has no local bytes.
    #[default]
    None,
    /// One range of registered memory.
    Sge(Sge),
    /// Several ranges of registered memory.
    Sges(&'a [Sge]),
    /// Bytes that are copied while posting, so that they need no key and can be reused at once. Only for sends and writes.
    Inline(&'a [u8]),
    /// A private buffer, which belongs to the device until the completion returns it.
    Buffer(Buffer),
    /// Private buffers, which belong to the device until the completion returns them.
    Buffers(Box<[Buffer]>),
    /// Private buffers that belong to the device: posting replaces the two variants above by this one, which a provider
    /// sees.
    Lent(Lent),
}

/// Private buffers that belong to the device: their ranges, and the loan by which a completion returns them.
pub struct Lent {
    pub(crate) loan: Loan,
    pub(crate) sges: LentSges,
}

pub(crate) enum LentSges {
    One(Sge),
    Many(Box<[Sge]>),
}

impl Lent {
    /// Returns the loan that stands for the buffers.
    pub fn loan(&self) -> Loan {
        self.loan
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lent").field(&self.loan).finish()
    }
}

/// The scatter/gather entries of a request, in the form that a provider reads.
#[derive(Clone, Copy, Debug)]
pub struct Sges<'r> {
    /// The scatter/gather entries of the request.
    pub list: &'r [Sge],
    /// Whether the entries name private buffers of the request itself. No other request may name memory of a buffer pool.
    pub private: bool,
    /// The loan that stands for the request's private buffers.
    pub loan: Loan,
}

impl Data<'_> {
    /// Returns the number of local bytes of the request.
    #[inline]
    pub fn len(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Sge(sge) | Self::Sges([sge]) => u64::from(sge.length()),
            Self::Sges(list) => list.iter().map(|sge| u64::from(sge.length())).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Buffer(buffer) => buffer.len() as u64,
            Self::Buffers(buffers) => buffers.iter().map(|buffer| buffer.len() as u64).sum(),
            Self::Lent(Lent {
                sges: LentSges::One(sge),
                ..
            }) => u64::from(sge.length()),
            Self::Lent(Lent {
                sges: LentSges::Many(list),
                ..
            }) => list.iter().map(|sge| u64::from(sge.length())).sum(),
        }
    }

    /// Whether the request has no local bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of scatter/gather entries; inline bytes have none.
    #[inline]
    pub fn num_sge(&self) -> usize {
        match self {
            Self::None | Self::Inline(_) => 0,
            Self::Sge(_)
            | Self::Buffer(_)
            | Self::Lent(Lent {
                sges: LentSges::One(_),
                ..
            }) => 1,
            Self::Sges(list) => list.len(),
            Self::Buffers(buffers) => buffers.len(),
            Self::Lent(Lent {
                sges: LentSges::Many(list),
                ..
            }) => list.len(),
        }
    }

    /// Returns the scatter/gather entries in the form that a provider reads; none for inline bytes and for buffers that
    /// have not been posted yet.
    #[inline]
    pub fn sges(&self) -> Sges<'_> {
        let (list, loan) = match self {
            Self::Sge(sge) => (std::slice::from_ref(sge), Loan::NONE),
            Self::Sges(list) => (*list, Loan::NONE),
            Self::Lent(Lent {
                loan,
                sges: LentSges::One(sge),
            }) => (std::slice::from_ref(sge), *loan),
            Self::Lent(Lent {
                loan,
                sges: LentSges::Many(list),
            }) => (&**list, *loan),
            Self::None | Self::Inline(_) | Self::Buffer(_) | Self::Buffers(_) => {
                (&[][..], Loan::NONE)
            }
        };
        Sges {
            list,
            private: !loan.is_none(),
            loan,
        }
    }

    #[inline]
    pub(crate) fn holds_buffers(&self) -> bool {
        matches!(self, Self::Buffer(_) | Self::Buffers(_))
    }

    // Hands the buffers over.
    pub(crate) fn lend(&mut self) {
        *self = match std::mem::take(self) {
            Self::Buffer(buffer) => {
                let sges = LentSges::One(buffer.sge());
                Self::Lent(Lent {
                    sges,
                    loan: crate::mem::lend(buffer.into()),
                })
            }
            Self::Buffers(buffers) => {
                let sges = LentSges::Many(buffers.iter().map(Buffer::sge).collect());
                let loan = crate::mem::lend(buffers.into_iter().collect());
                Self::Lent(Lent { sges, loan })
            }
            other => other,
        };
    }

    // After an attempt to post: buffers that the device has are no longer of this request, others are its own again.
    pub(crate) fn end_loan(&mut self, posted: bool) {
        if posted {
            *self = Self::None;
        } else {
            self.take_back();
        }
    }

    // Takes back the buffers of a request that was not posted.
    pub(crate) fn take_back(&mut self) {
        let Self::Lent(lent) = self else { return };
        let mut buffers = crate::mem::take_back(lent.loan);
        *self = match (buffers.take_first(), &lent.sges) {
            (Some(buffer), LentSges::One(_)) => Self::Buffer(buffer),
            (first, _) => Self::Buffers(first.into_iter().chain(buffers.take()).collect()),
        };
    }
}

impl From<Sge> for Data<'_> {
    #[inline]
    fn from(sge: Sge) -> Self {
        Self::Sge(sge)
    }
}

impl<'a> From<&'a [Sge]> for Data<'a> {
    #[inline]
    fn from(list: &'a [Sge]) -> Self {
        Self::Sges(list)
    }
}

impl<'a, const N: usize> From<&'a [Sge; N]> for Data<'a> {
    #[inline]
    fn from(list: &'a [Sge; N]) -> Self {
        Self::Sges(list)
    }
}

impl<'a> From<&'a [u8]> for Data<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self::Inline(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Data<'a> {
    #[inline]
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Inline(bytes)
    }
}

impl From<Buffer> for Data<'_> {
    #[inline]
    fn from(buffer: Buffer) -> Self {
        Self::Buffer(buffer)
    }
}

impl From<Vec<Buffer>> for Data<'_> {
    #[inline]
    fn from(buffers: Vec<Buffer>) -> Self {
        Self::Buffers(buffers.into())
    }
}

impl From<()> for Data<'_> {
    #[inline]
    fn from((): ()) -> Self {
        Self::None
    }
}
