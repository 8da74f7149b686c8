//! Portable operations: the same for every device, and posted as the requests that the device supports.
//!
//! One function converts an operation to requests; posting uses its result and a [`Plan`] prints it, so that the plan is
//! what will be executed. Each portable operation completes with one completion that carries the program's `wr_id`, on
//! every device, also when it fails.

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

/// The features that portable operations use where a device has them: a program that posts such operations prefers them.
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

/// The largest number of send queue entries that one portable operation takes.
pub(crate) const MAX_SLOTS: u32 = 2;

/// The one or two work requests that a portable operation is posted as on a device.
pub struct Lowered<'a> {
    pub(crate) first: WorkRequest<'a>,
    pub(crate) second: Option<WorkRequest<'a>>,
}

impl<'a> Lowered<'a> {
    /// Creates it from one request, which completes with `wr_id`.
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

    /// Creates it from two requests: the second waits for the first, and completes for both with `wr_id`.
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

    /// Lets the requests complete with this `wr_id`.
    pub(crate) fn with_wr_id(mut self, wr_id: u64) -> Self {
        self.first.common_mut().wr_id = wr_id;
        if let Some(second) = &mut self.second {
            second.common_mut().wr_id = wr_id;
        }
        self
    }

    /// Returns the requests in the order in which they are posted.
    pub fn requests(&self) -> impl Iterator<Item = &WorkRequest<'a>> {
        std::iter::once(&self.first).chain(&self.second)
    }
}

/// An operation that can be posted on every device, as different requests depending on the device's features.
pub trait Portable {
    /// Returns the operation's name, as the command `polyverbs plan` takes it.
    fn name(&self) -> &'static str;

    /// Returns the requests that the operation is posted as if these features were granted.
    ///
    /// # Errors
    /// The missing features, without which the operation cannot be expressed.
    fn lower(&self, features: Features) -> Result<Lowered<'_>, PostReason>;

    /// Returns the name of the control verb that has to be called before; `None` if there is none.
    fn control_verb(&self) -> Option<&'static str> {
        None
    }
}

/// One request of a [`Plan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanStep {
    /// The operation of the request.
    pub operation: Operations,
    /// The flags of the request.
    pub flags: SendFlags,
}

/// The requests that a portable operation is posted as on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Name of the portable operation.
    pub operation: &'static str,
    /// The control verb that has to be called before; `None` if there is none.
    pub control_verb: Option<&'static str>,
    /// The requests, in the order in which they are posted.
    pub steps: Vec<PlanStep>,
}

impl Plan {
    /// Returns the plan of `operation` for a device on which these features were granted.
    ///
    /// # Errors
    /// The missing features, without which the operation cannot be expressed.
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

    /// Returns how many entries of the send queue the operation takes.
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
    /// Returns the plan of `operation` with the features that this context was granted.
    ///
    /// # Errors
    /// The missing features, without which the operation cannot be expressed.
    pub fn plan(&self, operation: &impl Portable) -> Result<Plan, PostReason> {
        Plan::of(operation, self.features())
    }
}

/// Returns the operations that a queue pair must be created for so that portable operations can be posted to it, if these
/// features were granted.
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

/// With any of these features there are keys that requests and messages can invalidate.
const INVALIDATED: Features = Features::BMME.union(Features::WINDOW_2);

/// The local memory that a [`ReadAndInvalidate`] reads into.
///
/// [`MrKey::sink`] makes one, whose key must be registered anew for each use, or [`ReadSink::sink`].
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
    /// Makes a sink of this range. `rkey` is the key that is invalidated after the read.
    pub const fn new(sge: Sge, rkey: RKey) -> Self {
        let rkey = Some(rkey);
        Self { sge, rkey }
    }

    /// Makes a sink of this range, whose key is not invalidated after the read.
    pub const fn lasting(sge: Sge) -> Self {
        Self { sge, rkey: None }
    }
}

impl MrKey {
    /// Returns a range that the key was registered for as the sink of a [`ReadAndInvalidate`].
    pub fn sink(&self, addr: u64, length: u32) -> Sink {
        Sink::new(self.sge(addr, length), self.rkey())
    }
}

/// Reads remote memory and then invalidates the key of the *local* sink, when the last byte has been placed.
///
/// It is posted as a read-with-invalidate where the device has that (iWARP), else as a read and a fenced local invalidate.
/// If the sink's key is not to be invalidated ([`Sink::lasting`]), it is only a read.
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
    /// Reads as many bytes from `remote` as `sink` holds.
    pub const fn new(remote: RemoteAddress, sink: &Sink) -> Self {
        Self {
            remote,
            sink: *sink,
            wr_id: 0,
        }
    }

    /// Sets the identifier that the completion returns.
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

/// Sends a message that also invalidates a key of the peer if this device supports send-with-invalidate; otherwise only the
/// message.
///
/// The peer's completion reports whether the key was invalidated
/// ([`invalidated_rkey`](crate::Completion::invalidated_rkey)); if not, the peer invalidates it itself with
/// [`RemoteAccess::invalidation`]. The key is `None` if it cannot be invalidated, as that of a plain region.
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
    /// Sends these bytes, inline, and invalidates `rkey`, a key of the peer.
    pub const fn new(data: &'a [u8], rkey: Option<RKey>) -> Self {
        Self {
            data,
            rkey,
            wr_id: 0,
        }
    }

    /// Sets the identifier that the completion returns.
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

/// Gives peers access to memory under a fresh key. [`RemoteAccess::register`] makes one.
///
/// It is posted as a fast-register where the device has that, else as the bind of a type-2 window. Otherwise, if the
/// program allowed it, a plain region is registered beforehand, and an empty write is posted whose completion stands for
/// the operation's.
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
    /// Returns the operation without memory, to make a [`Plan`] for a device with these features.
    ///
    /// # Errors
    /// The device has none of the features that the operation can use.
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

    /// Sets the identifier that the completion returns.
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

/// Memory to which a program repeatedly gives peers access, in the best way that the device supports.
///
/// Open the device with [`FEATURES`], make the queue pair with [`reserve_portable`](crate::QpOptions::reserve_portable),
/// and connect it with the same rights.
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
    /// Prepares to give peers access to `memory` with these rights.
    ///
    /// `allow_plain_region` permits a plain region on a device that has neither fast-register nor type-2 windows: peers
    /// that know its key have access from then on, until [`revoke`](Self::revoke) deregisters it.
    ///
    /// # Errors
    /// The features granted do not suffice, or the memory is too large for one key.
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

    /// Returns the operation that gives peers access under a fresh key, to be posted with
    /// [`Qp::post_portable`](crate::Qp::post_portable). The previous key must have been invalidated before, by the peer or
    /// by [`invalidation`](Self::invalidation).
    pub fn register(&self) -> RegisterForRemoteAccess<'_> {
        self.opened(None)
    }

    /// Returns an operation like [`register`](Self::register) for the first `length` bytes only. For a plain region the
    /// length has no effect.
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

    /// Returns the address and key to send to the peer. They are valid once the operation of [`register`](Self::register)
    /// has completed, and for requests that are posted after it to the same queue pair.
    pub fn remote(&self) -> RemoteAddress {
        RemoteAddress::new(self.address, self.rkey())
    }

    /// Returns the request that ends the access; `None` for a plain region, whose access only [`revoke`](Self::revoke)
    /// ends.
    pub fn invalidation(&self) -> Option<LocalInvalidate<'static>> {
        let posted = !matches!(self.means, Means::Region(_));
        posted.then(|| LocalInvalidate::new(self.rkey()))
    }

    /// Ends the access for good and destroys the keys: when the returned verb has ended, peers have no access.
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

/// Memory that RDMA reads fill. If the device has keys that can be invalidated after one use, the memory is registered anew
/// for each read. Otherwise it is a region, which peers can access only if the transport requires that of the local memory
/// of a read.
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
    /// Returns a sink without memory, as it would be on this device, to make a [`Plan`].
    pub fn outline(context: &Context) -> Sink {
        match has_keys_for_one_read(context.features()) {
            true => Sink::default(),
            false => Sink::lasting(Sge::default()),
        }
    }

    /// Prepares `memory` to be filled by reads.
    ///
    /// `allow_plain_region` permits a region that peers who know its key may write from then on, on a device that needs
    /// this for reads and has no keys that can be invalidated after one use.
    ///
    /// # Errors
    /// The features granted do not suffice, or the memory is too large for one key.
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

    /// Returns the request to post before each read of at most `length` bytes: the registration under a fresh key. `None`
    /// if the memory is a region that stays registered.
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

    /// Returns the first `length` bytes as the sink of a [`ReadAndInvalidate`].
    pub fn sink(&self, length: u32) -> Sink {
        match &self.means {
            SinkMeans::FastRegister { key, .. } => key.sink(self.address, length),
            SinkMeans::Region(region) => Sink::lasting(region.sge_all().at(self.address, length)),
        }
    }

    /// Deregisters the memory: when the returned verb has ended, no read can fill it.
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

/// The access rights that the local memory of RDMA reads needs, and what they permit a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSinkAccess {
    /// The access rights that the memory needs.
    pub access: Access,
    /// What the rights permit a peer beyond answering the read; `None` if nothing.
    pub exposes: Option<&'static str>,
}

impl fmt::Display for ReadSinkAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(&self.access, &mut *f)?;
        write!(f, ": {}", self.exposes.unwrap_or("exposes nothing"))
    }
}

/// Returns the access rights that the local memory of RDMA reads needs on this device.
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
