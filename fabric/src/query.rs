//! Queries of a program: reads an attribute of a node, and walks a fabric from node to node.
//!
//! The caller supplies the [`Exchange`] of a request and its answer, which may be a port of a fabric process or a fabric of the
//! caller.

use std::collections::{BTreeMap, VecDeque};

use polyverbs_wire::layout::{Header as _, Octets};
use polyverbs_wire::mad::smp::{
    self, DIRECTED_CLASS, Hops, LID_CLASS, NodeDescription, NodeInfo, PERMISSIVE_LID, PortInfo,
    PortState, Smp,
};
use polyverbs_wire::mad::{self, Attribute, MAD_LEN, MadHeader, method, status};

/// The way to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// The port by which each node is left, the program's own first. An empty route leads to the program's own node.
    Directed(Vec<u8>),
    /// The LID of the node, for which the subnet needs to be configured.
    Lid(u16),
}

/// The reason why a query has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// A directed route has more hops than an SMP has room for.
    #[error("a directed route has at most 63 hops")]
    TooLong,
    /// There was no answer in time.
    #[error("there was no answer")]
    TimedOut,
    /// The node answered with this status.
    #[error("the node refused the request with status {0:#06x}")]
    Refused(u16),
    /// The answer was not a MAD of the expected kind.
    #[error("the answer was not a valid MAD")]
    Malformed,
    /// The port or its fabric process cannot be used any longer.
    #[error("{0}")]
    Lost(String),
}

/// A way to send a request and to receive its answer.
pub trait Exchange {
    /// Sends a MAD to this LID, and returns the answer to it. Of its transaction ID only the lower half counts.
    ///
    /// # Errors
    /// There is no answer, or the request could not be sent.
    fn exchange(&mut self, mad: &[u8; MAD_LEN], lid: u16) -> Result<[u8; MAD_LEN], QueryError>;
}

/// Reads an attribute of subnet management.
///
/// # Errors
/// The node is not reached, does not answer, or refuses the request.
pub fn get<A: Attribute>(
    through: &mut dyn Exchange,
    route: &Route,
    modifier: u32,
) -> Result<A, QueryError> {
    exchange(through, route, modifier, None)
}

/// Writes an attribute of subnet management, and returns it as it is afterwards.
///
/// # Errors
/// As [`get`].
pub fn set<A: Attribute>(
    through: &mut dyn Exchange,
    route: &Route,
    modifier: u32,
    attribute: &A,
) -> Result<A, QueryError> {
    exchange(through, route, modifier, Some(attribute))
}

fn exchange<A: Attribute>(
    through: &mut dyn Exchange,
    route: &Route,
    modifier: u32,
    written: Option<&A>,
) -> Result<A, QueryError> {
    let (mad, lid) = request(route, modifier, written)?;
    let answer = through.exchange(&mad, lid)?;
    let decoded = mad::decode(&answer).map_err(|_| QueryError::Malformed)?;
    let header = MadHeader::of(decoded.header);
    let status = header.status & !Hops::RETURNING;
    if header.attribute_id != A::ID || header.method & method::RESPONSE == 0 {
        return Err(QueryError::Malformed);
    }
    if status != status::OK {
        return Err(QueryError::Refused(status));
    }
    let smp: Smp = Octets(*decoded.data).header();
    let (attribute, _) = A::split(&smp.data.0).ok_or(QueryError::Malformed)?;
    Ok(attribute)
}

fn request<A: Attribute>(
    route: &Route,
    modifier: u32,
    written: Option<&A>,
) -> Result<([u8; MAD_LEN], u16), QueryError> {
    let mut header = MadHeader {
        base_version: 1,
        management_class: LID_CLASS,
        class_version: smp::CLASS_VERSION,
        method: if written.is_some() {
            method::SET
        } else {
            method::GET
        },
        attribute_id: A::ID,
        attribute_modifier: modifier,
        ..MadHeader::default()
    };
    let mut smp = Smp {
        dr_slid: PERMISSIVE_LID,
        dr_dlid: PERMISSIVE_LID,
        data: written.map(Octets::holding).unwrap_or_default(),
        ..Smp::default()
    };
    let lid = match route {
        Route::Lid(lid) => *lid,
        Route::Directed(ports) => {
            let place = smp.initial_path.0.get_mut(1..=ports.len());
            place.ok_or(QueryError::TooLong)?.copy_from_slice(ports);
            header.management_class = DIRECTED_CLASS;
            header.class_specific = u16::from_be_bytes([0, ports.len() as u8]);
            PERMISSIVE_LID
        }
    };
    Ok((mad::encode(&header, &smp.to_view().0), lid))
}

/// A node that a walk has found.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundNode {
    /// A shortest way to the node.
    pub route: Vec<u8>,
    /// What the node is. The port is the one by which the walk came.
    pub info: NodeInfo,
    /// The description of the node, for people.
    pub description: String,
    /// The ports, with their numbers: of a switch also port 0.
    pub ports: BTreeMap<u8, FoundPort>,
}

/// A port that a walk has found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FoundPort {
    /// The state of the port.
    pub info: PortInfo,
    /// The GUID of the neighbor's node and the number of its port, if the port has a link and its neighbor answers.
    pub peer: Option<(u64, u8)>,
}

/// Finds all nodes that are reached from a port, nearest first.
///
/// # Errors
/// The program's own node does not answer. Other nodes that do not answer are left out.
pub fn walk(through: &mut dyn Exchange) -> Result<Vec<FoundNode>, QueryError> {
    let mut found: Vec<FoundNode> = Vec::new();
    let mut places: BTreeMap<u64, usize> = BTreeMap::new();
    let mut next = VecDeque::from([Step::default()]);
    while let Some(Step { route, from }) = next.pop_front() {
        let info = match get::<NodeInfo>(through, &Route::Directed(route.clone()), 0) {
            Ok(info) => info,
            Err(error) if from.is_none() => return Err(error),
            Err(_) => continue,
        };
        if let Some((before, port)) = from
            && let Some(port) = found[before].ports.get_mut(&port)
        {
            port.peer = Some((info.node_guid, info.local_port_num));
        }
        if places.contains_key(&info.node_guid) {
            continue;
        }
        let place = found.len();
        places.insert(info.node_guid, place);
        let node = read_node(through, route, info)?;
        for port in onward(&node) {
            let route = node.route.iter().copied().chain([port]).collect();
            let from = Some((place, port));
            next.push_back(Step { route, from });
        }
        found.push(node);
    }
    Ok(found)
}

/// A way that a walk has still to go.
#[derive(Debug, Default)]
struct Step {
    route: Vec<u8>,
    /// The place of the last node before the end, and the port by which the way leaves it.
    from: Option<(usize, u8)>,
}

const SWITCH: u8 = 2;

fn read_node(
    through: &mut dyn Exchange,
    route: Vec<u8>,
    info: NodeInfo,
) -> Result<FoundNode, QueryError> {
    let way = Route::Directed(route.clone());
    let NodeDescription { text } = get(through, &way, 0)?;
    let numbers = if info.node_type == SWITCH {
        0..=info.num_ports
    } else {
        1..=info.num_ports
    };
    let mut ports = BTreeMap::new();
    for number in numbers {
        let info = get::<PortInfo>(through, &way, number.into())?;
        ports.insert(number, FoundPort { info, peer: None });
    }
    let end = text.0.iter().position(|byte| *byte == 0);
    let text = &text.0[..end.unwrap_or(text.0.len())];
    Ok(FoundNode {
        route,
        info,
        description: String::from_utf8_lossy(text).into_owned(),
        ports,
    })
}

/// The ports by which a walk goes on: those of a switch, and the port of an adapter at which the walk begins.
fn onward(node: &FoundNode) -> Vec<u8> {
    let goes_on = |port: u8| match (node.info.node_type, node.route.len()) {
        (SWITCH, _) => port > 0,
        (_, 0) => port == node.info.local_port_num,
        _ => false,
    };
    let has_link = |it: &FoundPort| it.info.port_state != PortState::DOWN;
    let ports = node.ports.iter();
    let onward = ports.filter(|(number, port)| goes_on(**number) && has_link(port));
    onward.map(|(number, _)| *number).collect()
}
