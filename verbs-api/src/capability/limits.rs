//! Limits of a device, each with the direction in which its values get stronger.

use std::fmt;

macro_rules! limits {
    ($( $(#[$doc:meta])* $variant:ident $field:ident: $ty:ty, $direction:ident; )*) => {
        /// The limits of a device (`struct ibv_device_attr`).
        ///
        /// Maxima are upper bounds, not guarantees: a request within them may still find the device short of resources.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        #[doc(alias = "ibv_device_attr")]
        pub struct Limits {
            $( $(#[$doc])* pub $field: $ty, )*
        }

        /// Names one field of [`Limits`], or a limit of an extension.
        ///
        /// ```
        /// use verbs_api::{Limit, capability::Limits};
        /// let limits = Limits { max_send_sge: 4, ..Limits::default() }; // those of a device: `Context::limits`
        /// assert_eq!(limits.value(Limit::MaxSendSge), 4);
        /// let short = limits.check(Limit::MaxSendSge, 16).unwrap_err();
        /// assert_eq!(short.to_string(), "max_send_sge: wanted at least 16, offered 4");
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Limit {
            $( $(#[$doc])* $variant, )*
            /// A limit of an extension.
            Extension(&'static ExtensionLimit),
        }

        impl Limit {
            /// All limits of the core, in declaration order.
            pub const ALL: &'static [Self] = &[$( Self::$variant, )*];

            /// The limit's name in verbs.
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => stringify!($field), )*
                    Self::Extension(limit) => limit.name,
                }
            }

            /// Whether a larger or a smaller value of this limit lets a program do more.
            pub const fn direction(self) -> Direction {
                match self {
                    $( Self::$variant => Direction::$direction, )*
                    Self::Extension(limit) => limit.direction,
                }
            }
        }

        impl Limits {
            /// Weakens `limit` to `most` if its value is stronger: of a maximum the smaller one stays, of a minimum the larger
            /// one, and of a mask the bits that both have.
            pub fn lower(&mut self, limit: Limit, most: u64) {
                self.set(limit, limit.direction().weaker(self.value(limit), most));
            }

            /// Sets `limit` to `value`, or to the largest value that its field can have. One of an extension stays, which only
            /// [`DeviceAttributes`](super::DeviceAttributes) contains.
            pub fn set(&mut self, limit: Limit, value: u64) {
                match limit {
                    $( Limit::$variant => self.$field = <$ty>::try_from(value).unwrap_or(<$ty>::MAX), )*
                    Limit::Extension(_) => {}
                }
            }

            /// Returns the value of `limit`; 0 for one of an extension, which only
            /// [`DeviceAttributes`](super::DeviceAttributes) contains.
            pub const fn value(&self, limit: Limit) -> u64 {
                match limit {
                    $( Limit::$variant => self.$field as u64, )*
                    Limit::Extension(_) => 0,
                }
            }
        }
    };
}

/// How two values of a limit compare: which one lets a program do more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The larger value lets a program do more.
    LargerIsStronger,
    /// The smaller value lets a program do more.
    SmallerIsStronger,
    /// The value is a bit mask: every wanted bit must be offered.
    Bits,
}

impl Direction {
    /// Returns the weaker of two values; of two masks, the bits that both have.
    pub const fn weaker(self, one: u64, other: u64) -> u64 {
        match (self, one < other) {
            (Self::Bits, _) => one & other,
            (Self::LargerIsStronger, true) | (Self::SmallerIsStronger, false) => one,
            (Self::LargerIsStronger, false) | (Self::SmallerIsStronger, true) => other,
        }
    }
}

/// A limit that an extension defines, as a `static` of its crate.
///
/// ```
/// use verbs_api::{Requirements, capability::{Direction, ExtensionLimit}};
/// static MAX_RANGE: ExtensionLimit = ExtensionLimit::new("checksum", "max_range", Direction::LargerIsStronger);
/// let wanted = Requirements::new().at_least(&MAX_RANGE, 4096);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExtensionLimit {
    /// Name of the extension's feature set.
    pub set: &'static str,
    /// Name of the limit.
    pub name: &'static str,
    /// Whether a larger or a smaller value lets a program do more.
    pub direction: Direction,
}

impl ExtensionLimit {
    /// Describes the limit `name` of the extension with the feature set `set`.
    pub const fn new(set: &'static str, name: &'static str, direction: Direction) -> Self {
        Self {
            set,
            name,
            direction,
        }
    }
}

impl From<&'static ExtensionLimit> for Limit {
    fn from(limit: &'static ExtensionLimit) -> Self {
        Self::Extension(limit)
    }
}

limits! {
    /// Most queue pairs that can exist at one time.
    MaxQp max_qp: u32, LargerIsStronger;
    /// Most work requests outstanding on one send queue or one receive queue.
    MaxQpWr max_qp_wr: u32, LargerIsStronger;
    /// Most scatter/gather entries of a send-queue request other than an RDMA read.
    MaxSendSge max_send_sge: u32, LargerIsStronger;
    /// Most scatter/gather entries of a receive request.
    MaxRecvSge max_recv_sge: u32, LargerIsStronger;
    /// Most scatter/gather entries of an RDMA read; 1 on iWARP.
    MaxSgeRd max_sge_rd: u32, LargerIsStronger;
    /// Most bytes of inline data of a request.
    MaxInlineData max_inline_data: u32, LargerIsStronger;
    /// Most bytes of one message.
    MaxMsgSz max_msg_sz: u64, LargerIsStronger;
    /// Most completion queues that can exist at one time.
    MaxCq max_cq: u32, LargerIsStronger;
    /// Most entries of one completion queue.
    MaxCqe max_cqe: u32, LargerIsStronger;
    /// Completion vectors: each delivers the notifications of its completion queues on an interrupt or a thread of its own.
    NumCompVectors num_comp_vectors: u32, LargerIsStronger;
    /// Most memory regions that can exist at one time, allocated keys included.
    MaxMr max_mr: u32, LargerIsStronger;
    /// Most bytes of one memory region.
    MaxMrSize max_mr_size: u64, LargerIsStronger;
    /// Most memory windows that can exist at one time.
    MaxMw max_mw: u32, LargerIsStronger;
    /// Most protection domains that can exist at one time.
    MaxPd max_pd: u32, LargerIsStronger;
    /// Most address handles that can exist at one time.
    MaxAh max_ah: u32, LargerIsStronger;
    /// Most shared receive queues that can exist at one time.
    MaxSrq max_srq: u32, LargerIsStronger;
    /// Most work requests outstanding on one shared receive queue.
    MaxSrqWr max_srq_wr: u32, LargerIsStronger;
    /// Most scatter/gather entries of a request on a shared receive queue.
    MaxSrqSge max_srq_sge: u32, LargerIsStronger;
    /// Most reads and atomics of its peer that a queue pair executes at one time as the responder (IRD on iWARP).
    MaxQpRdAtom max_qp_rd_atom: u32, LargerIsStronger;
    /// Most reads and atomics that a queue pair has outstanding at one time as the requester (ORD on iWARP).
    MaxQpInitRdAtom max_qp_init_rd_atom: u32, LargerIsStronger;
    /// Most RDMA reads and atomics that the device can serve at the same time, over all of its queue pairs.
    MaxResRdAtom max_res_rd_atom: u32, LargerIsStronger;
    /// Most pages, blocks or elements of one fast-register; 0 without BMME.
    MaxFastRegPageListLen max_fast_reg_page_list_len: u32, LargerIsStronger;
    /// Page sizes that can be registered: bit n stands for 2^n bytes.
    PageSizeCap page_size_cap: u64, Bits;
    /// Most multicast groups that can exist at one time.
    MaxMcastGrp max_mcast_grp: u32, LargerIsStronger;
    /// Most queue pairs that can be attached to one multicast group.
    MaxMcastQpAttach max_mcast_qp_attach: u32, LargerIsStronger;
    /// Most completion counters that can exist at one time.
    MaxCompCntr max_comp_cntr: u32, LargerIsStronger;
    /// How many physical ports the device has.
    PhysPortCnt phys_port_cnt: u8, LargerIsStronger;
    /// How long the device may take to acknowledge a packet: 4.096 µs x 2^n for the value n.
    LocalCaAckDelay local_ca_ack_delay: u8, SmallerIsStronger;
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A limit for which a program asked for more than the device offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortLimit {
    /// The limit that is too weak.
    pub limit: Limit,
    /// The value that the program asked for.
    pub wanted: u64,
    /// The value that the device offers.
    pub offered: u64,
}

impl fmt::Display for ShortLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit.direction() {
            Direction::LargerIsStronger => {
                write!(
                    f,
                    "{}: wanted at least {}, offered {}",
                    self.limit, self.wanted, self.offered
                )
            }
            Direction::SmallerIsStronger => {
                write!(
                    f,
                    "{}: wanted at most {}, offered {}",
                    self.limit, self.wanted, self.offered
                )
            }
            Direction::Bits => {
                write!(
                    f,
                    "{}: wanted bits {:#x}, offered {:#x}",
                    self.limit, self.wanted, self.offered
                )
            }
        }
    }
}

impl Limits {
    /// Checks that the value of `limit` is at least as strong as `wanted`.
    ///
    /// # Errors
    /// The value is weaker than `wanted` in the direction of `limit`.
    pub fn check(&self, limit: Limit, wanted: u64) -> Result<(), ShortLimit> {
        limit.compare(self.value(limit), wanted)
    }
}

impl Limit {
    /// Checks that `offered` is at least as strong as `wanted` in the direction of this limit.
    ///
    /// # Errors
    /// `offered` is weaker than `wanted`.
    pub fn compare(self, offered: u64, wanted: u64) -> Result<(), ShortLimit> {
        let met = match self.direction() {
            Direction::LargerIsStronger => offered >= wanted,
            Direction::SmallerIsStronger => offered <= wanted,
            Direction::Bits => offered & wanted == wanted,
        };
        if met {
            Ok(())
        } else {
            Err(ShortLimit {
                limit: self,
                wanted,
                offered,
            })
        }
    }
}
