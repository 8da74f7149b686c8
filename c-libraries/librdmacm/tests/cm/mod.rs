//! The calls of a C program of the connection manager, with the checks that most tests make.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::ptr;

use polyverbs_libibverbs::abi::{IbvQpAttr, IbvQpInitAttr, qp_type};
use polyverbs_libibverbs::qp as verbs_qp;
use polyverbs_librdmacm::abi::{
    Address, RdmaCmEvent, RdmaCmId, RdmaEventChannel, event, port_space,
};
use polyverbs_librdmacm::{address, bind, channel, connect, endpoint, events, id, qp, resolve};

/// A call of a function of the library, as C makes it.
macro_rules! call {
    ($call:expr) => {{
        // SAFETY: pointers are null, to memory of the test, or to objects of the library, which looks them up.
        unsafe { $call }
    }};
}
pub(crate) use call;

/// Checks that a call has failed with this error number.
#[track_caller]
pub(crate) fn refused(answer: c_int, number: c_int) {
    let errno = std::io::Error::last_os_error().raw_os_error();
    assert_eq!((answer, errno), (-1, Some(number)));
}

pub(crate) fn sockaddr(text: &str) -> Address {
    address::write(text.parse::<SocketAddr>().unwrap())
}

/// A structure of numbers and null pointers.
pub(crate) fn zeroed<T>() -> T {
    // SAFETY: of the structures of C that the tests use zero is a value.
    unsafe { std::mem::zeroed() }
}

pub(crate) fn new_id(channel: *mut RdmaEventChannel, ps: c_int) -> *mut RdmaCmId {
    let mut made = ptr::null_mut();
    let context = ptr::null_mut();
    assert_eq!(call!(id::create(channel, &raw mut made, context, ps)), 0);
    made
}

/// The next event, which the test acknowledges.
pub(crate) fn fetch(channel: *mut RdmaEventChannel) -> *mut RdmaCmEvent {
    let mut fetched = ptr::null_mut();
    assert_eq!(call!(events::get_event(channel, &raw mut fetched)), 0);
    fetched
}

/// Acknowledges the next event; returns its kind, identifier and status.
pub(crate) fn next(channel: *mut RdmaEventChannel) -> (c_int, *mut RdmaCmId, c_int) {
    let fetched = fetch(channel);
    let told = call!(((*fetched).event, (*fetched).id, (*fetched).status));
    assert_eq!(call!(channel::ack_event(fetched)), 0);
    told
}

/// The private data of an event of a connection.
pub(crate) fn private_data(of: *mut RdmaCmEvent) -> Vec<u8> {
    let conn = call!((*of).param.conn);
    let length = usize::from(conn.private_data_len);
    if length == 0 {
        return Vec::new();
    }
    call!(std::slice::from_raw_parts(
        conn.private_data.cast::<u8>(),
        length
    ))
    .to_vec()
}

/// Checks that no event waits at a channel.
#[track_caller]
pub(crate) fn is_empty(channel: *mut RdmaEventChannel) {
    let fd = call!((*channel).fd);
    let mut none = ptr::null_mut();
    assert_eq!(call!(libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK)), 0);
    refused(
        call!(events::get_event(channel, &raw mut none)),
        libc::EAGAIN,
    );
    assert_eq!(call!(libc::fcntl(fd, libc::F_SETFL, 0)), 0);
}

pub(crate) fn queue_pair() -> IbvQpInitAttr {
    let mut init: IbvQpInitAttr = zeroed();
    (init.qp_type, init.sq_sig_all) = (qp_type::RC, 1);
    (init.cap.max_send_wr, init.cap.max_send_sge) = (1, 1);
    (init.cap.max_recv_wr, init.cap.max_recv_sge) = (1, 1);
    init
}

/// Gives an identifier a queue pair.
pub(crate) fn create_qp(of: *mut RdmaCmId) {
    let mut init = queue_pair();
    assert_eq!(call!(qp::create(of, ptr::null_mut(), &raw mut init)), 0);
}

/// The state of the queue pair of an identifier.
pub(crate) fn qp_state(of: *mut RdmaCmId) -> c_int {
    let (mut attr, mut init): (IbvQpAttr, IbvQpInitAttr) = (zeroed(), zeroed());
    let (at, mask, init) = (&raw mut attr, 1, &raw mut init);
    assert_eq!(call!(verbs_qp::query((*of).qp, at, mask, init)), 0);
    attr.qp_state
}

/// A listener at any port of an address, and its address.
pub(crate) fn listening(channel: *mut RdmaEventChannel, ip: &str) -> (*mut RdmaCmId, SocketAddr) {
    let listener = new_id(channel, port_space::TCP);
    let mut at = sockaddr(&format!("{ip}:0"));
    assert_eq!(call!(bind::bind_addr(listener, (&raw mut at).cast())), 0);
    assert_eq!(call!(bind::listen(listener, 8)), 0);
    let port = u16::from_be(call!(id::get_src_port(listener)));
    assert_ne!(port, 0);
    (listener, SocketAddr::new(ip.parse().unwrap(), port))
}

/// An identifier with a queue pair, which may connect to this address.
pub(crate) fn resolved(channel: *mut RdmaEventChannel, to: SocketAddr) -> *mut RdmaCmId {
    resolved_in(port_space::TCP, channel, to)
}

/// An identifier of this port space with a queue pair, which may connect to this address.
pub(crate) fn resolved_in(
    space: c_int,
    channel: *mut RdmaEventChannel,
    to: SocketAddr,
) -> *mut RdmaCmId {
    let client = new_id(channel, space);
    let mut to = address::write(to);
    let (source, to) = (ptr::null_mut(), (&raw mut to).cast());
    assert_eq!(call!(resolve::resolve_addr(client, source, to, 1000)), 0);
    assert_eq!(next(channel), (event::ADDR_RESOLVED, client, 0));
    assert_eq!(call!(resolve::resolve_route(client, 1000)), 0);
    assert_eq!(next(channel), (event::ROUTE_RESOLVED, client, 0));
    create_qp(client);
    client
}

/// Destroys identifiers, with their queue pairs.
pub(crate) fn destroy_all(ids: impl IntoIterator<Item = *mut RdmaCmId>) {
    for id in ids {
        call!(endpoint::destroy(id));
    }
}

/// Connects to an address; the outcome is an event.
pub(crate) fn asking(channel: *mut RdmaEventChannel, to: SocketAddr) -> *mut RdmaCmId {
    let client = resolved(channel, to);
    assert_eq!(call!(connect::connect(client, ptr::null_mut())), 0);
    client
}
