//! Binding of identifiers (`rdma_cm_id`) to addresses, and listening.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use polyverbs_connection::{ConnectError, Connector, DatagramListener, Listener};
use polyverbs_libibverbs::errno::Errno;

use crate::abi::{RdmaCmId, event, port_space};
use crate::address;
use crate::device::{self, CmDevice, Service};
use crate::errno::{self, done};
use crate::id::{self, Own};
use crate::ports::Port;
use crate::state::{Data, DeviceListener, Inner, Part};

/// Binds an identifier to an address, with the device that has the address. Unlike with the kernel, a loopback address has
/// a device too, because pyverbs uses the device at once. A synchronous identifier may be bound to loopback if no device is
/// there.
///
/// # Errors
/// The identifier is bound already, no device has the address, or another identifier of this process has the port.
pub(crate) fn bind_to(public: &mut RdmaCmId, own: &Own, local: SocketAddr) -> Result<(), Errno> {
    let mut state = own.inner.lock();
    if !matches!(state.part, Part::Idle) {
        return Err(Errno::INVAL);
    }
    state.has_assigned_port = local.port() == 0;
    let port = match state.has_assigned_port {
        true => Port::assign(public.ps, local, state.options.sharing)?,
        false => Port::take(public.ps, local, state.options.sharing)?,
    };
    let local = port.at();
    state.port = Some(port);
    // libfabric tries loopback on machines whose devices are elsewhere.
    let may_be_nowhere = state.is_sync && local.ip().is_loopback();
    drop(state);
    let is_nowhere = local.ip().is_unspecified()
        || may_be_nowhere && !device::is_at(local.ip(), id::service(public));
    let bound = bind_at(public, own, local, is_nowhere);
    let mut state = own.inner.lock();
    match bound {
        Ok(()) => state.part = Part::Bound,
        Err(_) => state.port = None,
    }
    bound
}

fn bind_at(
    public: &mut RdmaCmId,
    own: &Own,
    local: SocketAddr,
    is_nowhere: bool,
) -> Result<(), Errno> {
    if is_nowhere {
        show_local(public, own, local);
        if local.ip().is_unspecified() && own.inner.lock().has_assigned_port {
            // The port is listened on already: qperf sends its peers the port before it calls `rdma_listen`, and a peer
            // that connects in between has to wait and not be refused. If there is no device to listen on, only
            // `rdma_listen` fails.
            let reserved = listeners_at(public, own, local).unwrap_or_default();
            own.inner.lock().reserved = reserved;
        }
        return Ok(());
    }
    let device = device::at(local, id::service(public))?;
    if public.ps == port_space::IPOIB {
        // Only InfiniBand's ports have IP over InfiniBand.
        return Err(Errno::INVAL);
    }
    id::bound(public, own, &device, local)
}

// Stores a new local address in the identifier and in its public structure.
fn show_local(public: &mut RdmaCmId, own: &Own, local: SocketAddr) {
    public.route.addr.src = address::write(local);
    own.inner.lock().local = Some(local);
}

/// Implements `rdma_bind_addr`.
///
/// # Safety
/// `addr` is null or an address, and the identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn bind_addr(id: *mut RdmaCmId, addr: *mut libc::sockaddr) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|(public, own)| {
        // SAFETY: as the caller promises.
        let local = unsafe { address::read(addr) }?;
        bind_to(public, own, local)
    }))
}

/// Implements `rdma_listen`.
///
/// # Safety
/// The identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn listen(id: *mut RdmaCmId, _backlog: c_int) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|(public, own)| {
        let is_idle = matches!(own.inner.lock().part, Part::Idle);
        if is_idle {
            bind_to(public, own, SocketAddr::from(([0, 0, 0, 0], 0)))?;
        }
        let mut state = own.inner.lock();
        let (Part::Bound, Some(local)) = (&state.part, state.local) else {
            return Err(Errno::INVAL);
        };
        if let Some(port) = &state.port {
            port.make_exclusive()?;
        }
        state.options.sharing.reuses_address = false;
        let mut listeners = std::mem::take(&mut state.reserved);
        drop(state);
        if listeners.is_empty() {
            listeners = listeners_at(public, own, local)?;
        }
        own.inner.lock().part = Part::Listening(
            listeners
                .iter()
                .map(|(_, listener)| listener.clone())
                .collect(),
        );
        for (device, listener) in listeners {
            let asker = Arc::downgrade(&own.inner);
            match listener {
                DeviceListener::Connections(listener) => hear(asker, device, &listener),
                DeviceListener::Datagrams(listener) => hear_questions(asker, device, &listener),
            }
        }
        Ok(())
    }))
}

// How many requests wait at most, whatever backlog the program names: the most that Linux allows. Linux does not answer a request
// beyond a shorter backlog, so that the peer repeats it; this connection manager would refuse it.
const BACKLOG: usize = 1024;

// The number of other ports that are tried if an assigned port is in use.
const MORE_PORTS: usize = 8;

/// Calls `attempt` with the identifier's port. If the port is in use, for example by another process, and was assigned
/// rather than chosen by the program, assigns another port and calls `attempt` again.
pub(crate) fn at_free_port<T>(
    public: &mut RdmaCmId,
    own: &Own,
    mut attempt: impl FnMut(u16) -> Result<T, ConnectError>,
) -> Result<T, ConnectError> {
    let port = |local: Option<SocketAddr>| local.map_or(0, |local| local.port());
    let mut tried = attempt(port(own.inner.lock().local));
    for _ in 0..MORE_PORTS {
        let state = own.inner.lock();
        let (local, sharing) = (state.local, state.options.sharing);
        let may_change = state.has_assigned_port;
        drop(state);
        let (Some(local), Err(ConnectError::AddressInUse { .. }), true) =
            (local, &tried, may_change)
        else {
            break;
        };
        let Ok(other) = Port::assign(public.ps, local, sharing) else {
            break;
        };
        show_local(public, own, other.at());
        tried = attempt(other.at().port());
        own.inner.lock().port = Some(other);
    }
    tried
}

/// Listens on each device at the identifier's address, on its port; an assigned port may change.
///
/// # Errors
/// No device has the address, or the port is in use.
fn listeners_at(
    public: &mut RdmaCmId,
    own: &Own,
    local: SocketAddr,
) -> Result<Vec<(Arc<CmDevice>, DeviceListener)>, Errno> {
    let service = id::service(public);
    let at = (!local.ip().is_unspecified()).then(|| local.ip());
    let has_space = public.ps != port_space::IPOIB;
    let same_family = |device: &Arc<CmDevice>| device.address().is_ipv4() == local.is_ipv4();
    // A listener at the IPv6 wildcard address accepts both families, unless `RDMA_OPTION_ID_AFONLY` is set.
    let takes_both = local.is_ipv6() && !own.inner.lock().options.sharing.is_alone_in_family;
    let mut devices = device::all(at, service)?;
    devices.retain(|device| has_space && (takes_both || same_family(device)));
    let connectors: Vec<_> = devices
        .iter()
        .map(|device| (device, id::connector(public, device)))
        .collect();
    let listeners = at_free_port(public, own, |port| {
        self::listeners(&connectors, service, port)
    });
    let listeners = listeners.map_err(|error| errno::of(&error))?;
    // If no device has an address of the family or the port space, listening at the wildcard address succeeds without effect, as
    // with the kernel.
    if listeners.is_empty() && at.is_some() {
        return Err(Errno(libc::ENODEV));
    }
    Ok(listeners)
}

fn listeners(
    connectors: &[(&Arc<CmDevice>, &Connector)],
    service: Service,
    port: u16,
) -> Result<Vec<(Arc<CmDevice>, DeviceListener)>, ConnectError> {
    let listener = |connector: &Connector, at| -> Result<DeviceListener, ConnectError> {
        match service {
            Service::Connections => {
                let listener = connector.listen(at, BACKLOG)?;
                Ok(DeviceListener::Connections(Arc::new(listener)))
            }
            Service::Datagrams => {
                let listener = connector.listen_datagrams(at, BACKLOG)?;
                Ok(DeviceListener::Datagrams(Arc::new(listener)))
            }
        }
    };
    let each = connectors.iter().map(|&(device, connector)| {
        let at = SocketAddr::new(device.address(), port);
        let listener = listener(connector, at).inspect_err(|error| device.report(error));
        Ok((Arc::clone(device), listener?))
    });
    those_that_listen(each)
}

// The listeners of those devices on which listening succeeded. It may fail on others, for example for want of descriptors.
//
// # Errors
// Listening failed on all devices, or the port is in use on one of them.
fn those_that_listen<T>(
    each: impl Iterator<Item = Result<T, ConnectError>>,
) -> Result<Vec<T>, ConnectError> {
    let (mut listeners, mut refused) = (Vec::new(), None);
    for listener in each {
        match listener {
            Ok(listener) => listeners.push(listener),
            Err(error @ ConnectError::AddressInUse { .. }) => return Err(error),
            Err(error) => refused = Some(error),
        }
    }
    match refused {
        Some(error) if listeners.is_empty() => Err(error),
        _ => Ok(listeners),
    }
}

// Posts a `CONNECT_REQUEST` event for each connection request that the listener gets, one after the other.
fn hear(asker: Weak<Inner>, device: Arc<CmDevice>, listener: &Arc<Listener>) {
    let weak = Arc::downgrade(listener);
    listener.next().on_done(move |incoming| {
        let (Ok(incoming), Some(this), Some(listener)) =
            (incoming, asker.upgrade(), weak.upgrade())
        else {
            return;
        };
        let request = Data::Request(Arc::clone(&device), incoming);
        this.post(event::CONNECT_REQUEST, 0, request);
        hear(asker, device, &listener);
    });
}

fn hear_questions(asker: Weak<Inner>, device: Arc<CmDevice>, listener: &Arc<DatagramListener>) {
    let weak = Arc::downgrade(listener);
    listener.next().on_done(move |question| {
        let (Ok(question), Some(this), Some(listener)) =
            (question, asker.upgrade(), weak.upgrade())
        else {
            return;
        };
        let request = Data::Question(Arc::clone(&device), question);
        this.post(event::CONNECT_REQUEST, 0, request);
        hear_questions(asker, device, &listener);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_cannot_listen_are_left_out() {
        let listen = |each: Vec<Result<u8, ConnectError>>| those_that_listen(each.into_iter());
        let failed = || Err(ConnectError::Unsent(libc::EMFILE));
        let in_use = ConnectError::AddressInUse {
            address: "127.0.0.1:7".parse().unwrap(),
            holder: None,
        };
        assert_eq!(listen(vec![Ok(1), failed(), Ok(3)]), Ok(vec![1, 3]));
        assert_eq!(listen(vec![failed()]), failed().map(|_: u8| vec![]));
        assert_eq!(listen(vec![Ok(1), Err(in_use.clone())]), Err(in_use));
        assert_eq!(listen(vec![]), Ok(vec![]));
    }
}
