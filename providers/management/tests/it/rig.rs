//! An adapter with two ports, and requests to it.

use std::time::Duration;

use polyverbs_management::{Abilities, Event, Node, Processed};
use polyverbs_wire::layout::{Header, Octets};
use polyverbs_wire::mad::perf::{self, PERF_CLASS, Perf};
use polyverbs_wire::mad::smp::{
    self, Hops, LID_CLASS, NodeDescription, NodeInfo, PortInfo, PortState, Smp, capability,
};
use polyverbs_wire::mad::{self, Attribute, MAD_LEN, MadHeader, method, status};

pub(crate) const NODE_GUID: u64 = 0x10;
pub(crate) const PORT_GUID: u64 = 0x11;

/// The transaction ID of every request.
const TRANSACTION: u64 = 0x1234_5678_9abc_def0;

/// A request and what changes from one to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) class: u8,
    pub(crate) class_version: u8,
    pub(crate) method: u8,
    pub(crate) attribute_id: u16,
    pub(crate) modifier: u32,
    pub(crate) m_key: u64,
    pub(crate) data: Octets<192>,
}

impl Request {
    pub(crate) fn get<A: Attribute>() -> Self {
        Self {
            class: LID_CLASS,
            class_version: smp::CLASS_VERSION,
            method: method::GET,
            attribute_id: A::ID,
            modifier: 0,
            m_key: 0,
            data: Octets::default(),
        }
    }

    pub(crate) fn set<A: Attribute>(attribute: &A) -> Self {
        Self {
            method: method::SET,
            data: Octets::holding(attribute),
            ..Self::get::<A>()
        }
    }

    /// Asks the agent of performance management.
    pub(crate) fn of_counters(self) -> Self {
        Self {
            class: PERF_CLASS,
            class_version: perf::CLASS_VERSION,
            ..self
        }
    }

    pub(crate) fn modifier(self, modifier: u32) -> Self {
        Self { modifier, ..self }
    }

    pub(crate) fn m_key(self, m_key: u64) -> Self {
        Self { m_key, ..self }
    }

    pub(crate) fn to_mad(self) -> [u8; MAD_LEN] {
        let header = MadHeader {
            base_version: 1,
            management_class: self.class,
            class_version: self.class_version,
            method: self.method,
            transaction_id: TRANSACTION,
            attribute_id: self.attribute_id,
            attribute_modifier: self.modifier,
            ..MadHeader::default()
        };
        let data = if self.class == PERF_CLASS {
            let perf = Perf {
                data: self.data,
                ..Perf::default()
            };
            perf.to_view().0
        } else {
            let mut smp = Smp {
                m_key: self.m_key,
                dr_slid: smp::PERMISSIVE_LID,
                dr_dlid: smp::PERMISSIVE_LID,
                ..Smp::default()
            };
            smp.data.0.copy_from_slice(&self.data.0[..64]);
            smp.to_view().0
        };
        mad::encode(&header, &data)
    }
}

/// The header of a MAD, and its SMP.
pub(crate) fn decoded(mad: &[u8; MAD_LEN]) -> (MadHeader, Smp) {
    let decoded = mad::decode(mad).unwrap();
    (
        MadHeader::of(decoded.header),
        Octets(*decoded.data).header(),
    )
}

/// The adapter, and the time, which is the test's.
pub(crate) struct Rig {
    pub(crate) node: Node,
    pub(crate) now: Duration,
}

impl Rig {
    /// An adapter with four lanes, 40 P_Keys and 9 GUIDs at each port, whose ports are down.
    pub(crate) fn new() -> Self {
        Self::with(capability::SL_MAPPING)
    }

    pub(crate) fn with(capability_mask: u32) -> Self {
        let identity = NodeInfo {
            system_image_guid: 0x0f,
            node_guid: NODE_GUID,
            partition_cap: 40,
            device_id: 7,
            vendor_id: 0x00_02c9,
            ..NodeInfo::default()
        };
        let description = NodeDescription {
            text: Octets::padded(b"host1 mlx5_0").unwrap(),
        };
        let port = |guid| Abilities {
            guid,
            widths: 3,
            speeds: 7,
            extended_speeds: 3,
            mtu: 5,
            vls: 3,
            guids: 9,
            capability_mask,
        };
        Self {
            node: Node::adapter(
                identity,
                description,
                &[port(PORT_GUID), port(PORT_GUID + 1)],
            ),
            now: Duration::from_secs(1000),
        }
    }

    /// Passes a request to the agents by port 1, and returns what they have done with the MAD as it is afterwards.
    pub(crate) fn process(&mut self, request: Request) -> (Processed, [u8; MAD_LEN]) {
        let mut mad = request.to_mad();
        let processed = self.node.process(1, &mut mad, self.now);
        (processed, mad)
    }

    /// The status and the data with which a request is answered; the answer must belong to the request.
    pub(crate) fn answer(&mut self, request: Request) -> (u16, Octets<192>) {
        let (processed, mad) = self.process(request);
        assert_eq!(processed, Processed::Reply, "{request:?}");
        let (header, smp) = decoded(&mad);
        let method = match request.method {
            method::SET => method::GET,
            other => other,
        };
        assert_eq!(header.method, method | method::RESPONSE);
        assert_eq!(
            (
                header.transaction_id,
                header.attribute_id,
                header.attribute_modifier
            ),
            (TRANSACTION, request.attribute_id, request.modifier)
        );
        let mut data = Octets::default();
        if request.class == PERF_CLASS {
            let decoded = mad::decode(&mad).unwrap();
            data = Octets(*decoded.data).header::<Perf>().data;
        } else {
            data.0[..64].copy_from_slice(&smp.data.0);
        }
        (header.status & !Hops::RETURNING, data)
    }

    /// The attribute with which a request is answered.
    pub(crate) fn read<A: Attribute>(&mut self, request: Request) -> A {
        let (status, data) = self.answer(request);
        assert_eq!(status, status::OK, "{request:?}");
        A::split(&data.0).unwrap().0
    }

    /// The status with which a request is refused; the answer repeats the request's data.
    pub(crate) fn refusal(&mut self, request: Request) -> u16 {
        let (status, data) = self.answer(request);
        assert_eq!(data, request.data, "{request:?}");
        status
    }

    pub(crate) fn port_info(&mut self) -> PortInfo {
        self.read(Request::get::<PortInfo>())
    }

    /// Writes the port's own PortInfo with changes, and with no change of the port's state unless that is one of them.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut PortInfo)) -> Request {
        let mut info = *self.node.port(1).unwrap().info();
        (info.port_state, info.physical_state) = (PortState(0), smp::PhysicalState(0));
        let m_key = info.m_key;
        change(&mut info);
        Request::set(&info).m_key(m_key)
    }

    pub(crate) fn configure(&mut self, change: impl FnOnce(&mut PortInfo)) -> PortInfo {
        let request = self.change(change);
        self.read(request)
    }

    pub(crate) fn link_up(&mut self) {
        let neighbor = *self.node.port(2).unwrap().info();
        self.node.port_mut(1).unwrap().link_up(&neighbor);
    }

    pub(crate) fn events(&mut self) -> Vec<(u8, Event)> {
        std::iter::from_fn(|| self.node.poll_event()).collect()
    }
}
