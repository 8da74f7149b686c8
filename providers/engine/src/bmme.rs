//! Base memory management on software devices: what makes them claim `BMME`.
//!
//! The next step of the project moves this module into a crate of its own; it uses nothing but the hooks.

use verbs_api::{Access, Features, PageList, Transport};

use crate::emulation::{LinkedEmulation, MemoryManagement};
use crate::fault::Fault;
use crate::key_table::KeyTable;

/// The emulation.
pub struct Bmme;

/// The emulation, for an explicit device option.
pub static BMME: Bmme = Bmme;

inventory::submit! { LinkedEmulation(&BMME) }

impl MemoryManagement for Bmme {
    fn name(&self) -> &'static str {
        "bmme"
    }

    fn features(&self, transport: Transport) -> Features {
        let common = Features::BMME
            | Features::LOCAL_INVALIDATE_FENCE
            | Features::ZBVA
            | Features::BLOCK_LIST
            | Features::SG_GAPS
            | Features::WINDOW_2B;
        match transport {
            Transport::InfiniBand => common,
            Transport::Iwarp => common | Features::READ_WITH_INVALIDATE,
        }
    }

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
}
