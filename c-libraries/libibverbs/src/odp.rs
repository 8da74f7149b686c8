//! Regions on demand, whose pages a program asks to be prefetched (`ibv_advise_mr`).
#![allow(unsafe_code)]

use std::collections::HashMap;

use verbs_api::Access;
use verbs_api::memory::make_resident;
use verbs_api::objects::ObjectId;
use verbs_api::provider::Mutex;

use crate::abi::IbvSge;
use crate::errno::Errno;

/// The regions on demand of a device, by their lkeys.
#[derive(Default)]
pub struct OnDemand(Mutex<HashMap<u32, Region>>);

/// A region on demand.
#[derive(Clone, Copy)]
pub struct Region {
    /// Its protection domain.
    pub pd: ObjectId,
    /// The address by which requests name its first byte.
    pub iova: u64,
    /// The address of its first byte in the process.
    pub start: usize,
    /// The number of its bytes.
    pub length: usize,
    /// The access that it grants.
    pub rights: Access,
}

/// What `ibv_advise_mr` shall do with pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Make them present for reading.
    Read,
    /// Make them present for writing.
    Write,
    /// Use those that are present, and make none.
    Present,
}

impl OnDemand {
    /// Adds a region.
    pub fn insert(&self, lkey: u32, region: Region) {
        self.0.lock().insert(lkey, region);
    }

    /// Removes a region, if it is one on demand.
    pub fn remove(&self, lkey: u32) {
        self.0.lock().remove(&lkey);
    }

    /// Checks an entry of `ibv_advise_mr`. Returns the address of its bytes in the process.
    ///
    /// # Errors
    /// `EFAULT`: the key is of no region on demand, or the bytes are not all in the region. `EPERM`: the region is in another domain,
    /// or shall be prefetched for writes that it does not allow.
    pub fn find(&self, sge: &IbvSge, pd: ObjectId, advice: Advice) -> Result<usize, Errno> {
        let found = self.0.lock().get(&sge.lkey).copied();
        let region = found.ok_or(Errno::FAULT)?;
        let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let is_read_only = !region.rights.intersects(writes);
        if region.pd != pd || advice == Advice::Write && is_read_only {
            return Err(Errno(libc::EPERM));
        }
        let offset = sge.addr.checked_sub(region.iova).ok_or(Errno::FAULT)?;
        let end = offset.checked_add(sge.length.into());
        match end {
            Some(end) if end <= region.length as u64 => Ok(region.start + offset as usize),
            _ => Err(Errno::FAULT),
        }
    }
}

/// Makes the pages present.
///
/// # Errors
/// `EFAULT`: a part is not mapped, or is protected.
pub fn prefetch(at: usize, length: u32, advice: Advice) -> Result<(), Errno> {
    let start = std::ptr::with_exposed_provenance(at);
    let is_done = match advice {
        Advice::Present => true,
        Advice::Read | Advice::Write => {
            make_resident(start, length as usize, advice == Advice::Write)
        }
    };
    match is_done {
        true => Ok(()),
        false => Err(Errno::FAULT),
    }
}
