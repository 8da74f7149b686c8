//! Programs that end: they drop all objects at any point, or destroy them in any order, and nothing stays allocated.

use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::{cases, steered_cases};
use bmme::{FmrPool, FmrPoolOptions};
use conformance::{ANY_DEVICE, Evidence, Outcome, Rig, waiting};
use polyverbs_io::emulated::{EmulatedKind, EmulatedOptions};
use verbs_api::qp::{AddressVector, QpAttributes, QpState, QpType};
use verbs_api::{
    Access, Ah, Cq, DestroyError, Device, Features, Memory, Mr, MrKey, MrOptions, Mw, PageList, Pd,
    Qp, QpOptions, Requirements, Srq, SrqOptions, Started,
    capability::BaselineGaps,
    completion::Notify,
    ids::Gid,
    memory::MwType,
    portable::ReadAndInvalidate,
    provider::DeviceOps,
    wr::{self, WorkRequest},
};

cases! {
    objects_are_destroyed_in_any_order: ANY_DEVICE;
}

steered_cases! {
    a_program_that_drops_everything_leaves_nothing: ANY_DEVICE;
}

struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

const OPEN: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::MW_BIND);

// The objects that a program has made: `Any` suffices, because they are only dropped.
type Things = Vec<Box<dyn Any>>;

// covers 5.14
fn a_program_that_drops_everything_leaves_nothing(rig: &Rig) -> Outcome {
    for seed in 1..=24 {
        println!("seed {seed}");
        let rig = rig.with_qp_numbers(0x11, 0xff_ffff);
        let devices = [&rig.near.device, &rig.far.device].map(Arc::downgrade);
        let mut chance = Chance(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let mut things = things_of(&rig, &mut chance)?;
        if chance.one_in(3) {
            rig.far.steer().remove();
        }
        let last = chance.below(things.len());
        while things.len() > last {
            drop(things.swap_remove(chance.below(things.len())));
            if chance.one_in(8) {
                rig.step();
            }
        }
        drop(things);
        rig.settle();
        // The remaining verbs must take no time, because the clock ends with the rig.
        rig.near.set_latency(Duration::ZERO);
        drop(rig);
        gone(&devices);
    }
    Ok(())
}

// Another thread may be accessing memory right now; the device is released when that access ends.
fn gone(devices: &[Weak<dyn DeviceOps>]) {
    waiting::until(|| devices.iter().all(|device| device.strong_count() == 0));
}

fn things_of(rig: &Rig, chance: &mut Chance) -> Result<Things, Evidence> {
    let mut things = Things::new();
    let features = rig.attributes().features;
    for end in [&rig.near, &rig.far] {
        things.push(Box::new(end.context.clone()));
        let buffers = end.pd.register_buffers(8, 256).wait().expect("buffers");
        things.push(Box::new(buffers));
        if features.contains(Features::BMME) {
            let pool = rig.finish(FmrPool::create(&end.pd, FmrPoolOptions::new(4, 4)))?;
            let (_, list) = pages();
            let mut fmr = pool.take().expect("a slot");
            things.push(Box::new(fmr.map(&list, 0)));
            things.push(Box::new(fmr));
            things.push(Box::new(pool));
        }
    }
    for _ in 0..1 + chance.below(3) {
        connected(rig, chance, &mut things)?;
    }
    if !rig.has_gap(BaselineGaps::NO_UD) {
        let side = rig.far.side(QpType::Ud)?;
        if features.contains(Features::MULTICAST) {
            let mut group = [0; 16];
            (group[0], group[15]) = (0xff, chance.below(3) as u8);
            things.push(Box::new(side.attach_multicast(Gid(group))));
        }
        things.push(Box::new(side));
    }
    if features.contains(Features::SRQ) {
        let srq = rig.far.pd.create_srq(SrqOptions::new(8)).wait();
        let srq = srq.expect("a shared queue");
        let side = rig
            .far
            .side_with(&rig.far.pd, |cq| QpOptions::rc(cq).srq(&srq))?;
        things.extend([Box::new(srq) as Box<dyn Any>, Box::new(side)]);
    }
    if chance.one_in(2) {
        rig.near.set_latency(Duration::from_millis(1));
        things.push(Box::new(rig.near.context.alloc_pd()));
        things.push(Box::new(rig.near.context.create_cq(8)));
        let memory = Memory::zeroed(64).expect("memory");
        things.push(Box::new(rig.near.pd.register(&memory, OPEN)));
    }
    Ok(things)
}

fn pages() -> (Memory, PageList) {
    let memory = Memory::zeroed(8192).expect("memory");
    let list = PageList::map(&[(&memory).into()], 4096, 4)
        .expect("a page list")
        .list;
    (memory, list)
}

// Connects a pair and leaves requests in various states: done, waiting for a receive, refused, flushed.
fn connected(rig: &Rig, chance: &mut Chance, things: &mut Things) -> Outcome {
    let pair = rig.rc()?;
    let desk = rig.far.region(1 << 14, OPEN)?;
    let features = rig.attributes().features;
    let weak = desk.memory.clone();
    pair.far.cq.on_completion(move |cq| {
        let _ = weak.load_u8(0);
        let _ = cq.arm(Notify::Next);
    });
    let _ = pair.far.cq.arm(Notify::Next);
    (0..chance.below(4)).try_for_each(|at| pair.far.receive(&desk, at * 512, 512))?;
    if features.intersects(Features::WINDOW_2) {
        let window = rig.far.window(MwType::Type2)?;
        let bind = wr::BindWindow::new(&window, &desk.mr, desk.mr.iova(), 64).key_byte(7);
        let _ = pair
            .far
            .post_one(bind.access(Access::REMOTE_READ).signaled(1));
        things.push(Box::new(window));
    }
    if features.contains(Features::BMME) {
        let fast = rig.near.fast(4096)?;
        let access = verbs_api::portable::read_sink_access(&rig.near.context).access;
        let _ = pair.near.post_one(fast.register_afresh(access));
        let sink = fast.key.sink(fast.pages.address(), 4096);
        let _ = pair
            .near
            .post_portable(ReadAndInvalidate::new(desk.remote(0), &sink));
        things.push(Box::new(fast.key));
    }
    for wr_id in 0..chance.below(12) as u64 {
        let request: WorkRequest<'_> = match chance.below(4) {
            0 => wr::Send::new(rig.scratch.sge(0, 300)?)
                .signaled(wr_id)
                .into(),
            1 => wr::Write::new(rig.scratch.sge(0, 5000)?, desk.remote(64)).into(),
            2 => wr::Read::new(rig.scratch.sge(0x8000, 5000)?, desk.remote(64))
                .signaled(wr_id)
                .into(),
            _ if chance.one_in(6) => {
                wr::Write::new(rig.scratch.sge(0, 8)?, desk.remote(1 << 20)).into()
            }
            _ => wr::Write::new(rig.scratch.sge(0, 8)?, desk.remote(8))
                .signaled(wr_id)
                .into(),
        };
        let _ = pair.near.post_one(request);
    }
    (0..chance.below(6)).all(|_| rig.step());
    if chance.one_in(4) {
        let end = QpAttributes::new().qp_state(QpState::Err);
        things.push(Box::new(pair.near.modify(end)));
    }
    let (near, far) = (pair.near, pair.far);
    things.extend([
        Box::new(near.qp) as Box<dyn Any>,
        Box::new(near.cq),
        Box::new(far.qp),
        Box::new(far.cq),
        Box::new(desk.mr),
        Box::new(desk.memory),
    ]);
    Ok(())
}

enum Thing {
    Pd(Pd),
    Cq(Cq),
    Qp(Qp),
    Mr(Mr),
    Mw(Mw),
    Key(MrKey),
    Srq(Srq),
    Ah(Ah),
}

impl Thing {
    // Destroys the object; returns it if it is still in use.
    fn destroy(self, rig: &Rig) -> Result<Option<Self>, Evidence> {
        Ok(match self {
            Self::Pd(pd) => left(rig, pd.destroy())?.map(Self::Pd),
            Self::Cq(cq) => left(rig, cq.destroy())?.map(Self::Cq),
            Self::Qp(qp) => left(rig, qp.destroy())?.map(Self::Qp),
            Self::Mr(mr) => left(rig, mr.deregister())?.map(Self::Mr),
            Self::Mw(mw) => left(rig, mw.destroy())?.map(Self::Mw),
            Self::Key(key) => left(rig, key.deregister())?.map(Self::Key),
            Self::Srq(srq) => left(rig, srq.destroy())?.map(Self::Srq),
            Self::Ah(ah) => left(rig, ah.destroy())?.map(Self::Ah),
        })
    }
}

fn left<T: Send + 'static>(
    rig: &Rig,
    destroy: Started<(), DestroyError<T>>,
) -> Result<Option<T>, Evidence> {
    Ok(match rig.outcome(destroy)? {
        Ok(()) => None,
        Err(DestroyError::Busy { object, held_by }) => {
            assert!(!held_by.is_empty(), "busy with nothing");
            Some(object)
        }
        Err(error) => panic!("{error}"),
    })
}

// covers 5.07
fn objects_are_destroyed_in_any_order(rig: &Rig) -> Outcome {
    let keys = rig.far.keys_in_use();
    for seed in 1..=40 {
        println!("seed {seed}");
        let mut chance = Chance(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let mut things = tree(rig)?;
        let mut tried = 0;
        while !things.is_empty() {
            let thing = things.swap_remove(chance.below(things.len()));
            things.extend(thing.destroy(rig)?);
            tried += 1;
            assert!(tried < 10_000, "something is held for ever");
        }
        assert_eq!(rig.far.keys_in_use(), keys);
    }
    Ok(())
}

fn tree(rig: &Rig) -> Result<Vec<Thing>, Evidence> {
    let features = rig.attributes().features;
    let pd = rig.far.other_pd()?;
    let near = rig.near.side(QpType::Rc)?;
    let far = rig
        .far
        .side_with(&pd, |cq| rig.far.options(QpType::Rc, cq))?;
    let pair = rig.connected(near, far)?;
    let region = rig.far.region_with(&pd, 4096, MrOptions::new(OPEN))?;
    let mut things = Vec::new();
    if features.intersects(Features::WINDOW_2) {
        let window = pd.alloc_mw(MwType::Type2).wait().expect("a window");
        let bind = wr::BindWindow::new(&window, &region.mr, region.mr.iova(), 64).key_byte(7);
        rig.succeeds(&pair.far, bind.access(Access::REMOTE_READ).signaled(1))?;
        things.push(Thing::Mw(window));
    }
    if features.contains(Features::BMME) {
        things.push(Thing::Key(pd.alloc_key(4).wait().expect("a key")));
    }
    if features.contains(Features::SRQ) {
        let srq = pd
            .create_srq(SrqOptions::new(8))
            .wait()
            .expect("a shared queue");
        let side = rig.far.side_with(&pd, |cq| QpOptions::rc(cq).srq(&srq))?;
        things.extend([Thing::Srq(srq), Thing::Qp(side.qp), Thing::Cq(side.cq)]);
    }
    let port = rig.far.context.query_port(1).expect("a port");
    let path = AddressVector::new(port.address, port.gids[0].gid, 1);
    if !rig.has_gap(BaselineGaps::NO_UD) {
        things.push(Thing::Ah(pd.create_ah(path).wait().expect("an address")));
    }
    things.extend([
        Thing::Qp(pair.near.qp),
        Thing::Cq(pair.near.cq),
        Thing::Qp(pair.far.qp),
        Thing::Cq(pair.far.cq),
        Thing::Mr(region.mr),
        Thing::Pd(pd),
    ]);
    Ok(things)
}
// covers 5.14
#[test]
fn a_device_in_real_time_ends_after_its_last_command() {
    for kind in [
        &emulated_ib::PROVIDER.0 as &dyn EmulatedKind,
        &emulated_iwarp::PROVIDER.0,
    ] {
        let command_latency = Duration::from_millis(2);
        let options = EmulatedOptions {
            command_latency,
            ..EmulatedOptions::default()
        };
        let device = kind.make(&options).expect("a device");
        let left = Arc::downgrade(&device);
        let opened = Device::of(device);
        let context = opened
            .open(&Requirements::new())
            .expect("a device that opens");
        let pd = context.alloc_pd().wait().expect("a domain");
        let memory = Memory::zeroed(4096).expect("memory");
        drop(pd.register(&memory, OPEN));
        drop((pd, context, opened));
        waiting::until(|| left.strong_count() == 0);
    }
}
