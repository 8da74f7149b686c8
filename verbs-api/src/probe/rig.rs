//! The devices, memory and time that a probe uses: two ends that reach each other.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::{Evidence, Outcome};
use crate::access::Access;
use crate::capability::{BaselineGaps, DeviceAttributes, FeatureBits, Requirements};
use crate::context::Context;
use crate::control::Started;
use crate::cq::Cq;
use crate::device::Device;
use crate::error::VerbError;
use crate::event_type::EventType;
use crate::ids::{Gid, LKey, RKey};
use crate::lifecycle::DestroyError;
use crate::lock::Mutex;
use crate::mem::{Memory, MwType, PageList, Sge};
use crate::mr::{Mr, MrKey, MrOptions};
use crate::mw::Mw;
use crate::operation::WcOpcode;
use crate::pd::Pd;
use crate::qp::QpOptions;
use crate::transport::Transport;
use crate::wc::{Completion, WcStatus};
use crate::wr::{FastRegister, LocalInvalidate, RemoteAddress};

/// The page size in bytes that probes use.
const PAGE: u64 = 4096;

/// How long a probe waits in real time for an event that should happen: so long that even on a busy machine only failing probes
/// end by this.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a probe waits: in real or in virtual time.
///
/// [`Clock`] is real time; a simulation implements it to run the probes in virtual time.
pub trait Pace: Send + Sync {
    /// Waits until `done` returns true, or until nothing more can happen on its own, in other threads of the process
    /// neither. Returns the last result of `done`.
    fn until(&self, done: &mut dyn FnMut() -> bool) -> bool;

    /// Waits until messages that are on their way have arrived.
    fn settle(&self);
}

/// Real time, measured by the system's clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// How long a probe waits for an event that should happen.
    pub patience: Duration,
    /// How long a probe waits to see that an event does not happen, on a machine that is not busy.
    pub moment: Duration,
}

impl Default for Clock {
    /// Waits thirty seconds for events that should happen, and fifty milliseconds for those that should not, within which a
    /// peer without acknowledgements must have refused a message.
    fn default() -> Self {
        Self {
            patience: PATIENCE,
            moment: Duration::from_millis(50),
        }
    }
}

/// Lets the rigs of several devices in one simulation share its time.
impl<P: Pace + ?Sized> Pace for Arc<P> {
    fn until(&self, done: &mut dyn FnMut() -> bool) -> bool {
        (**self).until(done)
    }

    fn settle(&self) {
        (**self).settle();
    }
}

impl Pace for Clock {
    fn until(&self, done: &mut dyn FnMut() -> bool) -> bool {
        let end = Instant::now() + self.patience;
        let mut looks = 0_u32;
        loop {
            if done() {
                return true;
            }
            if Instant::now() >= end {
                return done();
            }
            looks = looks.saturating_add(1);
            if looks < 100 {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    // In many pauses: on a busy machine each of them takes longer, as everything does that the device does meanwhile.
    fn settle(&self) {
        const PAUSES: u32 = 50;
        for _ in 0..PAUSES {
            std::thread::sleep(self.moment / PAUSES);
        }
    }
}

/// Two open devices, or one opened twice, that reach each other: probes send requests from the near end to the far one.
pub struct Rig {
    /// The end that sends requests.
    pub near: End,
    /// The end that answers requests.
    pub far: End,
    /// Registered memory of the near end for the data of requests.
    pub scratch: Region,
    pub(super) pace: Box<dyn Pace>,
    number: u32,
    complaints: Mutex<Vec<String>>,
}

/// An open device, and a protection domain on it.
#[derive(Clone)]
pub struct End {
    /// The open device of this end.
    pub context: Context,
    /// A protection domain on the device of this end.
    pub pd: Pd,
    pub(super) mode: Option<Mode>,
}

/// Changes the options of a queue pair before it is made.
pub(super) type Mode = Arc<dyn Fn(QpOptions) -> QpOptions + Send + Sync>;

/// Memory together with the region that it is registered as.
pub struct Region {
    /// The memory that is registered.
    pub memory: Memory,
    /// The region that all of the memory is registered as.
    pub mr: Mr,
}

/// Memory for fast-registers: its page list, and an allocated key.
pub struct Fast {
    /// The memory that the page list maps.
    pub memory: Memory,
    /// The page list of all of the memory.
    pub pages: PageList,
    /// The allocated key, for fast-registers of the memory.
    pub key: MrKey,
}

impl Rig {
    /// Makes a rig of two open devices that reach each other.
    ///
    /// # Errors
    /// A device refused something that every device has.
    pub fn new(near: Context, far: Context, pace: impl Pace + 'static) -> Result<Self, Evidence> {
        let (near, far) = (End::new(near)?, End::new(far)?);
        // Open to peers, so that a device that wants the sinks of reads so shows that in one place only.
        let scratch = near.region(1 << 16, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let pace = Box::new(pace);
        static RIGS: AtomicU32 = AtomicU32::new(0);
        let number = RIGS.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            near,
            far,
            scratch,
            pace,
            number,
            complaints: Mutex::default(),
        })
    }

    /// Returns a multicast group that no other rig uses, in any process, because others may probe the same device at the
    /// same time. A device with an IPv4 address gets an IPv4 group, because it can join no other.
    pub fn group(&self, number: u8) -> Gid {
        let port = &self.attributes().ports[0];
        let own = port.gid(port.default_gid_index()).map(Gid::as_ip);
        let mut bytes = [0; 16];
        (bytes[0], bytes[1], bytes[15]) = (0xff, 0x0e, number);
        let process = std::process::id();
        if let Some(IpAddr::V4(_)) = own {
            // Everyone may use groups in 239.0.0.0/8; 16 bits remain for process and rig.
            let rig = process.wrapping_mul(0x9e37_79b1).wrapping_add(self.number);
            bytes[10..13].copy_from_slice(&[0xff, 0xff, 239]);
            bytes[13..15].copy_from_slice(&(rig as u16).to_be_bytes());
        } else {
            bytes[6..10].copy_from_slice(&process.to_be_bytes());
            bytes[10..14].copy_from_slice(&self.number.to_be_bytes());
        }
        Gid(bytes)
    }

    /// Makes a rig of one device, opened twice, in real time. Both ends are granted everything that the device claims, and
    /// `beyond` whether it claims that or not.
    ///
    /// # Errors
    /// The device cannot be opened.
    pub fn of_device(device: &Device, beyond: &[FeatureBits]) -> Result<Self, Evidence> {
        Self::of_device_in(device, beyond, Clock::default())
    }

    /// Makes a rig as [`of_device`](Self::of_device) does, in the time of `pace`: for a simulated device, that of the
    /// simulation.
    ///
    /// # Errors
    /// The device cannot be opened.
    pub fn of_device_in(
        device: &Device,
        beyond: &[FeatureBits],
        pace: impl Pace + 'static,
    ) -> Result<Self, Evidence> {
        let wanted = Requirements::everything_of(&device.attributes());
        let open = || {
            device
                .open_beyond_claims(&wanted, beyond)
                .map_err(|error| Evidence::not_here(error.to_string()))
        };
        Self::new(open()?, open()?, pace)
    }

    /// Returns the faults of the devices that do not keep a program from continuing, such as an event that was not raised. No
    /// probe fails for them, but a test of a device may.
    pub fn complaints(&self) -> Vec<String> {
        self.complaints.lock().clone()
    }

    pub(super) fn complain(&self, complaint: String) {
        let mut complaints = self.complaints.lock();
        if !complaints.contains(&complaint) {
            complaints.push(complaint);
        }
    }

    /// Returns the attributes of the far device.
    pub fn attributes(&self) -> &DeviceAttributes {
        self.far.context.attributes()
    }

    /// Whether the far device has this gap.
    pub fn has_gap(&self, gap: BaselineGaps) -> bool {
        self.attributes().gaps.contains(gap)
    }

    /// Whether a sender learns that a message was refused: InfiniBand acknowledges messages, iWARP does not.
    pub fn acknowledges(&self) -> bool {
        self.attributes().transport == Transport::InfiniBand
    }

    /// Waits until messages that were sent have arrived. If both devices are [idle](crate::provider::DeviceOps::is_idle),
    /// no message is on its way, and it does not wait.
    pub fn settle(&self) {
        if !self.near.context.is_idle() || !self.far.context.is_idle() {
            self.pace.settle();
        }
    }

    /// Waits until `done` returns true. If nothing more can happen before, the evidence is that `what` did not happen.
    ///
    /// # Errors
    /// `what` did not happen.
    #[track_caller]
    pub fn until(&self, what: &str, mut done: impl FnMut() -> bool) -> Outcome {
        if self.pace.until(&mut done) {
            Ok(())
        } else {
            Err(Evidence::wrong(format!("{what} did not happen")))
        }
    }

    /// Waits until a control verb has ended, and returns its result.
    ///
    /// # Errors
    /// The verb does not end.
    #[track_caller]
    pub fn outcome<T, E: From<VerbError>>(
        &self,
        mut started: Started<T, E>,
    ) -> Result<Result<T, E>, Evidence> {
        self.pace.until(&mut || started.is_done());
        // Virtual time may have nothing left to do while another thread of the process still ends the verb.
        let ended = started.wait_for(PATIENCE).transpose();
        ended.ok_or_else(|| Evidence::wrong("a control verb does not end"))
    }

    /// Waits until a control verb has ended, and returns its value; the verb must succeed.
    ///
    /// # Errors
    /// The verb fails, or does not end.
    #[track_caller]
    pub fn finish<T, E>(&self, started: Started<T, E>) -> Result<T, Evidence>
    where
        E: From<VerbError>,
        Evidence: From<E>,
    {
        Ok(self.outcome(started)??)
    }

    /// Waits until a destroy has ended; it must succeed.
    ///
    /// # Errors
    /// The destroy fails, or does not end.
    #[track_caller]
    pub fn finish_destroy<T>(&self, started: Started<(), DestroyError<T>>) -> Outcome {
        Ok(self.outcome(started)??)
    }

    /// Waits until `count` completions have arrived, and returns them.
    ///
    /// # Errors
    /// Fewer or more completions arrive.
    #[track_caller]
    pub fn take(&self, cq: &Cq, count: usize) -> Result<Vec<Completion>, Evidence> {
        let mut taken = Vec::with_capacity(count);
        let mut failed = None;
        self.pace.until(&mut || {
            match poll_all(cq) {
                Ok(more) => taken.extend(more),
                Err(error) => failed = Some(error),
            }
            taken.len() >= count || failed.is_some()
        });
        if let Some(error) = failed {
            return Err(error);
        }
        if taken.len() == count {
            return Ok(taken);
        }
        Err(Evidence::wrong(format!(
            "{} completions, expected {count}: {:?}",
            taken.len(),
            brief(&taken)
        )))
    }

    /// Checks that no completion arrives.
    ///
    /// # Errors
    /// A completion arrives.
    #[track_caller]
    pub fn nothing_on(&self, cq: &Cq) -> Outcome {
        self.settle();
        let found = poll_all(cq)?;
        if found.is_empty() {
            return Ok(());
        }
        Err(Evidence::wrong(format!(
            "completions that no request of the probe has: {:?}",
            brief(&found)
        )))
    }
}

fn brief(completions: &[Completion]) -> Vec<(u64, WcOpcode, WcStatus)> {
    let brief = |done: &Completion| (done.wr_id, done.opcode, done.status);
    completions.iter().map(brief).collect()
}

/// Returns all completions that are in a queue.
#[track_caller]
pub(super) fn poll_all(cq: &Cq) -> Result<Vec<Completion>, Evidence> {
    let mut all = Vec::new();
    loop {
        let mut slot = [Completion::default()];
        if cq.poll(&mut slot)?.is_empty() {
            return Ok(all);
        }
        all.extend(slot);
    }
}

impl End {
    fn new(context: Context) -> Result<Self, Evidence> {
        let pd = context.alloc_pd().wait()?;
        Ok(Self {
            context,
            pd,
            mode: None,
        })
    }

    /// Lets `mode` change the options of each queue pair that [`side`](Self::side) makes from now on, for example to add the
    /// mode of an extension.
    pub fn set_mode(&mut self, mode: impl Fn(QpOptions) -> QpOptions + Send + Sync + 'static) {
        self.mode = Some(Arc::new(mode));
    }

    /// Makes another protection domain at this end.
    ///
    /// # Errors
    /// The error of the device.
    pub fn other_pd(&self) -> Result<Pd, Evidence> {
        Ok(self.context.alloc_pd().wait()?)
    }

    /// Makes a completion queue with this many entries at this end.
    ///
    /// # Errors
    /// The error of the device.
    pub fn cq(&self, cqe: u32) -> Result<Cq, Evidence> {
        Ok(self.context.create_cq(cqe).wait()?)
    }

    /// Allocates memory and registers it with these rights.
    ///
    /// # Errors
    /// The error of the device.
    pub fn region(&self, length: usize, access: Access) -> Result<Region, Evidence> {
        self.region_with(&self.pd, length, MrOptions::new(access))
    }

    /// Allocates memory and registers it in the domain `pd` with these options.
    ///
    /// # Errors
    /// The error of the device.
    pub fn region_with(
        &self,
        pd: &Pd,
        length: usize,
        options: MrOptions,
    ) -> Result<Region, Evidence> {
        let memory = allocate(length)?;
        let mr = pd.register_with(&memory, options).wait()?;
        Ok(Region { memory, mr })
    }

    /// Returns eight bytes under a key that grants no access any longer, because their region was deregistered.
    ///
    /// # Errors
    /// The error of the device.
    pub fn dead_sge(&self) -> Result<Sge, Evidence> {
        let Region { mr, .. } = self.region(64, Access::LOCAL_WRITE)?;
        let sge = mr.sge_all().at(mr.iova(), 8);
        mr.deregister().wait()?;
        Ok(sge)
    }

    /// Allocates memory of this many bytes, and a key that it can be fast-registered with.
    ///
    /// # Errors
    /// The error of the device.
    pub fn fast(&self, length: usize) -> Result<Fast, Evidence> {
        Fast::in_pd(&self.pd, length)
    }

    /// Makes a memory window at this end.
    ///
    /// # Errors
    /// The error of the device.
    pub fn window(&self, mw_type: MwType) -> Result<Mw, Evidence> {
        Ok(self.pd.alloc_mw(mw_type).wait()?)
    }

    /// Returns the types of all pending asynchronous events of the device.
    pub fn events(&self) -> Vec<EventType> {
        let events = std::iter::from_fn(|| self.context.poll_event());
        events.map(|event| event.event_type()).collect()
    }
}

#[track_caller]
fn allocate(length: usize) -> Result<Memory, Evidence> {
    Ok(Memory::zeroed(length)?)
}

impl Region {
    /// Returns a range of the region, for the scatter/gather list of a request.
    ///
    /// # Errors
    /// The range is out of bounds.
    #[track_caller]
    pub fn sge(&self, offset: usize, length: u32) -> Result<Sge, Evidence> {
        Ok(self.mr.sge(offset, length)?)
    }

    /// Returns the address and key by which a peer reaches `offset`.
    pub fn remote(&self, offset: u64) -> RemoteAddress {
        self.mr.remote(offset)
    }

    /// Fills the memory with bytes that depend on their offset and on `seed`.
    ///
    /// # Errors
    /// It never fails.
    pub fn fill(&self, seed: u8) -> Outcome {
        fill(&self.memory, seed)
    }

    /// Returns a copy of a range of the memory.
    ///
    /// # Errors
    /// The range is out of bounds.
    #[track_caller]
    pub fn bytes(&self, offset: usize, length: usize) -> Result<Vec<u8>, Evidence> {
        Ok(self.memory.to_vec(offset, length)?)
    }

    /// Copies bytes into the memory from `offset` on.
    ///
    /// # Errors
    /// The range is out of bounds.
    #[track_caller]
    pub fn put(&self, offset: usize, bytes: &[u8]) -> Outcome {
        Ok(self.memory.write(offset, bytes)?)
    }

    /// Returns eight bytes as a native integer.
    ///
    /// # Errors
    /// The range is out of bounds.
    #[track_caller]
    pub fn word(&self, offset: usize) -> Result<u64, Evidence> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.bytes(offset, 8)?);
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Sets eight bytes to a native integer.
    ///
    /// # Errors
    /// The range is out of bounds.
    #[track_caller]
    pub fn set_word(&self, offset: usize, value: u64) -> Outcome {
        self.put(offset, &value.to_ne_bytes())
    }
}

fn fill(memory: &Memory, seed: u8) -> Outcome {
    let pattern = |at: usize| (at as u8) ^ ((at >> 8) as u8).wrapping_mul(31) ^ seed | 1;
    let bytes: Vec<_> = (0..memory.len()).map(pattern).collect();
    Ok(memory.write(0, &bytes)?)
}

impl Fast {
    /// Allocates memory of this many bytes, and a key in the domain `pd` that it can be fast-registered with.
    ///
    /// # Errors
    /// The error of the device.
    #[track_caller]
    pub fn in_pd(pd: &Pd, length: usize) -> Result<Self, Evidence> {
        let memory = allocate(length)?;
        let depth = (length as u64).div_ceil(PAGE) as u32;
        let mapped = PageList::map(&[(&memory).into()], PAGE, depth)
            .map_err(|error| Evidence::wrong(error.to_string()))?;
        let key = pd.alloc_key(depth).wait()?;
        Ok(Self {
            memory,
            pages: mapped.list,
            key,
        })
    }

    /// Returns the request that registers the memory under the current key.
    pub fn register(&self, access: Access) -> FastRegister<'_> {
        FastRegister::new(&self.key, &self.pages).access(access)
    }

    /// Advances the key to its next byte and returns the request that registers the memory under it.
    pub fn register_afresh(&self, access: Access) -> FastRegister<'_> {
        self.key.advance();
        self.register(access)
    }

    /// Returns the request that invalidates the current key.
    pub fn invalidate(&self) -> LocalInvalidate<'static> {
        LocalInvalidate::new(&self.key)
    }

    /// Returns the current key for peers.
    pub fn rkey(&self) -> RKey {
        self.key.rkey()
    }

    /// Returns the current key for local requests.
    pub fn lkey(&self) -> LKey {
        self.key.lkey()
    }

    /// Returns a range of the memory, for the scatter/gather list of a request.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        self.key.sge(self.pages.address() + offset, length)
    }

    /// Returns the address and key by which a peer reaches `offset`.
    pub fn remote(&self, offset: u64) -> RemoteAddress {
        self.key.remote(self.pages.address() + offset)
    }

    /// Fills the memory with bytes that depend on their offset and on `seed`.
    ///
    /// # Errors
    /// It never fails.
    pub fn fill(&self, seed: u8) -> Outcome {
        fill(&self.memory, seed)
    }

    /// Returns a copy of a range of the memory.
    ///
    /// # Errors
    /// The range is out of bounds.
    #[track_caller]
    pub fn bytes(&self, offset: usize, length: usize) -> Result<Vec<u8>, Evidence> {
        Ok(self.memory.to_vec(offset, length)?)
    }
}
