//! Address handles, and addresses as programs write them.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr};

use verbs_api::qp::AddressVector;
use verbs_api::{
    Ah, Context, Transport,
    ids::{Gid, LinkAddress},
};

use crate::abi::{IbvAh, IbvAhAttr, IbvContext, IbvGid, IbvGlobalRoute, IbvGrh, IbvPd, IbvWc};
use crate::context;
use crate::device::{self, ListedDevice};
use crate::errno::{Errno, code, pointer};
use crate::object::Object;
use crate::pd;

/// A handle as it lies in memory.
pub type AhObject = Object<IbvAh, Ah>;

/// Whom a GID stands for, on the link of a device of this address. Without a wire there is nobody else.
fn address_of(gid: Gid, own: LinkAddress) -> LinkAddress {
    let LinkAddress::Ip(own_ip) = own else {
        return own;
    };
    LinkAddress::Ip(match gid.0 {
        // A group of IPv4.
        [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => IpAddr::from([a, b, c, d]),
        _ => gid.to_ip(own_ip),
    })
}

/// A path as our devices take it: a GID, or a LID where the port reports InfiniBand.
///
/// # Errors
/// No routing header, as every path on an Ethernet has one, or a GID index that is not there.
pub fn path(context: &Context, attr: &IbvAhAttr) -> Result<AddressVector, Errno> {
    let port = context.query_port(attr.port_num)?;
    let attributes = context.attributes();
    let local = attr.is_global == 0 && attributes.transport == Transport::InfiniBand;
    let (gid, sgid_index) = if local {
        let listed = device::named(&attributes.name).map(ListedDevice::configured);
        let listed = listed.filter(|listed| listed.lid().is_some());
        (listed.ok_or(Errno::INVAL)?.neighbour(attr.dlid).into(), 0)
    } else {
        (Gid(attr.grh.dgid.raw), attr.grh.sgid_index)
    };
    if usize::from(sgid_index) >= port.gids.len() {
        return Err(Errno::INVAL);
    }
    Ok(AddressVector {
        address: address_of(gid, port.address),
        dgid: gid,
        sgid_index,
        port_num: attr.port_num,
        traffic_class: attr.grh.traffic_class,
        hop_limit: attr.grh.hop_limit,
        sl: attr.sl,
        static_rate: attr.static_rate,
    })
}

/// The other way.
pub fn attr(path: &AddressVector) -> IbvAhAttr {
    IbvAhAttr {
        grh: IbvGlobalRoute {
            dgid: IbvGid { raw: path.dgid.0 },
            flow_label: 0,
            sgid_index: path.sgid_index,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
        },
        dlid: 0,
        sl: path.sl,
        src_path_bits: 0,
        static_rate: path.static_rate,
        is_global: 1,
        port_num: path.port_num,
    }
}

/// `ibv_create_ah`.
///
/// # Safety
/// `attr` is null or readable, and nobody frees the domain meanwhile.
pub unsafe extern "C" fn create(pd: *mut IbvPd, attr: *const IbvAhAttr) -> *mut IbvAh {
    // SAFETY: as the caller promises.
    pointer(unsafe { pd::own(pd) }.and_then(|own| {
        // SAFETY: as the caller promises.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
        // SAFETY: live, as `own` has seen.
        let public = unsafe { (*pd).context };
        // SAFETY: a domain is live, so its device is.
        let state = unsafe { context::own(public) }?;
        // iWARP has no datagrams to address.
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

/// `ibv_destroy_ah`.
///
/// # Safety
/// Nobody uses the structure any more.
pub unsafe extern "C" fn destroy(ah: *mut IbvAh) -> c_int {
    // SAFETY: as the caller promises.
    code(unsafe { AhObject::own(ah) }.and_then(|own| {
        own.clone().destroy().wait()?;
        // SAFETY: as the caller promises.
        unsafe { AhObject::destroy(ah) };
        Ok(())
    }))
}

const WITH_GRH: u32 = 1;

// Where a datagram came from: an IPv6 header, or an IPv4 header in the last 20 of the 40 octets.
fn source_of(grh: &IbvGrh) -> (Gid, Gid, u8, u8) {
    let version = u32::from_be(grh.version_tclass_flow) >> 28;
    if version == 6 {
        let class = (u32::from_be(grh.version_tclass_flow) >> 20) as u8;
        return (Gid(grh.sgid.raw), Gid(grh.dgid.raw), class, grh.hop_limit);
    }
    // SAFETY: plain octets, as many as the structure has.
    let octets: [u8; 40] = unsafe { std::mem::transmute(*grh) };
    let v4 = &octets[20..];
    let gid = |from: usize| {
        Gid::from(Ipv4Addr::new(
            v4[from],
            v4[from + 1],
            v4[from + 2],
            v4[from + 3],
        ))
    };
    (gid(12), gid(16), v4[1], v4[8])
}

/// `ibv_init_ah_from_wc`.
///
/// # Safety
/// The structures are readable, and `target` is writable.
pub unsafe extern "C" fn init_from_wc(
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
        if wc.wc_flags & WITH_GRH == 0 {
            return Err(Errno::INVAL);
        }
        let known = state.context.query_port(port)?;
        let (sender, receiver, traffic_class, hop_limit) = source_of(grh);
        let sgid_index = known.gids.iter().position(|entry| entry.gid == receiver);
        *target = attr(&AddressVector {
            sgid_index: sgid_index.unwrap_or(0) as u8,
            traffic_class,
            hop_limit,
            sl: wc.sl,
            ..AddressVector::new(address_of(sender, known.address), sender, port)
        });
        Ok(())
    }))
}

/// `ibv_create_ah_from_wc`.
///
/// # Safety
/// As for [`init_from_wc`].
pub unsafe extern "C" fn create_from_wc(
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
