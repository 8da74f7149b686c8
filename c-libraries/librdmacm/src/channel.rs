//! Event channels, and the events that programs fetch from them.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;

use polyverbs_libibverbs::errno::{Errno, pointer};
use polyverbs_libibverbs::events::Events;
use polyverbs_libibverbs::object::Object;

use crate::abi::{RdmaCmEvent, RdmaEventChannel};
use crate::errno::done;
use crate::state::{Inner, Queued};

/// An event channel: its public structure and the library's part, the queue of events.
type ChannelObject = Object<RdmaEventChannel, Arc<Events<Queued>>>;

/// A fetched event: its public structure and the library's part.
type EventObject = Object<RdmaCmEvent, Fetched>;

struct Fetched {
    of: Arc<Inner>,
    // The private data that the public structure points to.
    _private_data: Box<[u8]>,
}

/// Creates an event channel.
///
/// # Errors
/// The process cannot open further files.
pub fn make() -> Result<*mut RdmaEventChannel, Errno> {
    let events = Arc::new(Events::new()?);
    Ok(ChannelObject::create(
        RdmaEventChannel { fd: events.fd() },
        events,
    ))
}

/// The queue of events of the program's channel.
///
/// # Errors
/// The pointer is null, or the channel was destroyed.
///
/// # Safety
/// The channel is not destroyed during the call.
pub unsafe fn events(channel: *const RdmaEventChannel) -> Result<Arc<Events<Queued>>, Errno> {
    // SAFETY: as the caller promises.
    unsafe { ChannelObject::own(channel) }.cloned()
}

/// Implements `rdma_create_event_channel`.
pub extern "C-unwind" fn create() -> *mut RdmaEventChannel {
    pointer(make())
}

/// Implements `rdma_destroy_event_channel`.
///
/// # Safety
/// The program does not use the structure after this call.
pub unsafe extern "C-unwind" fn destroy(channel: *mut RdmaEventChannel) {
    let end = |events: &Arc<Events<Queued>>| {
        // Connection requests that the program has not fetched are refused.
        for queued in events.take(|_| true) {
            queued.of.acknowledged();
        }
        Ok(())
    };
    // SAFETY: as the caller promises.
    if let Err(errno) = unsafe { ChannelObject::end(channel, end) } {
        errno.set();
    }
}

/// Makes the structure of an event that the program fetches. Until the program acknowledges the event, the identifier and
/// the private data of the event stay valid.
pub(crate) fn make_event(
    of: Arc<Inner>,
    mut public: RdmaCmEvent,
    private_data: Box<[u8]>,
) -> *mut RdmaCmEvent {
    if !private_data.is_empty() {
        // The parameters of both kinds of service begin with the private data.
        public.param.conn.private_data = private_data.as_ptr().cast();
        public.param.conn.private_data_len = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
    }
    let fetched = Fetched {
        of,
        _private_data: private_data,
    };
    EventObject::create(public, fetched)
}

/// Implements `rdma_ack_cm_event`.
///
/// # Safety
/// The event is not used any more.
pub unsafe extern "C-unwind" fn ack_event(event: *mut RdmaCmEvent) -> c_int {
    let mut of = None;
    let end = |fetched: &Fetched| {
        of = Some(Arc::clone(&fetched.of));
        Ok(())
    };
    // SAFETY: as the caller promises.
    let ended = unsafe { EventObject::end(event, end) };
    if let Some(of) = of {
        of.acknowledged();
    }
    done(ended)
}
