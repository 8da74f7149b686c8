//! The port of a device in a fabric that another process holds (`polyverbs_fabric`).
//!
//! That process has the state of the port, which is the same for all programs there, and sends the device a notice of each change. Frames
//! do not go through it: they go from device to device, between addresses of the loopback network, of which each port has one.
//! The process says to which address the LID of another port leads by the tables of the switches. A frame to any other LID is
//! dropped.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use polyverbs_engine::effects::Effects;
use polyverbs_engine::link::{Deliver, Exchange, Frame, Link, Note, SharedLink};
use polyverbs_engine::management::{Arrival, Handled, ManagementAgents, PortChange};
use polyverbs_engine::time::Time;
use polyverbs_fabric::attachment::{Attachment, News, Notice};
use polyverbs_fabric::client::Carrier;
use polyverbs_fabric::protocol::{PortEvent, Route};
use polyverbs_management::Totals;
use polyverbs_wire::mad::MAD_LEN;
use polyverbs_wire::mad::smp::{PhysicalState, PortState};
use verbs_api::Features;
use verbs_api::capability::{DeviceAttributes, PhysState, PortAttributes};
use verbs_api::event::EventType;
use verbs_api::ids::{Guid, LinkAddress};
use verbs_api::provider::{Mutex, RwLock};

use super::counters::{Direction, PortTotals, count};
use super::describe;
use crate::Device;
use crate::header::{Header, IpFields};

/// The port of a device in a fabric.
pub struct FabricPort {
    attachment: Arc<Attachment>,
    own: Ipv4Addr,
    state: Mutex<State>,
    routes: RwLock<Routes>,
    totals: PortTotals,
}

/// The port as of the last notice.
struct State {
    notice: Notice,
    /// What programs do not know yet.
    events: VecDeque<EventType>,
}

/// The ports with verbs devices.
#[derive(Default)]
struct Routes {
    /// The address to which a LID leads.
    by_lid: HashMap<u16, Ipv4Addr>,
    /// The first LID of the port with an address.
    by_address: HashMap<Ipv4Addr, u16>,
}

impl Routes {
    fn new(routes: &[Route]) -> Self {
        let mut made = Self::default();
        for Route(lid, at, is_reached) in routes {
            made.by_address.entry(*at).or_insert(*lid);
            if *is_reached {
                made.by_lid.insert(*lid, *at);
            }
        }
        made
    }
}

impl FabricPort {
    /// Creates the port of an attached device. [`watch`](Self::watch) has the device follow it.
    pub(crate) fn new(attachment: Arc<Attachment>, carrier: Carrier) -> Self {
        Self {
            attachment,
            own: carrier.at,
            routes: RwLock::new(Routes::new(&carrier.notice.routes)),
            state: Mutex::new(State {
                notice: carrier.notice,
                events: VecDeque::new(),
            }),
            totals: PortTotals::Shared(RwLock::new(carrier.counters)),
        }
    }

    /// Makes the attributes those of a device of the node.
    pub(crate) fn identify(&self, attributes: DeviceAttributes) -> DeviceAttributes {
        let node = self.attachment.node().info();
        DeviceAttributes {
            node_guid: Guid(node.node_guid.to_be_bytes()),
            sys_image_guid: Guid(node.system_image_guid.to_be_bytes()),
            // No frames are carried to several ports.
            features: attributes.features - Features::MULTICAST,
            ..attributes
        }
    }

    /// Returns what all devices at the port have counted.
    pub(super) fn totals(&self) -> Totals {
        self.totals.read()
    }

    /// Cuts or joins the link. Without a process there is no link.
    pub(super) fn set_link(&self, state: PhysState) {
        let is_up = !matches!(state, PhysState::Disabled | PhysState::Sleep);
        // A notice shows the state of the link afterwards.
        let _ = self.attachment.set_link(is_up);
    }

    /// Asks for the way to a port of which the device has had no notice yet. The port may have come up this moment.
    pub(crate) fn prepare(&self, to: LinkAddress) {
        let is_known = |lid| self.routes.read().by_lid.contains_key(&lid);
        if matches!(to, LinkAddress::Lid(lid) if !is_known(lid))
            && let Ok(routes) = self.attachment.routes()
        {
            *self.routes.write() = Routes::new(&routes);
        }
    }

    /// Returns the virtual lane of a service level; `None` if the port has no such lane, so that it drops the packets.
    pub(super) fn lane(&self, sl: u8) -> Option<u8> {
        let state = self.state.lock();
        let notice = &state.notice;
        super::lane(&notice.sl_to_vl, notice.port.info().operational_vls, sl)
    }

    /// Has a device follow the notices of the process.
    pub(crate) fn watch(self: &Arc<Self>, device: &Arc<Device>) -> io::Result<()> {
        let (port, device) = (Arc::downgrade(self), Arc::downgrade(device));
        self.attachment.watch(move |news| {
            let (Some(port), Some(device)) = (port.upgrade(), device.upgrade()) else {
                return false;
            };
            port.hear(news);
            let mut effects = Effects::default();
            device.follow_agents(&mut effects);
            effects.run();
            true
        })
    }

    fn hear(&self, news: News) {
        match news {
            News::Changed(notice) => self.change(notice),
            News::Lost => {
                let mut notice = self.state.lock().notice.clone();
                let mut info = notice.port.info();
                if info.port_state == PortState::ACTIVE {
                    notice.events = vec![PortEvent::PortErr];
                }
                info.port_state = PortState::DOWN;
                info.physical_state = PhysicalState::POLLING;
                notice.port.set_info(&info);
                notice.routes.clear();
                self.change(notice);
            }
            News::Attached(carrier) => {
                let mut notice = carrier.notice;
                if let PortTotals::Shared(counters) = &self.totals {
                    *counters.write() = carrier.counters;
                }
                notice.events = differences(&self.state.lock().notice, &notice);
                self.change(notice);
            }
        }
    }

    fn change(&self, mut notice: Notice) {
        *self.routes.write() = Routes::new(&notice.routes);
        let events = std::mem::take(&mut notice.events);
        let mut state = self.state.lock();
        state.events.extend(events.into_iter().map(of_verbs));
        state.notice = notice;
    }
}

/// What a device that was without a process has missed.
fn differences(before: &Notice, now: &Notice) -> Vec<PortEvent> {
    let (old, new) = (before.port.info(), now.port.info());
    let changes = [
        (
            (old.lid, old.lmc) != (new.lid, new.lmc),
            PortEvent::LidChange,
        ),
        (
            (old.sm_lid, old.sm_sl) != (new.sm_lid, new.sm_sl),
            PortEvent::SmChange,
        ),
        (
            (old.gid_prefix, &before.port.guids) != (new.gid_prefix, &now.port.guids),
            PortEvent::GidChange,
        ),
        (before.port.p_keys != now.port.p_keys, PortEvent::PkeyChange),
        (new.port_state == PortState::ACTIVE, PortEvent::PortActive),
    ];
    let changes = changes.into_iter().filter(|(has_changed, _)| *has_changed);
    changes.map(|(_, event)| event).collect()
}

fn of_verbs(event: PortEvent) -> EventType {
    match event {
        PortEvent::ClientReregister => EventType::ClientReregister,
        PortEvent::GidChange => EventType::GidChange,
        PortEvent::LidChange => EventType::LidChange,
        PortEvent::PkeyChange => EventType::PkeyChange,
        PortEvent::PortActive => EventType::PortActive,
        PortEvent::PortErr => EventType::PortErr,
        PortEvent::SmChange => EventType::SmChange,
    }
}

impl ManagementAgents for FabricPort {
    /// MADs go to the process that holds the fabric, and not to the device.
    fn handle_mad(&self, _: &mut [u8; MAD_LEN], _: &Arrival, _: Time) -> Handled {
        Handled::Consumed
    }

    fn poll_change(&self) -> Option<PortChange> {
        let event = self.state.lock().events.pop_front()?;
        Some(PortChange::Event(event))
    }

    fn describe(&self, port: &mut PortAttributes) {
        const MEGABITS: u64 = 100;
        let state = self.state.lock();
        let report = &state.notice.port;
        describe(&report.info(), &report.guids, &report.p_keys, port);
        let rate = report.rate();
        port.speed = u64::from(rate.lanes) * u64::from(rate.speed) * MEGABITS;
        let guid = report.guids.first().copied().unwrap_or_default();
        port.port_guid = Guid(guid.to_be_bytes());
    }
}

impl fmt::Debug for FabricPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FabricPort").finish_non_exhaustive()
    }
}

/// Carries the frames of a port in a fabric over another link, whose addresses are those of the loopback network.
pub struct FabricLink {
    link: SharedLink<Header>,
    port: Arc<FabricPort>,
}

impl FabricLink {
    /// Carries the frames of `port` over `link`.
    pub(crate) fn new(link: SharedLink<Header>, port: Arc<FabricPort>) -> Self {
        Self { link, port }
    }

    fn carrier_of(&self, to: LinkAddress) -> Option<LinkAddress> {
        match to {
            LinkAddress::Lid(lid) => {
                let at = *self.port.routes.read().by_lid.get(&lid)?;
                Some(LinkAddress::Ip(at.into()))
            }
            _ => None,
        }
    }

    fn own(&self) -> LinkAddress {
        LinkAddress::Ip(self.port.own.into())
    }
}

impl Link<Header> for FabricLink {
    fn inner(&self) -> Option<&dyn Link<Header>> {
        Some(&*self.link)
    }

    fn max_frame(&self) -> Option<usize> {
        self.link.max_frame()
    }

    fn max_joined(&self, to: LinkAddress, qpn: u32) -> Option<usize> {
        self.link.max_joined(self.carrier_of(to)?, qpn)
    }

    fn exchange(&self, to: LinkAddress, qpn: u32) -> Option<Exchange> {
        self.link.exchange(self.carrier_of(to)?, qpn)
    }

    fn is_crowded(&self, to: LinkAddress, qpn: u32) -> bool {
        let carrier = self.carrier_of(to);
        carrier.is_some_and(|to| self.link.is_crowded(to, qpn))
    }

    fn send(&self, frame: Frame<'_, Header>, now: Time) {
        let to = self.carrier_of(frame.to);
        let own = self.own();
        // A packet to the port's own LID does not leave the adapter.
        if to != Some(own) {
            count(&self.port.totals, Direction::Sent, &frame);
        }
        // A switch drops a packet whose LID its table does not know.
        let Some(to) = to else { return };
        let header = Header {
            // A path without a routing header names no hop limit, which the packet of the inner link needs.
            ip: IpFields {
                hop_limit: HOPS,
                ..frame.header.ip
            },
            ..frame.header
        };
        let from = own;
        let frame = Frame {
            from,
            to,
            header,
            ..frame
        };
        self.link.send(frame, now);
    }

    fn progress(&self, now: Time, network: &dyn Deliver<Header>) -> bool {
        let link = self;
        self.link.progress(now, &Arriving { link, network })
    }

    fn next_due(&self) -> Option<Time> {
        self.link.next_due()
    }
}

/// Delivers the frames of the inner link.
struct Arriving<'l> {
    link: &'l FabricLink,
    network: &'l dyn Deliver<Header>,
}

impl Deliver<Header> for Arriving<'_> {
    fn deliver(&self, frame: Frame<'_, Header>, now: Time) {
        let port = &self.link.port;
        let LinkAddress::Ip(IpAddr::V4(at)) = frame.from else {
            return;
        };
        // A refusal of the system names the peer as its sender.
        let Some(lid) = port.routes.read().by_address.get(&at).copied() else {
            return;
        };
        if at != port.own {
            count(&port.totals, Direction::Received, &frame);
        }
        let from = LinkAddress::Lid(lid);
        self.network.deliver(Frame { from, ..frame }, now);
    }

    // Notes come from processes at the device's own address, by which the network finds the device.
    fn deliver_note(&self, at: LinkAddress, note: Note<'_>, now: Time) {
        self.network.deliver_note(at, note, now);
    }
}

/// The hops that a packet of the inner link may make.
const HOPS: u8 = 64;
