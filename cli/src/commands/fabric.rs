//! `polyverbs fabric`: holds an emulated InfiniBand fabric for the programs of this machine, and shows it.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use polyverbs_fabric::FabricName;
use polyverbs_fabric::client::{self, Connection, Querier};
use polyverbs_fabric::process::Process;
use polyverbs_fabric::protocol::Request;
use polyverbs_fabric::query::{self, FoundNode, Route};
use polyverbs_fabric::subnet::LinkError;
use polyverbs_fabric::topology::Topology;
use polyverbs_wire::mad::smp::{NodeInfo, PortInfo, PortState};
use serde_json::{Value, json};

use crate::output::{BOLD, print_json, say};

/// Emulate an InfiniBand fabric that opensm and infiniband-diags manage
///
/// The fabric has the adapters, switches and links of a topology file, in the format of ibsim and ibnetdiscover. Programs under
/// `polyverbs run` are at one of its adapters. A fabric lasts as long as this command.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
A topology with two hosts:
  Ca 1 \"A\"
  [1] \"B\"[1]

  Ca 1 \"B\"
  [1] \"A\"[1]

Examples:
  polyverbs fabric --topology two.topo
  polyverbs run --node A -- opensm -o -e -f -
  polyverbs run --node B -- ibstat
  polyverbs fabric show
  polyverbs fabric query --route 1 --json
  polyverbs fabric link B 1 down"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// File with the nodes and links
    #[arg(long, value_name = "FILE", required = true)]
    topology: Option<PathBuf>,
    #[command(flatten)]
    socket: Socket,
}

/// The fabric that is meant
#[derive(clap::Args)]
struct Socket {
    /// Name of the socket by which programs reach the fabric: a path, or any other name
    #[arg(long, value_name = "SOCKET")]
    socket: Option<FabricName>,
}

#[derive(clap::Subcommand)]
enum Command {
    Error(Error),
    Link(Link),
    Query(Query),
    Show(Show),
}

/// Cut or join the link of a port
#[derive(clap::Args)]
struct Link {
    #[command(flatten)]
    socket: Socket,
    /// Name of the node in the topology
    node: String,
    /// Number of the port
    port: u8,
    /// What happens to the link
    state: LinkState,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum LinkState {
    Down,
    Up,
}

/// Have a port count an error of its link, and report it to the subnet manager by a trap
#[derive(clap::Args)]
struct Error {
    #[command(flatten)]
    socket: Socket,
    /// Name of the node in the topology
    node: String,
    /// Number of the port
    port: u8,
    /// What went wrong
    error: ErrorKindOfLink,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ErrorKindOfLink {
    /// Too many damaged packets: trap 129
    Integrity,
    /// Packets without credits for them: trap 130
    Overrun,
    /// No update of credits: trap 131
    FlowControl,
}

/// Read what one node is, and the state of its port
#[derive(clap::Args)]
struct Query {
    #[command(flatten)]
    from: From,
    /// Ports by which the request leaves each node, with commas between them; the own node unless set
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "PORTS",
        conflicts_with = "lid"
    )]
    route: Vec<u8>,
    /// LID of the node
    #[arg(long)]
    lid: Option<u16>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Find all nodes and links
#[derive(clap::Args)]
struct Show {
    #[command(flatten)]
    from: From,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The port by which requests leave
#[derive(clap::Args)]
struct From {
    #[command(flatten)]
    socket: Socket,
    /// Name of the own node in the topology; the first adapter unless set
    #[arg(long, default_value = "", hide_default_value = true)]
    node: String,
    /// Number of the own port
    #[arg(long, default_value_t = 1)]
    port: u8,
}

impl Socket {
    fn name(&self) -> FabricName {
        self.socket.clone().unwrap_or_else(FabricName::standard)
    }
}

impl From {
    fn attach(&self) -> anyhow::Result<Querier> {
        let name = self.socket.name();
        let attached = Querier::attach(&name, &self.node, self.port);
        attached.with_context(|| format!("cannot attach to the fabric {name}"))
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.command {
        None => serve(arguments),
        Some(Command::Error(arguments)) => error(arguments),
        Some(Command::Link(arguments)) => link(arguments),
        Some(Command::Query(arguments)) => query(arguments),
        Some(Command::Show(arguments)) => show(arguments),
    }
}

fn serve(arguments: &Arguments) -> anyhow::Result<()> {
    let file = arguments.topology.as_deref();
    let file = file.context("--topology FILE is missing")?;
    let cannot = || format!("cannot read {}", file.display());
    let text = fs::read_to_string(file).with_context(cannot)?;
    let topology = text.parse::<Topology>();
    let topology = topology.map_err(|error| anyhow!("{}:{error}", file.display()))?;
    let name = arguments.socket.name();
    let process = Process::new(&topology, name.clone());
    let process = process.map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => {
            anyhow!("another process has the name {name}: choose one with --socket")
        }
        _ => anyhow::Error::new(error).context(format!("cannot take the name {name}")),
    })?;
    say!("{} nodes at {name}", topology.nodes.len())?;
    process.run(None)?;
    Ok(())
}

fn link(arguments: &Link) -> anyhow::Result<()> {
    let request = Request::SetLink {
        node: arguments.node.clone(),
        port: arguments.port,
        is_up: arguments.state == LinkState::Up,
    };
    change(&arguments.socket, &request)
}

fn error(arguments: &Error) -> anyhow::Result<()> {
    let request = Request::Fail {
        node: arguments.node.clone(),
        port: arguments.port,
        error: match arguments.error {
            ErrorKindOfLink::Integrity => LinkError::Integrity,
            ErrorKindOfLink::Overrun => LinkError::Overrun,
            ErrorKindOfLink::FlowControl => LinkError::FlowControl,
        },
    };
    change(&arguments.socket, &request)
}

fn change(socket: &Socket, request: &Request) -> anyhow::Result<()> {
    let name = socket.name();
    let asked = Connection::open(&name).and_then(|it| client::ask(it.as_fd(), request));
    asked.with_context(|| format!("cannot change the link in the fabric {name}"))?;
    Ok(())
}

fn query(arguments: &Query) -> anyhow::Result<()> {
    let mut querier = arguments.from.attach()?;
    let route = match arguments.lid {
        Some(lid) => Route::Lid(lid),
        None => Route::Directed(arguments.route.clone()),
    };
    let node: NodeInfo = query::get(&mut querier, &route, 0)?;
    let port: PortInfo = query::get(&mut querier, &route, node.local_port_num.into())?;
    if arguments.json {
        return print_json(&json!({ "node": of_node(&node), "port": of_port(&port) }));
    }
    say!(
        "{} {:#018x}, port {} of {}: {}, LID {}",
        kind(&node),
        node.node_guid,
        node.local_port_num,
        node.num_ports,
        state(&port),
        port.lid,
    )?;
    Ok(())
}

fn show(arguments: &Show) -> anyhow::Result<()> {
    let mut querier = arguments.from.attach()?;
    let found = query::walk(&mut querier)?;
    if arguments.json {
        return print_json(&found.iter().map(to_json).collect::<Vec<_>>());
    }
    for node in &found {
        say!(
            "{BOLD}{} {:#018x}{BOLD:#} {}",
            kind(&node.info),
            node.info.node_guid,
            node.description
        )?;
        for (number, port) in &node.ports {
            let to = port.peer.and_then(|(guid, port)| {
                let peer = found.iter().find(|it| it.info.node_guid == guid)?;
                Some(format!(", to {} port {port}", peer.description))
            });
            let (state, lid) = (state(&port.info), port.info.lid);
            say!(
                "  port {number}: {state}, LID {lid}{}",
                to.unwrap_or_default()
            )?;
        }
    }
    Ok(())
}

fn to_json(node: &FoundNode) -> Value {
    let ports = node.ports.iter().map(|(number, port)| {
        let mut shown = of_port(&port.info);
        shown["number"] = json!(number);
        if let Some((guid, port)) = port.peer {
            shown["peer"] = json!({ "node_guid": hexadecimal(guid), "port": port });
        }
        shown
    });
    let mut shown = of_node(&node.info);
    shown["description"] = json!(node.description);
    shown["route"] = json!(node.route);
    shown["ports"] = ports.collect();
    shown
}

fn of_node(info: &NodeInfo) -> Value {
    json!({
        "kind": kind(info),
        "node_guid": hexadecimal(info.node_guid),
        "port_guid": hexadecimal(info.port_guid),
        "num_ports": info.num_ports,
        "local_port": info.local_port_num,
    })
}

fn of_port(info: &PortInfo) -> Value {
    json!({
        "state": state(info),
        "lid": info.lid,
        "sm_lid": info.sm_lid,
        "lmc": info.lmc,
    })
}

fn hexadecimal(guid: u64) -> String {
    format!("{guid:#018x}")
}

fn kind(info: &NodeInfo) -> &'static str {
    match info.node_type {
        1 => "adapter",
        2 => "switch",
        _ => "router",
    }
}

fn state(info: &PortInfo) -> &'static str {
    match info.port_state {
        PortState::DOWN => "down",
        PortState::INIT => "initializing",
        PortState::ARMED => "armed",
        PortState::ACTIVE => "active",
        _ => "unknown",
    }
}
