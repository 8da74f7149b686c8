//! Address handles.

use std::fmt;
use std::sync::Arc;

use crate::as_any::AsAny;
use crate::capability::PortAttributes;
use crate::control::{Reply, Started};
use crate::error::{ArgumentReason, VerbError};
use crate::ids::{Gid, LinkAddress};
use crate::lifecycle::{
    DestroyError, Extra, Handle, Object, ObjectBuilder, Ops, by_identity, destroy,
};
use crate::object_id::ObjectId;
use crate::qp_attributes::AddressVector;
use crate::wc::{Completion, WcFlags};

/// The part of an address handle that a provider implements.
pub trait AhOps: AsAny {
    /// Returns the path that datagrams with this address handle take.
    fn path(&self) -> AddressVector;

    /// Returns the address handle that this one forwards to, if it is a wrapper of a layer in front of another device. Requests and
    /// extensions name such an object, and a provider finds its own by [`own_in_layers`](crate::provider::own_in_layers).
    fn inner(&self) -> Option<&Arc<dyn AhOps>> {
        None
    }

    /// Destroys the address handle.
    fn destroy(&self, reply: Reply<()>);
}

pub(crate) struct AhExtra;

impl Extra for AhExtra {}

impl Ops for dyn AhOps {
    fn destroy(&self, reply: Reply<()>) {
        AhOps::destroy(self, reply);
    }
}

pub(crate) type AhObject = Object<dyn AhOps, AhExtra>;

/// An address handle: the route that a UD send takes to its destination. A clone is another handle of the same object.
///
/// ```no_run
/// # fn example(context: &verbs_api::Context, pd: &verbs_api::Pd, datagrams: &verbs_api::Qp, peer: verbs_api::QpEndpoint)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_api::wr::{self, UdDestination};
///
/// let ah = pd.create_ah(context.path_to(1, peer.address, peer.gid)?).wait()?;
/// let destination = UdDestination { ah, remote_qpn: peer.qp_num, remote_qkey: 0x1111_1111 };
/// datagrams.post_one(wr::Send::new(b"hello").to(&destination))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_ah")]
pub struct Ah {
    object: Arc<AhObject>,
    pd: ObjectId,
}

impl Ah {
    pub(crate) fn new(builder: ObjectBuilder, ops: Arc<dyn AhOps>, pd: ObjectId) -> Self {
        Self {
            object: builder.finish(ops, AhExtra),
            pd,
        }
    }

    /// Returns the identity of the address handle.
    pub fn id(&self) -> ObjectId {
        self.object.node.id()
    }

    /// Returns the route that the address handle was made with.
    pub fn path(&self) -> AddressVector {
        self.object.ops.path()
    }

    /// Whether the address handle was made in the protection domain with this identity.
    pub fn is_of_pd(&self, pd: ObjectId) -> bool {
        self.pd == pd
    }

    /// Whether the address handle can be used: it was not destroyed, and its device was not removed.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.object.node.is_live()
    }

    /// Returns the provider's implementation of the address handle.
    pub fn ops(&self) -> &Arc<dyn AhOps> {
        &self.object.ops
    }

    /// Destroys the address handle. Datagrams that were posted with it before still take its route.
    #[doc(alias = "ibv_destroy_ah")]
    pub fn destroy(self) -> Started<(), DestroyError<Self>> {
        destroy(self)
    }

    /// Returns the route that the address handle was made with.
    ///
    /// # Errors
    /// The handle was destroyed, or the device removed.
    #[doc(alias = "ibv_query_ah")]
    pub fn query(&self) -> Result<AddressVector, VerbError> {
        self.object.node.check_live()?;
        Ok(self.path())
    }
}

impl AddressVector {
    /// Checks the fields whose range is the same on every device, and the port number against `phys_port_cnt`, the number
    /// of ports.
    ///
    /// # Errors
    /// The first field that is out of its range.
    pub fn check(&self, phys_port_cnt: u8) -> Result<(), VerbError> {
        if !(1..=phys_port_cnt).contains(&self.port_num) {
            let reason = ArgumentReason::OutOfRange {
                given: self.port_num.into(),
                least: 1,
                most: phys_port_cnt.into(),
            };
            return Err(VerbError::argument("port_num", reason));
        }
        if self.sl > 15 || self.static_rate > 31 {
            return Err(VerbError::argument("sl, static_rate", "beyond 15 or 31"));
        }
        if self.flow_label >= 1 << 20 {
            return Err(VerbError::argument("flow_label", "has more than 20 bits"));
        }
        Ok(())
    }

    /// Returns the path back to the sender of the UD datagram that `completion` reports, which arrived on `port`. `grh` is
    /// the first 40 bytes of the receive buffer; they are valid only if the completion has [`WcFlags::GRH`].
    ///
    /// # Errors
    /// The datagram had no routing header, and the port has no LID.
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn answering(
        port: &PortAttributes,
        completion: &Completion,
        grh: &[u8; 40],
    ) -> Result<Self, VerbError> {
        let is_global = completion.wc_flags.contains(WcFlags::GRH);
        if !is_global && port.lid().is_none() {
            let reason = "has no routing header, and the port no LID";
            return Err(VerbError::argument("completion", reason));
        }
        let route = Route::parse(grh).filter(|_| is_global).unwrap_or_default();
        let address = match port.address {
            LinkAddress::Lid(_) => LinkAddress::Lid(completion.slid),
            own => own.peer(route.sgid),
        };
        let is_receiver = |index: &u8| port.gid(*index) == Some(route.dgid);
        let sgid_index = (0..=u8::MAX).find(is_receiver);
        Ok(Self {
            is_global,
            flow_label: route.flow_label,
            sgid_index: sgid_index.unwrap_or(port.default_gid_index()),
            src_path_bits: completion.dlid_path_bits,
            traffic_class: route.traffic_class,
            hop_limit: route.hop_limit,
            sl: completion.sl,
            ..Self::new(address, route.sgid, port.port)
        })
    }
}

// What a routing header says: an IPv6 header, or that of IPv4 in the last 20 of the 40 bytes.
#[derive(Default)]
struct Route {
    sgid: Gid,
    dgid: Gid,
    flow_label: u32,
    traffic_class: u8,
    hop_limit: u8,
}

impl Route {
    fn parse(grh: &[u8; 40]) -> Option<Self> {
        if grh[0] >> 4 == 6 {
            let first = u32::from_be_bytes(*grh.first_chunk()?);
            return Some(Self {
                sgid: Gid(*grh[8..].first_chunk()?),
                dgid: Gid(*grh[24..].first_chunk()?),
                flow_label: first & 0xf_ffff,
                traffic_class: (first >> 20) as u8,
                hop_limit: grh[7],
            });
        }
        let v4 = &grh[20..];
        let gid = |at: usize| {
            let bytes: [u8; 4] = *v4[at..].first_chunk()?;
            Some(Gid::from(std::net::IpAddr::from(bytes)))
        };
        Some(Self {
            sgid: gid(12)?,
            dgid: gid(16)?,
            flow_label: 0,
            traffic_class: v4[1],
            hop_limit: v4[8],
        })
    }
}

impl Handle for Ah {
    type Ops = dyn AhOps;
    type Extra = AhExtra;

    fn object(&self) -> &Arc<AhObject> {
        &self.object
    }
}

by_identity!(Ah: Handle::object);

impl fmt::Debug for Ah {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ah")
            .field("path", &self.path())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::{GidEntry, GidType, PortCaps};

    fn datagram(flags: WcFlags) -> Completion {
        let mut done = Completion::default();
        (done.wc_flags, done.slid, done.sl, done.dlid_path_bits) = (flags, 0x17, 3, 2);
        done
    }

    // covers 6.24
    #[test]
    fn within_a_subnet_the_lid_leads_back() {
        let port = PortAttributes::new(2, PortCaps::INFINIBAND, LinkAddress::Lid(9));
        let done = datagram(WcFlags::empty());
        let path = AddressVector::answering(&port, &done, &[0xff; 40]).unwrap();
        assert_eq!(
            (
                path.is_global,
                path.address,
                path.sl,
                path.src_path_bits,
                path.port_num
            ),
            (false, LinkAddress::Lid(0x17), 3, 2, 2)
        );
        assert_eq!(path.dgid, Gid::default());
    }

    // covers 6.24
    #[test]
    fn a_routing_header_is_turned_round() {
        let (sender, own) = ("2001:db8::2", "2001:db8::1");
        let gid = |ip: &str| Gid::from(ip.parse::<std::net::IpAddr>().unwrap());
        let address = LinkAddress::Ip(own.parse().unwrap());
        let entry = |ip| GidEntry::new(gid(ip), GidType::RoceV2);
        let port = PortAttributes {
            gids: vec![entry("fe80::1"), entry("2001:db8::7"), entry(own)],
            ..PortAttributes::new(1, PortCaps::ROCE_V2, address)
        };
        let mut grh = [0; 40];
        grh[..4].copy_from_slice(&0x6ab1_2345_u32.to_be_bytes());
        grh[7] = 63;
        grh[8..24].copy_from_slice(&gid(sender).0);
        grh[24..].copy_from_slice(&gid("2001:db8::7").0);
        let done = datagram(WcFlags::GRH);
        let path = AddressVector::answering(&port, &done, &grh).unwrap();
        assert_eq!(path.address, LinkAddress::Ip(sender.parse().unwrap()));
        assert_eq!(
            (path.is_global, path.dgid, path.sgid_index),
            (true, gid(sender), 1)
        );
        assert_eq!(
            (path.traffic_class, path.flow_label, path.hop_limit),
            (0xab, 0x1_2345, 63)
        );
        let none = AddressVector::answering(&port, &datagram(WcFlags::empty()), &grh);
        assert!(none.is_err());
    }
}
