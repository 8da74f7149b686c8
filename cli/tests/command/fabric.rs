//! A fabric that one command holds, and that others show.

use std::fs;
use std::io::{BufRead as _, BufReader};

use super::network::{Running, path};
use super::{Folder, complaint, json, text};

const TOPOLOGY: &str = "Switch 2 \"S\"\n[1] \"A\"[1]\n[2] \"B\"[1]\n\nCa 1 \"A\"\n\nCa 1 \"B\"\n";

/// A fabric with a socket in a folder of its own.
struct Fabric {
    folder: Folder,
    _process: Running,
    socket: String,
}

impl Fabric {
    fn new() -> Self {
        let folder = Folder::new();
        let (file, socket) = (folder.path("topology"), folder.path("socket"));
        fs::write(&file, TOPOLOGY).unwrap();
        let socket = path(&socket).to_owned();
        let arguments = ["fabric", "--topology", path(&file), "--socket", &socket];
        let mut process = Running::new(&arguments);
        let mut line = String::new();
        let output = process.0.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(line, format!("3 nodes at {socket}\n"));
        Self {
            folder,
            _process: process,
            socket,
        }
    }

    fn arguments<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        let name = ["--socket", &self.socket];
        ["fabric"]
            .iter()
            .chain(arguments)
            .copied()
            .chain(name)
            .collect()
    }
}

#[test]
fn a_fabric_is_shown_from_any_of_its_adapters() {
    let fabric = Fabric::new();
    let shown = json(&fabric.arguments(&["show", "--json", "--node", "B"]));
    let nodes = shown.as_array().unwrap();
    let names: Vec<_> = nodes.iter().map(|it| &it["description"]).collect();
    assert_eq!(names, ["B", "S", "A"]);
    assert_eq!(nodes[1]["kind"], "switch");
    assert_eq!(nodes[2]["route"], serde_json::json!([1, 1]));
    assert_eq!(nodes[0]["ports"][0]["peer"]["port"], 2);
    assert_eq!(nodes[0]["ports"][0]["state"], "initializing");
    let shown = text(&fabric.arguments(&["show"]));
    assert!(
        shown.contains("  port 1: initializing, LID 0, to A port 1"),
        "{shown}"
    );
    let queried = json(&fabric.arguments(&["query", "--route", "1,2", "--json"]));
    assert_eq!(queried["node"]["node_guid"], nodes[0]["node_guid"]);
}

#[test]
fn a_link_is_cut_and_joined_by_the_command() {
    let fabric = Fabric::new();
    let count = || {
        let shown = json(&fabric.arguments(&["show", "--json"]));
        shown.as_array().unwrap().len()
    };
    text(&fabric.arguments(&["link", "B", "1", "down"]));
    assert_eq!(count(), 2);
    text(&fabric.arguments(&["link", "B", "1", "up"]));
    assert_eq!(count(), 3);
    let told = complaint(&fabric.arguments(&["link", "C", "1", "down"]));
    assert!(told.contains("cannot change the link"), "{told}");
}

#[test]
fn a_program_finds_its_adapter_below_sys() {
    let fabric = Fabric::new();
    let of = |node| {
        let run = ["run", "--fabric", &fabric.socket, "--node", node, "cat"];
        let files = [
            "/sys/class/infiniband/ib0/ports/1/state",
            "/sys/class/infiniband/ib0/node_desc",
            "/sys/class/infiniband_mad/issm0/port",
        ];
        text(&[&run[..], &files].concat())
    };
    assert_eq!(of("B"), "2: INIT\nB\n1\n");
    let run = ["run", "--fabric", &fabric.socket, "--node", "C", "true"];
    assert!(complaint(&run).contains("there is no adapter C"));
    let nowhere = fabric.folder.path("nowhere");
    let told = complaint(&["run", "--fabric", path(&nowhere), "true"]);
    assert!(told.contains("there is no adapter in a fabric"), "{told}");
}

#[test]
fn a_program_reads_the_present_state_of_its_port() {
    let fabric = Fabric::new();
    let state = "/sys/class/infiniband/ib0/ports/1/state";
    let counter = "/sys/class/infiniband/ib0/ports/1/counters/local_link_integrity_errors";
    let command = env!("CARGO_BIN_EXE_polyverbs");
    let socket = &fabric.socket;
    let script = format!(
        "cat {state} {counter}; '{command}' fabric link --socket '{socket}' B 1 down; \
         '{command}' fabric error --socket '{socket}' B 1 integrity; cat {state} {counter}"
    );
    let run = [
        "run", "--fabric", socket, "--node", "B", "/bin/sh", "-c", &script,
    ];
    assert_eq!(text(&run), "2: INIT\n0\n1: DOWN\n1\n");
}

#[test]
fn a_fault_of_a_topology_names_file_and_line() {
    let folder = Folder::new();
    let file = folder.path("topology");
    fs::write(&file, "Ca 1 \"A\"\n[1] \"B\"[1]\n").unwrap();
    let told = complaint(&["fabric", "--topology", path(&file)]);
    let wanted = format!(
        "polyverbs: {}:2: there is no node called \"B\"",
        path(&file)
    );
    assert_eq!(told, wanted);
}
