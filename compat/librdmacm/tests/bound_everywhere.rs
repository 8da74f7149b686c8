//! An identifier that is bound to every address: its port is told to peers, and nobody who asks there is refused.
#![allow(unsafe_code)]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ptr;

use polyverbs_librdmacm::abi::port_space;
use polyverbs_librdmacm::{address, channel, connect, id};

const DEVICES: &str = r#"
[[device]]
address = "127.0.41.31"
transport = "iwarp"
"#;

#[test]
fn who_asks_before_the_program_listens_waits() {
    // SAFETY: nothing has looked at the environment yet, and there is no other test here.
    unsafe { std::env::set_var("POLYVERBS_CONFIG", DEVICES) };
    let channel = channel::create();
    let mut made = ptr::null_mut();
    let mut everywhere = address::write("0.0.0.0:0".parse().unwrap());
    // SAFETY: pointers are to what the test has, or to what the library made.
    unsafe {
        let context = ptr::null_mut();
        let created = id::create(channel, &raw mut made, context, port_space::TCP);
        assert_eq!(created, 0);
        assert_eq!(id::bind_addr(made, (&raw mut everywhere).cast()), 0);
    }
    // SAFETY: as above.
    let port = u16::from_be(unsafe { id::get_src_port(made) });
    let told = SocketAddr::from(([127, 0, 41, 31], port));
    let _asked = TcpStream::connect(told).expect("the port takes streams");
    // SAFETY: as above.
    unsafe {
        assert_eq!(connect::listen(made, 0), 0);
        assert_eq!(u16::from_be(id::get_src_port(made)), port);
        assert_eq!(id::destroy(made), 0);
    }
    TcpListener::bind(told).expect("the port is free again");
}
