//! What a manager keeps at most, and what it counts.

use std::time::Duration;

use super::types::CmError;

/// How a manager is set up.
#[derive(Clone, Debug)]
#[must_use]
pub struct ManagerOptions {
    /// Names the adapter in messages. Unique in the network.
    pub ca_guid: u64,
    /// The numbers of connections: those of `comm_id_bits` bits, with this above them.
    pub comm_id_base: u32,
    /// Bits of a number of a connection that are the manager's to choose, 1 to 32.
    pub comm_id_bits: u32,
    /// What is hard to guess from outside: where numbers begin.
    pub seed: u64,
    /// How long the adapter takes to acknowledge: 4.096 µs x 2^n.
    pub target_ack_delay: u8,
    /// Connections in any state.
    pub max_connections: usize,
    /// Requests that no program has answered, for each listener.
    pub backlog: usize,
    /// Answers that have not left yet.
    pub max_outgoing: usize,
    /// Longest time that a peer can have anything wait for, whatever it encodes and however often it asks for more; and
    /// how long the program may take to answer a request that is not repeated.
    pub patience: Duration,
    /// How often the adapters are looked for that connections are with; never where there is none.
    pub liveness_interval: Option<Duration>,
    /// The own port that connections which come in are of.
    pub port_num: u8,
    /// Index of the partition key of those.
    pub pkey_index: u16,
    /// Index of the own identifier of those.
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
            backlog: 1024,
            max_outgoing: 4096,
            patience: Duration::from_secs(120),
            liveness_interval: None,
            port_num: 1,
            pkey_index: 0,
            sgid_index: 0,
        }
    }
}

/// What a manager counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that fit no connection, or not its state.
    pub stray: u64,
    /// Messages from another address than the connection's.
    pub misdirected: u64,
    /// Messages that came again.
    pub duplicates: u64,
    /// Messages that were sent again because no answer came.
    pub retries: u64,
    /// Requests refused because there was no room.
    pub refused: u64,
    /// Answers that were not sent because too many waited.
    pub unsent: u64,
}

pub(super) fn fits(private_data: &[u8], max: usize) -> Result<(), CmError> {
    let len = private_data.len();
    if len > max {
        return Err(CmError::PrivateData { len, max });
    }
    Ok(())
}
