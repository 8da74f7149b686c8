//! Requests, accepts and ends the connections of a node's paths. The protocol differs between transports only by
//! [`FlowControl`](crate::protocol::FlowControl), which a node sets when it starts.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use masked_atomics::MaskedAtomics;
use polyverbs::connection::{
    Accepted, ConnectError, Connection, ConnectionOptions, Connector, Incoming, Listener, Refusal,
    flush,
};
use polyverbs::{Access, PathOptions, Qp, QpOptions, Started, VerbError};
use polyverbs_wire::rds::{ConnectData, PORT, PORT_V6};

use crate::node::{Link, Made, Node, Purpose, post_receives};
use crate::pool::Slot;
use crate::protocol::{Answer, ArrivalId, PathId, Process};

/// Connection requests that may wait for an answer.
const BACKLOG: usize = 128;

/// Private data of a refusal: the number that Linux sends.
const REFUSED: [u8; 4] = 1_u32.to_ne_bytes();

/// The address and port where a host listens.
fn port_at(at: SocketAddr) -> SocketAddr {
    let port = if at.is_ipv6() { PORT_V6 } else { PORT };
    SocketAddr::new(at.ip(), port)
}

/// Listens on the port that peers connect to. The one process that succeeds is the leader.
pub(crate) fn listen(connector: &Connector, at: SocketAddr) -> Result<Listener, ConnectError> {
    connector.listen(port_at(at), BACKLOG)
}

/// Listens as a member, on a port of its own, for connections from the leader.
pub(crate) fn listen_as_member(
    connector: &Connector,
    at: SocketAddr,
) -> Result<Listener, ConnectError> {
    connector.listen(SocketAddr::new(at.ip(), 0), BACKLOG)
}

/// Answers the connection requests of peers for as long as the node listens.
pub(crate) async fn accept_all(node: Weak<Node>) {
    loop {
        let next = match node.upgrade() {
            Some(node) => node.listener.lock().as_ref().map(Listener::next),
            None => None,
        };
        let Some(next) = next else { return };
        let Ok(incoming) = next.await else { return };
        let Some(node) = node.upgrade() else { return };
        answer(&node, incoming);
    }
}

fn answer(node: &Arc<Node>, incoming: Incoming) {
    let asked = ConnectData::parse(incoming.private_data(), node.at.is_ipv6());
    let from = incoming.from().map(|from| from.ip());
    let answer = match &asked {
        Some(asked) if from == Some(node.at) && incoming.is_admitted() => {
            node.with(|state| state.host.handle_request_of_process(asked))
        }
        // The address that a peer states has to be the one that its request comes from.
        Some(asked) if from.is_none_or(|from| from == asked.source) => {
            node.with(|state| state.host.handle_request(asked))
        }
        _ => Answer::Refuse,
    };
    match (answer, asked) {
        (Answer::Accept { arrival, data }, Some(asked)) => {
            let task = accept(Arc::downgrade(node), incoming, arrival, asked, data);
            node.spawn_accepting(arrival, task);
        }
        // A peer that has gone does not receive the refusal.
        _ => drop(incoming.reject(&REFUSED)),
    }
}

async fn accept(
    node: Weak<Node>,
    incoming: Incoming,
    arrival: ArrivalId,
    asked: ConnectData,
    data: ConnectData,
) {
    let Some(strong) = node.upgrade() else { return };
    let Ok(qp) = make_link(&strong, Purpose::Arrival(arrival)).await else {
        return strong.withdraw(arrival);
    };
    let accepted = incoming.accept(&qp, options(&data));
    drop(strong);
    let accepted = accepted.await;
    let Some(node) = node.upgrade() else { return };
    match accepted {
        Ok(connection) => {
            let ended = connection.disconnected();
            node.spawn(watch(Arc::downgrade(&node), qp, ended));
            node.with(|state| state.accepted(&node, arrival, connection, &asked));
        }
        Err(_) => node.withdraw(arrival),
    }
}

/// Requests a connection from a peer.
pub(crate) async fn connect(node: Weak<Node>, made: Made, whom: Process, data: ConnectData) {
    let Some(strong) = node.upgrade() else { return };
    if whom == Process::Leader && strong.lead() {
        // The previous leader has gone, and this node leads now: the path fails, so that the host requests a connection from the
        // peer itself.
        return failed(&strong, made, None);
    }
    let to = match whom {
        Process::Peer => port_at(SocketAddr::new(data.destination, 0)),
        Process::Leader => port_at(SocketAddr::new(strong.at, 0)),
        Process::Member(port) => SocketAddr::new(strong.at, port),
    };
    let Ok(qp) = make_link(&strong, Purpose::Attempt(made)).await else {
        return failed(&strong, made, None);
    };
    let connector = &strong.connector;
    let asked = connector.request(&qp, to, options(&data));
    drop(strong);
    match complete(asked, &data).await {
        Ok((connection, told)) => {
            connected(&node, made, &qp, connection, &told);
            if let (Process::Leader, Some(node)) = (whom, node.upgrade()) {
                node.follow(&told);
            }
        }
        Err(error) => {
            let Some(node) = node.upgrade() else { return };
            match error {
                // No process listens at the host. A host that refuses the request gives another reason.
                ConnectError::Refused {
                    reason: Refusal::NoListener,
                    ..
                } => {
                    node.with(|state| state.host.handle_absent(made.0));
                }
                ConnectError::Refused { .. } => {
                    node.with(|state| state.host.handle_refused(made.0));
                }
                _ => {}
            }
            failed(&node, made, Some(&qp));
        }
    }
}

async fn complete(
    asked: Started<Accepted, ConnectError>,
    data: &ConnectData,
) -> Result<(Connection, ConnectData), ConnectError> {
    let accepted = asked.await?;
    let told = ConnectData::parse(accepted.private_data(), data.source.is_ipv6());
    let Some(told) = told.filter(|told| told.version <= data.version) else {
        accepted.reject(&REFUSED)?;
        return Err(ConnectError::NotConnected);
    };
    Ok((accepted.complete().await?, told))
}

/// Creates a queue pair and posts its first receives.
async fn make_link(node: &Arc<Node>, purpose: Purpose) -> Result<Qp, VerbError> {
    let limits = *node.lock().host.limits();
    let entries = limits.send_requests + limits.receives;
    let needed = entries * (1 + node.lock().links() as u32);
    if needed > node.cq.cqe() {
        node.cq.resize(needed.next_power_of_two()).await?;
    }
    let mut options = QpOptions::rc(&node.cq)
        .max_send_wr(limits.send_requests)
        .max_recv_wr(limits.receives);
    if let Ok(masked) = node.context.extension::<MaskedAtomics>() {
        options = options.operations(&masked);
    }
    let qp = node.pd.create_qp(options).await?;
    qp.init(path_options()).await?;
    let mut receives: VecDeque<Slot> = VecDeque::new();
    let first = limits.first_receives;
    if post_receives(node, &qp, &mut receives, first as usize) < first {
        return Err(VerbError::Resources("receives"));
    }
    match node.with(|state| state.add_link(purpose, &qp, receives)) {
        true => Ok(qp),
        false => Err(VerbError::Resources("an attempt that is over")),
    }
}

fn path_options() -> PathOptions {
    let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    PathOptions::new().access(remote)
}

fn options(data: &ConnectData) -> ConnectionOptions {
    ConnectionOptions::new()
        .path(path_options())
        .private_data(&data.to_bytes())
}

fn connected(node: &Weak<Node>, made: Made, qp: &Qp, connection: Connection, told: &ConnectData) {
    let Some(node) = node.upgrade() else { return };
    let ended = connection.disconnected();
    let path = made.0;
    let is_wanted = node.with(|state| {
        let is_wanted = state.is_wanted(made, Some(qp));
        if is_wanted {
            state.host.handle_connected(path, told);
            state.connected(&node, path, connection);
        }
        is_wanted
    });
    if is_wanted {
        node.spawn(watch(Arc::downgrade(&node), qp.clone(), ended));
    }
}

/// Reports the end of a connection to the host.
async fn watch(node: Weak<Node>, qp: Qp, ended: Started<(), ConnectError>) {
    // The reason for which the connection ended does not matter.
    let _ = ended.await;
    if let Some(node) = node.upgrade()
        // The poll takes in everything that arrived before the end.
        && let Some(arrival) = node.poll_with(|state| state.lost(&qp))
    {
        node.withdraw(arrival);
    }
}

/// Reports that no connection was made, if the attempt and its queue pair are still wanted.
fn failed(node: &Arc<Node>, made: Made, qp: Option<&Qp>) {
    node.with(|state| {
        if state.is_wanted(made, qp) {
            state.host.handle_lost(made.0);
        }
    });
}

/// Ends the connection of a path, if there is one, and destroys its queue pair.
pub(crate) async fn end(node: Weak<Node>, path: PathId, link: Link) {
    discard(Weak::clone(&node), link).await;
    if let Some(node) = node.upgrade() {
        let now = node.now();
        node.with(|state| state.host.handle_gone(now, path));
    }
}

/// Ends a connection that belongs to no path, and destroys its queue pair.
pub(crate) async fn discard(node: Weak<Node>, mut link: Link) {
    let Some(strong) = node.upgrade() else { return };
    // Starts the disconnect without waiting for the peer, which may be gone.
    drop(link.take_connection());
    let flushed = flush(&link.qp);
    drop(strong);
    // A queue pair that cannot be flushed is destroyed nevertheless.
    let _ = flushed.await;
    // The poll takes in the completions of the requests before their queue pair is forgotten.
    if let Some(node) = node.upgrade() {
        node.poll_with(|state| state.forget(&link.qp));
    }
    link.destroy().await;
}
