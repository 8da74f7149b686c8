//! Sets of rsockets and other files that a program waits for, as with epoll.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io::{self, PipeReader, PipeWriter, Write as _};
use std::os::fd::AsRawFd as _;
use std::ptr;
use std::sync::mpsc;
use std::thread;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event};
use polyverbs_librdmacm::address;
use polyverbs_librdmacm::rsocket::calls;
use test_kit::waiting::{WatchedThread, until};

const DEVICES: &str = "[[device]]\naddress = \"127.0.41.35\"\n";
const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;

// A call of a function of C.
macro_rules! call {
    ($call:expr) => {{
        // SAFETY: pointers are null, or to memory of the test.
        unsafe { $call }
    }};
}

#[track_caller]
fn refused(answer: c_int, errno: c_int) {
    let last = io::Error::last_os_error().raw_os_error();
    assert_eq!((answer, last), (-1, Some(errno)));
}

/// A set, which is closed when dropped.
struct Set(c_int);

impl Set {
    fn new() -> Self {
        let set = calls::repoll_create(libc::O_CLOEXEC);
        assert!(set >= 0);
        Self(set)
    }

    fn control(&self, operation: c_int, fd: c_int, events: u32) -> c_int {
        let data = (fd as u64).wrapping_add(1000);
        let event = epoll_event { events, u64: data };
        call!(calls::repoll_ctl(self.0, operation, fd, &raw const event))
    }

    fn add(&self, fd: c_int, events: u32) {
        assert_eq!(self.control(EPOLL_CTL_ADD, fd, events), 0);
    }

    /// The ready files, and their events.
    fn wait(&self, most: usize, timeout: c_int) -> Vec<(c_int, u32)> {
        let mut room = vec![epoll_event { events: 0, u64: 0 }; most];
        let at = room.as_mut_ptr();
        let found = call!(calls::repoll_wait(self.0, at, most as c_int, timeout));
        let found = usize::try_from(found).expect("no error");
        room.truncate(found);
        room.iter()
            .map(|one| ((one.u64 - 1000) as c_int, one.events))
            .collect()
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        assert_eq!(calls::close(self.0), 0);
    }
}

fn written() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = io::pipe().unwrap();
    writer.write_all(b"!").unwrap();
    (reader, writer)
}

#[test]
fn sockets_and_other_files_are_reported_while_they_are_ready() {
    test_kit::configure(DEVICES);
    let listener = calls::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
    let mut at = address::write("127.0.41.35:0".parse().unwrap());
    let at = (&raw mut at).cast::<libc::sockaddr>();
    let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    assert_eq!(call!(calls::bind(listener, at, length)), 0);
    assert_eq!(calls::listen(listener, 4), 0);
    let mut room = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    assert_eq!(call!(calls::getsockname(listener, at, &raw mut room)), 0);
    let set = Set::new();
    set.add(listener, IN);
    assert_eq!(set.wait(4, 0), []);
    let client = calls::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
    assert_eq!(call!(calls::connect(client, at, length)), 0);
    assert_eq!(set.wait(4, -1), [(listener, IN)]);
    let server = call!(calls::accept(listener, ptr::null_mut(), ptr::null_mut()));
    assert!(server >= 0);
    set.add(server, IN);
    let sent = call!(calls::send(client, c"data".as_ptr().cast::<c_void>(), 4, 0));
    assert_eq!(sent, 4);
    assert_eq!(set.wait(4, -1), [(server, IN)]);
    assert_eq!(set.wait(4, 0), [(server, IN)], "level-triggered");
    let (reader, _writer) = written();
    set.add(reader.as_raw_fd(), IN);
    let mut both = set.wait(4, -1);
    both.sort_unstable();
    let mut expected = [(server, IN), (reader.as_raw_fd(), IN)];
    expected.sort_unstable();
    assert_eq!(both, expected);
    assert_eq!(set.control(EPOLL_CTL_MOD, server, OUT), 0);
    assert!(set.wait(4, -1).contains(&(server, OUT)));
    // A closed socket leaves the set.
    for socket in [server, client, listener] {
        assert_eq!(calls::close(socket), 0);
    }
    assert_eq!(set.wait(4, -1), [(reader.as_raw_fd(), IN)]);
}

#[test]
fn every_ready_file_has_its_turn() {
    let set = Set::new();
    let pipes = [written(), written(), written()];
    for (reader, _) in &pipes {
        set.add(reader.as_raw_fd(), IN);
    }
    let mut found: Vec<_> = (0..3).flat_map(|_| set.wait(1, -1)).collect();
    found.sort_unstable();
    let mut all = pipes.each_ref().map(|(reader, _)| (reader.as_raw_fd(), IN));
    all.sort_unstable();
    assert_eq!(found, all);
    let once = pipes[0].0.as_raw_fd();
    for (reader, _) in &pipes[1..] {
        assert_eq!(set.control(EPOLL_CTL_DEL, reader.as_raw_fd(), 0), 0);
    }
    assert_eq!(set.control(EPOLL_CTL_MOD, once, IN | ONE_SHOT), 0);
    assert_eq!(set.wait(4, -1), [(once, IN)]);
    assert_eq!(set.wait(4, 0), [], "reported once");
    assert_eq!(set.control(EPOLL_CTL_MOD, once, IN), 0);
    assert_eq!(set.wait(4, -1), [(once, IN)]);
}

#[test]
fn a_change_of_the_set_reaches_a_thread_that_waits() {
    let set = Set::new();
    let (reader, _writer) = written();
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let waiting = &set;
        let waits = scope.spawn(move || {
            tell.send(WatchedThread::current()).unwrap();
            waiting.wait(1, -1)
        });
        let thread = told.recv().unwrap();
        until(|| thread.is_blocked());
        set.add(reader.as_raw_fd(), IN);
        assert_eq!(waits.join().unwrap(), [(reader.as_raw_fd(), IN)]);
    });
}

#[test]
fn wrong_arguments_of_sets_are_refused() {
    let set = Set::new();
    let (reader, _writer) = written();
    let fd = reader.as_raw_fd();
    refused(calls::repoll_create(1), libc::EINVAL);
    refused(set.control(EPOLL_CTL_ADD, -1, IN), libc::EBADF);
    refused(set.control(EPOLL_CTL_ADD, 100_000, IN), libc::EBADF);
    refused(set.control(EPOLL_CTL_ADD, set.0, IN), libc::EINVAL);
    let other = Set::new();
    refused(set.control(EPOLL_CTL_ADD, other.0, IN), libc::EINVAL);
    refused(set.control(9, fd, IN), libc::EINVAL);
    refused(set.control(EPOLL_CTL_MOD, fd, IN), libc::ENOENT);
    refused(set.control(EPOLL_CTL_DEL, fd, IN), libc::ENOENT);
    set.add(fd, IN);
    refused(set.control(EPOLL_CTL_ADD, fd, IN), libc::EEXIST);
    let nothing = ptr::null();
    refused(
        call!(calls::repoll_ctl(set.0, EPOLL_CTL_MOD, fd, nothing)),
        libc::EFAULT,
    );
    assert_eq!(
        call!(calls::repoll_ctl(set.0, EPOLL_CTL_DEL, fd, nothing)),
        0
    );
    let room = &mut [epoll_event { events: 0, u64: 0 }];
    let room = room.as_mut_ptr();
    refused(call!(calls::repoll_wait(set.0, room, 0, 0)), libc::EINVAL);
    refused(
        call!(calls::repoll_wait(set.0, ptr::null_mut(), 1, 0)),
        libc::EFAULT,
    );
    refused(call!(calls::repoll_wait(fd, room, 1, 0)), libc::EINVAL);
    refused(call!(calls::repoll_wait(100_000, room, 1, 0)), libc::EBADF);
}
