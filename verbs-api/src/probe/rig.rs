//! Two ends that reach each other, and their time.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::{Evidence, Outcome};
use crate::access::Access;
use crate::capability::{BaselineGaps, DeviceAttributes, FeatureBits, Requirements};
use crate::context::Context;
use crate::control::Started;
use crate::cq::Cq;
use crate::device::Device;
use crate::event_type::EventType;
use crate::ids::{Gid, LKey, RKey};
use crate::lifecycle::DestroyError;
use crate::mem::{Memory, MwType, PageList, Sge};
use crate::mr::{Mr, MrKey, MrOptions};
use crate::mw::Mw;
use crate::pd::Pd;
use crate::transport::Transport;
use crate::wc::Completion;
use crate::wr::{FastRegister, LocalInvalidate, RemoteAddress};

/// Bytes of a page.
const PAGE: u64 = 4096;

/// How time passes for a probe.
///
/// [`Clock`] is real time; a simulation implements it to run the probes in virtual time.
pub trait Pace {
    /// Lets time pass until `done` answers `true`, or until nothing more is to be expected, of other threads of the process
    /// neither. Answers what `done` did last.
    fn until(&self, done: &mut dyn FnMut() -> bool) -> bool;

    /// Lets what is under way arrive.
    fn settle(&self);
}

/// Real time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// How long something may take that is to happen.
    pub patience: Duration,
    /// How long something is waited for that is not to happen, on a machine that is not busy.
    pub moment: Duration,
}

impl Default for Clock {
    /// Thirty seconds, which end only a probe that fails, however busy the machine is; and fifty milliseconds: what a peer without
    /// acknowledges refuses has to be refused by then.
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(30),
            moment: Duration::from_millis(50),
        }
    }
}

/// Rigs of devices in one simulation share its time.
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

/// Two ends that reach each other: requests go from the near one to the far one.
pub struct Rig {
    /// The end that asks.
    pub near: End,
    /// The end that is asked.
    pub far: End,
    /// Memory of the near end for what requests carry or fetch.
    pub scratch: Region,
    pace: Box<dyn Pace>,
    number: u32,
}

/// An open device, and a domain.
pub struct End {
    /// The open device.
    pub context: Context,
    /// A domain.
    pub pd: Pd,
}

/// Memory, registered.
pub struct Region {
    /// The memory.
    pub memory: Memory,
    /// The region: all of the memory.
    pub mr: Mr,
}

/// Memory that is registered by work requests: its page list, and an allocated key.
pub struct Fast {
    /// The memory.
    pub memory: Memory,
    /// All of it.
    pub pages: PageList,
    /// The key.
    pub key: MrKey,
}

impl Rig {
    /// A rig of these two: they reach each other.
    ///
    /// # Errors
    /// What a device refused that every device has.
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
        })
    }

    /// A group that no other rig uses, in no process: others may probe the same device meanwhile. A device at an IPv4
    /// address gets a group of IPv4, because it can join no other.
    pub fn group(&self, number: u8) -> Gid {
        let port = &self.attributes().ports[0];
        let own = port.gid(port.default_gid_index()).map(Gid::as_ip);
        let mut bytes = [0; 16];
        (bytes[0], bytes[1], bytes[15]) = (0xff, 0x0e, number);
        let process = std::process::id();
        if let Some(IpAddr::V4(_)) = own {
            // 239.0.0.0/8 is for whoever wants it: 16 bits remain for process and rig.
            let rig = process.wrapping_mul(0x9e37_79b1).wrapping_add(self.number);
            bytes[10..13].copy_from_slice(&[0xff, 0xff, 239]);
            bytes[13..15].copy_from_slice(&(rig as u16).to_be_bytes());
        } else {
            bytes[6..10].copy_from_slice(&process.to_be_bytes());
            bytes[10..14].copy_from_slice(&self.number.to_be_bytes());
        }
        Gid(bytes)
    }

    /// One device that is both ends, opened for everything that it claims, and for `beyond` whether it claims that or
    /// not; in real time.
    ///
    /// # Errors
    /// The device cannot be opened.
    pub fn of_device(device: &Device, beyond: &[FeatureBits]) -> Result<Self, Evidence> {
        Self::of_device_in(device, beyond, Clock::default())
    }

    /// A rig like that of [`of_device`](Self::of_device), in the time of `pace`: a simulated device takes its simulation.
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

    /// What the far device tells about itself.
    pub fn attributes(&self) -> &DeviceAttributes {
        self.far.context.attributes()
    }

    /// Whether the far device has this gap.
    pub fn has_gap(&self, gap: BaselineGaps) -> bool {
        self.attributes().gaps.contains(gap)
    }

    /// Whether a sender learns that a message was refused: InfiniBand acknowledges, iWARP does not.
    pub fn acknowledges(&self) -> bool {
        self.attributes().transport == Transport::InfiniBand
    }

    /// Lets messages arrive that were sent. Devices that are [idle](crate::provider::DeviceOps::is_idle) send none, and no time
    /// passes.
    pub fn settle(&self) {
        if !self.near.context.is_idle() || !self.far.context.is_idle() {
            self.pace.settle();
        }
    }

    /// Lets time pass until `done` answers `true`; where nothing more is to be expected, `what` is the evidence.
    ///
    /// # Errors
    /// It did not happen.
    #[track_caller]
    pub fn until(&self, what: &str, mut done: impl FnMut() -> bool) -> Outcome {
        if self.pace.until(&mut done) {
            Ok(())
        } else {
            Err(Evidence::wrong(format!("{what} did not happen")))
        }
    }

    /// Lets time pass until a control verb has ended, and answers how.
    ///
    /// # Errors
    /// It does not end.
    #[track_caller]
    pub fn outcome<T: Send + 'static, E: Send + 'static>(
        &self,
        started: Started<T, E>,
    ) -> Result<Result<T, E>, Evidence> {
        let (sender, receiver) = mpsc::channel();
        started.on_done(move |result| drop(sender.send(result)));
        let mut outcome = None;
        self.pace.until(&mut || {
            outcome = outcome.take().or_else(|| receiver.try_recv().ok());
            outcome.is_some()
        });
        outcome.ok_or_else(|| Evidence::wrong("a control verb does not end"))
    }

    /// The same for a verb that succeeds.
    ///
    /// # Errors
    /// It does not.
    #[track_caller]
    pub fn finish<T: Send + 'static, E: Send + 'static>(
        &self,
        started: Started<T, E>,
    ) -> Result<T, Evidence>
    where
        Evidence: From<E>,
    {
        Ok(self.outcome(started)??)
    }

    /// The same for a destroy.
    ///
    /// # Errors
    /// It does not.
    #[track_caller]
    pub fn finish_destroy<T: Send + 'static>(
        &self,
        started: Started<(), DestroyError<T>>,
    ) -> Outcome {
        Ok(self.outcome(started)??)
    }

    /// Lets time pass until `count` completions have come, and answers them.
    ///
    /// # Errors
    /// Fewer come, or more than these are there.
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
        let found: Vec<_> = taken
            .iter()
            .map(|done| (done.wr_id, done.opcode, done.status))
            .collect();
        Err(Evidence::wrong(format!(
            "{} completions, expected {count}: {found:?}",
            found.len()
        )))
    }

    /// Sees that no completion comes.
    ///
    /// # Errors
    /// One does.
    #[track_caller]
    pub fn nothing_on(&self, cq: &Cq) -> Outcome {
        self.settle();
        match poll_all(cq)?.first() {
            None => Ok(()),
            Some(done) => Err(Evidence::wrong(format!(
                "a completion that nobody expects: {} {:?} {:?}",
                done.wr_id, done.opcode, done.status
            ))),
        }
    }
}

/// Everything that waits in a queue.
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
        Ok(Self { context, pd })
    }

    /// Another domain.
    ///
    /// # Errors
    /// The device's.
    pub fn other_pd(&self) -> Result<Pd, Evidence> {
        Ok(self.context.alloc_pd().wait()?)
    }

    /// A completion queue of this many entries.
    ///
    /// # Errors
    /// The device's.
    pub fn cq(&self, cqe: u32) -> Result<Cq, Evidence> {
        Ok(self.context.create_cq(cqe).wait()?)
    }

    /// Memory with these rights.
    ///
    /// # Errors
    /// The device's.
    pub fn region(&self, length: usize, access: Access) -> Result<Region, Evidence> {
        self.region_with(&self.pd, length, MrOptions::new(access))
    }

    /// Memory in some domain, with these options.
    ///
    /// # Errors
    /// The device's.
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

    /// Eight bytes under a key that opens nothing: their region was deregistered.
    ///
    /// # Errors
    /// The device's.
    pub fn dead_sge(&self) -> Result<Sge, Evidence> {
        let Region { mr, .. } = self.region(64, Access::LOCAL_WRITE)?;
        let sge = mr.sge_all().at(mr.iova(), 8);
        mr.deregister().wait()?;
        Ok(sge)
    }

    /// Memory of this many bytes, and an allocated key that it can be registered under.
    ///
    /// # Errors
    /// The device's.
    pub fn fast(&self, length: usize) -> Result<Fast, Evidence> {
        Fast::in_pd(&self.pd, length)
    }

    /// A window.
    ///
    /// # Errors
    /// The device's.
    pub fn window(&self, mw_type: MwType) -> Result<Mw, Evidence> {
        Ok(self.pd.alloc_mw(mw_type).wait()?)
    }

    /// The events that wait.
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
    /// A stretch for a request.
    ///
    /// # Errors
    /// It lies outside.
    #[track_caller]
    pub fn sge(&self, offset: usize, length: u32) -> Result<Sge, Evidence> {
        Ok(self.mr.sge(offset, length)?)
    }

    /// What a peer is told to reach `offset`.
    pub fn remote(&self, offset: u64) -> RemoteAddress {
        self.mr.remote(offset)
    }

    /// Fills the memory with bytes that tell where they are, different for each `seed`.
    ///
    /// # Errors
    /// None.
    pub fn fill(&self, seed: u8) -> Outcome {
        fill(&self.memory, seed)
    }

    /// A copy of a stretch.
    ///
    /// # Errors
    /// It lies outside.
    #[track_caller]
    pub fn bytes(&self, offset: usize, length: usize) -> Result<Vec<u8>, Evidence> {
        Ok(self.memory.to_vec(offset, length)?)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// They lie outside.
    #[track_caller]
    pub fn put(&self, offset: usize, bytes: &[u8]) -> Outcome {
        Ok(self.memory.write(offset, bytes)?)
    }

    /// Eight bytes as an integer of this machine.
    ///
    /// # Errors
    /// They lie outside.
    #[track_caller]
    pub fn word(&self, offset: usize) -> Result<u64, Evidence> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.bytes(offset, 8)?);
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Sets eight bytes to an integer of this machine.
    ///
    /// # Errors
    /// They lie outside.
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
    /// Memory of this many bytes, and a key, in a domain.
    ///
    /// # Errors
    /// The device's.
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

    /// The request that registers the memory under the key as it is now.
    pub fn register(&self, access: Access) -> FastRegister<'_> {
        FastRegister::new(&self.key, &self.pages).access(access)
    }

    /// The request that registers it under the key with the next byte.
    pub fn register_afresh(&self, access: Access) -> FastRegister<'_> {
        self.key.advance();
        self.register(access)
    }

    /// The request that invalidates the key as it is now.
    pub fn invalidate(&self) -> LocalInvalidate<'static> {
        LocalInvalidate::new(&self.key)
    }

    /// The key for peers, as it is now.
    pub fn rkey(&self) -> RKey {
        self.key.rkey()
    }

    /// The key for local requests, as it is now.
    pub fn lkey(&self) -> LKey {
        self.key.lkey()
    }

    /// A stretch for a request.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        self.key.sge(self.pages.address() + offset, length)
    }

    /// What a peer is told to reach `offset`.
    pub fn remote(&self, offset: u64) -> RemoteAddress {
        self.key.remote(self.pages.address() + offset)
    }

    /// Fills the memory with bytes that tell where they are, different for each `seed`.
    ///
    /// # Errors
    /// None.
    pub fn fill(&self, seed: u8) -> Outcome {
        fill(&self.memory, seed)
    }

    /// A copy of a stretch.
    ///
    /// # Errors
    /// It lies outside.
    #[track_caller]
    pub fn bytes(&self, offset: usize, length: usize) -> Result<Vec<u8>, Evidence> {
        Ok(self.memory.to_vec(offset, length)?)
    }
}
