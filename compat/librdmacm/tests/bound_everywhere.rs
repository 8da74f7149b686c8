//! An identifier that is bound to every address: its devices are open, so that listening takes no time.
#![allow(unsafe_code)]

use std::net::UdpSocket;
use std::ptr;

use polyverbs_librdmacm::abi::port_space;
use polyverbs_librdmacm::{address, channel, id};

const DEVICES: &str = r#"
[[device]]
address = "127.0.41.31"
"#;
const ROCE: &str = "127.0.41.31:4791";

#[test]
fn devices_are_open_before_the_program_listens() {
    // SAFETY: nothing has looked at the environment yet, and there is no other test here.
    unsafe { std::env::set_var("POLYVERBS_CONFIG", DEVICES) };
    drop(UdpSocket::bind(ROCE).expect("nobody is there yet"));
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
    assert!(UdpSocket::bind(ROCE).is_err(), "the device is not open");
}
