//! Clients over iWARP, of servers that speak MPA by themselves.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Once;
use std::{mem, ptr, thread};

use polyverbs_libibverbs::abi::{IbvQpAttr, IbvQpInitAttr, qp_type};
use polyverbs_libibverbs::qp as verbs_qp;
use polyverbs_librdmacm::abi::{RdmaCmEvent, RdmaCmId, RdmaEventChannel, event, port_space};
use polyverbs_librdmacm::{address, channel, connect, endpoint, events, id, qp, resolve};
use verbs_api::qp::QpState;

const DEVICES: &str = r#"
[[device]]
address = "127.0.41.32"
transport = "iwarp"
"#;

/// MPA's reply of revision 1 (RFC 5044, 7.1), with CRCs: nothing more is said before messages.
const PLAIN: &[u8] = b"MPA ID Rep Frame\x40\x01\0\0";
/// One of revision 2 (RFC 6581, 4), which agrees on a write without bytes as the first message: IRD 1, ORD 1.
const ENHANCED: &[u8] = b"MPA ID Rep Frame\x50\x02\0\x04\x80\x01\x80\x01";

// The next event, acknowledged: what it was, and how it went.
unsafe fn next(channel: *mut RdmaEventChannel) -> (c_int, c_int) {
    let mut fetched: *mut RdmaCmEvent = ptr::null_mut();
    // SAFETY: the channel is live, and so is the event until it is acknowledged.
    unsafe {
        assert_eq!(events::get_event(channel, &raw mut fetched), 0);
        let told = ((*fetched).event, (*fetched).status);
        assert_eq!(channel::ack_event(fetched), 0);
        told
    }
}

// A client connects to a server that replies and then goes, and is told of both. Answers the state of its queue pair.
fn state_behind_a_server_that_goes(reply: &'static [u8]) -> c_int {
    static ONCE: Once = Once::new();
    // SAFETY: every test begins with it, before anything looks at the environment.
    ONCE.call_once(|| unsafe { std::env::set_var("POLYVERBS_CONFIG", DEVICES) });
    let listener = TcpListener::bind("127.0.41.32:0").unwrap();
    let mut to = address::write(listener.local_addr().unwrap());
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 20];
        stream.read_exact(&mut request).unwrap();
        let mut private_data = vec![0; u16::from_be_bytes([request[18], request[19]]).into()];
        stream.read_exact(&mut private_data).unwrap();
        stream.write_all(reply).unwrap();
    });

    // SAFETY: zeros are a value of both; pointers are to what the test has, or to what the library made.
    unsafe {
        let (mut init, mut attr): (IbvQpInitAttr, IbvQpAttr) = (mem::zeroed(), mem::zeroed());
        init.qp_type = qp_type::RC;
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (1, 1);
        let channel = channel::create();
        let mut made: *mut RdmaCmId = ptr::null_mut();
        let (context, source, no_pd) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let created = id::create(channel, &raw mut made, context, port_space::TCP);
        assert_eq!(created, 0);
        assert_eq!(
            resolve::resolve_addr(made, source, (&raw mut to).cast(), 1000),
            0
        );
        assert_eq!(next(channel), (event::ADDR_RESOLVED, 0));
        assert_eq!(resolve::resolve_route(made, 1000), 0);
        assert_eq!(next(channel), (event::ROUTE_RESOLVED, 0));
        assert_eq!(qp::create(made, no_pd, &raw mut init), 0);
        assert_eq!(connect::connect(made, ptr::null_mut()), 0);
        assert_eq!(next(channel), (event::ESTABLISHED, 0));
        assert_eq!(next(channel), (event::DISCONNECTED, 0));
        let of = (*made).qp;
        assert_eq!(verbs_qp::query(of, &raw mut attr, 1, &raw mut init), 0);
        endpoint::destroy(made);
        channel::destroy(channel);
        server.join().unwrap();
        attr.qp_state
    }
}

// As with the kernel: there is a connection once there is a reply, whatever comes behind it.
#[test]
fn a_server_that_closes_right_after_its_reply_was_connected() {
    for reply in [PLAIN, ENHANCED] {
        for _ in 0..10 {
            let state = state_behind_a_server_that_goes(reply);
            assert_eq!(state, QpState::Err as c_int);
        }
    }
}
