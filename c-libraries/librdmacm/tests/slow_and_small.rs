//! Rsockets on a device with short queues and a slow link. The route to the server begins at another address than the
//! server's.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::{fs, hint, ptr, thread};

use libc::{sockaddr, socklen_t};
use polyverbs_librdmacm::address;
use polyverbs_librdmacm::rsocket::calls;

const DEVICES: &str = r#"
[[device]]
address = "127.0.41.21"
fault = "delay=60ms"
limits = { max_qp_wr = 20, max_cqe = 60 }
"#;

fn configure() {
    test_kit::configure(DEVICES);
}

fn at(address: SocketAddr, then: impl FnOnce(*const sockaddr, socklen_t) -> c_int) {
    let raw = address::write(address);
    let length = address::length(address) as socklen_t;
    assert_eq!(then((&raw const raw).cast(), length), 0);
}

fn local(fd: c_int) -> SocketAddr {
    let mut raw = address::none();
    let mut length = size_of_val(&raw) as socklen_t;
    // SAFETY: room for any address.
    unsafe {
        let at = (&raw mut raw).cast();
        assert_eq!(calls::getsockname(fd, at, &raw mut length), 0);
        address::read(at).unwrap()
    }
}

fn bound(kind: c_int) -> c_int {
    let fd = calls::socket(libc::AF_INET, kind, 0);
    // SAFETY: an address as long as it says.
    at("127.0.41.21:0".parse().unwrap(), |address, length| unsafe {
        calls::bind(fd, address, length)
    });
    fd
}

fn connected(kind: c_int, to: SocketAddr) -> c_int {
    let fd = calls::socket(libc::AF_INET, kind, 0);
    // SAFETY: an address as long as it says.
    at(to, |address, length| unsafe {
        calls::connect(fd, address, length)
    });
    fd
}

fn send(fd: c_int, bytes: &[u8]) -> isize {
    // SAFETY: the pointer and the length are those of a slice.
    unsafe { calls::send(fd, bytes.as_ptr().cast(), bytes.len(), 0) }
}

fn receive(fd: c_int, room: &mut [u8], flags: c_int) -> isize {
    // SAFETY: the pointer and the length are those of a slice.
    unsafe { calls::recv(fd, room.as_mut_ptr().cast(), room.len(), flags) }
}

/// Whether a thread of this process sleeps.
fn is_asleep(thread: libc::pid_t) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    let state = stat.rsplit_once(") ").unwrap().1;
    state.starts_with('S')
}

fn own_thread() -> libc::pid_t {
    // SAFETY: a number.
    unsafe { libc::gettid() }
}

/// How many signals the test has handled.
static HANDLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn handle(_: c_int) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

/// More signals than these would keep the kernel's `nanosleep` from ending: interrupted sooner than the slack of its timer, it
/// returns more time as remaining than it was given.
const SIGNALS: u32 = 20;

/// Calls `then`, and interrupts it by signals while it sleeps. Returns what it returned, and how many signals it handled.
fn interrupted<T>(then: impl FnOnce() -> T) -> (T, u32) {
    let is_over = AtomicBool::new(false);
    // SAFETY: the handler adds to a number; the thread is there until the one that signals has ended.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()),
            0
        );
        let (this, thread) = (libc::pthread_self(), own_thread());
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut signals = 0;
                while signals < SIGNALS && !is_over.load(Ordering::SeqCst) {
                    let before = HANDLED.load(Ordering::SeqCst);
                    if is_asleep(thread) {
                        signals += 1;
                        libc::pthread_kill(this, libc::SIGUSR1);
                        test_kit::waiting::until(|| HANDLED.load(Ordering::SeqCst) > before);
                    }
                    hint::spin_loop();
                }
            });
            let before = HANDLED.load(Ordering::SeqCst);
            let returned = then();
            let handled = HANDLED.load(Ordering::SeqCst) - before;
            is_over.store(true, Ordering::SeqCst);
            (returned, handled)
        })
    }
}

#[test]
fn a_stream_passes_short_queues_and_a_signal_keeps_its_end() {
    configure();
    // On a busy machine everything may have arrived before the first signal is sent.
    test_kit::waiting::until(|| signals_while_a_stream_is_closed() > 0);
}

// Closes a stream, all of whose bytes must arrive; returns how many signals have interrupted the call.
fn signals_while_a_stream_is_closed() -> u32 {
    let listener = bound(libc::SOCK_STREAM);
    assert_eq!(calls::listen(listener, 1), 0);
    let to = local(listener);
    let reader = thread::spawn(move || {
        // SAFETY: null pointers: the peer's address is not wanted.
        let fd = unsafe { calls::accept(listener, ptr::null_mut(), ptr::null_mut()) };
        let mut room = vec![0; 300_000];
        let came = receive(fd, &mut room, libc::MSG_WAITALL);
        assert_eq!((calls::close(fd), calls::close(listener)), (0, 0));
        (came, room)
    });
    let fd = connected(libc::SOCK_STREAM, to);
    let bytes: Vec<u8> = (0..300_000_u32).map(|n| (n / 7) as u8).collect();
    assert_eq!(send(fd, &bytes), 300_000);
    let (closed, signals) = interrupted(|| calls::close(fd));
    assert_eq!(closed, 0);
    let (came, room) = reader.join().unwrap();
    assert_eq!(came, 300_000);
    assert!(room == bytes);
    signals
}

#[test]
fn datagrams_pass_short_queues_but_not_closed_sockets() {
    configure();
    let server = bound(libc::SOCK_DGRAM);
    let client = connected(libc::SOCK_DGRAM, local(server));
    for number in 0..3 {
        assert_eq!(send(client, &[number; 100]), 100);
        let mut room = [0; 200];
        assert_eq!(receive(server, &mut room, 0), 100);
        assert_eq!(room[..100], [number; 100]);
    }
    // Bytes that do not fit are lost, which a flag of the message reports.
    for (room, cut) in [(100, 0), (60, libc::MSG_TRUNC)] {
        assert_eq!(send(client, &[7; 100]), 100);
        let mut bytes = [0_u8; 100];
        let mut part = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: room,
        };
        // SAFETY: zeros are a value of the structure, and the part has the given length.
        let (received, flags) = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
            let received = calls::recvmsg(server, &raw mut message, 0);
            (received, message.msg_flags)
        };
        assert_eq!((received, flags), (room as isize, cut));
    }
    let raw = address::write("[::1]:7174".parse().unwrap());
    let length = size_of::<libc::sockaddr_in6>() as socklen_t;
    // SAFETY: a byte, and an address as long as it says.
    let sent = unsafe {
        let to = (&raw const raw).cast();
        calls::sendto(client, b"x".as_ptr().cast(), 1, 0, to, length)
    };
    let why = std::io::Error::last_os_error().raw_os_error();
    assert_eq!((sent, why), (-1, Some(libc::EAFNOSUPPORT)));
    // Closing the socket ends a call that waits for it.
    let (tell, told) = mpsc::channel();
    let waiter = thread::spawn(move || {
        tell.send(own_thread()).unwrap();
        let answer = receive(server, &mut [0; 8], 0);
        (answer, std::io::Error::last_os_error().raw_os_error())
    });
    let waits = told.recv().unwrap();
    test_kit::waiting::until(|| is_asleep(waits));
    assert_eq!(calls::close(server), 0);
    assert_eq!(waiter.join().unwrap(), (-1, Some(libc::EBADF)));
    assert_eq!(calls::close(client), 0);
    assert_eq!(send(client, b"x"), -1);
}
