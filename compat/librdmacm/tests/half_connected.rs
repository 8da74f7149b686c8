//! A peer over iWARP that goes before its first message.
#![allow(unsafe_code)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ptr;

use polyverbs_libibverbs::abi::{IbvQpCap, IbvQpInitAttr, qp_type};
use polyverbs_librdmacm::abi::{RdmaCmEvent, RdmaEventChannel, event, port_space};
use polyverbs_librdmacm::{address, channel, connect, id, qp};

const DEVICES: &str = r#"
[[device]]
address = "127.0.41.32"
transport = "iwarp"
"#;

/// MPA's request (RFC 5044, 7.1) of revision 1: with CRCs, without markers and private data.
const REQUEST: [u8; 20] = *b"MPA ID Req Frame\x40\x01\0\0";

/// The next event, not acknowledged yet.
///
/// # Safety
/// The channel is live.
unsafe fn next(channel: *mut RdmaEventChannel) -> *mut RdmaCmEvent {
    let mut fetched = ptr::null_mut();
    // SAFETY: as the caller promises.
    assert_eq!(unsafe { channel::get_event(channel, &raw mut fetched) }, 0);
    fetched
}

#[test]
fn a_server_hears_of_a_connection_and_its_end() {
    // SAFETY: the only test here; nothing has looked at the environment. Pointers are to what the test has, or to what the
    // library made and nobody has destroyed.
    unsafe {
        std::env::set_var("POLYVERBS_CONFIG", DEVICES);
        let channel = channel::create();
        let (mut listener, context) = (ptr::null_mut(), ptr::null_mut());
        assert_eq!(
            id::create(channel, &raw mut listener, context, port_space::TCP),
            0
        );
        let mut at = address::write("127.0.41.32:0".parse().unwrap());
        assert_eq!(id::bind_addr(listener, (&raw mut at).cast()), 0);
        assert_eq!(connect::listen(listener, 1), 0);
        let port = u16::from_be(id::get_src_port(listener));

        let mut peer = TcpStream::connect(SocketAddr::from(([127, 0, 41, 32], port))).unwrap();
        peer.write_all(&REQUEST).unwrap();
        let asked = next(channel);
        assert_eq!((*asked).event, event::CONNECT_REQUEST);
        let server = (*asked).id;
        let mut init = IbvQpInitAttr {
            qp_type: qp_type::RC,
            cap: IbvQpCap {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            ..std::mem::zeroed()
        };
        assert_eq!(qp::create(server, ptr::null_mut(), &raw mut init), 0);
        assert_eq!(connect::accept(server, ptr::null_mut()), 0);
        channel::ack_event(asked);
        let mut reply = [0; 20];
        peer.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..16], *b"MPA ID Rep Frame");
        drop(peer);
        for expected in [event::ESTABLISHED, event::DISCONNECTED] {
            let told = next(channel);
            let seen = ((*told).event, (*told).id, (*told).status);
            assert_eq!(seen, (expected, server, 0));
            channel::ack_event(told);
        }
    }
}
