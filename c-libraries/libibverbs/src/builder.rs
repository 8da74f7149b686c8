//! The work requests that a program builds by `ibv_wr_*` calls, until it posts them.

use std::ffi::c_int;
use std::ptr;

use crate::abi::{IbvSendWr, IbvSge, send_flags};
use crate::errno::Errno;

/// The requests that were built since `ibv_wr_start`. The vectors keep their capacity, so that later batches allocate
/// nothing.
#[derive(Default)]
pub struct Builder {
    requests: Vec<Pending>,
    // The SGEs of all requests, one after the other.
    entries: Vec<IbvSge>,
    inlined: Vec<u8>,
    // The error of the first call with invalid arguments, which only `ibv_wr_complete` can report.
    refused: Option<Errno>,
}

struct Pending {
    wr: IbvSendWr,
    // Where the SGEs and inline data of this request begin in the vectors of the builder.
    entries: usize,
    inlined: usize,
    // An SGE for the inline data of this request.
    bytes: IbvSge,
}

impl Builder {
    /// Removes all requests that were built, and the error of a call.
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.entries.clear();
        self.inlined.clear();
        self.refused = None;
    }

    /// Notes that a call had invalid arguments, so that `ibv_wr_complete` fails with `why` and posts nothing.
    pub(crate) fn refuse(&mut self, why: Errno) {
        self.refused.get_or_insert(why);
    }

    /// Begins a request; later calls complete it until the next one begins.
    pub(crate) fn begin(&mut self, wr: IbvSendWr) -> &mut IbvSendWr {
        self.requests.push(Pending {
            wr,
            entries: self.entries.len(),
            inlined: self.inlined.len(),
            bytes: IbvSge::default(),
        });
        &mut self.requests.last_mut().expect("just added").wr
    }

    /// Sets the SGEs of the request that was begun last, in place of earlier ones.
    pub(crate) fn set_entries(&mut self, list: &[IbvSge]) {
        if let Some(last) = self.requests.last() {
            self.entries.truncate(last.entries);
            self.entries.extend_from_slice(list);
        }
    }

    /// Marks the data of the request that was begun last as inline, and removes its inline data so far.
    pub(crate) fn begin_inlined(&mut self) {
        if let Some(last) = self.requests.last_mut() {
            last.wr.send_flags |= send_flags::INLINE;
            self.inlined.truncate(last.inlined);
        }
    }

    /// Appends inline data to the request that was begun last.
    pub(crate) fn inline(&mut self, bytes: &[u8]) {
        if !self.requests.is_empty() {
            self.inlined.extend_from_slice(bytes);
        }
    }

    /// The request that was begun last; `None` if there is none.
    pub(crate) fn last(&mut self) -> Option<&mut IbvSendWr> {
        self.requests.last_mut().map(|pending| &mut pending.wr)
    }

    /// Links the requests to a null-terminated list for `ibv_post_send`. The list is valid until the builder changes.
    ///
    /// # Errors
    /// The error of the first call with invalid arguments.
    pub(crate) fn link(&mut self) -> Result<*mut IbvSendWr, Errno> {
        if let Some(errno) = self.refused {
            return Err(errno);
        }
        let (mut entries, mut inlined) = (&self.entries[..], &self.inlined[..]);
        let mut next = ptr::null_mut();
        for pending in self.requests.iter_mut().rev() {
            let (own_entries, own_bytes);
            (entries, own_entries) = entries.split_at(pending.entries);
            (inlined, own_bytes) = inlined.split_at(pending.inlined);
            let list = if pending.wr.send_flags & send_flags::INLINE != 0 {
                pending.bytes.addr = own_bytes.as_ptr().expose_provenance() as u64;
                pending.bytes.length = own_bytes.len() as u32;
                std::slice::from_ref(&pending.bytes)
            } else {
                own_entries
            };
            pending.wr.sg_list = list.as_ptr();
            pending.wr.num_sge = list.len() as c_int;
            pending.wr.next = next;
            next = &raw mut pending.wr;
        }
        Ok(next)
    }
}
