//! Connections of a node's paths: asked for, accepted, and ended. What the protocol has to do differently over one transport or the
//! other is decided by [`FlowControl`](crate::protocol::FlowControl) where a node starts, and nowhere else.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use masked_atomics::MaskedAtomics;
use polyverbs::connection::{
    Accepted, ConnectError, Connection, ConnectionOptions, Connector, Incoming, Listener, Refusal,
    flush,
};
use polyverbs::{Access, ConnectOptions, Qp, QpOptions, Started, VerbError};
use polyverbs_rds_wire::{ConnectData, PORT, PORT_V6};

use crate::node::{Link, Made, Node, Purpose, post_receives};
use crate::pool::Slot;
use crate::protocol::{Answer, ArrivalId, PathId, Process};

/// Requests for connections that wait to be answered.
const BACKLOG: usize = 128;

/// What a peer is told that is refused: Linux's number for it.
const REFUSED: [u8; 4] = 1_u32.to_ne_bytes();

/// Where a host listens.
fn port_at(at: SocketAddr) -> SocketAddr {
    let port = if at.is_ipv6() { PORT_V6 } else { PORT };
    SocketAddr::new(at.ip(), port)
}

/// Listens where peers ask: the one process that does is the leader.
pub(crate) fn listen(connector: &Connector, at: SocketAddr) -> Result<Listener, ConnectError> {
    connector.listen(port_at(at), BACKLOG)
}

/// Listens where the leader asks, as a member.
pub(crate) fn listen_as_member(
    connector: &Connector,
    at: SocketAddr,
) -> Result<Listener, ConnectError> {
    connector.listen(SocketAddr::new(at.ip(), 0), BACKLOG)
}

/// Answers peers that ask for connections, for as long as the node listens.
pub(crate) async fn accept_all(node: Weak<Node>) {
    loop {
        let next = match node.upgrade() {
            Some(node) => node.listener().as_ref().map(Listener::next),
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
        // What a peer says of its address has to be where it comes from.
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
        // One that has gone hears it no more.
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
    let accepted = incoming.accept(&strong.context, &qp, options(&data));
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

/// Asks a peer for a connection.
pub(crate) async fn connect(node: Weak<Node>, made: Made, whom: Process, data: ConnectData) {
    let Some(strong) = node.upgrade() else { return };
    if whom == Process::Leader && strong.lead() {
        // The one that there was has gone. What this path was for is asked of the peer itself.
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
    let asked = connector.connect(&strong.context, &qp, to, options(&data));
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
                // The host that is asked would have said why.
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

/// A queue pair, with its first receives posted.
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
    qp.init(qp_options()).await?;
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

fn qp_options() -> ConnectOptions {
    let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    ConnectOptions::new().access(remote)
}

fn options(data: &ConnectData) -> ConnectionOptions {
    ConnectionOptions::new()
        .qp(qp_options())
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

/// Tells the host when a connection has ended.
async fn watch(node: Weak<Node>, qp: Qp, ended: Started<(), ConnectError>) {
    // However it ended.
    let _ = ended.await;
    if let Some(node) = node.upgrade()
        // What arrived before the end is taken in.
        && let Some(arrival) = node.poll_with(|state| state.lost(&qp))
    {
        node.withdraw(arrival);
    }
}

/// No connection was made with this queue pair, if there was one.
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
    // The peer is told, and not waited for: it may be gone.
    drop(link.take_connection());
    let flushed = flush(&strong.context, &link.qp);
    drop(strong);
    // One that cannot be flushed is destroyed all the same.
    let _ = flushed.await;
    // What became of its requests is known before the rest is given up.
    if let Some(node) = node.upgrade() {
        node.poll_with(|state| state.forget(&link.qp));
    }
    link.destroy().await;
}
