//! The driver: the mandatory parts of the contract, and the overrides.

use polyverbs_engine::device::Device;
use polyverbs_engine::driver::{Change, Driver, Executed};
use polyverbs_engine::link::Frame;
use polyverbs_engine::request::Request;
use polyverbs_engine::time::Time;
use verbs_api::qp::QpState;
use verbs_api::{
    Features, Transport,
    capability::{
        AtomicScope, BaselineGaps, DeviceAttributes, GidEntry, GidType, Limits, PortAttributes,
        PortCaps,
    },
    ids::{Gid, Guid, LinkAddress},
};

use crate::{Cx, Qp, Receiving, Requester, Responder, Sending, requester};

/// The transport.
#[derive(Clone, Debug)]
pub struct AcmeFabric {
    /// The device's name.
    pub name: String,
    /// Its address on the network.
    pub address: LinkAddress,
    #[cfg(feature = "some")]
    numbers: std::sync::Arc<overrides::Numbers>,
}

impl AcmeFabric {
    /// Makes a device of this name at this address. A driver that numbers its queue pairs itself takes the numbers
    /// from `qp_numbers`, which are the first number and the end of the range.
    pub fn new(name: impl Into<String>, address: LinkAddress, qp_numbers: (u32, u32)) -> Self {
        #[cfg(not(feature = "some"))]
        let _ = qp_numbers;
        Self {
            name: name.into(),
            address,
            #[cfg(feature = "some")]
            numbers: overrides::Numbers::new(qp_numbers),
        }
    }
}

impl Driver for AcmeFabric {
    // There are no frames: every request is carried out on its poster's thread.
    type Header = ();
    type Requester = Sending;
    type Responder = Receiving;

    fn attributes(&self) -> DeviceAttributes {
        attributes(&self.name, self.address)
    }

    fn link_address(&self) -> LinkAddress {
        self.address
    }

    fn execute(qp: &Qp, half: &mut Requester, request: &Request<'_>, cx: &mut Cx<'_>) -> Executed {
        requester::execute(qp, half, request, cx)
    }

    fn pump(qp: &Qp, half: &mut Requester, cx: &mut Cx<'_>) {
        requester::pump(qp, half, cx);
    }

    fn handle_timeout(qp: &Qp, half: &mut Requester, now: Time, cx: &mut Cx<'_>) {
        requester::handle_timeout(qp, half, now, cx);
    }

    fn handle_frame(_: &Device<Self>, _: Frame<'_, ()>, _: &mut Cx<'_>) {}

    fn modify(
        _: &Qp,
        sending: &mut Requester,
        receiving: &mut Responder,
        change: &Change<'_>,
        _: &mut Cx<'_>,
    ) {
        if change.given.ah_attr.is_some() {
            sending.direct = None;
        }
        sending.driver.set(change.given, change.all);
        receiving.driver.set(change.given, change.all);
        if change.to == QpState::Rts && change.from == QpState::Rtr {
            sending.driver.begin();
        }
    }

    overrides::some!();
    overrides::all!();
}

/// The overrides of each build, all in one place.
mod overrides {
    #[cfg(not(feature = "some"))]
    macro_rules! some {
        () => {};
    }

    #[cfg(not(feature = "all"))]
    macro_rules! all {
        () => {};
    }

    /// Queue pair numbers of the driver's own: unused ones while there are any, then the one that was freed first.
    #[cfg(feature = "some")]
    #[derive(Debug)]
    pub(super) struct Numbers {
        fresh: std::sync::Mutex<std::ops::Range<u32>>,
        rested: std::sync::Mutex<std::collections::VecDeque<u32>>,
    }

    #[cfg(feature = "some")]
    impl Numbers {
        pub(super) fn new((first, end): (u32, u32)) -> std::sync::Arc<Self> {
            let (fresh, rested) = ((first.max(2)..end).into(), std::sync::Mutex::default());
            std::sync::Arc::new(Self { fresh, rested })
        }

        pub(super) fn take(&self) -> Option<u32> {
            let fresh = self.fresh.lock().ok()?.next();
            fresh.or_else(|| self.rested.lock().ok()?.pop_front())
        }

        pub(super) fn give_back(&self, number: u32) {
            if let Ok(mut rested) = self.rested.lock() {
                rested.push_back(number);
            }
        }
    }

    #[cfg(feature = "some")]
    macro_rules! some {
        () => {
            fn alloc_qpn(&self, _: &polyverbs_engine::qpn::QpnPool) -> Option<u32> {
                self.numbers.take()
            }

            fn free_qpn(&self, _: &polyverbs_engine::qpn::QpnPool, qpn: u32) {
                self.numbers.give_back(qpn);
            }

            fn check_post(
                &self,
                _: &Qp,
                request: &Request<'_>,
            ) -> Result<(), verbs_api::wr::PostReason> {
                requester::check_post(request)
            }
        };
    }

    #[cfg(feature = "all")]
    macro_rules! all {
        () => {
            fn express(
                qp: &Qp,
                half: &mut Requester,
                requests: &[verbs_api::wr::WorkRequest<'_>],
                cx: &mut Cx<'_>,
            ) -> usize {
                polyverbs_engine::express::run(qp, half, requests, cx)
            }

            fn addresses_receives(&self) -> bool {
                false
            }

            fn path_mtu(
                &self,
                wanted: verbs_api::capability::Mtu,
                active: verbs_api::capability::Mtu,
            ) -> verbs_api::capability::Mtu {
                wanted.min(active)
            }

            fn check_path(
                &self,
                path: &verbs_api::qp::AddressVector,
            ) -> Result<(), verbs_api::VerbError> {
                requester::check_path(path)
            }

            fn before_flush(_: &Qp, half: &mut Requester, _: verbs_api::WcStatus, _: &mut Cx<'_>) {
                half.direct = None;
            }

            fn disconnect(_: &Qp, half: &mut Requester, _: &mut Cx<'_>) {
                half.driver.stop_waiting();
            }

            fn peer_ready(qp: &crate::QpRef, cx: &mut Cx<'_>) {
                requester::peer_ready(qp, cx);
            }
        };
    }

    pub(crate) use {all, some};
}

/// The attributes that the device reports.
fn attributes(name: &str, address: LinkAddress) -> DeviceAttributes {
    let limits = Limits {
        max_qp: 1 << 16,
        max_qp_wr: 1 << 12,
        max_send_sge: 16,
        max_recv_sge: 16,
        max_sge_rd: 16,
        max_inline_data: 512,
        max_msg_sz: 1 << 31,
        max_cq: 1 << 12,
        max_cqe: 1 << 18,
        max_mr: 1 << 16,
        max_mr_size: 1 << 40,
        max_mw: 1 << 16,
        max_pd: 1 << 10,
        max_ah: 1 << 10,
        max_srq: 1 << 10,
        max_srq_wr: 1 << 12,
        max_srq_sge: 16,
        max_qp_rd_atom: 16,
        max_qp_init_rd_atom: 16,
        max_fast_reg_page_list_len: 1 << 10,
        page_size_cap: 0xffff_ffff_ffff_f000,
        phys_port_cnt: 1,
        ..Limits::default()
    };
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    if let LinkAddress::InProcess(number) = address {
        gid[8..].copy_from_slice(&number.to_be_bytes());
    }
    let port = PortAttributes {
        gids: vec![GidEntry::new(Gid(gid), GidType::RoceV2)],
        ..PortAttributes::new(1, PortCaps::ROCE_V2, address)
    };
    DeviceAttributes {
        name: name.to_owned(),
        provider: "acme-fabric",
        transport: Transport::InfiniBand,
        node_guid: Guid::default(),
        sys_image_guid: Guid::default(),
        features: Features::SRQ,
        extensions: Vec::new(),
        gaps: BaselineGaps::NO_UC | BaselineGaps::NO_UD,
        limits,
        atomic_cap: AtomicScope::Global,
        masked_atomic_cap: AtomicScope::None,
        ports: vec![port],
    }
}
