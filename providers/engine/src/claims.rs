//! Device attributes that every transport on this engine shares.

use verbs_api::qp::AddressVector;
use verbs_api::{
    ArgumentReason, Features, Transport, VerbError,
    capability::{AtomicScope, BaselineGaps, DeviceAttributes, Identity, Limits, PortAttributes},
    ids::{Guid, LinkAddress},
};

/// The largest values that the engine's data structures allow; the machine's memory may allow less.
pub const LIMITS: Limits = Limits {
    max_qp: 1 << 20,
    max_qp_wr: 1 << 14,
    max_send_sge: 32,
    max_recv_sge: 32,
    max_sge_rd: 32,
    max_inline_data: 1024,
    max_msg_sz: 1 << 31,
    max_cq: 1 << 16,
    max_cqe: 1 << 22,
    num_comp_vectors: 1,
    max_mr: 1 << 22,
    max_mr_size: 1 << 47,
    max_mw: 1 << 20,
    max_pd: 1 << 16,
    max_ah: 1 << 16,
    max_srq: 1 << 16,
    max_srq_wr: 1 << 16,
    max_srq_sge: 32,
    max_qp_rd_atom: 128,
    max_qp_init_rd_atom: 128,
    max_res_rd_atom: 128 << 20,
    max_fast_reg_page_list_len: 1 << 12,
    page_size_cap: 0xffff_ffff_ffff_f000,
    max_mcast_grp: 1 << 12,
    max_mcast_qp_attach: 1 << 12,
    max_comp_cntr: 1 << 16,
    phys_port_cnt: 1,
    local_ca_ack_delay: 0,
};

/// The vendor of emulated devices: a locally administered OUI, which no vendor has.
const VENDOR_ID: u32 = 0x02_70_76;

/// Returns the attributes of a device whose only port is `port`. The emulations of extensions add their features later.
pub fn attributes(
    name: &str,
    provider: &'static str,
    transport: Transport,
    address: LinkAddress,
    port: PortAttributes,
) -> DeviceAttributes {
    let identity = Identity {
        vendor_id: VENDOR_ID,
        vendor_part_id: 1,
        hw_ver: 0,
        fw_ver: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let guid = Guid::software(transport, address.ip_or_stand_in());
    DeviceAttributes {
        name: name.to_owned(),
        provider,
        transport,
        identity,
        node_guid: guid,
        sys_image_guid: guid,
        features: Features::SRQ,
        extensions: Vec::new(),
        gaps: BaselineGaps::empty(),
        limits: LIMITS,
        // These are atomic instructions of the processor, which every device and the program share.
        atomic_cap: AtomicScope::Global,
        masked_atomic_cap: AtomicScope::None,
        ports: vec![PortAttributes {
            port_guid: guid,
            ..port
        }],
    }
}

/// Checks that a device with the address `own` can reach the remote address of `path`: both are in-process addresses, or
/// both are IP addresses, of one family unless the remote one is that of a multicast group.
///
/// # Errors
/// The two addresses are of different kinds or families.
pub fn check_reach(own: LinkAddress, path: &AddressVector) -> Result<(), VerbError> {
    let reaches = match (own, path.address) {
        (LinkAddress::InProcess(_), LinkAddress::InProcess(_)) => true,
        // The link carries groups of both families.
        (LinkAddress::Ip(own), LinkAddress::Ip(other)) => {
            other.is_multicast() || own.is_ipv4() == other.is_ipv4()
        }
        _ => false,
    };
    if reaches {
        return Ok(());
    }
    let reason = ArgumentReason::NotOnNetwork(path.address);
    Err(VerbError::argument("ah_attr.address", reason))
}
