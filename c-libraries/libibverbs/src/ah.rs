//! Address handles and their attributes, for C programs.
#![allow(unsafe_code)]

use std::ffi::c_int;

use verbs_api::capability::PortAttributes;
use verbs_api::ids::{Gid, LinkAddress};
use verbs_api::qp::AddressVector;
use verbs_api::{Ah, Completion, Context, Transport, completion::WcFlags};

use crate::abi::{IbvAh, IbvAhAttr, IbvContext, IbvGrh, IbvPd, IbvWc};
use crate::context;
use crate::device::{self, ListedDevice};
use crate::errno::{Errno, code, pointer};
use crate::object::Object;
use crate::pd;

/// An address handle: its public structure and the library's part.
pub type AhObject = Object<IbvAh, Ah>;

/// Converts the attributes of an address handle: the destination is a GID or, if the port reports InfiniBand, may be a LID.
///
/// # Errors
/// The attributes have no GRH, which every destination on Ethernet needs, or an unused GID index.
pub fn path(context: &Context, attr: &IbvAhAttr) -> Result<AddressVector, Errno> {
    let port = context.query_port(attr.port_num)?;
    let attributes = context.attributes();
    if let LinkAddress::Lid(_) = port.address {
        return to_lid(&port, attr);
    }
    let local = attr.is_global == 0 && attributes.transport == Transport::InfiniBand;
    let (gid, sgid_index) = if local {
        let listed = device::named(&attributes.name).map(ListedDevice::configured);
        let listed = listed.filter(|listed| listed.lid().is_some());
        (listed.ok_or(Errno::INVAL)?.neighbour(attr.dlid).into(), 0)
    } else {
        (Gid(attr.grh.dgid.raw), attr.grh.sgid_index)
    };
    if port.gid(sgid_index).is_none() {
        return Err(Errno::INVAL);
    }
    let address = port.address.peer(gid);
    Ok(AddressVector {
        address,
        // The GID of a peer with a LID is derived from the LID.
        is_global: true,
        dgid: gid,
        // Only 20 bits count, as in the kernel: UCX sets more.
        flow_label: attr.grh.flow_label & 0xf_ffff,
        sgid_index,
        hop_limit: match gid.is_multicast() {
            true => attr.grh.hop_limit,
            // Linux replaces the program's hop limit by that of the route: `ibv_rc_pingpong` asks for 1.
            false => AddressVector::new(address, gid, attr.port_num).hop_limit,
        },
        ..attr.into()
    })
}

/// The path to a LID, which every path in a subnet names.
fn to_lid(port: &PortAttributes, attr: &IbvAhAttr) -> Result<AddressVector, Errno> {
    let is_global = attr.is_global != 0;
    if is_global && port.gid(attr.grh.sgid_index).is_none() {
        return Err(Errno::INVAL);
    }
    Ok(AddressVector {
        address: LinkAddress::Lid(attr.dlid),
        is_global,
        ..attr.into()
    })
}

/// Implements `ibv_create_ah`.
///
/// # Safety
/// `attr` is null or readable, and the domain is not freed during the call.
pub unsafe extern "C-unwind" fn create(pd: *mut IbvPd, attr: *const IbvAhAttr) -> *mut IbvAh {
    // SAFETY: as the caller promises.
    pointer(unsafe { pd::own(pd) }.and_then(|own| {
        // SAFETY: as the caller promises.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
        // SAFETY: live, as `own` has seen.
        let public = unsafe { (*pd).context };
        // SAFETY: a domain is live, so its device is.
        let state = unsafe { context::own(public) }?;
        // iWARP has no datagrams, so it has no address handles.
        if state.context.attributes().transport == Transport::Iwarp {
            return Err(Errno::OPNOTSUPP);
        }
        let ah = own.create_ah(path(&state.context, attr)?).wait()?;
        let c = IbvAh {
            context: public,
            pd,
            handle: ah.id().index,
        };
        Ok(AhObject::create(c, ah))
    }))
}

/// Implements `ibv_destroy_ah`.
///
/// # Safety
/// The program does not use the structure after this call.
pub unsafe extern "C-unwind" fn destroy(ah: *mut IbvAh) -> c_int {
    let end = |own: &Ah| Ok(own.clone().destroy().wait()?);
    // SAFETY: as the caller promises.
    code(unsafe { AhObject::end(ah, end) })
}

/// Implements `ibv_init_ah_from_wc`.
///
/// # Safety
/// The structures are readable, and `target` is writable.
pub unsafe extern "C-unwind" fn init_from_wc(
    context: *mut IbvContext,
    port: u8,
    wc: *const IbvWc,
    grh: *const IbvGrh,
    target: *mut IbvAhAttr,
) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { context::own(context) }.and_then(|state| {
        // SAFETY: as the caller promises.
        let (wc, grh, target) = unsafe { (wc.as_ref(), grh.as_ref(), target.as_mut()) };
        let (Some(wc), Some(grh), Some(target)) = (wc, grh, target) else {
            return Err(Errno::INVAL);
        };
        let mut done = Completion::default();
        done.wc_flags = WcFlags::from_bits_truncate(wc.wc_flags as u8);
        done.sl = wc.sl;
        // SAFETY: plain bytes, as many as the structure has.
        let grh: [u8; 40] = unsafe { std::mem::transmute(*grh) };
        let known = state.context.query_port(port)?;
        *target = (&AddressVector::answering(&known, &done, &grh)?).into();
        Ok(())
    }))
}

/// Implements `ibv_create_ah_from_wc`.
///
/// # Safety
/// As for [`init_from_wc`].
pub unsafe extern "C-unwind" fn create_from_wc(
    pd: *mut IbvPd,
    wc: *const IbvWc,
    grh: *const IbvGrh,
    port: u8,
) -> *mut IbvAh {
    // SAFETY: as the caller promises.
    if let Err(errno) = unsafe { pd::own(pd) } {
        return pointer(Err(errno));
    }
    // SAFETY: numbers only, for which zero is a value.
    let mut attr: IbvAhAttr = unsafe { std::mem::zeroed() };
    // SAFETY: the domain is live; the rest as the caller promises.
    if unsafe { init_from_wc((*pd).context, port, wc, grh, &raw mut attr) } != 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: as the caller promises.
    unsafe { create(pd, &raw const attr) }
}
