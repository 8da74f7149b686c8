//! The parent's rsockets in a child of a fork.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;

use libc::{pollfd, socklen_t};
use polyverbs_librdmacm::address;
use polyverbs_librdmacm::rsocket::calls;

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

#[test]
fn a_child_of_a_fork_can_only_close_its_parents_sockets() {
    let bound = |kind| {
        let fd = calls::socket(libc::AF_INET, kind, 0);
        let raw = address::write("127.0.0.1:0".parse().unwrap());
        let length = size_of::<libc::sockaddr_in>() as socklen_t;
        // SAFETY: an address as long as it says.
        let bound = unsafe { calls::bind(fd, (&raw const raw).cast(), length) };
        assert_eq!(bound, 0);
        fd
    };
    let (stream, datagram) = (bound(libc::SOCK_STREAM), bound(libc::SOCK_DGRAM));
    assert_eq!(calls::listen(stream, 1), 0);
    // SAFETY: no other thread of the test uses what the child does.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut entry = pollfd {
            fd: stream,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: null pointers for an address; one entry; room for a byte. The child ends without its parent's code.
        unsafe {
            let mut room = 0_u8;
            let told = [
                calls::accept(stream, ptr::null_mut(), ptr::null_mut()) == -1
                    && errno() == libc::EBADF,
                calls::poll(&raw mut entry, 1, -1) == -1 && errno() == libc::EBADF,
                calls::recv(datagram, (&raw mut room).cast(), 1, 0) == -1 && errno() == libc::EBADF,
                calls::close(stream) == 0,
                calls::close(datagram) == 0,
                libc::fcntl(stream, libc::F_GETFD) == -1,
            ];
            let wrong = told.iter().position(|was| !was);
            libc::_exit(wrong.map_or(0, |place| 1 + place as c_int));
        }
    }
    let mut status = 0;
    // SAFETY: a child of ours, and room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!((calls::close(stream), calls::close(datagram)), (0, 0));
}
