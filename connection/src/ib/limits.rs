//! Options, limits and counters of a manager.

use std::time::Duration;

use super::types::CmError;

/// The options of a connection manager.
#[derive(Clone, Debug)]
#[must_use]
pub struct ManagerOptions {
    /// The GUID of the adapter, unique in the network.
    pub ca_guid: u64,
    /// The upper bits of this manager's communication IDs; the lower `comm_id_bits` are zero here.
    pub comm_id_base: u32,
    /// How many lower bits of a communication ID the manager chooses, 1 to 32.
    pub comm_id_bits: u32,
    /// The seed from which communication IDs are derived, so it must be hard to guess for others.
    pub seed: u64,
    /// How long the adapter takes to acknowledge a packet: 4.096 µs x 2^n.
    pub target_ack_delay: u8,
    /// Most connections in any state that peers have requested; and most that the program has requested.
    pub max_connections: usize,
    /// Most requests of one listener that the program has not answered, unless
    /// [`Manager::set_backlog`](super::Manager::set_backlog) sets another number.
    pub backlog: usize,
    /// Most messages in the queue to be sent; further ones are dropped.
    pub max_outgoing: usize,
    /// The longest time that this side waits for a peer, whatever timeouts the peer encodes and however often it asks for
    /// more; and the longest time that the program may take to answer a request that the peer does not repeat.
    pub patience: Duration,
    /// The time between two liveness probes of a peer's adapter; `None` for no probes.
    pub liveness_interval: Option<Duration>,
    /// The local port of incoming connections, counted from 1.
    pub port_num: u8,
    /// The index of the partition key of incoming connections.
    pub pkey_index: u16,
    /// The index of the local GID of incoming connections.
    pub sgid_index: u8,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            ca_guid: 1,
            comm_id_base: 0,
            comm_id_bits: 32,
            seed: 0,
            target_ack_delay: 15,
            max_connections: 65_536,
            backlog: 65_536,
            max_outgoing: 4096,
            patience: Duration::from_secs(120),
            liveness_interval: None,
            port_num: 1,
            pkey_index: 0,
            sgid_index: 0,
        }
    }
}

/// Counters of a connection manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Received messages that belong to no connection, or are not allowed in its state.
    pub stray: u64,
    /// Received messages from another address than the connection's.
    pub misdirected: u64,
    /// Messages that were received more than once.
    pub duplicates: u64,
    /// Messages that were sent again because they were not answered.
    pub retries: u64,
    /// Requests of peers that were refused because there was no room.
    pub refused: u64,
    /// Messages that were not sent because too many were queued, or because the address is unproven.
    pub unsent: u64,
}

pub(super) fn fits(private_data: &[u8], max: usize) -> Result<(), CmError> {
    let len = private_data.len();
    if len > max {
        return Err(CmError::PrivateData { len, max });
    }
    Ok(())
}
