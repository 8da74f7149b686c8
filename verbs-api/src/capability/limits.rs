//! Numbers that bound what a device does, each knowing which way is stronger.

use std::fmt;

macro_rules! limits {
    ($( $(#[$doc:meta])* $variant:ident $field:ident: $ty:ty, $direction:ident; )*) => {
        /// The numbers of a device.
        ///
        /// Maxima are upper bounds, not guarantees: a request within them may still find the device short of resources.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        #[doc(alias = "ibv_device_attr")]
        pub struct Limits {
            $( $(#[$doc])* pub $field: $ty, )*
        }

        /// Names one number of [`Limits`].
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
            /// A number of an extension.
            Extension(&'static ExtensionLimit),
        }

        impl Limit {
            /// Every limit of the core, in declaration order.
            pub const ALL: &'static [Self] = &[$( Self::$variant, )*];

            /// The verbs' own name of the attribute.
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => stringify!($field), )*
                    Self::Extension(limit) => limit.name,
                }
            }

            /// Which way is stronger.
            pub const fn direction(self) -> Direction {
                match self {
                    $( Self::$variant => Direction::$direction, )*
                    Self::Extension(limit) => limit.direction,
                }
            }
        }

        impl Limits {
            /// Makes the number that `limit` names no larger than `most`.
            pub fn lower(&mut self, limit: Limit, most: u64) {
                match limit {
                    // What it is compared with fits its type, so that the smaller one does.
                    $( Limit::$variant => self.$field = (self.$field as u64).min(most) as $ty, )*
                    Limit::Extension(_) => {}
                }
            }

            /// The number that `limit` names; 0 for one of an extension, which [`DeviceAttributes`](super::DeviceAttributes)
            /// knows.
            pub const fn value(&self, limit: Limit) -> u64 {
                match limit {
                    $( Limit::$variant => self.$field as u64, )*
                    Limit::Extension(_) => 0,
                }
            }
        }
    };
}

/// Which way a limit is stronger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// A larger number can do more.
    LargerIsStronger,
    /// A smaller number can do more.
    SmallerIsStronger,
    /// A set of bits: every wanted bit must be offered.
    Bits,
}

/// A number of an extension: a `static` of its crate.
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
    /// Name of the number.
    pub name: &'static str,
    /// Which way it is stronger.
    pub direction: Direction,
}

impl ExtensionLimit {
    /// The number `name` of the extension with the feature set `set`.
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
    /// Queue pairs.
    MaxQp max_qp: u32, LargerIsStronger;
    /// Work requests outstanding on one send or receive queue.
    MaxQpWr max_qp_wr: u32, LargerIsStronger;
    /// Scatter/gather entries of a send-queue request other than a read.
    MaxSendSge max_send_sge: u32, LargerIsStronger;
    /// Scatter/gather entries of a receive request.
    MaxRecvSge max_recv_sge: u32, LargerIsStronger;
    /// Scatter/gather entries of a read; 1 on iWARP.
    MaxSgeRd max_sge_rd: u32, LargerIsStronger;
    /// Bytes that may travel inline in a request.
    MaxInlineData max_inline_data: u32, LargerIsStronger;
    /// Bytes of one message.
    MaxMsgSz max_msg_sz: u64, LargerIsStronger;
    /// Completion queues.
    MaxCq max_cq: u32, LargerIsStronger;
    /// Entries of one completion queue.
    MaxCqe max_cqe: u32, LargerIsStronger;
    /// Completion vectors: completion queues are spread over them, each on an interrupt or thread of its own.
    NumCompVectors num_comp_vectors: u32, LargerIsStronger;
    /// Memory regions, allocated keys included.
    MaxMr max_mr: u32, LargerIsStronger;
    /// Bytes of one memory region.
    MaxMrSize max_mr_size: u64, LargerIsStronger;
    /// Memory windows.
    MaxMw max_mw: u32, LargerIsStronger;
    /// Protection domains.
    MaxPd max_pd: u32, LargerIsStronger;
    /// Address handles.
    MaxAh max_ah: u32, LargerIsStronger;
    /// Shared receive queues.
    MaxSrq max_srq: u32, LargerIsStronger;
    /// Work requests outstanding on one shared receive queue.
    MaxSrqWr max_srq_wr: u32, LargerIsStronger;
    /// Scatter/gather entries of a request on a shared receive queue.
    MaxSrqSge max_srq_sge: u32, LargerIsStronger;
    /// Reads and atomics that a queue pair serves at one time (responder; IRD on iWARP).
    MaxQpRdAtom max_qp_rd_atom: u32, LargerIsStronger;
    /// Reads and atomics that a queue pair has outstanding at one time (initiator; ORD on iWARP).
    MaxQpInitRdAtom max_qp_init_rd_atom: u32, LargerIsStronger;
    /// Pages, blocks or elements of one fast-register; 0 without BMME.
    MaxFastRegPageListLen max_fast_reg_page_list_len: u32, LargerIsStronger;
    /// Page sizes that can be registered: bit n stands for 2^n bytes.
    PageSizeCap page_size_cap: u64, Bits;
    /// Multicast groups.
    MaxMcastGrp max_mcast_grp: u32, LargerIsStronger;
    /// Queue pairs attached to one multicast group.
    MaxMcastQpAttach max_mcast_qp_attach: u32, LargerIsStronger;
    /// Physical ports.
    PhysPortCnt phys_port_cnt: u8, LargerIsStronger;
    /// The device's own delay before it acknowledges: 4.096 µs x 2^n.
    LocalCaAckDelay local_ca_ack_delay: u8, SmallerIsStronger;
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A wanted limit that an offer does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortLimit {
    /// Which number.
    pub limit: Limit,
    /// What was wanted.
    pub wanted: u64,
    /// What is offered.
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
    /// Compares one number: `Err` says what was wanted and what is offered.
    ///
    /// # Errors
    /// The offer is weaker than `wanted` in the direction of `limit`.
    pub fn check(&self, limit: Limit, wanted: u64) -> Result<(), ShortLimit> {
        limit.compare(self.value(limit), wanted)
    }
}

impl Limit {
    /// Compares an offer of this number with what is wanted.
    ///
    /// # Errors
    /// The offer is weaker than `wanted`.
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
