//! Requests, accepts and ends the connections of a node's paths. The RDS protocols of InfiniBand and iWARP differ only in
//! [`FlowControl`](crate::protocol::FlowControl), which a node sets when it starts.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use masked_atomics::MaskedAtomics;
use polyverbs::connection::{
    Accepted, ConnectError, Connection, ConnectionOptions, Connector, Incoming, Listener, Refusal,
    Withdrawal, flush,
};
use polyverbs::{Access, PathOptions, Qp, QpOptions, Started, VerbError};
use polyverbs_wire::rds::{ConnectData, PORT, PORT_V6};

use crate::node::{Link, Made, Node, Purpose, post_receives};
use crate::pool::Slot;
use crate::protocol::{Answer, ArrivalId, PathId, Process};

/// The most connection requests of peers that wait for an answer of this node.
const BACKLOG: usize = 128;

/// The private data of a rejected connection request: the number that Linux sends.
const REFUSED: [u8; 4] = 1_u32.to_ne_bytes();

/// The address with the RDS port, on which hosts listen for connections.
fn port_at(at: SocketAddr) -> SocketAddr {
    let port = if at.is_ipv6() { PORT_V6 } else { PORT };
    SocketAddr::new(at.ip(), port)
}

/// Listens on the RDS port of an address. Only one process can; it becomes the leader of the address.
pub(crate) fn listen(connector: &Connector, at: SocketAddr) -> Result<Listener, ConnectError> {
    connector.listen(port_at(at), BACKLOG)
}

/// Listens, as a member, on a free port for connections from the leader.
pub(crate) fn listen_as_member(
    connector: &Connector,
    at: SocketAddr,
) -> Result<Listener, ConnectError> {
    connector.listen(SocketAddr::new(at.ip(), 0), BACKLOG)
}

/// Answers the connection requests that arrive at the node's listener, until the node closes.
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
    let is_admitted = from == Some(node.at) && incoming.is_admitted();
    let answer = asked.as_ref().map_or(Answer::Refuse, |asked| {
        node.with(|state| state.host.handle_request(from, is_admitted, asked))
    });
    match (answer, asked) {
        (Answer::Accept { arrival, data }, Some(asked)) => {
            let task = accept(Arc::downgrade(node), incoming, arrival, asked, data);
            node.spawn_accepting(arrival, task);
        }
        // The rejection cannot be sent to a peer that has gone, and need not be.
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
    let Ok((accepted, answer)) = incoming.begin_accept(&qp, options(&data)) else {
        return strong.withdraw(arrival);
    };
    drop(strong);
    // The node drops this task when it gives the request up.
    let _answer = Given(answer);
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

/// An answer to a connection request, which is withdrawn if this is dropped before the peer has completed the connection.
struct Given(Withdrawal);

impl Drop for Given {
    fn drop(&mut self) {
        self.0.withdraw();
    }
}

/// Connects a path: creates its QP and requests a connection from the given process, with this private data. Reports
/// success or failure to the protocol.
pub(crate) async fn connect(node: Weak<Node>, made: Made, whom: Process, data: ConnectData) {
    let Some(strong) = node.upgrade() else { return };
    if whom == Process::Leader && strong.lead() {
        // The previous leader has gone and this node leads now. The path fails, so that the protocol requests the
        // connection from the peer itself.
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
    match complete(&node, made, asked, &data).await {
        Ok((connection, told)) => {
            connected(&node, made, &qp, connection, &told);
            if let (Process::Leader, Some(node)) = (whom, node.upgrade()) {
                node.follow(&told);
            }
        }
        Err(error) => {
            let Some(node) = node.upgrade() else { return };
            match error {
                // No process listens there. A host that rejects the request sends private data.
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

/// Waits for the reply to a connection request, and completes the connection unless the protocol no longer wants it.
async fn complete(
    node: &Weak<Node>,
    (path, attempt): Made,
    asked: Started<Accepted, ConnectError>,
    data: &ConnectData,
) -> Result<(Connection, ConnectData), ConnectError> {
    let accepted = asked.await?;
    let told = ConnectData::parse(accepted.private_data(), data.source.is_ipv6());
    let is_wanted = |told: &ConnectData| match node.upgrade() {
        Some(node) => node.with(|state| state.host.handle_reply(path, attempt, told)),
        None => false,
    };
    let told = told.filter(|told| told.version <= data.version && is_wanted(told));
    let Some(told) = told else {
        accepted.reject(&REFUSED)?;
        return Err(ConnectError::NotConnected);
    };
    Ok((accepted.complete().await?, told))
}

/// Creates a QP for a connection that is being established, and posts its first receives. Fails if the connection is no
/// longer wanted.
async fn make_link(node: &Arc<Node>, purpose: Purpose) -> Result<Qp, VerbError> {
    let limits = *node.lock().host.limits();
    let entries = limits.send_requests + limits.receives;
    let needed = entries * (1 + node.lock().links() as u32);
    // The CQ does not shrink again: the host limits the number of peers and of accepted requests, and so that of the QPs.
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

/// Waits for the end of an established connection and reports it to the protocol.
async fn watch(node: Weak<Node>, qp: Qp, ended: Started<(), ConnectError>) {
    // The reason for the end does not matter.
    let _ = ended.await;
    if let Some(node) = node.upgrade()
        // `poll_with` first takes the completions of everything that arrived before the end.
        && let Some(arrival) = node.poll_with(|state| state.lost(&qp))
    {
        node.withdraw(arrival);
    }
}

/// Reports to the protocol that an attempt to connect has failed. No effect if the protocol has given up this attempt, or
/// has replaced its QP.
fn failed(node: &Arc<Node>, made: Made, qp: Option<&Qp>) {
    node.with(|state| {
        if state.is_wanted(made, qp) {
            state.host.handle_lost(made.0);
        }
    });
}

/// Ends the connection of a path, if it has one, destroys its QP, and then reports this to the protocol.
pub(crate) async fn end(node: Weak<Node>, path: PathId, link: Link) {
    discard(Weak::clone(&node), link).await;
    if let Some(node) = node.upgrade() {
        let now = node.now();
        node.with(|state| state.host.handle_gone(now, path));
    }
}

/// Ends a connection, which is no longer used by a path, and destroys its QP.
pub(crate) async fn discard(node: Weak<Node>, mut link: Link) {
    let Some(strong) = node.upgrade() else { return };
    // Dropping the connection starts the disconnect without waiting for the peer, which may be gone.
    drop(link.take_connection());
    let flushed = flush(&link.qp);
    drop(strong);
    // A QP that cannot be flushed is destroyed nevertheless.
    let _ = flushed.await;
    // `poll_with` takes the completions of the QP's requests before the node forgets which path they belong to.
    if let Some(node) = node.upgrade() {
        node.poll_with(|state| state.forget(&link.qp));
    }
    link.destroy().await;
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::net::IpAddr;

    use polyverbs::{Context, Requirements};
    use polyverbs_wire::rds::Version;
    use test_kit::waiting::until;

    use super::*;
    use crate::node::device_of;
    use crate::protocol::PathState;
    use crate::{Outgoing, RdsSocket, RdsTransport, Wait};

    fn address(last: u8) -> IpAddr {
        [127, 0, 46, last].into()
    }

    fn node_at(at: IpAddr, transport: RdsTransport) -> Arc<Node> {
        let device = || device_of(at, Some(transport));
        Node::acquire(SocketAddr::new(at, 0), device).unwrap()
    }

    /// A peer that requests connections as RDS does, and has no listener.
    struct Peer {
        connector: Connector,
        qp: Qp,
        to: SocketAddr,
        data: ConnectData,
        _context: Context,
    }

    impl Peer {
        /// A node at an address, and a peer of the node at the next address.
        fn of_node(last: u8, transport: RdsTransport) -> (Arc<Node>, Self) {
            let [at, peer] = [last, last + 1].map(address);
            let node = node_at(at, transport);
            let device = device_of(peer, Some(transport)).unwrap();
            let context = device.open(&Requirements::new()).unwrap();
            let pd = context.alloc_pd().wait().unwrap();
            let cq = context.create_cq(8).wait().unwrap();
            let peer = Self {
                connector: Connector::of(&context).unwrap(),
                qp: pd.create_qp(QpOptions::rc(&cq)).wait().unwrap(),
                to: port_at(SocketAddr::new(at, 0)),
                data: ConnectData {
                    source: peer,
                    destination: at,
                    version: Version::V4_1,
                    minor_mask: 3,
                    tos: 0,
                    member: 0,
                    ack_sequence: 0,
                    credit: 32,
                    incarnation: 7,
                },
                _context: context,
            };
            (node, peer)
        }

        fn ask(&self, data: &ConnectData) -> Result<Accepted, ConnectError> {
            let options = ConnectionOptions::new().private_data(&data.to_bytes());
            self.connector.request(&self.qp, self.to, options).wait()
        }
    }

    /// The QPs of a node, and the slots of its pool that are in use.
    fn usage(node: &Arc<Node>) -> (usize, usize) {
        (node.lock().links(), Arc::strong_count(&node.pool) - 1)
    }

    // covers 8.46
    #[test]
    fn a_request_that_is_not_completed_leaves_nothing() {
        let (node, peer) = Peer::of_node(1, RdsTransport::InfiniBand);
        let accepted = peer.ask(&peer.data).unwrap();
        let first = node.lock().host.limits().first_receives;
        assert_eq!(usage(&node), (1, first as usize));
        accepted.reject(&REFUSED).unwrap();
        until(|| usage(&node) == (0, 0));
        assert_eq!(node.lock().host.paths().count(), 0);
        node.release();
    }

    // covers 8.46
    #[test]
    fn a_peer_that_has_gone_leaves_no_qp_and_no_receives() {
        for (last, transport) in [(3, RdsTransport::InfiniBand), (5, RdsTransport::Iwarp)] {
            let node = node_at(address(last), transport);
            let peer = RdsSocket::new();
            peer.set_transport(transport).unwrap();
            let own = SocketAddr::new(address(last + 1), 0);
            peer.bind_to(own).unwrap();
            let message = Outgoing {
                data: &[IoSlice::new(b"for a port without a socket")],
                to: Some(SocketAddr::new(node.at, 100)),
                ..Outgoing::default()
            };
            peer.send_msg(message, Wait::No).unwrap();
            until(|| (node.lock().host.paths()).any(|path| path.state == PathState::Up));
            drop(peer);
            // The node tries for a while to connect again.
            until(|| usage(&node) == (0, 0) && node.lock().host.next_due().is_none());
            node.release();
        }
    }

    // covers 8.46
    #[test]
    fn a_node_refuses_a_request_that_names_another_host() {
        for (last, transport) in [(7, RdsTransport::InfiniBand), (9, RdsTransport::Iwarp)] {
            let (node, peer) = Peer::of_node(last, transport);
            for source in [address(99), node.at] {
                let asked = ConnectData {
                    source,
                    ..peer.data
                };
                let refused = peer.ask(&asked).err();
                assert!(
                    matches!(refused, Some(ConnectError::Refused { .. })),
                    "{source}: {refused:?}"
                );
            }
            assert_eq!(usage(&node), (0, 0));
            node.release();
        }
    }
}
