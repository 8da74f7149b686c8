//! Writing a topology, in the form of ibnetdiscover.

use std::fmt;

use super::{NodeKind, NodeSpec, Rate, Speed, Topology};

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.nodes.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            self.record(node, f)?;
        }
        Ok(())
    }
}

impl Topology {
    fn record(&self, node: &NodeSpec, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NodeSpec {
            name, ports, guid, ..
        } = node;
        writeln!(f, "vendid={:#x}\ndevid={:#x}", node.vendor, node.device)?;
        writeln!(f, "sysimgguid={:#x}", node.system_guid)?;
        let kind = match node.kind {
            NodeKind::Adapter => {
                writeln!(f, "caguid={guid:#x}")?;
                "Ca"
            }
            NodeKind::Switch => {
                let port = node.port_guids.first().unwrap_or(guid);
                writeln!(f, "switchguid={guid:#x}({port:x})")?;
                "Switch"
            }
        };
        writeln!(f, "{kind} {ports} \"{name}\" # \"{}\"", node.description)?;
        for port in 1..=*ports {
            self.link(node, port, f)?;
        }
        Ok(())
    }

    fn link(&self, node: &NodeSpec, port: u8, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = match node.kind {
            NodeKind::Adapter => node.port_guids.get(usize::from(port) - 1),
            NodeKind::Switch => None,
        };
        let link = node.links.get(&port);
        if own.is_none() && link.is_none() {
            return Ok(());
        }
        write!(f, "[{port}]")?;
        if let Some(guid) = own {
            write!(f, "({guid:x})")?;
        }
        if let Some(link) = link
            && let Some(peer) = self.nodes.get(link.to.node)
        {
            write!(f, " \"{}\"[{}] # {}", peer.name, link.to.port, link.rate)?;
        }
        writeln!(f)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Speed::ALL
            .into_iter()
            .find(|(speed, _)| *speed == self.speed);
        let (_, speed) = known.unwrap_or(Speed::ALL[0]);
        write!(f, "{}x{speed}", self.lanes)
    }
}
