//! Messages of several segments on their way from and to members whose segments the fabric makes.

use std::collections::HashMap;
use std::time::Duration;

use polyverbs_management::rmpp::{Progress, Receiver, Sender, header_of};
use polyverbs_management::{Address, AgentId};
use polyverbs_wire::mad::{MAD_LEN, method};

use crate::topology::End;

/// The identity of a message at a port: the peer, the transaction ID, the class and the method. Without the method a
/// port that sends to itself would take an answer for its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    at: End,
    lid: u16,
    transaction: [u8; 8],
    class: u8,
    method: u8,
}

impl Key {
    pub(crate) fn of(at: End, mad: &[u8; MAD_LEN], peer: &Address) -> Self {
        let mut transaction = [0; 8];
        transaction.copy_from_slice(&mad[8..16]);
        Self {
            at,
            lid: peer.lid,
            transaction,
            class: mad[1],
            method: mad[3],
        }
    }

    /// The message that a MAD acknowledges, which has the other direction.
    pub(crate) fn acknowledged(self) -> Self {
        Self {
            method: self.method ^ method::RESPONSE,
            ..self
        }
    }

    pub(crate) fn at(&self) -> End {
        self.at
    }
}

/// A message that a member sends.
#[derive(Debug)]
pub(crate) struct Leaving {
    pub(crate) agent: AgentId,
    pub(crate) to: Address,
    pub(crate) sender: Sender,
    /// The first segment, whose header the member gets back if the message does not arrive.
    pub(crate) first: [u8; MAD_LEN],
}

/// A message that a member gets.
#[derive(Debug)]
pub(crate) struct Arriving {
    pub(crate) agent: AgentId,
    pub(crate) receiver: Receiver,
}

/// The messages of all members.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    pub(crate) leaving: HashMap<Key, Leaving>,
    pub(crate) arriving: HashMap<Key, Arriving>,
}

impl Transfers {
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let leaving = self.leaving.values().map(|it| it.sender.deadline());
        let arriving = self.arriving.values().map(|it| it.receiver.deadline());
        leaving.chain(arriving).min()
    }

    /// Ends the messages of an agent.
    pub(crate) fn forget(&mut self, at: End, agent: AgentId) {
        self.leaving
            .retain(|key, it| key.at != at || it.agent != agent);
        self.arriving
            .retain(|key, it| key.at != at || it.agent != agent);
    }

    /// Whether an agent may begin another message.
    pub(crate) fn has_room(&self, at: End) -> bool {
        let of_port = |key: &&Key| key.at == at;
        self.leaving.keys().filter(of_port).count() < MOST
            && self.arriving.keys().filter(of_port).count() < MOST
    }

    /// Ends the messages whose time is over, and returns the failed ones and those whose segments are to be sent again.
    pub(crate) fn expire(&mut self, now: Duration) -> (Vec<(Key, Leaving)>, Vec<Key>) {
        self.arriving.retain(|_, it| it.receiver.deadline() > now);
        let (mut failed, mut repeated) = (Vec::new(), Vec::new());
        for (key, it) in &mut self.leaving {
            if it.sender.deadline() > now {
                continue;
            }
            match it.sender.expire(now) {
                Progress::Goes => repeated.push(*key),
                Progress::Done | Progress::Failed => failed.push(*key),
            }
        }
        let failed = failed.into_iter();
        let failed = failed.filter_map(|key| self.leaving.remove_entry(&key));
        (failed.collect(), repeated)
    }
}

/// Whether a MAD is one segment, or an acknowledgement, of a message of a class that has such.
pub(crate) fn is_segment(mad: &[u8; MAD_LEN]) -> bool {
    const CLASSES: [u8; 4] = [0x03, 0x06, 0x10, 0x12];
    let has_segments = CLASSES.contains(&mad[1]) || (0x30..=0x4f).contains(&mad[1]);
    has_segments && header_of(mad).is_some()
}

/// The most messages of each direction at a port.
const MOST: usize = 1024;
