//! The functions that replace those of the C library for RDS sockets. Each has the arguments, the result and the errors of
//! the C function whose name follows `polyverbs_rds_`.
//!
//! A descriptor for which this process has no socket was inherited from the parent process. Such a descriptor can only be closed
//! and duplicated, as any file.
// The arguments are pointers of programs.
#![allow(unsafe_code)]
// Each function has the contract of the C function that it replaces.
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, IntoRawFd as _, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{ptr, slice};

use libc::{iovec, mmsghdr, msghdr, off_t, sockaddr, socklen_t, timespec};
use polyverbs::emulated::{is_own_descriptor, without_own_descriptors};
use polyverbs::memory::copy;
use polyverbs::provider::wait_for_threads;
use polyverbs_abi::address;
use polyverbs_rds::{Outgoing, Sleeping};
use rustix::io::Errno;

use crate::control::{Room, Sent};
use crate::devices;
use crate::operations;
use crate::options::{self, Kept};
use crate::signals::{Inside, close_later};
use crate::socket::{Socket, errno, poll_begins};
use crate::table::{self, Descriptors};

// These numbers come from `linux/rds.h`.
const RDS_CMSG_RDMA_DEST: c_int = 2;
const RDS_CMSG_RDMA_STATUS: c_int = 4;
const RDS_CMSG_CONG_UPDATE: c_int = 5;
const RDS_GET_MR: c_int = 2;
const RDS_GET_MR_FOR_DEST: c_int = 7;
const SIOCRDSGETTOS: c_ulong = 0x89e1;

/// Stores the bit array that marks the descriptors whose calls `libpolyverbs_redirect.so` forwards to this library. It must
/// be called before all other functions.
#[unsafe(no_mangle)]
pub extern "C" fn polyverbs_rds_start(descriptors: &'static Descriptors) {
    table::start(descriptors);
    polyverbs_rds::look_first_at(devices::configured);
}

/// Whether the library itself uses a descriptor, which it does not show to programs.
#[unsafe(no_mangle)]
pub extern "C" fn polyverbs_rds_is_own(fd: c_int) -> c_int {
    is_own_descriptor(fd).into()
}

/// Notes that the calling thread is about to sleep in a call of the C library such as `poll`, so that changes of sockets
/// are reported at once until [`polyverbs_rds_is_awake`]. Takes no lock.
#[unsafe(no_mangle)]
pub extern "C" fn polyverbs_rds_sleeps() {
    poll_begins();
    // A signal handler that interrupts this function, or calls it, finds the mark and does not wait for a lock.
    let _inside = Inside::enter();
    std::mem::forget(Sleeping::new());
}

/// Notes that the thread which called [`polyverbs_rds_sleeps`] has returned from that call of the C library.
#[unsafe(no_mangle)]
pub extern "C" fn polyverbs_rds_is_awake() {
    Sleeping::forgotten_is_over();
}

/// Returns 1 if the descriptor still is the socket that it was, and 0 if the program has closed it by a call that is not
/// redirected and the kernel has reused its number. Takes no lock.
#[unsafe(no_mangle)]
pub extern "C" fn polyverbs_rds_is_ours(fd: c_int) -> c_int {
    table::is_there(fd).into()
}

/// Replaces the C library's `fclose` for a stream on the descriptor of an RDS socket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_fclose(stream: *mut libc::FILE) -> c_int {
    let inside = Inside::enter();
    // SAFETY: the stream is open.
    let descriptor = unsafe { libc::fileno(stream) };
    // The stream is closed even if the end of the socket fails.
    let _ = caught(|| {
        end(table::remove(descriptor));
        Ok(())
    });
    drop(inside);
    // SAFETY: the stream is open. The redirected `fclose` forwards it, because the table has no entry for its descriptor now.
    unsafe { libc::fclose(stream) }
}

/// Replaces the C library's `socket` for the domain `AF_RDS`.
#[unsafe(no_mangle)]
pub extern "C" fn polyverbs_rds_socket(_domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    answer(|| {
        if kind & !flags != libc::SOCK_SEQPACKET || protocol != 0 {
            return Err(Errno::SOCKTNOSUPPORT);
        }
        operations::outlive_faults()?;
        let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        let (socket, descriptor) = Socket::new(nonblocking, kind & libc::SOCK_CLOEXEC != 0)?;
        match table::insert(descriptor.as_raw_fd(), socket) {
            true => Ok(descriptor.into_raw_fd()),
            false => Err(Errno::MFILE),
        }
    })
}

/// Replaces the C library's `bind` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_bind(
    fd: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> c_int {
    done(|| {
        // SAFETY: the program passes an address of this length.
        let at = unsafe { read_address(address, length, Errno::INVAL) }?;
        find(fd)?.rds.bind_to(at).map_err(errno)
    })
}

/// Replaces the C library's `connect` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_connect(
    fd: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> c_int {
    done(|| {
        // SAFETY: the program passes an address of this length.
        let to = unsafe { read_address(address, length, Errno::AFNOSUPPORT) }?;
        find(fd)?.rds.connect(to).map_err(errno)
    })
}

/// Replaces the C library's `getsockname` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_getsockname(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    done(|| {
        let socket = find(fd)?;
        let local = socket.rds.local_addr();
        // A socket without an address reports the address family of its connected destination, if it has one.
        let peer = socket.rds.peer_addr();
        let mut name = local.map_or_else(address::none, address::write);
        let length_of_name = local
            .or(peer)
            .map_or(size_of::<libc::sockaddr_in>(), address::length);
        if let (None, Some(peer)) = (local, peer) {
            // SAFETY: the address of each family begins with the family.
            name.any.sa_family = unsafe { address::write(peer).any.sa_family };
        }
        // SAFETY: the program passes the pointers that the C function requires.
        unsafe { write_name(&name, length_of_name, address, length) }
    })
}

/// Replaces the C library's `getpeername` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_getpeername(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    done(|| {
        let peer = find(fd)?.rds.peer_addr().ok_or(Errno::NOTCONN)?;
        // SAFETY: the program passes the pointers that the C function requires.
        unsafe {
            write_name(
                &address::write(peer),
                address::length(peer),
                address,
                length,
            )
        }
    })
}

/// Replaces the C library's `send` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_send(
    fd: c_int,
    source: *const c_void,
    size: usize,
    flags: c_int,
) -> isize {
    // SAFETY: the program's buffer has `size` bytes, and no address is passed.
    unsafe { polyverbs_rds_sendto(fd, source, size, flags, ptr::null(), 0) }
}

/// Replaces the C library's `sendto` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_sendto(
    fd: c_int,
    source: *const c_void,
    size: usize,
    flags: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> isize {
    count(|| {
        // SAFETY: the program passes the pointers that the C function requires.
        unsafe {
            let (data, to) = (bytes(source, size)?, read_destination(address, length)?);
            send(&*find(fd)?, &[IoSlice::new(data)], to, &[], flags)
        }
    })
}

/// Replaces the C library's `sendmsg` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> isize {
    count(|| {
        // SAFETY: the program passes a pointer to a message.
        let message = unsafe { found(message) }?;
        // SAFETY: the program passes a valid message.
        unsafe { send_message(&*find(fd)?, message, flags) }
    })
}

/// Replaces the C library's `sendmmsg` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    answer(|| {
        let socket = find(fd)?;
        // SAFETY: the program's array has `count` messages.
        let messages = unsafe { messages_of(messages, count) }?;
        several(messages, |message| {
            // SAFETY: the program passes a valid message.
            unsafe { send_message(&socket, &message.msg_hdr, flags) }
        })
    })
}

/// Replaces the C library's `write` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_write(
    fd: c_int,
    source: *const c_void,
    size: usize,
) -> isize {
    // SAFETY: the program's buffer has `size` bytes.
    unsafe { polyverbs_rds_send(fd, source, size, 0) }
}

/// Replaces the C library's `writev` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_writev(
    fd: c_int,
    list: *const iovec,
    length: c_int,
) -> isize {
    count(|| {
        let length = usize::try_from(length).map_err(|_| Errno::INVAL)?;
        // SAFETY: the program's list has `length` parts.
        unsafe {
            let data = sources(list, length, Errno::INVAL)?;
            send(&*find(fd)?, &data, None, &[], 0)
        }
    })
}

/// Replaces the C library's `recv` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_recv(
    fd: c_int,
    target: *mut c_void,
    size: usize,
    flags: c_int,
) -> isize {
    // SAFETY: the program's buffer has `size` bytes, and no address is asked for.
    unsafe { polyverbs_rds_recvfrom(fd, target, size, flags, ptr::null_mut(), ptr::null_mut()) }
}

/// Replaces the C library's `recvfrom` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_recvfrom(
    fd: c_int,
    target: *mut c_void,
    size: usize,
    flags: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> isize {
    count(|| {
        let socket = find(fd)?;
        let part = iovec {
            iov_base: target,
            iov_len: size,
        };
        // SAFETY: the program's buffer has this many bytes.
        let mut target = unsafe { targets(&socket, &[part]) }?;
        let mut none = Room::new(&mut []);
        let received = receive(&socket, &mut target, &mut none, flags)?;
        if !address.is_null() {
            // SAFETY: the program passes the pointers that the C function requires.
            unsafe { write_source(received.from, address, length) }?;
        }
        Ok(received.length)
    })
}

/// Replaces the C library's `recvmsg` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_recvmsg(
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> isize {
    count(|| {
        // SAFETY: the program passes a pointer to a message.
        let message = unsafe { found_mut(message) }?;
        // SAFETY: the program passes a valid message.
        unsafe { receive_message(&*find(fd)?, message, flags) }
    })
}

/// Replaces the C library's `recvmmsg` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    time: *mut timespec,
) -> c_int {
    answer(|| {
        let socket = find(fd)?;
        // SAFETY: the program's array has `count` messages, and the time is valid or null.
        let (messages, time) = unsafe {
            let time = match time.is_null() {
                true => None,
                false => Some(found(time)?),
            };
            (messages_of(messages, count)?, time)
        };
        let time = time.map(|time| {
            Duration::new(
                time.tv_sec.max(0) as u64,
                time.tv_nsec.clamp(0, 999_999_999) as u32,
            )
        });
        let end = time.and_then(|time| Instant::now().checked_add(time));
        let mut received = 0;
        let mut flags = flags & !libc::MSG_WAITFORONE | flags & libc::MSG_WAITFORONE;
        several(messages, |message| {
            if received > 0 && end.is_some_and(|end| Instant::now() >= end) {
                return Err(Errno::AGAIN);
            }
            // SAFETY: the program passes a valid message.
            let length = unsafe { receive_message(&socket, &mut message.msg_hdr, flags) }?;
            received += 1;
            if flags & libc::MSG_WAITFORONE != 0 {
                flags |= libc::MSG_DONTWAIT;
            }
            Ok(length)
        })
    })
}

/// Replaces the C library's `read` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_read(fd: c_int, target: *mut c_void, size: usize) -> isize {
    if size == 0 {
        return count(|| find(fd).map(|_| 0));
    }
    // SAFETY: the program's buffer has `size` bytes.
    unsafe { polyverbs_rds_recv(fd, target, size, 0) }
}

/// Replaces the C library's `readv` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_readv(
    fd: c_int,
    list: *const iovec,
    length: c_int,
) -> isize {
    count(|| {
        let length = usize::try_from(length).map_err(|_| Errno::INVAL)?;
        let socket = find(fd)?;
        // SAFETY: the program's list has `length` parts.
        let mut target = unsafe { targets(&socket, parts(list, length, Errno::INVAL)?) }?;
        if target.iter().all(|part| part.is_empty()) {
            return Ok(0);
        }
        Ok(receive(&socket, &mut target, &mut Room::new(&mut []), 0)?.length)
    })
}

/// Replaces the C library's `__read_chk` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds___read_chk(
    fd: c_int,
    target: *mut c_void,
    size: usize,
    room: usize,
) -> isize {
    check(size, room);
    // SAFETY: the program's buffer has `size` bytes.
    unsafe { polyverbs_rds_read(fd, target, size) }
}

/// Replaces the C library's `__recv_chk` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds___recv_chk(
    fd: c_int,
    target: *mut c_void,
    size: usize,
    room: usize,
    flags: c_int,
) -> isize {
    check(size, room);
    // SAFETY: the program's buffer has `size` bytes.
    unsafe { polyverbs_rds_recv(fd, target, size, flags) }
}

/// Replaces the C library's `__recvfrom_chk` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds___recvfrom_chk(
    fd: c_int,
    target: *mut c_void,
    size: usize,
    room: usize,
    flags: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> isize {
    check(size, room);
    // SAFETY: the program's buffer has `size` bytes, and the other pointers are those that the C function gets.
    unsafe { polyverbs_rds_recvfrom(fd, target, size, flags, address, length) }
}

fn check(size: usize, room: usize) {
    assert!(size <= room, "{size} bytes are read into {room}");
}

/// Replaces the C library's `getsockopt` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    done(|| {
        let socket = find(fd)?;
        // SAFETY: null, or the length of the program's buffer at `value`.
        let room = unsafe { found_mut(length) }?;
        let size = usize::try_from((*room).cast_signed()).map_err(|_| Errno::INVAL)?;
        let Kept::Here(number) = options::get(&socket, level, name, size)? else {
            // SAFETY: the program passes the pointers that the C function requires.
            let result =
                unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value, length) };
            return by_the_system(result).map(drop);
        };
        let number = number.to_ne_bytes();
        let size = size.min(number.len());
        // SAFETY: the program's buffer has this many bytes.
        unsafe { self::room(value, size) }?.copy_from_slice(&number[..size]);
        *room = size as socklen_t;
        Ok(())
    })
}

/// Replaces the C library's `setsockopt` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    done(|| {
        let socket = find(fd)?;
        let size = usize::try_from(length.cast_signed()).map_err(|_| Errno::INVAL)?;
        // SAFETY: the program's buffer has this many bytes.
        let bytes = unsafe { bytes(value, size) }?;
        if level == libc::SOL_RDS && matches!(name, RDS_GET_MR | RDS_GET_MR_FOR_DEST) {
            // Registration does not depend on the address of the destination.
            let skip = match name {
                RDS_GET_MR => 0,
                _ => size_of::<libc::sockaddr_storage>(),
            };
            let arguments = options::words(bytes.get(skip..).ok_or(Errno::INVAL)?)?;
            // SAFETY: the program names the memory and the place for the cookie.
            return unsafe { operations::get_mr(&socket, arguments) }.map(drop);
        }
        match options::set(&socket, level, name, bytes)? {
            Kept::Here(()) => Ok(()),
            // SAFETY: the program passes the pointers that the C function requires.
            Kept::WithTheFile => by_the_system(unsafe {
                libc::syscall(libc::SYS_setsockopt, fd, level, name, value, length)
            })
            .map(drop),
        }
    })
}

/// Replaces the C library's `ioctl` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_ioctl(
    fd: c_int,
    request: c_ulong,
    argument: *mut c_void,
) -> c_int {
    answer(|| {
        let socket = table::find(fd);
        match (request, &socket) {
            (libc::FIONREAD, Some(socket)) => {
                let bytes = socket.rds.next_length().unwrap_or(0) as c_int;
                // SAFETY: null, or room for the number.
                *unsafe { found_mut(argument.cast::<c_int>()) }? = bytes;
                Ok(0)
            }
            // All messages have this type of service.
            (SIOCRDSGETTOS, Some(_)) => {
                // SAFETY: null, or room for the number.
                *unsafe { found_mut(argument.cast::<u8>()) }? = 0;
                Ok(0)
            }
            // The kernel would report the bytes of the Unix socket that backs the descriptor, not of the RDS socket.
            (libc::TIOCOUTQ | libc::FIONREAD, _) => Err(Errno::NOTTY),
            // SAFETY: the program passes the argument that the C function requires.
            _ => by_the_system(unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) }),
        }
    })
}

/// Replaces the C library's `fcntl` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_fcntl(
    fd: c_int,
    command: c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the program passes the argument that the C function requires.
    let done = || by_the_system(unsafe { libc::syscall(libc::SYS_fcntl, fd, command, argument) });
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => answer(|| duplicated(fd, done()?)),
        _ => result(done().map(|done| done as usize)) as c_int,
    }
}

/// Replaces the C library's `fcntl64` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyverbs_rds_fcntl64(
    fd: c_int,
    command: c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: both functions have the same contract.
    unsafe { polyverbs_rds_fcntl(fd, command, argument) }
}

/// Replaces the C library's `dup` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub extern "C" fn polyverbs_rds_dup(fd: c_int) -> c_int {
    answer(|| {
        // SAFETY: the call has no pointers.
        let new = by_the_system(unsafe { libc::syscall(libc::SYS_dup, fd) })?;
        duplicated(fd, new)
    })
}

/// Replaces the C library's `dup2` where the old or the new descriptor is an RDS socket.
#[unsafe(no_mangle)]
pub extern "C" fn polyverbs_rds_dup2(old: c_int, new: c_int) -> c_int {
    if old != new {
        return polyverbs_rds_dup3(old, new, 0);
    }
    answer(|| {
        // SAFETY: the call has no pointers.
        by_the_system(unsafe { libc::syscall(libc::SYS_fcntl, old, libc::F_GETFD) })?;
        Ok(new)
    })
}

/// Replaces `dup3`. The new descriptor may be a socket too. A number of the library is busy, as one is that another thread is
/// opening.
#[unsafe(no_mangle)]
pub extern "C" fn polyverbs_rds_dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    answer(|| {
        if is_own_descriptor(new) {
            return Err(Errno::BUSY);
        }
        // SAFETY: the call has no pointers.
        by_the_system(unsafe { libc::syscall(libc::SYS_dup3, old, new, flags) })?;
        if table::is_own() {
            end(table::remove(new));
        }
        duplicated(old, new)
    })
}

// Enters a duplicate of a socket's descriptor, which the kernel has made, into the table of sockets.
fn duplicated(old: RawFd, new: RawFd) -> Result<RawFd, Errno> {
    let socket = table::find(old).filter(|_| table::is_own());
    if socket.is_none_or(|socket| table::insert(new, socket)) {
        return Ok(new);
    }
    // SAFETY: the program does not know the new descriptor yet.
    unsafe { libc::syscall(libc::SYS_close, new) };
    Err(Errno::MFILE)
}

/// Replaces the C library's `close` for the descriptors of RDS sockets. If a signal handler calls it while it interrupts
/// another of these calls, the descriptor is closed when that call ends.
#[unsafe(no_mangle)]
pub extern "C" fn polyverbs_rds_close(fd: c_int) -> c_int {
    let Some(inside) = Inside::enter() else {
        close_later(fd, |fd| _ = caught(|| close(fd)));
        return 0;
    };
    let closed = caught(|| close(fd));
    drop(inside);
    result(closed.map(|()| 0)) as c_int
}

fn close(fd: RawFd) -> Result<(), Errno> {
    // To the program a descriptor of the library is none.
    if is_own_descriptor(fd) {
        return Err(Errno::BADF);
    }
    let socket = table::is_own().then(|| table::remove(fd)).flatten();
    // SAFETY: the program gives the descriptor up.
    let closed = by_the_system(unsafe { libc::syscall(libc::SYS_close, fd) });
    // If this was the last descriptor of the socket, its address is free before the call returns.
    end(socket);
    closed.map(drop)
}

/// How long the close of the last socket waits for the threads of the library to end.
const ENDING: Duration = Duration::from_secs(1);

// Closes sockets that have lost a descriptor. If they were the last sockets of this process, waits until the threads and
// descriptors of the library are gone too.
fn end(sockets: impl IntoIterator<Item = Arc<Socket>>) {
    let mut is_in_use = false;
    for socket in sockets {
        is_in_use |= Arc::strong_count(&socket) > 1;
        socket.close();
    }
    if !is_in_use && table::is_empty() {
        wait_for_threads(ENDING);
    }
}

/// Replaces the C library's `close_range` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub extern "C" fn polyverbs_rds_close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    done(|| {
        let closes = flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0;
        let sockets: Vec<Arc<Socket>> = match closes && table::is_own() {
            true => table::within(first..=last)
                .filter_map(table::remove)
                .collect(),
            false => Vec::new(),
        };
        // The sockets are closed first, because the range may include descriptors that their nodes still use.
        end(sockets);
        for part in without_own_descriptors(first..=last) {
            let (first, last) = part.into_inner();
            // SAFETY: the program gives the descriptors up.
            by_the_system(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) })?;
        }
        Ok(())
    })
}

/// Replaces the C library's `closefrom` for the descriptors of RDS sockets.
#[unsafe(no_mangle)]
pub extern "C" fn polyverbs_rds_closefrom(first: c_int) {
    polyverbs_rds_close_range(first.max(0).cast_unsigned(), c_uint::MAX, 0);
}

macro_rules! not_supported {
    ($(fn $name:ident($($type:ty),*) -> $answer:ty { $errno:ident })*) => {$(
        /// Fails for RDS sockets, which do not support this function of the C library.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(fd: c_int $(, _: $type)*) -> $answer {
            answer(|| find(fd).and(Err(Errno::$errno))) as $answer
        }
    )*};
}

not_supported! {
    fn polyverbs_rds_accept(*mut sockaddr, *mut socklen_t) -> c_int { OPNOTSUPP }
    fn polyverbs_rds_accept4(*mut sockaddr, *mut socklen_t, c_int) -> c_int { OPNOTSUPP }
    fn polyverbs_rds_listen(c_int) -> c_int { OPNOTSUPP }
    fn polyverbs_rds_shutdown(c_int) -> c_int { OPNOTSUPP }
    // The socket is not a file for the C library's `sendfile`; programs fall back to reading and writing.
    fn polyverbs_rds_sendfile(c_int, *mut off_t, usize) -> isize { INVAL }
    fn polyverbs_rds_sendfile64(c_int, *mut off_t, usize) -> isize { INVAL }
}

fn find(fd: c_int) -> Result<Arc<Socket>, Errno> {
    table::find(fd).ok_or(Errno::BADF)
}

// SAFETY of the callers: the control messages are those of a program.
unsafe fn send(
    socket: &Socket,
    data: &[IoSlice<'_>],
    to: Option<SocketAddr>,
    control: &[u8],
    flags: c_int,
) -> Result<usize, Errno> {
    if flags & !libc::MSG_DONTWAIT != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    // SAFETY: the caller keeps the contract of this function.
    let with = unsafe { operations::read(socket, Sent(control)) }?;
    let message = Outgoing {
        data,
        to,
        control: with.control,
    };
    let sent = socket.send(message, flags & libc::MSG_DONTWAIT != 0);
    if sent.is_err() {
        operations::give_up(socket, with.mapped);
    }
    sent
}

unsafe fn send_message(socket: &Socket, message: &msghdr, flags: c_int) -> Result<usize, Errno> {
    // SAFETY: the caller keeps the contract of this function.
    unsafe {
        let data = sources(message.msg_iov, message.msg_iovlen, Errno::MSGSIZE)?;
        let to = read_destination(message.msg_name.cast(), message.msg_namelen)?;
        let control = bytes(message.msg_control, message.msg_controllen)?;
        send(socket, &data, to, control, flags)
    }
}

/// The result of a receive call: the length of the message in bytes, whether it was truncated, and its sender.
#[derive(Default)]
struct Answer {
    length: usize,
    is_cut: bool,
    from: Option<SocketAddr>,
}

fn receive(
    socket: &Socket,
    room: &mut [IoSliceMut<'_>],
    control: &mut Room<'_>,
    flags: c_int,
) -> Result<Answer, Errno> {
    if flags & libc::MSG_OOB != 0 {
        return Ok(Answer::default());
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(Errno::AGAIN);
    }
    let dont_wait = flags & libc::MSG_DONTWAIT != 0;
    let most = control.count(size_of::<(u64, i32)>());
    let received = socket.receive(room, dont_wait, flags & libc::MSG_PEEK != 0, most)?;
    for status in &received.statuses {
        let mut data = [0; size_of::<(u64, i32)>()];
        data[..8].copy_from_slice(&status.user_token.to_ne_bytes());
        data[8..12].copy_from_slice(&(status.status as i32).to_ne_bytes());
        control.put(RDS_CMSG_RDMA_STATUS, &data);
    }
    if let Some(ports) = received.congestion {
        control.put(RDS_CMSG_CONG_UPDATE, &ports.to_ne_bytes());
    }
    if let Some(cookie) = received.cookie {
        control.put(RDS_CMSG_RDMA_DEST, &cookie.0.to_ne_bytes());
    }
    let asks_for_all = flags & libc::MSG_TRUNC != 0;
    Ok(Answer {
        length: match asks_for_all {
            true => received.full_length,
            false => received.length,
        },
        is_cut: received.length < received.full_length,
        from: received.from,
    })
}

unsafe fn receive_message(
    socket: &Socket,
    message: &mut msghdr,
    flags: c_int,
) -> Result<usize, Errno> {
    // SAFETY: the caller keeps the contract of this function.
    let (mut target, control) = unsafe {
        (
            targets(
                socket,
                parts(message.msg_iov, message.msg_iovlen, Errno::MSGSIZE)?,
            )?,
            room(message.msg_control, message.msg_controllen)?,
        )
    };
    let mut control = Room::new(control);
    let received = receive(socket, &mut target, &mut control, flags)?;
    let (used, control_is_cut) = control.finish();
    message.msg_controllen = used;
    message.msg_flags = match received.is_cut {
        true => libc::MSG_TRUNC,
        false => 0,
    };
    if control_is_cut {
        message.msg_flags |= libc::MSG_CTRUNC;
    }
    if !message.msg_name.is_null() {
        let name = message.msg_name.cast();
        // SAFETY: the caller keeps the contract of this function.
        unsafe { write_source(received.from, name, &mut message.msg_namelen) }?;
    }
    Ok(received.length)
}

// Calls `each` for one message after the other until it fails. Returns the number that succeeded, or the error if the first
// one failed.
fn several(
    messages: &mut [mmsghdr],
    mut each: impl FnMut(&mut mmsghdr) -> Result<usize, Errno>,
) -> Result<c_int, Errno> {
    let mut done = 0;
    for message in messages {
        match each(message) {
            Ok(length) => message.msg_len = length as c_uint,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
        done += 1;
    }
    Ok(done)
}

// Runs a call. In a signal handler that has interrupted another call, it fails with `EAGAIN`: waiting for a lock of that
// call would never end.
fn count(call: impl FnOnce() -> Result<usize, Errno>) -> isize {
    let called = match Inside::enter() {
        Some(_inside) => caught(call),
        None => Err(Errno::AGAIN),
    };
    result(called)
}

// Catches a panic, which must not unwind into a C program, and returns `EIO`. The panic message has gone to standard error.
fn caught<T>(call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Errno::IO))
}

fn result(called: Result<usize, Errno>) -> isize {
    match called {
        Ok(count) => isize::try_from(count).unwrap_or(isize::MAX),
        Err(error) => {
            // SAFETY: the place of `errno` belongs to the calling thread.
            unsafe { *libc::__errno_location() = error.raw_os_error() };
            -1
        }
    }
}

fn answer(call: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    // The result is a descriptor or a number of messages, which is never negative.
    count(|| call().map(|answer| answer as usize)) as c_int
}

fn done(call: impl FnOnce() -> Result<(), Errno>) -> c_int {
    answer(|| call().map(|()| 0))
}

// Turns the result of `libc::syscall` into a number or the error in `errno`.
fn by_the_system(answer: libc::c_long) -> Result<c_int, Errno> {
    match answer {
        // SAFETY: the place of `errno` belongs to the calling thread.
        -1 => Err(Errno::from_raw_os_error(unsafe {
            *libc::__errno_location()
        })),
        answer => Ok(answer as c_int),
    }
}

// SAFETY of the callers: the address is null, or has `length` bytes.
unsafe fn read_address(
    address: *const sockaddr,
    length: socklen_t,
    unknown_family: Errno,
) -> Result<SocketAddr, Errno> {
    let mut copy = address::none();
    let length = length as usize;
    if length < size_of::<libc::sa_family_t>() || length > size_of_val(&copy) {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller keeps the contract of this function.
    let bytes = unsafe { bytes(address.cast(), length) }?;
    // SAFETY: `copy` has room for this many bytes.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut copy).cast::<u8>(), length) };
    let address = address::read(&copy).ok_or(unknown_family)?;
    if length < address::length(address) {
        return Err(Errno::INVAL);
    }
    Ok(match address {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_some() => {
            (address.ip().to_canonical(), v6.port()).into()
        }
        address => address,
    })
}

// SAFETY of the callers: the address is null, or has `length` bytes.
unsafe fn read_destination(
    address: *const sockaddr,
    length: socklen_t,
) -> Result<Option<SocketAddr>, Errno> {
    if address.is_null() || length == 0 {
        return Ok(None);
    }
    // SAFETY: the caller keeps the contract of this function.
    unsafe { read_address(address, length, Errno::INVAL) }.map(Some)
}

// Writes an address to the program's buffer, cut to the room there, and its full length to `room`. SAFETY of the callers:
// `room` is null or points to the size of `target` in bytes.
unsafe fn write_name(
    name: &polyverbs_abi::rdmacm::Address,
    length: usize,
    target: *mut sockaddr,
    room: *mut socklen_t,
) -> Result<(), Errno> {
    // SAFETY: the caller keeps the contract of this function.
    let room = unsafe { found_mut(room) }?;
    let size = usize::try_from(room.cast_signed()).map_err(|_| Errno::INVAL)?;
    // SAFETY: `name` is an address of this length.
    let name = unsafe { slice::from_raw_parts(ptr::from_ref(name).cast::<u8>(), length) };
    let size = size.min(length);
    // SAFETY: the caller keeps the contract of this function.
    unsafe { self::room(target.cast(), size) }?.copy_from_slice(&name[..size]);
    *room = length as socklen_t;
    Ok(())
}

// SAFETY of the callers: `room` is null or a length, and `target` has room for so many bytes.
unsafe fn write_source(
    from: Option<SocketAddr>,
    target: *mut sockaddr,
    room: *mut socklen_t,
) -> Result<(), Errno> {
    let name = from.map_or_else(address::none, address::write);
    // SAFETY: the caller keeps the contract of this function.
    unsafe { write_name(&name, from.map_or(0, address::length), target, room) }
}

// Whether these bytes of a program can be accessed. It costs an access to each page.
fn is_there(at: *const c_void, length: usize, is_written: bool) -> bool {
    // SAFETY: the program says that the memory is its own.
    let accessible = |at| unsafe { copy::accessible(at, length, is_written) };
    length == 0 || !at.is_null() && length <= isize::MAX as usize && accessible(at.cast()) == length
}

// SAFETY of the callers: null, or a pointer to a value that stays while the result is used.
unsafe fn found<'a, T>(at: *const T) -> Result<&'a T, Errno> {
    match is_there(at.cast(), size_of::<T>(), false) {
        // SAFETY: the caller keeps the contract of this function.
        true => unsafe { at.as_ref() }.ok_or(Errno::FAULT),
        false => Err(Errno::FAULT),
    }
}

// SAFETY of the callers: as for `found`, and nothing else uses the value meanwhile.
unsafe fn found_mut<'a, T>(at: *mut T) -> Result<&'a mut T, Errno> {
    match is_there(at.cast(), size_of::<T>(), true) {
        // SAFETY: the caller keeps the contract of this function.
        true => unsafe { at.as_mut() }.ok_or(Errno::FAULT),
        false => Err(Errno::FAULT),
    }
}

// SAFETY of the callers: the bytes are readable while the result is used.
unsafe fn bytes<'a>(at: *const c_void, length: usize) -> Result<&'a [u8], Errno> {
    if length == 0 {
        return Ok(&[]);
    }
    if !is_there(at, length, false) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller keeps the contract of this function.
    Ok(unsafe { slice::from_raw_parts(at.cast(), length) })
}

// SAFETY of the callers: the bytes are writable while the result is used.
unsafe fn room<'a>(at: *mut c_void, length: usize) -> Result<&'a mut [u8], Errno> {
    if length == 0 {
        return Ok(&mut []);
    }
    if !is_there(at, length, true) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller keeps the contract of this function.
    Ok(unsafe { slice::from_raw_parts_mut(at.cast(), length) })
}

// SAFETY of the callers: the list has `count` parts.
unsafe fn parts<'a>(
    list: *const iovec,
    count: usize,
    too_many: Errno,
) -> Result<&'a [iovec], Errno> {
    if count > libc::UIO_MAXIOV as usize {
        return Err(too_many);
    }
    if count == 0 {
        return Ok(&[]);
    }
    if !is_there(list.cast(), count * size_of::<iovec>(), false) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller keeps the contract of this function.
    Ok(unsafe { slice::from_raw_parts(list, count) })
}

// SAFETY of the callers: the list has `count` parts, whose bytes are readable while the result is used.
unsafe fn sources<'a>(
    list: *const iovec,
    count: usize,
    too_many: Errno,
) -> Result<Vec<IoSlice<'a>>, Errno> {
    // SAFETY: the caller keeps the contract of this function.
    let parts = unsafe { parts(list, count, too_many) }?.iter();
    parts
        // SAFETY: the caller keeps the contract of this function.
        .map(|part| unsafe { bytes(part.iov_base, part.iov_len) }.map(IoSlice::new))
        .collect()
}

// The buffers for the next message of a socket. The kernel fails only where the message itself has no room: a program may name
// more bytes than it has. SAFETY of the callers: the bytes are writable while the result is used.
unsafe fn targets<'a>(socket: &Socket, parts: &[iovec]) -> Result<Vec<IoSliceMut<'a>>, Errno> {
    let is_named = |part: &iovec| {
        let end = part.iov_base.addr().checked_add(part.iov_len);
        part.iov_len == 0
            || !part.iov_base.is_null() && end.is_some_and(|_| part.iov_len <= isize::MAX as usize)
    };
    if !parts.iter().all(is_named) {
        return Err(Errno::FAULT);
    }
    let has_room = |mut length: usize| {
        parts.iter().all(|part| {
            let used = part.iov_len.min(length);
            length -= used;
            is_there(part.iov_base, used, true)
        })
    };
    let all = parts
        .iter()
        .fold(0, |all: usize, part| all.saturating_add(part.iov_len));
    if all > TOUCHED || !has_room(all) {
        let needed = socket.rds.next_length().unwrap_or(all);
        if !has_room(needed.min(all)) {
            return Err(Errno::FAULT);
        }
    }
    let slices = parts.iter().map(|part| match part.iov_len {
        0 => &mut [],
        // SAFETY: the caller keeps the contract of this function.
        length => unsafe { slice::from_raw_parts_mut(part.iov_base.cast(), length) },
    });
    Ok(slices.map(IoSliceMut::new).collect())
}

/// The most bytes of buffers of which each page is accessed before it is known how long the next message is.
const TOUCHED: usize = 64 << 10;

// SAFETY of the callers: the array has `count` messages.
unsafe fn messages_of<'a>(
    messages: *mut mmsghdr,
    count: c_uint,
) -> Result<&'a mut [mmsghdr], Errno> {
    if count == 0 {
        return Ok(&mut []);
    }
    // One call handles at most this many messages.
    let count = (count as usize).min(libc::UIO_MAXIOV as usize);
    if !is_there(messages.cast(), count * size_of::<mmsghdr>(), true) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller keeps the contract of this function.
    Ok(unsafe { slice::from_raw_parts_mut(messages, count) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_panics_fails_with_eio_and_the_next_one_works() {
        let panics: fn() -> Result<usize, Errno> = || panic!("a fault of the library");
        assert_eq!(count(panics), -1);
        assert_eq!(
            std::io::Error::last_os_error().raw_os_error(),
            Some(libc::EIO)
        );
        assert_eq!(count(|| Ok(3)), 3);
    }
}
