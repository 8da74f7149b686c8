//! Resolution of names that an event of the identifier reports, and events of the program's own.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::mem;
use std::sync::Arc;

use polyverbs_libibverbs::errno::Errno;
use verbs_api::provider::{errno_of, start_thread};

use crate::abi::{RdmaAddrinfo, RdmaCmId, event};
use crate::errno::done;
use crate::info::{self, DNS, Hints, SA};
use crate::state::{Data, Inner, Lookup};
use crate::{events, id};

/// The arguments of `rdma_resolve_addrinfo`: copies, because the program may free its own before the name is resolved.
struct Question {
    node: Option<CString>,
    service: Option<CString>,
    hints: Option<Hints>,
}

impl Question {
    /// Copies the arguments.
    ///
    /// # Errors
    /// There is nothing to resolve; the flags are unknown; only a subnet manager could resolve it, of which there is none.
    unsafe fn read(
        node: *const c_char,
        service: *const c_char,
        hints: *const RdmaAddrinfo,
    ) -> Result<Self, Errno> {
        // SAFETY: as the caller promises.
        let flags = unsafe { hints.as_ref() }.map_or(0, |hints| hints.ai_flags);
        if flags & SA != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if flags & !(info::FLAGS | DNS) != 0
            || node.is_null() && service.is_null() && hints.is_null()
        {
            return Err(Errno::INVAL);
        }
        let text = |at: *const c_char| {
            // SAFETY: null, or a string, as the caller promises.
            (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_owned())
        };
        Ok(Self {
            node: text(node),
            service: text(service),
            // SAFETY: as the caller promises.
            hints: unsafe { Hints::copy(hints) }?,
        })
    }

    fn answer(&self) -> Result<info::Resolved, Errno> {
        let pointer =
            |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
        let hints = self.hints.as_ref().map(Hints::get);
        // SAFETY: strings and hints of this structure.
        unsafe { info::resolve(pointer(&self.node), pointer(&self.service), hints) }
    }
}

fn report(inner: &Arc<Inner>, answer: Result<info::Resolved, Errno>) {
    let mut state = inner.lock();
    let (kind, status, lookup) = match answer {
        Ok(resolved) => (event::ADDRINFO_RESOLVED, 0, Lookup::Done(resolved)),
        Err(errno) => (event::ADDRINFO_ERROR, -errno.0, Lookup::Idle),
    };
    let before = mem::replace(&mut state.lookup, lookup);
    drop(state);
    drop(before);
    inner.post(kind, status, Data::None);
}

/// Implements `rdma_resolve_addrinfo`: a thread resolves the name, and an event reports the outcome.
///
/// # Safety
/// `node` and `service` are null or strings, `hints` is null or readable, and the identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn resolve_addrinfo(
    id: *mut RdmaCmId,
    node: *const c_char,
    service: *const c_char,
    hints: *const RdmaAddrinfo,
) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|(public, own)| {
        // SAFETY: as the caller promises.
        let question = unsafe { Question::read(node, service, hints) }?;
        let mut state = own.inner.lock();
        if !matches!(state.lookup, Lookup::Idle) {
            return Err(Errno::BUSY);
        }
        state.lookup = Lookup::Running;
        drop(state);
        let inner = Arc::clone(&own.inner);
        let thread = start_thread("addrinfo", move || report(&inner, question.answer()));
        if let Err(error) = thread {
            own.inner.lock().lookup = Lookup::Idle;
            return Err(Errno(errno_of(&error)));
        }
        // SAFETY: as the caller promises.
        unsafe { events::complete(public, own) }
    }))
}

/// Implements `rdma_query_addrinfo`: hands the result of `rdma_resolve_addrinfo` to the program, once.
///
/// # Safety
/// `info` is null or writable, and the identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn query_addrinfo(
    id: *mut RdmaCmId,
    info: *mut *mut RdmaAddrinfo,
) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|(_, own)| {
        // SAFETY: as the caller promises.
        let place = unsafe { info.as_mut() }.ok_or(Errno::INVAL)?;
        let mut state = own.inner.lock();
        match mem::take(&mut state.lookup) {
            Lookup::Done(resolved) => {
                *place = resolved.into_raw();
                Ok(())
            }
            other => {
                state.lookup = other;
                Err(Errno(libc::ENOENT))
            }
        }
    }))
}

/// Implements `rdma_write_cm_event`: an event of the program's own, which wakes a thread that waits at the channel.
///
/// # Safety
/// The identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn write_event(
    id: *mut RdmaCmId,
    kind: c_int,
    status: c_int,
    argument: u64,
) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|(_, own)| {
        if kind != event::USER {
            return Err(Errno::INVAL);
        }
        own.inner.post(kind, status, Data::User(argument));
        Ok(())
    }))
}
