//! What every form of the driver holds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};

use polyverbs_engine::claims;
use polyverbs_engine::qpn::QpnPool;
use polyverbs_engine::request::{Op, Request};
use verbs_api::capability::{
    BaselineGaps, DeviceAttributes, GidEntry, GidType, Limits, Mtu, PortAttributes, PortCaps,
};
use verbs_api::ids::{Gid, LinkAddress};
use verbs_api::provider::Mutex;
use verbs_api::wr::PostReason;
use verbs_api::{Features, Transport};

use crate::agents::Agents;
use crate::frames::KeptAnswer;

/// The attributes of a device, and what a form needs for its overrides.
pub struct Common {
    /// What the device reports.
    pub attributes: DeviceAttributes,
    /// The device's address on the network.
    pub address: LinkAddress,
    /// The largest path MTU of a form that decides it.
    pub max_mtu: Mtu,
    /// What a test sees of the driver.
    pub hooks: Arc<Hooks>,
    /// The agents of a form that has them.
    pub agents: Agents,
    // The queue pair numbers of a form that numbers its queue pairs.
    numbers: QpnPool,
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
            attributes: attributes(&name.into(), address),
            address,
            max_mtu: Mtu::Mtu4096,
            agents: Agents::new(Arc::clone(&hooks)),
            hooks,
            numbers: QpnPool::new(first, end, 0),
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
        self.numbers.allocate()
    }

    pub(crate) fn give_back(&self, number: u32) {
        self.hooks.note("free_qpn");
        self.numbers.free(number);
    }

    /// The counters of a form that has its own: how many management datagrams have arrived.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("acme_mads", self.hooks.count("handle_mad") as u64)]
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
fn attributes(name: &str, address: LinkAddress) -> DeviceAttributes {
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
        gaps: BaselineGaps::NO_UC | BaselineGaps::NO_UD,
        limits: Limits {
            max_mcast_grp: 0,
            max_mcast_qp_attach: 0,
            max_comp_cntr: 0,
            ..claims::LIMITS
        },
        ..claims::attributes(name, "acme-fabric", Transport::InfiniBand, address, port)
    }
}
