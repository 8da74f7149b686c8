//! Base memory management on software devices.

use polyverbs_engine::emulation::{Emulation, EmulationPart, Gains};
use verbs_api::{Features, Transport, capability::DeviceAttributes};

/// The implementation of base memory management on software devices. The engine's key table executes the operations; this
/// only enables the features.
pub struct OnKeyTable;

/// The part of the extension by which software devices find its implementation.
pub static EMULATION: EmulationPart = EmulationPart(&OnKeyTable);

impl Emulation for OnKeyTable {
    fn gains(&self, device: &DeviceAttributes) -> Gains {
        let common = Features::BMME
            | Features::LOCAL_INVALIDATE_FENCE
            | Features::ZBVA
            | Features::BLOCK_LIST
            | Features::SG_GAPS;
        // The driver determines which types of window the device has; of type 2 it has one kind.
        let windows = match device.features {
            features if features.contains(Features::WINDOW_2A) => Features::WINDOW_2A,
            _ => Features::WINDOW_2B,
        };
        let by_transport = match device.transport {
            Transport::InfiniBand => device.features & Features::WINDOW_1,
            Transport::Iwarp => Features::READ_WITH_INVALIDATE,
        };
        Gains {
            features: common | windows | by_transport,
            ..Gains::default()
        }
    }
}
