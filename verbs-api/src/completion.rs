//! Work completions.

use std::fmt;

use bitflags::bitflags;

pub use crate::cq::NextCompletion;
use crate::extension::ExtensionOperation;
use crate::ids::{Qpn, RKey};
use crate::memory::{Buffer, Buffers, Loan};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[doc(alias = "ibv_wc_status")]
#[repr(u8)]
#[allow(missing_docs)]
pub enum WcStatus {
    #[default]
    Success = 0,
    LocLenErr = 1,
    LocQpOpErr = 2,
    LocEecOpErr = 3,
    LocProtErr = 4,
    WrFlushErr = 5,
    MwBindErr = 6,
    BadRespErr = 7,
    LocAccessErr = 8,
    RemInvReqErr = 9,
    RemAccessErr = 10,
    RemOpErr = 11,
    RetryExcErr = 12,
    RnrRetryExcErr = 13,
    LocRddViolErr = 14,
    RemInvRdReqErr = 15,
    RemAbortErr = 16,
    InvEecnErr = 17,
    InvEecStateErr = 18,
    FatalErr = 19,
    RespTimeoutErr = 20,
    GeneralErr = 21,
}

impl WcStatus {
    const ALL: [Self; 22] = [
        Self::Success,
        Self::LocLenErr,
        Self::LocQpOpErr,
        Self::LocEecOpErr,
        Self::LocProtErr,
        Self::WrFlushErr,
        Self::MwBindErr,
        Self::BadRespErr,
        Self::LocAccessErr,
        Self::RemInvReqErr,
        Self::RemAccessErr,
        Self::RemOpErr,
        Self::RetryExcErr,
        Self::RnrRetryExcErr,
        Self::LocRddViolErr,
        Self::RemInvRdReqErr,
        Self::RemAbortErr,
        Self::InvEecnErr,
        Self::InvEecStateErr,
        Self::FatalErr,
        Self::RespTimeoutErr,
        Self::GeneralErr,
    ];

    /// The status of this code; an unknown code is a general error, never a success.
    pub const fn from_code(code: u8) -> Self {
        if (code as usize) < Self::ALL.len() {
            Self::ALL[code as usize]
        } else {
            Self::GeneralErr
        }
    }

    /// Whether the request succeeded.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Success)
    }
}

/// What completed: an operation of the core by its name, one of an extension by [`extension`](Self::extension).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[doc(alias = "ibv_wc_opcode")]
pub struct WcOpcode(u8);

macro_rules! wc_opcodes {
    ($($name:ident = $code:literal,)*) => {
        #[allow(non_upper_case_globals, missing_docs, reason = "they read as the variants of an enum")]
        impl WcOpcode {
            $(pub const $name: Self = Self($code);)*

            const NAMES: &[(u8, &str)] = &[$(($code, stringify!($name)),)*];
        }
    };
}

wc_opcodes! {
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    FastRegister = 7,
    Flush = 8,
    AtomicWrite = 9,
    Recv = 128,
    RecvRdmaWithImm = 129,
}

impl WcOpcode {
    /// The opcode of this code.
    pub const fn from_code(code: u8) -> Self {
        Self(code)
    }

    /// Its code.
    #[inline]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Whether this is the completion of a receive.
    pub const fn is_receive(self) -> bool {
        self.0 >= 128
    }

    /// The operation, where it is one of an extension.
    pub fn extension(self) -> Option<&'static ExtensionOperation> {
        crate::extension::of_opcode(self.0)
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

bitflags! {
    /// Which other fields of a completion say something.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    #[doc(alias = "ibv_wc_flags")]
    pub struct WcFlags: u8 {
        /// The datagram's first 40 octets are a routing header.
        const GRH = 1;
        /// `imm_data` is set.
        const WITH_IMM = 1 << 1;
        /// `invalidated_rkey` is set.
        const WITH_INV = 1 << 3;
    }
}

/// What a completion queue hands out.
///
/// With a status other than success only `wr_id`, `status`, `qp_num`, `vendor_err` and the buffers say something.
#[derive(Debug, Default)]
#[doc(alias = "ibv_wc")]
pub struct Completion {
    /// From the request.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What completed.
    pub opcode: WcOpcode,
    /// Which other fields say something.
    pub wc_flags: WcFlags,
    /// Octets received or read; for datagrams the 40 octets of routing header are counted.
    pub byte_len: u32,
    /// The queue pair.
    pub qp_num: Qpn,
    /// The sender's queue pair: of datagrams, and of receives that a connection of an extension's variant brings.
    pub src_qp: Qpn,
    /// The device's own code of a failure.
    pub vendor_err: u16,
    /// Immediate data, or the invalidated key in network order: see `wc_flags`.
    pub imm_data: [u8; 4],
    loan: Loan,
    pub(crate) buffers: Buffers,
}

impl Completion {
    /// The key that the message invalidated.
    pub fn invalidated_rkey(&self) -> Option<RKey> {
        self.wc_flags
            .contains(WcFlags::WITH_INV)
            .then(|| RKey::new(u32::from_be_bytes(self.imm_data)))
    }

    /// Immediate data, as it was sent.
    pub fn immediate(&self) -> Option<[u8; 4]> {
        self.wc_flags
            .contains(WcFlags::WITH_IMM)
            .then_some(self.imm_data)
    }

    /// The octets that were received into the private buffer of this request; empty without one.
    pub fn buffer(&self) -> &[u8] {
        let Some(buffer) = self.buffers.first() else {
            return &[];
        };
        let length = if self.opcode.is_receive() {
            self.byte_len as usize
        } else {
            buffer.len()
        };
        &buffer[..length.min(buffer.len())]
    }

    /// The private buffers that come back: this request's, then those of the unsignaled requests that it retires.
    pub fn take_buffers(&mut self) -> impl Iterator<Item = Buffer> + '_ {
        self.buffers.take()
    }

    /// Provider: the buffers that come back with this completion.
    ///
    /// # Safety
    /// The loan is of requests that this completion retires, and no other completion carries it.
    #[allow(unsafe_code)]
    #[inline]
    pub unsafe fn set_loan(&mut self, loan: Loan) {
        self.loan = loan;
    }

    #[inline]
    pub(crate) fn settle_loan(&mut self) {
        if !self.buffers.is_empty() {
            // Left from an earlier completion in the same slot.
            self.buffers.take().for_each(drop);
        }
        if !self.loan.is_none() {
            crate::memory::take_back_into(std::mem::take(&mut self.loan), &mut self.buffers);
        }
    }
}

/// Which completions raise an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notify {
    /// The next one.
    Next,
    /// The next solicited one, or the next error.
    Solicited,
}
