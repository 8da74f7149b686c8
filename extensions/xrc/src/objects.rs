//! The typed handle, domains and their shared receive queues.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

#[cfg(feature = "rdma-core")]
use rdma_core_provider::{OpenDevice, xrc::XrcQp};
use verbs_api::objects::Holder;
use verbs_api::provider::Reply;
use verbs_api::{
    Context, Cq, DestroyError, Pd, Qp, QpOptions, Srq, SrqOptions, Started, VerbError,
    extension::{Extension, Held, QpExtension, SrqExtension, Unsupported},
    ids::Qpn,
};

#[cfg(feature = "rdma-core")]
use crate::binding;
use crate::domain::{Domain, Group, PATIENCE};
use crate::emulation::TargetOf;
use crate::opening::{FileId, OpenXrcd, Opening};
use crate::qp_types::{INITIATOR, Role, TARGET};
use crate::{XRC, XrcFeatures};

/// The typed handle of XRC: opens domains, and makes a queue pair an initiator by
/// [`QpOptions::with`](verbs_api::QpOptions::with).
#[derive(Clone, Debug)]
pub struct Xrc {
    context: Context,
}

impl Extension for Xrc {
    type Features = XrcFeatures;

    const NAME: &'static str = "xrc";
    const NEEDS: XrcFeatures = XrcFeatures::XRC;

    fn load(context: &Context) -> Result<Self, Unsupported> {
        Self::require(context)?;
        Ok(Self {
            context: context.clone(),
        })
    }
}

impl Xrc {
    /// Opens an XRC domain.
    ///
    /// # Errors
    /// The file has no domain and `create` is not set, or it has one and `exclusive` is set; or another process owns the
    /// domain, which the error names. Real devices, and emulated ones at an address, share domains between processes; an emulated
    /// device without an address shares them between the contexts of its process.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open(&self, how: OpenXrcd<'_>) -> Started<Xrcd> {
        let (started, outcome) = self.context.begin();
        let context = self.context.clone();
        let then = move |opened: Result<_, VerbError>| match opened {
            Err(error) => outcome.complete(Err(error)),
            Ok(opening) => {
                let domain = Opened {
                    opening,
                    given_back: false,
                };
                context.alloc_pd().on_done(move |pd| match pd {
                    Err(error) => outcome.complete(Err(error)),
                    Ok(pd) => context.create_cq(1).on_done(move |cq| {
                        outcome.complete(cq.map(|cq| Xrcd { domain, pd, cq }));
                    }),
                });
            }
        };
        self.open_domain(how, Reply::new(then));
        started
    }

    fn initiator(&self) -> QpExtension {
        let made = QpExtension::new("xrc", &XRC, Role::Initiator as u64).variant(&INITIATOR);
        #[cfg(feature = "rdma-core")]
        if OpenDevice::of(&self.context).is_some() {
            return made.holding(Held::new(XrcQp::Initiator));
        }
        made
    }

    fn open_domain(&self, how: OpenXrcd<'_>, reply: Reply<Box<dyn Opening>>) {
        let file = match how.file.map(file).transpose() {
            Ok(file) => file,
            Err(error) => return reply.send(Err(VerbError::os("fstat", error))),
        };
        #[cfg(feature = "rdma-core")]
        if let Some(device) = OpenDevice::of(&self.context) {
            let id = self.context.device_id();
            return binding::open(&device, id, file, how, reply);
        }
        let domain = match file {
            None => Ok(Domain::anonymous()),
            Some((_, file)) => {
                let group = Group::of(&self.context);
                let id = self.context.device_id();
                Domain::of_file(id, file, how, group.as_ref(), PATIENCE)
            }
        };
        reply.send(domain.map(|domain| Box::new(domain) as _));
    }
}

/// Makes the queue pair an XRC initiator: pass the handle to [`QpOptions::with`](verbs_api::QpOptions::with).
impl From<&Xrc> for QpExtension {
    fn from(xrc: &Xrc) -> Self {
        xrc.initiator()
    }
}

fn file(fd: BorrowedFd<'_>) -> io::Result<(OwnedFd, FileId)> {
    Ok((fd.try_clone_to_owned()?, FileId::of(fd)?))
}

impl Opening for Arc<Domain> {
    fn srq(&self) -> Held {
        Held::new(Self::clone(self))
    }

    fn target(&self, existing: Option<Qpn>) -> Held {
        Held::new(TargetOf {
            domain: Self::clone(self),
            existing,
        })
    }

    fn close(&self) -> Result<(), Vec<Holder>> {
        Domain::close(self)
    }

    fn forget(&self) {
        self.forget_opening();
    }
}

// Closed when dropped.
struct Opened {
    opening: Box<dyn Opening>,
    given_back: bool,
}

impl Opened {
    fn close(&mut self) -> Result<(), Vec<Holder>> {
        self.opening.close()?;
        self.given_back = true;
        Ok(())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.given_back {
            self.opening.forget();
        }
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain").finish_non_exhaustive()
    }
}

/// An open XRC domain. Dropping it closes it; objects that were made in it continue to exist.
#[derive(Debug)]
#[doc(alias = "ibv_xrcd")]
pub struct Xrcd {
    domain: Opened,
    // For the targets, which use neither: no memory is registered there and nothing completes there.
    pd: Pd,
    cq: Cq,
}

impl Xrcd {
    /// Makes a shared receive queue in the domain. Its receives complete on `cq`, whichever target delivers to them.
    /// Requests that name the queue access memory of `pd`, for the receives and for remote reads, writes and atomics.
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_srq(&self, pd: &Pd, options: SrqOptions, cq: &Cq) -> Started<XrcSrq> {
        let of_domain = SrqExtension::new("xrc", &XRC, self.domain.opening.srq());
        let (started, outcome) = pd.open_device().begin();
        pd.create_srq_of(of_domain, options, cq)
            .on_done(move |made| outcome.complete(made.and_then(XrcSrq::new)));
        started
    }

    /// Makes a target in the domain.
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_target(&self) -> Started<Qp> {
        self.target(None)
    }

    /// Opens another handle of an existing target of the domain. The target is destroyed with its last handle; its events
    /// are reported to all handles.
    ///
    /// # Errors
    /// The domain has no target with this number.
    #[doc(alias = "ibv_open_qp")]
    pub fn open_target(&self, qp_num: Qpn) -> Started<Qp> {
        self.target(Some(qp_num))
    }

    fn target(&self, existing: Option<Qpn>) -> Started<Qp> {
        let of = self.domain.opening.target(existing);
        let target = QpExtension::new("xrc", &XRC, Role::Target as u64)
            .variant(&TARGET)
            .holding(of);
        self.pd.create_qp(QpOptions::rc(&self.cq).with(target))
    }

    /// Closes this opening of the domain. Fails with Busy if it is the last one and the domain has shared receive queues or
    /// targets.
    ///
    /// # Errors
    /// Busy, with those objects and the domain, which is still open.
    #[doc(alias = "ibv_close_xrcd")]
    pub fn close(mut self) -> Result<(), DestroyError<Self>> {
        match self.domain.close() {
            Ok(()) => Ok(()),
            Err(held_by) => Err(DestroyError::Busy {
                object: self,
                held_by,
            }),
        }
    }
}

/// A shared receive queue of an XRC domain. A clone is another handle of the same queue.
#[derive(Clone)]
pub struct XrcSrq {
    srq: Srq,
    number: u32,
}

impl XrcSrq {
    fn new(srq: Srq) -> Result<Self, VerbError> {
        let Some(number) = srq.srq_num() else {
            return Err(VerbError::UnsupportedVerb(
                "numbers of shared receive queues",
            ));
        };
        Ok(Self { srq, number })
    }

    /// Returns the number by which requests of peers name the shared receive queue: 24 bits, unique in the XRC domain.
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Destroys the queue: requests of peers that name it are refused afterwards.
    pub fn destroy(self) -> Started<(), DestroyError<Srq>> {
        self.srq.destroy()
    }
}

impl Deref for XrcSrq {
    type Target = Srq;

    fn deref(&self) -> &Srq {
        &self.srq
    }
}

impl fmt::Debug for XrcSrq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (number {})", self.srq, self.number)
    }
}
