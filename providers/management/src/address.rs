//! The other end of a MAD, and which MADs queue pairs 0 and 1 take.

use polyverbs_wire::mad::smp::{DIRECTED_CLASS, LID_CLASS, PERMISSIVE_LID};
use polyverbs_wire::mad::{self, CM_CLASS, ClassPortInfo, GSI_Q_KEY, GSI_QP, MAD_LEN, method};
use polyverbs_wire::mad::{Attribute as _, MadHeaderView};

/// The number of the queue pair of subnet management.
pub const SMI_QP: u32 = 0;

/// The other end of a MAD: where one goes that leaves, and whence one came that has arrived. An answer goes to the address that its
/// request came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// The number of the other end's queue pair.
    pub qpn: u32,
    /// The Q_Key of the other end's queue pair; 0 if it is [`SMI_QP`], where none is checked.
    pub q_key: u32,
    /// The other end's LID.
    pub lid: u16,
    /// The service level.
    pub sl: u8,
    /// The low bits of this end's LID, if the port has several.
    pub path_bits: u8,
    /// The index of the partition in this end's P_Key table.
    pub pkey_index: u16,
    /// The global route; `None` if the MAD has no GRH.
    pub global: Option<GlobalRoute>,
}

/// What the GRH of a MAD says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalRoute {
    /// The other end's GID.
    pub gid: [u8; 16],
    /// The index of this end's GID in its table.
    pub gid_index: u8,
    /// The flow label: 20 bits.
    pub flow_label: u32,
    /// The hop limit.
    pub hop_limit: u8,
    /// The traffic class.
    pub traffic_class: u8,
}

impl Address {
    /// Whether an answer from `source` can be that to a request to this address.
    ///
    /// Any port may take a request to the permissive LID, and answers from its own.
    pub(crate) fn is_answered_from(&self, source: &Self) -> bool {
        match (&self.global, &source.global) {
            (Some(here), Some(there)) => here.gid == there.gid,
            (None, None) => self.lid == PERMISSIVE_LID || self.lid == source.lid,
            _ => false,
        }
    }
}

/// Whether a MAD of this class belongs to [`SMI_QP`]; all others belong to [`GSI_QP`].
pub const fn is_subnet_management(class: u8) -> bool {
    matches!(class, LID_CLASS | DIRECTED_CLASS)
}

/// Whether queue pair `qpn` of a port takes this MAD, which has arrived with `q_key` (IBTA 13.4.4, 13.5.2.1).
///
/// Queue pair 0 takes MADs of subnet management with any Q_Key. Queue pair 1 takes all others if their Q_Key is [`GSI_Q_KEY`].
pub fn is_admitted(mad: &[u8; MAD_LEN], qpn: u32, q_key: u32) -> bool {
    let Ok(decoded) = mad::decode(mad) else {
        return false;
    };
    match qpn {
        SMI_QP => is_subnet_management(decoded.header.management_class()),
        GSI_QP => q_key == GSI_Q_KEY && is_general_service(decoded.header),
        _ => false,
    }
}

/// Connection management has no other method than Send, but for the attribute that every class has.
fn is_general_service(header: &MadHeaderView) -> bool {
    match header.management_class() {
        CM_CLASS => header.method() == method::SEND || header.attribute_id() == ClassPortInfo::ID,
        class => !is_subnet_management(class),
    }
}
