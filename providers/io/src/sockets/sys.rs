//! The system calls that the safe libraries lack: UDP messages with control messages, several at once; the socket filter of
//! a port group; the user at the other end of a connection.
//!
//! Calls for each received message bypass the C library's function, which is a cancellation point: notifying the library of
//! that costs two locked operations a call, and none of these calls waits.
// The kernel gets pointers, and keeps none of them.
#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;

use crate::sockets::address::Name;
use crate::sockets::control::Control;

/// The most messages that one system call sends or receives.
pub(crate) const AT_ONCE: usize = 32;

/// A UDP message to be sent, with its destination and control messages.
pub(crate) struct Outgoing<'a, const ROOM: usize> {
    pub(crate) to: Name,
    pub(crate) bytes: IoSlice<'a>,
    pub(crate) control: Control<ROOM>,
}

impl<const ROOM: usize> Outgoing<'_, ROOM> {
    fn header(&self) -> libc::msghdr {
        // SAFETY: a `msghdr` of zeros has no name, no data and no control messages.
        let mut header: libc::msghdr = unsafe { zeroed() };
        let name = self.to.bytes();
        header.msg_name = name.as_ptr().cast_mut().cast();
        header.msg_namelen = name.len() as libc::socklen_t;
        // An `IoSlice` has the layout of an `iovec`.
        header.msg_iov = (&raw const self.bytes).cast_mut().cast();
        header.msg_iovlen = 1;
        let control = self.control.bytes();
        if !control.is_empty() {
            header.msg_control = control.as_ptr().cast_mut().cast();
            header.msg_controllen = control.len();
        }
        header
    }
}

/// Sends as many of `messages` as possible without waiting, at most [`AT_ONCE`], and returns how many. An error is that of
/// the first message.
pub(crate) fn send_many<const ROOM: usize>(
    fd: BorrowedFd<'_>,
    messages: &[Outgoing<'_, ROOM>],
) -> io::Result<usize> {
    let count = messages.len().min(AT_ONCE);
    // SAFETY: headers of zeros are valid; see `Outgoing::header`.
    let mut headers: [libc::mmsghdr; AT_ONCE] = unsafe { zeroed() };
    for (header, message) in headers.iter_mut().zip(messages) {
        header.msg_hdr = message.header();
    }
    // SAFETY: the first `count` headers point to memory that `messages` borrow. The kernel only reads it, despite the type.
    let sent = unsafe {
        libc::sendmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            count as libc::c_uint,
            (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// The buffers for a received message, and how much of them was used.
pub(crate) struct Incoming<'a> {
    pub(crate) name: &'a mut [u8],
    pub(crate) payload: &'a mut [u8],
    pub(crate) control: &'a mut [u8],
    pub(crate) filled: &'a mut Filled,
}

impl Incoming<'_> {
    fn header(&mut self, piece: &mut libc::iovec) -> libc::msghdr {
        piece.iov_base = self.payload.as_mut_ptr().cast();
        piece.iov_len = self.payload.len();
        // SAFETY: a `msghdr` of zeros has no name, no pieces and no control messages.
        let mut header: libc::msghdr = unsafe { zeroed() };
        header.msg_name = self.name.as_mut_ptr().cast();
        header.msg_namelen = self.name.len() as libc::socklen_t;
        header.msg_iov = piece;
        header.msg_iovlen = 1;
        header.msg_control = self.control.as_mut_ptr().cast();
        header.msg_controllen = self.control.len();
        header
    }

    fn note(&mut self, header: &libc::msghdr, length: usize) {
        *self.filled = Filled {
            name: (header.msg_namelen as usize).min(self.name.len()),
            payload: length.min(self.payload.len()),
            control: header.msg_controllen.min(self.control.len()),
            truncated: header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
        };
    }
}

/// How many bytes of the buffers for a received message were used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Filled {
    pub(crate) name: usize,
    pub(crate) payload: usize,
    pub(crate) control: usize,
    /// Whether the payload or the control messages did not fit.
    pub(crate) truncated: bool,
}

/// Receives the messages that have arrived, at most [`AT_ONCE`], without waiting, and returns how many. The peers must send
/// no descriptors, because nothing here would close them.
pub(crate) fn receive_many(fd: BorrowedFd<'_>, messages: &mut [Incoming<'_>]) -> io::Result<usize> {
    let count = messages.len().min(AT_ONCE);
    // SAFETY: headers and pieces of zeros name no memory.
    let (mut headers, mut pieces): ([libc::mmsghdr; AT_ONCE], [libc::iovec; AT_ONCE]) =
        unsafe { zeroed() };
    for ((header, piece), message) in headers.iter_mut().zip(&mut pieces).zip(&mut *messages) {
        header.msg_hdr = message.header(piece);
    }
    // SAFETY: the first `count` headers point to the rooms that `messages` borrow exclusively, and give their sizes.
    let received = unsafe {
        libc::recvmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            count as libc::c_uint,
            RECEIVE_FLAGS as _,
            null_mut(),
        )
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    for (message, header) in messages.iter_mut().zip(&headers[..received]) {
        message.note(&header.msg_hdr, header.msg_len as usize);
    }
    Ok(received)
}

/// Receives one message without waiting. An error of kind `WouldBlock` means that none has arrived.
pub(crate) fn receive_one(fd: BorrowedFd<'_>, message: &mut Incoming<'_>) -> io::Result<()> {
    let mut piece = libc::iovec {
        iov_base: null_mut(),
        iov_len: 0,
    };
    let mut header = message.header(&mut piece);
    // SAFETY: the header points to the rooms that `message` borrows exclusively, and gives their sizes.
    let received = unsafe {
        libc::syscall(
            libc::SYS_recvmsg,
            fd.as_raw_fd(),
            &raw mut header,
            RECEIVE_FLAGS,
        )
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    message.note(&header, received);
    Ok(())
}

/// Sets a socket option whose value is a number.
pub(crate) fn set_number(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    set_option(fd, level, option, &value)
}

// `value` has the type that the kernel reads for this option.
fn set_option<T>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let (value, length) = (std::ptr::from_ref(value), size_of::<T>() as libc::socklen_t);
    // SAFETY: the kernel reads `length` bytes of `value`, and the instructions that a program points to, which exist during
    // the call.
    done(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value.cast(), length) })
}

/// Returns the value of a socket option that is a number.
pub(crate) fn number(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
) -> io::Result<libc::c_int> {
    read_option(fd, level, option, 0)
}

/// Returns the process at the other end of a unix socket, and its user: those that connected or listened when the
/// connection was made.
pub(crate) fn peer(fd: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let nobody = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    read_option(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, nobody)
}

// `T` is the type that the kernel writes for this option, which consists of numbers.
fn read_option<T>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    mut value: T,
) -> io::Result<T> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `value`.
    let answer = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    done(answer).map(|()| value)
}

/// A `sock_fprog` (a socket filter) with explicit padding between its fields, because the kernel reads the padding, too.
#[repr(C)]
struct Program {
    length: u16,
    between: [u8; size_of::<usize>() - 2],
    instructions: *const libc::sock_filter,
}

const _: () = assert!(size_of::<Program>() == size_of::<libc::sock_fprog>());

/// Attaches a socket filter to the group of sockets that share this one's port. It chooses the socket that gets a datagram
/// (`SO_ATTACH_REUSEPORT_CBPF`).
pub(crate) fn steer(fd: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    attach(fd, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}

/// Attaches a socket filter to one socket, which gets only the datagrams that the filter accepts (`SO_ATTACH_FILTER`).
pub(crate) fn filter(fd: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    attach(fd, libc::SO_ATTACH_FILTER, program)
}

fn attach(
    fd: BorrowedFd<'_>,
    option: libc::c_int,
    program: &[libc::sock_filter],
) -> io::Result<()> {
    let named = Program {
        length: program.len() as u16,
        between: [0; size_of::<usize>() - 2],
        instructions: program.as_ptr(),
    };
    set_option(fd, libc::SOL_SOCKET, option, &named)
}

fn done(answer: libc::c_int) -> io::Result<()> {
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

const RECEIVE_FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;

/// Asks the scheduler for shorter time slices of the calling thread: after a wake-up it then runs sooner on a processor
/// that another thread keeps busy. A kernel without this feature (before 6.12) ignores the request.
pub(crate) fn set_turn(nanoseconds: u64, nice: i32) {
    // SAFETY: attributes of zeros are valid.
    let mut attributes: libc::sched_attr = unsafe { zeroed() };
    attributes.size = size_of_val(&attributes) as u32;
    attributes.sched_flags = libc::SCHED_FLAG_KEEP_POLICY as u64;
    attributes.sched_nice = nice;
    attributes.sched_runtime = nanoseconds;
    // SAFETY: the kernel reads as many bytes as `size` says, and keeps no pointer.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}
