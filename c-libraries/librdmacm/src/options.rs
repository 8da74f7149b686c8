//! Options of identifiers, vendor options (enhanced connection establishment, ECE), and notifications of the program.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use polyverbs_libibverbs::abi::IbvEce;
use polyverbs_libibverbs::errno::Errno;

use crate::abi::RdmaCmId;
use crate::errno::done;
use crate::id;
use crate::state::Part;

const ID: c_int = 0;
const IB: c_int = 1;

const TOS: c_int = 0;
const REUSE_ADDRESS: c_int = 1;
const ALONE_IN_FAMILY: c_int = 2;
const ACK_TIMEOUT: c_int = 3;

const PATH: c_int = 1;

/// Implements `rdma_set_option`.
///
/// # Safety
/// `length` bytes from `value` are readable, and the identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn set(
    id: *mut RdmaCmId,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|(_, own)| {
        if value.is_null() {
            return Err(Errno::INVAL);
        }
        let number = || {
            if length != size_of::<c_int>() {
                return Err(Errno::INVAL);
            }
            // SAFETY: so many bytes are readable, as the caller promises.
            Ok(unsafe { value.cast::<c_int>().read_unaligned() })
        };
        let byte = || {
            if length != 1 {
                return Err(Errno::INVAL);
            }
            // SAFETY: as above.
            Ok(unsafe { value.cast::<u8>().read() })
        };
        let mut state = own.inner.lock();
        match (level, name) {
            (ID, TOS) => state.options.tos = byte()?,
            (ID, ALONE_IN_FAMILY) => state.options.sharing.is_alone_in_family = number()? != 0,
            (ID, REUSE_ADDRESS) => state.options.sharing.reuses_address = number()? != 0,
            (ID, ACK_TIMEOUT) => {
                state.options.ack_timeout = Some(byte().and_then(|code| match code {
                    0..=31 => Ok(code),
                    _ => Err(Errno::INVAL),
                })?);
            }
            // The path that the program sets is not used; packets take the IP route.
            (IB, PATH) if state.remote.is_some() => state.has_route = true,
            (IB, PATH) => return Err(Errno::INVAL),
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(())
    }))
}

/// Implements `rdma_notify`, by which a program reports early traffic. It has no effect, because the device has noticed the
/// traffic itself.
///
/// # Safety
/// The identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn notify(id: *mut RdmaCmId, event: c_int) -> c_int {
    const COMMUNICATION_ESTABLISHED: c_int = 4;
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|(_, own)| {
        let state = own.inner.lock();
        match state.part {
            Part::Connected(_) | Part::Busy if event == COMMUNICATION_ESTABLISHED => Ok(()),
            _ => Err(Errno::INVAL),
        }
    }))
}

/// Implements `rdma_set_local_ece`: accepts only an empty set of vendor options.
///
/// # Safety
/// `ece` is null or readable, and the identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn set_local_ece(id: *mut RdmaCmId, ece: *mut IbvEce) -> c_int {
    // SAFETY: as the caller promises.
    let known = unsafe { (id::own(id), ece.as_ref()) };
    done(match known {
        (Err(errno), _) => Err(errno),
        (Ok(_), Some(ece)) if ece.comp_mask != 0 => Err(Errno::INVAL),
        (Ok(_), Some(IbvEce { vendor_id: 0, .. })) => Ok(()),
        (Ok(_), Some(_)) => Err(Errno::OPNOTSUPP),
        (Ok(_), None) => Err(Errno::INVAL),
    })
}

/// Implements `rdma_get_remote_ece`: reports that the peer has no vendor options.
///
/// # Safety
/// `ece` is null or writable, and the identifier is not destroyed during the call.
pub unsafe extern "C-unwind" fn get_remote_ece(id: *mut RdmaCmId, ece: *mut IbvEce) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe { id::own(id) }.and_then(|_| {
        // SAFETY: as the caller promises.
        let ece = unsafe { ece.as_mut() }.ok_or(Errno::INVAL)?;
        if ece.comp_mask != 0 {
            return Err(Errno::INVAL);
        }
        (ece.vendor_id, ece.options) = (0, 0);
        Ok(())
    }))
}
