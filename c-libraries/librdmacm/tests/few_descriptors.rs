//! A server at every address, in a process whose limit of descriptors is too low for all devices.
#![allow(unsafe_code)]

use std::fs::File;
use std::net::TcpStream;
use std::ptr;

use polyverbs_librdmacm::abi::port_space;
use polyverbs_librdmacm::{address, bind, channel, id};

#[test]
fn a_server_leaves_devices_out_and_keeps_descriptors() {
    let device =
        |last| format!("[[device]]\naddress = \"127.0.47.{last}\"\ntransport = \"iwarp\"\n");
    let devices: String = (1..=16).map(device).collect();
    let limit = libc::rlimit {
        rlim_cur: 96,
        rlim_max: 96,
    };
    let mut made = ptr::null_mut();
    let mut everywhere = address::write("0.0.0.0:7479".parse().unwrap());
    test_kit::configure(&devices);
    // SAFETY: pointers are to what the test has.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        let context = ptr::null_mut();
        let created = id::create(channel::create(), &raw mut made, context, port_space::TCP);
        assert_eq!(created, 0);
        assert_eq!(bind::bind_addr(made, (&raw mut everywhere).cast()), 0);
        assert_eq!(bind::listen(made, 4), 0);
    }
    TcpStream::connect("127.0.47.1:7479").expect("the first device listens");
    TcpStream::connect("127.0.47.16:7479").expect_err("the last device is left out");
    File::open("/dev/null").expect("the program has descriptors");
}
