//! What every form of the driver holds.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};

use polyverbs_engine::request::{Op, Request};
use verbs_api::capability::{
    AtomicScope, BaselineGaps, DeviceAttributes, GidEntry, GidType, Limits, Mtu, PortAttributes,
    PortCaps,
};
use verbs_api::ids::{Gid, Guid, LinkAddress};
use verbs_api::provider::Mutex;
use verbs_api::wr::PostReason;
use verbs_api::{Features, Transport};

use crate::frames::KeptAnswer;

/// The attributes of a device, and what a form needs for its overrides.
#[derive(Debug)]
pub struct Common {
    /// What the device reports.
    pub attributes: DeviceAttributes,
    /// The device's address on the network.
    pub address: LinkAddress,
    /// The largest path MTU of a form that decides it.
    pub max_mtu: Mtu,
    /// What a test sees of the driver.
    pub hooks: Arc<Hooks>,
    numbers: Mutex<Numbers>,
    // The answers that wait for `settle`, in a form that has it.
    kept: Option<Mutex<Vec<KeptAnswer>>>,
}

/// The calls of the driver, and how a test makes it refuse requests.
#[derive(Debug, Default)]
pub struct Hooks {
    calls: Mutex<Vec<&'static str>>,
    /// A form that checks requests refuses all from now on.
    pub refuses: AtomicBool,
}

/// Queue pair numbers of a form that numbers its queue pairs: unused ones while there are any, then the one that was freed first.
#[derive(Debug)]
struct Numbers {
    fresh: Range<u32>,
    freed: VecDeque<u32>,
}

impl Common {
    /// Makes a device of this name at this address. A form that numbers its queue pairs takes the numbers from `qp_numbers`, which
    /// are the first number and the end of the range.
    pub fn new(
        name: impl Into<String>,
        address: LinkAddress,
        (first, end): (u32, u32),
        hooks: Arc<Hooks>,
    ) -> Self {
        Self {
            attributes: attributes(name.into(), address),
            address,
            max_mtu: Mtu::Mtu4096,
            hooks,
            numbers: Mutex::new(Numbers {
                fresh: first.max(2)..end,
                freed: VecDeque::new(),
            }),
            kept: None,
        }
    }

    /// Keeps each answer to a frame until [`settle`](crate::frames::settle) sends it.
    pub fn keep_answers(&mut self) {
        self.kept = Some(Mutex::default());
    }

    pub(crate) fn kept_answers(&self) -> Option<MutexGuard<'_, Vec<KeptAnswer>>> {
        self.kept.as_ref().map(Mutex::lock)
    }

    /// Takes a queue pair number.
    pub fn take_number(&self) -> Option<u32> {
        self.hooks.note("alloc_qpn");
        let numbers = &mut *self.numbers.lock();
        numbers.fresh.next().or_else(|| numbers.freed.pop_front())
    }

    pub(crate) fn give_back(&self, number: u32) {
        self.hooks.note("free_qpn");
        self.numbers.lock().freed.push_back(number);
    }

    /// Refuses requests that the device does not support, before they are queued.
    pub(crate) fn check_post(&self, request: &Request<'_>) -> Result<(), PostReason> {
        self.hooks.note("check_post");
        if self.hooks.refuses.load(Ordering::Relaxed) {
            return Err(PostReason::InlineNotAllowed);
        }
        match request.op {
            Op::Read(_, Some(_)) => Err(PostReason::Unsupported {
                missing: Features::READ_WITH_INVALIDATE,
            }),
            _ => Ok(()),
        }
    }
}

impl Hooks {
    pub(crate) fn note(&self, call: &'static str) {
        self.calls.lock().push(call);
    }

    /// How often the driver was called so.
    pub fn count(&self, call: &str) -> usize {
        let calls = self.calls.lock();
        calls.iter().filter(|made| **made == call).count()
    }

    /// The calls since the last time that this was called, in their order. They no longer count.
    pub fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.calls.lock())
    }
}

/// The attributes that the device reports.
fn attributes(name: String, address: LinkAddress) -> DeviceAttributes {
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
        name,
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
