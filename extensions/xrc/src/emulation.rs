//! XRC on software devices.

use std::sync::Arc;

use polyverbs_engine::emulation::{
    Addressing, Emulation, EmulationPart, Gains, QpHandle, QpHooks, Sharing, SrqParts, Target,
};
use polyverbs_engine::srq::NamedSrq;
use verbs_api::objects::ObjectId;
use verbs_api::provider::{EventSink, PostOps, QpOps, Reply};
use verbs_api::qp::{QpAttributes, QpCap, QpCounters, QpState, QpStatus};
use verbs_api::{
    Features, Operations, Transport, VerbError,
    capability::DeviceAttributes,
    extension::{Held, QpExtension, SrqExtension},
    ids::Qpn,
    wr::{PostReason, ReceiveRequest, WorkRequest},
};

use crate::XrcFeatures;
use crate::domain::Domain;
use crate::qp_types::Role;
use crate::remote::RemoteTarget;
use crate::target::SharedTarget;

/// The implementation of XRC on software devices.
pub struct InSoftware;

/// The part of the extension by which software devices find its implementation.
pub static EMULATION: EmulationPart = EmulationPart(&InSoftware);

impl Emulation for InSoftware {
    fn gains(&self, device: &DeviceAttributes) -> Gains {
        let shares = device.features.contains(Features::SRQ);
        if device.transport != Transport::InfiniBand || !shares {
            return Gains::default();
        }
        Gains {
            own: XrcFeatures::XRC.bits(),
            addresses_receives: true,
            ..Gains::default()
        }
    }

    fn extend_srq(
        &self,
        extension: &SrqExtension,
        queue: SrqParts,
    ) -> Result<Box<dyn NamedSrq>, VerbError> {
        let domain: &Arc<Domain> = extension
            .held()
            .get()
            .ok_or_else(|| VerbError::argument("xrcd", "made by Xrcd"))?;
        domain.publish(&queue.domains);
        let number = domain.add_srq(queue.id, queue.numbers, |number| {
            Target::new(number, Arc::clone(&queue.srq), Arc::clone(&queue.cq))
        })?;
        Ok(Box::new(SrqInDomain {
            domain: Arc::clone(domain),
            number,
        }))
    }

    fn extend_qp(
        &self,
        extension: &QpExtension,
        handle: &QpHandle<'_>,
    ) -> Result<QpHooks, VerbError> {
        if extension.value() == Role::Initiator as u64 {
            return Ok(QpHooks {
                addressing: Addressing::Sends,
                ..QpHooks::default()
            });
        }
        let of = extension.held().and_then(Held::get::<TargetOf>);
        let TargetOf { domain, existing } =
            of.ok_or_else(|| VerbError::argument("xrcd", "made by Xrcd"))?;
        domain.publish(handle.domains);
        if let Some(qpn) = existing
            && domain.find_target(qpn.value()).is_none()
            && !(handle.numbers.0..handle.numbers.1).contains(&qpn.value())
        {
            let remote = RemoteTarget::open(domain, *qpn, handle)?;
            return Ok(QpHooks {
                sharing: Some(Box::new(Opened(Some(remote)))),
                ..QpHooks::default()
            });
        }
        let (shared, is_new): (Arc<SharedTarget>, _) = match existing {
            None => (Arc::default(), true),
            Some(qpn) => {
                let found = domain.find_target(qpn.value());
                let missing =
                    || VerbError::argument("qp_num", "the domain has no target of this number");
                (found.ok_or_else(missing)?, false)
            }
        };
        shared.add_handle(handle);
        let sharing = NewHandle {
            domain: Arc::clone(domain),
            shared,
            id: handle.id,
            is_new,
        };
        Ok(QpHooks {
            addressing: Addressing::Receives(Arc::clone(domain) as _),
            sharing: Some(Box::new(sharing)),
            ..QpHooks::default()
        })
    }
}

/// Removes a shared receive queue from its domain when it is dropped.
struct SrqInDomain {
    domain: Arc<Domain>,
    number: u32,
}

impl NamedSrq for SrqInDomain {
    fn srq_num(&self) -> u32 {
        self.number
    }
}

impl Drop for SrqInDomain {
    fn drop(&mut self) {
        self.domain.remove_srq(self.number);
    }
}

/// The arguments with which a target is made: its domain, and, to open an existing target, its number.
pub(crate) struct TargetOf {
    pub(crate) domain: Arc<Domain>,
    pub(crate) existing: Option<Qpn>,
}

/// A handle of a target that is being made.
struct NewHandle {
    domain: Arc<Domain>,
    shared: Arc<SharedTarget>,
    id: ObjectId,
    is_new: bool,
}

impl NewHandle {
    fn handle(&self) -> Arc<dyn QpOps> {
        Arc::new(Handle {
            domain: Arc::clone(&self.domain),
            shared: Arc::clone(&self.shared),
            id: self.id,
        })
    }
}

impl Sharing for NewHandle {
    fn existing(&mut self) -> Option<Arc<dyn QpOps>> {
        (!self.is_new).then(|| self.handle())
    }

    fn events(&self) -> Arc<dyn EventSink> {
        Arc::clone(&self.shared) as _
    }

    fn first(&mut self, made: Arc<dyn QpOps>) -> Arc<dyn QpOps> {
        let qpn = made.qp_num().value();
        self.shared.set_real(made);
        self.domain.add_target(qpn, Arc::clone(&self.shared));
        self.handle()
    }
}

/// A handle of a target of another process, which is the queue pair that a program opens.
struct Opened(Option<Arc<RemoteTarget>>);

impl Sharing for Opened {
    fn existing(&mut self) -> Option<Arc<dyn QpOps>> {
        self.0.take().map(|opened| opened as _)
    }

    fn events(&self) -> Arc<dyn EventSink> {
        unreachable!("the target exists")
    }

    fn first(&mut self, made: Arc<dyn QpOps>) -> Arc<dyn QpOps> {
        made
    }
}

/// One handle of a target: the provider's part of the queue pair that a program gets. Several handles share one queue pair.
struct Handle {
    domain: Arc<Domain>,
    shared: Arc<SharedTarget>,
    id: ObjectId,
}

impl QpOps for Handle {
    fn poster(&self) -> &(dyn PostOps + 'static) {
        self
    }

    // A target has no requests, and its peer's are not this handle's.
    fn admit(&self, _: bool) {}

    fn qp_num(&self) -> Qpn {
        self.shared.real().map_or(Qpn::new(0), |real| real.qp_num())
    }

    fn cap(&self) -> QpCap {
        self.shared
            .real()
            .map_or_else(QpCap::default, |real| real.cap())
    }

    fn modify(&self, attributes: QpAttributes, reply: Reply<()>) {
        if let Some(real) = self.shared.real() {
            real.modify(attributes, reply);
        }
    }

    fn query(&self) -> Result<QpStatus, VerbError> {
        let gone = || {
            Ok(QpStatus {
                state: QpState::Err,
                sq_draining: false,
                attributes: QpAttributes::new(),
                cap: QpCap::default(),
            })
        };
        self.shared.real().map_or_else(gone, |real| real.query())
    }

    fn counters(&self) -> QpCounters {
        let real = self.shared.real();
        real.map_or_else(QpCounters::default, |real| real.counters())
    }

    fn destroy(&self, reply: Reply<()>) {
        match self.shared.remove_handle(self.id) {
            Some(real) => {
                self.domain.remove_target(real.qp_num().value());
                real.destroy(reply);
            }
            None => reply.send(Ok(())),
        }
    }
}

impl PostOps for Handle {
    fn post_send(&self, _: &[WorkRequest<'_>]) -> Result<(), (usize, PostReason)> {
        let missing = Operations::empty();
        Err((0, PostReason::OperationNotEnabled { missing }))
    }

    fn post_recv(&self, _: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostReason)> {
        Err((0, PostReason::NoReceives))
    }
}
