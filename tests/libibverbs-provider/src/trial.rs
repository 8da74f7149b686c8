//! What a device does not say and only a trial tells.

use std::ptr;

use polyverbs_abi::{IbvContext, IbvCq, IbvPd, IbvQpCap, IbvQpInitAttr, qp_type};
use verbs_api::memory::{Memory, MemoryRange};
use verbs_api::objects::ObjectId;
use verbs_api::provider::RegionMemory;
use verbs_api::{Access, VerbError};

use crate::verbs::{Change, Live, Zero};

/// What a device did.
pub(crate) struct Trial {
    /// The largest power of two, up to 1024 bytes, for which it made a reliable queue pair.
    pub(crate) max_inline_data: u32,
    /// It changed the rights of a region.
    pub(crate) reregisters: bool,
    /// It changed the size of a completion queue.
    pub(crate) resizes: bool,
}

impl Trial {
    /// Tries an open device.
    ///
    /// # Errors
    /// What every device has was refused.
    pub(crate) fn of(context: &Live<IbvContext>) -> Result<Self, VerbError> {
        let (pd, channel) = (context.alloc_pd()?, context.create_channel()?);
        let cq = context.create_cq(8, NOBODY, &channel, 0)?;
        let tried = Self {
            max_inline_data: max_inline_data(&pd, &cq),
            reregisters: reregisters(&pd)?,
            resizes: cq.resize(16).is_ok(),
        };
        cq.destroy()?;
        channel.destroy()?;
        pd.dealloc()?;
        Ok(tried)
    }
}

const NOBODY: ObjectId = ObjectId::new(0, 0);

fn max_inline_data(pd: &Live<IbvPd>, cq: &Live<IbvCq>) -> u32 {
    let sizes = [1024, 512, 256, 128, 64, 32];
    let made = sizes.into_iter().find(|&size| {
        let mut init = IbvQpInitAttr {
            qp_context: ptr::null_mut(),
            qp_type: qp_type::RC,
            cap: IbvQpCap {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: size,
            },
            ..IbvQpInitAttr::zero()
        };
        let qp = pd.create_qp(&mut init, (cq, cq), None);
        qp.and_then(|qp| qp.destroy()).is_ok()
    });
    made.unwrap_or(0)
}

fn reregisters(pd: &Live<IbvPd>) -> Result<bool, VerbError> {
    let memory = Memory::zeroed(4096).map_err(|_| VerbError::Resources("memory"))?;
    let memory = RegionMemory::from(&MemoryRange::from(&memory));
    let mr = pd.reg_mr(&memory, memory.address() as u64, Access::LOCAL_WRITE)?;
    let change = Change {
        memory: None,
        pd: None,
        access: Some(Access::REMOTE_READ),
    };
    let changed = mr.rereg(&change).is_ok();
    mr.dereg()?;
    Ok(changed)
}
