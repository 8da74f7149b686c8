//! What a queue pair is created with, and what is changed of it.

use super::{AddressVector, QpState};
use crate::access::Access;
use crate::capability::Mtu;
use crate::ids::{Port, Psn, Qpn};

/// Sizes of a queue pair. What comes back from creation is at least what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_qp_cap")]
pub struct QpCap {
    /// Requests outstanding on the send queue.
    pub max_send_wr: u32,
    /// Requests outstanding on the receive queue; 0 with a shared one.
    pub max_recv_wr: u32,
    /// Entries of a send-queue request.
    pub max_send_sge: u32,
    /// Entries of a receive.
    pub max_recv_sge: u32,
    /// Inline bytes.
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
        /// Attributes to change: those that are set.
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
            /// Names attributes of a queue pair.
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
            #[doc(alias = "ibv_qp_attr_mask")]
            pub struct QpAttrMask: u32 {
                $( $(#[doc = $doc])* const $mask = 1 << $bit; )*
            }
        }

        impl QpAttributes {
            /// No attribute.
            pub fn new() -> Self {
                Self::default()
            }

            /// The attributes that are set.
            pub fn mask(&self) -> QpAttrMask {
                let mut mask = QpAttrMask::empty();
                $( mask.set(QpAttrMask::$mask, self.$field.is_some()); )*
                mask
            }

            /// These attributes, and `other`'s where it sets them.
            #[must_use]
            pub fn merged(mut self, other: &Self) -> Self {
                $( self.$field = other.$field.or(self.$field); )*
                self
            }

            /// These attributes without those that `mask` names.
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
    /// The state to go to.
    qp_state: QpState = 0 STATE,
    /// The state that the caller believes the queue pair to be in: checked.
    cur_qp_state: QpState = 1 CUR_STATE,
    /// Whether an event tells that the send queue has drained.
    en_sqd_async_notify: bool = 2 EN_SQD_ASYNC_NOTIFY,
    /// What peers may do through the queue pair.
    qp_access_flags: Access = 3 ACCESS_FLAGS,
    /// Index of the partition key.
    pkey_index: u16 = 4 PKEY_INDEX,
    /// The port, counted from 1.
    port_num: Port = 5 PORT,
    /// The Q_Key of datagrams.
    qkey: u32 = 6 QKEY,
    /// The path to the peer.
    ah_attr: AddressVector = 7 AV,
    /// Payload bytes of one packet.
    path_mtu: Mtu = 8 PATH_MTU,
    /// Acknowledge timeout, n up to 31: at least 4.096 µs x 2^n, up to four times that before the first response, after slow
    /// ones and after retries; 0 never times out.
    timeout: u8 = 9 TIMEOUT,
    /// Retries after a timeout or a sequence error, 0 to 7.
    retry_cnt: u8 = 10 RETRY_CNT,
    /// Retries after the peer had no receive, 0 to 6; 7 without end.
    rnr_retry: u8 = 11 RNR_RETRY,
    /// First packet sequence number expected.
    rq_psn: Psn = 12 RQ_PSN,
    /// Reads and atomics outstanding as initiator.
    max_rd_atomic: u8 = 13 MAX_QP_RD_ATOMIC,
    /// How long a peer waits that found no receive: code 0 to 31, of which 0 is the longest.
    min_rnr_timer: u8 = 15 MIN_RNR_TIMER,
    /// First packet sequence number sent.
    sq_psn: Psn = 16 SQ_PSN,
    /// Reads and atomics served at one time.
    max_dest_rd_atomic: u8 = 17 MAX_DEST_RD_ATOMIC,
    /// The peer's queue pair.
    dest_qp_num: Qpn = 20 DEST_QPN,
}

/// What [`Qp::query`](crate::Qp::query) tells.
#[derive(Clone, Copy, Debug, PartialEq)]
#[doc(alias = "ibv_query_qp")]
pub struct QpStatus {
    /// The state now.
    pub state: QpState,
    /// Whether the send queue still drains.
    pub sq_draining: bool,
    /// Attributes that have been set.
    pub attributes: QpAttributes,
    /// Sizes.
    pub cap: QpCap,
}

macro_rules! qp_counters {
    ($($name:ident)*) => {
        /// What a queue pair counted since it was created.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        #[allow(missing_docs)]
        pub struct QpCounters {
            $(pub $name: u64,)*
        }

        impl QpCounters {
            /// Names and values, in declaration order.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            /// Adds what another counted.
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
