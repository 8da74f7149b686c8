//! Reading a topology.

use std::collections::HashMap;
use std::str::FromStr;

use super::{
    End, Link, MOST_NODES, MOST_PORTS, NodeKind, NodeSpec, Rate, Speed, Topology, TopologyError,
};

/// The settings in front of a record, which are those of its node.
#[derive(Debug, Default)]
struct Settings {
    vendor: u32,
    device: u16,
    system_guid: Option<u64>,
    guid: Option<u64>,
    port_guid: Option<u64>,
}

/// A link as it stands in one line.
#[derive(Debug)]
struct Line {
    number: usize,
    from: End,
    to: (String, u8),
    rate: Option<Rate>,
}

#[derive(Debug, Default)]
struct Parser {
    nodes: Vec<NodeSpec>,
    names: HashMap<String, usize>,
    /// Each GUID, with the name of its node.
    guids: HashMap<u64, String>,
    lines: Vec<Line>,
    settings: Settings,
    /// Whether the line is part of the last node's record.
    in_record: bool,
}

impl FromStr for Topology {
    type Err = TopologyError;

    fn from_str(text: &str) -> Result<Self, TopologyError> {
        let mut parser = Parser::default();
        for (line, number) in text.lines().zip(1..) {
            let parsed = parser.line(line, number);
            parsed.map_err(|message| TopologyError {
                line: number,
                message,
            })?;
        }
        if parser.nodes.is_empty() {
            return Err(TopologyError {
                line: 1,
                message: "there is no node".to_owned(),
            });
        }
        parser.join()
    }
}

impl Parser {
    fn line(&mut self, line: &str, number: usize) -> Result<(), String> {
        let (content, comment) = line.split_once('#').unwrap_or((line, ""));
        let content = content.trim();
        if content.is_empty() {
            // A line with nothing but a comment does not end a record.
            self.in_record &= line.contains('#');
            return Ok(());
        }
        if content.starts_with('[') {
            return self.link(content, comment, number);
        }
        let (word, rest) = content.split_at(end_of_word(content));
        match word {
            "Switch" => self.node(NodeKind::Switch, rest, comment),
            // A router manages and is managed as an adapter, because it does not forward SMPs.
            "Ca" | "Hca" | "Rt" => self.node(NodeKind::Adapter, rest, comment),
            _ => match word.split_once('=') {
                Some((name, value)) => self.setting(name.trim_end_matches('+'), value),
                None => Err(format!(
                    "{word:?} is neither a kind of node, nor a port in brackets, nor a setting"
                )),
            },
        }
    }

    fn setting(&mut self, name: &str, value: &str) -> Result<(), String> {
        self.in_record = false;
        let settings = &mut self.settings;
        match name {
            "vendid" => settings.vendor = number::<u32>(name, value)? & 0xff_ffff,
            "devid" => settings.device = number::<u32>(name, value)? as u16,
            "sysimgguid" => settings.system_guid = Some(number(name, value)?),
            "caguid" | "hcaguid" | "rtguid" => settings.guid = Some(number(name, value)?),
            "switchguid" => {
                let (guid, port) = value.split_once('(').unwrap_or((value, ""));
                settings.guid = Some(number(name, guid)?);
                if let Some(port) = port.strip_suffix(')') {
                    settings.port_guid = Some(hexadecimal(port)?);
                }
            }
            // Options of ibsim that concern only its own simulation.
            _ => {}
        }
        Ok(())
    }

    fn node(&mut self, kind: NodeKind, rest: &str, comment: &str) -> Result<(), String> {
        let rest = rest.trim();
        let (ports, rest) = rest.split_at(end_of_word(rest));
        let ports = port_number(ports)?;
        let (name, _) = quoted(rest.trim()).ok_or("the name of the node, in quotes, is missing")?;
        if name.is_empty() || self.names.contains_key(name) {
            return Err(format!("there is already a node called {name:?}"));
        }
        if self.nodes.len() == MOST_NODES {
            return Err(format!("more than {MOST_NODES} nodes have no LIDs"));
        }
        let description = comment.find('"').and_then(|at| quoted(&comment[at..]));
        let description = description.map_or(name, |(description, _)| description);
        let settings = std::mem::take(&mut self.settings);
        let index = self.nodes.len();
        let guid = settings.guid.or_else(|| guid_in(name));
        let guid = guid.unwrap_or_else(|| default_guid(kind, index));
        let port_guids = match kind {
            NodeKind::Adapter => (1..=u64::from(ports))
                .map(|port| guid.wrapping_add(port))
                .collect(),
            NodeKind::Switch => vec![settings.port_guid.unwrap_or(guid)],
        };
        let node = NodeSpec {
            kind,
            name: name.to_owned(),
            description: description.to_owned(),
            ports,
            guid,
            system_guid: settings.system_guid.unwrap_or(guid),
            port_guids,
            vendor: settings.vendor,
            device: settings.device,
            links: std::collections::BTreeMap::new(),
        };
        if let Some(other) = self.guids.insert(guid, node.name.clone()) {
            return Err(format!(
                "node {name:?} has the GUID {guid:#018x} of {other:?}"
            ));
        }
        self.names.insert(node.name.clone(), index);
        self.nodes.push(node);
        self.in_record = true;
        Ok(())
    }

    fn link(&mut self, content: &str, comment: &str, number: usize) -> Result<(), String> {
        let index = self.nodes.len().checked_sub(1).filter(|_| self.in_record);
        let index = index.ok_or("a link that belongs to no node: its record has ended")?;
        let (port, rest) = bracketed(content)?;
        let node = &mut self.nodes[index];
        let port = known_port(node, port)?;
        let (own_guid, rest) = parenthesized(rest)?;
        if let (Some(guid), NodeKind::Adapter) = (own_guid, node.kind) {
            node.port_guids[usize::from(port) - 1] = guid;
        }
        // ibsim has lines for ports without a link, whose options do not concern us.
        let Some((name, rest)) = quoted(rest.trim()) else {
            return match rest.trim() {
                "" => Ok(()),
                rest if rest.contains('=') => Ok(()),
                rest => Err(format!("{rest:?} is not the name of a node in quotes")),
            };
        };
        let (to_port, rest) = bracketed(rest)?;
        let (_, rest) = parenthesized(rest)?;
        self.lines.push(Line {
            number,
            from: End { node: index, port },
            to: (name.to_owned(), port_number(to_port)?),
            rate: rate(rest, comment),
        });
        Ok(())
    }

    /// Joins the lines into links, when all nodes are known.
    fn join(mut self) -> Result<Topology, TopologyError> {
        // The line that has named each end first, and whether it is the end's own line.
        let mut named: HashMap<End, (usize, bool)> = HashMap::new();
        for line in std::mem::take(&mut self.lines) {
            let joined = self.join_line(&line, &mut named);
            joined.map_err(|message| TopologyError {
                line: line.number,
                message,
            })?;
        }
        Ok(Topology { nodes: self.nodes })
    }

    fn join_line(
        &mut self,
        line: &Line,
        named: &mut HashMap<End, (usize, bool)>,
    ) -> Result<(), String> {
        let (name, port) = &line.to;
        let node = *self
            .names
            .get(name)
            .ok_or_else(|| format!("there is no node called {name:?}"))?;
        let to = End { node, port: *port };
        let from = line.from;
        if from.node == node {
            return Err(format!("{} is linked with itself", self.nodes[node].name));
        }
        if self.nodes[node].ports < *port {
            let most = self.nodes[node].ports;
            return Err(format!("{name} has no port {port}: its last one is {most}"));
        }
        if let Some((before, true)) = named.get(&from) {
            return Err(format!("the link of this port stands in line {before} too"));
        }
        for (end, other) in [(from, to), (to, from)] {
            let known = self.nodes[end.node].links.get(&end.port);
            if known.is_some_and(|link| link.to != other) {
                let (before, _) = named.get(&end).copied().unwrap_or_default();
                let name = &self.nodes[end.node].name;
                return Err(format!(
                    "port {} of {name} has another neighbor in line {before}",
                    end.port
                ));
            }
        }
        let known = self.nodes[from.node].links.get(&from.port);
        let rate = match (known.map(|link| link.rate), line.rate) {
            (Some(known), Some(rate)) if known != rate => {
                return Err("the link has another width or speed at its other end".to_owned());
            }
            (known, rate) => rate.or(known).unwrap_or_default(),
        };
        self.nodes[from.node]
            .links
            .insert(from.port, Link { to, rate });
        self.nodes[to.node]
            .links
            .insert(to.port, Link { to: from, rate });
        named.insert(from, (line.number, true));
        named.entry(to).or_insert((line.number, false));
        Ok(())
    }
}

fn end_of_word(text: &str) -> usize {
    text.find(char::is_whitespace).unwrap_or(text.len())
}

/// Separates a text in quotes at the front from the rest.
fn quoted(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix('"')?.split_once('"')
}

fn bracketed(text: &str) -> Result<(&str, &str), String> {
    let inner = text.strip_prefix('[').and_then(|it| it.split_once(']'));
    inner.ok_or_else(|| "the number of a port in brackets is missing".to_owned())
}

fn parenthesized(text: &str) -> Result<(Option<u64>, &str), String> {
    match text.strip_prefix('(') {
        None => Ok((None, text)),
        Some(inner) => {
            let (guid, rest) = inner.split_once(')').ok_or("a parenthesis is not closed")?;
            Ok((Some(hexadecimal(guid)?), rest))
        }
    }
}

fn port_number(text: &str) -> Result<u8, String> {
    let number = text.parse().ok();
    number
        .filter(|port| (1..=MOST_PORTS).contains(port))
        .ok_or_else(|| format!("{text:?} is not a number of ports from 1 to {MOST_PORTS}"))
}

fn known_port(node: &NodeSpec, text: &str) -> Result<u8, String> {
    let port = port_number(text)?;
    if port > node.ports {
        let NodeSpec { name, ports, .. } = node;
        return Err(format!(
            "{name} has no port {port}: its last one is {ports}"
        ));
    }
    Ok(port)
}

fn number<T: TryFrom<u64>>(name: &str, text: &str) -> Result<T, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let number = number.ok().and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| format!("{name}: {text:?} is not a number"))
}

/// GUIDs in parentheses have no prefix.
fn hexadecimal(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).map_err(|_| format!("{text:?} is not a GUID"))
}

/// The GUID in a name as ibnetdiscover makes them: `H-0002c90300a0b1c2`.
fn guid_in(name: &str) -> Option<u64> {
    let (kind, digits) = name.split_once('-')?;
    let is_guid = matches!(kind, "H" | "S" | "R") && digits.len() == 16;
    u64::from_str_radix(digits, 16).ok().filter(|_| is_guid)
}

/// A locally administered GUID, with room for the GUIDs of the ports after it.
fn default_guid(kind: NodeKind, index: usize) -> u64 {
    let kind = match kind {
        NodeKind::Adapter => 1,
        NodeKind::Switch => 2,
    };
    0x0200_0000_0000_0000 | kind << 32 | (index as u64 + 1) << 8
}

/// The rate of a link: the option of ibsim, `w=4 s=4`, or the end of the comment of ibnetdiscover, `4xEDR`.
fn rate(options: &str, comment: &str) -> Option<Rate> {
    let mut words = comment.split_whitespace().rev();
    words.find_map(|word| word.parse().ok()).or_else(|| {
        let value = |name| {
            let mut options = options.split_whitespace();
            options.find_map(|option| option.strip_prefix(name)?.parse::<u8>().ok())
        };
        let (width, speed) = (value("w="), value("s="));
        let lanes = |code| match code {
            1 => 1,
            4 => 8,
            8 => 12,
            16 => 2,
            _ => 4,
        };
        let speed_of = |code| match code {
            1 => Speed::Sdr,
            2 => Speed::Ddr,
            _ => Speed::Qdr,
        };
        (width.is_some() || speed.is_some()).then(|| Rate {
            lanes: width.map_or(4, lanes),
            speed: speed.map_or(Speed::Edr, speed_of),
        })
    })
}

impl FromStr for Rate {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (lanes, speed) = text.split_once('x').ok_or(())?;
        let lanes = lanes.parse().map_err(|_| ())?;
        let known = Speed::ALL.into_iter().find(|(_, name)| *name == speed);
        match (lanes, known) {
            (1 | 2 | 4 | 8 | 12, Some((speed, _))) => Ok(Self { lanes, speed }),
            _ => Err(()),
        }
    }
}
