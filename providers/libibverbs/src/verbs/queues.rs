//! Completion queues, shared receive queues, queue pairs.

use std::ffi::c_int;
use std::ptr;

use polyverbs_abi::{
    IbvCq, IbvGid, IbvMw, IbvMwBind, IbvQp, IbvQpAttr, IbvQpInitAttr, IbvRecvWr, IbvSendWr, IbvSrq,
    IbvSrqAttr, IbvWc,
};
use verbs_api::VerbError;
use verbs_api::ids::Gid;

use super::{Live, Zero as _, check};

impl Live<IbvCq> {
    pub(crate) fn cqe(&self) -> Result<u32, VerbError> {
        // SAFETY: it lives.
        self.with(|at| unsafe { (*at).cqe } as u32)
    }

    /// Fills `entries` from the front; answers how many.
    pub(crate) fn poll(&self, entries: &mut [IbvWc]) -> Result<usize, VerbError> {
        let polled = self.with(|at| {
            // SAFETY: it lives, and so does its context. There is room for as many.
            unsafe {
                let poll = op!((*at).context, POLL_CQ: fn(*mut IbvCq, c_int, *mut IbvWc) -> c_int);
                poll.map(|poll| poll(at, entries.len() as c_int, entries.as_mut_ptr()))
            }
        })?;
        let polled = polled.ok_or(VerbError::UnsupportedVerb("poll_cq"))?;
        usize::try_from(polled).map_err(|_| VerbError::CqOverrun)
    }

    pub(crate) fn req_notify(&self, solicited_only: bool) -> Result<(), VerbError> {
        let answer = self.with(|at| {
            // SAFETY: it lives, and so does its context.
            unsafe {
                let notify = op!((*at).context, REQ_NOTIFY_CQ: fn(*mut IbvCq, c_int) -> c_int);
                notify.map(|notify| notify(at, solicited_only.into()))
            }
        })?;
        check("req_notify_cq", answer.unwrap_or(libc::EOPNOTSUPP))
    }

    pub(crate) fn resize(&self, cqe: u32) -> Result<(), VerbError> {
        let cqe = cqe.min(i32::MAX as u32) as c_int;
        // SAFETY: it lives.
        self.ask("resize_cq", |at| unsafe {
            (self.library.ibv_resize_cq)(at, cqe)
        })
    }

    pub(crate) fn destroy(&self) -> Result<(), VerbError> {
        self.end("destroy_cq", self.library.ibv_destroy_cq)
    }
}

impl Live<IbvSrq> {
    /// The error number where it is refused.
    ///
    /// # Safety
    /// The request points to entries that live.
    pub(crate) unsafe fn post(&self, request: &mut IbvRecvWr) -> Result<c_int, VerbError> {
        self.with(|at| {
            let mut bad = ptr::null_mut();
            // SAFETY: it lives, and so does its context; the rest is the caller's.
            unsafe {
                let post = op!((*at).context, POST_SRQ_RECV: fn(*mut IbvSrq, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int);
                post.map_or(libc::EOPNOTSUPP, |post| post(at, request, &raw mut bad))
            }
        })
    }

    pub(crate) fn modify(&self, mut attr: IbvSrqAttr, mask: c_int) -> Result<(), VerbError> {
        // SAFETY: it lives.
        self.ask("modify_srq", |at| unsafe {
            (self.library.ibv_modify_srq)(at, &raw mut attr, mask)
        })
    }

    pub(crate) fn query(&self) -> Result<IbvSrqAttr, VerbError> {
        let mut attr = IbvSrqAttr::zero();
        // SAFETY: it lives, and there is room.
        self.ask("query_srq", |at| unsafe {
            (self.library.ibv_query_srq)(at, &raw mut attr)
        })?;
        Ok(attr)
    }

    pub(crate) fn destroy(&self) -> Result<(), VerbError> {
        self.end("destroy_srq", self.library.ibv_destroy_srq)
    }
}

impl Live<IbvQp> {
    pub(crate) fn number(&self) -> Result<u32, VerbError> {
        // SAFETY: it lives.
        self.with(|at| unsafe { (*at).qp_num })
    }

    /// The error number where it is refused.
    ///
    /// # Safety
    /// What the request points to lives.
    pub(crate) unsafe fn post_send(&self, request: &mut IbvSendWr) -> Result<c_int, VerbError> {
        self.with(|at| {
            let mut bad = ptr::null_mut();
            // SAFETY: it lives, and so does its context; the rest is the caller's.
            unsafe {
                let post = op!((*at).context, POST_SEND: fn(*mut IbvQp, *mut IbvSendWr, *mut *mut IbvSendWr) -> c_int);
                post.map_or(libc::EOPNOTSUPP, |post| post(at, request, &raw mut bad))
            }
        })
    }

    /// The error number where it is refused.
    ///
    /// # Safety
    /// The request points to entries that live.
    pub(crate) unsafe fn post_recv(&self, request: &mut IbvRecvWr) -> Result<c_int, VerbError> {
        self.with(|at| {
            let mut bad = ptr::null_mut();
            // SAFETY: it lives, and so does its context; the rest is the caller's.
            unsafe {
                let post = op!((*at).context, POST_RECV: fn(*mut IbvQp, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int);
                post.map_or(libc::EOPNOTSUPP, |post| post(at, request, &raw mut bad))
            }
        })
    }

    /// Binds a window of type 1; the error number where it is refused.
    ///
    /// # Safety
    /// The window and the region of the bind live.
    pub(crate) unsafe fn bind_mw(
        &self,
        mw: *mut IbvMw,
        bind: &mut IbvMwBind,
    ) -> Result<c_int, VerbError> {
        self.with(|at| {
            // SAFETY: it lives, and so does its context; the rest is the caller's.
            unsafe {
                let slot = op!((*at).context, BIND_MW: fn(*mut IbvQp, *mut IbvMw, *mut IbvMwBind) -> c_int);
                slot.map_or(libc::EOPNOTSUPP, |slot| slot(at, mw, bind))
            }
        })
    }

    pub(crate) fn modify(&self, attr: &mut IbvQpAttr, mask: c_int) -> Result<(), VerbError> {
        // SAFETY: it lives.
        self.ask("modify_qp", |at| unsafe {
            (self.library.ibv_modify_qp)(at, attr, mask)
        })
    }

    /// Its state, and whether the send queue still drains.
    pub(crate) fn query(&self) -> Result<IbvQpAttr, VerbError> {
        const STATE: c_int = 1;
        let (mut attr, mut init) = (IbvQpAttr::zero(), IbvQpInitAttr::zero());
        let query = self.library.ibv_query_qp;
        // SAFETY: it lives, and there is room.
        self.ask("query_qp", |at| unsafe {
            query(at, &raw mut attr, STATE, &raw mut init)
        })?;
        Ok(attr)
    }

    pub(crate) fn attach(&self, group: Gid) -> Result<(), VerbError> {
        let (group, attach) = (IbvGid { raw: group.0 }, self.library.ibv_attach_mcast);
        // SAFETY: it lives.
        self.ask("attach_mcast", |at| unsafe {
            attach(at, &raw const group, 0)
        })
    }

    pub(crate) fn detach(&self, group: Gid) -> Result<(), VerbError> {
        let (group, detach) = (IbvGid { raw: group.0 }, self.library.ibv_detach_mcast);
        // SAFETY: it lives.
        self.ask("detach_mcast", |at| unsafe {
            detach(at, &raw const group, 0)
        })
    }

    pub(crate) fn destroy(&self) -> Result<(), VerbError> {
        self.end("destroy_qp", self.library.ibv_destroy_qp)
    }
}
