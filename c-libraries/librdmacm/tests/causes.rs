//! The error number of a call is that of the cause, whichever layer of the library finds it.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;

use polyverbs_libibverbs::open::open_device;
use polyverbs_librdmacm::abi::port_space;
use polyverbs_librdmacm::rsocket::calls;
use polyverbs_librdmacm::{address, bind, id};

const DEVICES: &str = r#"
[[device]]
address = "192.0.2.77"
[[device]]
address = "192.0.2.77"
transport = "iwarp"
[[device]]
address = "127.0.41.77"
[[device]]
address = "127.0.41.78"
transport = "iwarp"
"#;

// The error numbers of binding an identifier and an rsocket to an address.
fn of_binding(to: &str) -> [c_int; 2] {
    let errno = || std::io::Error::last_os_error().raw_os_error().unwrap();
    let raw = address::write(format!("{to}:7477").parse().unwrap());
    let at = (&raw const raw).cast_mut().cast();
    let mut made = ptr::null_mut();
    let fd = calls::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
    // SAFETY: pointers to what the test has, or what the library made.
    unsafe {
        let channel = ptr::null_mut();
        assert_eq!(
            id::create(channel, &raw mut made, ptr::null_mut(), port_space::TCP),
            0
        );
        assert_eq!(bind::bind_addr(made, at), -1);
        let of_identifier = errno();
        assert_eq!(id::destroy(made), 0);
        assert_eq!(calls::bind(fd, at, size_of_val(&raw) as u32), -1);
        let of_socket = errno();
        assert_eq!(calls::close(fd), 0);
        [of_identifier, of_socket]
    }
}

#[test]
fn a_device_that_cannot_be_opened_gives_the_cause() {
    test_kit::configure(DEVICES);
    for listed in &polyverbs_libibverbs::device::devices()[..2] {
        assert!(open_device(listed.as_public()).is_null());
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert_eq!(errno, Some(libc::EADDRNOTAVAIL));
    }
    assert_eq!(of_binding("192.0.2.77"), [libc::EADDRNOTAVAIL; 2]);
    assert_eq!(of_binding("192.0.2.78"), [libc::EADDRNOTAVAIL; 2]);

    // These descriptors are enough for the calls themselves, but not for a device.
    let limit = libc::rlimit {
        rlim_cur: 64,
        rlim_max: 64,
    };
    // SAFETY: a structure of the test's.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(set, 0);
    let files = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok());
    let mut held: Vec<_> = files.collect();
    held.truncate(held.len() - 4);
    for there in ["127.0.41.77", "127.0.41.78"] {
        assert_eq!(of_binding(there), [libc::EMFILE; 2], "{there}");
    }
}
