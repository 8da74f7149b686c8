//! Keys and windows against a naive model: a run makes and destroys objects, registers and invalidates keys, binds
//! windows, and tries accesses. The model predicts for each step how it must end.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use verbs_api::qp::{QpAttributes, QpState, QpType};
use verbs_api::*;
use verbs_api::{
    capability::Mtu,
    ids::Psn,
    memory::{MrReregister, MwType},
    wr::{self, ReceiveRequest, WorkRequest},
};

use super::endpoint::{Chosen, Endpoint, MEMORY, Pair};

/// Bytes of the target's memory for which keys are made.
const EXTENT: usize = 32_768;
/// The position of the target's receives, outside of that range.
const RECEIVE: usize = MEMORY - 64;
const PAGE: u64 = 4096;

/// The object of a key.
#[derive(Clone)]
enum Handle {
    Region(Mr),
    Fast(MrKey),
    Window1(Mw),
    Window2(Mw),
}

/// A key as the model knows it.
struct Key {
    handle: Handle,
    index: u32,
    byte: u8,
    valid: bool,
    pd: usize,
    access: Access,
    /// The start of its memory.
    base: usize,
    iova: u64,
    length: u64,
    /// For a window: the index of the region's key.
    region: Option<u32>,
    /// For a type-2 window: the connection to which it is bound.
    owner: Option<usize>,
}

impl Key {
    fn rkey(&self) -> u32 {
        self.index << 8 | u32::from(self.byte)
    }

    fn is_window(&self) -> bool {
        matches!(self.handle, Handle::Window1(_) | Handle::Window2(_))
    }

    fn unbind(&mut self) {
        (self.valid, self.region, self.owner) = (false, None, None);
    }

    // The position of `length` bytes at `addr`, if they are within the bounds.
    fn place(&self, addr: u64, length: u64) -> Option<usize> {
        let offset = addr.checked_sub(self.iova)?;
        let fits = offset
            .checked_add(length)
            .is_some_and(|end| end <= self.length);
        // The sum is computed only then: an address outside of the region may be so far off that it overflows.
        fits.then(|| self.base + offset as usize)
    }
}

/// Two connected queue pairs: the requester and the target.
struct Connection {
    from: Qp,
    to: Qp,
    pd: usize,
}

/// Makes one run.
pub(crate) fn run(seed: u64, rng: &mut SmallRng) {
    let mut chosen = Chosen::new(QpType::Rc, rng);
    chosen.faults = polyverbs_io::sim::FaultSpec::default();
    chosen.direct = rng.random_bool(0.5);
    let pair = Pair::new(chosen, seed, rng);
    let mut world = World::new(pair);
    for _ in 0..rng.random_range(30..150) {
        world.step(rng);
    }
    let memory = world.to().octets(0, EXTENT);
    assert!(memory == world.memory, "memory differs from the model");
}

struct World {
    pair: Pair,
    pds: [Pd; 2],
    connections: Vec<Connection>,
    keys: Vec<Key>,
    /// Keys that were valid once.
    stale: Vec<u32>,
    memory: Vec<u8>,
    steps: u64,
}

impl World {
    fn new(pair: Pair) -> Self {
        let [from, to] = &pair.ends;
        let pds = [
            to.pd.clone(),
            to.context.alloc_pd().wait().expect("a domain"),
        ];
        let connections = [0, 0, 1].map(|pd| {
            let options = QpOptions::rc(&from.cq).operations(Operations::SEND_WITH_INV);
            let from = from.pd.create_qp(options).wait().expect("a queue pair");
            let local = Operations::SEND_WITH_INV
                | Operations::FAST_REGISTER
                | Operations::LOCAL_INV
                | Operations::BIND_MW;
            let to = pds[pd]
                .create_qp(QpOptions::rc(&to.cq).operations(local))
                .wait()
                .expect("a queue pair");
            Connection { from, to, pd }
        });
        let world = Self {
            pair,
            pds,
            connections: connections.into(),
            keys: Vec::new(),
            stale: vec![0],
            memory: vec![0; EXTENT],
            steps: 0,
        };
        world
            .connections
            .iter()
            .for_each(|connection| world.connect(connection));
        world
    }

    fn from(&self) -> &Endpoint {
        &self.pair.ends[0]
    }

    fn to(&self) -> &Endpoint {
        &self.pair.ends[1]
    }

    fn connect(&self, connection: &Connection) {
        let Connection { from, to, .. } = connection;
        for (qp, peer, path) in [(from, to, self.to().path()), (to, from, self.from().path())] {
            let rights = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            let reset = QpAttributes::new().qp_state(QpState::Reset);
            let init = QpAttributes::new()
                .qp_state(QpState::Init)
                .pkey_index(0)
                .port_num(1)
                .qp_access_flags(rights);
            let rtr = QpAttributes::new()
                .qp_state(QpState::Rtr)
                .ah_attr(path)
                .path_mtu(Mtu::Mtu1024);
            let rtr = rtr
                .dest_qp_num(peer.qp_num())
                .rq_psn(Psn::new(1))
                .max_dest_rd_atomic(4)
                .min_rnr_timer(5);
            let rts = QpAttributes::new()
                .qp_state(QpState::Rts)
                .sq_psn(Psn::new(1))
                .timeout(14);
            let rts = rts.retry_cnt(3).rnr_retry(3).max_rd_atomic(4);
            for step in [reset, init, rtr, rts] {
                qp.modify(step).wait().expect("a legal step");
            }
        }
    }

    // After an error both queue pairs begin again, and no type-2 window is bound to them.
    fn begin_again(&mut self, connection: usize) {
        self.pair.run_for(Duration::from_millis(1));
        self.from().completions();
        self.to().completions();
        self.connect(&self.connections[connection]);
        self.keys
            .iter_mut()
            .filter(|key| key.owner == Some(connection))
            .for_each(Key::unbind);
    }

    fn step(&mut self, rng: &mut SmallRng) {
        self.steps += 1;
        match rng.random_range(0..24) {
            0 => self.register(rng),
            1 => self.allocate(rng),
            2 if rng.random_bool(0.5) => self.destroy(rng),
            3..6 => self.fast_register(rng),
            6..9 => self.bind(rng),
            9..11 => self.invalidate(rng),
            11..13 => self.invalidate_remotely(rng),
            13 => self.reregister(rng),
            _ => self.access(rng),
        }
    }

    fn add(&mut self, handle: Handle, rkey: u32, pd: usize) -> &mut Key {
        let key = Key {
            handle,
            index: rkey >> 8,
            byte: rkey as u8,
            valid: false,
            pd,
            access: Access::empty(),
            base: 0,
            iova: 0,
            length: 0,
            region: None,
            owner: None,
        };
        self.keys.push(key);
        self.keys.last_mut().expect("just pushed")
    }

    fn register(&mut self, rng: &mut SmallRng) {
        let pd = rng.random_range(0..2);
        let (base, length) = extent(rng);
        let access = rights(rng, true);
        let range = self
            .to()
            .memory
            .range(base, length)
            .expect("within the memory");
        let mut options = MrOptions::new(access);
        let mut iova = range.address();
        match rng.random_range(0..3) {
            0 => (options, iova) = (options.zero_based(), 0),
            1 => (options, iova) = (options.iova(0x1_0000), 0x1_0000),
            _ => {}
        }
        let mr = self.pds[pd]
            .register_with(range, options)
            .wait()
            .expect("a region");
        let lkey = mr.lkey().value();
        let key = self.add(Handle::Region(mr), lkey, pd);
        (key.valid, key.access, key.base, key.iova, key.length) =
            (true, access, base, iova, length as u64);
    }

    fn allocate(&mut self, rng: &mut SmallRng) {
        let pd = rng.random_range(0..2);
        match rng.random_range(0..3) {
            0 => {
                let key = self.pds[pd].alloc_key(3).wait().expect("a key");
                let rkey = key.rkey().value();
                self.add(Handle::Fast(key), rkey, pd);
            }
            1 => {
                let mw = self.pds[pd]
                    .alloc_mw(MwType::Type1)
                    .wait()
                    .expect("a window");
                let rkey = mw.rkey().value();
                self.add(Handle::Window1(mw), rkey, pd);
            }
            _ => {
                let mw = self.pds[pd]
                    .alloc_mw(MwType::Type2)
                    .wait()
                    .expect("a window");
                let rkey = mw.rkey().value();
                self.add(Handle::Window2(mw), rkey, pd);
            }
        }
    }

    fn bound_to(&self, index: u32) -> bool {
        self.keys.iter().any(|key| key.region == Some(index))
    }

    fn destroy(&mut self, rng: &mut SmallRng) {
        let Some(at) = self.pick(rng) else { return };
        let key = self.keys.swap_remove(at);
        let busy = self.bound_to(key.index);
        self.stale.push(key.rkey());
        let kept = match key.handle {
            Handle::Region(mr) => mr
                .deregister()
                .wait()
                .err()
                .map(|error| Handle::Region(returned(error))),
            Handle::Fast(fast) => fast
                .deregister()
                .wait()
                .err()
                .map(|error| Handle::Fast(returned(error))),
            Handle::Window1(mw) => mw
                .destroy()
                .wait()
                .err()
                .map(|error| Handle::Window1(returned(error))),
            Handle::Window2(mw) => mw
                .destroy()
                .wait()
                .err()
                .map(|error| Handle::Window2(returned(error))),
        };
        assert_eq!(
            kept.is_some(),
            busy,
            "a region is busy if windows are bound to it, and only then"
        );
        self.keys.extend(kept.map(|handle| Key { handle, ..key }));
    }

    // Changes the rights of an ordinary region: refused while windows are bound to it; its key changes.
    fn reregister(&mut self, rng: &mut SmallRng) {
        let Some(at) = self.pick(rng) else { return };
        let busy = self.bound_to(self.keys[at].index);
        let access = rights(rng, true);
        let key = &mut self.keys[at];
        let Handle::Region(mr) = &key.handle else {
            return;
        };
        let changed = mr.rereg(MrReregister::new().access(access)).wait();
        // New rights do not expose memory that was registered for local use only.
        if changed.is_ok() {
            assert!(!busy);
            self.stale.push(key.rkey());
            (key.access, key.byte) = (access, mr.lkey().value() as u8);
        } else {
            assert!(busy, "{changed:?}");
        }
    }

    fn pick(&self, rng: &mut SmallRng) -> Option<usize> {
        (!self.keys.is_empty()).then(|| rng.random_range(0..self.keys.len()))
    }

    // Posts one request on the target's queue pair, and checks its status.
    fn local(&mut self, connection: usize, request: WorkRequest<'_>, expected: WcStatus) {
        let qp = &self.connections[connection].to;
        let what = format!("{request:?}");
        qp.post_one(request).expect("room");
        let done = self.to().completions();
        let found: Vec<_> = done.iter().map(|done| (done.wr_id, done.status)).collect();
        assert_eq!(found, [(self.steps, expected)], "{what}");
        if !expected.is_success() {
            self.begin_again(connection);
        }
    }

    fn fast_register(&mut self, rng: &mut SmallRng) {
        let Some(at) = self.pick(rng) else { return };
        let connection = rng.random_range(0..self.connections.len());
        let (base, length) = extent(rng);
        let range = self
            .to()
            .memory
            .range(base, length)
            .expect("within the memory");
        let pages = PageList::map(std::slice::from_ref(&range), PAGE, 16)
            .expect("pages")
            .list;
        let access = rights(rng, true);
        let byte = rng.random::<u8>();
        let bound = self.bound_to(self.keys[at].index);
        let key = &mut self.keys[at];
        let depth =
            matches!(&key.handle, Handle::Fast(fast) if pages.entries() <= fast.max_num_sg());
        let legal = depth && !key.valid && key.pd == self.connections[connection].pd;
        assert!(!bound || key.valid);
        let rkey = key.index << 8 | u32::from(byte);
        let mut request = wr::FastRegister::new(RKey::new(rkey), &pages)
            .access(access)
            .signaled(self.steps);
        let mut iova = range.address();
        match rng.random_range(0..3) {
            0 => {
                request = request.access(access | Access::ZERO_BASED);
                iova = 0;
            }
            1 => {
                request = request.iova(77);
                iova = 77;
            }
            _ => {}
        }
        if legal {
            (key.valid, key.byte, key.access) = (true, byte, access);
            (key.base, key.iova, key.length) = (base, iova, length as u64);
            self.stale.push(rkey);
        }
        self.local(
            connection,
            request.into(),
            if legal {
                WcStatus::Success
            } else {
                WcStatus::LocQpOpErr
            },
        );
    }

    fn bind(&mut self, rng: &mut SmallRng) {
        let mut likely = |wanted: fn(&Key) -> bool| {
            (0..4)
                .filter_map(|_| self.pick(rng))
                .find(|&at| wanted(&self.keys[at]))
        };
        let window = likely(Key::is_window);
        // The region is mostly a valid one, so that enough binds succeed.
        let region = likely(|key| key.valid && !key.is_window());
        let region = region.or_else(|| likely(|key| !key.is_window()));
        let (Some(window), Some(region)) = (window, region) else {
            return;
        };
        let connection = rng.random_range(0..self.connections.len());
        let pd = self.connections[connection].pd;
        let [key, target] = [&self.keys[window], &self.keys[region]];
        let (mw, type_1) = match &key.handle {
            Handle::Window1(mw) => (mw.clone(), true),
            Handle::Window2(mw) => (mw.clone(), false),
            _ => return,
        };
        let zero_based = rng.random_bool(0.3);
        let mut access = rights(rng, false) - Access::LOCAL_WRITE;
        access.set(Access::ZERO_BASED, zero_based);
        let length = if rng.random_bool(0.1) {
            0
        } else {
            rng.random_range(1..=target.length.max(1) + 1)
        };
        let within = target.length.saturating_sub(length);
        let addr = target
            .iova
            .wrapping_add(rng.random_range(0..=within))
            .wrapping_sub(u64::from(rng.random_bool(0.05)));
        let next = key.byte.wrapping_add(1);
        let byte = if type_1 && rng.random_bool(0.9) {
            next
        } else {
            rng.random()
        };
        let region_byte = if rng.random_bool(0.95) {
            target.byte
        } else {
            rng.random()
        };
        let place = target.place(addr, length);
        let changes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let region_fits = target.valid
            && target.byte == region_byte
            && target.pd == pd
            && target.access.contains(Access::MW_BIND)
            && (!changes || target.access.contains(Access::LOCAL_WRITE))
            && place.is_some();
        let window_fits = if type_1 {
            byte == next && !zero_based && (length == 0 || region_fits)
        } else {
            !key.valid && length > 0 && region_fits
        };
        let legal = window_fits && key.pd == pd;
        let (target_index, old) = (target.index, key.rkey());
        let host = target.handle.clone();
        let request = match &host {
            Handle::Region(mr) => wr::BindWindow::new(&mw, mr, addr, length),
            Handle::Fast(fast) => wr::BindWindow::new(&mw, fast, addr, length),
            _ => return,
        };
        let request = request.access(access).signaled(self.steps);
        let request = request.key_byte(byte).region_key_byte(region_byte);
        if legal {
            self.stale.push(old);
            let key = &mut self.keys[window];
            key.byte = byte;
            key.unbind();
            if length > 0 {
                (key.valid, key.access, key.region) = (true, access, Some(target_index));
                key.owner = (!type_1).then_some(connection);
                (key.base, key.length) = (place.expect("within the region"), length);
                key.iova = if zero_based { 0 } else { addr };
            }
            self.stale.push(key.rkey());
        }
        let expected = if legal {
            WcStatus::Success
        } else {
            WcStatus::MwBindErr
        };
        if type_1 && rng.random_bool(0.5) {
            let rkey = self.connections[connection]
                .to
                .bind_mw(request)
                .expect("room");
            assert!(!legal || rkey.value() == self.keys[window].rkey());
            let done = self.to().completions();
            assert_eq!(
                done.iter().map(|done| done.status).collect::<Vec<_>>(),
                [expected]
            );
            if !legal {
                self.begin_again(connection);
            }
            return;
        }
        self.local(connection, request.into(), expected);
    }

    // A current key, an earlier one, or a random number.
    fn some_key(&self, rng: &mut SmallRng) -> u32 {
        let bound: Vec<_> = self.keys.iter().filter_map(|key| key.region).collect();
        match self.pick(rng) {
            Some(_) if !bound.is_empty() && rng.random_bool(0.15) => {
                let index = bound[rng.random_range(0..bound.len())];
                self.keys
                    .iter()
                    .find(|key| key.index == index)
                    .map_or(0, Key::rkey)
            }
            Some(at) if rng.random_bool(0.8) => self.keys[at].rkey(),
            Some(at) if rng.random_bool(0.3) => self.keys[at].rkey() ^ 1 << rng.random_range(0..12),
            _ if rng.random_bool(0.9) => self.stale[rng.random_range(0..self.stale.len())],
            _ => rng.random(),
        }
    }

    fn find(&self, rkey: u32) -> Option<usize> {
        self.keys.iter().position(|key| key.rkey() == rkey)
    }

    fn invalidate(&mut self, rng: &mut SmallRng) {
        let connection = rng.random_range(0..self.connections.len());
        let rkey = self.some_key(rng);
        let at = self.find(rkey).filter(|&at| {
            let key = &self.keys[at];
            let own = match key.handle {
                Handle::Fast(_) => !self.bound_to(key.index),
                Handle::Window2(_) => !key.valid || key.owner == Some(connection),
                _ => false,
            };
            own && key.pd == self.connections[connection].pd
        });
        if let Some(at) = at {
            self.keys[at].unbind();
        }
        let request = wr::LocalInvalidate::new(RKey::new(rkey)).signaled(self.steps);
        self.local(
            connection,
            request.into(),
            if at.is_some() {
                WcStatus::Success
            } else {
                WcStatus::LocQpOpErr
            },
        );
    }

    fn invalidate_remotely(&mut self, rng: &mut SmallRng) {
        let connection = rng.random_range(0..self.connections.len());
        let rkey = self.some_key(rng);
        let at = self.find(rkey).filter(|&at| {
            let key = &self.keys[at];
            let own = match key.handle {
                Handle::Fast(_) => !self.bound_to(key.index),
                Handle::Window2(_) => key.owner == Some(connection),
                _ => false,
            };
            own && key.valid
                && key.pd == self.connections[connection].pd
                && key.access.intersects(Access::REMOTE)
        });
        if let Some(at) = at {
            self.keys[at].unbind();
        }
        let Connection { from, to, pd } = &self.connections[connection];
        // The region of a receive must belong to the queue pair's own domain: the second domain has none, so its
        // receive has no bytes.
        let receive = if *pd == 0 {
            ReceiveRequest::new(9, self.to().sge(RECEIVE, 64))
        } else {
            ReceiveRequest::new(9, ())
        };
        to.post_receive(receive).expect("room");
        from.post_one(wr::SendWithInvalidate::new((), RKey::new(rkey)).signaled(self.steps))
            .expect("room");
        self.pair.run_for(Duration::from_millis(2));
        let sent: Vec<_> = self
            .from()
            .completions()
            .iter()
            .map(|done| (done.wr_id, done.status))
            .collect();
        assert_eq!(sent, [(self.steps, WcStatus::Success)]);
        let received = self.to().completions();
        let received: Vec<_> = received
            .iter()
            .map(|done| (done.status, done.invalidated_rkey()))
            .collect();
        if at.is_some() {
            assert_eq!(received, [(WcStatus::Success, Some(RKey::new(rkey)))]);
        } else {
            assert_eq!(received, [(WcStatus::RemInvReqErr, None)], "{rkey:#x}");
            self.begin_again(connection);
        }
    }

    fn access(&mut self, rng: &mut SmallRng) {
        let connection = rng.random_range(0..self.connections.len());
        let rkey = self.some_key(rng);
        let found = self.find(rkey);
        let kind = rng.random_range(0..4);
        let length = if kind >= 2 {
            8
        } else {
            rng.random_range(0..64)
        };
        let (iova, extent) = found.map_or((rng.random(), 64), |at| {
            (self.keys[at].iova, self.keys[at].length)
        });
        // The address is mostly within the region, sometimes across its end or before its beginning.
        let mut addr = iova
            .wrapping_add(rng.random_range(0..=extent))
            .wrapping_sub(u64::from(rng.random_bool(0.1)));
        if kind >= 2 && rng.random_bool(0.8) {
            addr &= !7;
        }
        let needed = [
            Access::REMOTE_WRITE,
            Access::REMOTE_READ,
            Access::REMOTE_ATOMIC,
            Access::REMOTE_ATOMIC,
        ][kind];
        let place = found.map(|at| &self.keys[at]).and_then(|key| {
            let own = key.valid
                && key.pd == self.connections[connection].pd
                && (key.owner.is_none() || key.owner == Some(connection))
                && key.access.contains(needed);
            key.place(addr, length).filter(|_| own)
        });
        let from = self.from();
        let sge = from.sge(0, length as usize);
        let remote = RemoteAddress::new(addr, RKey::new(rkey));
        let octets: Vec<u8> = (0..length).map(|_| rng.random()).collect();
        from.put(0, &octets);
        let [compare, value] = [rng.random_range(0..2), rng.random()];
        let request: WorkRequest<'_> = match kind {
            0 => wr::Write::new(sge, remote).signaled(self.steps).into(),
            1 => wr::Read::new(sge, remote).signaled(self.steps).into(),
            2 => wr::CompareSwap::new(sge, remote, compare, value)
                .signaled(self.steps)
                .into(),
            _ => wr::FetchAdd::new(sge, remote, value)
                .signaled(self.steps)
                .into(),
        };
        let expected = match place {
            // The alignment rule applies to the peer's address, not to the memory for which it stands.
            _ if kind >= 2 && !addr.is_multiple_of(8) => WcStatus::RemInvReqErr,
            _ if length == 0 => WcStatus::Success,
            Some(place) if kind >= 2 && !self.is_aligned(place) => WcStatus::RemInvReqErr,
            Some(_) => WcStatus::Success,
            None => WcStatus::RemAccessErr,
        };
        self.connections[connection]
            .from
            .post_one(request)
            .expect("room");
        self.pair.run_for(Duration::from_millis(2));
        let done: Vec<_> = self
            .from()
            .completions()
            .iter()
            .map(|done| (done.wr_id, done.status))
            .collect();
        assert_eq!(
            done,
            [(self.steps, expected)],
            "key {rkey:#x} at {addr:#x}, {length} bytes, kind {kind}"
        );
        match place.filter(|_| expected.is_success() && length > 0) {
            Some(place) => self.carried_out(kind, place, &octets, compare, value),
            None if !expected.is_success() => self.begin_again(connection),
            None => {}
        }
    }

    fn is_aligned(&self, place: usize) -> bool {
        (self.to().memory.address() + place as u64).is_multiple_of(8)
    }

    fn carried_out(&mut self, kind: usize, place: usize, octets: &[u8], compare: u64, value: u64) {
        let found = self.from().octets(0, octets.len());
        let here = &mut self.memory[place..][..octets.len()];
        if kind == 0 {
            return here.copy_from_slice(octets);
        }
        assert_eq!(found, here, "the bytes that were read");
        if kind == 1 {
            return;
        }
        let mut before = [0; 8];
        before.copy_from_slice(here);
        let now = u64::from_ne_bytes(before);
        let after = match kind {
            2 if now == compare => value,
            2 => now,
            _ => now.wrapping_add(value),
        };
        here.copy_from_slice(&after.to_ne_bytes());
    }
}

fn returned<H>(error: DestroyError<H>) -> H {
    match error {
        DestroyError::Busy { object, .. } => object,
        _ => panic!("a handle that lives is busy or destroyed"),
    }
}

fn extent(rng: &mut SmallRng) -> (usize, usize) {
    let length = rng.random_range(1..=12_000);
    let base = rng.random_range(0..=EXTENT - length);
    if rng.random_bool(0.6) {
        (base / 8 * 8, length)
    } else {
        (base, length)
    }
}

// A set of rights that may be granted together, mostly a large one.
fn rights(rng: &mut SmallRng, region: bool) -> Access {
    let mut access = Access::empty();
    let all = [
        Access::LOCAL_WRITE,
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
        Access::MW_BIND,
    ];
    for right in all {
        access.set(right, rng.random_bool(0.75));
    }
    if !region {
        access -= Access::MW_BIND;
    } else if access.illegal().is_some() {
        access |= Access::LOCAL_WRITE;
    }
    access
}
