//! The rsocket functions that C programs call: they convert pointers and numbers of C, and call the sockets.
//!
//! All of them return -1 and set `errno` on failure.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::slice;
use std::time::Duration;

use libc::{
    fd_set, iovec, msghdr, nfds_t, off_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval,
};
use polyverbs_libibverbs::errno::{Errno, minus_one};

use super::address;
use super::datagram::Datagram;
use super::poll;
use super::repoll::{self, Change};
use super::stream::{Family, Mode, Received, Stream};
use super::table::{self, Socket};
use super::waiting::Deadline;

const FAULT: Errno = Errno(libc::EFAULT);

fn done(result: Result<(), Errno>) -> c_int {
    minus_one(result.map(|()| 0))
}

fn count(result: Result<usize, Errno>) -> ssize_t {
    result.map_or_else(
        |errno| {
            errno.set();
            -1
        },
        |count| ssize_t::try_from(count).unwrap_or(ssize_t::MAX),
    )
}

/// Implements `rsocket`.
pub extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let family = match domain {
        libc::AF_INET => Ok(Family::V4),
        libc::AF_INET6 => Ok(Family::V6),
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    };
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    minus_one(family.and_then(|family| {
        let socket = match (kind & !flags, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => Socket::Stream(Stream::new(family)),
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => Socket::Datagram(Datagram::new(family)),
            _ => return Err(Errno(libc::EPROTONOSUPPORT)),
        };
        socket
            .waiting()
            .set_nonblocking(kind & libc::SOCK_NONBLOCK != 0);
        table::insert(socket, kind & libc::SOCK_CLOEXEC != 0)
    }))
}

/// Implements `rbind`.
///
/// # Safety
/// `length` bytes are readable at `address`.
pub unsafe extern "C-unwind" fn bind(
    fd: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> c_int {
    done(table::get(fd).and_then(|socket| {
        // SAFETY: as the caller promises.
        let at = unsafe { address::read(address, length) }?;
        socket.bind(at)
    }))
}

/// Implements `rlisten`.
pub extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    let backlog = usize::try_from(backlog).unwrap_or(0);
    done(table::get(fd).and_then(|socket| socket.stream()?.listen(backlog)))
}

/// Implements `raccept`.
///
/// # Safety
/// `length` is null or writable, and as many bytes as it says are writable at `address`.
pub unsafe extern "C-unwind" fn accept(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    minus_one(table::get(fd).and_then(|socket| {
        let (accepted, peer) = socket.stream()?.accept()?;
        if !address.is_null() {
            // SAFETY: as the caller promises.
            unsafe { address::write(peer, address, length) }?;
        }
        table::insert(Socket::Stream(accepted), false)
    }))
}

/// Implements `rconnect`.
///
/// # Safety
/// `length` bytes are readable at `address`.
pub unsafe extern "C-unwind" fn connect(
    fd: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> c_int {
    done(table::get(fd).and_then(|socket| {
        // SAFETY: as the caller promises.
        let to = unsafe { address::read(address, length) }?;
        socket.connect(to)
    }))
}

/// Implements `rshutdown`.
pub extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    done(table::get(fd).and_then(|socket| {
        let (reads, writes) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(Errno::INVAL),
        };
        socket.stream()?.shutdown(reads, writes)
    }))
}

/// Implements `rclose`.
pub extern "C-unwind" fn close(fd: c_int) -> c_int {
    match repoll::close(fd) {
        true => 0,
        false => done(table::close(fd)),
    }
}

fn receives(flags: c_int) -> Result<Mode, Errno> {
    let known = libc::MSG_DONTWAIT | libc::MSG_PEEK | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
    if flags & !known != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(Mode {
        no_wait: flags & libc::MSG_DONTWAIT != 0,
        peek: flags & libc::MSG_PEEK != 0,
        all: flags & libc::MSG_WAITALL != 0,
    })
}

fn sends(flags: c_int) -> Result<Mode, Errno> {
    // Other flags have no effect, as with sockets of the system.
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(Mode {
        no_wait: flags & libc::MSG_DONTWAIT != 0,
        ..Mode::default()
    })
}

// SAFETY of the callers: the bytes are readable while the answer is used.
unsafe fn source<'a>(at: *const c_void, length: size_t) -> Result<&'a [u8], Errno> {
    if length == 0 {
        return Ok(&[]);
    }
    if at.is_null() || length > isize::MAX as usize {
        return Err(FAULT);
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { slice::from_raw_parts(at.cast(), length) })
}

// SAFETY of the callers: the bytes are writable while the answer is used.
unsafe fn sink<'a>(at: *mut c_void, length: size_t) -> Result<&'a mut [u8], Errno> {
    if length == 0 {
        return Ok(&mut []);
    }
    if at.is_null() || length > isize::MAX as usize {
        return Err(FAULT);
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { slice::from_raw_parts_mut(at.cast(), length) })
}

// SAFETY of the callers: the list is one.
unsafe fn vectors<'a>(list: *const iovec, count: usize) -> Result<&'a [iovec], Errno> {
    if count > libc::UIO_MAXIOV as usize {
        return Err(Errno::INVAL);
    }
    if count == 0 {
        return Ok(&[]);
    }
    if list.is_null() {
        return Err(FAULT);
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { slice::from_raw_parts(list, count) })
}

fn vector_count(count: c_int) -> Result<usize, Errno> {
    usize::try_from(count).map_err(|_| Errno::INVAL)
}

// SAFETY of the callers: the list is one, whose bytes are readable.
unsafe fn sources<'a>(list: *const iovec, count: usize) -> Result<Vec<IoSlice<'a>>, Errno> {
    // SAFETY: as the caller promises.
    let list = unsafe { vectors(list, count) }?;
    list.iter()
        .map(|part| {
            // SAFETY: as the caller promises.
            let part = unsafe { source(part.iov_base, part.iov_len) }?;
            Ok(IoSlice::new(part))
        })
        .collect()
}

// SAFETY of the callers: the list is one, whose bytes are writable.
unsafe fn sinks<'a>(list: *const iovec, count: usize) -> Result<Vec<IoSliceMut<'a>>, Errno> {
    // SAFETY: as the caller promises.
    let list = unsafe { vectors(list, count) }?;
    list.iter()
        .map(|part| {
            // SAFETY: as the caller promises.
            let part = unsafe { sink(part.iov_base, part.iov_len) }?;
            Ok(IoSliceMut::new(part))
        })
        .collect()
}

fn receive_from(fd: c_int, sinks: &mut [IoSliceMut<'_>], flags: c_int) -> Result<Received, Errno> {
    let socket = table::get(fd)?;
    let mode = receives(flags)?;
    match &socket {
        Socket::Stream(stream) => Ok(Received {
            bytes: stream.receive(sinks, mode)?,
            is_cut: false,
            from: None,
        }),
        Socket::Datagram(datagram) => datagram.receive(sinks, mode),
    }
}

fn send_to(
    fd: c_int,
    sources: &[IoSlice<'_>],
    flags: c_int,
    to: impl FnOnce() -> Result<Option<SocketAddr>, Errno>,
) -> Result<usize, Errno> {
    let socket = table::get(fd)?;
    let mode = sends(flags)?;
    match &socket {
        // The address is not checked, as with TCP sockets on Linux: sockperf passes an invalid one.
        Socket::Stream(stream) => stream.send(sources, mode),
        Socket::Datagram(datagram) => datagram.send(sources, mode, to()?),
    }
}

// SAFETY of the callers: as many bytes as it says are readable at the address, unless that is null.
unsafe fn destination(
    address: *const sockaddr,
    length: socklen_t,
) -> Result<Option<SocketAddr>, Errno> {
    match address.is_null() {
        true => Ok(None),
        // SAFETY: as the caller promises.
        false => Ok(Some(unsafe { address::read(address, length) }?)),
    }
}

/// Implements `rrecv`.
///
/// # Safety
/// `length` bytes are writable at `target`.
pub unsafe extern "C-unwind" fn recv(
    fd: c_int,
    target: *mut c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as the caller promises.
    let sink = unsafe { sink(target, length) };
    count(sink.and_then(|sink| {
        let received = receive_from(fd, &mut [IoSliceMut::new(sink)], flags)?;
        Ok(received.bytes)
    }))
}

/// Implements `rrecvfrom`.
///
/// # Safety
/// As for [`recv`]; the address as for [`accept`].
pub unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    target: *mut c_void,
    length: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_length: *mut socklen_t,
) -> ssize_t {
    // SAFETY: as the caller promises.
    let sink = unsafe { sink(target, length) };
    count(sink.and_then(|sink| {
        let Received { bytes, from, .. } = receive_from(fd, &mut [IoSliceMut::new(sink)], flags)?;
        if let Some(from) = from.filter(|_| !address.is_null()) {
            // SAFETY: as the caller promises.
            unsafe { address::write(from, address, address_length) }?;
        }
        Ok(bytes)
    }))
}

/// Implements `rrecvmsg`. Control messages are not supported, so none are returned.
///
/// # Safety
/// The message and its buffers are writable.
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: as the caller promises.
    let message = unsafe { message.as_mut() }.ok_or(FAULT);
    count(message.and_then(|message| {
        // SAFETY: as the caller promises.
        let mut sinks = unsafe { sinks(message.msg_iov, message.msg_iovlen) }?;
        let Received {
            bytes,
            is_cut,
            from,
        } = receive_from(fd, &mut sinks, flags)?;
        message.msg_controllen = 0;
        message.msg_flags = if is_cut { libc::MSG_TRUNC } else { 0 };
        if let Some(from) = from.filter(|_| !message.msg_name.is_null()) {
            let name = message.msg_name.cast();
            // SAFETY: as the caller promises.
            unsafe { address::write(from, name, &raw mut message.msg_namelen) }?;
        }
        Ok(bytes)
    }))
}

/// Implements `rsend`.
///
/// # Safety
/// `length` bytes are readable at `from`.
pub unsafe extern "C-unwind" fn send(
    fd: c_int,
    from: *const c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as the caller promises.
    let source = unsafe { source(from, length) };
    count(source.and_then(|source| send_to(fd, &[IoSlice::new(source)], flags, || Ok(None))))
}

/// Implements `rsendto`.
///
/// # Safety
/// As for [`send`]; `address_length` bytes are readable at `address`, unless that is null.
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    from: *const c_void,
    length: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_length: socklen_t,
) -> ssize_t {
    // SAFETY: as the caller promises.
    let source = unsafe { source(from, length) };
    count(source.and_then(|source| {
        // SAFETY: as the caller promises.
        let to = || unsafe { destination(address, address_length) };
        send_to(fd, &[IoSlice::new(source)], flags, to)
    }))
}

/// Implements `rsendmsg`. Control messages are ignored.
///
/// # Safety
/// The message and its buffers are readable.
pub unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as the caller promises.
    let message = unsafe { message.as_ref() }.ok_or(FAULT);
    count(message.and_then(|message| {
        if message.msg_controllen > 0 && !message.msg_control.is_null() {
            return Err(Errno::OPNOTSUPP);
        }
        // SAFETY: as the caller promises.
        let sources = unsafe { sources(message.msg_iov, message.msg_iovlen) }?;
        // SAFETY: as the caller promises.
        let to = || unsafe { destination(message.msg_name.cast(), message.msg_namelen) };
        send_to(fd, &sources, flags, to)
    }))
}

/// Implements `rread`.
///
/// # Safety
/// As for [`recv`].
pub unsafe extern "C-unwind" fn read(fd: c_int, target: *mut c_void, length: size_t) -> ssize_t {
    // SAFETY: as the caller promises.
    unsafe { recv(fd, target, length, 0) }
}

/// Implements `rreadv`.
///
/// # Safety
/// The list is valid, and its buffers are writable.
pub unsafe extern "C-unwind" fn readv(fd: c_int, list: *const iovec, length: c_int) -> ssize_t {
    count(vector_count(length).and_then(|length| {
        // SAFETY: as the caller promises.
        let mut sinks = unsafe { sinks(list, length) }?;
        Ok(receive_from(fd, &mut sinks, 0)?.bytes)
    }))
}

/// Implements `rwrite`.
///
/// # Safety
/// As for [`send`].
pub unsafe extern "C-unwind" fn write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t {
    // SAFETY: as the caller promises.
    unsafe { send(fd, from, length, 0) }
}

/// Implements `rwritev`.
///
/// # Safety
/// The list is valid, and its buffers are readable.
pub unsafe extern "C-unwind" fn writev(fd: c_int, list: *const iovec, length: c_int) -> ssize_t {
    count(vector_count(length).and_then(|length| {
        // SAFETY: as the caller promises.
        let sources = unsafe { sources(list, length) }?;
        send_to(fd, &sources, 0, || Ok(None))
    }))
}

/// Implements `rpoll`.
///
/// # Safety
/// `entries` is a list of `length` entries.
pub unsafe extern "C-unwind" fn poll(
    entries: *mut pollfd,
    length: nfds_t,
    timeout: c_int,
) -> c_int {
    let deadline = match u64::try_from(timeout) {
        Ok(milliseconds) => Deadline::after(Duration::from_millis(milliseconds)),
        Err(_) => Deadline::NEVER,
    };
    let entries = match length {
        0 => Ok(&mut [][..]),
        _ if length > MOST_FILES => Err(Errno::INVAL),
        _ if entries.is_null() => Err(FAULT),
        // SAFETY: as the caller promises.
        _ => Ok(unsafe { slice::from_raw_parts_mut(entries, length as usize) }),
    };
    let found = entries.and_then(|entries| poll::wait(entries, deadline));
    minus_one(found.map(|found| found as c_int))
}

/// Implements `repoll_create`.
pub extern "C-unwind" fn repoll_create(flags: c_int) -> c_int {
    const KNOWN: c_int = libc::O_CLOEXEC | libc::O_NONBLOCK;
    minus_one(match flags & !KNOWN {
        0 => repoll::create(flags & libc::O_CLOEXEC != 0),
        _ => Err(Errno::INVAL),
    })
}

/// Implements `repoll_ctl`.
///
/// # Safety
/// `event` is null or readable.
pub unsafe extern "C-unwind" fn repoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *const libc::epoll_event,
) -> c_int {
    let given = || {
        if event.is_null() {
            return Err(FAULT);
        }
        // SAFETY: as the caller promises; programs need not align it.
        let event = unsafe { event.read_unaligned() };
        Ok((event.events, event.u64))
    };
    let change = match operation {
        libc::EPOLL_CTL_ADD => given().map(|(wanted, data)| Change::Add(wanted, data)),
        libc::EPOLL_CTL_MOD => given().map(|(wanted, data)| Change::Modify(wanted, data)),
        libc::EPOLL_CTL_DEL => Ok(Change::Remove),
        _ => Err(Errno::INVAL),
    };
    done(change.and_then(|change| match set == fd {
        true => Err(Errno::INVAL),
        false => repoll::change(set, fd, change),
    }))
}

/// Implements `repoll_wait`.
///
/// # Safety
/// `events` is null, or `most` entries are writable there.
pub unsafe extern "C-unwind" fn repoll_wait(
    set: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    let deadline = match u64::try_from(timeout) {
        Ok(milliseconds) => Deadline::after(Duration::from_millis(milliseconds)),
        Err(_) => Deadline::NEVER,
    };
    let found = match usize::try_from(most) {
        Ok(0) | Err(_) => Err(Errno::INVAL),
        Ok(_) if events.is_null() => Err(FAULT),
        Ok(most) => repoll::wait(set, most, deadline),
    };
    minus_one(found.map(|found| {
        for (place, report) in found.iter().enumerate() {
            let event = libc::epoll_event {
                events: report.events,
                u64: report.data,
            };
            // SAFETY: no more than `most`, as the caller promises.
            unsafe { events.add(place).write_unaligned(event) };
        }
        found.len() as c_int
    }))
}

// A list with more entries than a process can have files is invalid.
const MOST_FILES: nfds_t = c_int::MAX as nfds_t;

// The three sets of a `select`, each with the events to poll for and the events that put a descriptor into the result.
const SETS: [(i16, i16); 3] = [
    (libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
    (libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];

/// Implements `rselect`.
///
/// # Safety
/// The sets are null or valid; `timeout` is null or readable.
pub unsafe extern "C-unwind" fn select(
    length: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    errors: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: as the caller promises.
    minus_one(unsafe { selected(length, [reads, writes, errors], timeout) })
}

unsafe fn selected(
    length: c_int,
    sets: [*mut fd_set; 3],
    timeout: *mut timeval,
) -> Result<c_int, Errno> {
    if !(0..=libc::FD_SETSIZE as c_int).contains(&length) {
        return Err(Errno::INVAL);
    }
    // SAFETY: as the caller promises.
    let deadline = match unsafe { timeout.as_ref() } {
        None => Deadline::NEVER,
        Some(time) => {
            let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno::INVAL)?;
            let micros = u64::try_from(time.tv_usec).map_err(|_| Errno::INVAL)?;
            Deadline::after(Duration::from_secs(seconds) + Duration::from_micros(micros))
        }
    };
    let mut entries = Vec::new();
    for fd in 0..length {
        let mut events = 0;
        for (set, (wanted, _)) in sets.iter().zip(SETS) {
            // SAFETY: a set, and a number that it has room for.
            if !set.is_null() && unsafe { libc::FD_ISSET(fd, *set) } {
                events |= wanted;
            }
        }
        if events != 0 {
            entries.push(pollfd {
                fd,
                events,
                revents: 0,
            });
        }
    }
    poll::wait(&mut entries, deadline)?;
    if entries
        .iter()
        .any(|entry| entry.revents & libc::POLLNVAL != 0)
    {
        return Err(Errno(libc::EBADF));
    }
    let mut found = 0;
    for (set, (wanted, filled)) in sets.into_iter().zip(SETS) {
        if set.is_null() {
            continue;
        }
        // SAFETY: a set.
        unsafe { libc::FD_ZERO(set) };
        for entry in &entries {
            if entry.events & wanted != 0 && entry.revents & filled != 0 {
                // SAFETY: a set, and a number that it has room for.
                unsafe { libc::FD_SET(entry.fd, set) };
                found += 1;
            }
        }
    }
    Ok(found)
}

/// Implements `rgetpeername`.
///
/// # Safety
/// As for [`accept`].
pub unsafe extern "C-unwind" fn getpeername(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    done(table::get(fd).and_then(|socket| {
        let peer = socket.peer()?;
        // SAFETY: as the caller promises.
        unsafe { address::write(peer, address, length) }
    }))
}

/// Implements `rgetsockname`.
///
/// # Safety
/// As for [`accept`].
pub unsafe extern "C-unwind" fn getsockname(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    done(table::get(fd).and_then(|socket| {
        let local = socket.local();
        // SAFETY: as the caller promises.
        unsafe { address::write(local, address, length) }
    }))
}

/// Implements `rsetsockopt`.
///
/// # Safety
/// `length` bytes are readable at `value`.
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    done(table::get(fd).and_then(|socket| {
        // SAFETY: as the caller promises.
        let value = unsafe { source(value, length as usize) }?;
        socket.with_options(|options, is_made| options.set(level, name, value, is_made))
    }))
}

fn option(socket: &Socket, level: c_int, name: c_int) -> Result<Vec<u8>, Errno> {
    let one = |value: c_int| Ok(value.to_ne_bytes().to_vec());
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => one(socket.take_error().map_or(0, |error| error.0)),
        (libc::SOL_SOCKET, libc::SO_TYPE) => one(match socket {
            Socket::Stream(_) => libc::SOCK_STREAM,
            Socket::Datagram(_) => libc::SOCK_DGRAM,
        }),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => one(match socket {
            Socket::Stream(stream) => stream.is_listening().into(),
            Socket::Datagram(_) => 0,
        }),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => one(match socket {
            Socket::Stream(_) => libc::IPPROTO_TCP,
            Socket::Datagram(_) => libc::IPPROTO_UDP,
        }),
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => one(match socket.local() {
            SocketAddr::V4(_) => libc::AF_INET,
            SocketAddr::V6(_) => libc::AF_INET6,
        }),
        (libc::IPPROTO_TCP, libc::TCP_INFO) => match socket {
            Socket::Stream(stream) => Ok(tcp_info(stream)),
            Socket::Datagram(_) => Err(Errno(libc::ENOPROTOOPT)),
        },
        _ => socket.with_options(|options, _| options.get(level, name)),
    }
}

// The `struct tcp_info` that rdma-core's rsockets return: whether the socket is connected, and the window.
fn tcp_info(stream: &Stream) -> Vec<u8> {
    const LENGTH: usize = 104;
    const STATE: usize = 0;
    const CONGESTION_WINDOW: usize = 80;
    const ESTABLISHED: u8 = 1;
    const CLOSED: u8 = 7;
    let mut info = vec![0; LENGTH];
    info[STATE] = match stream.is_open() {
        true => ESTABLISHED,
        false => CLOSED,
    };
    let window = stream.with_options(|options, _| u32::from(options.sizes.sends));
    info[CONGESTION_WINDOW..][..4].copy_from_slice(&window.to_ne_bytes());
    info
}

/// Implements `rgetsockopt`.
///
/// # Safety
/// `length` is writable, and as many bytes as it says are writable at `value`.
pub unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    done(table::get(fd).and_then(|socket| {
        // SAFETY: as the caller promises.
        let length = unsafe { length.as_mut() }.ok_or(FAULT)?;
        // SAFETY: as the caller promises.
        let room = unsafe { sink(value, *length as usize) }?;
        let found = option(&socket, level, name)?;
        let copied = found.len().min(room.len());
        room[..copied].copy_from_slice(&found[..copied]);
        *length = copied as socklen_t;
        Ok(())
    }))
}

/// Implements `rfcntl`: O_NONBLOCK applies to the socket; all other commands are passed on to the descriptor.
pub extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    minus_one(table::get(fd).and_then(|socket| match command {
        libc::F_GETFL => Ok(match socket.waiting().is_nonblocking() {
            true => libc::O_RDWR | libc::O_NONBLOCK,
            false => libc::O_RDWR,
        }),
        libc::F_SETFL => {
            socket
                .waiting()
                .set_nonblocking(argument & c_long::from(libc::O_NONBLOCK) != 0);
            Ok(0)
        }
        libc::F_GETFD | libc::F_SETFD => {
            // SAFETY: a descriptor of ours, and a number.
            let answer = unsafe { libc::fcntl(fd, command, argument) };
            if answer < 0 {
                Err(Errno::last())
            } else {
                Ok(answer)
            }
        }
        _ => Err(Errno::OPNOTSUPP),
    }))
}

/// Implements `riomap`.
///
/// # Safety
/// `length` bytes from `at` stay mapped, readable and writable, until `riounmap` or `rclose`.
pub unsafe extern "C-unwind" fn iomap(
    fd: c_int,
    at: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    offset: off_t,
) -> off_t {
    let mapped = table::get(fd).and_then(|socket| {
        if protection & !libc::PROT_WRITE != libc::PROT_NONE || flags != 0 {
            return Err(Errno::INVAL);
        }
        let is_remote = protection == libc::PROT_WRITE;
        let wanted = (offset != -1).then_some(offset as u64);
        // SAFETY: as the caller promises.
        unsafe { socket.stream()?.map(at.cast(), length, is_remote, wanted) }
    });
    mapped.map_or_else(
        |errno| {
            errno.set();
            -1
        },
        |offset| offset as off_t,
    )
}

/// Implements `riounmap`.
pub extern "C-unwind" fn iounmap(fd: c_int, at: *mut c_void, length: size_t) -> c_int {
    done(table::get(fd).and_then(|socket| socket.stream()?.unmap(at.addr(), length)))
}

/// Implements `riowrite`.
///
/// # Safety
/// As for [`send`].
pub unsafe extern "C-unwind" fn iowrite(
    fd: c_int,
    from: *const c_void,
    length: size_t,
    offset: off_t,
    flags: c_int,
) -> size_t {
    let written = table::get(fd).and_then(|socket| {
        // SAFETY: as the caller promises.
        let source = unsafe { source(from, length) }?;
        socket
            .stream()?
            .write_at(source, offset as u64, sends(flags)?)
    });
    count(written) as size_t
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    fn failed(answer: impl TryInto<i64>) -> c_int {
        assert_eq!(answer.try_into().ok(), Some(-1));
        Errno::last().0
    }

    fn stream() -> c_int {
        let fd = socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        assert!(fd >= 0);
        fd
    }

    #[test]
    fn descriptors_of_other_files_are_ebadf() {
        let mut bytes = [0_u8; 8];
        let at: *mut c_void = bytes.as_mut_ptr().cast();
        let mut length = 8;
        for fd in [-1, 0, 9999, c_int::MIN] {
            // SAFETY: eight bytes.
            unsafe {
                assert_eq!(failed(send(fd, at, 8, 0)), libc::EBADF);
                assert_eq!(failed(recv(fd, at, 8, 0)), libc::EBADF);
                assert_eq!(failed(bind(fd, at.cast(), 8)), libc::EBADF);
                assert_eq!(failed(connect(fd, at.cast(), 8)), libc::EBADF);
                assert_eq!(failed(accept(fd, at.cast(), &raw mut length)), libc::EBADF);
                assert_eq!(failed(setsockopt(fd, 1, 1, at, 8)), libc::EBADF);
                assert_eq!(
                    failed(getsockopt(fd, 1, 1, at, &raw mut length)),
                    libc::EBADF
                );
                assert_eq!(failed(iomap(fd, at, 8, 0, 0, 0)), libc::EBADF);
                assert_eq!(iowrite(fd, at, 8, 0, 0), usize::MAX);
            }
            assert_eq!(failed(listen(fd, 1)), libc::EBADF);
            assert_eq!(failed(shutdown(fd, libc::SHUT_WR)), libc::EBADF);
            assert_eq!(failed(fcntl(fd, libc::F_GETFL, 0)), libc::EBADF);
            assert_eq!(failed(iounmap(fd, at, 8)), libc::EBADF);
            assert_eq!(failed(close(fd)), libc::EBADF);
        }
    }

    #[test]
    fn unsupported_socket_types_are_refused() {
        let kinds = [
            (libc::AF_UNIX, libc::SOCK_STREAM, 0, libc::EAFNOSUPPORT),
            (libc::AF_INET, libc::SOCK_RAW, 0, libc::EPROTONOSUPPORT),
            (
                libc::AF_INET,
                libc::SOCK_STREAM,
                libc::IPPROTO_UDP,
                libc::EPROTONOSUPPORT,
            ),
        ];
        for (domain, kind, protocol, why) in kinds {
            assert_eq!(failed(socket(domain, kind, protocol)), why);
        }
    }

    #[test]
    fn socket_calls_of_preloaded_programs_are_answered() {
        let fd = socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        let mut length = 0;
        // SAFETY: room as the length says.
        unsafe {
            // librspreload finds out the address family of a socket in this way.
            let answer = getsockname(fd, std::ptr::null_mut(), &raw mut length);
            assert_eq!((answer, length), (0, 16));
            let mut found = [0_u8; 104];
            let at = found.as_mut_ptr().cast();
            let mut get = |level, name, room| {
                length = room;
                let answer = getsockopt(fd, level, name, at, &raw mut length);
                (answer, length)
            };
            assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_INFO, 104), (0, 104));
            let number = size_of::<c_int>() as socklen_t;
            for (level, name, expected) in [
                (libc::SOL_SOCKET, libc::SO_DOMAIN, libc::AF_INET),
                (libc::SOL_SOCKET, libc::SO_PROTOCOL, libc::IPPROTO_TCP),
                (libc::SOL_SOCKET, libc::SO_BROADCAST, 0),
                (libc::IPPROTO_IP, libc::IP_TOS, 0),
            ] {
                let mut value: c_int = -1;
                length = number;
                let at = (&raw mut value).cast();
                assert_eq!(getsockopt(fd, level, name, at, &raw mut length), 0);
                assert_eq!((value, length), (expected, number));
            }
            assert_eq!(found[0], 7, "no connection");
            // A stream socket ignores the address, even an invalid one.
            let none = found.as_ptr().cast();
            let sent = sendto(fd, found.as_ptr().cast(), 1, 0, none, 16);
            assert_eq!(failed(sent as c_int), libc::ENOTCONN);
        }
        assert_eq!(close(fd), 0);
    }

    #[test]
    fn descriptor_flags_are_those_of_a_real_file() {
        let fd = socket(
            libc::AF_INET,
            libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            0,
        );
        assert_eq!(fcntl(fd, libc::F_GETFD, 0), libc::FD_CLOEXEC);
        assert_eq!(fcntl(fd, libc::F_GETFL, 0), libc::O_RDWR | libc::O_NONBLOCK);
        assert_eq!(fcntl(fd, libc::F_SETFL, 0), 0);
        assert_eq!(fcntl(fd, libc::F_GETFL, 0), libc::O_RDWR);
        assert_eq!(failed(fcntl(fd, libc::F_GETOWN, 0)), libc::EOPNOTSUPP);
        assert_eq!(close(fd), 0);
        assert_eq!(failed(close(fd)), libc::EBADF);
    }

    #[test]
    fn unconnected_sockets_transfer_nothing() {
        let fd = stream();
        let mut bytes = [0_u8; 8];
        let at: *mut c_void = bytes.as_mut_ptr().cast();
        let mut length = 0;
        // SAFETY: eight bytes, or null, which the calls refuse.
        unsafe {
            assert_eq!(failed(send(fd, at, 8, 0)), libc::ENOTCONN);
            assert_eq!(failed(recv(fd, at, 8, 0)), libc::ENOTCONN);
            assert_eq!(failed(send(fd, ptr::null(), 8, 0)), libc::EFAULT);
            assert_eq!(failed(recv(fd, ptr::null_mut(), 8, 0)), libc::EFAULT);
            assert_eq!(failed(send(fd, at, usize::MAX, 0)), libc::EFAULT);
            assert_eq!(failed(send(fd, at, 8, libc::MSG_OOB)), libc::EOPNOTSUPP);
            assert_eq!(failed(readv(fd, ptr::null(), -1)), libc::EINVAL);
            assert_eq!(failed(readv(fd, ptr::null(), 1)), libc::EFAULT);
            assert_eq!(failed(writev(fd, ptr::null(), 5000)), libc::EINVAL);
            assert_eq!(failed(recvmsg(fd, ptr::null_mut(), 0)), libc::EFAULT);
            assert_eq!(failed(sendmsg(fd, ptr::null(), 0)), libc::EFAULT);
            assert_eq!(
                failed(getpeername(fd, at.cast(), &raw mut length)),
                libc::ENOTCONN
            );
            assert_eq!(failed(iomap(fd, at, 8, 0, 0, 0)), libc::ENOTCONN);
            assert_eq!(
                failed(iomap(fd, at, 8, libc::PROT_READ, 0, 0)),
                libc::EINVAL
            );
            assert_eq!(
                failed(accept(fd, ptr::null_mut(), ptr::null_mut())),
                libc::EINVAL
            );
            assert_eq!(failed(bind(fd, ptr::null(), 16)), libc::EFAULT);
            assert_eq!(failed(bind(fd, at.cast(), 1)), libc::EINVAL);
        }
        assert_eq!(failed(shutdown(fd, libc::SHUT_WR)), libc::ENOTCONN);
        assert_eq!(failed(shutdown(fd, 99)), libc::EINVAL);
        assert_eq!(failed(iounmap(fd, at, 8)), libc::EINVAL);
        assert_eq!(close(fd), 0);
    }

    #[test]
    fn addresses_of_others_cannot_be_bound() {
        super::super::stream::tests::at(0);
        let fd = stream();
        for (address, why) in [
            ("198.51.100.1:7000", libc::EADDRNOTAVAIL),
            ("[::1]:7000", libc::EAFNOSUPPORT),
        ] {
            let address = address.parse().unwrap();
            let raw = crate::address::write(address);
            let length = crate::address::length(address) as socklen_t;
            // SAFETY: as long as it says.
            let answer = unsafe { bind(fd, (&raw const raw).cast(), length) };
            assert_eq!(failed(answer), why);
        }
        assert_eq!(close(fd), 0);
    }

    #[test]
    fn other_files_are_polled_beside_sockets() {
        let fd = stream();
        let mut pipe = [0; 2];
        // SAFETY: room for two descriptors, which are closed below.
        unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            assert_eq!(libc::write(pipe[1], b"x".as_ptr().cast(), 1), 1);
        }
        let entry = |fd, events| pollfd {
            fd,
            events,
            revents: 9,
        };
        let mut entries = [
            entry(fd, libc::POLLIN),
            entry(pipe[0], libc::POLLIN),
            entry(-1, libc::POLLIN),
        ];
        // SAFETY: three entries; then a set.
        unsafe {
            assert_eq!(poll(entries.as_mut_ptr(), 3, -1), 2);
            assert_eq!(
                entries.map(|entry| entry.revents),
                [libc::POLLHUP, libc::POLLIN, 0]
            );
            assert_eq!(failed(poll(ptr::null_mut(), 1, 0)), libc::EFAULT);
            let too_many = poll(entries.as_mut_ptr(), nfds_t::MAX, 0);
            assert_eq!(failed(too_many), libc::EINVAL);
            assert_eq!(poll(ptr::null_mut(), 0, 1), 0);
            let mut reads: fd_set = std::mem::zeroed();
            libc::FD_SET(pipe[0], &raw mut reads);
            let none = ptr::null_mut();
            let found = select(pipe[0] + 1, &raw mut reads, none, none, ptr::null_mut());
            assert_eq!(found, 1);
            assert!(libc::FD_ISSET(pipe[0], &raw const reads));
            let refused = select(-1, none, none, none, ptr::null_mut());
            assert_eq!(failed(refused), libc::EINVAL);
            libc::close(pipe[0]);
            libc::close(pipe[1]);
        }
        assert_eq!(close(fd), 0);
    }
}
