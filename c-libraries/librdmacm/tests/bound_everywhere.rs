//! Identifiers that are bound to every address, and the ports that they are assigned.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::{io, mem, ptr};

use polyverbs_libibverbs::abi::{IbvQpInitAttr, qp_type};
use polyverbs_librdmacm::abi::{RdmaCmId, port_space};
use polyverbs_librdmacm::{address, bind, channel, connect, endpoint, id, options, qp, resolve};

const DEVICES: &str = r#"
[[device]]
address = "127.0.41.31"
transport = "iwarp"
"#;

fn bound(to: &str) -> *mut RdmaCmId {
    let (made, result) = bind(to);
    assert_eq!(result, 0);
    made
}

// Creates an identifier; returns it and the result of `rdma_bind_addr`.
fn bind(to: &str) -> (*mut RdmaCmId, c_int) {
    test_kit::configure(DEVICES);
    let mut made = ptr::null_mut();
    let mut to = address::write(to.parse().unwrap());
    // SAFETY: pointers are to what the test has, or to what the library made.
    unsafe {
        let context = ptr::null_mut();
        let created = id::create(channel::create(), &raw mut made, context, port_space::TCP);
        assert_eq!(created, 0);
        (made, bind::bind_addr(made, (&raw mut to).cast()))
    }
}

// A program may give its port to peers before it listens: their requests wait, and are not refused.
#[test]
fn a_request_before_listen_waits() {
    let made = bound("0.0.0.0:0");
    // SAFETY: the identifier is live.
    let port = u16::from_be(unsafe { id::get_src_port(made) });
    let told = SocketAddr::from(([127, 0, 41, 31], port));
    let _asked = TcpStream::connect(told).expect("the port takes streams");
    // SAFETY: as above.
    unsafe {
        assert_eq!(bind::listen(made, 0), 0);
        assert_eq!(u16::from_be(id::get_src_port(made)), port);
        assert_eq!(id::destroy(made), 0);
    }
    TcpListener::bind(told).expect("a free port");
}

// As with the kernel: a server of both families has a listener for each, and one of them may have no device.
#[test]
fn listening_on_a_family_without_a_device_has_no_effect() {
    const ID: i32 = 0;
    const AF_ONLY: i32 = 2;
    let made = bound("[::]:7474");
    let only = 1_i32;
    // SAFETY: the identifier is live, and the option has the given size.
    unsafe {
        let value = (&raw const only).cast_mut().cast();
        assert_eq!(
            options::set(made, ID, AF_ONLY, value, size_of_val(&only)),
            0
        );
        assert_eq!(bind::listen(made, 4), 0);
        assert_eq!(id::destroy(made), 0);
    }
    TcpListener::bind("127.0.41.31:7474").expect("the other family's port is free");
}

#[test]
fn a_port_that_is_free_for_one_family_only_is_not_assigned() {
    let made = bound("127.0.41.31:0");
    // SAFETY: the identifier is live.
    let in_vain = u16::from_be(unsafe { id::get_src_port(made) });
    let somebody = TcpListener::bind(("127.0.41.31", in_vain)).unwrap();
    // SAFETY: the identifiers are live.
    unsafe {
        assert_eq!(bind::listen(made, 1), 0);
        let port = u16::from_be(id::get_src_port(made));
        assert_ne!(port, in_vain);
        let (second, taken) = bind(&format!("127.0.41.31:{port}"));
        assert_eq!(taken, -1);
        let free = bound(&format!("127.0.41.31:{in_vain}"));
        for id in [made, second, free] {
            assert_eq!(id::destroy(id), 0);
        }
    }
    drop(somebody);
}

// Calls `rdma_connect` for an identifier whose port another socket has; returns its result and the identifier's new port.
fn connect_from_a_taken_port(made: *mut RdmaCmId, to: SocketAddr) -> (c_int, u16) {
    let mut to = address::write(to);
    // SAFETY: the identifier is live, zeros are a value, and pointers are to what this function has.
    unsafe {
        let port = u16::from_be(id::get_src_port(made));
        let _other = TcpListener::bind(("127.0.41.31", port)).unwrap();
        let mut init: IbvQpInitAttr = mem::zeroed();
        init.qp_type = qp_type::RC;
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (1, 1);
        let (no_source, no_pd) = (ptr::null_mut(), ptr::null_mut());
        let to = (&raw mut to).cast();
        assert_eq!(resolve::resolve_addr(made, no_source, to, 1), 0);
        assert_eq!(resolve::resolve_route(made, 1), 0);
        assert_eq!(qp::create(made, no_pd, &raw mut init), 0);
        let connected = connect::connect(made, ptr::null_mut());
        (connected, u16::from_be(id::get_src_port(made)))
    }
}

#[test]
fn a_client_gets_another_port_unless_its_program_has_chosen_one() {
    let server = TcpListener::bind("127.0.41.31:0").unwrap();
    let to = server.local_addr().unwrap();
    let (assigned, chosen) = (bound("127.0.41.31:0"), bound("127.0.41.31:7478"));
    // SAFETY: the identifier is live.
    let before = u16::from_be(unsafe { id::get_src_port(assigned) });
    let (connected, port) = connect_from_a_taken_port(assigned, to);
    assert_eq!(connected, 0);
    assert_ne!(port, before);
    assert_eq!(server.accept().unwrap().1.port(), port);
    assert_eq!(connect_from_a_taken_port(chosen, to), (-1, 7478));
    let errno = io::Error::last_os_error().raw_os_error();
    assert_eq!(errno, Some(libc::EADDRINUSE));
    for id in [assigned, chosen] {
        // SAFETY: the identifiers are live.
        unsafe { endpoint::destroy(id) };
    }
}
