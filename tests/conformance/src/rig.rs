//! Two devices, the objects that a program has made from them, and their clock.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use low_latency_qp::{LowLatency, Progress, Watch};
use polyverbs_engine::trace::Trace;
use verbs_api::provider::{DeviceOps, Mutex};
use verbs_api::{
    Access, Completion, Context, Cq, DestroyError, Device, Memory, Mr, MrOptions, Mw, Pd, Qp,
    RemoteAddress, Requirements, Sge, Started, Transport, VerbError,
    capability::{BaselineGaps, DeviceAttributes},
    event::{AsyncEvent, EventType},
    ids::{Gid, LinkAddress},
    memory::{MwType, OutOfRange},
    portable::read_sink_access,
    qp::{AddressVector, QpCounters},
};

use crate::flavour::{Carried, DeviceUnderTest};
use crate::time::Time;
use crate::{Fast, Flavour, Steer};

/// How long a test lets time pass to check that nothing happens.
const A_WHILE: Duration = Duration::from_millis(20);

/// How long a test of a real device does so: the device delivers frames by itself and does not report how many are
/// in transit.
const A_REAL_WHILE: Duration = Duration::from_millis(100);

/// How long sockets must carry nothing until the rig assumes that everything has arrived.
const QUIET: Duration = Duration::from_millis(40);

/// Two devices of one flavour on one network: requests go from the near one to the far one.
pub struct Rig {
    flavour: Flavour,
    time: Time,
    carried: Option<Carried>,
    complaints: Complaints,
    /// The end that posts requests.
    pub near: End,
    /// The end that serves them.
    pub far: End,
    /// Memory of the near end for the data that requests carry or fetch.
    pub scratch: Region,
}

/// Failures that did not keep the test from continuing. The test fails at its end.
#[derive(Default)]
struct Complaints(Mutex<Vec<String>>);

impl Drop for Complaints {
    fn drop(&mut self) {
        let found = std::mem::take(self.0.get_mut());
        assert!(found.is_empty() || thread::panicking(), "{found:#?}");
    }
}

/// One device, opened for every feature that it has.
pub struct End {
    /// The device.
    pub device: Arc<dyn DeviceOps>,
    steer: Option<Arc<dyn Steer>>,
    /// The open device.
    pub context: Context,
    /// A protection domain.
    pub pd: Pd,
    pub(crate) progress: Option<Progress>,
}

/// Registered memory.
pub struct Region {
    /// The memory.
    pub memory: Memory,
    /// The region: all of the memory.
    pub mr: Mr,
}

impl Rig {
    /// Makes two devices of this flavour.
    pub fn new(flavour: Flavour) -> Self {
        Self::of(flavour, None)
    }

    /// Makes two other devices of this flavour, whose queue pair numbers are in `first..end`.
    #[must_use]
    pub fn with_qp_numbers(&self, first: u32, end: u32) -> Self {
        Self::of(self.flavour, Some((first, end)))
    }

    fn of(flavour: Flavour, qp_numbers: Option<(u32, u32)>) -> Self {
        let fabric = flavour.build(qp_numbers);
        let near = End::new(fabric.near, flavour);
        let far = End::new(fabric.far, flavour);
        let sink = read_sink_access(&near.context).access;
        let scratch = near.region(1 << 16, sink);
        Self {
            flavour,
            time: fabric.time,
            carried: fabric.carried,
            complaints: Complaints::default(),
            near,
            far,
            scratch,
        }
    }

    /// Whether messages are segmented into frames that take time.
    pub fn is_framed(&self) -> bool {
        matches!(
            self.flavour,
            Flavour::IbFramed
                | Flavour::IbWire
                | Flavour::IbUdp
                | Flavour::IbMemory
                | Flavour::IwarpFramed
                | Flavour::IwWire
                | Flavour::IwTcp
                | Flavour::Given(_)
        )
    }

    /// Whether frames are delivered in real time, by other threads than that of the test.
    pub fn is_in_real_time(&self) -> bool {
        matches!(self.time, Time::Real)
    }

    /// Whether frames go over sockets of the test's own process.
    pub fn is_on_sockets(&self) -> bool {
        matches!(
            self.flavour,
            Flavour::IbUdp | Flavour::IbMemory | Flavour::IwTcp
        )
    }

    /// Makes the test fail at its end.
    pub(crate) fn complain(&self, complaint: String) {
        let mut complaints = self.complaints.0.lock();
        if !complaints.contains(&complaint) {
            complaints.push(complaint);
        }
    }

    /// Whether the devices existed before: the suite did not build them.
    pub fn is_given(&self) -> bool {
        matches!(self.flavour, Flavour::Given(_))
    }

    /// The attributes that both devices report.
    pub fn attributes(&self) -> &DeviceAttributes {
        self.far.context.attributes()
    }

    /// Whether both devices have this gap.
    pub fn has_gap(&self, gap: BaselineGaps) -> bool {
        self.attributes().gaps.contains(gap)
    }

    /// Whether a sender is notified that a message was refused: InfiniBand acknowledges, iWARP does not.
    pub fn acknowledges(&self) -> bool {
        self.attributes().transport == Transport::InfiniBand
    }

    /// Advances time to the next event that is due; returns `false` if none is due.
    pub fn step(&self) -> bool {
        self.time.step()
    }

    /// Lets time pass.
    pub fn run_for(&self, duration: Duration) {
        self.time.run_for(duration);
    }

    /// Lets time pass until `done` returns true.
    ///
    /// # Panics
    /// It never returns true.
    pub fn wait_until(&self, done: impl FnMut() -> bool) {
        self.time.run_until(done).expect("a network that goes on");
    }

    /// Lets time pass until the frames in transit have arrived or wait for something.
    pub fn settle(&self) {
        let Some(carried) = &self.carried else {
            return self.run_for(match self.is_in_real_time() {
                true => A_REAL_WHILE,
                false => A_WHILE,
            });
        };
        // However busy the machine is, this waits until the links have carried nothing for a while, although both
        // devices were polled.
        let (mut seen, mut since) = (carried(), Instant::now());
        test_kit::waiting::until(|| {
            self.near.steer().progress();
            self.far.steer().progress();
            let now = carried();
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
            since.elapsed() >= QUIET
        });
    }

    /// Lets time pass until a control verb has ended, and returns its outcome.
    ///
    /// # Panics
    /// The verb does not end.
    pub fn outcome<T: Send + 'static, E: Send + 'static>(
        &self,
        started: Started<T, E>,
    ) -> Result<T, E> {
        let (sender, receiver) = mpsc::channel();
        started.on_done(move |result| drop(sender.send(result)));
        let mut outcome = None;
        let ended = || {
            outcome = receiver.try_recv().ok();
            outcome.is_some()
        };
        self.time.run_until(ended).expect("a network that goes on");
        // Another thread may be accessing the memory right now; the memory is released when that access ends.
        let later = || receiver.recv_timeout(test_kit::waiting::PATIENCE).ok();
        outcome.or_else(later).expect("a verb that ends")
    }

    /// Lets time pass until a control verb has succeeded, and returns its result.
    ///
    /// # Panics
    /// The verb fails.
    pub fn finish<T: Send + 'static>(&self, started: Started<T>) -> T {
        self.outcome(started)
            .unwrap_or_else(|error: VerbError| panic!("{error}"))
    }

    /// Lets time pass until a destroy has succeeded.
    ///
    /// # Panics
    /// The destroy fails.
    pub fn finish_destroy<T: Send + 'static>(&self, started: Started<(), DestroyError<T>>) {
        self.outcome(started)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Lets time pass until `count` completions have arrived, and returns them.
    ///
    /// # Panics
    /// Fewer arrive, or more than `count` are in the queue.
    pub fn take(&self, cq: &Cq, count: usize) -> Vec<Completion> {
        let mut taken = Vec::with_capacity(count);
        let enough = || {
            taken.extend(poll_all(cq));
            taken.len() >= count
        };
        let ran = self.time.run_until(enough);
        // The condition is not evaluated after the very last step.
        taken.extend(poll_all(cq));
        assert_eq!(taken.len(), count, "{ran:?}, completions: {taken:#?}");
        taken
    }

    /// Checks that no completion arrives.
    ///
    /// # Panics
    /// A completion arrives.
    pub fn nothing_on(&self, cq: &Cq) {
        self.settle();
        let found = poll_all(cq);
        assert!(found.is_empty(), "unexpected: {found:#?}");
    }
}

/// All completions that are in a queue.
pub(crate) fn poll_all(cq: &Cq) -> Vec<Completion> {
    let mut all = Vec::new();
    loop {
        let mut slot = [Completion::default()];
        match cq.poll(&mut slot).expect("a queue that works").len() {
            0 => return all,
            _ => all.extend(slot),
        }
    }
}

impl End {
    fn new(device: DeviceUnderTest, flavour: Flavour) -> Self {
        let opened = Device::of(Arc::clone(&device.ops));
        let everything = Requirements::everything_of(&opened.attributes());
        let context = opened.open(&everything).expect("a device that opens");
        let pd = context.alloc_pd().wait().expect("a domain");
        let watch = || {
            let low_latency: LowLatency = context.extension().expect("it is linked");
            low_latency.watch(Watch::all()).expect("both are known")
        };
        let progress = flavour.is_low_latency().then(watch);
        Self {
            device: device.ops,
            steer: device.steer,
            context,
            pd,
            progress,
        }
    }

    /// Steers the device without the program's knowledge, in cases of [`steered_cases!`](crate::steered_cases).
    ///
    /// # Panics
    /// The device is real.
    pub fn steer(&self) -> &dyn Steer {
        let steer = self.steer.as_deref();
        steer.expect("only an emulated device is steered: the case belongs in `steered_cases!`")
    }

    /// The path from the port of this end to the address.
    ///
    /// # Panics
    /// The device has no port.
    pub fn path(&self, address: LinkAddress, dgid: Gid) -> AddressVector {
        self.context.path_to(1, address, dgid).expect("a port")
    }

    /// How many memory keys are in use; `None` where the device does not report it.
    pub fn keys_in_use(&self) -> Option<usize> {
        self.steer.as_ref().map(|steer| steer.keys_in_use())
    }

    /// The counters of a queue pair; `None` where the device does not count.
    pub fn counters_of(&self, qp: &Qp) -> Option<QpCounters> {
        self.steer.as_ref().map(|_| qp.counters())
    }

    /// Makes control verbs take this long from now on; on a real device this has no effect.
    pub fn set_latency(&self, latency: Duration) {
        if let Some(steer) = &self.steer {
            steer.set_latency(latency);
        }
    }

    /// Reports to `trace` every operation that is executed by a queue pair made after this call. Returns whether
    /// the device can do so.
    pub fn trace(&self, trace: Trace) -> bool {
        let traces = self.steer.as_ref().map(|steer| steer.trace(trace));
        traces.is_some()
    }

    /// Allocates another protection domain.
    pub fn other_pd(&self) -> Pd {
        self.context.alloc_pd().wait().expect("a domain")
    }

    /// Creates a completion queue of this many entries.
    pub fn cq(&self, cqe: u32) -> Cq {
        self.context.create_cq(cqe).wait().expect("a queue")
    }

    /// Registers new memory with these rights.
    pub fn region(&self, length: usize, access: Access) -> Region {
        self.region_with(&self.pd, length, MrOptions::new(access))
    }

    /// Registers new memory in the given domain with these options.
    pub fn region_with(&self, pd: &Pd, length: usize, options: MrOptions) -> Region {
        let memory = Memory::zeroed(length).expect("memory");
        let mr = pd.register_with(&memory, options).wait().expect("a region");
        Region { memory, mr }
    }

    /// Memory of this many bytes, and an allocated key that it can be registered under.
    pub fn fast(&self, length: usize) -> Fast {
        Fast::new(&self.pd, length)
    }

    /// Allocates a memory window.
    pub fn window(&self, mw_type: MwType) -> Mw {
        self.pd.alloc_mw(mw_type).wait().expect("a window")
    }

    /// The asynchronous events that are pending.
    pub fn events(&self) -> Vec<EventType> {
        let events = std::iter::from_fn(|| self.context.poll_event());
        events.map(|event: AsyncEvent| event.event_type()).collect()
    }
}

impl Region {
    /// The scatter/gather entry of a range.
    ///
    /// # Panics
    /// The range is outside the region.
    pub fn sge(&self, offset: usize, length: u32) -> Sge {
        self.mr.sge(offset, length).expect("inside the region")
    }

    /// The remote address by which a peer reaches `offset`.
    pub fn remote(&self, offset: u64) -> RemoteAddress {
        self.mr.remote(offset)
    }

    /// Fills the memory with bytes that depend on their position, different for each `seed`.
    pub fn fill(&self, seed: u8) {
        fill(&self.memory, seed);
    }

    /// A copy of a range.
    ///
    /// # Panics
    /// The range is outside the region.
    pub fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        within(self.memory.to_vec(offset, length))
    }

    /// Copies bytes into the region.
    ///
    /// # Panics
    /// The range is outside the region.
    pub fn put(&self, offset: usize, octets: &[u8]) {
        within(self.memory.write(offset, octets));
    }
}

/// Fills memory with bytes that depend on their position, different for each `seed`.
pub(crate) fn fill(memory: &Memory, seed: u8) {
    let octets: Vec<_> = (0..memory.len()).map(|at| pattern(at, seed)).collect();
    within(memory.write(0, &octets));
}

fn pattern(at: usize, seed: u8) -> u8 {
    (at as u8) ^ ((at >> 8) as u8).wrapping_mul(31) ^ seed | 1
}

pub(crate) fn within<T>(result: Result<T, OutOfRange>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}
