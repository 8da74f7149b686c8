//! A device as programs open it, and the objects that they create from it: the implementation of `verbs-api`'s provider
//! contract.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use verbs_api::objects::management::AgentRegistration;
use verbs_api::objects::{Holder, ObjectId, ObjectKind};
use verbs_api::provider::carrier::Carrier;
use verbs_api::provider::{
    AgentOps, AgentSink, AhOps, ContextOps, CqInit, CqOps, DeviceOps, EventSink, MrChange, MrInit,
    MrOps, MwOps, MwType, PdOps, QpInit, QpOps, Reply, SrqInit, SrqOps, own,
};
use verbs_api::qp::AddressVector;
use verbs_api::{
    Access, Features, RKey, VerbError,
    capability::{Baseline, DeviceAttributes, Grant, PortAttributes},
    ids::{LKey, Port},
};

use crate::commands::{Commands, out_of_range};
use crate::cq::Cq;
use crate::device::Device;
use crate::device::driver::Driver;
use crate::emulation::{QpHandle, SrqParts, unsupported};
use crate::key_table::{KeyKind, Translation};
use crate::network::Polled;
use crate::pin;
use crate::qp::QpParts;
use crate::quota::Place;
use crate::rules::{self, Rule};
use crate::srq::Srq;

/// A device as one program has opened it: its verbs create protection domains and completion queues.
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
        let device = self.me.upgrade().filter(|device| !device.is_removed());
        let device = device.ok_or(VerbError::DeviceRemoved)?;
        device.listen(&events);
        Ok(Arc::new(Context { device, events }))
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.counters().named();
        counters.extend(self.driver().counters());
        counters
    }

    fn carrier(&self) -> Option<Carrier> {
        D::carrier(self)
    }

    fn is_idle(&self) -> bool {
        self.network().is_idle()
    }
}

impl<D: Driver> Drop for Context<D> {
    fn drop(&mut self) {
        self.device.listen_no_more(&self.events);
    }
}

impl<D: Driver> ContextOps for Context<D> {
    fn query_port(&self, port: Port) -> Result<PortAttributes, VerbError> {
        if self.device.is_removed() {
            return Err(VerbError::DeviceRemoved);
        }
        if port != 1 {
            return Err(out_of_range("port_num", port, 1u8, 1u8));
        }
        Ok(self.device.port_attributes())
    }

    fn register_agent(
        &self,
        _port: Port,
        registration: AgentRegistration,
        sink: Arc<dyn AgentSink>,
    ) -> Result<Box<dyn AgentOps>, VerbError> {
        D::register_agent(&self.device, registration, sink)
    }

    fn alloc_pd(&self, reply: Reply<Arc<dyn PdOps>>) {
        let (device, events) = (Arc::clone(&self.device), Arc::clone(&self.events));
        self.device.commands().run(reply, move || {
            let place = Place::take(&device.pds)?;
            let number = device.next_pd.fetch_add(1, Ordering::Relaxed);
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
                return Err(out_of_range("cqe", init.cqe, 1u8, max_cqe));
            }
            let place = Place::take(&device.cqs)?;
            let commands = Arc::clone(device.commands());
            let polled = (device.network().link()).is_some_and(|link| link.input().is_some());
            let polled = polled.then_some(device as Arc<dyn Polled>);
            let cq: Arc<dyn CqOps> = Cq::new(init, events, commands, polled, place);
            Ok(cq)
        });
    }
}

/// A protection domain of an open device.
pub struct Pd<D: Driver> {
    me: Weak<Self>,
    device: Arc<Device<D>>,
    events: Arc<dyn EventSink>,
    number: u32,
    _place: Place,
}

impl<D: Driver> Pd<D> {
    fn make_key(&self, kind: KeyKind, depth: u32) -> Result<u32, VerbError> {
        let key = self.device.keys().allocate(kind, self.number, depth);
        key.ok_or(VerbError::Resources("memory keys"))
    }

    fn make_qp(&self, init: &QpInit) -> Result<Arc<dyn QpOps>, VerbError> {
        let device = &self.device;
        device.check_claimed(init.operations.missing_features(device.features()))?;
        device.check_baseline(Baseline::taken_by(init.qp_type, init.operations))?;
        device.network().timers().prepare()?;
        for operation in init.operations.of_extensions() {
            if device.operation(operation).is_none() {
                return Err(unsupported(operation.extension(), operation.feature()));
            }
        }
        let handle = QpHandle {
            id: init.id,
            events: &self.events,
            numbers: device.numbers(),
            domains: &device.domains,
        };
        let mut extensions = device.emulations.extend_qp(&init.extensions, &handle)?;
        let mut sharing = extensions.as_mut().and_then(|all| all.sharing.take());
        if let Some(existing) = sharing.as_mut().and_then(|shared| shared.existing()) {
            return Ok(existing);
        }
        let parts = QpParts {
            send_cq: own(&init.send_cq, "send_cq")?,
            recv_cq: own(&init.recv_cq, "recv_cq")?,
            srq: init.srq.as_ref().map(|srq| own(srq, "srq")).transpose()?,
            extensions,
            events: match &sharing {
                Some(shared) => shared.events(),
                None => Arc::clone(&self.events),
            },
        };
        let made: Arc<dyn QpOps> = device.make_qp(self.number, init, parts)?.into_owner();
        Ok(match &mut sharing {
            Some(shared) => shared.first(made),
            None => made,
        })
    }
}

impl<D: Driver> PdOps for Pd<D> {
    fn reg_mr(&self, init: MrInit, reply: Reply<Arc<dyn MrOps>>) {
        let Some(pd) = self.me.upgrade() else { return };
        self.device.commands().run(reply, move || {
            if init.access.contains(Access::ZERO_BASED) {
                pd.device.check_claimed(Features::ZBVA)?;
            }
            let mut access = init.access;
            if init.on_demand {
                // Memory is used in place, so nothing else is to be done for it.
                pd.device.check_claimed(Features::ON_DEMAND)?;
                if rules::is_broken(Rule::OnDemandRegions) {
                    access -= Access::REMOTE;
                }
            }
            let place = Place::take(&pd.device.mrs)?;
            let key = pd.make_key(KeyKind::Region, 0)?;
            let keys = pd.device.keys();
            keys.set_region(key, init.memory, init.iova, access, init.private)
                .expect("a region that was just allocated");
            Ok(Mr::make(&pd, key, access, false, place))
        });
    }

    fn alloc_mr(&self, _id: ObjectId, max_num_sg: u32, reply: Reply<Arc<dyn MrOps>>) {
        let Some(pd) = self.me.upgrade() else { return };
        self.device.commands().run(reply, move || {
            pd.device.check_claimed(Features::BMME)?;
            let place = Place::take(&pd.device.mrs)?;
            let key = pd.make_key(KeyKind::FastRegion, max_num_sg)?;
            Ok(Mr::make(&pd, key, Access::REMOTE, true, place))
        });
    }

    fn alloc_mw(&self, id: ObjectId, mw_type: MwType, reply: Reply<Arc<dyn MwOps>>) {
        let Some(pd) = self.me.upgrade() else { return };
        let (kind, needed) = match mw_type {
            MwType::Type1 => (KeyKind::Window1, Features::WINDOW_1),
            MwType::Type2 if self.device.features().contains(Features::WINDOW_2A) => {
                (KeyKind::Window2A, Features::WINDOW_2A)
            }
            MwType::Type2 => (KeyKind::Window2B, Features::WINDOW_2B),
        };
        self.device.commands().run(reply, move || {
            pd.device.check_claimed(needed)?;
            let device = Arc::clone(&pd.device);
            let place = Place::take(&device.mws)?;
            let key = pd.make_key(kind, 0)?;
            device.windows.lock().insert(key, id);
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
        self.device.commands().run(reply, move || {
            pd.device.check_claimed(Features::SRQ)?;
            let place = Place::take(&pd.device.srqs)?;
            let commands = Arc::clone(pd.device.commands());
            let srq = Srq::new(&init, pd.number, Arc::clone(&pd.events), commands, place);
            if let Some((extension, cq)) = &init.extension {
                let parts = SrqParts {
                    id: init.id,
                    srq: Arc::clone(&srq),
                    cq: own(cq, "cq")?,
                    numbers: pd.device.numbers(),
                    domains: Arc::clone(&pd.device.domains),
                };
                srq.set_name(pd.device.emulations.extend_srq(extension, parts)?);
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
            let device = Arc::clone(&pd.device);
            path.check(1)?;
            if device.port_attributes().gid(path.sgid_index).is_none() {
                let reason = "the port has no such identifier";
                return Err(VerbError::argument("sgid_index", reason));
            }
            device.driver().check_path(&path)?;
            let place = Place::take(&device.ahs)?;
            let ah: Arc<dyn AhOps> = Arc::new(Ah {
                path,
                commands: Arc::clone(device.commands()),
                _place: place,
            });
            Ok(ah)
        });
    }

    fn dealloc(&self, reply: Reply<()>) {
        let commands = self.device.commands();
        commands.run_last(reply, |reply| reply.send(Ok(())));
    }
}

/// A memory region: registered memory, or an allocated key under which work requests register memory.
pub struct Mr<D: Driver> {
    me: Weak<Self>,
    device: Arc<Device<D>>,
    key: AtomicU32,
    access: AtomicU32,
    allocated: bool,
    _place: Place,
}

impl<D: Driver> Mr<D> {
    fn make(pd: &Pd<D>, key: u32, access: Access, allocated: bool, place: Place) -> Arc<dyn MrOps> {
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
        self.device.keys().current(key)
    }
}

// Returns the error that names the memory windows bound to a region, which keep the region from being changed.
fn bound_windows<D: Driver>(device: &Device<D>, key: u32) -> VerbError {
    let windows = device.windows.lock();
    let bound = windows.iter();
    let bound = bound.filter(|&(&window, _)| device.keys().is_bound_to(window, key));
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
        match access.intersects(Access::REMOTE) {
            true => RKey::new(self.current_key()),
            false => RKey::new(0),
        }
    }

    fn rereg(&self, change: MrChange, reply: Reply<()>) {
        let Some(mr) = self.me.upgrade() else { return };
        if self.allocated {
            let reason = "an allocated key is registered by work requests";
            return reply.send(Err(VerbError::argument("mr", reason)));
        }
        // The reply is sent after the last access to the replaced memory, so that the program may free it.
        let reply = Reply::new(move |result| pin::after_grace(move || reply.send(result)));
        self.device.commands().run(reply, move || {
            let pd = change.pd.as_ref().map(|pd| own::<Pd<D>, _>(pd, "pd"));
            let pd = pd.transpose()?;
            let keys = mr.device.keys();
            let key = mr.key.load(Ordering::Acquire);
            let pd = pd.map(|pd| pd.number);
            let translation = change.translation.map(|(memory, iova)| Translation {
                memory,
                iova,
                keeps_key: change.keeps_keys,
            });
            let changed = keys.change_region(key, translation, pd, change.access);
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
    _place: Place,
}

impl<D: Driver> MwOps for Mw<D> {
    fn rkey(&self) -> RKey {
        RKey::new(self.device.keys().current(self.key))
    }

    fn dealloc(&self, reply: Reply<()>) {
        let Some(mw) = self.me.upgrade() else { return };
        self.device.commands().run_last(reply, move |reply| {
            let _ = mw.device.keys().disable(mw.key);
            mw.device.windows.lock().remove(&mw.key);
            pin::after_grace(move || {
                let _ = mw.device.keys().release(mw.key);
                drop(mw);
                reply.send(Ok(()));
            });
        });
    }
}

/// An address handle.
struct Ah {
    path: AddressVector,
    commands: Arc<Commands>,
    _place: Place,
}

impl AhOps for Ah {
    fn path(&self) -> AddressVector {
        self.path
    }

    fn destroy(&self, reply: Reply<()>) {
        self.commands.run_last(reply, |reply| reply.send(Ok(())));
    }
}
