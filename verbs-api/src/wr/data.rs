//! Where the bytes of a request lie.

use std::fmt;

use crate::ah::Ah;
use crate::ids::{Qpn, RKey};
use crate::mem::{Buffer, Loan, Sge};

/// Remote memory: an address and the key that a peer gave for it.
///
/// Its byte form travels to the peer in a message of any kind.
///
/// ```
/// use verbs_api::{RKey, RemoteAddress};
/// let told = RemoteAddress::new(0x1000, RKey::new(7)).to_bytes();
/// assert_eq!(RemoteAddress::from_bytes(told), RemoteAddress::new(0x1000, RKey::new(7)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RemoteAddress {
    /// Address of the first byte; for zero-based memory, its offset.
    pub addr: u64,
    /// Remote key.
    pub rkey: RKey,
}

impl RemoteAddress {
    /// Bytes of the form that peers exchange.
    pub const BYTES: usize = 12;

    /// Names remote memory.
    pub const fn new(addr: u64, rkey: RKey) -> Self {
        Self { addr, rkey }
    }

    /// The address `offset` bytes on.
    #[must_use]
    pub const fn plus(self, offset: u64) -> Self {
        Self {
            addr: self.addr.wrapping_add(offset),
            rkey: self.rkey,
        }
    }

    /// Address and key in network order, to be sent to a peer.
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        let [a, b, c, d, e, f, g, h] = self.addr.to_be_bytes();
        let [i, j, k, l] = self.rkey.value().to_be_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l]
    }

    /// The remote memory that a peer has sent. All bytes are accepted: the peer's device checks the key.
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        Self {
            addr: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            rkey: RKey::new(u32::from_be_bytes([i, j, k, l])),
        }
    }
}

/// Where a datagram goes.
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
    /// The route.
    pub ah: Ah,
    /// The queue pair there; [`Qpn::MULTICAST`] for a group.
    pub remote_qpn: Qpn,
    /// Its Q_Key. With the top bit set, the sender's own is used instead.
    pub remote_qkey: u32,
}

/// The bytes of a request: in registered memory, inline, or in buffers that are handed over.
///
/// ```
/// use verbs_api::wr::Data;
/// let inline = Data::from(b"few bytes"); // an entry of a region and a private buffer convert as well
/// assert_eq!((inline.len(), inline.num_sge()), (9, 0));
/// ```
#[derive(Debug, Default)]
pub enum Data<'a> {
    /// No bytes.
    #[default]
    None,
    /// One range of registered memory.
    Sge(Sge),
    /// Several ranges of registered memory.
    Sges(&'a [Sge]),
    /// Copied while posting: no key, and free for reuse at once. Sends and writes only.
    Inline(&'a [u8]),
    /// A private buffer, handed over until the completion.
    Buffer(Buffer),
    /// Private buffers, handed over until the completion.
    Buffers(Box<[Buffer]>),
    /// Private buffers that have been handed over. What a provider sees in place of the two above.
    Lent(Lent),
}

/// Private buffers that are with the device: their ranges, and the loan that finds them again.
pub struct Lent {
    pub(crate) loan: Loan,
    pub(crate) sges: LentSges,
}

pub(crate) enum LentSges {
    One(Sge),
    Many(Box<[Sge]>),
}

impl Lent {
    /// The loan.
    pub fn loan(&self) -> Loan {
        self.loan
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lent").field(&self.loan).finish()
    }
}

/// The ranges of a request as a provider reads them.
#[derive(Clone, Copy, Debug)]
pub struct Sges<'r> {
    /// The ranges.
    pub list: &'r [Sge],
    /// Whether they name private memory: only requests that handed buffers over may.
    pub private: bool,
    /// The buffers handed over.
    pub loan: Loan,
}

impl Data<'_> {
    /// Bytes, or `None` where their number exceeds 64 bits' worth of sense.
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

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Scatter/gather entries; inline bytes need none.
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

    /// The ranges, as a provider reads them; none for inline bytes and for buffers not handed over yet.
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
