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

/// Whether opening an XRC domain may, or must, create it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// Creates the XRC domain if it does not exist.
    pub create: bool,
    /// Fails if the XRC domain exists already.
    pub exclusive: bool,
}

/// One opening of an XRC domain. The library's opening ends after [`close`](Self::close), once the last object that was
/// made in it is destroyed.
pub struct Xrcd {
    xrcd: Live<IbvXrcd>,
    context: Arc<Live<IbvContext>>,
    /// The objects that were made in this opening and exist.
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

    /// Returns the shared receive queues and targets that were made in this opening and exist.
    pub fn members(&self) -> Vec<Holder> {
        self.members.lock().clone()
    }

    /// Closes this opening of the XRC domain.
    ///
    /// # Errors
    /// The error of the library, for instance that an object of the domain still exists.
    pub fn close(&self) -> Result<(), VerbError> {
        self.with_open(Live::<IbvXrcd>::close)
    }

    /// Calls `using` with the domain if its device is open, because the functions for domains are in the device's table.
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

    /// Creates an XRC target in the domain, or opens another handle of an existing one.
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

    /// Creates a shared receive queue in the domain, whose receives complete on `cq`. Returns its actual sizes too.
    pub(crate) fn srq(
        &self,
        id: ObjectId,
        of: (&Live<IbvPd>, &Live<IbvCq>),
        attr: IbvSrqAttr,
    ) -> Result<(Live<IbvSrq>, IbvSrqAttr), VerbError> {
        self.with_open(|xrcd| xrcd.create_srq(id, of, attr))
    }

    /// Adds an object that was made in this opening to the list of members, until the returned value is dropped.
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

    /// Returns a more precise error for an opening that the library refused, because it reports only an error number, and
    /// not always the same.
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

/// Lists an object among the members of an XRC domain's opening; dropping it removes the object from the list.
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

/// The XRC role of a queue pair.
#[derive(Clone)]
pub enum XrcQp {
    /// The sending end. Each request has the number of the peer's shared receive queue as an attribute.
    Initiator,
    /// The receiving end, in this domain: a new target, or another handle of the existing one with this number.
    Target(Arc<Xrcd>, Option<Qpn>),
}
