//! What a layer knows about an object of its device.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use verbs_api::ids::Qpn;
use verbs_api::objects::{ObjectId, ObjectKind};
use verbs_api::qp::QpType;

/// An object that was made on a device with a layer.
#[derive(Debug)]
pub struct Object {
    kind: ObjectKind,
    number: u32,
    id: Option<ObjectId>,
    qp: Option<QpFacts>,
    has_overrun: AtomicBool,
}

/// What a layer knows about a queue pair.
#[derive(Debug)]
pub struct QpFacts {
    qp_type: QpType,
    queues: [u32; 2],
    qp_num: OnceLock<Qpn>,
    has_failed: [AtomicBool; 2],
}

/// One of the queues of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    Send = 0,
    Receive = 1,
}

impl Object {
    pub(crate) const fn new(kind: ObjectKind, number: u32, id: Option<ObjectId>) -> Self {
        Self {
            kind,
            number,
            id,
            qp: None,
            has_overrun: AtomicBool::new(false),
        }
    }

    pub(crate) fn qp_of(mut self, qp_type: QpType, queues: [u32; 2]) -> Self {
        self.qp = Some(QpFacts {
            qp_type,
            queues,
            qp_num: OnceLock::new(),
            has_failed: [AtomicBool::new(false), AtomicBool::new(false)],
        });
        self
    }

    /// Returns the kind of the object.
    pub const fn kind(&self) -> ObjectKind {
        self.kind
    }

    /// Returns which object of its kind it is on this device, counted from 1 in the order of creation.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Returns the identity by which events name the object; `None` for kinds that have no events, except for regions, keys and
    /// windows.
    pub const fn id(&self) -> Option<ObjectId> {
        self.id
    }

    pub(crate) fn set_overrun(&self) {
        self.has_overrun.store(true, Ordering::Release);
    }

    /// Whether a completion queue is unusable, as after an overrun.
    pub(crate) fn has_overrun(&self) -> bool {
        self.has_overrun.load(Ordering::Acquire)
    }

    /// Returns the properties of a queue pair; `None` for other kinds.
    pub const fn qp(&self) -> Option<&QpFacts> {
        self.qp.as_ref()
    }
}

impl QpFacts {
    /// Returns the service type.
    pub const fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Returns the numbers of the completion queues for sends and for receives.
    pub const fn queues(&self) -> [u32; 2] {
        self.queues
    }

    /// Returns the queue pair number; 0 while the queue pair is being made.
    pub fn qp_num(&self) -> Qpn {
        self.qp_num.get().copied().unwrap_or_default()
    }

    pub(crate) fn set_qp_num(&self, qp_num: Qpn) {
        // A queue pair keeps its number.
        let _ = self.qp_num.set(qp_num);
    }

    pub(crate) fn set_failed(&self, queue: Queue) {
        self.has_failed[queue as usize].store(true, Ordering::Release);
    }

    pub(crate) fn has_failed(&self, queue: Queue) -> bool {
        self.has_failed[queue as usize].load(Ordering::Acquire)
    }

    pub(crate) fn has_any_failed(&self) -> bool {
        self.has_failed(Queue::Send) || self.has_failed(Queue::Receive)
    }

    pub(crate) fn reset(&self) {
        self.has_failed
            .iter()
            .for_each(|failed| failed.store(false, Ordering::Release));
    }
}
