//! Completion queues, shared receive queues, queue pairs.
//!
//! Posters and pollers have no lock and no count of their own: their owner keeps the object from being destroyed in the meantime.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use polyverbs_abi::{
    IbvCq, IbvGid, IbvMw, IbvMwBind, IbvQp, IbvQpAttr, IbvQpInitAttr, IbvRecvWr, IbvSendWr, IbvSrq,
    IbvSrqAttr, IbvWc,
};
use verbs_api::VerbError;
use verbs_api::ids::Gid;
use verbs_api::qp::QpAttributes;

use super::{Live, Zero as _, check};
use crate::library::errno;

type PollCq = unsafe extern "C" fn(*mut IbvCq, c_int, *mut IbvWc) -> c_int;
type ReqNotify = unsafe extern "C" fn(*mut IbvCq, c_int) -> c_int;
type Post<Q, W> = unsafe extern "C" fn(*mut Q, *mut W, *mut *mut W) -> c_int;

/// Polls and arms one completion queue, without a lock.
pub(crate) struct Poller {
    cq: NonNull<IbvCq>,
    poll: Option<PollCq>,
    notify: Option<ReqNotify>,
}

// SAFETY: every thread may poll.
unsafe impl Send for Poller {}
// SAFETY: every thread may poll.
unsafe impl Sync for Poller {}

impl Poller {
    /// Fills `entries` from the front with completions. Returns those that were filled.
    ///
    /// # Errors
    /// The library returned an error, or more entries than it was asked for.
    ///
    /// # Safety
    /// The queue is alive.
    #[inline]
    pub(crate) unsafe fn poll<'e>(
        &self,
        entries: &'e mut [MaybeUninit<IbvWc>],
    ) -> Result<&'e [IbvWc], VerbError> {
        let poll = self.poll.ok_or(VerbError::UnsupportedVerb("poll_cq"))?;
        let room = entries.as_mut_ptr().cast::<IbvWc>();
        // SAFETY: the caller promises that the queue is alive, and there is room for this many entries.
        let polled = unsafe { poll(self.cq.as_ptr(), entries.len() as c_int, room) };
        let polled = usize::try_from(polled).map_err(|_| VerbError::CqOverrun)?;
        if polled > entries.len() {
            let verb = "poll_cq";
            let errno = libc::EOVERFLOW;
            return Err(VerbError::Os { verb, errno });
        }
        // SAFETY: the library has filled this many entries.
        Ok(unsafe { std::slice::from_raw_parts(room, polled) })
    }

    /// Arms the queue for one notification, of the next completion or of the next solicited one.
    ///
    /// # Errors
    /// The device refused.
    ///
    /// # Safety
    /// The queue is alive.
    pub(crate) unsafe fn req_notify(&self, solicited_only: bool) -> Result<(), VerbError> {
        let verb = "req_notify_cq";
        let notify = self.notify.ok_or(VerbError::UnsupportedVerb(verb))?;
        // SAFETY: the caller promises that the queue is alive.
        check(verb, unsafe {
            notify(self.cq.as_ptr(), solicited_only.into())
        })
    }
}

/// Posts requests of the type `W` to one queue of the type `Q`, without a lock.
pub(crate) struct Poster<Q, W> {
    queue: NonNull<Q>,
    post: Option<Post<Q, W>>,
}

// SAFETY: every thread may post.
unsafe impl<Q, W> Send for Poster<Q, W> {}
// SAFETY: every thread may post.
unsafe impl<Q, W> Sync for Poster<Q, W> {}

impl<Q, W> Poster<Q, W> {
    /// Posts a linked list of requests.
    ///
    /// # Errors
    /// The error number, and the request that was refused, or null if the library does not report it. The requests before
    /// it were posted.
    ///
    /// # Safety
    /// The queue and everything that the requests point to are alive.
    #[inline]
    pub(crate) unsafe fn post(&self, first: *mut W) -> Result<(), (c_int, *mut W)> {
        let post = self.post.ok_or((libc::EOPNOTSUPP, first))?;
        let mut bad = ptr::null_mut();
        // SAFETY: the caller promises that the queue and everything that the requests point to are alive.
        match unsafe { post(self.queue.as_ptr(), first, &raw mut bad) } {
            0 => Ok(()),
            // Some drivers return -1 and set `errno`, others return the negated error number.
            -1 => Err((errno().unwrap_or(libc::EIO), bad)),
            errno => Err((errno.saturating_abs(), bad)),
        }
    }
}

impl Live<IbvCq> {
    pub(crate) fn cqe(&self) -> Result<u32, VerbError> {
        // SAFETY: `with` keeps the object alive.
        self.with(|at| unsafe { (*at).cqe } as u32)
    }

    pub(crate) fn poller(&self) -> Result<Poller, VerbError> {
        self.with(|at| {
            // SAFETY: `with` keeps the object alive, and its context outlives it.
            unsafe {
                Poller {
                    cq: NonNull::new_unchecked(at),
                    poll: op!((*at).context, POLL_CQ: fn(*mut IbvCq, c_int, *mut IbvWc) -> c_int),
                    notify: op!((*at).context, REQ_NOTIFY_CQ: fn(*mut IbvCq, c_int) -> c_int),
                }
            }
        })
    }

    pub(crate) fn resize(&self, cqe: u32) -> Result<(), VerbError> {
        let cqe = cqe.min(i32::MAX as u32) as c_int;
        // SAFETY: `ask` keeps the object alive.
        self.ask("resize_cq", |at| unsafe {
            (self.library.ibv_resize_cq)(at, cqe)
        })
    }

    pub(crate) fn destroy(&self) -> Result<(), VerbError> {
        self.end("destroy_cq", self.library.ibv_destroy_cq)
    }
}

impl Live<IbvSrq> {
    pub(crate) fn poster(&self) -> Result<Poster<IbvSrq, IbvRecvWr>, VerbError> {
        self.with(|at| {
            // SAFETY: `with` keeps the object alive, and its context outlives it.
            unsafe {
                Poster {
                    queue: NonNull::new_unchecked(at),
                    post: op!((*at).context, POST_SRQ_RECV: fn(*mut IbvSrq, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int),
                }
            }
        })
    }

    pub(crate) fn modify(&self, mut attr: IbvSrqAttr, mask: c_int) -> Result<(), VerbError> {
        // SAFETY: `ask` keeps the object alive.
        self.ask("modify_srq", |at| unsafe {
            (self.library.ibv_modify_srq)(at, &raw mut attr, mask)
        })
    }

    pub(crate) fn query(&self) -> Result<IbvSrqAttr, VerbError> {
        let mut attr = IbvSrqAttr::zero();
        // SAFETY: `ask` keeps the object alive, and there is room for the result.
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
        // SAFETY: `with` keeps the object alive.
        self.with(|at| unsafe { (*at).qp_num })
    }

    pub(crate) fn send_poster(&self) -> Result<Poster<IbvQp, IbvSendWr>, VerbError> {
        self.with(|at| {
            // SAFETY: `with` keeps the object alive, and its context outlives it.
            unsafe {
                Poster {
                    queue: NonNull::new_unchecked(at),
                    post: op!((*at).context, POST_SEND: fn(*mut IbvQp, *mut IbvSendWr, *mut *mut IbvSendWr) -> c_int),
                }
            }
        })
    }

    pub(crate) fn receive_poster(&self) -> Result<Poster<IbvQp, IbvRecvWr>, VerbError> {
        self.with(|at| {
            // SAFETY: `with` keeps the object alive, and its context outlives it.
            unsafe {
                Poster {
                    queue: NonNull::new_unchecked(at),
                    post: op!((*at).context, POST_RECV: fn(*mut IbvQp, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int),
                }
            }
        })
    }

    /// Binds a window of type 1. Returns 0 or the error number of the refusal.
    ///
    /// # Safety
    /// The window and the region of the bind are alive.
    pub(crate) unsafe fn bind_mw(
        &self,
        mw: *mut IbvMw,
        bind: &mut IbvMwBind,
    ) -> Result<c_int, VerbError> {
        self.with(|at| {
            // SAFETY: `with` keeps the object alive, its context outlives it, and the caller promises the rest.
            unsafe {
                let slot = op!((*at).context, BIND_MW: fn(*mut IbvQp, *mut IbvMw, *mut IbvMwBind) -> c_int);
                slot.map_or(libc::EOPNOTSUPP, |slot| slot(at, mw, bind))
            }
        })
    }

    pub(crate) fn modify(&self, attributes: &QpAttributes) -> Result<(), VerbError> {
        let (mut attr, mask) = (attributes.into(), attributes.mask().bits() as c_int);
        // SAFETY: `ask` keeps the object alive.
        self.ask("modify_qp", |at| unsafe {
            (self.library.ibv_modify_qp)(at, &raw mut attr, mask)
        })
    }

    /// Queries the attributes of the queue pair that contain its state and whether its send queue is draining.
    pub(crate) fn query(&self) -> Result<IbvQpAttr, VerbError> {
        const STATE: c_int = 1;
        let (mut attr, mut init) = (IbvQpAttr::zero(), IbvQpInitAttr::zero());
        let query = self.library.ibv_query_qp;
        // SAFETY: `ask` keeps the object alive, and there is room for the result.
        self.ask("query_qp", |at| unsafe {
            query(at, &raw mut attr, STATE, &raw mut init)
        })?;
        Ok(attr)
    }

    pub(crate) fn attach(&self, group: Gid) -> Result<(), VerbError> {
        let (group, attach) = (IbvGid { raw: group.0 }, self.library.ibv_attach_mcast);
        // SAFETY: `ask` keeps the object alive.
        self.ask("attach_mcast", |at| unsafe {
            attach(at, &raw const group, 0)
        })
    }

    pub(crate) fn detach(&self, group: Gid) -> Result<(), VerbError> {
        let (group, detach) = (IbvGid { raw: group.0 }, self.library.ibv_detach_mcast);
        // SAFETY: `ask` keeps the object alive.
        self.ask("detach_mcast", |at| unsafe {
            detach(at, &raw const group, 0)
        })
    }

    pub(crate) fn destroy(&self) -> Result<(), VerbError> {
        self.end("destroy_qp", self.library.ibv_destroy_qp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn is_full<const ANSWER: c_int>(
        _: *mut IbvQp,
        first: *mut IbvSendWr,
        bad: *mut *mut IbvSendWr,
    ) -> c_int {
        // SAFETY: the poster passes a place for the refused request.
        unsafe { *bad = first };
        ANSWER
    }

    #[test]
    fn a_negated_error_number_is_understood() {
        let mut request = IbvSendWr::zero();
        let first = &raw mut request;
        for post in [is_full::<{ libc::ENOMEM }>, is_full::<{ -libc::ENOMEM }>] {
            let poster = Poster {
                queue: NonNull::dangling(),
                post: Some(post as Post<IbvQp, IbvSendWr>),
            };
            // SAFETY: the function reads nothing through its arguments.
            let refused = unsafe { poster.post(first) };
            assert_eq!(refused, Err((libc::ENOMEM, first)));
        }
    }
}
