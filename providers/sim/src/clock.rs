//! The clock that a program's tests advance.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use polyverbs_engine::device::Device;
use polyverbs_engine::driver::Driver;
use polyverbs_engine::link::SharedLink;
use polyverbs_engine::network::Network;

use crate::virtual_time::{Simulation, SimulationError};

/// A clock for tests, which stands still until the test advances it: timeouts, RNR delays, command latency and the faults of
/// links take no real time, and each run is like the others. Clones are one clock.
///
/// One thread uses the devices of a clock, and the clock. Waiting in that thread for what only time brings would never end:
/// advance the clock first.
#[derive(Clone, Default)]
pub struct VirtualClock(Arc<Simulation>);

impl VirtualClock {
    /// A clock at time 0, without devices.
    pub fn new() -> Self {
        Self::default()
    }

    /// How far it has been advanced.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.now().0)
    }

    /// Advances it by `time`. Everything that becomes due until then happens in this call, in the order of its time.
    ///
    /// # Errors
    /// A million jobs became due before that.
    pub fn advance(&self, time: Duration) -> Result<(), SimulationError> {
        self.0.run_for(time)
    }

    /// Advances it from job to job, until none is left.
    ///
    /// # Errors
    /// A million jobs became due: RNR retries without a limit, for instance, have no end.
    pub fn advance_until_idle(&self) -> Result<(), SimulationError> {
        self.0.run_until_idle()
    }

    /// A network whose time this is; direct without a link.
    pub fn network<D: Driver>(
        &self,
        link: Option<SharedLink<D::Header>>,
    ) -> Arc<Network<Device<D>>> {
        self.0.network(link)
    }
}

impl fmt::Debug for VirtualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VirtualClock({:?})", self.now())
    }
}
