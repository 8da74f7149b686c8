//! The virtual clock that a program's tests advance.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use polyverbs_engine::device::Device;
use polyverbs_engine::driver::Driver;
use polyverbs_engine::link::SharedLink;
use polyverbs_engine::network::Network;

use crate::sim::virtual_time::{Simulation, SimulationError};

/// A clock for tests, which stands still until the test advances it. Timeouts, RNR delays, command latency and the faults
/// of links then take no real time, and each run is like the others. Clones share one clock.
///
/// One thread uses the clock and the devices that run by it. If that thread waits for something that only happens when time
/// passes, it waits for ever: it must advance the clock first.
#[derive(Clone, Default)]
pub struct VirtualClock(Arc<Simulation>);

impl VirtualClock {
    /// Creates a clock at time 0, without devices.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns by how much the clock has been advanced since it was created.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.now().0)
    }

    /// Advances the clock by `time`. Jobs that become due within that time run in this call, in the order of their times.
    ///
    /// # Errors
    /// A million jobs ran before `time` had passed.
    pub fn advance(&self, time: Duration) -> Result<(), SimulationError> {
        self.0.run_for(time)
    }

    /// Advances the clock from one job to the next until no job is left.
    ///
    /// # Errors
    /// A million jobs ran and another is left: RNR retries without a limit, for instance, have no end.
    pub fn advance_until_idle(&self) -> Result<(), SimulationError> {
        self.0.run_until_idle()
    }

    /// Creates a network that runs by this clock. If `link` is `None`, its devices exchange messages directly, without
    /// frames.
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
