//! Options of identifiers, vendor options (enhanced connection establishment, ECE), and notifications of the program.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use polyverbs_libibverbs::abi::{IbvEce, qp_type};
use polyverbs_libibverbs::errno::Errno;
use verbs_api::Transport;

use crate::abi::RdmaCmId;
use crate::errno::done;
use crate::state::Part;
use crate::{id, resolve};

const ID: c_int = 0;
const IB: c_int = 1;

const TOS: c_int = 0;
const REUSE_ADDRESS: c_int = 1;
const ALONE_IN_FAMILY: c_int = 2;
const ACK_TIMEOUT: c_int = 3;

const PATH: c_int = 1;

/// A path as programs set it (`struct ibv_path_data`): its uses, a reserved word, and a path record.
type PathData = [u32; 18];
/// The uses that the connection manager needs: management datagrams, the primary path, and both directions.
const USES: u32 = 0x2b;

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
    done(unsafe { id::own(id) }.and_then(|(public, own)| {
        if value.is_null() && length > 0 {
            return Err(Errno(libc::EFAULT));
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
        // SAFETY: as above.
        let has_path = || unsafe { has_path(value, length) };
        let mut state = own.inner.lock();
        match (level, name) {
            (ID, TOS) => state.options.tos = byte()?,
            (ID, ALONE_IN_FAMILY) => {
                let is_alone = number()? != 0;
                if !matches!(state.part, Part::Idle | Part::Bound) {
                    return Err(Errno::INVAL);
                }
                state.options.sharing.is_alone_in_family = is_alone;
            }
            (ID, REUSE_ADDRESS) => {
                let reuses = number()? != 0;
                if matches!(state.part, Part::Listening(_))
                    || !reuses && !matches!(state.part, Part::Idle)
                {
                    return Err(Errno::INVAL);
                }
                state.options.sharing.reuses_address = reuses;
            }
            (ID, ACK_TIMEOUT) => {
                let code = byte()?;
                let is_reliable = matches!(public.qp_type, qp_type::RC | qp_type::XRC_SEND);
                if code > 31 || !is_reliable {
                    return Err(Errno::INVAL);
                }
                state.options.ack_timeout = Some(code);
            }
            // The path that the program sets is not used; packets take the IP route.
            (IB, PATH) if has_path() => {
                drop(state);
                return resolve::take_route(own);
            }
            (IB, PATH) => return Err(Errno::INVAL),
            _ => return Err(Errno(libc::ENOSYS)),
        }
        if let Some(port) = &state.port {
            port.share(state.options.sharing);
        }
        Ok(())
    }))
}

/// Whether whole paths are there, and one of them has the uses that the connection manager needs.
///
/// # Safety
/// So many bytes are readable.
unsafe fn has_path(value: *const c_void, length: usize) -> bool {
    let count = length / size_of::<PathData>();
    length.is_multiple_of(size_of::<PathData>())
        && (0..count).any(|place| {
            // SAFETY: as the caller promises.
            let [uses, ..] = unsafe { value.cast::<PathData>().add(place).read_unaligned() };
            uses == USES
        })
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
        let transport = state.device.as_ref().map(|device| device.transport());
        match (transport, &state.part) {
            (Some(Transport::Iwarp), part) if part.has_request() => Ok(()),
            (Some(_), Part::Busy | Part::Accepting(_)) if event == COMMUNICATION_ESTABLISHED => {
                Ok(())
            }
            (Some(_), Part::Connected(_)) if event == COMMUNICATION_ESTABLISHED => {
                Err(Errno(libc::EISCONN))
            }
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
