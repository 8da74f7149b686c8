//! Identifiers (`rdma_cm_id`): a program creates one, which becomes a listener, one side of a connection, or a datagram
//! service.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr;
use std::sync::Arc;

use polyverbs_connection::{Connector, PortSpace};
use polyverbs_libibverbs::abi::{IbvGid, qp_type};
use polyverbs_libibverbs::errno::Errno;
use polyverbs_libibverbs::object::Object;
use verbs_api::provider::Mutex;
use verbs_api::{Transport, capability::Mtu, ids::Gid};

use crate::abi::{
    IbvSaPathRec, RdmaAddr, RdmaCmId, RdmaEventChannel, RdmaIbAddr, RdmaRoute, port_space,
};
use crate::channel;
use crate::device::{CmDevice, Service};
use crate::errno::done;
use crate::state::{Inner, Part, Queued};
use crate::{address, groups};

/// An identifier: its public structure and the library's part.
type IdObject = Object<RdmaCmId, Own>;

/// The library's part of an identifier.
pub struct Own {
    /// The state that events and callbacks of the identifier refer to.
    pub inner: Arc<Inner>,
    // The path record that `route.path_rec` points to.
    path: Mutex<Box<IbvSaPathRec>>,
}

/// The public structure and the library's part of an identifier.
///
/// # Errors
/// The pointer is null, or the identifier was destroyed.
///
/// # Safety
/// The identifier is not destroyed while the result is used.
pub unsafe fn own<'a>(id: *mut RdmaCmId) -> Result<(&'a mut RdmaCmId, &'a Own), Errno> {
    // SAFETY: as the caller promises.
    let own = unsafe { IdObject::own(id) }?;
    // SAFETY: live, as was just seen.
    Ok((unsafe { &mut *id }, own))
}

/// The type of an identifier's queue pair, by its port space. In InfiniBand's space the program chooses it, and this is what it has
/// without a choice.
///
/// # Errors
/// There is no such port space.
pub fn qp_type_of(ps: c_int) -> Result<c_int, Errno> {
    match ps {
        port_space::TCP | port_space::IB => Ok(qp_type::RC),
        port_space::UDP | port_space::IPOIB => Ok(qp_type::UD),
        _ => Err(Errno::INVAL),
    }
}

/// The kind of service of an identifier, by its port space and QP type.
pub fn service(of: &RdmaCmId) -> Service {
    let is_of_datagrams = matches!(of.ps, port_space::UDP | port_space::IPOIB);
    match is_of_datagrams || of.qp_type == qp_type::UD {
        true => Service::Datagrams,
        false => Service::Connections,
    }
}

/// The connection manager of a device for the port space of an identifier.
pub fn connector<'a>(of: &RdmaCmId, device: &'a CmDevice) -> &'a Connector {
    device.connector(match of.ps {
        port_space::IB => PortSpace::Ib,
        _ => PortSpace::Ip,
    })
}

fn public_part(
    channel: *mut RdmaEventChannel,
    context: *mut c_void,
    ps: c_int,
    qp_type: c_int,
) -> RdmaCmId {
    RdmaCmId {
        verbs: ptr::null_mut(),
        channel,
        context,
        qp: ptr::null_mut(),
        route: RdmaRoute {
            addr: RdmaAddr {
                src: address::none(),
                dst: address::none(),
                ib: RdmaIbAddr {
                    sgid: IbvGid { raw: [0; 16] },
                    dgid: IbvGid { raw: [0; 16] },
                    pkey: 0,
                },
            },
            path_rec: ptr::null_mut(),
            num_paths: 0,
        },
        ps,
        port_num: 0,
        event: ptr::null_mut(),
        send_cq_channel: ptr::null_mut(),
        send_cq: ptr::null_mut(),
        recv_cq_channel: ptr::null_mut(),
        recv_cq: ptr::null_mut(),
        srq: ptr::null_mut(),
        pd: ptr::null_mut(),
        qp_type,
    }
}

/// Creates an identifier. If `channel` is null, the identifier gets a channel of its own and is synchronous: its calls wait
/// for their outcome.
///
/// # Errors
/// The channel was destroyed, or the process cannot open further files.
///
/// # Safety
/// The channel is not destroyed during the call.
pub unsafe fn make(
    channel: *mut RdmaEventChannel,
    context: *mut c_void,
    ps: c_int,
    qp_type: c_int,
) -> Result<*mut RdmaCmId, Errno> {
    let is_sync = channel.is_null();
    let channel = if is_sync { channel::make()? } else { channel };
    // SAFETY: as the caller promises, or just made.
    let inner = Inner::new(unsafe { channel::events(channel) }?, is_sync);
    let own = Own {
        inner: Arc::clone(&inner),
        path: Mutex::new(Box::new(no_path())),
    };
    let at = IdObject::create(public_part(channel, context, ps, qp_type), own);
    inner.place(at);
    Ok(at)
}

/// Creates the identifier of a connection request that a listener got.
///
/// # Errors
/// The listener was destroyed, or a resource is lacking.
pub fn child(
    listener: &Arc<Inner>,
    device: &Arc<CmDevice>,
    part: Part,
) -> Result<*mut RdmaCmId, Errno> {
    let is_sync = listener.lock().is_sync;
    // SAFETY: it has an event that is not acknowledged, so it is not destroyed meanwhile.
    let (of, _) = unsafe { own(listener.public()) }?;
    let channel = if is_sync { ptr::null_mut() } else { of.channel };
    // SAFETY: the program fetches from the channel just now.
    let at = unsafe { make(channel, of.context, of.ps, of.qp_type) }?;
    // SAFETY: just made.
    let (public, own) = unsafe { own(at) }?;
    let remote = match &part {
        Part::Asked(incoming) => incoming.from(),
        Part::Questioned(question) => question.source(),
        _ => None,
    };
    let heard = listener.lock();
    let port = heard.local.map_or(0, |local| local.port());
    let options = heard.options;
    drop(heard);
    let local = SocketAddr::new(device.address(), port);
    bound(public, own, device, local).inspect_err(|_| {
        // SAFETY: just made, and nobody has it.
        unsafe { destroy(at) };
    })?;
    let withdrawn = match &part {
        Part::Asked(incoming) => Some(incoming.withdrawn()),
        _ => None,
    };
    let mut state = own.inner.lock();
    (state.part, state.remote, state.options) = (part, remote, options);
    drop(state);
    if let Some(remote) = remote {
        towards(public, own, device, remote);
    }
    // As with Linux, a program learns of this over iWARP when it answers.
    if let Some(withdrawn) = withdrawn
        && device.transport() == Transport::InfiniBand
    {
        let weak = Arc::downgrade(&own.inner);
        withdrawn.on_done(move |_| {
            if let Some(this) = weak.upgrade() {
                this.withdrawn();
            }
        });
    }
    Ok(at)
}

/// Implements `rdma_create_id`.
///
/// # Safety
/// `id` is null or writable, and the channel is not destroyed during the call.
pub unsafe extern "C-unwind" fn create(
    channel: *mut RdmaEventChannel,
    id: *mut *mut RdmaCmId,
    context: *mut c_void,
    ps: c_int,
) -> c_int {
    let made = || {
        let qp_type = qp_type_of(ps)?;
        // SAFETY: as the caller promises.
        let place = unsafe { id.as_mut() }.ok_or(Errno::INVAL)?;
        // SAFETY: as the caller promises.
        *place = unsafe { make(channel, context, ps, qp_type) }?;
        Ok(())
    };
    done(made())
}

/// Implements `rdma_destroy_id`. Waits until the program has acknowledged all events of the identifier that it has fetched.
///
/// # Safety
/// The program does not use the identifier after this call.
pub unsafe extern "C-unwind" fn destroy(id: *mut RdmaCmId) -> c_int {
    let end = |own: &Own| {
        // SAFETY: live, as was seen.
        let public = unsafe { &mut *id };
        if !public.event.is_null() {
            // SAFETY: the identifier's own, or one that the program has acknowledged, which is seen.
            unsafe { channel::ack_event(public.event) };
        }
        let inner = Arc::clone(&own.inner);
        groups::detach_all(public, &inner);
        let mut state = inner.lock();
        state.is_destroyed = true;
        let part = std::mem::replace(&mut state.part, Part::Over);
        let reserved = std::mem::take(&mut state.reserved);
        state.port = None;
        let events = Arc::clone(&state.channel);
        let is_sync = state.is_sync;
        drop(state);
        if let Part::Asking(withdrawal) | Part::Accepting(withdrawal) = &part {
            withdrawal.withdraw();
        }
        // Dropping these informs the peer: a connection is ended, a request is rejected.
        drop((part, reserved));
        let is_of = |queued: &Queued| Arc::ptr_eq(&queued.of, &inner);
        for queued in events.take(is_of) {
            queued.of.acknowledged();
        }
        inner.wait_for_acknowledgement(|| 0);
        if is_sync {
            // SAFETY: the identifier's own.
            unsafe { channel::destroy(public.channel) };
        }
        Ok(())
    };
    // SAFETY: as the caller promises.
    done(unsafe { IdObject::end(id, end) })
}

/// Implements `rdma_migrate_id`: moves the identifier with its unfetched events to another channel; with a null channel it
/// gets one of its own and is synchronous.
///
/// # Safety
/// Neither the identifier nor the channel is destroyed during the call.
pub unsafe extern "C-unwind" fn migrate(
    id: *mut RdmaCmId,
    channel: *mut RdmaEventChannel,
) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { own(id) }.and_then(|(public, own)| {
        let is_sync = channel.is_null();
        if is_sync && own.inner.lock().is_sync {
            return Err(Errno::INVAL);
        }
        let channel = if is_sync { channel::make()? } else { channel };
        // SAFETY: as the caller promises, or just made.
        let new = unsafe { channel::events(channel) }?;
        if !public.event.is_null() {
            // SAFETY: the identifier's own.
            unsafe { channel::ack_event(public.event) };
            public.event = ptr::null_mut();
        }
        let inner = &own.inner;
        let is_of = |queued: &Queued| Arc::ptr_eq(&queued.of, inner);
        let mut state = inner.lock();
        let old = std::mem::replace(&mut state.channel, Arc::clone(&new));
        for queued in old.take(is_of) {
            new.push(queued);
        }
        let was_sync = std::mem::replace(&mut state.is_sync, is_sync);
        drop(state);
        inner.wait_for_acknowledgement(|| new.count(|queued| is_of(queued)));
        let old = std::mem::replace(&mut public.channel, channel);
        if was_sync {
            // SAFETY: the identifier's own until now.
            unsafe { channel::destroy(old) };
        }
        Ok(())
    }))
}

/// Stores the device and the local address of an identifier.
///
/// # Errors
/// The device has no room for a PD.
pub(crate) fn bound(
    public: &mut RdmaCmId,
    own: &Own,
    device: &Arc<CmDevice>,
    local: SocketAddr,
) -> Result<(), Errno> {
    public.pd = device.pd()?;
    public.verbs = device.public;
    public.port_num = 1;
    public.route.addr.src = address::write(local);
    public.route.addr.ib.sgid.raw = Gid::from(device.address()).0;
    public.route.addr.ib.pkey = u16::MAX;
    let mut state = own.inner.lock();
    state.device = Some(Arc::clone(device));
    state.local = Some(local);
    Ok(())
}

/// Stores the peer's address in the public structure of an identifier.
pub(crate) fn towards(public: &mut RdmaCmId, own: &Own, device: &CmDevice, remote: SocketAddr) {
    public.route.addr.dst = address::write(remote);
    public.route.addr.ib.dgid.raw = if remote.ip().is_multicast() {
        groups::gid(remote.ip()).0
    } else {
        Gid::from(remote.ip()).0
    };
    if device.transport() == Transport::InfiniBand {
        let addr = &public.route.addr.ib;
        let mut path = own.path.lock();
        **path = path_between(device, addr.sgid, addr.dgid);
        public.route.path_rec = &raw mut **path;
        public.route.num_paths = 1;
    }
}

const fn no_path() -> IbvSaPathRec {
    // SAFETY: numbers only, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

fn path_between(device: &CmDevice, sgid: IbvGid, dgid: IbvGid) -> IbvSaPathRec {
    const EXACTLY: u8 = 2;
    let mtu = device.context.query_port(1).map(|port| port.active_mtu);
    IbvSaPathRec {
        dgid,
        sgid,
        hop_limit: 64,
        reversible: 1,
        numb_path: 1,
        pkey: u16::MAX,
        mtu_selector: EXACTLY,
        mtu: mtu.unwrap_or(Mtu::Mtu1024) as u8,
        rate_selector: EXACTLY,
        // The code of 10 Gb/s in `enum ibv_rate`.
        rate: 3,
        packet_life_time_selector: EXACTLY,
        packet_life_time: 10,
        ..no_path()
    }
}

/// Implements `rdma_get_src_port`: returns the local port, in network byte order.
///
/// # Safety
/// The identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn get_src_port(id: *mut RdmaCmId) -> u16 {
    // SAFETY: as the caller promises.
    port_of(unsafe { own(id) }.map(|(_, own)| own.inner.lock().local))
}

/// Implements `rdma_get_dst_port`: returns the peer's port, in network byte order.
///
/// # Safety
/// The identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn get_dst_port(id: *mut RdmaCmId) -> u16 {
    // SAFETY: as the caller promises.
    port_of(unsafe { own(id) }.map(|(_, own)| own.inner.lock().remote))
}

fn port_of(address: Result<Option<SocketAddr>, Errno>) -> u16 {
    let known = address.ok().flatten();
    known.map_or(0, |address| address.port().to_be())
}
