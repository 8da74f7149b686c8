//! Topology files: their parser, its errors with their lines, and the writer.

use polyverbs_fabric::topology::{End, NodeKind, Rate, Speed, Topology};
use proptest::prelude::*;

const TWO_NODES: &str = "Ca 1 \"A\"\n[1] \"B\"[1]\n\nCa 1 \"B\"\n[1] \"A\"[1]\n";

// What ibnetdiscover prints, with a host and one port of the switch without a link.
const DISCOVERED: &str = r#"#
# Topology file: generated on Thu Jan  1 00:00:00 1970
#
# Initiated from node 0008f10403960558 port 0008f10403960559

vendid=0x8f1
devid=0x5a06
sysimgguid=0x5442ba00003000
switchguid=0x5442ba00003080(5442ba00003081)
Switch	24 "S-005442ba00003080"		# "ISR9024 Voltaire" base port 0 lid 6 lmc 0
[22]	"H-0008f10403961354"[1](8f10403961355) 		# "MT23108 InfiniHost" lid 4 4xDDR

vendid=0x8f1
devid=0x5a05
sysimgguid=0x8f10403961357
caguid=0x8f10403961354
Ca	2 "H-0008f10403961354"		# "MT23108 InfiniHost"
[1](8f10403961355) 	"S-005442ba00003080"[22]		# lid 4 lmc 1 "ISR9024 Voltaire" lid 6 4xDDR
"#;

fn parsed(text: &str) -> Topology {
    text.parse().unwrap()
}

#[track_caller]
fn refused(text: &str, at: usize, part: &str) {
    let error = text.parse::<Topology>().unwrap_err();
    assert_eq!(error.line, at, "{error}");
    assert!(error.message.contains(part), "{error}");
}

#[test]
fn two_nodes_back_to_back_have_guids_of_their_own() {
    let topology = parsed(TWO_NODES);
    let [a, b] = &*topology.nodes else { panic!() };
    assert_eq!((a.kind, &*a.name, a.ports), (NodeKind::Adapter, "A", 1));
    assert_eq!(a.links[&1].to, End { node: 1, port: 1 });
    assert_eq!(b.links[&1].to, End { node: 0, port: 1 });
    assert_ne!(a.guid, b.guid);
    assert_ne!(a.port_guids, b.port_guids);
    assert_eq!(a.links[&1].rate, Rate::default());
}

#[test]
fn the_output_of_ibnetdiscover_is_read() {
    let topology = parsed(DISCOVERED);
    let (_, switch) = topology.node("S-005442ba00003080").unwrap();
    assert_eq!((switch.kind, switch.ports), (NodeKind::Switch, 24));
    assert_eq!(switch.guid, 0x0054_42ba_0000_3080);
    assert_eq!(switch.port_guids, [0x0054_42ba_0000_3081]);
    assert_eq!((switch.vendor, switch.device), (0x8f1, 0x5a06));
    assert_eq!(switch.system_guid, 0x0054_42ba_0000_3000);
    assert_eq!(switch.description, "ISR9024 Voltaire");
    let (_, host) = topology.node("H-0008f10403961354").unwrap();
    assert_eq!(host.port_guids[0], 0x0008_f104_0396_1355);
    let rate = Rate {
        lanes: 4,
        speed: Speed::Ddr,
    };
    assert_eq!(host.links[&1].rate, rate);
    assert_eq!(host.links[&1].to, End { node: 0, port: 22 });
}

#[test]
fn a_written_topology_is_read_as_the_same() {
    for text in [TWO_NODES, DISCOVERED] {
        let topology = parsed(text);
        let written = topology.to_string();
        assert_eq!(parsed(&written), topology, "{written}");
    }
}

#[test]
fn a_link_may_stand_in_one_line_only() {
    let once = "Switch 2 \"S\"\n\nCa 1 \"A\"\n[1] \"S\"[2] w=1 s=4\n";
    let topology = parsed(once);
    let link = topology.nodes[0].links[&2];
    assert_eq!(link.to, End { node: 1, port: 1 });
    let rate = Rate {
        lanes: 1,
        speed: Speed::Qdr,
    };
    assert_eq!(link.rate, rate);
}

#[test]
fn a_fault_has_the_line_in_which_it_stands() {
    refused("", 1, "no node");
    refused("Ca 1 \"A\"\n[1] \"B\"[1]\n", 2, "no node called \"B\"");
    refused("Ca 1 \"A\"\n[2] \"A\"[1]\n", 2, "no port 2");
    refused("Ca 2 \"A\"\n[1] \"A\"[2]\n", 2, "linked with itself");
    refused("Ca 255 \"A\"\n", 1, "from 1 to 254");
    refused("Ca 1 \"A\"\n\nCa 1 \"A\"\n", 3, "already");
    refused("Ca 1 A\n", 1, "in quotes");
    refused("Cable 1\n", 1, "neither");
    refused("[1] \"A\"[1]\n", 1, "belongs to no node");
    refused("Ca 1 \"A\"\n\n[1] \"A\"[1]\n", 3, "belongs to no node");
    refused(
        "caguid=0x1\nCa 1 \"A\"\n\ncaguid=0x1\nCa 1 \"B\"\n",
        5,
        "GUID",
    );
    let nodes = "Ca 1 \"B\"\n\nCa 1 \"C\"\n\nSwitch 2 \"A\"\n";
    let after = |links: &str| format!("{nodes}{links}");
    refused(&after("[1] \"B\"[2]\n"), 6, "no port 2");
    refused(&after("[1] \"B\"[1]\n[1] \"B\"[1]\n"), 7, "line 6 too");
    refused(&after("[1] \"B\"[1]\n[1] \"C\"[1]\n"), 7, "line 6");
    refused(
        &after("[1] \"B\"[1]\n[2] \"B\"[1]\n"),
        7,
        "another neighbor in line 6",
    );
}

#[test]
fn the_two_lines_of_a_link_must_agree() {
    let other = "Ca 1 \"A\"\n[1] \"S\"[1]\n\nSwitch 2 \"S\"\n[2] \"A\"[1]\n";
    refused(other, 5, "another neighbor in line 2");
    let rate = "Ca 1 \"A\"\n[1] \"B\"[1] # 4xEDR\n\nCa 1 \"B\"\n[1] \"A\"[1] # 1xEDR\n";
    refused(rate, 5, "width or speed");
}

/// Lines that are nearly right, so that more than the first word of a text is reached.
fn line() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["A", "B", "S", "H-0000000000000001"]);
    let record = ("(Ca|Hca|Rt|Switch|)", 0..260_u16, name.clone())
        .prop_map(|(kind, ports, name)| format!("{kind} {ports} \"{name}\" # \"text\" 4xEDR"));
    let link = (0..9_u16, name, 0..9_u16)
        .prop_map(|(from, name, to)| format!("[{from}](1f) \"{name}\"[{to}] # 4xHDR"));
    let setting = ("(caguid|devid|switchguid)", any::<u64>())
        .prop_map(|(name, value)| format!("{name}={value:#x}"));
    prop_oneof![record, link, setting, Just(String::new()), "\\PC*"]
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC*") {
        let _ = text.parse::<Topology>();
    }

    #[test]
    fn any_topology_survives_writing_and_reading(
        lines in prop::collection::vec(line(), 0..12),
    ) {
        if let Ok(topology) = lines.join("\n").parse::<Topology>() {
            prop_assert_eq!(parsed(&topology.to_string()), topology);
        }
    }
}
