//! Domains of extended reliable connections, as the library has them.
//!
//! An extension [opens](crate::OpenDevice::open_xrcd) an [`Xrcd`] and hands it over with what is made in it: an `Arc<Xrcd>` is
//! [held](verbs_api::extension::SrqExtension::held) by the extension of a shared receive queue, an [`XrcQp`] by that of a queue
//! pair.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use polyverbs_abi::{IbvContext, IbvCq, IbvPd, IbvQp, IbvSrq, IbvSrqAttr, IbvXrcd};
use verbs_api::ids::Qpn;
use verbs_api::objects::{Holder, ObjectId, ObjectKind};
use verbs_api::{ArgumentReason, VerbError};

use crate::verbs::Live;

/// Whether the domain of a file is made when it is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// It is created if it is not there.
    pub create: bool,
    /// It must not be there.
    pub exclusive: bool,
}

/// An opening of a domain. The library's is closed by [`close`](Self::close), or when the last that was made in it is gone too.
pub struct Xrcd {
    xrcd: Live<IbvXrcd>,
    context: Arc<Live<IbvContext>>,
    /// What was made in it and lives.
    members: Mutex<Vec<Holder>>,
}

impl Xrcd {
    pub(crate) fn open(
        context: &Arc<Live<IbvContext>>,
        file: Option<BorrowedFd<'_>>,
        flags: OpenFlags,
    ) -> Result<Arc<Self>, VerbError> {
        let opened = context.open_xrcd(file, flags.in_c());
        Ok(Arc::new(Self {
            xrcd: opened.map_err(|error| flags.refused(file.is_some(), error))?,
            context: Arc::clone(context),
            members: Mutex::default(),
        }))
    }

    /// The shared receive queues and targets that were made in this opening and live.
    pub fn members(&self) -> Vec<Holder> {
        self.locked().clone()
    }

    /// Closes it.
    ///
    /// # Errors
    /// The library's, such as that something was made in it and lives.
    pub fn close(&self) -> Result<(), VerbError> {
        self.with_open(Live::<IbvXrcd>::close)
    }

    /// Uses it while its device is open: its functions are in the table of the device.
    fn with_open<R>(
        &self,
        using: impl FnOnce(&Live<IbvXrcd>) -> Result<R, VerbError>,
    ) -> Result<R, VerbError> {
        self.context.with(|_| using(&self.xrcd))?
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Holder>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is of this open device.
    pub(crate) fn check_of(&self, context: &Arc<Live<IbvContext>>) -> Result<(), VerbError> {
        match Arc::ptr_eq(&self.context, context) {
            true => Ok(()),
            false => Err(VerbError::argument("xrcd", ArgumentReason::AnotherDevice)),
        }
    }

    /// A new target, or another handle of one.
    pub(crate) fn target(
        &self,
        id: ObjectId,
        existing: Option<Qpn>,
    ) -> Result<Live<IbvQp>, VerbError> {
        self.with_open(|xrcd| match existing {
            None => xrcd.create_target(id),
            Some(qp_num) => xrcd.open_target(id, qp_num.value()),
        })
    }

    /// A shared receive queue of the domain, whose receives complete in the completion queue; and its sizes.
    pub(crate) fn srq(
        &self,
        id: ObjectId,
        of: (&Live<IbvPd>, &Live<IbvCq>),
        attr: IbvSrqAttr,
    ) -> Result<(Live<IbvSrq>, IbvSrqAttr), VerbError> {
        self.with_open(|xrcd| xrcd.create_srq(id, of, attr))
    }

    /// Notes what was made in it.
    pub(crate) fn add(self: &Arc<Self>, kind: ObjectKind, id: ObjectId) -> Member {
        let holder = Holder::new(kind, id);
        self.locked().push(holder);
        Member {
            xrcd: Arc::clone(self),
            id,
        }
    }
}

impl Drop for Xrcd {
    fn drop(&mut self) {
        // Of a device that was closed nothing is left to close, and nobody is there to be told of a failure.
        let _ = self.close();
    }
}

impl OpenFlags {
    fn in_c(self) -> i32 {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        flag(self.create, libc::O_CREAT) | flag(self.exclusive, libc::O_EXCL)
    }

    /// What a refusal means: the library has a number for that, and not always the same.
    fn refused(self, of_file: bool, error: VerbError) -> VerbError {
        let VerbError::Os { errno, .. } = error else {
            return error;
        };
        let reason = match errno {
            libc::EAGAIN | libc::EINVAL | libc::ENOENT if of_file && !self.create => {
                "the file has no domain, and none was to be created"
            }
            libc::EEXIST | libc::EINVAL if of_file && self.exclusive => {
                "the file has a domain already, and a new one was asked for"
            }
            _ => return error,
        };
        VerbError::argument("oflags", reason)
    }
}

/// Something that was made in a domain, as long as it lives.
pub(crate) struct Member {
    xrcd: Arc<Xrcd>,
    id: ObjectId,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.xrcd.locked().retain(|holder| holder.id != self.id);
    }
}

/// What a queue pair is to be.
#[derive(Clone)]
pub enum XrcQp {
    /// The sending end: each request carries the number of the shared receive queue at the peer that it is for, as an attribute.
    Initiator,
    /// The receiving end, of a domain: a new one, or another handle of the one with this number.
    Target(Arc<Xrcd>, Option<Qpn>),
}
