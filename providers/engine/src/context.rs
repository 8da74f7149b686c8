//! A device as programs open it, and the objects that are made from it: the provider contract of `verbs-api`, carried out.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use verbs_api::objects::{Holder, ObjectId, ObjectKind};
use verbs_api::provider::carrier::Carrier;
use verbs_api::provider::{
    AhOps, ContextOps, CqInit, CqOps, DeviceOps, EventSink, MrChange, MrInit, MrOps, MwOps, MwType,
    PdOps, QpInit, QpOps, Reply, SrqInit, SrqOps, own,
};
use verbs_api::qp::AddressVector;
use verbs_api::{
    Access, ArgumentReason, Features, RKey, VerbError,
    capability::{Baseline, DeviceAttributes, Grant, PortAttributes},
    extension::Unsupported,
    ids::{LKey, Port},
};

use crate::cq::Cq;
use crate::device::Device;
use crate::driver::Driver;
use crate::emulation::{QpHandle, SrqParts};
use crate::key_table::KeyKind;
use crate::network::Progress;
use crate::pin;
use crate::qp::{Qp, QpParts};
use crate::srq::Srq;

/// An open device.
pub struct Context<D: Driver> {
    device: Arc<Device<D>>,
    events: Arc<dyn EventSink>,
}

impl<D: Driver> DeviceOps for Device<D> {
    fn attributes(&self) -> DeviceAttributes {
        self.attributes()
    }

    fn open(
        &self,
        _grant: &Grant,
        events: Arc<dyn EventSink>,
    ) -> Result<Arc<dyn ContextOps>, VerbError> {
        let device = self.shared().filter(|device| !device.is_removed());
        let device = device.ok_or(VerbError::DeviceRemoved)?;
        device.listen(&events);
        Ok(Arc::new(Context { device, events }))
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counters().named()
    }

    fn carrier(&self) -> Option<Carrier> {
        D::carrier(self)
    }
}

// Takes one of a bounded number of objects; given back when dropped.
struct Place<D: Driver> {
    // `None` where somebody else counts it out.
    device: Option<Arc<Device<D>>>,
    count: fn(&Device<D>) -> &AtomicU32,
}

impl<D: Driver> Place<D> {
    fn take(
        device: &Arc<Device<D>>,
        count: fn(&Device<D>) -> &AtomicU32,
        max: u32,
        what: &'static str,
    ) -> Result<Self, VerbError> {
        let taken = count(device).fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
            (n < max).then_some(n + 1)
        });
        taken.map_err(|_| VerbError::Resources(what))?;
        Ok(Self {
            device: Some(Arc::clone(device)),
            count,
        })
    }

    fn keep(mut self) {
        self.device = None;
    }
}

impl<D: Driver> Drop for Place<D> {
    fn drop(&mut self) {
        if let Some(device) = &self.device {
            (self.count)(device).fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl<D: Driver> ContextOps for Context<D> {
    fn query_port(&self, port: Port) -> Result<PortAttributes, VerbError> {
        if self.device.is_removed() {
            return Err(VerbError::DeviceRemoved);
        }
        if port != 1 {
            return Err(wrong_port(port));
        }
        Ok(self.device.port_attributes())
    }

    fn alloc_pd(&self, reply: Reply<Arc<dyn PdOps>>) {
        let (device, events) = (Arc::clone(&self.device), Arc::clone(&self.events));
        self.device.commands().run(reply, move || {
            let place = Place::take(
                &device,
                |d| &d.population.pds,
                device.limits().max_pd,
                "max_pd",
            )?;
            let number = device.new_pd();
            let pd: Arc<dyn PdOps> = Arc::new_cyclic(|me| Pd {
                me: me.clone(),
                device,
                events,
                number,
                _place: place,
            });
            Ok(pd)
        });
    }

    fn create_cq(&self, init: CqInit, reply: Reply<Arc<dyn CqOps>>) {
        let (device, events) = (Arc::clone(&self.device), Arc::clone(&self.events));
        self.device.commands().run(reply, move || {
            let max_cqe = device.limits().max_cqe;
            if init.cqe > max_cqe {
                let reason = ArgumentReason::OutOfRange {
                    given: init.cqe.into(),
                    least: 1,
                    most: max_cqe.into(),
                };
                return Err(VerbError::argument("cqe", reason));
            }
            let commands = Arc::clone(device.commands());
            let polled = (device.network().link()).is_some_and(|link| link.input().is_some());
            let strict = device.strict_signaling;
            let polled = polled.then_some(device as Arc<dyn Progress>);
            let cq: Arc<dyn CqOps> = Cq::new(init, events, commands, polled, strict);
            Ok(cq)
        });
    }
}

/// A protection domain.
pub struct Pd<D: Driver> {
    me: Weak<Self>,
    device: Arc<Device<D>>,
    events: Arc<dyn EventSink>,
    number: u32,
    _place: Place<D>,
}

impl<D: Driver> Pd<D> {
    fn make_qp(&self, init: &QpInit) -> Result<Arc<dyn QpOps>, VerbError> {
        let device = &self.device;
        let missing = init.operations.missing_features(device.features());
        if !missing.is_empty() {
            return Err(VerbError::Unsupported { missing });
        }
        device.check_baseline(Baseline::taken_by(init.qp_type, init.operations))?;
        for operation in init.operations.of_extensions() {
            if device.operation(operation).is_none() {
                return Err(VerbError::Extension(Unsupported {
                    extension: operation.extension(),
                    missing: vec![operation.feature().name],
                }));
            }
        }
        let handle = QpHandle {
            id: init.id,
            events: &self.events,
        };
        let mut extensions = device.emulations().extend_qp(&init.extensions, &handle)?;
        let mut sharing = extensions.sharing.take();
        if let Some(existing) = sharing.as_mut().and_then(|shared| shared.existing()) {
            return Ok(existing);
        }
        let send_cq: Arc<Cq> = own(&init.send_cq, "send_cq")?;
        let recv_cq: Arc<Cq> = own(&init.recv_cq, "recv_cq")?;
        let srq: Option<Arc<Srq>> = init.srq.as_ref().map(|srq| own(srq, "srq")).transpose()?;
        let place = Place::take(
            device,
            |d| &d.population.qps,
            device.limits().max_qp,
            "max_qp",
        )?;
        let qpn = device
            .driver()
            .alloc_qpn(device.qpns())
            .ok_or(VerbError::Resources("queue pair numbers"))?;
        let qp = Qp::new(
            device,
            qpn,
            self.number,
            init,
            QpParts {
                send_cq,
                recv_cq,
                srq,
                extensions,
                events: match &sharing {
                    Some(shared) => shared.events(),
                    None => Arc::clone(&self.events),
                },
            },
        );
        // `forget_qp` counts it out.
        place.keep();
        device.remember_qp(&qp);
        let made: Arc<dyn QpOps> = Arc::clone(qp.owner()) as _;
        Ok(match &mut sharing {
            Some(shared) => shared.first(made),
            None => made,
        })
    }
}

impl<D: Driver> PdOps for Pd<D> {
    fn reg_mr(&self, init: MrInit, reply: Reply<Arc<dyn MrOps>>) {
        let Some(pd) = self.me.upgrade() else { return };
        if init.access.contains(Access::ZERO_BASED)
            && let Err(error) = self.device.check_claimed(Features::ZBVA)
        {
            return reply.send(Err(error));
        }
        self.device.commands().run(reply, move || {
            let device = &pd.device;
            let place = Place::take(
                device,
                |d| &d.population.mrs,
                device.limits().max_mr,
                "max_mr",
            )?;
            let key = device
                .keys()
                .allocate(KeyKind::Region, pd.number, 0)
                .ok_or(VerbError::Resources("memory keys"))?;
            device
                .keys()
                .set_region(key, init.memory, init.iova, init.access, init.private)
                .expect("a region that was just allocated");
            Ok(Mr::make(&pd, key, init.access, false, place))
        });
    }

    fn alloc_mr(&self, _id: ObjectId, max_num_sg: u32, reply: Reply<Arc<dyn MrOps>>) {
        let Some(pd) = self.me.upgrade() else { return };
        if !self.device.features().contains(Features::BMME) {
            return reply.send(Err(VerbError::Unsupported {
                missing: Features::BMME,
            }));
        }
        self.device.commands().run(reply, move || {
            let device = &pd.device;
            let place = Place::take(
                device,
                |d| &d.population.mrs,
                device.limits().max_mr,
                "max_mr",
            )?;
            let key = device
                .keys()
                .allocate(KeyKind::FastRegion, pd.number, max_num_sg)
                .ok_or(VerbError::Resources("memory keys"))?;
            Ok(Mr::make(&pd, key, Access::REMOTE, true, place))
        });
    }

    fn alloc_mw(&self, id: ObjectId, mw_type: MwType, reply: Reply<Arc<dyn MwOps>>) {
        let Some(pd) = self.me.upgrade() else { return };
        let features = self.device.features();
        let kind = match mw_type {
            MwType::Type1 if features.contains(Features::WINDOW_1) => KeyKind::Window1,
            MwType::Type2 if features.contains(Features::WINDOW_2A) => KeyKind::Window2A,
            MwType::Type2 if features.contains(Features::WINDOW_2B) => KeyKind::Window2B,
            MwType::Type1 => {
                return reply.send(Err(VerbError::Unsupported {
                    missing: Features::WINDOW_1,
                }));
            }
            MwType::Type2 => {
                return reply.send(Err(VerbError::Unsupported {
                    missing: Features::WINDOW_2B,
                }));
            }
        };
        self.device.commands().run(reply, move || {
            let device = &pd.device;
            let place = Place::take(
                device,
                |d| &d.population.mws,
                device.limits().max_mw,
                "max_mw",
            )?;
            let key = device
                .keys()
                .allocate(kind, pd.number, 0)
                .ok_or(VerbError::Resources("memory keys"))?;
            let device = Arc::clone(device);
            device
                .windows
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(key, id);
            let mw: Arc<dyn MwOps> = Arc::new_cyclic(|me| Mw {
                me: me.clone(),
                device,
                key,
                _place: place,
            });
            Ok(mw)
        });
    }

    fn create_srq(&self, init: SrqInit, reply: Reply<Arc<dyn SrqOps>>) {
        let Some(pd) = self.me.upgrade() else { return };
        if let Err(error) = self.device.check_claimed(Features::SRQ) {
            return reply.send(Err(error));
        }
        self.device.commands().run(reply, move || {
            let commands = Arc::clone(pd.device.commands());
            let srq = Srq::new(&init, pd.number, Arc::clone(&pd.events), commands);
            if let Some((extension, cq)) = &init.extension {
                let parts = SrqParts {
                    id: init.id,
                    srq: Arc::clone(&srq),
                    cq: own(cq, "cq")?,
                };
                srq.set_place(pd.device.emulations().extend_srq(extension, parts)?);
            }
            Ok(srq as Arc<dyn SrqOps>)
        });
    }

    fn create_qp(&self, init: QpInit, reply: Reply<Arc<dyn QpOps>>) {
        let Some(pd) = self.me.upgrade() else { return };
        self.device.commands().run(reply, move || pd.make_qp(&init));
    }

    fn create_ah(&self, path: AddressVector, reply: Reply<Arc<dyn AhOps>>) {
        let Some(pd) = self.me.upgrade() else { return };
        self.device.commands().run(reply, move || {
            let device = &pd.device;
            path.check(1)?;
            if usize::from(path.sgid_index) >= device.port_attributes().gids.len().max(1) {
                return Err(VerbError::argument(
                    "sgid_index",
                    "the port has no such identifier",
                ));
            }
            device.driver().check_path(&path)?;
            let place = Place::take(
                device,
                |d| &d.population.ahs,
                device.limits().max_ah,
                "max_ah",
            )?;
            let device = Arc::clone(device);
            let ah: Arc<dyn AhOps> = Arc::new(Ah {
                device,
                path,
                _place: place,
            });
            Ok(ah)
        });
    }

    fn dealloc(&self, reply: Reply<()>) {
        self.device
            .commands()
            .run_last(reply, |reply| reply.send(Ok(())));
    }
}

/// A memory region, or a key that can be given one.
pub struct Mr<D: Driver> {
    me: Weak<Self>,
    device: Arc<Device<D>>,
    key: AtomicU32,
    access: AtomicU32,
    allocated: bool,
    _place: Place<D>,
}

impl<D: Driver> Mr<D> {
    fn make(
        pd: &Pd<D>,
        key: u32,
        access: Access,
        allocated: bool,
        place: Place<D>,
    ) -> Arc<dyn MrOps> {
        let device = Arc::clone(&pd.device);
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            device,
            key: AtomicU32::new(key),
            access: AtomicU32::new(access.bits()),
            allocated,
            _place: place,
        })
    }

    fn current_key(&self) -> u32 {
        let key = self.key.load(Ordering::Acquire);
        self.device
            .keys()
            .fields(key)
            .map_or(key, |fields| key & !0xff | u32::from(fields.key))
    }
}

// The engine's devices have one port.
fn wrong_port(port: Port) -> VerbError {
    let reason = ArgumentReason::OutOfRange {
        given: port.into(),
        least: 1,
        most: 1,
    };
    VerbError::argument("port_num", reason)
}

// The windows that keep a region from being changed.
fn bound_windows<D: Driver>(device: &Device<D>, key: u32) -> VerbError {
    let windows = device
        .windows
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let bound = windows
        .iter()
        .filter(|&(&window, _)| device.keys().is_bound_to(window, key));
    VerbError::Busy(
        bound
            .map(|(_, &id)| Holder::new(ObjectKind::Mw, id))
            .collect(),
    )
}

impl<D: Driver> MrOps for Mr<D> {
    fn lkey(&self) -> LKey {
        LKey::new(self.current_key())
    }

    fn rkey(&self) -> RKey {
        let access = Access::from_bits_retain(self.access.load(Ordering::Relaxed));
        RKey::new(if access.intersects(Access::REMOTE) {
            self.current_key()
        } else {
            0
        })
    }

    fn rereg(&self, change: MrChange, reply: Reply<()>) {
        let Some(mr) = self.me.upgrade() else { return };
        if self.allocated {
            return reply.send(Err(VerbError::argument(
                "mr",
                "an allocated key is registered by work requests",
            )));
        }
        // Memory that was replaced is touched no more when the change is answered.
        let reply = Reply::new(move |result| pin::after_grace(move || reply.send(result)));
        self.device.commands().run(reply, move || {
            let pd = change
                .pd
                .as_ref()
                .map(|pd| own::<Pd<D>, _>(pd, "pd"))
                .transpose()?;
            let keys = mr.device.keys();
            let key = mr.key.load(Ordering::Acquire);
            let pd = pd.map(|pd| pd.number);
            let changed = keys.change_region(key, change.translation, pd, change.access);
            let new_key = changed.map_err(|_| bound_windows(&mr.device, key))?;
            mr.key.store(new_key, Ordering::Release);
            if let Some(access) = change.access {
                mr.access.store(access.bits(), Ordering::Relaxed);
            }
            Ok(())
        });
    }

    fn dereg(&self, reply: Reply<()>) {
        let Some(mr) = self.me.upgrade() else { return };
        let commands = Arc::clone(self.device.commands());
        commands.run_last(reply, move |reply| {
            let key = mr.key.load(Ordering::Acquire);
            if mr.device.keys().disable(key).is_err() {
                return reply.send(Err(bound_windows(&mr.device, key)));
            }
            pin::after_grace(move || {
                let _ = mr.device.keys().release(key);
                drop(mr);
                reply.send(Ok(()));
            });
        });
    }
}

/// A memory window.
pub struct Mw<D: Driver> {
    me: Weak<Self>,
    device: Arc<Device<D>>,
    key: u32,
    _place: Place<D>,
}

impl<D: Driver> MwOps for Mw<D> {
    fn rkey(&self) -> RKey {
        let byte = self
            .device
            .keys()
            .fields(self.key)
            .map_or(self.key as u8, |fields| fields.key);
        RKey::new(self.key & !0xff | u32::from(byte))
    }

    fn dealloc(&self, reply: Reply<()>) {
        let Some(mw) = self.me.upgrade() else { return };
        self.device.commands().run_last(reply, move |reply| {
            let _ = mw.device.keys().disable(mw.key);
            mw.device
                .windows
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&mw.key);
            pin::after_grace(move || {
                let _ = mw.device.keys().release(mw.key);
                drop(mw);
                reply.send(Ok(()));
            });
        });
    }
}

/// An address handle.
pub struct Ah<D: Driver> {
    device: Arc<Device<D>>,
    path: AddressVector,
    _place: Place<D>,
}

impl<D: Driver> AhOps for Ah<D> {
    fn path(&self) -> AddressVector {
        self.path
    }

    fn destroy(&self, reply: Reply<()>) {
        self.device
            .commands()
            .run_last(reply, |reply| reply.send(Ok(())));
    }
}
