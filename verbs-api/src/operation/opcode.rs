//! Opcodes of completions.

use std::fmt;

use super::extension::{ExtensionOperation, of_opcode};

/// The operation that a completion reports: one of the core by its name, or one of an extension by
/// [`extension`](Self::extension).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[doc(alias = "ibv_wc_opcode")]
pub struct WcOpcode(u8);

macro_rules! wc_opcodes {
    ($($(#[$attribute:meta])+ $name:ident = $code:literal,)*) => {
        #[allow(non_upper_case_globals, reason = "they read as the variants of an enum")]
        impl WcOpcode {
            $($(#[$attribute])+ pub const $name: Self = Self($code);)*

            const NAMES: &[(u8, &str)] = &[$(($code, stringify!($name)),)*];
        }
    };
}

wc_opcodes! {
    /// A [`Send`](crate::wr::Send), [`SendWithImmediate`](crate::wr::SendWithImmediate) or
    /// [`SendWithInvalidate`](crate::wr::SendWithInvalidate).
    #[doc(alias = "IBV_WC_SEND")]
    Send = 0,
    /// A [`Write`](crate::wr::Write) or [`WriteWithImmediate`](crate::wr::WriteWithImmediate).
    #[doc(alias = "IBV_WC_RDMA_WRITE")]
    RdmaWrite = 1,
    /// A [`Read`](crate::wr::Read) or [`ReadWithInvalidate`](crate::wr::ReadWithInvalidate): the bytes are in the request's
    /// scatter/gather entries.
    #[doc(alias = "IBV_WC_RDMA_READ")]
    RdmaRead = 2,
    /// A [`CompareSwap`](crate::wr::CompareSwap): the remote word's previous value is in the request's scatter/gather
    /// entry.
    #[doc(alias = "IBV_WC_COMP_SWAP")]
    CompSwap = 3,
    /// A [`FetchAdd`](crate::wr::FetchAdd): the remote word's previous value is in the request's scatter/gather entry.
    #[doc(alias = "IBV_WC_FETCH_ADD")]
    FetchAdd = 4,
    /// A [`BindWindow`](crate::wr::BindWindow): the window has its new key.
    #[doc(alias = "IBV_WC_BIND_MW")]
    BindMw = 5,
    /// A [`LocalInvalidate`](crate::wr::LocalInvalidate): the key grants no access until it is registered or bound again.
    #[doc(alias = "IBV_WC_LOCAL_INV")]
    LocalInv = 6,
    /// A [`FastRegister`](crate::wr::FastRegister): the key gives access.
    #[doc(alias = "IB_WC_REG_MR")]
    FastRegister = 7,
    /// A [`Flush`](crate::wr::Flush) of remote memory: earlier writes are visible or persistent at the peer, as the request
    /// asked.
    #[doc(alias = "IBV_WC_FLUSH")]
    Flush = 8,
    /// An [`AtomicWrite`](crate::wr::AtomicWrite).
    #[doc(alias = "IBV_WC_ATOMIC_WRITE")]
    AtomicWrite = 9,
    /// A receive that a send of the peer has filled.
    #[doc(alias = "IBV_WC_RECV")]
    Recv = 128,
    /// A receive that a [`WriteWithImmediate`](crate::wr::WriteWithImmediate) of the peer has consumed: the bytes are where
    /// the peer wrote them, not in the receive's buffer.
    #[doc(alias = "IBV_WC_RECV_RDMA_WITH_IMM")]
    RecvRdmaWithImm = 129,
}

impl WcOpcode {
    /// Makes the opcode with this code.
    pub const fn from_code(code: u8) -> Self {
        Self(code)
    }

    /// Returns the code of the opcode.
    #[inline]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Whether this is the completion of a receive.
    pub const fn is_receive(self) -> bool {
        self.0 >= 128
    }

    /// Returns the operation if it is one of an extension.
    pub fn extension(self) -> Option<&'static ExtensionOperation> {
        of_opcode(self.0)
    }
}

impl fmt::Debug for WcOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((_, name)) = Self::NAMES.iter().find(|(code, _)| *code == self.0) {
            return f.write_str(name);
        }
        match self.extension() {
            Some(operation) => fmt::Debug::fmt(operation, f),
            None => write!(f, "WcOpcode({})", self.0),
        }
    }
}
