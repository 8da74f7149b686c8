//! Remote memory: the memory that programs register, and the RDMA operations that they send with messages as control
//! messages.
// Structures of C programs contain addresses of memory.
#![allow(unsafe_code)]

use std::ffi::c_int;

use polyverbs::memory::{copy, make_resident};
use polyverbs_rds::{
    AtomicOperation, AtomicRequest, Control, Cookie, LocalMemory, RdmaFlags, RdmaRequest,
};
use rustix::io::Errno;

use crate::control::{ControlMessage, Sent};
use crate::options::words;
use crate::socket::{Socket, errno};

// These numbers come from `linux/rds.h`.
const RDS_CMSG_RDMA_ARGS: c_int = 1;
const RDS_CMSG_RDMA_DEST: c_int = 2;
const RDS_CMSG_RDMA_MAP: c_int = 3;
const RDS_CMSG_ATOMIC_FADD: c_int = 6;
const RDS_CMSG_ATOMIC_CSWP: c_int = 7;
const RDS_CMSG_MASKED_ATOMIC_FADD: c_int = 8;
const RDS_CMSG_MASKED_ATOMIC_CSWP: c_int = 9;

/// The operation or memory registration that goes with a message.
#[derive(Default)]
pub(crate) struct WithMessage {
    pub(crate) control: Control,
    /// The cookie of memory that was registered for this message, and has to be freed if the message is not sent; `None`
    /// for none.
    pub(crate) mapped: Option<Cookie>,
}

/// Reads the control messages that a program sends with a message, and registers memory if one asks for that.
///
/// # Safety
/// The addresses in them name memory of the program, which stays mapped while operations and cookies name it.
///
/// # Errors
/// There is more than one control message, or one of unknown kind.
pub(crate) unsafe fn read(socket: &Socket, messages: Sent<'_>) -> Result<WithMessage, Errno> {
    let mut with = WithMessage::default();
    for message in messages {
        let ControlMessage { level, kind, data } = message?;
        if level != libc::SOL_RDS {
            continue;
        }
        if !matches!(with.control, Control::None) {
            give_up(socket, with.mapped);
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller keeps the contract of this function.
        with = unsafe { read_one(socket, kind, data) }?;
    }
    Ok(with)
}

/// Frees the memory that was registered for a message, because the message is not sent.
pub(crate) fn give_up(socket: &Socket, mapped: Option<Cookie>) {
    if let Some(cookie) = mapped {
        // This fails if a peer has already reported the use of the memory, which freed it.
        let _ = socket.rds.free_mr(cookie);
    }
}

// SAFETY of the callers: that of [`read`].
unsafe fn read_one(socket: &Socket, kind: c_int, data: &[u8]) -> Result<WithMessage, Errno> {
    let mut mapped = None;
    let control = match kind {
        RDS_CMSG_RDMA_ARGS => {
            // SAFETY: the caller keeps the contract of this function.
            Control::Rdma(unsafe { rdma(first_words(data)?) }?)
        }
        RDS_CMSG_RDMA_DEST => {
            let [cookie] = first_words(data)?;
            Control::Destination(Cookie(cookie))
        }
        RDS_CMSG_RDMA_MAP => {
            // SAFETY: the caller keeps the contract of this function.
            let cookie = unsafe { get_mr(socket, first_words(data)?) }?;
            mapped = Some(cookie);
            Control::Destination(cookie)
        }
        RDS_CMSG_ATOMIC_FADD
        | RDS_CMSG_ATOMIC_CSWP
        | RDS_CMSG_MASKED_ATOMIC_FADD
        | RDS_CMSG_MASKED_ATOMIC_CSWP => {
            // SAFETY: the caller keeps the contract of this function.
            Control::Atomic(unsafe { atomic(kind, first_words(data)?) })
        }
        _ => return Err(Errno::INVAL),
    };
    Ok(WithMessage { control, mapped })
}

fn first_words<const COUNT: usize>(data: &[u8]) -> Result<[u64; COUNT], Errno> {
    words(data.get(..COUNT * 8).ok_or(Errno::INVAL)?)
}

/// Registers memory of the program, as `RDS_GET_MR` does. The numbers are the fields of `struct rds_get_mr_args`: the
/// address and length of the memory, the address to store the cookie at, and flags.
///
/// # Safety
/// The program keeps the memory mapped until it frees it or closes the socket; the address for the cookie is null or
/// writable.
///
/// # Errors
/// Those of `RDS_GET_MR`.
pub(crate) unsafe fn get_mr(
    socket: &Socket,
    [address, length, cookie_at, flags]: [u64; 4],
) -> Result<Cookie, Errno> {
    // Linux pins the pages for writing even if peers only read.
    if !make_resident(address as *const u8, length as usize, true) {
        return Err(Errno::FAULT);
    }
    let cookie_at = cookie_at as *mut u64;
    let is_there = || {
        let cookie_at = cookie_at.cast::<u8>();
        // SAFETY: memory of the program.
        unsafe { copy::accessible(cookie_at, size_of::<u64>(), true) == size_of::<u64>() }
    };
    if !cookie_at.is_null() && !is_there() {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller keeps the contract of this function.
    let memory = unsafe { local(address, length) };
    let flags = RdmaFlags::from_bits_truncate(flags);
    let cookie = socket.rds.get_mr(memory, flags).map_err(errno)?;
    if !cookie_at.is_null() {
        // SAFETY: the caller keeps the contract of this function.
        unsafe { cookie_at.write_unaligned(cookie.0) };
    }
    Ok(cookie)
}

// Makes an RDMA operation of the fields of `struct rds_rdma_args`. SAFETY of the callers: `list` has `count` entries.
unsafe fn rdma(
    [
        cookie,
        remote_offset,
        remote_length,
        list,
        count,
        flags,
        user_token,
    ]: [u64; 7],
) -> Result<RdmaRequest, Errno> {
    if count > libc::UIO_MAXIOV as u64 {
        return Err(Errno::MSGSIZE);
    }
    if list == 0 || count == 0 {
        return Err(Errno::INVAL);
    }
    // Each entry is a `struct rds_iovec`: an address and a length.
    let list = list as *const [u64; 2];
    let local = (0..count as usize).map(|at| {
        // SAFETY: the caller promises `count` entries.
        unsafe {
            let [address, length] = list.add(at).read_unaligned();
            local(address, length)
        }
    });
    Ok(RdmaRequest {
        cookie: Cookie(cookie),
        remote_offset,
        remote_length,
        local: local.collect(),
        flags: RdmaFlags::from_bits_truncate(flags),
        user_token,
    })
}

// Makes an atomic of the fields of `struct rds_atomic_args`. SAFETY of the callers: there are eight bytes at the local
// address.
unsafe fn atomic(
    kind: c_int,
    [
        cookie,
        address,
        remote_offset,
        first,
        second,
        third,
        fourth,
        flags,
        user_token,
    ]: [u64; 9],
) -> AtomicRequest {
    let operation = match kind {
        RDS_CMSG_ATOMIC_FADD => AtomicOperation::FetchAdd {
            add: first,
            nocarry_mask: 0,
        },
        RDS_CMSG_MASKED_ATOMIC_FADD => AtomicOperation::FetchAdd {
            add: first,
            nocarry_mask: second,
        },
        RDS_CMSG_ATOMIC_CSWP => AtomicOperation::CompareSwap {
            compare: first,
            swap: second,
            compare_mask: u64::MAX,
            swap_mask: u64::MAX,
        },
        _ => AtomicOperation::CompareSwap {
            compare: first,
            swap: second,
            compare_mask: third,
            swap_mask: fourth,
        },
    };
    AtomicRequest {
        cookie: Cookie(cookie),
        remote_offset,
        // SAFETY: the caller keeps the contract of this function.
        local: unsafe { local(address, 8) },
        operation,
        flags: RdmaFlags::from_bits_truncate(flags),
        user_token,
    }
}

/// Installs handlers of SIGSEGV and SIGBUS by which accesses survive to memory that is not mapped or protected: a call then
/// fails with `EFAULT`, and a peer that knows the key of memory that the program has unmapped since does not end the process.
///
/// # Errors
/// The handlers cannot be installed.
pub(crate) fn outlive_faults() -> Result<(), Errno> {
    copy::outlive_faults(libc::sigaction)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM))
}

// SAFETY of the callers: the memory has this length and stays mapped while it is used.
unsafe fn local(address: u64, length: u64) -> LocalMemory {
    // SAFETY: the caller keeps the contract of this function; other programs may change the memory at any time.
    unsafe { LocalMemory::borrowed(address as *mut u8, length as usize) }
}
