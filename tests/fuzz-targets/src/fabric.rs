//! Programs at a fabric, with requests and datagrams that a fuzzer makes up; or a topology file.
//!
//! Whatever they send, nothing panics, every datagram goes to a member that has its agent, and all that waits comes to an end.

use std::time::Duration;

use polyverbs_fabric::members::{Fabric, MemberId, Outgoing, Registration};
use polyverbs_fabric::topology::{End, Topology};
use polyverbs_management::Address;
use polyverbs_wire::mad::{GSI_Q_KEY, MAD_LEN};

use crate::script::Script;

const TOPOLOGY: &str = "Switch 3 \"S\"\n[1] \"A\"[1]\n[2] \"B\"[1]\n\nCa 1 \"A\"\n\nCa 1 \"B\"\n";
const NAMES: [&str; 2] = ["A", "B"];

/// Runs the members of a fabric by the script of a fuzzer, or reads its topology.
pub fn run(octets: &[u8]) {
    match octets.split_first() {
        Some((b'T', text)) => topology(&String::from_utf8_lossy(text)),
        Some((_, script)) => members(script),
        None => {}
    }
}

fn topology(text: &str) {
    if let Ok(read) = text.parse::<Topology>() {
        let written = read.to_string();
        assert_eq!(written.parse().as_ref(), Ok(&read), "{written}");
    }
}

fn members(octets: &[u8]) {
    let mut script = Script::new(octets);
    let mut fabric = Fabric::new(&TOPOLOGY.parse().expect("a topology"), 0);
    let attach = |fabric: &mut Fabric, at: usize| fabric.attach(NAMES[at], 1).expect("a port");
    let mut members = [0, 1].map(|at| attach(&mut fabric, at));
    let mut now = Duration::ZERO;
    while !script.is_over() {
        let at = usize::from(script.octet() % 2);
        let member = members[at];
        match script.octet() % 16 {
            0 => {
                fabric.detach(member);
                members[at] = attach(&mut fabric, at);
            }
            1 => now += Duration::from_millis(u64::from(script.octet()) * 16),
            2 => drop(fabric.become_sm(member)),
            3 => drop(fabric.unregister(member, script.octet().into())),
            4 => {
                let port = script.octet() % 4;
                fabric.set_link(End { node: 0, port }, script.octet().is_multiple_of(2));
            }
            5..=7 => drop(fabric.register(member, &registration(&mut script))),
            8 => drop(fabric.carry(member)),
            9 => {
                let notices: Vec<_> = std::iter::from_fn(|| fabric.poll_notice(now)).collect();
                if let Some((id, notice)) = notices.into_iter().next() {
                    fabric.keep_notice(id, notice);
                }
            }
            _ => drop(fabric.send(member, &outgoing(&mut script), now)),
        }
        fabric.expire(now);
        check(&mut fabric, &members);
    }
    end(&mut fabric, &members);
}

/// Nothing waits for ever once the members are gone.
fn end(fabric: &mut Fabric, members: &[MemberId]) {
    for member in members {
        fabric.detach(*member);
    }
    // Traps alone are repeated, for as long as there is no subnet manager to repress them.
    let last = Duration::from_secs(10_000);
    fabric.expire(last);
    assert_eq!(fabric.poll_delivery(), None);
}

fn registration(script: &mut Script<'_>) -> Registration {
    const CLASSES: [u8; 6] = [0x01, 0x81, 0x03, 0x04, 0x32, 0x00];
    let class = CLASSES[usize::from(script.octet() % 6)];
    Registration {
        class,
        class_version: script.octet() % 4,
        oui: [0, 0, script.octet() % 2],
        methods: u128::from(script.octet()) | u128::from(script.octet()) << 16,
        is_segmented_here: script.octet().is_multiple_of(2),
    }
}

fn outgoing(script: &mut Script<'_>) -> Outgoing {
    let agent = script.octet() % 4;
    let is_gsi = script.octet() % 2;
    let lid = match script.octet() {
        255 => u16::MAX,
        lid => lid.into(),
    };
    let length = usize::from(script.octet()) * 8 % 1024;
    let front = script.octets(64);
    let mut data = vec![0; length.max(front.len())];
    data[..front.len()].copy_from_slice(front);
    if !script.octet().is_multiple_of(4) {
        data.resize(MAD_LEN, 0);
    }
    Outgoing {
        agent: agent.into(),
        timeout_ms: script.octet().into(),
        retries: (script.octet() % 4).into(),
        to: Address {
            qpn: is_gsi.into(),
            q_key: u32::from(is_gsi) * GSI_Q_KEY,
            lid,
            path_bits: script.octet(),
            ..Address::default()
        },
        data,
    }
}

fn check(fabric: &mut Fabric, members: &[MemberId]) {
    while let Some((member, delivery)) = fabric.poll_delivery() {
        assert!(members.contains(&member));
        assert!(delivery.agent < 32);
        let is_back = delivery.status != 0;
        assert!(delivery.data.len() >= if is_back { 24 } else { 36 });
    }
}
