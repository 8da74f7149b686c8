//! The functions as a program calls them: wrong arguments, and a connection from its beginning to its end.
#![allow(unsafe_code)]

mod cm;

use std::collections::HashSet;
use std::ffi::{c_int, c_void};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::ptr;

use polyverbs_libibverbs::abi::{IbvAhAttr, IbvContext, IbvGid, IbvGidEntry};
use polyverbs_libibverbs::{ah, context, query};
use polyverbs_librdmacm::abi::{RdmaAddrinfo, RdmaCmId, RdmaConnParam, event, port_space};
use polyverbs_librdmacm::{
    address, bind, channel, connect, device, endpoint, events, id, info, lookup, multicast,
    options, qp, resolve,
};
use verbs_api::qp::QpState;
use verbs_api::{
    Transport,
    ids::{Gid, LinkAddress},
};

use cm::{
    asking, call, create_qp, destroy_all, fetch, is_empty, listening, new_id, next, private_data,
    qp_state, queue_pair, refused, resolved, sockaddr, zeroed,
};

fn every_call_with(gone: *mut RdmaCmId) {
    let nothing = ptr::null_mut::<c_void>();
    let mut addr = sockaddr("127.0.0.1:7471");
    let addr = (&raw mut addr).cast();
    let mut other = ptr::null_mut();
    refused(call!(bind::bind_addr(gone, addr)), libc::EINVAL);
    refused(
        call!(resolve::resolve_addr(gone, ptr::null_mut(), addr, 1)),
        libc::EINVAL,
    );
    refused(call!(resolve::resolve_route(gone, 1)), libc::EINVAL);
    refused(call!(id::migrate(gone, ptr::null_mut())), libc::EINVAL);
    refused(call!(id::destroy(gone)), libc::EINVAL);
    refused(call!(bind::listen(gone, 1)), libc::EINVAL);
    refused(call!(connect::connect(gone, ptr::null_mut())), libc::EINVAL);
    refused(call!(connect::accept(gone, ptr::null_mut())), libc::EINVAL);
    refused(call!(connect::reject(gone, ptr::null(), 0)), libc::EINVAL);
    refused(call!(connect::disconnect(gone)), libc::EINVAL);
    refused(call!(connect::establish(gone)), libc::EINVAL);
    let no_attr = ptr::null_mut();
    refused(
        call!(connect::init_qp_attr(gone, no_attr, ptr::null_mut())),
        libc::EINVAL,
    );
    refused(
        call!(endpoint::get_request(gone, &raw mut other)),
        libc::EINVAL,
    );
    refused(call!(multicast::join(gone, addr, nothing)), libc::EINVAL);
    refused(
        call!(multicast::join_ex(gone, ptr::null_mut(), nothing)),
        libc::EINVAL,
    );
    refused(call!(multicast::leave(gone, addr)), libc::EINVAL);
    refused(call!(options::set(gone, 0, 0, nothing, 1)), libc::EINVAL);
    refused(
        call!(lookup::resolve_addrinfo(
            gone,
            c"::1".as_ptr(),
            ptr::null(),
            ptr::null()
        )),
        libc::EINVAL,
    );
    let mut found = ptr::null_mut();
    refused(
        call!(lookup::query_addrinfo(gone, &raw mut found)),
        libc::EINVAL,
    );
    refused(
        call!(lookup::write_event(gone, event::USER, 0, 1)),
        libc::EINVAL,
    );
    refused(call!(options::notify(gone, 4)), libc::EINVAL);
    let no_ece = ptr::null_mut();
    refused(call!(options::set_local_ece(gone, no_ece)), libc::EINVAL);
    refused(call!(options::get_remote_ece(gone, no_ece)), libc::EINVAL);
    let no_pd = ptr::null_mut();
    refused(
        call!(qp::create(gone, no_pd, ptr::null_mut())),
        libc::EINVAL,
    );
    refused(call!(qp::create_ex(gone, ptr::null_mut())), libc::EINVAL);
    refused(
        call!(qp::create_srq(gone, no_pd, ptr::null_mut())),
        libc::EINVAL,
    );
    refused(
        call!(qp::create_srq_ex(gone, ptr::null_mut())),
        libc::EINVAL,
    );
    assert_eq!(call!(id::get_src_port(gone)), 0);
    assert_eq!(call!(id::get_dst_port(gone)), 0);
    call!(qp::destroy(gone));
    call!(qp::destroy_srq(gone));
    call!(endpoint::destroy(gone));
}

#[test]
fn null_pointers_and_destroyed_objects_are_einval() {
    every_call_with(ptr::null_mut());
    let channel = channel::create();
    let gone = new_id(channel, port_space::TCP);
    assert_eq!(call!(id::destroy(gone)), 0);
    every_call_with(gone);
    call!(channel::destroy(channel));
    let mut made = ptr::null_mut();
    let mut fetched = ptr::null_mut();
    let context = ptr::null_mut();
    let ps = port_space::TCP;
    refused(
        call!(id::create(channel, &raw mut made, context, ps)),
        libc::EINVAL,
    );
    refused(
        call!(events::get_event(channel, &raw mut fetched)),
        libc::EINVAL,
    );
    refused(
        call!(events::get_event(ptr::null_mut(), &raw mut fetched)),
        libc::EINVAL,
    );
    refused(call!(channel::ack_event(ptr::null_mut())), libc::EINVAL);
    call!(channel::destroy(channel));
    call!(channel::destroy(ptr::null_mut()));
    refused(
        call!(id::create(ptr::null_mut(), ptr::null_mut(), context, ps)),
        libc::EINVAL,
    );
}

#[test]
fn unsupported_arguments_fail_with_their_error_number() {
    let channel = channel::create();
    let mut made = ptr::null_mut();
    let context = ptr::null_mut();
    refused(
        call!(id::create(channel, &raw mut made, context, 7)),
        libc::EINVAL,
    );
    let id = new_id(channel, port_space::TCP);
    // An address that is not of this machine, and one of no family of the internet.
    let mut foreign = sockaddr("192.0.2.77:1");
    refused(
        call!(bind::bind_addr(id, (&raw mut foreign).cast())),
        libc::EADDRNOTAVAIL,
    );
    let mut unix = address::none();
    unix.any.sa_family = libc::AF_UNIX as libc::sa_family_t;
    refused(
        call!(bind::bind_addr(id, (&raw mut unix).cast())),
        libc::EINVAL,
    );
    // Steps out of order.
    refused(call!(resolve::resolve_route(id, 1)), libc::EINVAL);
    refused(call!(connect::disconnect(id)), libc::EINVAL);
    // Options: unknown ones, of the wrong size, out of range.
    let mut value = 32_u64;
    let value = (&raw mut value).cast();
    refused(call!(options::set(id, 0, 9, value, 1)), libc::ENOSYS);
    refused(call!(options::set(id, 7, 0, value, 1)), libc::ENOSYS);
    refused(call!(options::set(id, 0, 0, value, 4)), libc::EINVAL);
    refused(call!(options::set(id, 0, 1, value, 1)), libc::EINVAL);
    refused(call!(options::set(id, 0, 3, value, 1)), libc::EINVAL);
    assert_eq!(call!(options::set(id, 0, 0, value, 1)), 0);
    assert_eq!(call!(id::destroy(id)), 0);
    call!(channel::destroy(channel));

    let mut found: *mut RdmaAddrinfo = ptr::null_mut();
    let none = ptr::null();
    refused(
        call!(info::get(none, none, ptr::null(), &raw mut found)),
        libc::EINVAL,
    );
    let node = c"256.1.1.1.1".as_ptr();
    assert_eq!(
        call!(info::get(node, none, ptr::null(), &raw mut found)),
        -1
    );
    call!(info::free(ptr::null_mut()));
    let mut count = -1;
    let list = call!(device::get_devices(&raw mut count));
    assert!(count >= 2 && !list.is_null());
    call!(device::free_devices(list));
}

#[test]
fn a_connection_begins_and_ends_with_events_at_both_ends() {
    let (server_channel, channel) = (channel::create(), channel::create());
    let (listener, to) = listening(server_channel, "127.0.0.1");
    refused(call!(bind::listen(listener, 8)), libc::EINVAL);
    is_empty(server_channel);

    let client = resolved(channel, to);
    let (no_pd, mut init) = (ptr::null_mut(), queue_pair());
    refused(
        call!(qp::create(client, no_pd, &raw mut init)),
        libc::EINVAL,
    );
    let mut param: RdmaConnParam = zeroed();
    let long = [7_u8; 255];
    (param.private_data, param.private_data_len) = (long.as_ptr().cast(), 255);
    refused(
        call!(connect::connect(client, &raw mut param)),
        libc::EINVAL,
    );
    (param.private_data_len, param.responder_resources) = (5, 200);
    refused(
        call!(connect::connect(client, &raw mut param)),
        libc::EINVAL,
    );
    param.responder_resources = 1;
    assert_eq!(call!(connect::connect(client, &raw mut param)), 0);
    refused(
        call!(connect::connect(client, &raw mut param)),
        libc::EINVAL,
    );

    let asked = fetch(server_channel);
    let (kind, of, server) = call!(((*asked).event, (*asked).listen_id, (*asked).id));
    assert_eq!((kind, of), (event::CONNECT_REQUEST, listener));
    assert!(private_data(asked).starts_with(&[7; 5]));
    create_qp(server);
    let no_param = ptr::null_mut();
    assert_eq!(call!(connect::accept(server, no_param)), 0);
    refused(call!(connect::accept(server, no_param)), libc::EINVAL);
    assert_eq!(call!(channel::ack_event(asked)), 0);
    refused(call!(channel::ack_event(asked)), libc::EINVAL);
    assert_eq!(next(channel), (event::ESTABLISHED, client, 0));
    assert_eq!(next(server_channel), (event::ESTABLISHED, server, 0));

    // An event moves with its identifier.
    let other = channel::create();
    assert_eq!(call!(connect::disconnect(client)), 0);
    assert_eq!(call!(id::migrate(server, other)), 0);
    assert_eq!(next(other), (event::DISCONNECTED, server, 0));
    assert_eq!(next(channel), (event::DISCONNECTED, client, 0));
    assert_eq!(call!(connect::disconnect(server)), 0);
    // Until then no other connection gets its communication IDs.
    assert_eq!(next(other), (event::TIMEWAIT_EXIT, server, 0));
    assert_eq!(next(channel), (event::TIMEWAIT_EXIT, client, 0));

    // Without a listener the next request is refused.
    assert_eq!(call!(id::destroy(listener)), 0);
    let late = asking(channel, to);
    let (kind, of, status) = next(channel);
    assert_eq!((kind, of), (event::REJECTED, late));
    assert_ne!(status, 0);
    destroy_all([client, server, late]);
    for channel in [channel, server_channel, other] {
        call!(channel::destroy(channel));
    }
}

/// MPA's request of revision 1 (RFC 5044, 7.1), with CRCs and no ready-to-receive message.
const PLAIN: &[u8] = b"MPA ID Req Frame\x40\x01\0\0";
/// A request of revision 2 (RFC 6581, 4), which offers a write of zero bytes as ready-to-receive message: IRD 1, ORD 1.
const ENHANCED: &[u8] = b"MPA ID Req Frame\x50\x02\0\x04\x80\x01\x80\x01";

// The events of a server whose iWARP peer gets the reply and then closes, and the state of the server's queue pair.
fn of_a_peer_that_goes(request: &[u8]) -> ([c_int; 2], c_int) {
    let channel = channel::create();
    let (listener, to) = listening(channel, "127.0.0.1");
    let mut peer = TcpStream::connect(to).unwrap();
    peer.write_all(request).unwrap();
    let (kind, server, status) = next(channel);
    assert_eq!((kind, status), (event::CONNECT_REQUEST, 0));
    create_qp(server);
    assert_eq!(call!(connect::accept(server, ptr::null_mut())), 0);
    let mut reply = vec![0; request.len()];
    peer.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..16], *b"MPA ID Rep Frame");
    drop(peer);

    let told = [(); 2].map(|()| {
        let (kind, of, status) = next(channel);
        assert_eq!((of, status), (server, 0));
        kind
    });
    let state = qp_state(server);
    destroy_all([server, listener]);
    call!(channel::destroy(channel));
    (told, state)
}

#[test]
fn the_end_of_a_stream_flushes_the_queue_pair() {
    let heard = [event::ESTABLISHED, event::DISCONNECTED];
    assert_eq!(of_a_peer_that_goes(PLAIN), (heard, QpState::Err as c_int));
}

#[test]
fn a_peer_that_closes_before_its_first_message_was_connected() {
    let heard = [event::ESTABLISHED, event::DISCONNECTED];
    assert_eq!(
        of_a_peer_that_goes(ENHANCED),
        (heard, QpState::Err as c_int)
    );
}

#[test]
fn an_identifier_bound_to_loopback_has_its_device_at_once() {
    let channel = channel::create();
    for ps in [port_space::TCP, port_space::UDP] {
        for channel in [channel, ptr::null_mut()] {
            let id = new_id(channel, ps);
            let mut from = sockaddr("127.0.0.1:0");
            assert_eq!(call!(bind::bind_addr(id, (&raw mut from).cast())), 0);
            assert!(!call!((*id).verbs).is_null());
            assert_eq!(call!(id::destroy(id)), 0);
        }
    }
    call!(channel::destroy(channel));
}

#[test]
fn a_synchronous_identifier_binds_to_loopback_without_a_device() {
    let channel = channel::create();
    for ps in [port_space::TCP, port_space::UDP] {
        let bind = |channel| {
            let id = new_id(channel, ps);
            let mut from = sockaddr("127.0.0.2:0");
            (id, call!(bind::bind_addr(id, (&raw mut from).cast())))
        };
        let (waits, bound) = bind(ptr::null_mut());
        assert_eq!(bound, 0);
        assert!(call!((*waits).verbs).is_null());
        let (asks, bound) = bind(channel);
        refused(bound, libc::ENODEV);
        for id in [waits, asks] {
            assert_eq!(call!(id::destroy(id)), 0);
        }
    }
    call!(channel::destroy(channel));
}

#[test]
fn resolving_a_peer_gives_a_loopback_identifier_its_device() {
    for ps in [port_space::TCP, port_space::UDP] {
        let id = new_id(ptr::null_mut(), ps);
        let (mut from, mut to) = (sockaddr("127.0.0.1:0"), sockaddr("127.0.0.1:7471"));
        let (from, to) = ((&raw mut from).cast(), (&raw mut to).cast());
        assert_eq!(call!(bind::bind_addr(id, from)), 0);
        assert_eq!(call!(resolve::resolve_addr(id, ptr::null_mut(), to, 1)), 0);
        assert!(!call!((*id).verbs).is_null());
        assert_eq!(call!(id::destroy(id)), 0);
    }
}

#[test]
fn identifiers_of_two_families_share_a_port_if_both_allow_it() {
    const ONE_FAMILY: c_int = 2;
    let channel = channel::create();
    let bind = |is_of_one_family: bool, text: &str| {
        let id = new_id(channel, port_space::TCP);
        let (mut at, mut yes) = (sockaddr(text), c_int::from(is_of_one_family));
        let value = (&raw mut yes).cast();
        assert_eq!(call!(options::set(id, 0, ONE_FAMILY, value, 4)), 0);
        (id, call!(bind::bind_addr(id, (&raw mut at).cast())))
    };
    let (first, bound) = bind(true, "0.0.0.0:7003");
    assert_eq!(bound, 0);
    let (second, bound) = bind(false, "[::]:7003");
    refused(bound, libc::EADDRNOTAVAIL);
    let (third, bound) = bind(true, "0.0.0.0:7003");
    refused(bound, libc::EADDRNOTAVAIL);
    let (fourth, bound) = bind(true, "[::]:7003");
    assert_eq!(bound, 0);
    for id in [first, second, third, fourth] {
        assert_eq!(call!(id::destroy(id)), 0);
    }
    call!(channel::destroy(channel));
}

// So many ports would not all differ if they were taken at random out of 4,536.
#[test]
fn each_identifier_is_assigned_a_port_of_its_own() {
    let channel = channel::create();
    let ids: Vec<_> = (0..400)
        .map(|_| {
            let id = new_id(channel, port_space::TCP);
            let mut at = sockaddr("127.0.0.1:0");
            assert_eq!(call!(bind::bind_addr(id, (&raw mut at).cast())), 0);
            id
        })
        .collect();
    let ports: HashSet<_> = ids.iter().map(|&id| call!(id::get_src_port(id))).collect();
    assert_eq!(ports.len(), ids.len());
    for id in ids {
        assert_eq!(call!(id::destroy(id)), 0);
    }
    call!(channel::destroy(channel));
}

#[test]
fn a_port_belongs_to_one_identifier_until_it_is_destroyed() {
    let bind = |id, text: &str| {
        let mut at = sockaddr(text);
        call!(bind::bind_addr(id, (&raw mut at).cast()))
    };
    let channel = channel::create();
    let first = new_id(channel, port_space::TCP);
    let [second, third] = [(); 2].map(|()| new_id(channel, port_space::TCP));
    let datagrams = new_id(channel, port_space::UDP);
    assert_eq!(bind(first, "0.0.0.0:7001"), 0);
    refused(bind(second, "0.0.0.0:7001"), libc::EADDRNOTAVAIL);
    refused(bind(second, "127.0.0.1:7001"), libc::EADDRNOTAVAIL);
    assert_eq!(bind(datagrams, "0.0.0.0:7001"), 0);
    assert_eq!(call!(id::destroy(first)), 0);
    assert_eq!(bind(second, "127.0.0.1:7001"), 0);
    refused(bind(third, "127.0.0.1:7001"), libc::EADDRINUSE);
    for everywhere in ["0.0.0.0:7001", "[::]:7001"] {
        refused(bind(third, everywhere), libc::EADDRNOTAVAIL);
    }
    let others = [(); 2].map(|()| new_id(channel, port_space::TCP));
    for id in others {
        const REUSE_ADDRESS: c_int = 1;
        let mut yes: c_int = 1;
        let value = (&raw mut yes).cast();
        assert_eq!(call!(options::set(id, 0, REUSE_ADDRESS, value, 4)), 0);
        assert_eq!(bind(id, "127.0.0.1:7002"), 0);
    }
    for id in [second, third, datagrams].into_iter().chain(others) {
        assert_eq!(call!(id::destroy(id)), 0);
    }
    call!(channel::destroy(channel));
}

fn gid_at(device: *mut IbvContext, index: c_int) -> Gid {
    let mut gid = IbvGid { raw: [0xff; 16] };
    let answer = call!(query::query_gid(device, 1, index, &raw mut gid));
    assert_eq!(answer, 0);
    Gid(gid.raw)
}

// covers 7.51
#[test]
fn gids_are_those_of_linux_and_each_reaches_its_device() {
    let list = call!(device::get_devices(ptr::null_mut()));
    let mut at = list;
    let (mut roce, mut iwarp) = (0, 0);
    while !call!(*at).is_null() {
        let public = call!(*at);
        at = at.wrapping_add(1);
        let own = &call!(context::own(public)).unwrap().context;
        let LinkAddress::Ip(ip) = own.query_port(1).unwrap().address else {
            panic!("a device on a wire has an IP address");
        };
        if own.attributes().transport == Transport::Iwarp {
            assert_eq!(gid_at(public, 0), Gid::iwarp(ip));
            assert_ne!(gid_at(public, 0), Gid::default());
            iwarp += 1;
            continue;
        }
        roce += 1;
        let mut table: [IbvGidEntry; 3] = zeroed();
        let size = size_of::<IbvGidEntry>();
        let entries = call!(query::query_gid_table(
            public,
            table.as_mut_ptr(),
            3,
            0,
            size
        ));
        assert_eq!(entries, 2);
        for (index, expected) in [Gid::link_local(ip), ip.into()].into_iter().enumerate() {
            assert_eq!(gid_at(public, index as c_int), expected);
            let entry = &table[index];
            assert_eq!((entry.gid.raw, entry.gid_index), (expected.0, index as u32));
            assert_eq!((entry.port_num, entry.gid_type), (1, 2));
            let mut alone: IbvGidEntry = zeroed();
            let index_in_c = entry.gid_index;
            let found = call!(query::query_gid_ex(
                public,
                1,
                index_in_c,
                &raw mut alone,
                0,
                size
            ));
            assert_eq!((found, alone.gid.raw), (0, expected.0));
            assert_eq!((alone.gid_index, alone.port_num), (index_in_c, 1));
            let mut attr: IbvAhAttr = zeroed();
            (attr.is_global, attr.port_num) = (1, 1);
            (attr.grh.dgid.raw, attr.grh.sgid_index) = (expected.0, index as u8);
            let path = ah::path(own, &attr).unwrap();
            assert_eq!((path.address, path.dgid), (LinkAddress::Ip(ip), expected));
        }
        assert_eq!(gid_at(public, 2), Gid::default());
        let mut none: IbvGidEntry = zeroed();
        let beyond = call!(query::query_gid_ex(public, 1, 2, &raw mut none, 0, size));
        assert_eq!(beyond, libc::ENODATA);
    }
    assert!(roce > 0 && iwarp > 0);
    call!(device::free_devices(list));
}
