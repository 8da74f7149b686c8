//! The errors that a program without a device gets.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;

use libc::socklen_t;
use polyverbs_librdmacm::rsocket::calls;
use polyverbs_librdmacm::{address, device};

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

#[test]
fn without_devices_calls_return_error_numbers() {
    test_kit::configure("device = []");
    let mut count = 7;
    // SAFETY: the pointer is to a number, or null.
    let (list, again) = unsafe {
        let list = device::get_devices(&raw mut count);
        (list, device::get_devices(ptr::null_mut()))
    };
    assert!(list.is_null() && again.is_null());
    assert_eq!((count, errno()), (0, libc::ENODEV));

    let raw = address::write("127.0.0.1:7471".parse().unwrap());
    let (at, length) = ((&raw const raw).cast(), size_of_val(&raw) as socklen_t);
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
        let fd = calls::socket(libc::AF_INET, kind, 0);
        // SAFETY: an address as long as it says.
        assert_eq!(unsafe { calls::connect(fd, at, length) }, -1);
        assert_eq!(errno(), libc::ENODEV);
        assert_eq!(calls::close(fd), 0);
    }
}
