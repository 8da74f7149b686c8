//! Portable operations: what a program means, lowered to what the device has.
//!
//! One function lowers an operation; posting posts what it gives and a [`Plan`] prints it, so that the
//! plan is what will be executed. Each portable operation completes with one completion that carries
//! the program's `wr_id`, on every device, also when it fails.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::access::Access;
use crate::capability::{BaselineGaps, Features, Limit, Limits};
use crate::context::Context;
use crate::control::Started;
use crate::error::VerbError;
use crate::ids::RKey;
use crate::mem::{MemoryRange, MwType, PageList, Sge};
use crate::mr::{Mr, MrKey, MrOptions};
use crate::mw::Mw;
use crate::pd::Pd;
use crate::post::PostReason;
use crate::service::Operations;
use crate::wr::requests::Operation;
use crate::wr::{
    BindWindow, FastRegister, LocalInvalidate, Read, ReadWithInvalidate, RemoteAddress, Send,
    SendFlags, SendWithInvalidate, WorkRequest, Write,
};

/// The features that portable operations use where a device has them: what a program prefers that posts such operations.
///
/// ```no_run
/// use verbs_api::{Requirements, open, portable};
/// let device = open(Requirements::new().prefers(portable::FEATURES))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const FEATURES: Features = Features::BMME
    .union(Features::LOCAL_INVALIDATE_FENCE)
    .union(Features::READ_WITH_INVALIDATE)
    .union(Features::WINDOW_2);

/// Slots of a send queue that a portable operation takes at most.
pub(crate) const MAX_SLOTS: u32 = 2;

/// The requests that a portable operation becomes on a device.
pub struct Lowered<'a> {
    pub(crate) first: WorkRequest<'a>,
    pub(crate) second: Option<WorkRequest<'a>>,
}

impl<'a> Lowered<'a> {
    /// One request, made to complete with `wr_id`.
    pub fn one(wr_id: u64, request: impl Into<WorkRequest<'a>>) -> Self {
        let mut first = request.into();
        let common = first.common_mut();
        common.wr_id = wr_id;
        common.flags |= SendFlags::SIGNALED | SendFlags::RESERVED;
        Self {
            first,
            second: None,
        }
    }

    /// Two requests: the second waits for the first and completes for both with `wr_id`.
    pub fn two(
        wr_id: u64,
        first: impl Into<WorkRequest<'a>>,
        second: impl Into<WorkRequest<'a>>,
    ) -> Self {
        let Self {
            first: mut second, ..
        } = Self::one(wr_id, second);
        second.common_mut().flags |= SendFlags::FENCE | SendFlags::SECOND_HALF;
        let mut first = first.into();
        let common = first.common_mut();
        common.wr_id = wr_id;
        common.flags -= SendFlags::SIGNALED;
        common.flags |= SendFlags::FIRST_HALF | SendFlags::RESERVED;
        Self {
            first,
            second: Some(second),
        }
    }

    /// These requests, to complete with `wr_id`.
    pub(crate) fn with_wr_id(mut self, wr_id: u64) -> Self {
        self.first.common_mut().wr_id = wr_id;
        if let Some(second) = &mut self.second {
            second.common_mut().wr_id = wr_id;
        }
        self
    }

    /// The requests in the order in which they are posted.
    pub fn requests(&self) -> impl Iterator<Item = &WorkRequest<'a>> {
        std::iter::once(&self.first).chain(&self.second)
    }
}

/// An operation that every device has in some form.
pub trait Portable {
    /// Its name, as `polyverbs plan` takes it.
    fn name(&self) -> &'static str;

    /// The requests that it becomes where these features were granted.
    ///
    /// # Errors
    /// The features without which there is no form of it.
    fn lower(&self, features: Features) -> Result<Lowered<'_>, PostReason>;

    /// The control verb that has to come before, if there is one.
    fn control_verb(&self) -> Option<&'static str> {
        None
    }
}

/// One request of a [`Plan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanStep {
    /// What is posted.
    pub operation: Operations,
    /// How.
    pub flags: SendFlags,
}

/// What a portable operation becomes on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The operation.
    pub operation: &'static str,
    /// The control verb that comes before, if there is one.
    pub control_verb: Option<&'static str>,
    /// What is posted, in this order.
    pub steps: Vec<PlanStep>,
}

impl Plan {
    /// The plan of `operation` where these features were granted.
    ///
    /// # Errors
    /// The features without which there is no form of it.
    ///
    /// ```
    /// use verbs_api::{Features, RemoteAddress, portable::{Plan, ReadAndInvalidate, Sink}};
    /// let operation = ReadAndInvalidate::new(RemoteAddress::default(), &Sink::default());
    /// let plan = Plan::of(&operation, Features::IWARP_MANDATORY).unwrap();
    /// assert_eq!(plan.slots(), 1);
    /// let plan = Plan::of(&operation, Features::BMME_AS_PROPOSED).unwrap();
    /// assert_eq!(plan.slots(), 2);
    /// ```
    pub fn of(operation: &impl Portable, features: Features) -> Result<Self, PostReason> {
        let lowered = operation.lower(features)?;
        let step = |request: &WorkRequest<'_>| PlanStep {
            operation: request.operation(),
            flags: request.common().flags,
        };
        let steps = lowered.requests().map(step).collect();
        let control_verb = operation.control_verb();
        Ok(Self {
            operation: operation.name(),
            control_verb,
            steps,
        })
    }

    /// Slots of the send queue that it takes.
    pub fn slots(&self) -> u32 {
        self.steps.len() as u32
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.slots() == 1 { "" } else { "s" };
        writeln!(
            f,
            "{}: {} work request{plural}, one completion",
            self.operation,
            self.slots()
        )?;
        if let Some(verb) = self.control_verb {
            writeln!(f, "  before: {verb} (control verb)")?;
        }
        for (index, PlanStep { operation, flags }) in self.steps.iter().enumerate() {
            let mut how = Vec::new();
            for (flag, name) in [
                (SendFlags::FENCE, "fenced"),
                (SendFlags::SIGNALED, "signaled"),
            ] {
                if flags.contains(flag) {
                    how.push(name);
                }
            }
            let names: Vec<_> = operation.iter_names().map(|(name, _)| name).collect();
            let how = if how.is_empty() {
                "unsignaled".to_owned()
            } else {
                how.join(", ")
            };
            writeln!(f, "  {}. {} ({how})", index + 1, names.join(" "))?;
        }
        Ok(())
    }
}

impl Context {
    /// What a portable operation becomes with the features granted here.
    ///
    /// # Errors
    /// The features without which there is no form of it.
    pub fn plan(&self, operation: &impl Portable) -> Result<Plan, PostReason> {
        Plan::of(operation, self.features())
    }
}

/// The operations that lowering may need of a queue pair where these features were granted.
pub(crate) fn operations(features: Features) -> Operations {
    let mut operations = Operations::empty();
    operations.set(Operations::FAST_REGISTER, features.contains(Features::BMME));
    operations.set(
        Operations::LOCAL_INV | Operations::SEND_WITH_INV,
        features.intersects(INVALIDATED),
    );
    operations.set(
        Operations::READ_WITH_INV,
        features.contains(Features::READ_WITH_INVALIDATE),
    );
    operations.set(Operations::BIND_MW, features.intersects(Features::WINDOW_2));
    operations
}

/// Any of these has keys that are invalidated by requests and by messages.
const INVALIDATED: Features = Features::BMME.union(Features::WINDOW_2);

/// Where a read-and-invalidate puts the bytes: memory registered with a key that dies with the read.
///
/// Made by [`MrKey::sink`], and then registered afresh for each use, or by [`ReadSink::sink`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sink {
    sge: Sge,
    rkey: Option<RKey>,
}

impl Default for Sink {
    fn default() -> Self {
        Self::new(Sge::default(), RKey::default())
    }
}

impl Sink {
    /// A sink of this range, whose key for peers is `rkey`.
    pub const fn new(sge: Sge, rkey: RKey) -> Self {
        let rkey = Some(rkey);
        Self { sge, rkey }
    }

    /// A sink whose key outlives the read: nothing is invalidated.
    pub const fn lasting(sge: Sge) -> Self {
        Self { sge, rkey: None }
    }
}

impl MrKey {
    /// A range that the key was registered for, as the sink of a portable read-and-invalidate.
    pub fn sink(&self, addr: u64, length: u32) -> Sink {
        Sink::new(self.sge(addr, length), self.rkey())
    }
}

/// Reads remote bytes and invalidates the *local sink's* key when the last has been placed.
///
/// A read-with-invalidate where there is one (iWARP); else a read, then a fenced local invalidate. Where the key of the sink
/// outlives the read ([`Sink::lasting`]), a read.
///
/// ```no_run
/// # fn example(
/// #     device: &verbs_api::Context, qp: &verbs_api::Qp, key: &verbs_api::MrKey,
/// #     pages: &verbs_api::PageList, remote: verbs_api::RemoteAddress,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::portable::{ReadAndInvalidate, read_sink_access};
/// use verbs_api::wr;
/// // The queue pair was made with `reserve_portable`, and `key` is free.
/// let rights = read_sink_access(device).access;
/// qp.post_one(wr::FastRegister::new(key, pages).access(rights))?;
/// let read = ReadAndInvalidate::new(remote, &key.sink(pages.address(), 64));
/// qp.post_portable(read.wr_id(1))?; // one completion; then the key is dead
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ReadAndInvalidate {
    remote: RemoteAddress,
    sink: Sink,
    wr_id: u64,
}

impl ReadAndInvalidate {
    /// As many bytes from `remote` as `sink` holds.
    pub const fn new(remote: RemoteAddress, sink: &Sink) -> Self {
        Self {
            remote,
            sink: *sink,
            wr_id: 0,
        }
    }

    /// Comes back in the completion.
    #[must_use]
    pub const fn wr_id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }
}

impl Portable for ReadAndInvalidate {
    fn name(&self) -> &'static str {
        "read-and-invalidate"
    }

    fn lower(&self, features: Features) -> Result<Lowered<'_>, PostReason> {
        let Sink { sge, rkey } = self.sink;
        let Some(rkey) = rkey else {
            return Ok(Lowered::one(self.wr_id, Read::new(sge, self.remote)));
        };
        if features.contains(Features::READ_WITH_INVALIDATE) {
            return Ok(Lowered::one(
                self.wr_id,
                ReadWithInvalidate::new(sge, self.remote),
            ));
        }
        let missing = (Features::BMME | Features::LOCAL_INVALIDATE_FENCE) - features;
        if !missing.is_empty() {
            return Err(PostReason::Unsupported { missing });
        }
        let read = Read::new(sge, self.remote);
        Ok(Lowered::two(self.wr_id, read, LocalInvalidate::new(rkey)))
    }
}

/// Sends a message that invalidates a key of the peer's, where this device has such messages; a message alone elsewhere.
///
/// The peer sees which of the two it got ([`invalidated_rkey`](crate::Completion::invalidated_rkey)), and closes by itself what was
/// not closed: [`RemoteAccess::invalidation`]. `None` is for a key that lasts, as that of a plain region.
///
/// ```no_run
/// # fn example(qp: &verbs_api::Qp, lent: verbs_api::RKey) -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::portable::SendAndInvalidate;
/// qp.post_portable(SendAndInvalidate::new(&lent.value().to_be_bytes(), Some(lent)).wr_id(1))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SendAndInvalidate<'a> {
    data: &'a [u8],
    rkey: Option<RKey>,
    wr_id: u64,
}

impl<'a> SendAndInvalidate<'a> {
    /// These bytes, inline, and a key of the peer's.
    pub const fn new(data: &'a [u8], rkey: Option<RKey>) -> Self {
        Self {
            data,
            rkey,
            wr_id: 0,
        }
    }

    /// Comes back in the completion.
    #[must_use]
    pub const fn wr_id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }
}

impl Portable for SendAndInvalidate<'_> {
    fn name(&self) -> &'static str {
        "send-and-invalidate"
    }

    fn lower(&self, features: Features) -> Result<Lowered<'_>, PostReason> {
        let rkey = self.rkey.filter(|_| features.intersects(INVALIDATED));
        Ok(match rkey {
            Some(rkey) => Lowered::one(self.wr_id, SendWithInvalidate::new(self.data, rkey)),
            None => Lowered::one(self.wr_id, Send::new(self.data)),
        })
    }
}

/// Opens memory to peers under a fresh key: by [`RemoteAccess::register`].
///
/// A fast-register where there is one; else the bind of a type-2 window; else, where the program
/// allowed it, a plain region that was registered beforehand, and an empty write that completes in
/// its place.
///
/// ```
/// use verbs_api::Features;
/// use verbs_api::portable::{Plan, RegisterForRemoteAccess};
/// let on_iwarp = RegisterForRemoteAccess::outline(Features::IWARP_MANDATORY, false)?;
/// println!("{}", Plan::of(&on_iwarp, Features::IWARP_MANDATORY)?);
/// // Without the features, only where a plain region will do.
/// assert!(RegisterForRemoteAccess::outline(Features::empty(), false).is_err());
/// let plain = RegisterForRemoteAccess::outline(Features::empty(), true)?;
/// assert_eq!(Plan::of(&plain, Features::empty())?.control_verb, Some("register"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RegisterForRemoteAccess<'a> {
    form: Form<'a>,
    wr_id: u64,
}

#[derive(Clone, Copy, Debug)]
enum Form<'a> {
    FastRegister {
        key: RKey,
        pages: Option<&'a PageList>,
        length: Option<u32>,
        access: Access,
    },
    Window {
        handles: Option<(&'a Mw, &'a Mr)>,
        key_byte: u8,
        addr: u64,
        length: u64,
        access: Access,
    },
    Region,
}

impl RegisterForRemoteAccess<'_> {
    /// The operation without memory, for a [`Plan`] on a device with these features.
    ///
    /// # Errors
    /// The features of which one would be needed.
    pub fn outline(features: Features, allow_plain_region: bool) -> Result<Self, VerbError> {
        let access = Access::empty();
        let form = match Choice::of(features, allow_plain_region)? {
            Choice::FastRegister => Form::FastRegister {
                key: RKey::default(),
                pages: None,
                length: None,
                access,
            },
            Choice::Window => Form::Window {
                handles: None,
                key_byte: 0,
                addr: 0,
                length: 0,
                access,
            },
            Choice::Region => Form::Region,
        };
        Ok(Self { form, wr_id: 0 })
    }

    /// Comes back in the completion.
    #[must_use]
    pub const fn wr_id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }
}

impl Portable for RegisterForRemoteAccess<'_> {
    fn name(&self) -> &'static str {
        "register-for-remote-access"
    }

    fn lower(&self, _: Features) -> Result<Lowered<'_>, PostReason> {
        Ok(match self.form {
            Form::FastRegister {
                key,
                pages,
                length,
                access,
            } => {
                let request = FastRegister {
                    key,
                    pages,
                    length,
                    access,
                    ..FastRegister::default()
                };
                Lowered::one(self.wr_id, request)
            }
            Form::Window {
                handles,
                key_byte,
                addr,
                length,
                access,
            } => {
                let request = handles.map_or_else(BindWindow::default, |(window, region)| {
                    BindWindow::new(window, region, addr, length)
                });
                Lowered::one(self.wr_id, request.key_byte(key_byte).access(access))
            }
            // A write of no bytes names no memory of the peer, on any transport.
            Form::Region => Lowered::one(self.wr_id, Write::new((), RemoteAddress::default())),
        })
    }

    fn control_verb(&self) -> Option<&'static str> {
        matches!(self.form, Form::Region).then_some("register")
    }
}

enum Choice {
    FastRegister,
    Window,
    Region,
}

impl Choice {
    fn of(features: Features, allow_plain_region: bool) -> Result<Self, VerbError> {
        if features.contains(Features::BMME) {
            Ok(Self::FastRegister)
        } else if features.intersects(Features::WINDOW_2) {
            Ok(Self::Window)
        } else if allow_plain_region {
            Ok(Self::Region)
        } else {
            Err(VerbError::Unsupported {
                missing: Features::BMME,
            })
        }
    }
}

/// Memory that can be opened to peers, again and again, by what this device has for it.
///
/// The device is opened with [`FEATURES`], and the queue pair made with room for such operations and connected with the rights.
///
/// ```no_run
/// # fn example(memory: &verbs_api::Memory, peer: &verbs_api::QpEndpoint) -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::{Access, PathOptions, QpOptions, Requirements, open, portable, portable::RemoteAccess, wr};
/// let device = open(Requirements::new().prefers(portable::FEATURES))?;
/// # let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(16).wait()?);
/// let qp = pd.create_qp(QpOptions::rc(&cq).reserve_portable(1)).wait()?;
/// qp.connect(peer, PathOptions::new().access(Access::REMOTE_WRITE)).wait()?;
///
/// let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
/// let access = RemoteAccess::prepare(&pd, memory, rights, false).wait()?;
/// qp.submit_portable(access.register()).wait()?;
/// qp.post_one(wr::Send::new(&access.remote().to_bytes()))?; // the peer may write from here on
/// if let Some(invalidation) = access.invalidation() {
///     qp.post_one(invalidation.signaled(2))?; // and no longer: until the next `register`
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RemoteAccess {
    means: Means,
    access: Access,
    address: u64,
    length: u64,
}

#[derive(Debug)]
enum Means {
    FastRegister {
        key: MrKey,
        pages: PageList,
    },
    Window {
        region: Mr,
        window: Mw,
        key_byte: AtomicU8,
    },
    Region(Mr),
}

impl RemoteAccess {
    /// Prepares `memory` to be opened with these rights.
    ///
    /// `allow_plain_region` allows, where nothing better exists, a plain region: peers that know its
    /// key have access from now on, and [`revoke`](Self::revoke) is a deregistration.
    ///
    /// # Errors
    /// There is no form of it with the features granted, or the memory is too large for one key.
    pub fn prepare(
        pd: &Pd,
        memory: impl Into<MemoryRange>,
        access: Access,
        allow_plain_region: bool,
    ) -> Started<Self> {
        let memory = memory.into();
        match Choice::of(pd.context().features(), allow_plain_region) {
            Err(error) => Started::ready(Err(error)),
            Ok(Choice::FastRegister) => Self::prepare_key(pd, memory, access),
            Ok(Choice::Window) => Self::prepare_window(pd, memory, access),
            Ok(Choice::Region) => {
                let (address, length) = (memory.address(), memory.len() as u64);
                after(pd, pd.register(memory, access), move |region| Self {
                    means: Means::Region(region),
                    access,
                    address,
                    length,
                })
            }
        }
    }

    fn prepare_key(pd: &Pd, memory: MemoryRange, access: Access) -> Started<Self> {
        let limits = &pd.context().attributes().limits;
        let pages = match page_list(&memory, limits) {
            Ok(pages) => pages,
            Err(error) => return Started::ready(Err(error)),
        };
        let (address, length) = (memory.address(), memory.len() as u64);
        after(pd, pd.alloc_key(pages.entries()), move |key| Self {
            means: Means::FastRegister { key, pages },
            access,
            address,
            length,
        })
    }

    fn prepare_window(pd: &Pd, memory: MemoryRange, access: Access) -> Started<Self> {
        let (started, outcome) = pd.context().begin();
        let (address, length) = (memory.address(), memory.len() as u64);
        let local = Access::LOCAL_WRITE | Access::MW_BIND;
        let windows = pd.clone();
        pd.register_with(memory, MrOptions::new(local))
            .on_done(move |region| match region {
                Err(error) => outcome.complete(Err(error)),
                Ok(region) => windows.alloc_mw(MwType::Type2).on_done(move |window| {
                    outcome.complete(window.map(|window| {
                        let key_byte = AtomicU8::new(window.rkey().key_byte());
                        let means = Means::Window {
                            region,
                            window,
                            key_byte,
                        };
                        Self {
                            means,
                            access,
                            address,
                            length,
                        }
                    }));
                }),
            });
        started
    }

    /// The operation that opens the memory under a fresh key, to be posted with
    /// [`Qp::post_portable`](crate::Qp::post_portable). The key of the time before must be dead:
    /// invalidated by the peer, or by [`invalidation`](Self::invalidation).
    pub fn register(&self) -> RegisterForRemoteAccess<'_> {
        self.opened(None)
    }

    /// The same for the first `length` bytes; all of it where only a plain region was to be had.
    pub fn register_first(&self, length: u32) -> RegisterForRemoteAccess<'_> {
        self.opened(Some(length))
    }

    fn opened(&self, length: Option<u32>) -> RegisterForRemoteAccess<'_> {
        let (access, addr) = (self.access, self.address);
        let form = match &self.means {
            Means::FastRegister { key, pages } => Form::FastRegister {
                key: key.advance(),
                pages: Some(pages),
                length,
                access,
            },
            Means::Window {
                region,
                window,
                key_byte,
            } => {
                key_byte.fetch_add(1, Ordering::Relaxed);
                Form::Window {
                    handles: Some((window, region)),
                    key_byte: self.rkey().key_byte(),
                    addr,
                    length: length.map_or(self.length, u64::from),
                    // Local rights are the region's; a window has only those of peers.
                    access: access & Access::REMOTE,
                }
            }
            Means::Region(_) => Form::Region,
        };
        RegisterForRemoteAccess { form, wr_id: 0 }
    }

    /// What the peer is told: valid from the completion on, or for what is posted after the operation.
    pub fn remote(&self) -> RemoteAddress {
        RemoteAddress::new(self.address, self.rkey())
    }

    /// The request that takes the access back; `None` for a plain region, which only
    /// [`revoke`](Self::revoke) closes.
    pub fn invalidation(&self) -> Option<LocalInvalidate<'static>> {
        let posted = !matches!(self.means, Means::Region(_));
        posted.then(|| LocalInvalidate::new(self.rkey()))
    }

    /// Takes the access back for good, whatever its form: the keys are dead when this has ended.
    pub fn revoke(self) -> Started<()> {
        match self.means {
            Means::FastRegister { key, .. } => plain(key.deregister()),
            Means::Region(region) => plain(region.deregister()),
            Means::Window { region, window, .. } => {
                let (started, completer) = Started::pending();
                plain(window.destroy()).on_done(move |window| match window {
                    Err(error) => drop(completer.complete(Err(error))),
                    Ok(()) => plain(region.deregister()).on_done(move |region| {
                        completer.complete(region);
                    }),
                });
                started
            }
        }
    }

    fn rkey(&self) -> RKey {
        match &self.means {
            Means::FastRegister { key, .. } => key.rkey(),
            Means::Window {
                window, key_byte, ..
            } => window
                .rkey()
                .with_key_byte(key_byte.load(Ordering::Relaxed)),
            Means::Region(region) => region.rkey(),
        }
    }
}

/// Memory that reads fill. Where the device has keys that live for one use, it is registered afresh for each read; else it is a
/// region, which peers can reach only where the transport wants that of the sink of a read.
///
/// ```no_run
/// # fn example(pd: &verbs_api::Pd, qp: &verbs_api::Qp, memory: &verbs_api::Memory, remote: verbs_api::RemoteAddress)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::{Batch, portable::{ReadAndInvalidate, ReadSink}};
/// let sink = ReadSink::prepare(pd, memory, false).wait()?;
/// let mut batch = Batch::with_capacity(1);
/// batch.extend(sink.register(64)); // one request, or none
/// qp.post(&mut batch)?;
/// qp.post_portable(ReadAndInvalidate::new(remote, &sink.sink(64)).wr_id(1))?; // one completion
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ReadSink {
    means: SinkMeans,
    access: Access,
    address: u64,
}

#[derive(Debug)]
enum SinkMeans {
    FastRegister { key: MrKey, pages: PageList },
    Region(Mr),
}

fn has_keys_for_one_read(features: Features) -> bool {
    let ends = Features::READ_WITH_INVALIDATE | Features::LOCAL_INVALIDATE_FENCE;
    features.contains(Features::BMME) && features.intersects(ends)
}

impl ReadSink {
    /// A sink without memory as it is on this device, for a [`Plan`].
    pub fn outline(context: &Context) -> Sink {
        match has_keys_for_one_read(context.features()) {
            true => Sink::default(),
            false => Sink::lasting(Sge::default()),
        }
    }

    /// Prepares `memory` to be filled by reads.
    ///
    /// `allow_plain_region` allows, where nothing better exists and the transport wants it, a region that peers who know its
    /// key may write from now on.
    ///
    /// # Errors
    /// There is no form of it with the features granted, or the memory is too large for one key.
    pub fn prepare(
        pd: &Pd,
        memory: impl Into<MemoryRange>,
        allow_plain_region: bool,
    ) -> Started<Self> {
        let (memory, context) = (memory.into(), pd.context());
        let (address, attributes) = (memory.address(), context.attributes());
        let ReadSinkAccess { access, exposes } = sink_access(attributes.gaps);
        if has_keys_for_one_read(context.features()) {
            let pages = match page_list(&memory, &attributes.limits) {
                Ok(pages) => pages,
                Err(error) => return Started::ready(Err(error)),
            };
            return after(pd, pd.alloc_key(pages.entries()), move |key| Self {
                means: SinkMeans::FastRegister { key, pages },
                access,
                address,
            });
        }
        if exposes.is_some() && !allow_plain_region {
            let missing = Features::BMME;
            return Started::ready(Err(VerbError::Unsupported { missing }));
        }
        after(pd, pd.register(memory, access), move |region| Self {
            means: SinkMeans::Region(region),
            access,
            address,
        })
    }

    /// What is posted before each read of at most `length` bytes: the registration under a fresh key. `None` for a region.
    pub fn register(&self, length: u32) -> Option<FastRegister<'_>> {
        match &self.means {
            SinkMeans::FastRegister { key, pages } => Some(
                FastRegister::new(key.advance(), pages)
                    .length(length)
                    .access(self.access),
            ),
            SinkMeans::Region(_) => None,
        }
    }

    /// The first `length` bytes, for a [`ReadAndInvalidate`].
    pub fn sink(&self, length: u32) -> Sink {
        match &self.means {
            SinkMeans::FastRegister { key, .. } => key.sink(self.address, length),
            SinkMeans::Region(region) => Sink::lasting(region.sge_all().at(self.address, length)),
        }
    }

    /// Gives it up: no read fills the memory when this has ended.
    pub fn revoke(self) -> Started<()> {
        match self.means {
            SinkMeans::FastRegister { key, .. } => plain(key.deregister()),
            SinkMeans::Region(region) => plain(region.deregister()),
        }
    }
}

fn after<T: std::marker::Send + 'static, U: std::marker::Send + 'static>(
    pd: &Pd,
    first: Started<T>,
    then: impl FnOnce(T) -> U + std::marker::Send + 'static,
) -> Started<U> {
    let (started, outcome) = pd.context().begin();
    first.on_done(move |result| outcome.complete(result.map(then)));
    started
}

fn plain<T: std::marker::Send + 'static>(
    started: Started<(), crate::DestroyError<T>>,
) -> Started<()> {
    let (plain, completer) = Started::pending();
    started.on_done(move |result| {
        completer.complete(result.map_err(crate::DestroyError::into_verb_error));
    });
    plain
}

fn page_list(memory: &MemoryRange, limits: &Limits) -> Result<PageList, VerbError> {
    const PAGE: u64 = 4096;
    let lowest = limits.page_size_cap & limits.page_size_cap.wrapping_neg();
    let page = if limits.page_size_cap & PAGE != 0 {
        PAGE
    } else {
        lowest
    };
    let max = limits.max_fast_reg_page_list_len;
    let mapped = PageList::map(std::slice::from_ref(memory), page, max)
        .map_err(|error| VerbError::argument("memory", error))?;
    if mapped.elements == 0 {
        let wanted = (memory.len() as u64).div_ceil(page) + 1;
        limits
            .check(Limit::MaxFastRegPageListLen, wanted)
            .map_err(VerbError::Limit)?;
        return Err(VerbError::argument("memory", "does not fit into one key"));
    }
    Ok(mapped.list)
}

/// The rights that memory needs to be the sink of reads, and what they expose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSinkAccess {
    /// The rights.
    pub access: Access,
    /// What they expose beyond the read itself, if anything.
    pub exposes: Option<&'static str>,
}

impl fmt::Display for ReadSinkAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(&self.access, &mut *f)?;
        write!(f, ": {}", self.exposes.unwrap_or("exposes nothing"))
    }
}

/// The rights that memory needs on this device to be the sink of reads.
///
/// InfiniBand needs local write. iWARP needs remote write as well, because the sink's key travels
/// with the request: while it is registered, the peer may write the sink whenever it likes.
///
/// ```no_run
/// # fn example(device: &verbs_api::Context, pd: &verbs_api::Pd, memory: &verbs_api::Memory)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::portable::read_sink_access;
/// let sink = read_sink_access(device);
/// println!("{sink}"); // the rights, and what they expose
/// let region = pd.register(memory, sink.access).wait()?;
/// # Ok(())
/// # }
/// ```
pub fn read_sink_access(context: &Context) -> ReadSinkAccess {
    sink_access(context.attributes().gaps)
}

fn sink_access(gaps: BaselineGaps) -> ReadSinkAccess {
    if gaps.contains(BaselineGaps::READ_SINK_NEEDS_REMOTE_WRITE) {
        ReadSinkAccess {
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            exposes: Some("the peer of the connection may write the sink until its key is dead"),
        }
    } else {
        ReadSinkAccess {
            access: Access::LOCAL_WRITE,
            exposes: None,
        }
    }
}

// The handles that a prepared access holds are shared between threads.
const _: fn() = || {
    fn shared<T: std::marker::Send + Sync>() {}
    shared::<Arc<RemoteAccess>>();
    shared::<Arc<ReadSink>>();
};
