//! The sizes with which a queue pair is created, and the attributes that a modify changes.

use super::{AddressVector, QpState};
use crate::access::Access;
use crate::capability::Mtu;
use crate::ids::{Port, Psn, Qpn};

/// The sizes of a queue pair's queues. The actual sizes after creation are at least as large as those asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_qp_cap")]
pub struct QpCap {
    /// Most requests outstanding on the send queue.
    pub max_send_wr: u32,
    /// Most receives outstanding on the receive queue; 0 with a shared receive queue.
    pub max_recv_wr: u32,
    /// Most scatter/gather entries of a send-queue request.
    pub max_send_sge: u32,
    /// Most scatter/gather entries of a receive.
    pub max_recv_sge: u32,
    /// Most bytes of inline data of a request.
    pub max_inline_data: u32,
}

impl Default for QpCap {
    fn default() -> Self {
        Self {
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 64,
        }
    }
}

macro_rules! qp_attributes {
    ($( $(#[doc = $doc:literal])* $field:ident: $ty:ty = $bit:literal $mask:ident, )*) => {
        /// The attributes of a queue pair that a modify changes: those that are set.
        ///
        /// ```
        /// use verbs_api::qp::{QpAttributes, QpState};
        /// let patient = QpAttributes::new().qp_state(QpState::Rts).timeout(18).retry_cnt(7);
        /// assert_eq!((patient.timeout, patient.min_rnr_timer), (Some(18), None));
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Default)]
        #[doc(alias = "ibv_qp_attr")]
        pub struct QpAttributes {
            $( $(#[doc = $doc])* pub $field: Option<$ty>, )*
        }

        bitflags::bitflags! {
            /// A set of queue pair attributes, as a mask with verbs' bits.
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
            #[doc(alias = "ibv_qp_attr_mask")]
            pub struct QpAttrMask: u32 {
                $( $(#[doc = $doc])* const $mask = 1 << $bit; )*
            }
        }

        impl QpAttributes {
            /// Creates a set of attributes of which none is set.
            pub fn new() -> Self {
                Self::default()
            }

            /// Returns the mask of the attributes that are set.
            pub fn mask(&self) -> QpAttrMask {
                let mut mask = QpAttrMask::empty();
                $( mask.set(QpAttrMask::$mask, self.$field.is_some()); )*
                mask
            }

            /// Returns these attributes, replaced by those of `other` where `other` sets them.
            #[must_use]
            pub fn merged(mut self, other: &Self) -> Self {
                $( self.$field = other.$field.or(self.$field); )*
                self
            }

            /// Returns these attributes without those in `mask`.
            #[must_use]
            pub fn without(mut self, mask: QpAttrMask) -> Self {
                $( if mask.contains(QpAttrMask::$mask) { self.$field = None; } )*
                self
            }

            $(
                $(#[doc = $doc])*
                #[must_use]
                pub fn $field(mut self, $field: $ty) -> Self {
                    self.$field = Some($field);
                    self
                }
            )*
        }
    };
}

qp_attributes! {
    /// The state to move to.
    qp_state: QpState = 0 STATE,
    /// The state that the caller expects the queue pair to be in. If it is in another one, the modify fails.
    cur_qp_state: QpState = 1 CUR_STATE,
    /// Whether an asynchronous event is raised when the send queue has drained (SQD).
    en_sqd_async_notify: bool = 2 EN_SQD_ASYNC_NOTIFY,
    /// The access rights that the queue pair permits its peer.
    qp_access_flags: Access = 3 ACCESS_FLAGS,
    /// Index of the partition key.
    pkey_index: u16 = 4 PKEY_INDEX,
    /// The local port, counted from 1.
    port_num: Port = 5 PORT,
    /// The Q_Key of a datagram queue pair.
    qkey: u32 = 6 QKEY,
    /// The path to the peer, for connected queue pairs.
    ah_attr: AddressVector = 7 AV,
    /// The path MTU.
    path_mtu: Mtu = 8 PATH_MTU,
    /// The timeout for acknowledgements: at least 4.096 µs x 2^n for the value n, up to 31; before the first response,
    /// after slow responses and after retries it may be up to four times as long. 0 never times out.
    timeout: u8 = 9 TIMEOUT,
    /// The number of retries after a timeout or a sequence error, 0 to 7.
    retry_cnt: u8 = 10 RETRY_CNT,
    /// The number of retries after an RNR NAK, 0 to 6; 7 retries without end.
    rnr_retry: u8 = 11 RNR_RETRY,
    /// The first PSN that the queue pair expects.
    rq_psn: Psn = 12 RQ_PSN,
    /// How many reads and atomics the queue pair may have outstanding as the requester.
    max_rd_atomic: u8 = 13 MAX_QP_RD_ATOMIC,
    /// The code, 0 to 31, of the time that the peer waits before it retries a message for which this queue pair had no
    /// receive (RNR NAK). Code 0 is the longest time.
    min_rnr_timer: u8 = 15 MIN_RNR_TIMER,
    /// The first PSN that the queue pair sends.
    sq_psn: Psn = 16 SQ_PSN,
    /// How many reads and atomics of the peer the queue pair executes at one time as the responder.
    max_dest_rd_atomic: u8 = 17 MAX_DEST_RD_ATOMIC,
    /// The number of the peer's queue pair.
    dest_qp_num: Qpn = 20 DEST_QPN,
}

/// The result of [`Qp::query`](crate::Qp::query).
#[derive(Clone, Copy, Debug, PartialEq)]
#[doc(alias = "ibv_query_qp")]
pub struct QpStatus {
    /// The present state of the queue pair.
    pub state: QpState,
    /// Whether the queue pair is in SQD and its send queue has not drained yet.
    pub sq_draining: bool,
    /// The attributes that have been set.
    pub attributes: QpAttributes,
    /// The sizes of the queues.
    pub cap: QpCap,
}

macro_rules! qp_counters {
    ($($name:ident)*) => {
        /// What a queue pair has counted since it was created.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        #[allow(missing_docs)]
        pub struct QpCounters {
            $(pub $name: u64,)*
        }

        impl QpCounters {
            /// Returns names and values of the counters, in declaration order.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            /// Adds the counters of another queue pair to these.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

qp_counters! {
    sends
    sends_with_invalidate
    writes
    reads
    atomics
    fast_registers
    local_invalidates
    binds
    extensions
    receives
    retransmissions
    rnr_naks
    naks
    duplicates
    dropped
}
