//! Remote memory: the memory that a socket registers for its peers, named by cookies, and RDMA operations on the registered
//! memory of peers.

use std::collections::HashMap;
use std::fmt;
use std::sync::MutexGuard;

use bitflags::bitflags;
use masked_atomics::{MaskedAtomics, MaskedCompareSwap, MaskedFetchAdd};
use polyverbs::capability::AtomicScope;
use polyverbs::ids::RKey;
use polyverbs::portable::read_sink_access;
use polyverbs::provider::Mutex;
use polyverbs::{
    Access, Context, Mr, MrOptions, Pd, PostError, Qp, RemoteAddress, Sge, Transport, wr,
};
use polyverbs_wire::rds::MAX_MESSAGE;

use crate::error::RdsError;
use crate::memory::{LocalMemory, PAGE};
use crate::protocol::{Attached, Notify, Operation};

/// The most ranges of local memory that one RDMA operation may have.
const MOST_PIECES: usize = 128;

bitflags! {
    /// Flags of RDMA operations, atomics and memory registrations, with the values that Linux uses.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RdmaFlags: u64 {
        /// Operation: it writes to the peer's memory; without the flag it reads. Registration: without effect, as with Linux,
        /// where peers may read and write the memory whatever the flag says.
        const READWRITE = 0x01;
        /// Operation: the message that goes with it waits until the operation has completed.
        const FENCE = 0x02;
        /// Registration: peers lose access to the memory as soon as it is freed. Without effect, because they always do; Linux
        /// may keep memory without the flag registered until it has freed more.
        const INVALIDATE = 0x04;
        /// Registration: the memory is freed automatically when a peer reports that it has used it.
        const USE_ONCE = 0x08;
        /// Accepted without effect, as by Linux.
        const DONTWAIT = 0x10;
        /// Operation: the program gets a status when it ends.
        const NOTIFY_ME = 0x20;
        /// Operation: no message is sent with it if the message would have no payload.
        const SILENT = 0x40;
    }
}

/// The name by which peers access registered memory of a socket: its key, and the offset of its first byte in its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cookie(pub u64);

impl Cookie {
    fn new(rkey: u32, offset: u32) -> Self {
        Self(u64::from(rkey) | u64::from(offset) << 32)
    }

    /// The key of the registered memory.
    pub const fn rkey(self) -> u32 {
        self.0 as u32
    }

    /// The offset of the first byte of the memory in its page.
    pub const fn offset(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// The operation or memory registration that goes with a message.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Control {
    /// The message carries only its payload.
    #[default]
    None,
    /// The message carries this cookie of memory that the socket has registered.
    Destination(Cookie),
    /// This memory is registered with these flags, and the message carries its cookie to the peer.
    Map(LocalMemory, RdmaFlags),
    /// The RDMA operation is posted before the message.
    Rdma(RdmaRequest),
    /// The atomic is posted before the message.
    Atomic(AtomicRequest),
}

/// An RDMA write to the peer's memory, or an RDMA read of it.
#[derive(Clone, Debug)]
pub struct RdmaRequest {
    /// The cookie of the peer's memory, which the peer has sent.
    pub cookie: Cookie,
    /// Where the operation begins, in bytes from the beginning of the peer's registered memory.
    pub remote_offset: u64,
    /// The length of the peer's memory that the operation may access, in bytes. The local ranges may not be longer in
    /// total.
    pub remote_length: u64,
    /// The local memory ranges: the source of a write, or the destination of a read.
    pub local: Vec<LocalMemory>,
    /// The flags of the operation, of which [`RdmaFlags::READWRITE`] makes it a write.
    pub flags: RdmaFlags,
    /// The token that identifies the operation in its status.
    pub user_token: u64,
}

/// An atomic operation on eight bytes of the peer's memory.
#[derive(Clone, Debug)]
pub struct AtomicRequest {
    /// The cookie of the peer's memory, which the peer has sent.
    pub cookie: Cookie,
    /// The position of the eight bytes, in bytes from the beginning of the peer's registered memory.
    pub remote_offset: u64,
    /// Eight bytes of local memory that receive the previous value.
    pub local: LocalMemory,
    /// The kind of atomic operation, with its operands.
    pub operation: AtomicOperation,
    /// The flags of the operation.
    pub flags: RdmaFlags,
    /// The token that identifies the operation in its status.
    pub user_token: u64,
}

/// The kind of an atomic operation, with its operands. Masks limit it to some of the 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Adds to the value in the peer's memory.
    FetchAdd {
        /// The number to add.
        add: u64,
        /// The mask of the highest bits of fields that are added separately, so that no carry crosses them; 0 for one field
        /// of 64 bits.
        nocarry_mask: u64,
    },
    /// Replaces the value in the peer's memory if it is equal to `compare`.
    CompareSwap {
        /// The value to compare the peer's value with.
        compare: u64,
        /// The value that is stored if the comparison succeeds.
        swap: u64,
        /// The mask of the bits that are compared.
        compare_mask: u64,
        /// The mask of the bits that are replaced.
        swap_mask: u64,
    },
}

impl AtomicOperation {
    /// Whether the masks select all bits, so that an atomic without masks has the same effect.
    const fn is_plain(self) -> bool {
        match self {
            Self::FetchAdd { nocarry_mask, .. } => nocarry_mask == 0,
            Self::CompareSwap {
                compare_mask,
                swap_mask,
                ..
            } => compare_mask == u64::MAX && swap_mask == u64::MAX,
        }
    }
}

/// The memory that a socket has registered for its peers, by key.
#[derive(Default)]
pub(crate) struct Keys(Mutex<HashMap<u32, Key>>);

struct Key {
    /// The MR, which is deregistered when this is dropped.
    _region: Mr,
    is_used_once: bool,
}

impl Keys {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Key>> {
        self.0.lock()
    }

    /// Registers memory for access by peers and returns its cookie.
    pub(crate) fn map(
        &self,
        context: &Context,
        pd: &Pd,
        memory: &LocalMemory,
        flags: RdmaFlags,
    ) -> Result<Cookie, RdsError> {
        check_length(memory)?;
        if memory.len() > MAX_MESSAGE + PAGE as usize {
            return Err(rdma(
                "more memory than a message may be long",
                libc::EMSGSIZE,
            ));
        }
        check_there(memory, true)?;
        let offset = memory.address() % PAGE;
        let mut access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        if has_atomics(context) {
            access |= Access::REMOTE_ATOMIC;
        }
        let options = MrOptions::new(access).iova(offset);
        let region = memory.register(pd, options).wait()?;
        let rkey = region.rkey().value();
        let key = Key {
            _region: region,
            is_used_once: flags.contains(RdmaFlags::USE_ONCE),
        };
        self.lock().insert(rkey, key);
        Ok(Cookie::new(rkey, offset as u32))
    }

    pub(crate) fn has(&self, cookie: Cookie) -> bool {
        self.lock().contains_key(&cookie.rkey())
    }

    /// Frees registered memory, so that peers can no longer access it.
    pub(crate) fn free(&self, cookie: Cookie) -> Result<(), RdsError> {
        let freed = self.lock().remove(&cookie.rkey());
        freed
            .map(drop)
            .ok_or(rdma("no memory has this cookie", libc::EINVAL))
    }

    /// Handles the report of a peer that it has used the memory with this key: frees the memory if it was registered for a
    /// single use.
    pub(crate) fn used(&self, rkey: u32) {
        let mut keys = self.lock();
        let is_over = keys.get(&rkey).is_some_and(|key| key.is_used_once);
        let freed = if is_over { keys.remove(&rkey) } else { None };
        drop(keys);
        drop(freed);
    }
}

fn has_atomics(context: &Context) -> bool {
    context.attributes().atomic_cap != AtomicScope::None
}

fn rdma(what: &'static str, errno: i32) -> RdsError {
    RdsError::Rdma { what, errno }
}

fn check_length(memory: &LocalMemory) -> Result<(), RdsError> {
    let end = memory.address().checked_add(memory.len() as u64);
    match (memory.len(), end) {
        (0, _) | (_, None) => Err(rdma(
            "memory of no length, or beyond the last address",
            libc::EINVAL,
        )),
        _ => Ok(()),
    }
}

fn check_there(memory: &LocalMemory, is_written: bool) -> Result<(), RdsError> {
    match memory.is_there(is_written) {
        true => Ok(()),
        false => Err(rdma(
            "memory that is not mapped, or may not be accessed so",
            libc::EFAULT,
        )),
    }
}

/// An operation that is ready to be posted, with its registered local memory.
pub(crate) struct Posted {
    kind: Kind,
    /// Whether the completion shows that the peer has executed the operation. False for an RDMA write over iWARP, which
    /// completes as soon as it was sent.
    is_shown: bool,
    /// Keeps the local memory registered for as long as the operation may access it.
    _regions: Vec<Mr>,
}

enum Kind {
    Write(Vec<(Sge, RemoteAddress)>),
    Read(Vec<(Sge, RemoteAddress)>),
    Atomic {
        result: Sge,
        remote: RemoteAddress,
        operation: AtomicOperation,
        /// Whether the atomic is posted as a masked one. Linux does so even if the masks select all bits, and so does this
        /// crate where the device supports masked atomics.
        is_masked: bool,
    },
}

impl RdmaRequest {
    /// Checks the request and registers its local memory, so that it can be posted.
    pub(crate) fn prepare(&self, context: &Context, pd: &Pd) -> Result<Posted, RdsError> {
        match self.local.len() {
            0 => return Err(rdma("an operation without local memory", libc::EINVAL)),
            count if count > MOST_PIECES => {
                return Err(rdma("more than 128 pieces of local memory", libc::EMSGSIZE));
            }
            _ => {}
        }
        self.local.iter().try_for_each(check_length)?;
        if self.remote_length > MAX_MESSAGE as u64 {
            return Err(rdma("more bytes than a message may have", libc::EMSGSIZE));
        }
        let length = self.local.iter().map(|memory| memory.len() as u64);
        if length.sum::<u64>() > self.remote_length {
            return Err(rdma("more local memory than remote memory", libc::EINVAL));
        }
        let is_write = self.flags.contains(RdmaFlags::READWRITE);
        let access = match is_write {
            true => Access::empty(),
            false => read_sink_access(context).access,
        };
        let mut remote = remote(self.cookie, self.remote_offset);
        let (mut pieces, mut regions) = (Vec::new(), Vec::new());
        for memory in &self.local {
            check_there(memory, !is_write)?;
            let region = memory.register(pd, MrOptions::new(access)).wait()?;
            pieces.push((region.sge_all(), remote));
            remote = remote.plus(memory.len() as u64);
            regions.push(region);
        }
        let kind = match is_write {
            true => Kind::Write(pieces),
            false => Kind::Read(pieces),
        };
        let completes_early = is_write && context.attributes().transport == Transport::Iwarp;
        Ok(Posted {
            kind,
            is_shown: !completes_early,
            _regions: regions,
        })
    }
}

impl AtomicRequest {
    /// Checks the request and registers its local memory, so that it can be posted.
    pub(crate) fn prepare(&self, context: &Context, pd: &Pd) -> Result<Posted, RdsError> {
        let is_masked = context.extension::<MaskedAtomics>().is_ok();
        let is_plain = self.operation.is_plain() && has_atomics(context);
        if !is_masked && !is_plain {
            return Err(rdma("the device has no such atomics", libc::EOPNOTSUPP));
        }
        if !self.local.address().is_multiple_of(8) || self.local.len() < 8 {
            return Err(rdma("the result needs eight aligned bytes", libc::EFAULT));
        }
        check_there(&self.local, true)?;
        let options = MrOptions::new(Access::LOCAL_WRITE);
        let region = self.local.register(pd, options).wait()?;
        let result = region.sge(0, 8).expect("the length was checked above");
        let remote = remote(self.cookie, self.remote_offset);
        Ok(Posted {
            kind: Kind::Atomic {
                result,
                remote,
                operation: self.operation,
                is_masked,
            },
            is_shown: true,
            _regions: vec![region],
        })
    }
}

fn remote(cookie: Cookie, offset: u64) -> RemoteAddress {
    let address = u64::from(cookie.offset()).wrapping_add(offset);
    RemoteAddress::new(address, RKey::new(cookie.rkey()))
}

/// Combines the operation with its flags and token, in the form in which a path queues it with a message.
pub(crate) fn attached(
    operation: Posted,
    rkey: Option<u32>,
    flags: RdmaFlags,
    user_token: u64,
    recverr: bool,
) -> Attached<Posted> {
    let notify = match (flags.contains(RdmaFlags::NOTIFY_ME), recverr) {
        (true, _) => Notify::Always,
        (false, true) => Notify::OnError,
        (false, false) => Notify::Never,
    };
    Attached {
        operation,
        rkey,
        fence: flags.contains(RdmaFlags::FENCE),
        is_silent: flags.contains(RdmaFlags::SILENT),
        user_token,
        notify,
    }
}

impl Posted {
    /// Posts the requests of the operation. The last one is signaled and has the number `last`; the ones before it have the
    /// numbers directly below it.
    pub(crate) fn post(&self, qp: &Qp, last: u64) -> Result<(), PostError> {
        let first = last + 1 - u64::from(self.requests());
        let pieces = match &self.kind {
            Kind::Write(pieces) | Kind::Read(pieces) => pieces,
            Kind::Atomic {
                result,
                remote,
                operation,
                is_masked,
            } => return post_atomic(qp, last, *result, *remote, *operation, *is_masked),
        };
        let is_write = matches!(self.kind, Kind::Write(_));
        for (request, (local, remote)) in (first..).zip(pieces) {
            match (is_write, request == last) {
                (true, true) => qp.post_one(wr::Write::new(*local, *remote).signaled(request)),
                (true, false) => qp.post_one(wr::Write::new(*local, *remote).wr_id(request)),
                (false, true) => qp.post_one(wr::Read::new(*local, *remote).signaled(request)),
                (false, false) => qp.post_one(wr::Read::new(*local, *remote).wr_id(request)),
            }?;
        }
        Ok(())
    }
}

fn post_atomic(
    qp: &Qp,
    request: u64,
    result: Sge,
    remote: RemoteAddress,
    operation: AtomicOperation,
    is_masked: bool,
) -> Result<(), PostError> {
    match operation {
        AtomicOperation::FetchAdd { add, .. } if !is_masked => {
            qp.post_one(wr::FetchAdd::new(result, remote, add).signaled(request))
        }
        AtomicOperation::FetchAdd { add, nocarry_mask } => {
            let fetch_add = MaskedFetchAdd::new(remote, add).fields(nocarry_mask);
            qp.post_one(fetch_add.request(result).signaled(request))
        }
        AtomicOperation::CompareSwap { compare, swap, .. } if !is_masked => {
            qp.post_one(wr::CompareSwap::new(result, remote, compare, swap).signaled(request))
        }
        AtomicOperation::CompareSwap {
            compare,
            swap,
            compare_mask,
            swap_mask,
        } => {
            let compare_swap = MaskedCompareSwap::new(remote, compare, swap)
                .compare_mask(compare_mask)
                .swap_mask(swap_mask);
            qp.post_one(compare_swap.request(result).signaled(request))
        }
    }
}

impl Operation for Posted {
    fn requests(&self) -> u32 {
        match &self.kind {
            Kind::Write(pieces) | Kind::Read(pieces) => pieces.len() as u32,
            Kind::Atomic { .. } => 1,
        }
    }

    fn is_shown_by_completion(&self) -> bool {
        self.is_shown
    }
}

impl fmt::Debug for Posted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.kind {
            Kind::Write(_) => "write",
            Kind::Read(_) => "read",
            Kind::Atomic { .. } => "atomic",
        };
        write!(f, "{name} of {} requests", self.requests())
    }
}

#[cfg(test)]
mod tests {
    use polyverbs::emulated::{self, EmulatedOptions};
    use polyverbs::{Memory, Requirements};

    use super::*;

    // covers 4.29
    #[test]
    fn atomics_are_posted_as_masked_atomics() {
        for name in ["ib0", "iw0"] {
            let device = emulated::device(name, &EmulatedOptions::default()).unwrap();
            let all = Requirements::everything_of(&device.attributes());
            let context = device.open(&all).unwrap();
            let pd = context.alloc_pd().wait().unwrap();
            let add = 1;
            let nocarry_mask = 0;
            let asked = AtomicRequest {
                cookie: Cookie(1),
                remote_offset: 0,
                local: Memory::zeroed(8).unwrap().range(0, 8).unwrap().into(),
                operation: AtomicOperation::FetchAdd { add, nocarry_mask },
                flags: RdmaFlags::empty(),
                user_token: 0,
            };
            let posted = asked.prepare(&context, &pd).unwrap();
            let is_masked = matches!(
                posted.kind,
                Kind::Atomic {
                    is_masked: true,
                    ..
                }
            );
            assert!(is_masked, "{name}");
        }
    }
}
