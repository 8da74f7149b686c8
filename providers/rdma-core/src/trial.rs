//! A trial: finds out what a device does not report.

use std::ffi::c_int;

use polyverbs_abi::{IbvContext, IbvCq, IbvPd, IbvQpCap, IbvQpInitAttr, qp_type};
use verbs_api::capability::BaselineGaps;
use verbs_api::memory::{Memory, MemoryRange};
use verbs_api::objects::ObjectId;
use verbs_api::provider::RegionMemory;
use verbs_api::{Access, VerbError};

use crate::verbs::{Change, Live, Zero};

/// What a trial has found out about a device.
pub(crate) struct Trial {
    /// The largest number of inline bytes, up to 1024, with which the device made a queue pair of some service.
    pub(crate) max_inline_data: u32,
    /// The baseline abilities that the device refused: services, and changes of regions and of completion queues.
    pub(crate) gaps: BaselineGaps,
}

impl Trial {
    /// Tries on an open device what its attributes do not report.
    ///
    /// # Errors
    /// The device refused an object that every device has.
    pub(crate) fn of(context: &Live<IbvContext>) -> Result<Self, VerbError> {
        let (pd, channel) = (context.alloc_pd()?, context.create_channel()?);
        let cq = context.create_cq(8, NO_OBJECT, &channel, 0)?;
        let makes = |service, size| makes(&pd, &cq, service, size);
        let has = [
            (BaselineGaps::NO_RC, makes(qp_type::RC, 0)),
            (BaselineGaps::NO_UC, makes(qp_type::UC, 0)),
            (BaselineGaps::NO_UD, makes(qp_type::UD, 0)),
            (BaselineGaps::NO_REREG_MR, reregisters(&pd)?),
            (BaselineGaps::NO_RESIZE_CQ, cq.resize(16).is_ok()),
        ];
        let mut gaps = BaselineGaps::empty();
        has.into_iter().for_each(|(gap, has)| gaps.set(gap, !has));
        let service = match gaps.contains(BaselineGaps::NO_RC) {
            true => qp_type::UD,
            false => qp_type::RC,
        };
        let max_inline_data = largest(MOST_INLINE, |size| makes(service, size));
        cq.destroy()?;
        channel.destroy()?;
        pd.dealloc()?;
        Ok(Self {
            max_inline_data,
            gaps,
        })
    }
}

const NO_OBJECT: ObjectId = ObjectId::new(0, 0);
/// The largest number of inline bytes that is tried.
const MOST_INLINE: u32 = 1024;

/// Returns the largest number up to `most` that `fits`; every smaller one fits too. 0 is not tried.
fn largest(most: u32, fits: impl Fn(u32) -> bool) -> u32 {
    if fits(most) {
        return most;
    }
    let (mut fitting, mut beyond) = (0, most);
    while beyond - fitting > 1 {
        let middle = fitting.midpoint(beyond);
        match fits(middle) {
            true => fitting = middle,
            false => beyond = middle,
        }
    }
    fitting
}

/// Whether the device makes a queue pair of this service with this many bytes of inline data.
fn makes(pd: &Live<IbvPd>, cq: &Live<IbvCq>, service: c_int, max_inline_data: u32) -> bool {
    let mut init = IbvQpInitAttr {
        qp_type: service,
        cap: IbvQpCap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data,
        },
        ..IbvQpInitAttr::zero()
    };
    let made = pd.create_qp(&mut init, (cq, cq), None);
    made.and_then(|qp| qp.destroy()).is_ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_number_that_fits_is_found() {
        for most in [0, 1, 63, 80, 101, 512, 1023, 1024] {
            assert_eq!(largest(MOST_INLINE, |size| size <= most), most);
        }
    }
}
