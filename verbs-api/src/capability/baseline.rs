//! The baseline as features: what every device has unless it lists a gap.

use bitflags::bitflags;

use super::{BaselineGaps, DeviceAttributes, FeatureSet};
use crate::service::{Operations, QpType};

bitflags! {
    /// What a device is expected to do without being asked, as bits that can be needed.
    ///
    /// A program that cannot run without one of those that some device lacks says so when it opens a device, and gets
    /// one that has it or an error that names it: `Requirements::new().needs(Baseline::UD)`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Baseline: u64 {
        /// Reliable connections.
        const RC = 1;
        /// Unreliable connections.
        const UC = 1 << 1;
        /// Unreliable datagrams.
        const UD = 1 << 2;
        /// Sends into the peer's next receive.
        const SEND = 1 << 3;
        /// Sends with immediate data.
        const SEND_WITH_IMM = 1 << 4;
        /// Writes into remote memory.
        const WRITE = 1 << 5;
        /// Writes that complete a receive with immediate data.
        const WRITE_WITH_IMM = 1 << 6;
        /// Reads from remote memory.
        const READ = 1 << 7;
        /// A read's sink needs local rights only.
        const LOCAL_READ_SINK = 1 << 8;
        /// Compare-and-swap and fetch-and-add on eight bytes.
        const ATOMICS = 1 << 9;
        /// Bytes copied while posting.
        const INLINE = 1 << 10;
        /// A message that finds no receive is tried again.
        const RNR_RETRY = 1 << 11;
        /// Regions with keys, rights, bounds and a domain.
        const REGIONS = 1 << 12;
        /// Regions whose memory, rights or domain are changed.
        const REREG_MR = 1 << 13;
        /// Completion queues that keep what they hold when their size is changed.
        const RESIZE_CQ = 1 << 14;
    }
}

impl FeatureSet for Baseline {
    const SET: &'static str = "baseline";
}

impl Baseline {
    /// What a device with these attributes has of it.
    pub fn of(device: &DeviceAttributes) -> Self {
        let mut has = Self::all();
        for (gap, bit) in LACKING {
            has.set(bit, has.contains(bit) && !device.gaps.contains(gap));
        }
        has.set(Self::INLINE, device.limits.max_inline_data > 0);
        has
    }

    /// What queue pairs of this type take of it to do these operations.
    pub fn taken_by(qp_type: QpType, operations: Operations) -> Self {
        let service = match qp_type {
            QpType::Rc => Self::RC,
            QpType::Uc => Self::UC,
            QpType::Ud => Self::UD,
        };
        let taken = OPERATIONS
            .into_iter()
            .filter(|&(of, _)| operations.intersects(of));
        taken.fold(service, |all, (_, bit)| all | bit)
    }

    /// The gaps of a device that has none of these bits.
    pub fn gaps(self) -> BaselineGaps {
        let lacking = LACKING.into_iter().filter(|&(_, bit)| self.contains(bit));
        lacking.fold(BaselineGaps::empty(), |all, (gap, _)| all | gap)
    }
}

const LACKING: [(BaselineGaps, Baseline); 10] = [
    (BaselineGaps::NO_RC, Baseline::RC),
    (BaselineGaps::NO_UD, Baseline::UD),
    (BaselineGaps::NO_UC, Baseline::UC),
    (
        BaselineGaps::NO_SEND_WITH_IMMEDIATE,
        Baseline::SEND_WITH_IMM,
    ),
    (
        BaselineGaps::NO_WRITE_WITH_IMMEDIATE,
        Baseline::WRITE_WITH_IMM,
    ),
    (BaselineGaps::NO_ATOMICS, Baseline::ATOMICS),
    (
        BaselineGaps::READ_SINK_NEEDS_REMOTE_WRITE,
        Baseline::LOCAL_READ_SINK,
    ),
    (BaselineGaps::NO_RNR_RETRY, Baseline::RNR_RETRY),
    (BaselineGaps::NO_REREG_MR, Baseline::REREG_MR),
    (BaselineGaps::NO_RESIZE_CQ, Baseline::RESIZE_CQ),
];

const OPERATIONS: [(Operations, Baseline); 7] = [
    (Operations::SEND, Baseline::SEND),
    (Operations::SEND_WITH_IMM, Baseline::SEND_WITH_IMM),
    (Operations::WRITE, Baseline::WRITE),
    (Operations::WRITE_WITH_IMM, Baseline::WRITE_WITH_IMM),
    (Operations::READ, Baseline::READ),
    (Operations::ATOMIC_CMP_AND_SWP, Baseline::ATOMICS),
    (Operations::ATOMIC_FETCH_AND_ADD, Baseline::ATOMICS),
];
