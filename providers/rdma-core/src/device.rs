//! Devices and their claims.

use std::ffi::c_int;
use std::sync::Arc;

use polyverbs_abi::{IbvContext, IbvDeviceAttr};
use verbs_api::VerbError;
use verbs_api::capability::{
    AtomicScope, BaselineGaps, DeviceAttributes, Features, Grant, Identity, Limits, Transport,
};
use verbs_api::ids::Guid;
use verbs_api::provider::carrier::Carrier;
use verbs_api::provider::{ContextOps, DeviceOps, EventSink};

use crate::binding::Bindings;
use crate::context::{Context, Properties};
use crate::open_device::Open;
use crate::port::ports;
use crate::rdmacm::Connections;
use crate::trial::Trial;
use crate::verbs::{Listed, Live};

pub(crate) struct Device {
    attributes: DeviceAttributes,
    // The device stays open while it is listed, for queries and for opening it again.
    listed: Live<IbvContext>,
    properties: Properties,
    connections: Arc<Connections>,
}

impl Device {
    /// Makes a device of the library: queries its attributes, and tries what they do not report.
    ///
    /// # Errors
    /// A query or the trial of the device failed.
    pub(crate) fn new(
        provider: &'static str,
        name: String,
        bindings: &Bindings,
        listed: Live<IbvContext>,
    ) -> Result<Self, VerbError> {
        let described = Self::describe(provider, name, bindings, &listed);
        let (attributes, properties, connections) =
            described.or_else(|error| listed.close().and(Err(error)))?;
        Ok(Self {
            attributes,
            listed,
            properties,
            connections,
        })
    }

    fn describe(
        provider: &'static str,
        name: String,
        bindings: &Bindings,
        listed: &Live<IbvContext>,
    ) -> Result<(DeviceAttributes, Properties, Arc<Connections>), VerbError> {
        let transport = match listed.is_iwarp()? {
            true => Transport::Iwarp,
            false => Transport::InfiniBand,
        };
        let said = listed.query_device()?;
        let tried = Trial::of(listed)?;
        let mut attributes = DeviceAttributes {
            name,
            provider,
            transport,
            identity: identity(&said),
            node_guid: Guid(said.node_guid.to_ne_bytes()),
            sys_image_guid: Guid(said.sys_image_guid.to_ne_bytes()),
            features: features(&said),
            extensions: Vec::new(),
            gaps: gaps(transport, &said, &tried),
            limits: limits(listed, &said, &tried)?,
            atomic_cap: match said.atomic_cap {
                0 => AtomicScope::None,
                1 => AtomicScope::Hca,
                _ => AtomicScope::Global,
            },
            masked_atomic_cap: AtomicScope::None,
            ports: ports(listed, said.phys_port_cnt)?,
        };
        let properties = Properties {
            limits: attributes.limits,
            with_inv: with_inv(&said),
            has_xrc: said.device_cap_flags & XRC != 0 && listed.has_xrc_verbs(),
        };
        bindings.add_to(&mut attributes, &said, properties.has_xrc, listed)?;
        let connections = Connections::of(listed, transport)?;
        Ok((attributes, properties, connections))
    }

    /// Whether this is the device of an entry in the library's present list.
    pub(crate) fn is(&self, listed: &Listed<'_>) -> bool {
        listed.is_of(&self.listed)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // There is no caller to report a failure to.
        let _ = self.listed.close();
    }
}

impl DeviceOps for Device {
    fn attributes(&self) -> DeviceAttributes {
        let mut attributes = self.attributes.clone();
        // A device that no longer answers keeps the ports that it had.
        if let Ok(ports) = ports(&self.listed, attributes.limits.phys_port_cnt) {
            attributes.ports = ports;
        }
        attributes
    }

    fn open(
        &self,
        _: &Grant,
        events: Arc<dyn EventSink>,
    ) -> Result<Arc<dyn ContextOps>, VerbError> {
        let connections = Arc::clone(&self.connections);
        let context = Context::open(&self.listed, self.properties, connections)?;
        Ok(Arc::new(Open::new(context, events)?))
    }

    fn carrier(&self) -> Option<Carrier> {
        Some(self.connections.carrier())
    }
}

fn identity(said: &IbvDeviceAttr) -> Identity {
    let fw_ver = said.fw_ver.iter().map(|&byte| byte as u8);
    let fw_ver: Vec<_> = fw_ver.take_while(|&byte| byte != 0).collect();
    Identity {
        vendor_id: said.vendor_id,
        vendor_part_id: said.vendor_part_id,
        hw_ver: said.hw_ver,
        fw_ver: String::from_utf8_lossy(&fw_ver).into_owned(),
    }
}

// These bits are those of `enum ibv_device_cap_flags`.
const MEM_WINDOW: u32 = 1 << 17;
const XRC: u32 = 1 << 20;
const MEM_WINDOW_TYPE_2A: u32 = 1 << 23;
const MEM_WINDOW_TYPE_2B: u32 = 1 << 24;

fn features(said: &IbvDeviceAttr) -> Features {
    let mut features = Features::empty();
    for (flag, feature) in [
        (MEM_WINDOW, Features::WINDOW_1),
        (MEM_WINDOW_TYPE_2A, Features::WINDOW_2A),
        (MEM_WINDOW_TYPE_2B, Features::WINDOW_2B),
    ] {
        features.set(feature, said.device_cap_flags & flag != 0);
    }
    features.set(Features::SRQ, said.max_srq > 0);
    features.set(Features::MULTICAST, said.max_mcast_grp > 0);
    features
}

/// The gaps of every iWARP device: what iWARP lacks, and what it requires but has no verb in user space.
const IWARP_GAPS: BaselineGaps = BaselineGaps::NO_SEND_WITH_IMMEDIATE
    .union(BaselineGaps::NO_RNR_RETRY)
    .union(BaselineGaps::NO_BMME)
    .union(BaselineGaps::NO_LOCAL_INVALIDATE_FENCE)
    .union(BaselineGaps::NO_ZBVA)
    .union(BaselineGaps::NO_READ_WITH_INVALIDATE)
    .union(BaselineGaps::NO_MODIFY_TO_RTR);

/// Returns the bits of a completion's flags any of which means that a key was invalidated. Linux's rxe sets the kernel's
/// bit (`IB_WC_WITH_INVALIDATE`), which differs from that of user space.
fn with_inv(said: &IbvDeviceAttr) -> u32 {
    const RXE: u32 = 0xff_ffff;
    const OF_USER_SPACE: u32 = 1 << 3;
    const OF_THE_KERNEL: u32 = 1 << 2;
    match said.vendor_id {
        RXE => OF_USER_SPACE | OF_THE_KERNEL,
        _ => OF_USER_SPACE,
    }
}

// iWARP devices do not report some features. Two vendors are known to have more of them than the others.
const SIW: u32 = 0x62_6d_74;
const POLYVERBS: u32 = 0x02_70_76;

fn gaps(transport: Transport, said: &IbvDeviceAttr, tried: &Trial) -> BaselineGaps {
    let mut gaps = tried.gaps;
    gaps.set(BaselineGaps::NO_ATOMICS, said.atomic_cap == 0);
    if transport == Transport::Iwarp {
        gaps |= IWARP_GAPS;
        let is_placed_by_own_rights = matches!(said.vendor_id, SIW | POLYVERBS);
        for (gap, has) in [
            (
                BaselineGaps::READ_SINK_NEEDS_REMOTE_WRITE,
                is_placed_by_own_rights,
            ),
            (
                BaselineGaps::NO_WRITE_WITH_IMMEDIATE,
                said.vendor_id == POLYVERBS,
            ),
        ] {
            gaps.set(gap, !has);
        }
        let has_windows = said.device_cap_flags & MEM_WINDOW_TYPE_2B != 0;
        gaps.set(BaselineGaps::NO_WINDOW_2B, !has_windows);
    }
    gaps
}

fn limits(
    listed: &Live<IbvContext>,
    said: &IbvDeviceAttr,
    tried: &Trial,
) -> Result<Limits, VerbError> {
    let number = |number: c_int| u32::try_from(number).unwrap_or(0);
    Ok(Limits {
        max_qp: number(said.max_qp),
        max_qp_wr: number(said.max_qp_wr),
        max_send_sge: number(said.max_sge),
        max_recv_sge: number(said.max_sge),
        max_sge_rd: number(said.max_sge_rd),
        max_inline_data: tried.max_inline_data,
        max_msg_sz: listed.query_port(1)?.max_msg_sz.into(),
        max_cq: number(said.max_cq),
        max_cqe: number(said.max_cqe),
        num_comp_vectors: listed.num_comp_vectors()?,
        max_mr: number(said.max_mr),
        max_mr_size: said.max_mr_size,
        max_mw: number(said.max_mw),
        max_pd: number(said.max_pd),
        max_ah: number(said.max_ah),
        max_srq: number(said.max_srq),
        max_srq_wr: number(said.max_srq_wr),
        max_srq_sge: number(said.max_srq_sge),
        max_qp_rd_atom: number(said.max_qp_rd_atom),
        max_qp_init_rd_atom: number(said.max_qp_init_rd_atom),
        max_res_rd_atom: number(said.max_res_rd_atom),
        // User space has no verb for fast registration.
        max_fast_reg_page_list_len: 0,
        page_size_cap: said.page_size_cap,
        max_mcast_grp: number(said.max_mcast_grp),
        max_mcast_qp_attach: number(said.max_mcast_qp_attach),
        max_comp_cntr: 0,
        phys_port_cnt: said.phys_port_cnt,
        local_ca_ack_delay: said.local_ca_ack_delay,
    })
}
