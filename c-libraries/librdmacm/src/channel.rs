//! Channels, and events as programs see them.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;

use polyverbs_libibverbs::errno::{Errno, pointer};
use polyverbs_libibverbs::events::Events;
use polyverbs_libibverbs::object::Object;

use crate::abi::{RdmaCmEvent, RdmaEventChannel};
use crate::errno::done;
use crate::state::{Inner, Queued};

/// The layout of a channel.
type ChannelObject = Object<RdmaEventChannel, Arc<Events<Queued>>>;

/// The layout of an event.
type EventObject = Object<RdmaCmEvent, Fetched>;

struct Fetched {
    of: Arc<Inner>,
    // What the event points to.
    _private_data: Box<[u8]>,
}

/// A new channel.
///
/// # Errors
/// There is no file descriptor left.
pub fn make() -> Result<*mut RdmaEventChannel, Errno> {
    let events = Arc::new(Events::new()?);
    Ok(ChannelObject::create(
        RdmaEventChannel { fd: events.fd() },
        events,
    ))
}

/// The queue behind a program's pointer.
///
/// # Errors
/// The pointer is null, or the channel was destroyed.
///
/// # Safety
/// The channel is not destroyed meanwhile.
pub unsafe fn events(channel: *const RdmaEventChannel) -> Result<Arc<Events<Queued>>, Errno> {
    // SAFETY: as the caller promises.
    unsafe { ChannelObject::own(channel) }.cloned()
}

/// `rdma_create_event_channel`.
pub extern "C-unwind" fn create() -> *mut RdmaEventChannel {
    pointer(make())
}

/// `rdma_destroy_event_channel`.
///
/// # Safety
/// The structure is not used any more.
pub unsafe extern "C-unwind" fn destroy(channel: *mut RdmaEventChannel) {
    let end = |events: &Arc<Events<Queued>>| {
        // Requests that were not fetched are refused.
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

/// An event that a program has fetched: until it is acknowledged, its identifier and what it points to stay valid.
pub(crate) fn make_event(
    of: Arc<Inner>,
    mut public: RdmaCmEvent,
    private_data: Box<[u8]>,
) -> *mut RdmaCmEvent {
    if !private_data.is_empty() {
        // Both kinds of parameters begin with the private data.
        public.param.conn.private_data = private_data.as_ptr().cast();
        public.param.conn.private_data_len = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
    }
    let fetched = Fetched {
        of,
        _private_data: private_data,
    };
    EventObject::create(public, fetched)
}

/// `rdma_ack_cm_event`.
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
