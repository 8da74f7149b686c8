//! Work completions.

use std::fmt;

use bitflags::bitflags;
use thiserror::Error;

use crate::ids::{Qpn, RKey};
use crate::mem::{Buffer, Buffers, Loan};
use crate::operation::WcOpcode;

/// How a request ended.
///
/// A request of a reliable connection that fails leaves the queue pair in the error state; what was posted behind it is
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
    /// The request was carried out. [`Send`](crate::wr::Send) and [`Write`](crate::wr::Write) say
    /// what that means for the peer.
    #[doc(alias = "IBV_WC_SUCCESS")]
    #[default]
    Success = 0,
    /// A receive: the message was longer than the entries posted for it; on InfiniBand its sender sees
    /// [`RemInvReqErr`](Self::RemInvReqErr). A send: it is longer than the port or the path MTU of a datagram allows.
    /// Post longer receives, or send less at once.
    #[doc(alias = "IBV_WC_LOC_LEN_ERR")]
    LocLenErr = 1,
    /// The queue pair could not carry out the request itself: a fast-register or a local invalidate that its key does
    /// not allow, or an operation that the device does not understand. Check the state of the key.
    #[doc(alias = "IBV_WC_LOC_QP_OP_ERR")]
    LocQpOpErr = 2,
    /// Reliable datagrams only, which no device here has: the end-to-end context could not carry out the request.
    #[doc(alias = "IBV_WC_LOC_EEC_OP_ERR")]
    LocEecOpErr = 3,
    /// A scatter/gather entry of the request, sent or received, is refused: an unknown or invalidated `lkey`, another
    /// protection domain, bytes outside of the region, or a missing
    /// [`Access::LOCAL_WRITE`](crate::Access::LOCAL_WRITE). Over iWARP the sink of a read needs remote write as well.
    #[doc(alias = "IBV_WC_LOC_PROT_ERR")]
    LocProtErr = 4,
    /// The queue pair was in, or went into, the error state before the request was done: it may or may not have been
    /// carried out. The first completion with another status tells the cause; without one look at the asynchronous
    /// events. Over iWARP this is all that becomes of requests behind a lost connection, or behind a write that the
    /// peer refused.
    #[doc(alias = "IBV_WC_WR_FLUSH_ERR")]
    WrFlushErr = 5,
    /// A window could not be bound: the region lacks [`Access::MW_BIND`](crate::Access::MW_BIND), or local write for a
    /// window that may be written, is of another protection domain, or is smaller than the window; or a window of type
    /// 2 is bound already.
    #[doc(alias = "IBV_WC_MW_BIND_ERR")]
    MwBindErr = 6,
    /// The peer answered what was not asked: an opcode or a placement that fits no request. A fault of the peer's
    /// device or of the network.
    #[doc(alias = "IBV_WC_BAD_RESP_ERR")]
    BadRespErr = 7,
    /// A receive: the peer's write with immediate data met a protection error in the memory of this side.
    #[doc(alias = "IBV_WC_LOC_ACCESS_ERR")]
    LocAccessErr = 8,
    /// A requester: the peer takes no such request. Its queue pair does not permit the operation, an atomic is not
    /// aligned, more reads are outstanding than it granted, or (InfiniBand only) a message is longer than its receive.
    /// Over iWARP only reads and atomics end so. A receive: the message was no valid one, or asked to invalidate a key
    /// that may not be.
    #[doc(alias = "IBV_WC_REM_INV_REQ_ERR")]
    RemInvReqErr = 9,
    /// A requester: the peer's key does not give the right, is of another protection domain or invalid, or the bytes
    /// lie outside of it. Compare address, length and `rkey` with what the peer advertised. On InfiniBand this is told
    /// of writes, reads and atomics; over iWARP of reads and atomics only, for a write has completed by then.
    #[doc(alias = "IBV_WC_REM_ACCESS_ERR")]
    RemAccessErr = 10,
    /// A requester: the peer could not carry out a valid request for a reason of its own, such as a receive whose
    /// memory is refused; it sees [`LocProtErr`](Self::LocProtErr) there. Over iWARP only reads and atomics end so.
    #[doc(alias = "IBV_WC_REM_OP_ERR")]
    RemOpErr = 11,
    /// InfiniBand only: the peer has not acknowledged in time after `retry_cnt` retries. It is gone, unreachable, not
    /// ready to receive, of another number than was connected, or too slow for `timeout`. TCP retransmits for iWARP,
    /// where a lost connection flushes instead.
    #[doc(alias = "IBV_WC_RETRY_EXC_ERR")]
    RetryExcErr = 12,
    /// InfiniBand only: the peer had no receive posted after `rnr_retry` retries. Post receives ahead, or set
    /// `rnr_retry` to 7, which waits without end. Over iWARP a message without a receive ends the connection.
    #[doc(alias = "IBV_WC_RNR_RETRY_EXC_ERR")]
    RnrRetryExcErr = 13,
    /// Reliable datagrams only: queue pair and end-to-end context are of different domains.
    #[doc(alias = "IBV_WC_LOC_RDD_VIOL_ERR")]
    LocRddViolErr = 14,
    /// Reliable datagrams only: the peer refused the request for its domain or its Q_Key.
    #[doc(alias = "IBV_WC_REM_INV_RD_REQ_ERR")]
    RemInvRdReqErr = 15,
    /// The peer aborted the operation.
    #[doc(alias = "IBV_WC_REM_ABORT_ERR")]
    RemAbortErr = 16,
    /// Reliable datagrams only: the end-to-end context is unknown.
    #[doc(alias = "IBV_WC_INV_EECN_ERR")]
    InvEecnErr = 17,
    /// Reliable datagrams only: the end-to-end context is in a state that does not allow the request.
    #[doc(alias = "IBV_WC_INV_EEC_STATE_ERR")]
    InvEecStateErr = 18,
    /// The device has failed: nothing more can be done with it.
    #[doc(alias = "IBV_WC_FATAL_ERR")]
    FatalErr = 19,
    /// A management datagram was not answered in time; no queue pair of a program sees it.
    #[doc(alias = "IBV_WC_RESP_TIMEOUT_ERR")]
    RespTimeoutErr = 20,
    /// None of the others, or a code that is not known: `vendor_err` may tell more. Over iWARP a read whose sink could
    /// not be invalidated ends so.
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

    /// The status of this code; an unknown code is a general error, never a success.
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
    /// The name of the status in words: "remote access error".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL[*self as usize].1)
    }
}

bitflags! {
    /// Which other fields of a completion say something.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    #[doc(alias = "ibv_wc_flags")]
    pub struct WcFlags: u8 {
        /// The datagram's first 40 bytes are a routing header.
        const GRH = 1;
        /// `imm_data` is set.
        const WITH_IMM = 1 << 1;
        /// `invalidated_rkey` is set.
        const WITH_INV = 1 << 3;
    }
}

/// What a completion queue hands out.
///
/// With a status other than success only `wr_id`, `opcode`, `status`, `qp_num`, `vendor_err` and the buffers say something.
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
    /// From the request.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What completed.
    pub opcode: WcOpcode,
    /// Which other fields say something.
    pub wc_flags: WcFlags,
    /// Bytes received or read; for datagrams the 40 bytes of routing header are counted.
    pub byte_len: u32,
    /// The queue pair.
    pub qp_num: Qpn,
    /// The sender's queue pair: of datagrams, and of receives that a connection of an extension's variant brings.
    pub src_qp: Qpn,
    /// The device's own code of a failure. Of an emulated device: the system's error number if the system refused to send, or 0.
    pub vendor_err: u32,
    /// The sender's LID, of a datagram on InfiniBand.
    pub slid: u16,
    /// The service level that a datagram came with.
    pub sl: u8,
    /// Low bits of the own LID that a datagram was sent to.
    pub dlid_path_bits: u8,
    /// Index of the partition key of a datagram to queue pair 1.
    pub pkey_index: u16,
    /// Immediate data, or the invalidated key in network order: see `wc_flags`.
    pub imm_data: [u8; 4],
    pub(crate) buffers: Buffers,
}

// A slot of a poll is one cache line.
const _: () = assert!(size_of::<Completion>() <= 64);
/// A request completed with another status than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "request {wr_id} ({opcode:?}) of queue pair {qp_num}: {status} (vendor_err {vendor_err:#x})"
)]
pub struct CompletionError {
    /// From the request.
    pub wr_id: u64,
    /// What the request was.
    pub opcode: WcOpcode,
    /// How it ended.
    pub status: WcStatus,
    /// The queue pair.
    pub qp_num: Qpn,
    /// The device's own code of the failure.
    pub vendor_err: u32,
}

impl Completion {
    /// The completion where it is one of a success.
    ///
    /// # Errors
    /// Another status. The buffers go back to their pools.
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

    /// The bytes that were received into the private buffer of this request; empty without one.
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
        self.buffers.set_loan(loan);
    }

    #[inline]
    pub(crate) fn settle_loan(&mut self) {
        self.buffers.settle();
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
