//! Files of the adapter in an emulated fabric: a program that opens one gets the port as it is at that moment.
//!
//! The process that holds the fabric makes the text. A program that it does not answer gets the file as `polyverbs run` has written
//! it.

use std::ffi::{CStr, c_char, c_int, c_long};
use std::io::Write as _;
use std::mem::{size_of, zeroed};

use crate::paths::{LONGEST, Room, root};

/// An open file in memory, which the program opens by its name below `/proc`. It is closed when this is dropped.
pub(crate) struct Live {
    _file: Descriptor,
    name: [u8; 32],
}

impl Live {
    /// The present text of a file, whose redirected path this is; `None` if it is no file of an adapter in a fabric.
    ///
    /// # Safety
    /// The path is a text.
    pub(crate) unsafe fn of(path: *const c_char) -> Option<Self> {
        if path.is_null() {
            return None;
        }
        // SAFETY: as the caller promises.
        let path = unsafe { CStr::from_ptr(path) }.to_bytes();
        let root = root()?;
        let (adapter, file) = of_adapter(path.strip_prefix(root)?)?;
        // The program sees the error of the call that it has made.
        // SAFETY: the thread's own.
        let errno = unsafe { *libc::__errno_location() };
        let made = Self::asked(root, adapter, file);
        // SAFETY: the thread's own.
        unsafe { *libc::__errno_location() = errno };
        made
    }

    fn asked(root: &[u8], adapter: &[u8], file: &[u8]) -> Option<Self> {
        let mut about = [0; 512];
        let about = description(root, &mut about)?;
        let mut lines = about.split(|byte| *byte == b'\n');
        let (socket, node, own) = (lines.next()?, lines.next()?, lines.next()?);
        if own != adapter {
            return None;
        }
        let mut text = [0; 4096];
        let length = ask(socket, node, file, &mut text)?;
        Self::holding(text.get(..length)?)
    }

    fn holding(text: &[u8]) -> Option<Self> {
        let flags = libc::MFD_CLOEXEC;
        let name = c"polyverbs-port".as_ptr();
        // SAFETY: a text, and a buffer of that length.
        let file = unsafe {
            let file = Descriptor::new(libc::syscall(libc::SYS_memfd_create, name, flags))?;
            let written = libc::syscall(libc::SYS_write, file.0, text.as_ptr(), text.len());
            (usize::try_from(written) == Ok(text.len())).then_some(file)?
        };
        let mut name = [0; 32];
        write!(&mut name[..], "/proc/self/fd/{}\0", file.0).ok()?;
        Some(Self { _file: file, name })
    }

    pub(crate) fn path(&self) -> *const c_char {
        self.name.as_ptr().cast()
    }
}

/// The name of the adapter and the path below its folder, of a file about one of its ports.
fn of_adapter(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = path.strip_prefix(b"/sys/class/infiniband/")?;
    let end = rest.iter().position(|byte| *byte == b'/')?;
    let (adapter, file) = (&rest[..end], &rest[end + 1..]);
    file.starts_with(b"ports/").then_some((adapter, file))
}

/// Reads which fabric, node and adapter the program has: the lines of a file that `polyverbs run` has written.
fn description<'a>(root: &[u8], target: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut room = Room::new();
    let path = room.join(root, b"/fabric")?;
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a text, and a buffer of that length. System calls pass by the functions here.
    let length = unsafe {
        let opened = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags);
        let file = Descriptor::new(opened)?;
        libc::syscall(libc::SYS_read, file.0, target.as_mut_ptr(), target.len())
    };
    target.get(..usize::try_from(length).ok()?)
}

/// Asks the process with this name for a file, and returns the length of its text.
fn ask(socket: &[u8], node: &[u8], file: &[u8], text: &mut [u8]) -> Option<usize> {
    let connection = connect(socket)?;
    let (own, others) = pair()?;
    let mut request = [0; LONGEST];
    let mut left = &mut request[..];
    left.write_all(b"R").ok()?;
    left.write_all(node).ok()?;
    left.write_all(b"\0").ok()?;
    left.write_all(file).ok()?;
    let length = LONGEST - left.len();
    send(&connection, &request[..length], &others)?;
    drop(others);
    let wait = PATIENCE;
    // SAFETY: the arguments of the option, and a buffer of that length.
    let length = unsafe {
        let (option, size) = (&raw const wait, size_of::<libc::timeval>());
        let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVTIMEO);
        libc::syscall(libc::SYS_setsockopt, own.0, level, name, option, size);
        libc::syscall(libc::SYS_read, own.0, text.as_mut_ptr(), text.len())
    };
    usize::try_from(length).ok().filter(|length| *length > 0)
}

/// Connects to the process that holds a fabric, if it is the program's user's or root's.
fn connect(name: &[u8]) -> Option<Descriptor> {
    // SAFETY: numbers only, for which zero is a value.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as _;
    // An abstract name begins with a zero, and has none at its end.
    let begin = usize::from(!name.contains(&b'/'));
    let place = address.sun_path.get_mut(begin..begin + name.len())?;
    for (place, byte) in place.iter_mut().zip(name) {
        *place = *byte as c_char;
    }
    let length = size_of::<libc::sa_family_t>() + begin + name.len();
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    let wait = PATIENCE;
    // SAFETY: the arguments of the system calls, each with its length.
    unsafe {
        let socket = Descriptor::new(libc::syscall(libc::SYS_socket, libc::AF_UNIX, kind, 0))?;
        let (option, size) = (&raw const wait, size_of::<libc::timeval>());
        let (level, timeout) = (libc::SOL_SOCKET, libc::SO_SNDTIMEO);
        libc::syscall(libc::SYS_setsockopt, socket.0, level, timeout, option, size);
        let connected = libc::syscall(libc::SYS_connect, socket.0, &raw const address, length);
        let mut peer: libc::ucred = zeroed();
        let mut size = size_of::<libc::ucred>() as libc::socklen_t;
        let (to, name) = (&raw mut peer, libc::SO_PEERCRED);
        let asked = libc::syscall(
            libc::SYS_getsockopt,
            socket.0,
            level,
            name,
            to,
            &raw mut size,
        );
        let is_admitted = peer.uid == 0 || peer.uid == libc::geteuid();
        (connected == 0 && asked == 0 && is_admitted).then_some(socket)
    }
}

fn pair() -> Option<(Descriptor, Descriptor)> {
    let mut both: [c_int; 2] = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: there is room for two.
    let made = unsafe {
        libc::syscall(
            libc::SYS_socketpair,
            libc::AF_UNIX,
            kind,
            0,
            both.as_mut_ptr(),
        )
    };
    (made == 0).then(|| (Descriptor(both[0]), Descriptor(both[1])))
}

/// Sends a message with a descriptor.
fn send(to: &Descriptor, bytes: &[u8], attached: &Descriptor) -> Option<()> {
    #[repr(align(8))]
    struct Control([u8; 64]);
    let mut control = Control([0; 64]);
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: the structures of the system call, whose buffers outlive it; the control message fits.
    let sent = unsafe {
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(size_of::<c_int>() as u32) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as _;
        libc::CMSG_DATA(header)
            .cast::<c_int>()
            .write_unaligned(attached.0);
        libc::syscall(
            libc::SYS_sendmsg,
            to.0,
            &raw const message,
            libc::MSG_NOSIGNAL,
        )
    };
    (sent >= 0).then_some(())
}

struct Descriptor(c_int);

impl Descriptor {
    fn new(opened: c_long) -> Option<Self> {
        c_int::try_from(opened).ok().filter(|it| *it >= 0).map(Self)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: our own, which nothing uses later.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// The process answers at once.
const PATIENCE: libc::timeval = libc::timeval {
    tv_sec: 2,
    tv_usec: 0,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_ports_are_asked_for() {
        let state = b"/sys/class/infiniband/ib0/ports/1/state";
        assert_eq!(
            of_adapter(state),
            Some((&b"ib0"[..], &b"ports/1/state"[..]))
        );
        for other in [
            &b"/sys/class/infiniband/ib0/node_guid"[..],
            b"/sys/class/infiniband_verbs/ib0/ports/1",
            b"/dev/infiniband/ib0/ports/1",
            b"",
        ] {
            assert_eq!(of_adapter(other), None);
        }
    }

    #[test]
    fn a_text_is_read_by_the_name_of_its_file() {
        let live = Live::holding(b"4: ACTIVE\n").unwrap();
        // SAFETY: the name is a text.
        let name = unsafe { CStr::from_ptr(live.path()) }.to_str().unwrap();
        assert_eq!(std::fs::read_to_string(name).unwrap(), "4: ACTIVE\n");
    }
}
