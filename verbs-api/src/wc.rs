//! Work completions.

use std::fmt;

use bitflags::bitflags;
use thiserror::Error;

use crate::ids::{Qpn, RKey};
use crate::mem::{Buffer, Buffers, Loan};
use crate::operation::WcOpcode;

/// The status with which a request completed.
///
/// If a request of a reliable connection fails, the queue pair moves to ERR, and requests that were posted after it are
/// flushed.
///
/// ```
/// use verbs_api::WcStatus;
/// let statuses = [WcStatus::Success, WcStatus::RemAccessErr, WcStatus::WrFlushErr];
/// // What was behind the request that failed is flushed: the first failure is the cause.
/// let cause = statuses.into_iter().find(|status| !status.is_success());
/// assert_eq!(cause.map(|status| status.to_string()).as_deref(), Some("remote access error"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[doc(alias = "ibv_wc_status")]
#[repr(u8)]
pub enum WcStatus {
    /// The request was executed. [`Send`](crate::wr::Send) and [`Write`](crate::wr::Write) explain what that means for the
    /// peer.
    #[doc(alias = "IBV_WC_SUCCESS")]
    #[default]
    Success = 0,
    /// A receive: the message was longer than the posted buffers; on InfiniBand its sender sees
    /// [`RemInvReqErr`](Self::RemInvReqErr). A send: it is longer than the port or the path MTU of a datagram allows. Post
    /// longer receives, or send less at once.
    #[doc(alias = "IBV_WC_LOC_LEN_ERR")]
    LocLenErr = 1,
    /// The queue pair could not execute the request: a fast-register or a local invalidate that the state of its key does
    /// not allow, or an operation that the device does not support.
    #[doc(alias = "IBV_WC_LOC_QP_OP_ERR")]
    LocQpOpErr = 2,
    /// Only for reliable datagrams, which no device here supports: the end-to-end context could not execute the request.
    #[doc(alias = "IBV_WC_LOC_EEC_OP_ERR")]
    LocEecOpErr = 3,
    /// A scatter/gather entry of the request, sent or received, is refused: an unknown or invalidated `lkey`, another
    /// protection domain, bytes outside of the region, or a missing
    /// [`Access::LOCAL_WRITE`](crate::Access::LOCAL_WRITE). Over iWARP the sink of a read needs remote write as well.
    #[doc(alias = "IBV_WC_LOC_PROT_ERR")]
    LocProtErr = 4,
    /// The queue pair was in ERR, or moved to it, before the request was finished, which may or may not have been executed.
    /// The first completion with another status has the cause; if there is none, see the asynchronous events. On iWARP,
    /// requests after a lost connection, or after a write that the peer refused, complete only with this status.
    #[doc(alias = "IBV_WC_WR_FLUSH_ERR")]
    WrFlushErr = 5,
    /// A window could not be bound: the region lacks [`Access::MW_BIND`](crate::Access::MW_BIND), or local write for a
    /// window that may be written, is of another protection domain, or is smaller than the window; or a window of type
    /// 2 is bound already.
    #[doc(alias = "IBV_WC_MW_BIND_ERR")]
    MwBindErr = 6,
    /// The peer's response fits no outstanding request: its opcode or placement is wrong. A fault of the peer's device or
    /// of the network.
    #[doc(alias = "IBV_WC_BAD_RESP_ERR")]
    BadRespErr = 7,
    /// A receive: the peer's write with immediate data violated the protection of this side's memory.
    #[doc(alias = "IBV_WC_LOC_ACCESS_ERR")]
    LocAccessErr = 8,
    /// A send-queue request that the peer refused as invalid: its queue pair does not permit the operation, an atomic is
    /// not aligned, more reads are outstanding than it executes at one time, or (InfiniBand only) a message is longer than
    /// its receive. On iWARP only reads and atomics complete with it. A receive: the message was invalid, or asked to
    /// invalidate a key that must not be.
    #[doc(alias = "IBV_WC_REM_INV_REQ_ERR")]
    RemInvReqErr = 9,
    /// A send-queue request whose access the peer refused: the peer's key lacks the right, is of another protection domain
    /// or invalid, or the bytes are not all in its region. Compare address, length and `rkey` with those that the peer
    /// advertised. On InfiniBand it is reported for writes, reads and atomics; on iWARP only for reads and atomics, because
    /// a write has completed before.
    #[doc(alias = "IBV_WC_REM_ACCESS_ERR")]
    RemAccessErr = 10,
    /// A send-queue request that the peer could not execute although it is valid, for example because the memory of a
    /// receive is refused, which the peer sees as [`LocProtErr`](Self::LocProtErr). On iWARP only reads and atomics
    /// complete with it.
    #[doc(alias = "IBV_WC_REM_OP_ERR")]
    RemOpErr = 11,
    /// InfiniBand only: the peer did not acknowledge in time, also not after `retry_cnt` retries. It is gone, unreachable,
    /// not in RTR, has another queue pair number than was connected to, or is too slow for `timeout`. On iWARP TCP
    /// retransmits, and a lost connection flushes requests instead.
    #[doc(alias = "IBV_WC_RETRY_EXC_ERR")]
    RetryExcErr = 12,
    /// InfiniBand only: the peer had no receive posted, also not after `rnr_retry` retries. Post receives in advance, or
    /// set `rnr_retry` to 7, which retries without end. On iWARP a message without a receive ends the connection.
    #[doc(alias = "IBV_WC_RNR_RETRY_EXC_ERR")]
    RnrRetryExcErr = 13,
    /// Only for reliable datagrams: queue pair and end-to-end context are of different domains.
    #[doc(alias = "IBV_WC_LOC_RDD_VIOL_ERR")]
    LocRddViolErr = 14,
    /// Only for reliable datagrams: the peer refused the request for its domain or its Q_Key.
    #[doc(alias = "IBV_WC_REM_INV_RD_REQ_ERR")]
    RemInvRdReqErr = 15,
    /// The peer aborted the operation (remote abort).
    #[doc(alias = "IBV_WC_REM_ABORT_ERR")]
    RemAbortErr = 16,
    /// Only for reliable datagrams: the end-to-end context is unknown.
    #[doc(alias = "IBV_WC_INV_EECN_ERR")]
    InvEecnErr = 17,
    /// Only for reliable datagrams: the end-to-end context is in a state that does not allow the request.
    #[doc(alias = "IBV_WC_INV_EEC_STATE_ERR")]
    InvEecStateErr = 18,
    /// The device has failed and cannot be used further.
    #[doc(alias = "IBV_WC_FATAL_ERR")]
    FatalErr = 19,
    /// A management datagram was not answered in time. It does not occur on queue pairs of programs.
    #[doc(alias = "IBV_WC_RESP_TIMEOUT_ERR")]
    RespTimeoutErr = 20,
    /// Another error, or an unknown code: `vendor_err` may identify it. On iWARP a read completes with it whose sink could
    /// not be invalidated.
    #[doc(alias = "IBV_WC_GENERAL_ERR")]
    GeneralErr = 21,
}

impl WcStatus {
    // By code.
    const ALL: [(Self, &str); 22] = [
        (Self::Success, "success"),
        (Self::LocLenErr, "local length error"),
        (Self::LocQpOpErr, "local QP operation error"),
        (Self::LocEecOpErr, "local EE context operation error"),
        (Self::LocProtErr, "local protection error"),
        (Self::WrFlushErr, "work request flushed error"),
        (Self::MwBindErr, "memory window bind error"),
        (Self::BadRespErr, "bad response error"),
        (Self::LocAccessErr, "local access error"),
        (Self::RemInvReqErr, "remote invalid request error"),
        (Self::RemAccessErr, "remote access error"),
        (Self::RemOpErr, "remote operation error"),
        (Self::RetryExcErr, "transport retry counter exceeded"),
        (Self::RnrRetryExcErr, "RNR retry counter exceeded"),
        (Self::LocRddViolErr, "local RDD violation error"),
        (Self::RemInvRdReqErr, "remote invalid RD request"),
        (Self::RemAbortErr, "remote aborted error"),
        (Self::InvEecnErr, "invalid EE context number"),
        (Self::InvEecStateErr, "invalid EE context state"),
        (Self::FatalErr, "fatal error"),
        (Self::RespTimeoutErr, "response timeout error"),
        (Self::GeneralErr, "general error"),
    ];

    /// Returns the status with this code of verbs; an unknown code is a general error, never a success.
    pub const fn from_code(code: u8) -> Self {
        if (code as usize) < Self::ALL.len() {
            Self::ALL[code as usize].0
        } else {
            Self::GeneralErr
        }
    }

    /// Whether the request succeeded.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Success)
    }
}

impl fmt::Display for WcStatus {
    /// Writes the status in words, such as "remote access error".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL[*self as usize].1)
    }
}

bitflags! {
    /// Which optional fields of a completion are valid.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    #[doc(alias = "ibv_wc_flags")]
    pub struct WcFlags: u8 {
        /// The first 40 bytes of a datagram's receive buffer are a routing header (GRH).
        const GRH = 1;
        /// `imm_data` contains immediate data.
        const WITH_IMM = 1 << 1;
        /// `imm_data` contains the key that the message invalidated.
        const WITH_INV = 1 << 3;
    }
}

/// A completion: the report that a request has ended (`struct ibv_wc`).
///
/// If the status is not success, only `wr_id`, `opcode`, `status`, `qp_num`, `vendor_err` and the buffers are valid.
///
/// ```no_run
/// # fn example(cq: &verbs_api::Cq) -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::completion::WcOpcode;
/// let done = cq.next().wait()?.success()?; // another status is an error that names the request
/// match done.opcode {
///     WcOpcode::Recv => println!("{} bytes have come, beside them {:?}", done.byte_len, done.immediate()),
///     _ => println!("request {} has ended", done.wr_id),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
#[doc(alias = "ibv_wc")]
pub struct Completion {
    /// The identifier that the program gave the request.
    pub wr_id: u64,
    /// The status with which the request completed.
    pub status: WcStatus,
    /// The operation that completed.
    pub opcode: WcOpcode,
    /// Which optional fields are valid.
    pub wc_flags: WcFlags,
    /// The number of bytes received or read; for datagrams it includes the 40 bytes of the routing header.
    pub byte_len: u32,
    /// The local queue pair of the request.
    pub qp_num: Qpn,
    /// The sender's queue pair, for datagrams, and for receives that arrived on a variant of an extension, such as XRC.
    pub src_qp: Qpn,
    /// The device's own code of a failure. Emulated devices set it to the system's error number if the system refused to
    /// send, otherwise to 0.
    pub vendor_err: u32,
    /// The sender's LID, for a datagram on InfiniBand.
    pub slid: u16,
    /// The service level with which a datagram was sent.
    pub sl: u8,
    /// The low bits of the local LID that a datagram was sent to.
    pub dlid_path_bits: u8,
    /// Index of the partition key of a datagram to queue pair 1.
    pub pkey_index: u16,
    /// Immediate data, or the invalidated key in network byte order, as `wc_flags` says.
    pub imm_data: [u8; 4],
    pub(crate) buffers: Buffers,
}

// A slot of a poll is one cache line.
const _: () = assert!(size_of::<Completion>() <= 64);
/// The error of a request that completed with another status than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "request {wr_id} ({opcode:?}) of queue pair {qp_num}: {status} (vendor_err {vendor_err:#x})"
)]
pub struct CompletionError {
    /// The identifier that the program gave the request.
    pub wr_id: u64,
    /// The operation of the request.
    pub opcode: WcOpcode,
    /// The status with which the request completed.
    pub status: WcStatus,
    /// The local queue pair of the request.
    pub qp_num: Qpn,
    /// The device's own code of the failure.
    pub vendor_err: u32,
}

impl Completion {
    /// Returns the completion if its status is success.
    ///
    /// # Errors
    /// The status is another one. The buffers return to their pools.
    pub fn success(self) -> Result<Self, CompletionError> {
        if self.status.is_success() {
            return Ok(self);
        }
        Err(CompletionError {
            wr_id: self.wr_id,
            opcode: self.opcode,
            status: self.status,
            qp_num: self.qp_num,
            vendor_err: self.vendor_err,
        })
    }

    /// Returns the key that the message invalidated; `None` if it invalidated none.
    pub fn invalidated_rkey(&self) -> Option<RKey> {
        self.wc_flags
            .contains(WcFlags::WITH_INV)
            .then(|| RKey::new(u32::from_be_bytes(self.imm_data)))
    }

    /// Returns the immediate data as the peer sent it; `None` if there is none.
    pub fn immediate(&self) -> Option<[u8; 4]> {
        self.wc_flags
            .contains(WcFlags::WITH_IMM)
            .then_some(self.imm_data)
    }

    /// Returns the bytes that were received into the private buffer of this request; empty if it has none.
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

    /// Removes the private buffers that this completion returns: those of its request, then those of the unsignaled
    /// requests that it retires.
    pub fn take_buffers(&mut self) -> impl Iterator<Item = Buffer> + '_ {
        self.buffers.take()
    }

    /// For providers: sets the buffers that this completion returns.
    ///
    /// # Safety
    /// The loan belongs to requests that this completion retires, and no other completion contains it.
    #[allow(unsafe_code)]
    #[inline]
    pub unsafe fn set_loan(&mut self, loan: Loan) {
        self.buffers.set_loan(loan);
    }

    #[inline]
    pub(crate) fn settle_loan(&mut self) {
        self.buffers.settle();
    }
}

/// Which completions an armed completion queue notifies the program of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notify {
    /// The next completion.
    Next,
    /// The next completion that is solicited or has an error.
    Solicited,
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers 8.02
    #[test]
    fn every_status_has_its_code_and_its_own_words() {
        let mut words = Vec::new();
        for (code, (status, _)) in WcStatus::ALL.iter().enumerate() {
            assert_eq!(*status as usize, code);
            assert_eq!(WcStatus::from_code(code as u8), *status);
            words.push(status.to_string());
        }
        assert_eq!(
            words[WcStatus::RemAccessErr as usize],
            "remote access error"
        );
        words.sort();
        words.dedup();
        assert_eq!(words.len(), WcStatus::ALL.len());
    }

    // covers 8.02
    #[test]
    fn an_unknown_code_is_a_general_error() {
        for code in WcStatus::ALL.len() as u8..=u8::MAX {
            assert_eq!(WcStatus::from_code(code), WcStatus::GeneralErr);
        }
    }
    #[test]
    fn a_completion_fits_one_line_of_the_cache() {
        assert_eq!(size_of::<Completion>(), 64);
    }
}
