//! A device at an address, as one process has it.

// This crate is linked so that devices have the features of base memory management.
use bmme as _;

use std::net::SocketAddr;
use std::sync::Arc;

use emulated_ib::{InfiniBand, OnWire, WireOptions};
use polyverbs_engine::device::DeviceOptions;
use test_kit::waiting::until;
use verbs_api::provider::DeviceOps;
use verbs_api::{Access, Completion, Context, Cq, Device, Memory, Mr, Pd, Requirements, VerbError};
use xrc::{OpenXrcd, Xrc, Xrcd};

const SIZE: usize = 1 << 20;

/// A device at an address, as one process has it.
pub(crate) struct Node {
    _wire: OnWire,
    pub(crate) context: Context,
    pub(crate) xrc: Xrc,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) memory: Memory,
    pub(crate) mr: Mr,
}

impl Node {
    /// Opens a device at an address, with these faults. If `memory` is `true`, it uses shared memory.
    pub(crate) fn new(address: SocketAddr, memory: bool, faults: &str) -> Self {
        let mut options = WireOptions::new(address);
        options.faults = faults.parse().unwrap();
        options.link.memory = memory;
        let driver = |at| InfiniBand {
            name: format!("ib at {address}"),
            address: at,
            windows_2a: false,
            management: None,
            subnet: None,
        };
        let wire = OnWire::new(driver, options, DeviceOptions::default()).unwrap();
        let device = Device::of(wire.device.clone() as Arc<dyn DeviceOps>);
        let context = device
            .open(&Requirements::everything_of(&device.attributes()))
            .unwrap();
        let xrc = context.extension().unwrap();
        let pd = context.alloc_pd().wait().unwrap();
        let cq = context.create_cq(1024).wait().unwrap();
        let memory = Memory::zeroed(SIZE).unwrap();
        let rights = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let mr = pd.register(&memory, rights).wait().unwrap();
        Self {
            _wire: wire,
            context,
            xrc,
            pd,
            cq,
            memory,
            mr,
        }
    }

    /// Waits for this number of completions.
    pub(crate) fn take(&self, count: usize) -> Vec<Completion> {
        let mut taken = Vec::new();
        until(|| {
            taken.extend(self.poll());
            taken.len() >= count
        });
        taken
    }

    /// Returns the next completion, if there is one.
    pub(crate) fn poll(&self) -> Option<Completion> {
        let mut slot = [Completion::default()];
        let is_empty = self.cq.poll(&mut slot).unwrap().is_empty();
        let [done] = slot;
        (!is_empty).then_some(done)
    }

    /// Opens a domain.
    pub(crate) fn domain(&self, how: OpenXrcd<'_>) -> Result<Xrcd, VerbError> {
        self.xrc.open(how).wait()
    }
}
