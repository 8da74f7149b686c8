//! Options, limits and counters of a manager.

use std::time::Duration;

use super::types::CmError;

/// How a manager is set up.
#[derive(Clone, Debug)]
#[must_use]
pub struct ManagerOptions {
    /// GUID of the adapter. Unique in the network.
    pub ca_guid: u64,
    /// Upper bits of the communication IDs; the lower `comm_id_bits` are zero here.
    pub comm_id_base: u32,
    /// Lower bits of a communication ID that the manager chooses, 1 to 32.
    pub comm_id_bits: u32,
    /// What communication IDs follow from. Hard to guess from outside.
    pub seed: u64,
    /// How long the adapter takes to acknowledge: 4.096 µs x 2^n.
    pub target_ack_delay: u8,
    /// Most connections that peers ask for, in any state; and most that the program asks for.
    pub max_connections: usize,
    /// Most requests of each listener that the program has not answered, unless [`Manager::set_backlog`](super::Manager::set_backlog)
    /// sets another number.
    pub backlog: usize,
    /// Most messages that wait to be sent.
    pub max_outgoing: usize,
    /// Longest time that this side waits for a peer, whatever timeouts the peer encodes and however often it asks for more;
    /// and how long the program may take to answer a request that the peer does not repeat.
    pub patience: Duration,
    /// How often a peer's adapter is probed; `None` for never.
    pub liveness_interval: Option<Duration>,
    /// Local port of incoming connections.
    pub port_num: u8,
    /// Their partition key, as an index.
    pub pkey_index: u16,
    /// Their local GID, as an index.
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

/// Counters of a manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages of no connection, or not allowed in its state.
    pub stray: u64,
    /// Messages from another address than the connection's.
    pub misdirected: u64,
    /// Messages received more than once.
    pub duplicates: u64,
    /// Messages sent again for want of an answer.
    pub retries: u64,
    /// Requests refused for want of room.
    pub refused: u64,
    /// Messages not sent because too many waited.
    pub unsent: u64,
}

pub(super) fn fits(private_data: &[u8], max: usize) -> Result<(), CmError> {
    let len = private_data.len();
    if len > max {
        return Err(CmError::PrivateData { len, max });
    }
    Ok(())
}
