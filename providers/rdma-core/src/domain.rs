//! Protection domains.

use std::sync::{Arc, OnceLock};

use polyverbs_abi::{IbvMr, IbvPd};
use verbs_api::memory::{Memory, MemoryRange};
use verbs_api::provider::{MadeOnce, RegionMemory};
use verbs_api::{Access, VerbError};

use crate::context::Context;
use crate::verbs::Live;

pub(crate) struct Domain {
    pub(crate) pd: Arc<Live<IbvPd>>,
    pub(crate) context: Arc<Context>,
    pub(crate) null_region: Arc<NullRegion>,
}

impl Domain {
    pub(crate) fn new(context: Arc<Context>, pd: Live<IbvPd>) -> Self {
        Self {
            pd: Arc::new(pd),
            context,
            null_region: Arc::default(),
        }
    }

    pub(crate) fn parts(&self) -> (Arc<Context>, Arc<Live<IbvPd>>) {
        (Arc::clone(&self.context), Arc::clone(&self.pd))
    }
}

/// A region without memory of the program, to which a window refers while it is bound to no other, because not every
/// library accepts a null pointer. It is registered with the domain's first window.
#[derive(Default)]
pub(crate) struct NullRegion(OnceLock<Arc<Live<IbvMr>>>);

impl NullRegion {
    pub(crate) fn get(&self, pd: &Live<IbvPd>) -> Result<Arc<Live<IbvMr>>, VerbError> {
        let registered = match self.0.get() {
            Some(registered) => registered,
            None => {
                let registered = Arc::new(register_nothing(pd)?);
                self.0.get_or_init(|| registered)
            }
        };
        Ok(Arc::clone(registered))
    }

    pub(crate) fn deregister(&self) {
        // The region is gone already if this is the second attempt to deallocate the domain.
        let _ = self.0.get().map(|mr| mr.dereg());
    }
}

fn register_nothing(pd: &Live<IbvPd>) -> Result<Live<IbvMr>, VerbError> {
    static NOTHING: MadeOnce<Memory> = MadeOnce::new();
    let memory = match NOTHING.made() {
        Some(memory) => memory,
        None => {
            let made = Memory::zeroed(4096).map_err(|_| VerbError::Resources("memory"))?;
            NOTHING.get_or_make(|| made)
        }
    };
    let memory = RegionMemory::from(&MemoryRange::from(memory));
    pd.reg_mr(&memory, memory.address() as u64, Access::MW_BIND)
}
