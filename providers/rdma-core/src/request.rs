//! Requests in the form of the C interface.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use arrayvec::ArrayVec;
use polyverbs_abi::{
    Atomic, BindMw, IbvAh, IbvMr, IbvMw, IbvMwBind, IbvMwBindInfo, IbvQp, IbvRecvWr, IbvSendWr,
    IbvSge, Rdma, SendWr, Ud, send_flags, wr_opcode,
};
use verbs_api::capability::Features;
use verbs_api::provider::{AhOps, MrOps, MwOps, Operation as _, own_in_layers};
use verbs_api::wr::{
    BindWindow, Data, Operations, PostReason, ReceiveRequest, RemoteAddress, SendFlags, Sge,
    UdDestination, WorkRequest,
};
use verbs_api::{Access, RKey, VerbError};

use crate::address_handle::AddressHandle;
use crate::region::Region;
use crate::verbs::{Held, Live, Poster, Zero as _};
use crate::window::{Bound, Window};

/// The operations that this provider can express in the C interface.
pub(crate) const OPERATIONS: Operations = Operations::BASELINE
    .union(Operations::LOCAL_INV)
    .union(Operations::SEND_WITH_INV)
    .union(Operations::BIND_MW);

const FLAGS: SendFlags = SendFlags::FENCE
    .union(SendFlags::SIGNALED)
    .union(SendFlags::SOLICITED);

const _: () = assert!(
    SendFlags::FENCE.bits() as u32 == send_flags::FENCE
        && SendFlags::SIGNALED.bits() as u32 == send_flags::SIGNALED
        && SendFlags::SOLICITED.bits() as u32 == send_flags::SOLICITED
);

/// The largest number of requests that one doorbell posts.
pub(crate) const LONGEST: usize = 16;

/// Keeps an object that a list of requests names from being destroyed before the list is posted.
#[expect(dead_code, reason = "their existence keeps the objects alive")]
enum Hold {
    Ah(Held<IbvAh>),
    Mr(Held<IbvMr>),
    Mw(Held<IbvMw>),
}

type Holds = ArrayVec<Hold, { 2 * LONGEST }>;

/// A linked list of at most `LEN` requests in the form of C, which one doorbell posts.
pub(crate) struct Chain<'r, const LEN: usize> {
    requests: ArrayVec<IbvSendWr, LEN>,
    /// One scatter/gather entry for each request with inline data.
    inline: ArrayVec<IbvSge, LEN>,
    held: Holds,
    of: PhantomData<&'r ()>,
}

impl<'r, const LEN: usize> Chain<'r, LEN> {
    #[inline]
    pub(crate) fn new() -> Self {
        Self {
            requests: ArrayVec::new(),
            inline: ArrayVec::new(),
            held: Holds::new(),
            of: PhantomData,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Adds a request; `number` becomes its `wr_id` in the library.
    ///
    /// # Errors
    /// An object that the request names is destroyed or belongs to another provider, or the provider cannot express the request
    /// in C.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        request: &'r WorkRequest<'_>,
        number: u64,
        is_signaled: bool,
    ) -> Result<(), PostReason> {
        let place = self.requests.len();
        self.requests.push(IbvSendWr::zero());
        let filled = self.fill(place, request, number, is_signaled);
        if filled.is_err() {
            self.requests.truncate(place);
        }
        filled
    }

    #[inline(always)]
    fn fill(
        &mut self,
        place: usize,
        request: &'r WorkRequest<'_>,
        number: u64,
        is_signaled: bool,
    ) -> Result<(), PostReason> {
        let wr = &mut self.requests[place];
        wr.wr_id = number;
        wr.send_flags = flags_in_c(request.common().flags, is_signaled);
        // Requests of XRC initiators carry this attribute. Other requests carry 0, which is ignored.
        wr.remote_srqn = request.common().attribute_value();
        match fill(wr, request)? {
            Named::Nothing => {}
            Named::Destination(to) => {
                let handle: Arc<AddressHandle> =
                    own_in_layers(to.ah.ops(), "ah", <dyn AhOps>::inner)
                        .map_err(|_| PostReason::ForeignAh)?;
                let held = gone(handle.ah.hold())?;
                wr.wr.ud = Ud {
                    ah: held.pointer(),
                    remote_qpn: to.remote_qpn.value(),
                    remote_qkey: to.remote_qkey,
                };
                self.held.push(Hold::Ah(held));
            }
            Named::Window(bind) => {
                let (mw, bind_info) = named_by(bind, &mut self.held)?;
                wr.bind_mw = BindMw {
                    mw,
                    rkey: bind.key().value(),
                    bind_info,
                };
            }
        }
        match request.data() {
            Data::Inline(bytes) => {
                wr.send_flags |= send_flags::INLINE;
                wr.num_sge = 1;
                self.inline.push(inline_entry(bytes));
            }
            data => {
                let entries = entries_of(data.sges().list);
                (wr.sg_list, wr.num_sge) = (entries.as_ptr(), entries.len() as c_int);
            }
        }
        Ok(())
    }

    /// Posts the requests of the list.
    ///
    /// # Errors
    /// The error number of the refusal, and how many requests were posted before it.
    ///
    /// # Safety
    /// The queue pair is alive.
    #[inline(always)]
    pub(crate) unsafe fn post(
        &mut self,
        poster: &Poster<IbvQp, IbvSendWr>,
    ) -> Result<(), (c_int, usize)> {
        let mut inline = self.inline.as_ptr();
        let first = self.requests.as_mut_ptr();
        let len = self.requests.len();
        if len == 0 {
            return Ok(());
        }
        for (index, wr) in self.requests.iter_mut().enumerate() {
            if wr.send_flags & send_flags::INLINE != 0 {
                wr.sg_list = inline;
                inline = inline.wrapping_add(1);
            }
            if index + 1 < len {
                wr.next = first.wrapping_add(index + 1);
            }
        }
        // SAFETY: the queue pair is alive; entries and inline bytes belong to requests that are alive, and the other objects are
        // held.
        let posted = unsafe { poster.post(first) };
        posted.map_err(|(errno, bad)| (errno, place_of(bad, first, len)))
    }
}

/// Returns the index of an element of an array of `len` elements at `first`; 0 if the pointer is to none of them.
fn place_of<T>(element: *const T, first: *const T, len: usize) -> usize {
    let distance = element.addr().wrapping_sub(first.addr()) / size_of::<T>();
    if distance < len { distance } else { 0 }
}

/// Binds a window of type 1; `number` becomes the request's `wr_id` in the library.
///
/// # Errors
/// Why this provider refuses the bind. If the library refuses it, the error number is the result instead.
pub(crate) fn bind_mw(
    qp: &Live<IbvQp>,
    bind: &BindWindow<'_>,
    number: u64,
    is_signaled: bool,
) -> Result<c_int, PostReason> {
    let mut held = Holds::new();
    let (mw, bind_info) = named_by(bind, &mut held)?;
    let mut bind = IbvMwBind {
        wr_id: number,
        send_flags: flags_in_c(bind.common().flags, is_signaled),
        bind_info,
    };
    // SAFETY: window and region are held.
    gone(unsafe { qp.bind_mw(mw, &mut bind) })
}

/// Returns this provider's window of a bind.
///
/// # Errors
/// The window belongs to another provider.
pub(crate) fn window_of(bind: &BindWindow<'_>) -> Result<Arc<Window>, PostReason> {
    let window = bind.mw().ok_or(PostReason::NoWindow)?;
    own_in_layers(window, "mw", <dyn MwOps>::inner).map_err(|_| PostReason::InvalidHandle)
}

fn region_of(bind: &BindWindow<'_>) -> Result<Option<Arc<Region>>, PostReason> {
    let region = bind
        .mr()
        .map(|mr| own_in_layers(mr, "mr", <dyn MrOps>::inner));
    region.transpose().map_err(|_| PostReason::InvalidHandle)
}

/// Returns the change that a bind makes to its window when it succeeds. `rkey` is the window's new key; `None` if the
/// library chooses it.
///
/// # Errors
/// The bind names objects of another provider.
pub(crate) fn bound(bind: &BindWindow<'_>, rkey: Option<RKey>) -> Result<Bound, PostReason> {
    Ok(Bound {
        window: window_of(bind)?,
        region: region_of(bind)?,
        rkey,
    })
}

/// Checks a bind, because the library takes a region instead of its key, and devices may ignore rights that windows cannot have.
fn check_bind(bind: &BindWindow<'_>) -> Result<(), PostReason> {
    if !Access::REMOTE.contains(bind.access) {
        return Err(PostReason::IllegalAccess("a window grants remote rights"));
    }
    let region = region_of(bind)?;
    match region.is_none_or(|region| region.lkey() == bind.region_key()) {
        true => Ok(()),
        false => Err(PostReason::InvalidHandle),
    }
}

/// Returns the window and the region of a bind, kept from being destroyed.
fn named_by(
    bind: &BindWindow<'_>,
    held: &mut Holds,
) -> Result<(*mut IbvMw, IbvMwBindInfo), PostReason> {
    if bind.access.contains(Access::ZERO_BASED) {
        let missing = Features::ZBVA;
        return Err(PostReason::Unsupported { missing });
    }
    check_bind(bind)?;
    let window = window_of(bind)?;
    let mr = match region_of(bind)? {
        Some(region) => gone(region.shared.mr.hold())?,
        None => gone(window.null_region.hold())?,
    };
    let info = IbvMwBindInfo {
        mr: mr.pointer(),
        addr: bind.addr,
        length: bind.length,
        mw_access_flags: bind.access.bits(),
    };
    held.push(Hold::Mr(mr));
    let mw = gone(window.mw.hold())?;
    let pointer = mw.pointer();
    held.push(Hold::Mw(mw));
    Ok((pointer, info))
}

/// The object that a request refers to by a pointer of the library.
enum Named<'r> {
    Nothing,
    Destination(&'r UdDestination),
    Window(&'r BindWindow<'r>),
}

impl<'r> From<Option<&'r UdDestination>> for Named<'r> {
    fn from(destination: Option<&'r UdDestination>) -> Self {
        destination.map_or(Self::Nothing, Self::Destination)
    }
}

fn flags_in_c(flags: SendFlags, is_signaled: bool) -> u32 {
    let signaled = if is_signaled { send_flags::SIGNALED } else { 0 };
    u32::from((flags & FLAGS).bits()) | signaled
}

/// Fills in the operation of a request and the fields that depend on it. Returns the object that the request refers to by a
/// pointer.
#[inline(always)]
fn fill<'r>(wr: &mut IbvSendWr, request: &'r WorkRequest<'_>) -> Result<Named<'r>, PostReason> {
    let atomic = |remote: RemoteAddress, compare_add, swap| SendWr {
        atomic: Atomic {
            remote_addr: remote.addr,
            compare_add,
            swap,
            rkey: remote.rkey.value(),
        },
    };
    let mut named = Named::Nothing;
    match request {
        WorkRequest::Send(send) => {
            wr.opcode = wr_opcode::SEND;
            named = send.destination.into();
        }
        WorkRequest::SendWithImmediate(send) => {
            wr.opcode = wr_opcode::SEND_WITH_IMM;
            wr.imm_data = u32::from_ne_bytes(send.imm);
            named = send.destination.into();
        }
        WorkRequest::SendWithInvalidate(send) => {
            wr.opcode = wr_opcode::SEND_WITH_INV;
            // The key to invalidate is in the field of the immediate data.
            wr.imm_data = send.rkey.value();
        }
        WorkRequest::Write(write) => {
            wr.opcode = wr_opcode::RDMA_WRITE;
            wr.wr = rdma(write.remote);
        }
        WorkRequest::WriteWithImmediate(write) => {
            wr.opcode = wr_opcode::RDMA_WRITE_WITH_IMM;
            wr.imm_data = u32::from_ne_bytes(write.imm);
            wr.wr = rdma(write.remote);
        }
        WorkRequest::Read(read) => {
            wr.opcode = wr_opcode::RDMA_READ;
            wr.wr = rdma(read.remote);
        }
        WorkRequest::CompareSwap(swap) => {
            wr.opcode = wr_opcode::ATOMIC_CMP_AND_SWP;
            wr.wr = atomic(swap.remote, swap.compare, swap.swap);
        }
        WorkRequest::FetchAdd(add) => {
            wr.opcode = wr_opcode::ATOMIC_FETCH_AND_ADD;
            wr.wr = atomic(add.remote, add.add, 0);
        }
        WorkRequest::LocalInvalidate(invalidate) => {
            wr.opcode = wr_opcode::LOCAL_INV;
            wr.imm_data = invalidate.key.value();
        }
        WorkRequest::BindWindow(bind) => {
            wr.opcode = wr_opcode::BIND_MW;
            named = Named::Window(bind);
        }
        other => {
            let missing = other.operation();
            return Err(PostReason::OperationNotEnabled { missing });
        }
    }
    Ok(named)
}

fn rdma(remote: RemoteAddress) -> SendWr {
    SendWr {
        rdma: Rdma {
            remote_addr: remote.addr,
            rkey: remote.rkey.value(),
        },
    }
}

/// Reinterprets the entries in the form of C, which has the same layout.
fn entries_of(list: &[Sge]) -> &[IbvSge] {
    // SAFETY: both types are an address, a length and a key at the same offsets.
    unsafe { std::slice::from_raw_parts(list.as_ptr().cast(), list.len()) }
}

fn inline_entry(octets: &[u8]) -> IbvSge {
    IbvSge {
        addr: octets.as_ptr().expose_provenance() as u64,
        length: octets.len() as u32,
        lkey: 0,
    }
}

/// Converts the error for a destroyed object to the reason for a refused request.
fn gone<T>(used: Result<T, VerbError>) -> Result<T, PostReason> {
    used.map_err(|_| PostReason::InvalidHandle)
}

/// A linked list of receives in the form of C, which one doorbell posts.
pub(crate) struct ReceiveChain<'r> {
    requests: ArrayVec<IbvRecvWr, LONGEST>,
    of: PhantomData<&'r ()>,
}

impl<'r> ReceiveChain<'r> {
    pub(crate) fn new() -> Self {
        Self {
            requests: ArrayVec::new(),
            of: PhantomData,
        }
    }

    /// Adds a receive; `number` becomes its `wr_id` in the library. The caller adds at most [`LONGEST`].
    pub(crate) fn push(&mut self, request: &'r ReceiveRequest<'_>, number: u64) {
        let entries = entries_of(request.data.sges().list);
        self.requests.push(IbvRecvWr {
            wr_id: number,
            next: ptr::null_mut(),
            sg_list: entries.as_ptr(),
            num_sge: entries.len() as c_int,
        });
    }

    /// Returns the `wr_id`s of the receives from `index` on.
    pub(crate) fn numbers_from(&self, index: usize) -> impl Iterator<Item = u64> + '_ {
        self.requests[index..].iter().map(|wr| wr.wr_id)
    }

    /// Posts the receives of the list.
    ///
    /// # Errors
    /// The error number of the refusal, and how many receives were posted before it.
    ///
    /// # Safety
    /// The queue is alive.
    pub(crate) unsafe fn post<Q>(
        &mut self,
        poster: &Poster<Q, IbvRecvWr>,
    ) -> Result<(), (c_int, usize)> {
        let (first, len) = (self.requests.as_mut_ptr(), self.requests.len());
        if len == 0 {
            return Ok(());
        }
        for (index, wr) in self
            .requests
            .iter_mut()
            .enumerate()
            .take(len.saturating_sub(1))
        {
            wr.next = first.wrapping_add(index + 1);
        }
        // SAFETY: the queue is alive, and the entries belong to requests that are alive.
        let posted = unsafe { poster.post(first) };
        posted.map_err(|(errno, bad)| (errno, place_of(bad, first, len)))
    }
}
