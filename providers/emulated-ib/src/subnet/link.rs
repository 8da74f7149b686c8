//! The link of ports on an InfiniBand network: it finds ports by LID, and counts the packets of each port.

use std::sync::Arc;

use polyverbs_engine::link::{Deliver, Frame, Link, SharedLink};
use polyverbs_engine::time::Time;
use polyverbs_wire::mad::smp::PERMISSIVE_LID;
use verbs_api::ids::LinkAddress;
use verbs_api::provider::RwLock;

use super::SubnetPort;
use super::counters::{Direction, count};
use crate::header::Header;

/// Carries the frames of ports on an InfiniBand network over another link, whose addresses are not LIDs.
///
/// Queue pairs name their peers by LID. A frame to a LID goes to the port that has it when the frame is sent, and a received frame
/// names the LID that its sender has then. MADs of ports without a LID name the addresses of the inner link.
pub struct SubnetLink {
    link: SharedLink<Header>,
    ports: RwLock<Vec<(LinkAddress, Arc<SubnetPort>)>>,
}

impl SubnetLink {
    /// Creates a link without ports over `link`.
    pub fn new(link: SharedLink<Header>) -> Arc<Self> {
        Arc::new(Self {
            link,
            ports: RwLock::default(),
        })
    }

    /// Adds the port of the device at this address of the inner link.
    pub fn attach(&self, address: LinkAddress, port: &Arc<SubnetPort>) {
        self.ports.write().push((address, Arc::clone(port)));
    }

    fn port_at(&self, address: LinkAddress) -> Option<Arc<SubnetPort>> {
        let ports = self.ports.read();
        let found = ports.iter().find(|(at, _)| *at == address);
        found.map(|(_, port)| Arc::clone(port))
    }

    /// The address of the port that has this LID.
    fn address_of(&self, lid: u16) -> Option<LinkAddress> {
        let ports = self.ports.read();
        let found = ports.iter().find(|(_, port)| port.has_lid(lid));
        found.map(|(address, _)| *address)
    }
}

impl Link<Header> for SubnetLink {
    fn inner(&self) -> Option<&dyn Link<Header>> {
        Some(&*self.link)
    }

    fn max_frame(&self) -> Option<usize> {
        self.link.max_frame()
    }

    fn send(&self, frame: Frame<'_, Header>, now: Time) {
        if let Some(port) = self.port_at(frame.from) {
            count(&port.totals, Direction::Sent, &frame);
        }
        let to = match frame.to {
            LinkAddress::Lid(lid) => self.address_of(lid),
            address => Some(address),
        };
        // A switch drops packets to a LID that no port has.
        if let Some(to) = to {
            self.link.send(Frame { to, ..frame }, now);
        }
    }

    fn progress(&self, now: Time, network: &dyn Deliver<Header>) -> bool {
        let subnet = self;
        self.link.progress(now, &Arriving { subnet, network })
    }

    fn next_due(&self) -> Option<Time> {
        self.link.next_due()
    }
}

/// Delivers the frames of the inner link.
struct Arriving<'l> {
    subnet: &'l SubnetLink,
    network: &'l dyn Deliver<Header>,
}

impl Deliver<Header> for Arriving<'_> {
    fn deliver(&self, frame: Frame<'_, Header>, now: Time) {
        if let Some(port) = self.subnet.port_at(frame.to) {
            count(&port.totals, Direction::Received, &frame);
        }
        let sender = self.subnet.port_at(frame.from);
        let from = match sender.map_or(0, |port| port.lid()) {
            0 | PERMISSIVE_LID => frame.from,
            lid => LinkAddress::Lid(lid),
        };
        self.network.deliver(Frame { from, ..frame }, now);
    }
}
