//! The multicast groups that the QP of an identifier is attached to.
#![allow(unsafe_code)]

use std::net::IpAddr;

use polyverbs_libibverbs::errno::Errno;
use polyverbs_libibverbs::qp;
use verbs_api::ids::Gid;

use crate::abi::RdmaCmId;
use crate::state::Inner;

/// The multicast GID of a group's IP address.
pub fn gid(ip: IpAddr) -> Gid {
    match ip {
        IpAddr::V4(ip) => {
            let mut bytes = ip.to_ipv6_mapped().octets();
            bytes[..2].copy_from_slice(&[0xff, 0x0e]);
            Gid(bytes)
        }
        IpAddr::V6(ip) => Gid(ip.octets()),
    }
}

/// Attaches the queue pair to a group, unless it is attached.
///
/// # Errors
/// The identifier has no QP, or the device has no room for another attachment.
pub fn attach(public: &RdmaCmId, inner: &Inner, ip: IpAddr) -> Result<(), Errno> {
    if inner.lock().groups.contains(&(ip, true)) {
        return Ok(());
    }
    // SAFETY: the program does not destroy the queue pair while it calls.
    let own = unsafe { qp::own(public.qp) }?;
    own.qp.attach_multicast(gid(ip)).wait()?;
    Ok(())
}

/// Detaches the QP of an identifier from a group. Without effect if the QP was destroyed.
pub fn detach(public: &RdmaCmId, ip: IpAddr) {
    // SAFETY: the program does not destroy the queue pair while it calls.
    if let Ok(own) = unsafe { qp::own(public.qp) } {
        let _ = own.qp.detach_multicast(gid(ip)).wait();
    }
}

/// Detaches the QP of an identifier from all groups, because the QP or the identifier is being destroyed.
pub fn detach_all(public: &RdmaCmId, inner: &Inner) {
    let mut attached = Vec::new();
    for (ip, is_attached) in &mut inner.lock().groups {
        if std::mem::replace(is_attached, false) {
            attached.push(*ip);
        }
    }
    for ip in attached {
        detach(public, ip);
    }
}
