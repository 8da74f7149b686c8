//! Base memory management on software devices.

use polyverbs_engine::emulation::{Emulation, EmulationPart, Gains, MemoryManagement};
use polyverbs_engine::fault::Fault;
use polyverbs_engine::key_table::{Binding, KeyTable};
use verbs_api::{Access, Features, PageList, Transport, capability::DeviceAttributes};

/// The emulation of the extension, on the engine's key table.
pub struct OnKeyTable;

/// The part of the extension that software devices need.
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

    fn memory_management(&self) -> Option<&'static dyn MemoryManagement> {
        Some(&OnKeyTable)
    }
}

impl MemoryManagement for OnKeyTable {
    fn fast_register(
        &self,
        keys: &KeyTable,
        key: u32,
        pd: u32,
        pages: &PageList,
        access: Access,
        iova: u64,
        length: u64,
    ) -> Result<(), Fault> {
        keys.fast_register(key, pd, pages, access, iova, length)
    }

    fn invalidate_local(&self, keys: &KeyTable, key: u32, pd: u32, qpn: u32) -> Result<(), Fault> {
        keys.invalidate_local(key, pd, qpn)
    }

    fn invalidate_remote(&self, keys: &KeyTable, key: u32, pd: u32, qpn: u32) -> Result<(), Fault> {
        keys.invalidate_remote(key, pd, qpn)
    }

    fn bind(&self, keys: &KeyTable, window: u32, binding: &Binding) -> Result<(), Fault> {
        keys.bind(window, binding)
    }
}
