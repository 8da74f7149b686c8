//! Features: abilities of a device beyond the baseline.

use bitflags::bitflags;

use crate::service::Operations;

/// A set of feature bits with a name of its own, so that the bits of two vendors' extensions cannot collide.
///
/// The core's [`Features`] is one such set; an extension defines another with `bitflags!` and implements this.
pub trait FeatureSet: bitflags::Flags<Bits = u64> + Copy + Send + Sync + 'static {
    /// Unique name of the set, by convention the crate's name.
    const SET: &'static str;
}

bitflags! {
    /// Opt-in abilities of the core's own work requests and objects.
    ///
    /// Each bit's page says what it guarantees, which limits come with it, which devices have it, and where it is specified.
    ///
    /// ```
    /// use verbs_api::{Features, capability::feature_names};
    /// let wanted = Features::BMME | Features::ZBVA | Features::MULTICAST;
    /// let missing = wanted - Features::IWARP_MANDATORY;
    /// assert_eq!(feature_names(missing), ["MULTICAST"]);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    #[doc(alias = "ibv_device_cap_flags")]
    pub struct Features: u64 {
        /// Base memory management extensions.
        ///
        /// * Guarantees: keys are allocated without memory ([`Pd::alloc_key`](crate::Pd::alloc_key)); fast-register,
        ///   local invalidate and send-with-invalidate are work requests; the consumer owns the low key byte.
        /// * Limits: [`Limit::MaxFastRegPageListLen`](crate::Limit::MaxFastRegPageListLen).
        /// * Who: every iWARP device must; InfiniBand and RoCE adapters since ConnectX-2; emulated devices with the
        ///   `bmme` emulation linked.
        /// * Source: IBTA volume 1 section 10.6.6; RDMA verbs of the RDMA Consortium; FEATURES 1.01.
        const BMME = 1;
        /// A fence on a local invalidate is honoured.
        ///
        /// * Guarantees: a fenced local invalidate starts only after all earlier reads and atomics have completed.
        /// * Limits: none.
        /// * Who: mandatory on iWARP; optional on InfiniBand, present on the emulated device.
        /// * Source: RDMA Consortium verbs; IBTA 10.8.3.3.
        const LOCAL_INVALIDATE_FENCE = 1 << 1;
        /// Memory windows of type 1: bound by a verb of their own, usable by every queue pair of the domain.
        ///
        /// * Guarantees: [`MwType::Type1`](crate::memory::MwType::Type1) can be allocated, bound, rebound and unbound.
        /// * Limits: [`Limit::MaxMw`](crate::Limit::MaxMw).
        /// * Who: InfiniBand; never iWARP.
        /// * Source: IBTA 10.6.7.2.
        const WINDOW_1 = 1 << 2;
        /// Memory windows of type 2A: bound by a work request, checked by queue pair number alone.
        ///
        /// * Guarantees: a bound window answers only through its queue pair. A device has at most one of 2A and 2B.
        /// * Limits: [`Limit::MaxMw`](crate::Limit::MaxMw).
        /// * Who: some InfiniBand devices, the emulated one by option; never iWARP.
        /// * Source: IBTA 10.6.7.2.2.
        const WINDOW_2A = 1 << 3;
        /// Memory windows of type 2B: bound by a work request, checked by queue pair and protection domain.
        ///
        /// * Guarantees: a bound window answers only through its queue pair, and only within its domain.
        /// * Limits: [`Limit::MaxMw`](crate::Limit::MaxMw).
        /// * Who: every iWARP device; InfiniBand devices with BMME.
        /// * Source: IBTA 10.6.7.2.3; RFC 5040 section 8.1.
        const WINDOW_2B = 1 << 4;
        /// A read whose local sink key is invalidated when the last byte has been placed.
        ///
        /// * Guarantees: at the completion the sink key is in the free state.
        /// * Limits: [`Limit::MaxSgeRd`](crate::Limit::MaxSgeRd) is 1 on iWARP.
        /// * Who: iWARP; never InfiniBand.
        /// * Source: RDMA Consortium verbs; RFC 5040 section 5.
        const READ_WITH_INVALIDATE = 1 << 5;
        /// Zero-based addresses for regions and type-2 windows.
        ///
        /// * Guarantees: [`Access::ZERO_BASED`](crate::Access::ZERO_BASED) is honoured.
        /// * Limits: none.
        /// * Who: mandatory on iWARP, optional on InfiniBand.
        /// * Source: IBTA 10.6.2.1; RDMA Consortium verbs.
        const ZBVA = 1 << 6;
        /// Fast-register of blocks of one size that need be neither a power of two nor aligned.
        ///
        /// * Guarantees: [`PageList`](crate::PageList)s with a uniform block size and a first-byte offset.
        /// * Limits: [`Limit::MaxFastRegPageListLen`](crate::Limit::MaxFastRegPageListLen) counts blocks.
        /// * Who: optional everywhere, implied by nothing.
        /// * Source: IBTA 10.6.6 (block mode).
        const BLOCK_LIST = 1 << 7;
        /// Fast-register of elements of arbitrary sizes with gaps between them.
        ///
        /// * Guarantees: a gap list registers each element whole.
        /// * Limits: [`Limit::MaxFastRegPageListLen`](crate::Limit::MaxFastRegPageListLen) counts elements.
        /// * Who: optional everywhere, implied by nothing.
        /// * Source: the layout that Linux calls SG_GAPS_REG.
        const SG_GAPS = 1 << 8;
        /// Shared receive queues.
        ///
        /// * Guarantees: several queue pairs take receives from one queue; limit event.
        /// * Limits: [`Limit::MaxSrqWr`](crate::Limit::MaxSrqWr), [`Limit::MaxSrqSge`](crate::Limit::MaxSrqSge).
        /// * Who: most devices.
        /// * Source: IBTA 10.2.9.
        const SRQ = 1 << 9;
        /// An 8-byte write that is atomic for every reader.
        ///
        /// * Guarantees: [`AtomicWrite`](crate::wr::AtomicWrite).
        /// * Limits: 8 bytes, 8-aligned.
        /// * Who: newer InfiniBand devices; never iWARP.
        /// * Source: IBTA volume 1 release 1.5, memory placement extensions.
        const ATOMIC_WRITE = 1 << 10;
        /// A request that completes when earlier writes are visible or persistent at the peer.
        ///
        /// * Guarantees: [`Flush`](crate::wr::Flush).
        /// * Limits: none.
        /// * Who: newer InfiniBand devices; never iWARP.
        /// * Source: IBTA volume 1 release 1.5, memory placement extensions.
        const FLUSH = 1 << 11;
        /// Multicast groups for datagrams.
        ///
        /// * Guarantees: [`Qp::attach_multicast`](crate::Qp::attach_multicast).
        /// * Limits: [`Limit::MaxMcastGrp`](crate::Limit::MaxMcastGrp),
        ///   [`Limit::MaxMcastQpAttach`](crate::Limit::MaxMcastQpAttach).
        /// * Who: InfiniBand and RoCE; never iWARP.
        /// * Source: IBTA 10.5.
        const MULTICAST = 1 << 12;
        /// Counters of completions, successes and errors apart.
        ///
        /// * Guarantees: [`CompletionCounter`](crate::completion::CompletionCounter)s count sends, receives, reads and writes of queue
        ///   pairs.
        /// * Limits: [`Limit::MaxCompCntr`](crate::Limit::MaxCompCntr).
        /// * Who: emulated devices, of either transport; AWS EFA in hardware.
        /// * Source: `ibv_create_comp_cntr(3)` of rdma-core 65.
        const COMPLETION_COUNTERS = 1 << 13;
        /// On-demand paging: a region whose pages need not be present, neither when it is registered nor later.
        ///
        /// * Guarantees: [`MrOptions::on_demand`](crate::MrOptions::on_demand) for every service and operation of the device; a
        ///   request finds the pages that the memory has when it is carried out.
        /// * Limits: none.
        /// * Who: emulated devices, which use memory in place; newer InfiniBand adapters have it too, and the provider for
        ///   rdma-core does not claim it.
        /// * Source: `IBV_ACCESS_ON_DEMAND` in `ibv_reg_mr(3)`.
        const ON_DEMAND = 1 << 14;
    }
}

impl FeatureSet for Features {
    const SET: &'static str = "core";
}

impl Features {
    /// The features that the BMME write-up of 2008 put under one bit: BMME itself, the fence on local invalidate, 2B
    /// windows and zero-based addresses.
    pub const BMME_AS_PROPOSED: Self = Self::BMME
        .union(Self::LOCAL_INVALIDATE_FENCE)
        .union(Self::WINDOW_2B);

    /// Memory windows of type 2, of either kind.
    pub const WINDOW_2: Self = Self::WINDOW_2A.union(Self::WINDOW_2B);

    /// The features that every iWARP device must have.
    pub const IWARP_MANDATORY: Self = Self::BMME_AS_PROPOSED
        .union(Self::ZBVA)
        .union(Self::READ_WITH_INVALIDATE);
}

/// Names of the bits set in `features`, in bit order.
pub fn feature_names<F: FeatureSet>(features: F) -> Vec<&'static str> {
    F::FLAGS
        .iter()
        .filter(|flag| !flag.name().is_empty() && features.contains(*flag.value()))
        .map(bitflags::Flag::name)
        .collect()
}

impl Operations {
    /// Returns the features that these operations need and `offered` does not contain. Invalidating needs keys (`BMME`) or
    /// windows of type 2.
    pub fn missing_features(self, offered: Features) -> Features {
        let has_windows = offered.intersects(Features::WINDOW_2);
        let mut needed = Features::empty();
        needed.set(
            Features::BMME,
            self.contains(Self::FAST_REGISTER)
                || self.intersects(Self::LOCAL_INV | Self::SEND_WITH_INV) && !has_windows,
        );
        needed.set(
            Features::WINDOW_2B,
            self.contains(Self::BIND_MW) && !has_windows,
        );
        needed.set(
            Features::READ_WITH_INVALIDATE,
            self.contains(Self::READ_WITH_INV),
        );
        needed.set(Features::FLUSH, self.contains(Self::FLUSH));
        needed.set(Features::ATOMIC_WRITE, self.contains(Self::ATOMIC_WRITE));
        needed - offered
    }
}
