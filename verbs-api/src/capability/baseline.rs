//! The baseline as features: what every device has unless it lists a gap.

use bitflags::bitflags;

use super::{BaselineGaps, DeviceAttributes, FeatureSet};
use crate::service::{Operations, QpType};

bitflags! {
    /// The abilities that a program may expect of every device by default, as bits that
    /// [`Requirements`](super::Requirements) can ask for.
    ///
    /// Some devices lack one of them. A program that needs it says so when it opens a device, and gets a device that has it
    /// or an error that names it: `Requirements::new().needs(Baseline::UD)`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Baseline: u64 {
        /// Queue pairs of the reliable connected service (RC).
        const RC = 1;
        /// Queue pairs of the unreliable connected service (UC).
        const UC = 1 << 1;
        /// Queue pairs of the unreliable datagram service (UD).
        const UD = 1 << 2;
        /// Sends, which consume a receive of the peer.
        const SEND = 1 << 3;
        /// Sends with immediate data.
        const SEND_WITH_IMM = 1 << 4;
        /// Writes into remote memory.
        const WRITE = 1 << 5;
        /// RDMA writes with immediate data, which also complete a receive of the peer.
        const WRITE_WITH_IMM = 1 << 6;
        /// Reads from remote memory.
        const READ = 1 << 7;
        /// The local buffer of an RDMA read needs no remote rights, only local write.
        const LOCAL_READ_SINK = 1 << 8;
        /// The atomics compare-and-swap and fetch-and-add on eight bytes.
        const ATOMICS = 1 << 9;
        /// Inline data: the payload is copied into the request when it is posted.
        const INLINE = 1 << 10;
        /// A send for which the peer has no receive posted is retransmitted (RNR retry).
        const RNR_RETRY = 1 << 11;
        /// Memory regions, each with keys, access rights, bounds and a protection domain.
        const REGIONS = 1 << 12;
        /// Memory regions can be re-registered: with other memory, rights or protection domain.
        const REREG_MR = 1 << 13;
        /// Completion queues can be resized, and keep their entries.
        const RESIZE_CQ = 1 << 14;
    }
}

impl FeatureSet for Baseline {
    const SET: &'static str = "baseline";
}

impl Baseline {
    /// Returns the baseline abilities that a device with these attributes has.
    pub fn of(device: &DeviceAttributes) -> Self {
        let mut has = Self::all();
        for (gap, bit) in LACKING {
            has.set(bit, has.contains(bit) && !device.gaps.contains(gap));
        }
        has.set(Self::INLINE, device.limits.max_inline_data > 0);
        // Operations need a type of queue pairs that executes them.
        if !has.contains(Self::RC) {
            has -= Self::READ | Self::ATOMICS | Self::LOCAL_READ_SINK | Self::RNR_RETRY;
        }
        if !has.intersects(Self::RC | Self::UC) {
            has -= Self::WRITE | Self::WRITE_WITH_IMM;
        }
        has
    }

    /// Returns the baseline abilities that queue pairs of this type need for these operations.
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

    /// Returns the gaps that a device without any of these abilities lists in its attributes.
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
