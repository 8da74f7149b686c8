//! A fabric of this process, and a program that queries it by one of its ports.

use std::time::Duration;

use polyverbs_fabric::query::{Exchange, QueryError};
use polyverbs_fabric::subnet::Subnet;
use polyverbs_fabric::topology::End;
use polyverbs_management::Address;
use polyverbs_wire::mad::MAD_LEN;

pub(crate) const BACK_TO_BACK: &str = "Ca 1 \"A\"\n[1] \"B\"[1]\n\nCa 1 \"B\"\n[1] \"A\"[1]\n";

/// A fabric, and the port by which the program sends.
pub(crate) struct Rig {
    pub(crate) subnet: Subnet,
    pub(crate) at: End,
    pub(crate) now: Duration,
}

impl Rig {
    /// The program is at port 1 of node A.
    pub(crate) fn new(topology: &str) -> Self {
        let subnet = Subnet::new(&topology.parse().unwrap());
        let (node, _) = subnet.named("A").unwrap();
        Self {
            subnet,
            at: End { node, port: 1 },
            now: Duration::ZERO,
        }
    }

    pub(crate) fn end(&self, name: &str, port: u8) -> End {
        let (node, _) = self.subnet.named(name).unwrap();
        End { node, port }
    }
}

impl Exchange for Rig {
    fn exchange(&mut self, mad: &[u8; MAD_LEN], lid: u16) -> Result<[u8; MAD_LEN], QueryError> {
        let to = Address {
            lid,
            ..Address::default()
        };
        self.subnet.send(self.at, *mad, &to, self.now);
        let answer = self.subnet.poll_arrival();
        let answer = answer.filter(|it| it.at == self.at);
        answer.map(|it| it.mad).ok_or(QueryError::TimedOut)
    }
}
