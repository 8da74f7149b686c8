//! Queue pairs 0 and 1 of a device, which no program owns: management datagrams (MADs) arrive for them, and the device's agents
//! answer.
//!
//! A driver whose port is managed by a subnet manager has [`ManagementAgents`] and passes them, by [`Device::handle_mad`](crate::device::Device::handle_mad), each
//! MAD that arrives. The answer is ready when the call returns, and the driver sends it in the context in which the MAD has
//! arrived: no other thread is involved.

use verbs_api::capability::{PhysState, PortAttributes};
use verbs_api::event::EventType;
use verbs_api::ids::LinkAddress;

use crate::time::Time;

/// The length of every MAD, in bytes.
pub const MAD_LEN: usize = 256;

/// How a MAD has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The number of the queue pair for which the MAD is: 0 or 1.
    pub qpn: u32,
    /// The Q_Key that the MAD carries.
    pub q_key: u32,
    /// The link address of the device that has sent the MAD.
    pub from: LinkAddress,
    /// The number of the queue pair that has sent the MAD.
    pub src_qp: u32,
}

/// What agents have done with a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// An answer has replaced the MAD. The driver sends it to where the MAD came from, by the same queue pair.
    Answered,
    /// There is no answer.
    Consumed,
}

/// A change of the port that a MAD, or the link, has caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortChange {
    /// The device reports this event to programs.
    Event(EventType),
    /// A subnet manager wants the link in this state: [`Driver::set_link_state`](crate::driver::Driver::set_link_state).
    Link(PhysState),
}

/// The agents that answer MADs for a device, and have the state of its port.
pub trait ManagementAgents: Send + Sync + 'static {
    /// Handles a MAD that has arrived, in place.
    fn handle_mad(&self, mad: &mut [u8; MAD_LEN], arrival: &Arrival, now: Time) -> Handled;

    /// Returns the next change of the port; `None` if there is none.
    fn poll_change(&self) -> Option<PortChange>;

    /// Writes what a subnet manager has configured, and the state of the link, into the attributes of the port.
    fn describe(&self, port: &mut PortAttributes);
}
