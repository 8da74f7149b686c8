//! Domains of extended reliable connections of the library.
//!
//! An extension [opens](crate::OpenDevice::open_xrcd) an [`Xrcd`] and passes it along with the objects that are created in it:
//! the extension of a shared receive queue [holds](verbs_api::extension::SrqExtension::held) an `Arc<Xrcd>`, and that of a queue
//! pair an [`XrcQp`].

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use polyverbs_abi::{IbvContext, IbvCq, IbvPd, IbvQp, IbvSrq, IbvSrqAttr, IbvXrcd};
use verbs_api::ids::Qpn;
use verbs_api::objects::{Holder, ObjectId, ObjectKind};
use verbs_api::provider::Mutex;
use verbs_api::{ArgumentReason, VerbError};

use crate::verbs::Live;

/// Whether opening a domain creates it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// Creates the domain if it does not exist.
    pub create: bool,
    /// Fails if the domain exists.
    pub exclusive: bool,
}

/// One opening of a domain. The library's opening ends with [`close`](Self::close), or when the last object that was made in it
/// is gone too.
pub struct Xrcd {
    xrcd: Live<IbvXrcd>,
    context: Arc<Live<IbvContext>>,
    /// The objects that were made in it and exist.
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

    /// The shared receive queues and targets that were made in this opening and exist.
    pub fn members(&self) -> Vec<Holder> {
        self.members.lock().clone()
    }

    /// Closes the opening.
    ///
    /// # Errors
    /// The error of the library, for instance that an object which was made in it exists.
    pub fn close(&self) -> Result<(), VerbError> {
        self.with_open(Live::<IbvXrcd>::close)
    }

    /// Uses the domain while its device is open, because the functions are in the table of the device.
    fn with_open<R>(
        &self,
        using: impl FnOnce(&Live<IbvXrcd>) -> Result<R, VerbError>,
    ) -> Result<R, VerbError> {
        self.context.with(|_| using(&self.xrcd))?
    }

    /// Checks that the domain belongs to this open device.
    pub(crate) fn check_of(&self, context: &Arc<Live<IbvContext>>) -> Result<(), VerbError> {
        match Arc::ptr_eq(&self.context, context) {
            true => Ok(()),
            false => Err(VerbError::argument("xrcd", ArgumentReason::AnotherDevice)),
        }
    }

    /// Creates a target, or opens another handle of one.
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

    /// Creates a shared receive queue of the domain, whose receives complete in the completion queue. Returns its sizes too.
    pub(crate) fn srq(
        &self,
        id: ObjectId,
        of: (&Live<IbvPd>, &Live<IbvCq>),
        attr: IbvSrqAttr,
    ) -> Result<(Live<IbvSrq>, IbvSrqAttr), VerbError> {
        self.with_open(|xrcd| xrcd.create_srq(id, of, attr))
    }

    /// Notes an object that was made in the opening.
    pub(crate) fn add(self: &Arc<Self>, kind: ObjectKind, id: ObjectId) -> Member {
        let holder = Holder::new(kind, id);
        self.members.lock().push(holder);
        Member {
            xrcd: Arc::clone(self),
            id,
        }
    }
}

impl Drop for Xrcd {
    fn drop(&mut self) {
        // If the device was closed, there is nothing left to close; in no case is there a caller to report a failure to.
        let _ = self.close();
    }
}

impl OpenFlags {
    fn in_c(self) -> i32 {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        flag(self.create, libc::O_CREAT) | flag(self.exclusive, libc::O_EXCL)
    }

    /// Explains a refusal: the library reports it only by a number, and not always by the same.
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

/// An object that was made in a domain. Dropping this notes its end.
pub(crate) struct Member {
    xrcd: Arc<Xrcd>,
    id: ObjectId,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.xrcd
            .members
            .lock()
            .retain(|holder| holder.id != self.id);
    }
}

/// The role of a queue pair.
#[derive(Clone)]
pub enum XrcQp {
    /// The sending end. Each request carries, as an attribute, the number of the peer's shared receive queue that it is for.
    Initiator,
    /// The receiving end in a domain: a new one, or another handle of the one with this number.
    Target(Arc<Xrcd>, Option<Qpn>),
}
