//! The services of queue pairs, and the operations of their send queues.

use bitflags::bitflags;

/// The transport service type of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[doc(alias = "ibv_qp_type")]
#[non_exhaustive]
pub enum QpType {
    /// Reliable connected (RC).
    #[default]
    Rc,
    /// Unreliable connected (UC).
    Uc,
    /// Unreliable datagram (UD).
    Ud,
}

impl QpType {
    /// Returns the operations that the service defines, whether or not a device supports them.
    pub const fn operations(self) -> Operations {
        let datagram = Operations::SEND.union(Operations::SEND_WITH_IMM);
        let unreliable = datagram
            .union(Operations::WRITE)
            .union(Operations::WRITE_WITH_IMM)
            .union(Operations::BIND_MW)
            .union(Operations::LOCAL_INV);
        match self {
            Self::Ud => datagram,
            Self::Uc => unreliable,
            Self::Rc => Operations::all(),
        }
    }
}

bitflags! {
    /// A set of operations of a send queue. A queue pair is created for such a set, and refuses all other operations.
    ///
    /// ```
    /// use verbs_api::{Features, Operations};
    /// let wanted = Operations::WRITE | Operations::FAST_REGISTER;
    /// // Without this, no queue pair is created for them.
    /// assert_eq!(wanted.missing_features(Features::empty()), Features::BMME);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    #[doc(alias = "ibv_qp_create_send_ops_flags")]
    pub struct Operations: u64 {
        /// The request [`Write`](crate::wr::Write).
        const WRITE = 1;
        /// The request [`WriteWithImmediate`](crate::wr::WriteWithImmediate).
        const WRITE_WITH_IMM = 1 << 1;
        /// The request [`Send`](crate::wr::Send).
        const SEND = 1 << 2;
        /// The request [`SendWithImmediate`](crate::wr::SendWithImmediate).
        const SEND_WITH_IMM = 1 << 3;
        /// The request [`Read`](crate::wr::Read).
        const READ = 1 << 4;
        /// The request [`CompareSwap`](crate::wr::CompareSwap).
        const ATOMIC_CMP_AND_SWP = 1 << 5;
        /// The request [`FetchAdd`](crate::wr::FetchAdd).
        const ATOMIC_FETCH_AND_ADD = 1 << 6;
        /// The request [`LocalInvalidate`](crate::wr::LocalInvalidate).
        const LOCAL_INV = 1 << 7;
        /// The request [`BindWindow`](crate::wr::BindWindow).
        const BIND_MW = 1 << 8;
        /// The request [`SendWithInvalidate`](crate::wr::SendWithInvalidate).
        const SEND_WITH_INV = 1 << 9;
        /// The request [`ReadWithInvalidate`](crate::wr::ReadWithInvalidate).
        const READ_WITH_INV = 1 << 10;
        /// The request [`FastRegister`](crate::wr::FastRegister).
        const FAST_REGISTER = 1 << 11;
        /// The request [`Flush`](crate::wr::Flush).
        const FLUSH = 1 << 12;
        /// The request [`AtomicWrite`](crate::wr::AtomicWrite).
        const ATOMIC_WRITE = 1 << 13;
    }
}

impl Operations {
    /// Every operation that needs no feature.
    pub const BASELINE: Self = Self::WRITE
        .union(Self::WRITE_WITH_IMM)
        .union(Self::SEND)
        .union(Self::SEND_WITH_IMM)
        .union(Self::READ)
        .union(Self::ATOMIC_CMP_AND_SWP)
        .union(Self::ATOMIC_FETCH_AND_ADD);
}
